//! The view of a control group that all formats share: which rows are stacked, the table of rows,
//! and the sentences on a kill.

use strandline_recording::GroupKill;

use super::choice::{cell_of, seconds_of};
use super::groups_json::state_of;
use super::{GroupPoint, GroupTimeline, Timeline};
use crate::group::limit_text;
use crate::text::{clean_sentence, counted, shorten};
use crate::units::{bytes, seconds};

/// Maximum number of rows that are stacked one by one; the others are one more band.
pub(super) const MAX_BANDS: usize = 6;
/// Maximum number of rows in the sentence on a kill.
const MAX_KILL_ROWS: usize = 4;
const MAX_PATH_COLUMNS: usize = 120;
/// A limit up to this many times the largest charge is part of the picture.
const MAX_LIMIT_FACTOR: u64 = 4;

/// Rows that are drawn as one: indices of [`GroupTimeline::rows`].
#[derive(Clone, Debug)]
pub(super) struct Band(Vec<usize>);

impl Band {
    /// Its bytes at a moment.
    pub fn bytes(&self, point: &GroupPoint) -> u64 {
        let bytes = self.0.iter().filter_map(|&row| point.rows.get(row));
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// A line of the table: a row, or the charge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The row's name.
    pub name: String,
    /// The row's state; `?` if this version does not know the row, empty for the charge.
    pub state: &'static str,
    /// The index of the band that its row is in; `None` for the charge.
    pub band: Option<usize>,
    /// At the moment of the largest charge.
    pub peak_bytes: u64,
    /// At the last sample before a kill; `None` without a kill, or if that sample lacks the row.
    pub kill_bytes: Option<u64>,
    /// At the last sample.
    pub last_bytes: u64,
}

/// A control group as all formats show it.
#[derive(Debug)]
pub(super) struct GroupView<'a> {
    /// Its samples and limits.
    pub group: &'a GroupTimeline,
    /// What it held at the last kill.
    pub kill: Option<&'a GroupKill>,
    /// `control group /x (limit 48.0 MiB)`.
    pub title: String,
    /// From the bottom, see [`bands`].
    pub bands: Vec<Band>,
    /// The rows, those with the most bytes first, and the charge.
    pub lines: Vec<Line>,
    /// When the charge was largest.
    pub peak_us: u64,
    /// The figure at the top of the picture.
    pub top_bytes: u64,
}

impl<'a> GroupView<'a> {
    /// Views of the groups that have samples.
    pub fn all(timeline: &'a Timeline) -> Vec<Self> {
        let kill = timeline.end.as_ref().and_then(|end| end.group_kill.as_ref());
        let views = timeline.groups.iter().filter_map(|group| {
            let own_kill = kill.filter(|kill| kill.group == group.start.group);
            Self::new(group, own_kill)
        });
        views.collect()
    }

    /// The view of a group; `None` if it has no samples.
    fn new(group: &'a GroupTimeline, kill: Option<&'a GroupKill>) -> Option<Self> {
        let (peak, last_point) = (group.peak()?, group.last_point.as_ref()?);
        let bands = bands(group);
        // Rows add up to the charge: one that is missing has no bytes.
        let row_bytes = |point: &GroupPoint, row: usize| point.rows.get(row).copied().unwrap_or(0);
        let line = |row: usize| {
            let id = group.rows.get(row).map_or("", String::as_str);
            Line {
                name: clean_sentence(id),
                state: state_of(id).unwrap_or("?"),
                band: bands.iter().position(|band| band.0.contains(&row)),
                peak_bytes: row_bytes(peak, row),
                kill_bytes: kill.and_then(|kill| kill.rows.get(id).copied()),
                last_bytes: row_bytes(last_point, row),
            }
        };
        let mut lines: Vec<Line> = group.largest_rows().into_iter().map(line).collect();
        lines.push(Line {
            name: "charge".to_owned(),
            peak_bytes: peak.current_bytes,
            kill_bytes: kill.map(|kill| kill.current_bytes),
            last_bytes: last_point.current_bytes,
            ..Line::default()
        });
        let path = shorten(&clean_sentence(&group.start.path), MAX_PATH_COLUMNS);
        let limit = limit_text(group.start.effective_limit_bytes, group.start.unread_limit_path.as_deref());
        let limits = group.limits.iter().filter_map(|step| step.bytes);
        let is_shown = |limit: &u64| *limit <= peak.current_bytes.saturating_mul(MAX_LIMIT_FACTOR);
        let top_bytes = limits.filter(is_shown).max().unwrap_or(0).max(peak.current_bytes).max(1);
        Some(Self {
            group,
            kill,
            title: format!("control group {path} ({limit})"),
            bands,
            lines,
            peak_us: peak.at_us,
            top_bytes,
        })
    }

    /// Whether the group has a limit, or had a kill.
    pub fn is_limited(&self) -> bool {
        self.kill.is_some() || self.group.limits.iter().any(|step| step.bytes.is_some())
    }

    /// What the group held at a kill, and what cannot be known; empty without one.
    pub fn kill_sentences(&self) -> Vec<String> {
        let Some(kill) = self.kill else { return Vec::new() };
        let killed = match kill.kills {
            Some(kills) => {
                format!("The kernel killed {} of this group for lack of memory.", counted(kills, "process"))
            }
            None => "A process was killed and the group was removed.".to_owned(),
        };
        let mut rows: Vec<(&String, u64)> = kill.rows.iter().map(|(id, bytes)| (id, *bytes)).collect();
        rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let largest = rows.iter().take(MAX_KILL_ROWS).filter(|(_, bytes)| *bytes > 0);
        let largest: Vec<String> =
            largest.map(|(id, size)| format!("{} {}", clean_sentence(id), bytes(*size))).collect();
        let limit = kill.effective_limit_bytes.map_or(String::new(), |limit| format!(" of {}", bytes(limit)));
        let rows = if largest.is_empty() { String::new() } else { format!(": {}", largest.join(", ")) };
        let sample = format!(
            "The last sample, taken {} before the kill was noticed, shows {}{limit}{rows}.",
            seconds(seconds_of(kill.age_us)),
            bytes(kill.current_bytes)
        );
        vec![format!("{killed} {sample}"), clean_sentence(&kill.unknown)]
    }
}

/// The bands, from the bottom: large rows that stay, large ones that the kernel can reclaim, both
/// sorted by size, largest first, and the sum of all others.
fn bands(group: &GroupTimeline) -> Vec<Band> {
    let rows = group.largest_rows();
    let (single_rows, other_rows) = rows.split_at(rows.len().min(MAX_BANDS));
    let id = |row: usize| group.rows.get(row).map_or("", String::as_str);
    let mut single = single_rows.to_vec();
    single.sort_by_key(|&row| state_of(id(row)) == Some("evictable"));
    let mut bands: Vec<Band> = single.into_iter().map(|row| Band(vec![row])).collect();
    if !other_rows.is_empty() {
        bands.push(Band(other_rows.to_vec()));
    }
    bands
}

/// For each of `cells` equal intervals, the point with the largest charge; for an interval without
/// points, the latest point before it; `None` before the first point and after the last.
pub(super) fn in_cells(group: &GroupTimeline, end_us: u64, cells: usize) -> Vec<Option<&GroupPoint>> {
    let mut points: Vec<Option<&GroupPoint>> = vec![None; cells];
    let mut previous: Option<(usize, &GroupPoint)> = None;
    for point in group.points() {
        let cell = cell_of(point.at_us, end_us, cells);
        if let Some((previous_cell, previous_point)) = previous {
            let between = points.iter_mut().take(cell).skip(previous_cell + 1);
            between.for_each(|cell_point| *cell_point = Some(previous_point));
        }
        if let Some(cell_point) = points.get_mut(cell)
            && cell_point.is_none_or(|previous| point.current_bytes > previous.current_bytes)
        {
            *cell_point = Some(point);
        }
        previous = Some((cell, point));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fabricated;

    #[test]
    fn every_format_has_the_same_rows_and_they_add_up() {
        let timeline = fabricated::limited();
        let views = GroupView::all(&timeline);
        let [view] = &views[..] else { panic!("{views:?}") };
        assert!(view.is_limited());
        let (charge, rows) = view.lines.split_last().unwrap();
        assert_eq!(rows.iter().map(|row| row.peak_bytes).sum::<u64>(), charge.peak_bytes);
        assert_eq!(rows.iter().filter_map(|row| row.kill_bytes).sum::<u64>(), charge.kill_bytes.unwrap());
        for point in timeline.groups[0].points() {
            let drawn: u64 = view.bands.iter().map(|band| band.bytes(point)).sum();
            assert_eq!(drawn, point.current_bytes);
        }
        assert_eq!(view.bands.len(), MAX_BANDS + 1);
        // What is reclaimed is above what stays.
        let name = |band: usize| view.group.rows[view.bands[band].0[0]].as_str();
        assert_eq!((name(0), view.bands[MAX_BANDS].0.len()), ("group.anon", rows.len() - MAX_BANDS));
        assert_eq!([MAX_BANDS - 2, MAX_BANDS - 1].map(name), ["group.cache.clean", "group.charge_stock"]);
        let text = view.kill_sentences().join(" ");
        assert!(text.contains("killed 1 process") && text.contains("taken 3.0 ms before"), "{text}");
        assert!(text.contains("of 64.0 MiB: group.anon") && text.contains("not which limit"), "{text}");
    }

    #[test]
    fn a_kill_without_rows_shows_none() {
        let mut timeline = fabricated::limited();
        let kill = timeline.end.as_mut().and_then(|end| end.group_kill.as_mut()).unwrap();
        kill.rows.clear();
        let view = GroupView::all(&timeline).remove(0);
        assert!(view.kill_sentences()[0].ends_with("of 64.0 MiB."), "{:?}", view.kill_sentences());
        let (charge, rows) = view.lines.split_last().unwrap();
        assert!(charge.kill_bytes.is_some() && rows.iter().all(|row| row.kill_bytes.is_none()));
    }

    #[test]
    fn cells_keep_the_largest_and_carry_the_last() {
        let timeline = fabricated::limited();
        let group = &timeline.groups[0];
        let cells = in_cells(group, timeline.last_us(), 7);
        let largest = cells.iter().flatten().map(|point| point.current_bytes).max();
        assert_eq!(largest, group.peak().map(|peak| peak.current_bytes));
        let first_cell = cells.iter().position(Option::is_some).unwrap();
        let last_cell = cells.iter().rposition(Option::is_some).unwrap();
        assert!(cells[first_cell..=last_cell].iter().all(Option::is_some));
        assert!(in_cells(group, 0, 1)[0].is_some() && in_cells(group, 0, 0).is_empty());
    }
}

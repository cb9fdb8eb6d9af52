//! The control group in the page: its rows stacked over time beside the limit, as a picture without
//! a script, and a table with the exact figures.

use std::fmt::Write;

use serde::Serialize;

use super::choice::{seconds_of, time};
use super::group_view::{GroupView, Line, in_cells};
use super::html::Cell;
use super::{GroupPoint, Timeline};
use crate::units::bytes;

/// Size of the picture, and of the area within, in its own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 76.0;
const TOP: f64 = 8.0;
const RIGHT: f64 = 990.0;
const BOTTOM: f64 = 236.0;
/// Instants that are drawn.
const CELLS: usize = 480;

/// A group, as the page's template has it.
#[derive(Serialize)]
pub(super) struct GroupSection {
    title: String,
    /// The sentences on a kill.
    kill: Vec<String>,
    has_kill: bool,
    /// The picture: markup made of figures alone.
    picture: String,
    peak_at: String,
    rows: Vec<GroupRow>,
    note: Option<String>,
}

#[derive(Serialize)]
struct GroupRow {
    name: String,
    state: &'static str,
    band: Option<usize>,
    cells: Vec<Cell>,
}

/// The groups of a recording.
pub(super) fn sections(timeline: &Timeline) -> Vec<GroupSection> {
    let views = GroupView::all(timeline);
    views.iter().map(|view| section(view, timeline.last_us())).collect()
}

fn section(view: &GroupView<'_>, end_us: u64) -> GroupSection {
    let cell = |size: u64| Cell { text: bytes(size), exact: Some(i128::from(size)) };
    let row = |line: &Line| GroupRow {
        name: line.name.clone(),
        state: line.state,
        band: line.band,
        cells: [Some(line.peak_bytes), line.kill_bytes, Some(line.last_bytes)]
            .into_iter()
            .flatten()
            .map(cell)
            .collect(),
    };
    let limit = view.group.start.effective_limit_bytes.filter(|&limit| limit > view.most_bytes);
    let width = view.group.width_us();
    let mut note = limit.map(|limit| format!("The limit of {} is above the picture.", bytes(limit)));
    if width > 0 {
        let thinned = format!("Of each {} the sample with the largest charge is drawn.", time(width));
        note = Some(note.map_or(thinned.clone(), |note| format!("{note} {thinned}")));
    }
    GroupSection {
        title: view.title.clone(),
        kill: view.kill_sentences(),
        has_kill: view.kill.is_some(),
        picture: picture(view, end_us),
        peak_at: format!("{:.3} s", seconds_of(view.peak_us)),
        rows: view.lines.iter().map(row).collect(),
        note,
    }
}

/// Where a moment and a size are in the picture.
struct Scale {
    end_us: u64,
    most_bytes: u64,
}

impl Scale {
    fn x(&self, at_us: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at_us as f64 / self.end_us.max(1) as f64).clamp(0.0, 1.0)
    }

    fn y(&self, size: u64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (size as f64 / self.most_bytes.max(1) as f64).clamp(0.0, 1.0)
    }

    /// A point of a path.
    fn at(&self, at_us: u64, size: u64) -> String {
        format!("{:.1},{:.1} ", self.x(at_us), self.y(size))
    }
}

/// The picture. It has figures alone: no name of the recording.
fn picture(view: &GroupView<'_>, end_us: u64) -> String {
    let scale = Scale { end_us, most_bytes: view.most_bytes };
    let mut points: Vec<&GroupPoint> = in_cells(view.group, end_us, CELLS).into_iter().flatten().collect();
    points.dedup_by_key(|point| point.at_us);
    let mut svg = format!(
        "<svg class=\"stack\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"The rows of the control group, stacked over time; the table has the figures\">"
    );
    let mut put = |text: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = svg.write_fmt(text);
    };
    for part in [0, 1, 2] {
        let size = view.most_bytes / 2 * part;
        let y = scale.y(size);
        put(format_args!("<line class=\"axis\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>"));
        put(format_args!(
            "<text class=\"size\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            bytes(size)
        ));
    }
    let mut below: Vec<u64> = vec![0; points.len()];
    for (index, band) in view.bands.iter().enumerate() {
        let above: Vec<u64> =
            points.iter().zip(&below).map(|(point, sum)| sum.saturating_add(band.bytes(point))).collect();
        let upper = points.iter().zip(&above).map(|(point, sum)| scale.at(point.at_us, *sum));
        let lower = points.iter().zip(&below).rev().map(|(point, sum)| scale.at(point.at_us, *sum));
        let outline: String = upper.chain(lower).collect();
        put(format_args!("<polygon class=\"band-{index}\" points=\"{}\"/>", outline.trim_end()));
        below = above;
    }
    let limits = &view.group.limits;
    for (index, step) in limits.iter().enumerate() {
        let until = limits.get(index + 1).map_or(end_us, |next| next.at_us);
        if let Some(limit) = step.bytes.filter(|&limit| limit <= view.most_bytes) {
            let y = scale.y(limit);
            let (from, to) = (scale.x(step.at_us), scale.x(until));
            put(format_args!(
                "<line class=\"limit\" x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\"/>"
            ));
        }
    }
    if let Some(kill) = view.kill {
        let x = scale.x(kill.noticed_us);
        put(format_args!("<line class=\"kill\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\"/>"));
    }
    let y = HEIGHT - 6.0;
    put(format_args!("<text x=\"{LEFT}\" y=\"{y}\">0 s</text>"));
    put(format_args!("<text class=\"size\" x=\"{RIGHT}\" y=\"{y}\">{}</text></svg>", time(end_us)));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{fabricated, html};

    #[test]
    fn the_page_has_the_figures_of_the_document() {
        let timeline = fabricated::limited();
        let text = html::page(std::slice::from_ref(&timeline)).unwrap();
        let group = &timeline.groups[0];
        let peak = group.peak().unwrap();
        for (id, bytes) in group.rows.iter().zip(&peak.rows) {
            assert!(text.contains(&format!(">{id}<")) || *bytes == 0, "{id}");
            assert!(text.contains(&format!("data-exact=\"{bytes}\"")) || *bytes == 0, "{id} {bytes}");
        }
        let kill = timeline.end.as_ref().and_then(|end| end.group_kill.as_ref()).unwrap();
        assert!(text.contains(&format!("data-exact=\"{}\"", kill.current_bytes)));
        assert!(text.contains("class=\"limit\"") && text.contains("class=\"kill\""));
        assert_eq!(text.matches("<polygon class=\"band-").count(), 7);
        assert!(!text.contains(" style=\""));
    }

    #[test]
    fn pictures_are_small_and_have_figures_alone() {
        for timeline in [fabricated::hostile(), fabricated::absurd(), fabricated::limited()] {
            let sections = sections(&timeline);
            assert!(!sections.is_empty());
            for section in sections {
                assert!(section.picture.len() < 200_000, "{}", section.picture.len());
                assert!(!section.picture.contains("NaN") && !section.picture.contains("alert"));
            }
        }
    }
}

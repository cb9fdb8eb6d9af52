//! The control group in the page: its rows stacked over time beside the limit, as a picture without
//! a script, and a table with the exact figures.

use serde::Serialize;
use strandline_recording::GroupKill;

use super::choice::{seconds_of, time};
use super::group_view::{GroupView, Line, in_cells};
use super::html::Cell;
use super::{GroupPoint, Timeline};
use crate::units::{bytes, maybe_bytes};

/// Width of the picture, in its own units, as all lengths here.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 260.0;
/// Edges of the area in which the rows are stacked.
const LEFT: f64 = 76.0;
const TOP: f64 = 8.0;
const RIGHT: f64 = 990.0;
const BOTTOM: f64 = 236.0;
/// Number of instants that are drawn.
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

/// A row of the table, as the page's template has it.
#[derive(Serialize)]
struct GroupRow {
    name: String,
    state: &'static str,
    band: Option<usize>,
    cells: Vec<Cell>,
}

/// A section for each group with samples.
pub(super) fn sections(timeline: &Timeline) -> Vec<GroupSection> {
    let views = GroupView::all(timeline);
    views.iter().map(|view| section(view, timeline.last_us())).collect()
}

fn section(view: &GroupView<'_>, end_us: u64) -> GroupSection {
    let cell = |size: Option<u64>| Cell { text: maybe_bytes(size), exact: size.map(i128::from) };
    let row = |line: &Line| {
        let mut cells = vec![cell(Some(line.peak_bytes)), cell(Some(line.last_bytes))];
        if view.kill.is_some() {
            cells.insert(1, cell(line.kill_bytes));
        }
        GroupRow { name: line.name.clone(), state: line.state, band: line.band, cells }
    };
    let hidden_limit = view.group.start.effective_limit_bytes.filter(|&limit| limit > view.top_bytes);
    let hidden_limit =
        hidden_limit.map(|limit| format!("The limit of {} is above the picture.", bytes(limit)));
    let width_us = view.group.width_us();
    let thinning = width_us
        .map(|width_us| format!("Of each {} the sample with the largest charge is drawn.", time(width_us)));
    let notes: Vec<String> = hidden_limit.into_iter().chain(thinning).collect();
    GroupSection {
        title: view.title.clone(),
        kill: view.kill_sentences(),
        has_kill: view.kill.is_some(),
        picture: picture(view, end_us),
        peak_at: format!("{:.3} s", seconds_of(view.peak_us)),
        rows: view.lines.iter().map(row).collect(),
        note: (!notes.is_empty()).then(|| notes.join(" ")),
    }
}

/// Where a moment and a size are in the picture.
struct Scale {
    /// The moment at the right edge.
    end_us: u64,
    /// The size at the top.
    top_bytes: u64,
}

impl Scale {
    /// Where a moment is, in units of the picture from the left.
    fn x(&self, at_us: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at_us as f64 / self.end_us.max(1) as f64).clamp(0.0, 1.0)
    }

    /// Where a size is, in units of the picture from the top.
    fn y(&self, size: u64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (size as f64 / self.top_bytes.max(1) as f64).clamp(0.0, 1.0)
    }

    fn path_point(&self, at_us: u64, size: u64) -> String {
        format!("{:.1},{:.1} ", self.x(at_us), self.y(size))
    }
}

/// The picture. It has figures alone: no name of the recording.
fn picture(view: &GroupView<'_>, end_us: u64) -> String {
    let scale = Scale { end_us, top_bytes: view.top_bytes };
    let (sizes, bands, limits) = (sizes(&scale), bands(view, &scale), limits(view, &scale));
    let kill_line = |kill: &GroupKill| {
        let x = scale.x(kill.noticed_us);
        format!("<line class=\"kill\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\"/>")
    };
    let (kill, y, end) = (view.kill.map_or(String::new(), kill_line), HEIGHT - 6.0, time(end_us));
    format!(
        "<svg class=\"stack\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"The rows of the control group, stacked over time; the table has the figures\">\
         {sizes}{bands}{limits}{kill}<text x=\"{LEFT}\" y=\"{y}\">0 s</text><text class=\"size\" x=\"{RIGHT}\" y=\"{y}\">{end}</text></svg>"
    )
}

/// Lines with labels at the bottom, the middle and the top.
fn sizes(scale: &Scale) -> String {
    let line = |halves: u64| {
        let size = scale.top_bytes / 2 * halves;
        let (y, label_x, label) = (scale.y(size), LEFT - 6.0, bytes(size));
        let baseline = y + 4.0;
        format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>\
             <text class=\"size\" x=\"{label_x}\" y=\"{baseline:.1}\">{label}</text>"
        )
    };
    [0, 1, 2].map(line).concat()
}

/// The bands, each on those before it.
fn bands(view: &GroupView<'_>, scale: &Scale) -> String {
    let mut svg = String::new();
    let points = in_cells(view.group, scale.end_us, CELLS);
    let mut points: Vec<&GroupPoint> = points.into_iter().flatten().collect();
    points.dedup_by_key(|point| point.at_us);
    let mut lower_edge: Vec<u64> = vec![0; points.len()];
    for (index, band) in view.bands.iter().enumerate() {
        let stacked = points.iter().zip(&lower_edge);
        let upper_edge: Vec<u64> =
            stacked.map(|(point, sum)| sum.saturating_add(band.bytes(point))).collect();
        let path_point = |(point, sum): (&&GroupPoint, &u64)| scale.path_point(point.at_us, *sum);
        let upper = points.iter().zip(&upper_edge).map(path_point);
        let lower = points.iter().zip(&lower_edge).rev().map(path_point);
        let outline: String = upper.chain(lower).collect();
        svg += &format!("<polygon class=\"band-{index}\" points=\"{}\"/>", outline.trim_end());
        lower_edge = upper_edge;
    }
    svg
}

/// A line for each limit, as long as it held.
fn limits(view: &GroupView<'_>, scale: &Scale) -> String {
    let mut svg = String::new();
    let limits = &view.group.limits;
    for (index, step) in limits.iter().enumerate() {
        let end_us = limits.get(index + 1).map_or(scale.end_us, |next| next.at_us);
        if let Some(limit) = step.bytes.filter(|&limit| limit <= view.top_bytes) {
            let (x1, x2, y) = (scale.x(step.at_us), scale.x(end_us), scale.y(limit));
            svg +=
                &format!("<line class=\"limit\" x1=\"{x1:.1}\" y1=\"{y:.1}\" x2=\"{x2:.1}\" y2=\"{y:.1}\"/>");
        }
    }
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

//! The data for the page's script: the recordings as one small JSON value.
//!
//! All of it is bounded (`MAX_…`) whatever the recordings contain, and every string is clean. What
//! is left out is counted, so that the page can report it. Columns of numbers are delta-encoded,
//! which is short. The format is private to `assets/*.js`; scripts should read `--format json`
//! instead.

use std::collections::HashMap;

use serde::Serialize;
use strandline_claims::section::Section;
use strandline_inspect::Caveat;
use strandline_inspect::facts::{Explanation, MapCell, MappedCells, PageMap, Row};
use strandline_recording::{Ledger, Moment, Sample, differences};

use super::choice::{bytes_of, largest, moment_kind, process_name, sum_of_processes};
use super::{Point, Timeline};
use crate::model::{self, Rows, View, state_name, stratum_name};
use crate::text::{clean, clean_sentence, counted};
use crate::units::bytes;

/// Maximum number of processes with their own line per recording.
const MAX_LINES: usize = 12;
/// Maximum number of ledgers of all recordings together.
const MAX_LEDGERS: usize = 200;
/// Maximum number of rows of a ledger.
const MAX_ROWS: usize = 500;
/// Maximum number of marks of a recording.
pub const MAX_MARKS: usize = 5_000;
/// Maximum number of runs of equal cells in all page maps together; those of the last ledgers are
/// kept.
const MAX_RUNS: usize = 50_000;
/// Maximum number of caveats of a ledger or of a recording.
const MAX_CAVEATS: usize = 200;
/// Maximum number of settings of a ledger; a process has a few.
const MAX_SETTINGS: usize = 200;
/// The caveat of a ledger whose page map is beyond `MAX_RUNS`.
const MAP_NOT_DRAWN: &str =
    "its page map is not drawn: those of later ledgers fill the page; see --format json";
/// Maximum width of a process's name.
const MAX_NAME_COLUMNS: usize = 60;

/// The data of a page.
#[derive(Debug, Serialize)]
pub struct PageData {
    recordings: Vec<Recording>,
    /// The distinct rows: `[id, stratum, state, holder]`.
    rows: Vec<[String; 4]>,
    ledgers: Vec<LedgerData>,
    /// Number of ledgers that are left out.
    pub ledgers_left_out: usize,
}

#[derive(Debug, Serialize)]
struct Recording {
    /// The last instant with known data.
    end_us: u64,
    lines: Vec<LineData>,
    marks: Vec<MarkData>,
}

/// One process, or a sum of several, over time. `us` and all columns are delta-encoded.
#[derive(Debug, Serialize)]
struct LineData {
    name: String,
    /// The process's number; `None` for a sum.
    process: Option<u32>,
    peak_bytes: u64,
    /// Width of a point's interval; `None` if every change has its own point.
    width_us: Option<u64>,
    /// Times of the points.
    us: Vec<i64>,
    /// In KiB, as the other columns.
    rss: Vec<i64>,
    /// The lowest RSS in each interval; empty if it equals `rss`.
    low: Vec<i64>,
    /// The highest RSS in each interval; empty if it equals `rss`.
    high: Vec<i64>,
    anonymous: Vec<i64>,
    file: Vec<i64>,
    data: Vec<i64>,
    r#virtual: Vec<i64>,
}

#[derive(Debug, Serialize)]
struct MarkData {
    name: String,
    us: u64,
    process: u32,
    rss_bytes: u64,
}

/// A ledger, with the texts of its view.
#[derive(Debug, Serialize)]
struct LedgerData {
    recording: usize,
    process: u32,
    us: u64,
    /// `mark`, `peak`, `exit`, …
    moment: &'static str,
    mark: Option<String>,
    rss_bytes: u64,
    /// Bytes by state: live, stranded, pinned, evictable, unattributed.
    totals: [u64; 5],
    /// `[index into rows, bytes]`
    rows: Vec<(usize, u64)>,
    rows_left_out: usize,
    title: String,
    headline: String,
    resident: String,
    cost: String,
    /// `[id, effect, how, cost]`
    remedies: Vec<[String; 4]>,
    allocators: Vec<String>,
    runtimes: Vec<String>,
    settings: Vec<[String; 2]>,
    caveats: Vec<String>,
    /// RSS as a fraction of the process's peak.
    share_of_peak: Option<f64>,
    map: Option<MapData>,
}

/// A page map. Addresses are text, because they may exceed the numbers of a script.
#[derive(Debug, Serialize)]
struct MapData {
    cell_bytes: u64,
    /// `[id, state]`
    legend: Vec<[String; 2]>,
    mappings: Vec<MappingData>,
    left_out: Option<String>,
}

/// A mapping of a page map.
#[derive(Debug, Serialize)]
struct MappingData {
    /// Address of its first cell.
    start: String,
    permissions: String,
    name: String,
    rss_bytes: u64,
    /// Runs of equal cells: `[first index, count, row, bytes, row, bytes, …]`
    cells: Vec<Vec<u64>>,
}

impl PageData {
    pub fn new(timelines: &[Timeline]) -> Self {
        let mut names = RowNames::default();
        let mut ledgers = Vec::new();
        let places = selected_ledgers(timelines);
        for &LedgerPlace { recording, index } in &places {
            let Some(timeline) = timelines.get(recording) else { continue };
            let Some(ledger) = timeline.ledgers.get(index) else { continue };
            ledgers.push(LedgerData::new(recording, timeline, ledger, &mut names));
        }
        let mut runs_left = MAX_RUNS;
        for (data, &LedgerPlace { recording, index }) in ledgers.iter_mut().zip(&places).rev() {
            let ledger = timelines.get(recording).and_then(|timeline| timeline.ledgers.get(index));
            let page_map = ledger.and_then(|ledger| ledger.explain.page_map.as_ref());
            data.map = page_map.and_then(|page_map| MapData::new(page_map, &mut runs_left));
            if page_map.is_some() && data.map.is_none() {
                data.caveats.push(MAP_NOT_DRAWN.to_owned());
            }
        }
        let ledger_count: usize = timelines.iter().map(|timeline| timeline.ledgers.len()).sum();
        Self {
            recordings: timelines.iter().map(Recording::new).collect(),
            rows: names.rows,
            ledgers_left_out: ledger_count.saturating_sub(places.len()),
            ledgers,
        }
    }

    /// JSON in which an HTML parser finds no end of the script, whatever the strings contain.
    pub fn to_script(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)?
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026"))
    }
}

/// Where a ledger is: the index of its recording, and its own there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LedgerPlace {
    recording: usize,
    index: usize,
}

/// The ledgers to show: those at marks, peaks and ends first, then those at regular intervals,
/// evenly thinned.
fn selected_ledgers(timelines: &[Timeline]) -> Vec<LedgerPlace> {
    let (mut interval_places, mut other_places) = (Vec::new(), Vec::new());
    for (recording, timeline) in timelines.iter().enumerate() {
        for (index, ledger) in timeline.ledgers.iter().enumerate() {
            let list = if ledger.moment == Moment::Every { &mut interval_places } else { &mut other_places };
            list.push(LedgerPlace { recording, index });
        }
    }
    let mut places = thinned(&other_places, MAX_LEDGERS);
    let remaining_count = MAX_LEDGERS.saturating_sub(places.len());
    places.extend(thinned(&interval_places, remaining_count));
    places.sort_unstable();
    places
}

/// At most `max_count` of `places`, evenly chosen, including the last.
fn thinned(places: &[LedgerPlace], max_count: usize) -> Vec<LedgerPlace> {
    let step = if max_count == 0 { usize::MAX } else { places.len().div_ceil(max_count).max(1) };
    places.iter().rev().step_by(step).take(max_count).copied().collect()
}

/// Deduplicates rows: ledgers of a recording have nearly all rows in common.
#[derive(Default)]
struct RowNames {
    /// See [`PageData::rows`].
    rows: Vec<[String; 4]>,
    indices: HashMap<[String; 4], usize>,
}

impl RowNames {
    /// The index of a row, which is added if it is new.
    fn index(&mut self, row: &Row) -> usize {
        let key = [
            clean_sentence(&row.id),
            stratum_name(row.stratum).to_owned(),
            state_name(row.state).to_owned(),
            clean_sentence(&row.holder),
        ];
        *self.indices.entry(key).or_insert_with_key(|key| {
            self.rows.push(key.clone());
            self.rows.len() - 1
        })
    }
}

/// The text on the runtimes: sentences for those that were read, names for the others.
fn runtime_texts(sections: Vec<Section>, named: Vec<String>) -> Vec<String> {
    let sentences =
        sections.into_iter().map(|section| [vec![section.title], section.lines].concat().join(". "));
    sentences.chain(named).collect()
}

impl LedgerData {
    /// The data without a page map.
    fn new(recording: usize, timeline: &Timeline, ledger: &Ledger, names: &mut RowNames) -> Self {
        let explain: &Explanation = &ledger.explain;
        let view = View::new(explain, Rows::Largest(0));
        let mut rows: Vec<&Row> = explain.rows.iter().collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        let totals = &explain.totals;
        Self {
            recording,
            process: ledger.process,
            us: ledger.at_us,
            moment: moment_kind(ledger.moment),
            mark: ledger.mark.as_deref().map(clean_sentence),
            rss_bytes: explain.kernel.rss_bytes,
            totals: [totals.live, totals.stranded, totals.pinned, totals.evictable, totals.unattributed],
            rows: rows.iter().take(MAX_ROWS).map(|row| (names.index(row), row.bytes)).collect(),
            rows_left_out: rows.len().saturating_sub(MAX_ROWS),
            title: view.title,
            headline: view.headline,
            resident: view.resident,
            cost: view.cost,
            remedies: view
                .remedies
                .into_iter()
                .map(|remedy| [remedy.id, remedy.effect, remedy.how, remedy.cost])
                .collect(),
            allocators: view.allocators.into_iter().map(|allocator| allocator.title).collect(),
            runtimes: runtime_texts(view.read_runtimes, view.unread_runtimes),
            settings: explain
                .settings
                .iter()
                .take(MAX_SETTINGS)
                .map(|(name, value)| [clean(name), clean_sentence(value)])
                .collect(),
            caveats: caveat_lines(&explain.caveats),
            share_of_peak: timeline.share_of_peak(ledger),
            map: None,
        }
    }
}

impl MapData {
    /// Converts `map`, and reduces `runs_left` by its runs; `None` if they exceed it.
    fn new(map: &PageMap, runs_left: &mut usize) -> Option<Self> {
        let mappings: Vec<MappingData> =
            map.mappings.iter().map(|mapping| MappingData::new(mapping, map)).collect();
        let run_count: usize = mappings.iter().map(|mapping| mapping.cells.len()).sum();
        *runs_left = runs_left.checked_sub(run_count)?;
        let left_out_note = (map.left_out.mappings > 0).then(|| {
            let size = map.left_out.rows.iter().fold(0u64, |sum, &(_, size)| sum.saturating_add(size));
            let smaller = counted(map.left_out.mappings, "smaller mapping");
            format!("Not drawn: {smaller}, {} resident.", bytes(size))
        });
        Some(Self {
            cell_bytes: map.cell_bytes.max(1),
            legend: map
                .rows
                .iter()
                .map(|row| [clean_sentence(&row.id), state_name(row.state).to_owned()])
                .collect(),
            mappings,
            left_out: left_out_note,
        })
    }
}

impl MappingData {
    fn new(mapping: &MappedCells, map: &PageMap) -> Self {
        let start = mapping.start - mapping.start % map.cell_bytes.max(1);
        Self {
            start: format!("{start:#x}"),
            permissions: clean(&mapping.permissions),
            name: clean_sentence(&mapping.name),
            rss_bytes: mapping.rss_bytes,
            cells: runs(&mapping.cells, map.rows.len()),
        }
    }
}

/// Merges equal consecutive cells, with the count after the index. References to rows beyond
/// `row_count` come from a damaged file and are dropped.
fn runs(cells: &[MapCell], row_count: usize) -> Vec<Vec<u64>> {
    let mut runs: Vec<Vec<u64>> = Vec::new();
    for cell in cells {
        let valid_rows = cell.rows.iter().filter(|&&(row, _)| usize::from(row) < row_count);
        let contents: Vec<u64> = valid_rows.flat_map(|&(row, size)| [u64::from(row), size]).collect();
        match runs.last_mut().map(Vec::as_mut_slice) {
            Some([first_index, count, last_contents @ ..])
                if last_contents == contents.as_slice()
                    && first_index.checked_add(*count) == Some(cell.index) =>
            {
                *count += 1;
            }
            _ => runs.push([&[cell.index, 1], contents.as_slice()].concat()),
        }
    }
    runs
}

/// Caveats as lines: `code (place, bytes): text`. Those beyond [`MAX_CAVEATS`] are counted.
pub fn caveat_lines(caveats: &[Caveat]) -> Vec<String> {
    let (listed, unlisted) = caveats.split_at(caveats.len().min(MAX_CAVEATS));
    let mut lines = model::caveats(listed);
    if !unlisted.is_empty() {
        lines.push(format!("{} more: see --format json", unlisted.len()));
    }
    lines
}

impl Recording {
    fn new(timeline: &Timeline) -> Self {
        let by_size = largest(timeline);
        let (largest_processes, other_processes) = by_size.split_at(by_size.len().min(MAX_LINES));
        let mut lines: Vec<LineData> = largest_processes
            .iter()
            .filter_map(|&index| timeline.processes.get(index))
            .map(|process| {
                let name = process_name(process, MAX_NAME_COLUMNS);
                let mut line = LineData::new(name, process.series.points(), process.series.width_us());
                line.process = Some(process.start.process);
                line.peak_bytes = process.high_water_kib().map_or(0, bytes_of);
                line
            })
            .collect();
        if !other_processes.is_empty() {
            let name = format!("others: {}", other_processes.len());
            lines.push(LineData::new(name, &sum_of_processes(timeline, other_processes), None));
        }
        Self {
            end_us: timeline.last_us(),
            lines,
            marks: timeline
                .marks
                .iter()
                .take(MAX_MARKS)
                .map(|mark| MarkData {
                    name: clean_sentence(&mark.name),
                    us: mark.at_us,
                    process: mark.process,
                    rss_bytes: bytes_of(mark.sample.rss_kib),
                })
                .collect(),
        }
    }
}

impl LineData {
    fn new(name: String, points: &[Point], width_us: Option<u64>) -> Self {
        let column =
            |figure: fn(&Sample) -> u64| differences(points.iter().map(|point| figure(&point.sample)));
        // If every change has its own point, the lowest and highest equal the figure.
        let has_band = points.iter().any(|point| point.rss_low_kib != point.rss_high_kib);
        let band = |bound: fn(&Point) -> u64| {
            if has_band { differences(points.iter().map(bound)) } else { Vec::new() }
        };
        Self {
            name,
            process: None,
            peak_bytes: bytes_of(points.iter().map(|point| point.rss_high_kib).max().unwrap_or(0)),
            width_us,
            us: differences(points.iter().map(|point| point.at_us)),
            rss: column(|sample| sample.rss_kib),
            low: band(|point| point.rss_low_kib),
            high: band(|point| point.rss_high_kib),
            anonymous: column(|sample| sample.anonymous_kib),
            file: column(|sample| sample.file_kib),
            data: column(|sample| sample.data_kib),
            r#virtual: column(|sample| sample.virtual_kib),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fabricated;

    #[test]
    fn columns_are_differences_that_add_up() {
        let timeline = fabricated::tree();
        let data = PageData::new(std::slice::from_ref(&timeline));
        assert_eq!(data.recordings[0].lines.len(), 3, "no line of other processes");
        let worker = &data.recordings[0].lines[0];
        let points = timeline.processes[1].series.points();
        assert_eq!(worker.us.len(), points.len());
        let last = points.last().unwrap();
        assert_eq!(worker.rss.iter().sum::<i64>() as u64, last.sample.rss_kib);
        assert_eq!(worker.us.iter().sum::<i64>() as u64, last.at_us);
        assert_eq!(data.ledgers.len(), 4);
        let sum: u64 = data.ledgers[2].rows.iter().map(|&(_, bytes)| bytes).sum();
        assert_eq!(sum, data.ledgers[2].rss_bytes);
        assert_eq!(data.ledgers[2].totals.iter().sum::<u64>(), data.ledgers[2].rss_bytes);
    }

    #[test]
    fn many_ledgers_are_thinned_and_counted() {
        let mut timeline = fabricated::tree();
        let mut every = timeline.ledgers[0].clone();
        every.moment = Moment::Every;
        timeline.ledgers.extend(std::iter::repeat_n(every, 1_000));
        let data = PageData::new(&[timeline]);
        assert!(data.ledgers.len() <= MAX_LEDGERS);
        assert!(data.ledgers.iter().filter(|ledger| ledger.moment != "every").count() == 4);
        assert_eq!(data.ledgers.len() + data.ledgers_left_out, 1_004);
    }

    #[test]
    fn page_maps_keep_to_their_legend_and_to_the_room() {
        let timeline = fabricated::tree();
        let data = PageData::new(std::slice::from_ref(&timeline));
        let map = data.ledgers[3].map.as_ref().unwrap();
        assert_eq!(map.mappings[1].start, "0x55d010000000", "rounded down to a cell");
        assert_eq!(map.mappings[3].cells, [[7, 1, 0, 8_192]], "the row that does not exist is dropped");
        assert_eq!(map.left_out.as_deref(), Some("Not drawn: 3 smaller mappings, 12.0 KiB resident."));
        let cell = |index, rows: &[(u8, u64)]| MapCell { index, rows: rows.to_vec() };
        let equal = [cell(3, &[(0, 9)]), cell(4, &[(0, 9)]), cell(6, &[(0, 9)]), cell(7, &[(1, 9)])];
        assert_eq!(runs(&equal, 2), [[3, 2, 0, 9], [6, 1, 0, 9], [7, 1, 1, 9]]);
        let page_map = timeline.ledgers[3].explain.page_map.as_ref().unwrap();
        assert!(MapData::new(page_map, &mut 10).is_none());
        let many = vec![timeline; 200];
        let data = PageData::new(&many);
        let has_caveat = |data: &LedgerData| data.caveats.iter().any(|caveat| caveat == MAP_NOT_DRAWN);
        assert!(
            data.ledgers.iter().any(has_caveat) && data.ledgers.last().is_some_and(|data| data.map.is_some())
        );
    }

    #[test]
    fn no_name_ends_the_script() {
        let text = PageData::new(&[fabricated::hostile()]).to_script().unwrap();
        assert!(!text.contains(['<', '>', '&']));
        assert!(!text.chars().any(crate::text::is_unsafe));
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn absurd_figures_are_no_panic() {
        for timeline in [fabricated::absurd(), fabricated::empty()] {
            PageData::new(&[timeline]).to_script().unwrap();
        }
    }
}

//! The report page: one self-contained HTML file without network or server.
//!
//! Text is written here through an escaping template; the script adds the charts and reacts to
//! selections. The content security policy permits only the page's own script and style, by digest:
//! a name that broke out of the markup would still not run.

use minijinja::context;
use minijinja::value::{Serde, Value};
use serde::Serialize;
use strandline_recording::{Mark, Sample};

use super::choice::{
    bytes_of, change_text, command, ending, peak_bytes, peak_name, process_name, seconds_of, title,
};
use super::group_page::{self, GroupSection};
use super::html_data::{MAX_MARKS, PageData, caveat_lines};
use super::{Process, SampleCounts, Timeline};
use crate::template::{DrawError, digest, render};
use crate::text::{clean, clean_sentence, own_command, shorten};
use crate::units::{UNKNOWN, bytes, maybe_bytes, seconds, thousands};

const PAGE: &str = include_str!("assets/page.html");
const STYLES: [&str; 2] = [include_str!("assets/uplot/uPlot.min.css"), include_str!("assets/page.css")];
/// In dependency order: each uses only earlier ones.
const SCRIPTS: [&str; 6] = [
    include_str!("assets/format.js"),
    include_str!("assets/data.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/map.js"),
    include_str!("assets/ledgers.js"),
    include_str!("assets/main.js"),
];
const UPLOT: &str = include_str!("assets/uplot/uPlot.iife.min.js");
/// Maximum number of marks in the table; the timeline shows more. Browsers are slow to lay out
/// large tables.
const MAX_MARK_ROWS: usize = 500;
/// Maximum width of a mark's name.
const MAX_NAME_COLUMNS: usize = 120;
/// Maximum width of the name of a mark's process.
const MAX_PROCESS_COLUMNS: usize = 30;
/// Maximum number of processes in the table.
const MAX_PROCESSES: usize = 200;
/// Maximum number of recordings in a page.
pub const MAX_RECORDINGS: usize = 8;

/// The page of one recording, or of several overlaid from their starts.
///
/// # Errors
/// Fails if there are none or too many, or the page cannot be rendered.
pub fn page(timelines: &[Timeline]) -> Result<String, DrawError> {
    if timelines.is_empty() || timelines.len() > MAX_RECORDINGS {
        let count = timelines.len();
        return Err(DrawError(format!("a page shows 1 to {MAX_RECORDINGS} recordings, not {count}")));
    }
    let data = PageData::new(timelines);
    let style = STYLES.join("\n");
    let script = format!("{UPLOT}\n(() => {{\n\"use strict\";\n{}\n}})();\n", SCRIPTS.join("\n"));
    let views: Vec<RecordingView> =
        timelines.iter().enumerate().map(|(index, timeline)| RecordingView::new(index, timeline)).collect();
    let content = context! {
        title => title(timelines),
        recordings => Value::from(Serde(views)),
        several => timelines.len() > 1,
        has_groups => timelines.iter().flat_map(|timeline| &timeline.groups).any(|group| group.samples > 0),
        ledgers => timelines.iter().map(|timeline| timeline.ledgers.len()).sum::<usize>(),
        ledgers_left_out => data.ledgers_left_out,
        mark_columns => MARK_COLUMNS.map(|column| column.title),
        script_digest => digest(&script),
        script,
        data => data.to_script().map_err(DrawError::new)?,
    };
    render(PAGE, &style, content)
}

/// A figure for people, and its exact value.
#[derive(Serialize)]
pub(super) struct Cell {
    pub text: String,
    pub exact: Option<i128>,
}

/// A named fact on a recording; `exact` is the value of a figure.
#[derive(Serialize)]
struct Fact {
    name: &'static str,
    text: String,
    exact: Option<u64>,
}

fn plain_fact(name: &'static str, text: impl Into<String>) -> Fact {
    Fact { name, text: text.into(), exact: None }
}

fn bytes_fact(name: &'static str, size: Option<u64>) -> Fact {
    Fact { name, text: maybe_bytes(size), exact: size }
}

fn count_fact(name: &'static str, count: u64) -> Fact {
    Fact { name, text: thousands(count), exact: Some(count) }
}

/// A recording, as the template reads it.
#[derive(Serialize)]
struct RecordingView {
    /// `A`, `B`, …: distinguishes marks of several recordings.
    letter: char,
    name: String,
    command: String,
    ending: String,
    peak: Fact,
    facts: Vec<Fact>,
    environment: Vec<Fact>,
    groups: Vec<GroupSection>,
    marks: Vec<MarkRow>,
    /// Number of marks missing from the table.
    marks_left_out: usize,
    /// Number of marks missing from the timeline.
    marks_not_drawn: usize,
    processes: Vec<ProcessRow>,
    processes_left_out: usize,
    caveats: Vec<String>,
}

/// A row of the table of marks.
#[derive(Serialize)]
struct MarkRow {
    name: String,
    process: String,
    at: String,
    at_us: u64,
    /// Time since the previous mark of the process.
    since: String,
    /// For each of [`MARK_COLUMNS`], the figure and its change.
    cells: Vec<Cell>,
}

/// A row of the table of processes.
#[derive(Serialize)]
struct ProcessRow {
    pid: String,
    parent: String,
    command: String,
    from: String,
    to: String,
    peak: Cell,
    samples: String,
    end: String,
}

impl RecordingView {
    fn new(index: usize, timeline: &Timeline) -> Self {
        let processes = timeline.processes.iter().take(MAX_PROCESSES).map(ProcessRow::new).collect();
        Self {
            // There are at most `MAX_RECORDINGS`.
            letter: char::from(b'A'.saturating_add(index as u8)),
            name: clean_sentence(&timeline.name),
            command: command(timeline),
            ending: ending(timeline),
            peak: bytes_fact(peak_name(timeline), peak_bytes(timeline)),
            facts: facts(timeline),
            environment: environment(timeline),
            groups: group_page::sections(timeline),
            marks: marks(timeline),
            marks_left_out: timeline.marks.len().saturating_sub(MAX_MARK_ROWS),
            marks_not_drawn: timeline.marks.len().saturating_sub(MAX_MARKS),
            processes,
            processes_left_out: timeline.processes.len().saturating_sub(MAX_PROCESSES),
            caveats: caveat_lines(&timeline.caveats),
        }
    }
}

/// How it was recorded, the limits, how it ended, and the cost.
fn facts(timeline: &Timeline) -> Vec<Fact> {
    let header = &timeline.header;
    let SampleCounts { samples, missed } = timeline.counts();
    let mut facts = vec![
        plain_fact("command", command(timeline)),
        plain_fact("recorded by", if header.attached { "record (attached)" } else { "run" }),
        plain_fact("began", clean(&header.environment.time_utc)),
        plain_fact("ended", ending(timeline)),
        bytes_fact(
            "peak RSS (VmHWM)",
            timeline.end.as_ref().and_then(|end| end.high_water_kib).map(bytes_of),
        ),
    ];
    for limit in &header.limits {
        let text = format!("{} {} by {}", clean(&limit.kind), bytes(limit.bytes), clean_sentence(&limit.by));
        facts.push(Fact { name: "limit", text, exact: Some(limit.bytes) });
    }
    if header.limits.is_empty() {
        facts.push(plain_fact("limits", "none set by strandline"));
    }
    if let Some(kills) = timeline.end.as_ref().and_then(|end| end.out_of_memory_kills) {
        facts.push(plain_fact("killed at the limit", format!("{} of its processes", thousands(kills))));
    }
    facts.extend([
        plain_fact("wanted interval", seconds(seconds_of(header.interval_us))),
        count_fact("instants sampled", samples),
        count_fact("instants missed", missed),
        plain_fact("requested ledgers", clean_sentence(&header.ledgers)),
        plain_fact("processes followed by", clean_sentence(&header.followed_by)),
    ]);
    if let Some(end) = &timeline.end {
        facts.extend([
            plain_fact("stopped for ledgers", seconds(seconds_of(end.stopped_us))),
            plain_fact("waited at marks", seconds(seconds_of(end.waited_us))),
            plain_fact("strandline's own CPU time", seconds(seconds_of(end.own_cpu_us))),
            bytes_fact("strandline's own peak RSS", end.own_peak_rss_kib.map(bytes_of)),
            count_fact("processes too brief to sample", end.brief_processes),
        ]);
    }
    facts
}

/// The machine, and the version of strandline.
fn environment(timeline: &Timeline) -> Vec<Fact> {
    let machine = &timeline.header.environment;
    let or_unknown = |text: &Option<String>| text.as_deref().map_or(UNKNOWN.to_owned(), clean_sentence);
    vec![
        plain_fact("kernel", or_unknown(&machine.kernel)),
        plain_fact("machine", clean_sentence(&machine.machine)),
        plain_fact("processor", or_unknown(&machine.processor)),
        plain_fact("processors", machine.cpus.map_or(UNKNOWN.to_owned(), thousands)),
        bytes_fact("memory", machine.memory_bytes),
        bytes_fact("page", Some(machine.page_bytes)),
        plain_fact("transparent huge pages", or_unknown(&machine.thp)),
        plain_fact("C library (strandline's)", or_unknown(&machine.libc)),
        plain_fact("strandline", clean_sentence(&timeline.header.version)),
    ]
}

/// A column of the table of marks. The table adds the change since the previous mark.
#[derive(Clone, Copy)]
struct MarkColumn {
    title: &'static str,
    format: fn(u64) -> String,
    figure: fn(&Sample) -> u64,
}

const fn column(title: &'static str, format: fn(u64) -> String, figure: fn(&Sample) -> u64) -> MarkColumn {
    MarkColumn { title, format, figure }
}

const MARK_COLUMNS: [MarkColumn; 7] = [
    column("RSS", bytes, |sample| bytes_of(sample.rss_kib)),
    column("anonymous", bytes, |sample| bytes_of(sample.anonymous_kib)),
    column("file", bytes, |sample| bytes_of(sample.file_kib)),
    column("VmData", bytes, |sample| bytes_of(sample.data_kib)),
    column("VmSize", bytes, |sample| bytes_of(sample.virtual_kib)),
    column("minor faults", thousands, |sample| sample.minor_faults),
    column("major faults", thousands, |sample| sample.major_faults),
];

/// The rows of the table of marks.
fn marks(timeline: &Timeline) -> Vec<MarkRow> {
    let mut rows = Vec::new();
    // Figures belong to a process, so compare them with the previous mark of the same process.
    let mut previous_marks = std::collections::HashMap::<u32, &Mark>::new();
    for mark in timeline.marks.iter().take(MAX_MARK_ROWS) {
        let previous = previous_marks.insert(mark.process, mark);
        let process = usize::try_from(mark.process).ok().and_then(|number| timeline.processes.get(number));
        rows.push(MarkRow {
            name: shorten(&clean_sentence(&mark.name), MAX_NAME_COLUMNS),
            process: process
                .map_or(mark.pid.to_string(), |process| process_name(process, MAX_PROCESS_COLUMNS)),
            at: format!("{:.3} s", seconds_of(mark.at_us)),
            at_us: mark.at_us,
            since: previous.map_or(String::new(), |previous| {
                format!("+{:.3} s", seconds_of(mark.at_us.saturating_sub(previous.at_us)))
            }),
            cells: MARK_COLUMNS.iter().flat_map(|column| cells(column, mark, previous)).collect(),
        });
    }
    rows
}

/// The figure of a mark, and its change since the previous one.
fn cells(column: &MarkColumn, mark: &Mark, previous: Option<&Mark>) -> [Cell; 2] {
    let &MarkColumn { format, figure, .. } = column;
    let current = figure(&mark.sample);
    let before = previous.map(|previous| figure(&previous.sample));
    let change = before.map(|before| i128::from(current) - i128::from(before));
    [
        Cell { text: format(current), exact: Some(i128::from(current)) },
        Cell { text: change_text(current, before, format), exact: change },
    ]
}

impl ProcessRow {
    fn new(process: &Process) -> Self {
        let start = &process.start;
        let peak = process.high_water_kib().map(bytes_of);
        let end = process.end.as_ref().map_or("still running".to_owned(), |end| {
            let text = match (end.signal, end.status) {
                (Some(signal), _) => format!("signal {signal}"),
                (None, Some(status)) => format!("status {status}"),
                (None, None) => "ended, status not known".to_owned(),
            };
            // The actual peak may be higher.
            let remark = if end.high_water_is_final { "" } else { "; peak as last sampled" };
            text + remark
        });
        Self {
            pid: start.pid.to_string(),
            parent: start.parent.map_or(UNKNOWN.to_owned(), |pid| pid.to_string()),
            command: own_command(process.command()),
            from: format!("{:.3} s", seconds_of(start.at_us)),
            to: process.end.as_ref().map_or(String::new(), |end| format!("{:.3} s", seconds_of(end.at_us))),
            peak: Cell { text: maybe_bytes(peak), exact: peak.map(i128::from) },
            samples: thousands(process.samples),
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_unsafe;
    use crate::timeline::fabricated;

    #[test]
    fn sizes_between_two_figures_go_to_the_even_one() {
        // `assets/format.js` does the same; tests/browser/drive.py compares the two.
        assert_eq!(bytes(6_784 * 1024), "6.62 MiB");
        assert_eq!(bytes(6_800 * 1024), "6.64 MiB");
        assert_eq!(bytes(100 * 1024 + 512), "100 KiB");
        assert_eq!(bytes(101 * 1024 + 512), "102 KiB");
    }

    #[test]
    fn one_file_that_asks_for_nothing() {
        let text = page(&[fabricated::tree()]).unwrap();
        assert!(text.starts_with("<!doctype html>"));
        assert!(text.contains("default-src 'none'"));
        for outside in ["src=\"http", "href=\"http", "url(http", "@import", "<link rel=\"stylesheet"] {
            assert!(!text.contains(outside), "{outside}");
        }
        assert_eq!(text.matches("<script").count(), 2);
        assert_eq!(text.matches("</script").count(), 2);
        assert!(!text.contains(" style=\""), "the policy forbids styles of single elements");
    }

    #[test]
    fn hostile_names_stay_text() {
        let text = page(&[fabricated::hostile(), fabricated::tree()]).unwrap();
        assert!(!text.contains("<img"), "markup out of a name");
        assert_eq!(text.matches("</script").count(), 2);
        assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)));
    }

    #[test]
    fn marks_are_listed_with_their_change() {
        let rows = marks(&fabricated::tree());
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[0].cells[1].text, "");
        assert_eq!(
            (rows[1].cells[0].text.as_str(), rows[1].cells[1].text.as_str()),
            ("40.0 MiB", "+20.0 MiB")
        );
        assert_eq!((rows[4].cells[1].text.as_str(), rows[4].since.as_str()), ("−700 MiB", "+1.500 s"));
        assert_eq!(rows[4].cells[1].exact, Some(-(700 << 20)));
    }

    #[test]
    fn anything_that_can_be_read_can_be_shown() {
        for timeline in [fabricated::absurd(), fabricated::empty()] {
            page(&[timeline]).unwrap();
        }
        assert!(page(&[]).is_err());
        assert!(page(&vec![fabricated::empty(); 9]).is_err());
    }
}

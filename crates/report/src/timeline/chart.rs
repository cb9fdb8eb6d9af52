//! A recording in the terminal: a small chart of RSS over time, marks, ledgers, processes and the
//! end.
//!
//! The chart uses Braille patterns if the terminal's character set has them, otherwise columns of
//! `#`. All text is clean, and no list is longer than a screen: what is left out is counted.

use strandline_recording::{Ledger, Mark, Moment, Sample};

use super::choice::{
    bytes_of, cell_of, change_text, ending, largest, ledger_name, peak_bytes, peak_name, process_name,
    seconds_of, time,
};
use super::{Process, SampleCounts, Timeline, group_chart, types};
use crate::model;
use crate::paint::{Paint, Surface};
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::{faint, joined, listed, table_lines};
use crate::text::{
    argument_line, clean_sentence, counted, hanging, own_command, pad_left, shorten, width, wrap,
};
use crate::units::{UNKNOWN, bytes, maybe_bytes, seconds, thousands};

/// Height of the chart in lines of text.
const CHART_LINES: usize = 8;
/// Width of the vertical axis in columns of text: `1.56 GiB ┤`.
pub(super) const AXIS_COLUMNS: usize = 11;
/// Maximum number of marks in their table, so that it fits on a screen, as the other lists.
const MAX_MARKS: usize = 24;
const MAX_LEDGERS: usize = 12;
const MAX_PROCESSES: usize = 8;
const MAX_CAVEATS: usize = 12;
/// Maximum width of the id of a row in the table of ledgers.
const MAX_ROW_ID_COLUMNS: usize = 20;
/// Maximum width of the id and name of a process in a sentence.
const MAX_NAME_COLUMNS: usize = 30;
/// The same in the table of ledgers.
const MAX_NAME_CELL_COLUMNS: usize = 16;
/// The characters by which marks are found in the chart, in the order of the marks.
const MARK_KEYS: &[u8] = b"123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The characters that draw the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Braille patterns, two by four dots per character.
    Braille,
    /// `#` and other ASCII.
    Ascii,
}

impl Glyphs {
    /// Chooses by the locale, from the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is set and not
    /// empty, as other programs do.
    pub fn of_locale(lc_all: Option<&str>, lc_ctype: Option<&str>, lang: Option<&str>) -> Self {
        let locale = [lc_all, lc_ctype, lang].into_iter().flatten().find(|value| !value.is_empty());
        let charset = locale.unwrap_or("C").to_ascii_lowercase();
        if charset.contains("utf-8") || charset.contains("utf8") { Self::Braille } else { Self::Ascii }
    }
}

/// The recordings below each other, with a final newline, at least 80 columns wide. Lists the
/// objects of the type `follow` in each ledger.
pub fn chart(timelines: &[Timeline], follow: Option<&str>, surface: Surface, glyphs: Glyphs) -> String {
    let surface = Surface { columns: surface.columns.max(Surface::MIN_COLUMNS), ..surface };
    let mut lines = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        if index > 0 {
            lines.extend([String::new(), "─".repeat(surface.columns), String::new()]);
        }
        lines.extend(recording(timeline, follow, surface, glyphs));
    }
    lines.extend(next_command(timelines, surface));
    let text = joined(&lines);
    if glyphs == Glyphs::Ascii { in_ascii(&text) } else { text }
}

/// Replaces the characters of the layout that ASCII lacks, also where names have them.
fn in_ascii(text: &str) -> String {
    let ascii = |c: char| match c {
        '─' | '−' => '-',
        '│' | '┤' => '|',
        '└' => '+',
        '·' => ';',
        'Δ' => 'd',
        'µ' => 'u',
        '…' => '~',
        other => other,
    };
    text.chars().map(ascii).collect()
}

/// One recording: heading, chart, marks, ledgers, types, processes, caveats, cost.
fn recording(timeline: &Timeline, follow: Option<&str>, surface: Surface, glyphs: Glyphs) -> Vec<String> {
    // Indices of the processes, the largest first: that one is drawn.
    let by_size = largest(timeline);
    let main = by_size.first().and_then(|&index| timeline.processes.get(index));
    let mut lines = heading(timeline, surface);
    lines.push(String::new());
    match main {
        Some(process) => lines.extend(rss_chart(timeline, process, surface, glyphs)),
        None => lines.push("no samples".to_owned()),
    }
    lines.extend(group_chart::groups(timeline, surface));
    lines.extend(mark_table(timeline, surface));
    lines.extend(ledger_table(timeline, surface));
    lines.extend(match follow {
        Some(name) => types::follow(timeline, name, surface),
        None => types::growth(timeline, surface),
    });
    lines.extend(process_table(timeline, &by_size, surface));
    let (shown, hidden) = timeline.caveats.split_at(timeline.caveats.len().min(MAX_CAVEATS));
    let mut caveats = model::caveats(shown);
    if !hidden.is_empty() {
        caveats.push(format!("{} more; --format json has all", hidden.len()));
    }
    lines.extend(listed("caveats", &caveats, surface));
    lines.push(String::new());
    lines.extend(faint(&hanging("cost: ", &cost_line(timeline), surface.columns), surface));
    lines
}

/// The name of a recording, how it ended, and its limits.
fn heading(timeline: &Timeline, surface: Surface) -> Vec<String> {
    let command = own_command(&timeline.header.command);
    let title = format!("{} · {command}", clean_sentence(&timeline.name));
    let mut lines = vec![surface.paint(Paint::Faint, &shorten(&title, surface.columns)), String::new()];
    let peak = maybe_bytes(peak_bytes(timeline));
    let headline = format!("{}; {} {peak}", ending(timeline), peak_name(timeline));
    lines.extend(wrap(&headline, surface.columns).iter().map(|line| surface.paint(Paint::Strong, line)));
    for limit in &timeline.header.limits {
        let text = format!(
            "limit: {} {} by {}",
            clean_sentence(&limit.kind),
            bytes(limit.bytes),
            clean_sentence(&limit.by)
        );
        lines.extend(wrap(&text, surface.columns));
    }
    lines
}

/// The lowest and highest RSS in an interval.
#[derive(Clone, Copy)]
struct RssRange {
    low_kib: u64,
    high_kib: u64,
}

/// The RSS in each of `count` equal intervals up to `end_us`; `None` where the process did not run.
fn rss_ranges(process: &Process, end_us: u64, count: usize) -> Vec<Option<RssRange>> {
    /// The interval of the previous point, and the RSS since.
    struct Previous {
        interval: usize,
        rss_kib: u64,
    }
    let mut ranges: Vec<Option<RssRange>> = vec![None; count];
    let mut previous: Option<Previous> = None;
    for point in process.series.points() {
        let interval = cell_of(point.at_us, end_us, count);
        if let Some(Previous { interval: from, rss_kib }) = previous {
            // Between two points the earlier level holds; the step is drawn where it was sampled.
            for between in ranges.iter_mut().take(interval + 1).skip(from + 1) {
                widen(between, RssRange { low_kib: rss_kib, high_kib: rss_kib });
            }
        }
        if let Some(range) = ranges.get_mut(interval) {
            widen(range, RssRange { low_kib: point.rss_low_kib, high_kib: point.rss_high_kib });
        }
        previous = Some(Previous { interval, rss_kib: point.sample.rss_kib });
    }
    ranges
}

/// Widens a range so that it covers `addition` too.
fn widen(range: &mut Option<RssRange>, addition: RssRange) {
    *range = Some(range.map_or(addition, |range| RssRange {
        low_kib: range.low_kib.min(addition.low_kib),
        high_kib: range.high_kib.max(addition.high_kib),
    }));
}

/// The chart of one process, with axes and the ticks of the marks.
fn rss_chart(timeline: &Timeline, process: &Process, surface: Surface, glyphs: Glyphs) -> Vec<String> {
    let chart_columns = surface.columns - AXIS_COLUMNS;
    let end_us = timeline.last_us();
    let max_kib = process.series.points().iter().map(|point| point.rss_high_kib).max().unwrap_or(0).max(1);
    let rows = match glyphs {
        Glyphs::Braille => braille_rows(&rss_ranges(process, end_us, chart_columns * 2), max_kib),
        Glyphs::Ascii => ascii_rows(&rss_ranges(process, end_us, chart_columns), max_kib),
    };
    let name = format!("RSS of {}", process_name(process, surface.columns - AXIS_COLUMNS - 7));
    let mut lines = vec![" ".repeat(AXIS_COLUMNS) + &name];
    let rows = rows.iter().map(|row| surface.paint(Paint::Colour(32), row.trim_end())).collect();
    let labels = [max_kib, max_kib / 2].map(|kib| bytes(bytes_of(kib)));
    lines.extend(with_axes(rows, labels, &time_axis(timeline, end_us, chart_columns), end_us));
    lines
}

/// The rows of a chart with its axes: `top` and `middle` are labels of sizes, `time_axis` is the
/// line below the rows, which ends at `end_us`.
pub(super) fn with_axes(
    rows: Vec<String>,
    [top, middle]: [String; 2],
    time_axis: &str,
    end_us: u64,
) -> Vec<String> {
    let label_columns = AXIS_COLUMNS - 1;
    let middle_index = rows.len() / 2;
    let line = |(index, row): (usize, String)| match index {
        0 => format!("{}┤{row}", pad_left(&top, label_columns)),
        _ if index == middle_index => format!("{}┤{row}", pad_left(&middle, label_columns)),
        _ => format!("{}│{row}", " ".repeat(label_columns)),
    };
    let mut lines: Vec<String> = rows.into_iter().enumerate().map(line).collect();
    lines.push(format!("{}└{time_axis}", pad_left("0 B", label_columns)));
    let end_label = time(end_us);
    let gap = width(time_axis).saturating_sub(width("0 s") + width(&end_label));
    lines.push(format!("{}0 s{}{end_label}", " ".repeat(AXIS_COLUMNS), " ".repeat(gap)));
    lines
}

/// The time axis, with a key for each mark. If several fall on one column, the first is shown.
fn time_axis(timeline: &Timeline, end_us: u64, chart_columns: usize) -> String {
    let mut axis = vec!['─'; chart_columns];
    for (mark, &key) in timeline.marks.iter().zip(MARK_KEYS).take(MAX_MARKS) {
        let column = cell_of(mark.at_us, end_us, chart_columns);
        if let Some(glyph) = axis.get_mut(column).filter(|glyph| **glyph == '─') {
            *glyph = char::from(key);
        }
    }
    axis.into_iter().collect()
}

/// Lines of Braille, the top one first: each range is a column of dots from its lowest to its
/// highest, joined to the previous one. `max_kib` is at the top.
fn braille_rows(ranges: &[Option<RssRange>], max_kib: u64) -> Vec<String> {
    /// The bits of the dots in a character, by row from the top and by column.
    const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let dot_rows = CHART_LINES * 4;
    let level = |kib: u64| scaled(kib, max_kib, dot_rows - 1);
    let mut grid = vec![vec![0u32; ranges.len().div_ceil(2)]; CHART_LINES];
    let mut before: Option<RssRange> = None;
    for (index, range) in ranges.iter().enumerate() {
        let Some(range) = range else {
            before = None;
            continue;
        };
        let (mut from, mut to) = (level(range.low_kib), level(range.high_kib));
        if let Some(before) = before {
            from = from.min(level(before.high_kib).saturating_add(1));
            to = to.max(level(before.low_kib).saturating_sub(1));
        }
        for dot in from..=to {
            let row = dot_rows - 1 - dot;
            if let Some(cell) = grid.get_mut(row / 4).and_then(|line| line.get_mut(index / 2)) {
                *cell |= DOTS[row % 4][index % 2];
            }
        }
        before = Some(*range);
    }
    let glyph = |&bits: &u32| char::from_u32(0x2800 + bits).filter(|_| bits != 0).unwrap_or(' ');
    grid.iter().map(|line| line.iter().map(glyph).collect()).collect()
}

/// Lines of `#`, the top one first: each range is a column up to its highest. `max_kib` is at the
/// top.
fn ascii_rows(ranges: &[Option<RssRange>], max_kib: u64) -> Vec<String> {
    let height = |range: &Option<RssRange>| {
        range.map_or(0, |range| scaled(range.high_kib, max_kib, CHART_LINES).max(1))
    };
    let heights: Vec<usize> = ranges.iter().map(height).collect();
    let row = |index: usize| {
        let reached = |&height: &usize| if height >= CHART_LINES - index { '#' } else { ' ' };
        heights.iter().map(reached).collect()
    };
    (0..CHART_LINES).map(row).collect()
}

/// Scales `kib` to a whole number of steps, so that `max_kib` becomes `max_steps`.
fn scaled(kib: u64, max_kib: u64, max_steps: usize) -> usize {
    let max_kib = u128::from(max_kib.max(1));
    let steps = (u128::from(kib) * max_steps as u128 + max_kib / 2) / max_kib;
    usize::try_from(steps).unwrap_or(max_steps).min(max_steps)
}

/// The marks, with what changed since the mark before of the same process.
fn mark_table(timeline: &Timeline, surface: Surface) -> Vec<String> {
    if timeline.marks.is_empty() {
        return Vec::new();
    }
    const HEAD: [Column; 7] = [
        words(" "),
        figures("time"),
        figures("RSS"),
        figures("Δ RSS"),
        figures("Δ VmData"),
        figures("Δ faults"),
        words("mark"),
    ];
    let mut before = std::collections::HashMap::<u32, &Mark>::new();
    let rows: Vec<Vec<String>> = timeline
        .marks
        .iter()
        .zip(MARK_KEYS)
        .take(MAX_MARKS)
        .map(|(mark, &key)| {
            let previous = before.insert(mark.process, mark).map(|mark| mark.sample);
            let change = |size: fn(&Sample) -> u64| {
                change_text(size(&mark.sample), previous.as_ref().map(size), bytes)
            };
            vec![
                char::from(key).to_string(),
                format!("{:.3} s", seconds_of(mark.at_us)),
                bytes(bytes_of(mark.sample.rss_kib)),
                change(|sample| bytes_of(sample.rss_kib)),
                change(|sample| bytes_of(sample.data_kib)),
                previous.map_or(String::new(), |previous| {
                    format!("+{}", thousands(mark.sample.minor_faults.saturating_sub(previous.minor_faults)))
                }),
                clean_sentence(&mark.name),
            ]
        })
        .collect();
    let table = lay_out(&HEAD, &rows, 6, surface.columns);
    noted_table(table, timeline.marks.len().saturating_sub(MAX_MARKS), "marks", surface)
}

/// A table after an empty line, with a dim heading, and a note on what it leaves out.
fn noted_table(table: Vec<String>, hidden_count: usize, things: &str, surface: Surface) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(table_lines(table, surface));
    lines.extend(hidden_note(hidden_count, things));
    lines
}

/// The note that `hidden_count` of `things` are left out; `None` if none is.
pub(super) fn hidden_note(hidden_count: usize, things: &str) -> Option<String> {
    let hidden = thousands(hidden_count as u64);
    (hidden_count > 0).then(|| format!("{things} not shown: {hidden}; --format json has all"))
}

/// The ledgers, and the verdict of the last one of the largest process.
fn ledger_table(timeline: &Timeline, surface: Surface) -> Vec<String> {
    if timeline.ledgers.is_empty() {
        return Vec::new();
    }
    const HEAD: [Column; 6] = [
        words("ledger"),
        figures("time"),
        figures("RSS"),
        figures("stranded"),
        words("its largest stranded row"),
        words("process"),
    ];
    // Ledgers at regular intervals have the lowest priority: there may be thousands.
    let mut ledgers: Vec<&Ledger> = timeline.ledgers.iter().collect();
    ledgers.sort_by_key(|ledger| ledger.moment == Moment::Every);
    ledgers.truncate(MAX_LEDGERS);
    ledgers.sort_by_key(|ledger| ledger.at_us);
    // With several processes, each ledger names its process.
    let has_several_processes = ledgers
        .iter()
        .any(|ledger| ledgers.first().is_some_and(|first_ledger| first_ledger.process != ledger.process));
    let mut rows: Vec<Vec<String>> = ledgers.iter().map(|ledger| ledger_row(timeline, ledger)).collect();
    let head = if has_several_processes { &HEAD[..] } else { &HEAD[..5] };
    rows.iter_mut().for_each(|row| row.truncate(head.len()));
    let table = lay_out(head, &rows, 0, surface.columns);
    let mut lines =
        noted_table(table, timeline.ledgers.len().saturating_sub(ledgers.len()), "ledgers", surface);
    // Use the verdict of the largest process: others may have come and gone after it.
    let largest =
        ledgers.iter().max_by_key(|ledger| ledger.explain.kernel.rss_bytes).map(|ledger| ledger.process);
    let last_ledger = ledgers.iter().rfind(|ledger| Some(ledger.process) == largest);
    if let Some(last_ledger) = last_ledger.filter(|ledger| !ledger.explain.verdict.headline.is_empty()) {
        lines.push(String::new());
        let owner = if has_several_processes {
            format!(" of {}", ledger_process(timeline, last_ledger))
        } else {
            String::new()
        };
        let text =
            format!("at the last of these{owner}: {}", clean_sentence(&last_ledger.explain.verdict.headline));
        lines.extend(wrap(&text, surface.columns));
    }
    lines
}

/// The process of a ledger: its id and short name.
fn ledger_process(timeline: &Timeline, ledger: &Ledger) -> String {
    let process = timeline.processes.iter().find(|process| process.start.process == ledger.process);
    // Without a name, the id stands alone.
    let name = process.and_then(Process::name);
    shorten(&format!("{} {}", ledger.pid, name.unwrap_or_default()), MAX_NAME_COLUMNS).trim_end().to_owned()
}

/// A line of the table of ledgers.
fn ledger_row(timeline: &Timeline, ledger: &Ledger) -> Vec<String> {
    use strandline_inspect::facts::State;
    let stranded = ledger.explain.rows.iter().filter(|row| row.state == State::Stranded);
    let largest_row = stranded.max_by_key(|row| row.bytes).filter(|row| row.bytes > 0);
    vec![
        ledger_name(ledger),
        format!("{:.3} s", seconds_of(ledger.at_us)),
        bytes(ledger.explain.kernel.rss_bytes),
        bytes(ledger.explain.totals.stranded),
        largest_row.map_or("none".to_owned(), |row| {
            format!("{} {}", shorten(&clean_sentence(&row.id), MAX_ROW_ID_COLUMNS), bytes(row.bytes))
        }),
        shorten(&ledger_process(timeline, ledger), MAX_NAME_CELL_COLUMNS),
    ]
}

/// The processes, if there are several.
fn process_table(timeline: &Timeline, by_size: &[usize], surface: Surface) -> Vec<String> {
    if timeline.processes.len() < 2 {
        return Vec::new();
    }
    const HEAD: [Column; 4] = [figures("peak RSS"), figures("from"), figures("to"), words("process")];
    let instant = |us: Option<u64>| us.map_or(UNKNOWN.to_owned(), |us| format!("{:.3} s", seconds_of(us)));
    let row = |process: &Process| {
        vec![
            maybe_bytes(process.high_water_kib().map(bytes_of)),
            instant(Some(process.start.at_us)),
            instant(process.end.as_ref().map(|end| end.at_us)),
            process_name(process, surface.columns),
        ]
    };
    let largest_processes =
        by_size.iter().take(MAX_PROCESSES).filter_map(|&index| timeline.processes.get(index));
    let rows: Vec<Vec<String>> = largest_processes.map(row).collect();
    let hidden_count = timeline.processes.len().saturating_sub(rows.len());
    noted_table(lay_out(&HEAD, &rows, 3, surface.columns), hidden_count, "processes", surface)
}

/// What the recording cost: samples, stops, waits, strandline's own time and memory.
fn cost_line(timeline: &Timeline) -> String {
    let SampleCounts { samples, missed } = timeline.counts();
    let mut text = format!(
        "{} sampled every {}, {} missed",
        counted(samples, "instant"),
        seconds(seconds_of(timeline.header.interval_us)),
        thousands(missed)
    );
    if let Some(end) = &timeline.end {
        text += &format!(
            "; stopped {} for ledgers, waited {} at marks; strandline's own: CPU {}, peak {}",
            seconds(seconds_of(end.stopped_us)),
            seconds(seconds_of(end.waited_us)),
            seconds(seconds_of(end.own_cpu_us)),
            maybe_bytes(end.own_peak_rss_kib.map(bytes_of))
        );
    }
    text
}

/// The command that writes the page.
fn next_command(timelines: &[Timeline], surface: Surface) -> Vec<String> {
    let names: Vec<String> = timelines.iter().map(|timeline| timeline.name.clone()).collect();
    let text = format!("strandline report {} --format html -o report.html", argument_line(&names));
    let mut lines = vec![String::new(), "next, for details or to attach to an issue".to_owned()];
    lines.extend(hanging("  ", &text, surface.columns).iter().map(|line| surface.paint(Paint::Strong, line)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_unsafe;
    use crate::timeline::fabricated;

    const PLAIN: Surface = Surface { columns: 80, has_colour: false };

    fn chart_text(timeline: Timeline, surface: Surface, glyphs: Glyphs) -> String {
        let text = chart(&[timeline], None, surface, glyphs);
        for line in text.lines() {
            assert!(width(line) <= surface.columns, "{} columns: {line:?}", width(line));
            assert!(!line.chars().any(is_unsafe), "{line:?}");
        }
        text
    }

    #[test]
    fn a_worker_that_keeps_what_it_freed() {
        insta::assert_snapshot!(chart_text(fabricated::tree(), PLAIN, Glyphs::Braille));
    }

    /// Ledgers of a child are not attributed to the largest process, even if they come last.
    #[test]
    fn ledgers_of_several_processes_name_their_process() {
        let mut timeline = fabricated::tree();
        let alone = chart_text(timeline.clone(), PLAIN, Glyphs::Braille);
        assert!(alone.contains("at the last of these: "), "{alone}");
        let other = timeline.processes[0].start.clone();
        let mut last = timeline.ledgers[timeline.ledgers.len() - 1].clone();
        (last.process, last.pid, last.at_us) = (other.process, other.pid, last.at_us + 1);
        assert_ne!(last.process, timeline.ledgers[0].process);
        last.explain.kernel.rss_bytes = 4096;
        last.explain.verdict.headline = "of a child".to_owned();
        timeline.ledgers.push(last);
        let text = chart_text(timeline.clone(), PLAIN, Glyphs::Braille);
        let pid = timeline.ledgers[0].pid;
        assert!(text.contains(&format!("at the last of these of {pid} ")), "{text}");
        assert!(!text.contains("of a child"), "{text}");
        let has_row = |rss: &str, process: &str| {
            text.lines()
                .any(|line| line.contains(rss) && line.ends_with(process) && line.starts_with("exit "))
        };
        assert!(has_row("1.59 GiB", "4712 worker") && has_row("4.00 KiB", "4711 sh"), "{text}");
    }

    #[test]
    fn without_braille_there_are_columns() {
        let text = chart_text(fabricated::tree(), PLAIN, Glyphs::Ascii);
        assert!(text.is_ascii(), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn hostile_absurd_and_empty_recordings_fit_too() {
        for timeline in [fabricated::hostile(), fabricated::absurd(), fabricated::empty()] {
            for columns in [80, 100] {
                chart_text(timeline.clone(), Surface { columns, has_colour: false }, Glyphs::Braille);
            }
        }
    }

    #[test]
    fn several_charts_are_stacked() {
        let text = chart(&[fabricated::tree(), fabricated::tree()], None, PLAIN, Glyphs::Braille);
        assert_eq!(text.matches("cost: ").count(), 2);
        assert_eq!(text.matches("--format html").count(), 1);
    }

    #[test]
    fn the_locale_decides() {
        assert_eq!(Glyphs::of_locale(None, None, Some("en_US.UTF-8")), Glyphs::Braille);
        assert_eq!(Glyphs::of_locale(Some("C"), None, Some("en_US.UTF-8")), Glyphs::Ascii);
        assert_eq!(Glyphs::of_locale(Some(""), Some("C.utf8"), None), Glyphs::Braille);
        assert_eq!(Glyphs::of_locale(None, None, None), Glyphs::Ascii);
    }

    #[test]
    fn a_step_is_one_unbroken_line() {
        let at = |kib: u64| Some(RssRange { low_kib: kib, high_kib: kib });
        let rows = braille_rows(&[at(0), at(100)], 100);
        let dots: u32 = rows.iter().flat_map(|row| row.chars()).map(|c| (c as u32 & 0xFF).count_ones()).sum();
        assert!(dots >= CHART_LINES as u32 * 4, "{rows:?}");
    }
}

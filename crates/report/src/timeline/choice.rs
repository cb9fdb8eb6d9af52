//! Selects what is drawn of a recording: which processes separately, and the others as a sum.
//!
//! Every format uses this module, so that all show the same processes under the same names. It
//! is independent of formats.

use std::cmp::Ordering;

use strandline_recording::{Ledger, Moment, Sample};

use super::{Point, Process, Timeline};
use crate::text::{argument_line, clean_sentence, own_command, shorten};
use crate::units::{seconds, thousands};

/// Number of intervals of the recording at whose ends the other processes are summed.
const SUM_INTERVALS: u64 = 1_024;
/// The signal by which the kernel kills for lack of memory.
const SIGKILL: i32 = 9;
/// Maximum number of arguments in the name of a process.
const MAX_ARGUMENTS: usize = 16;

/// KiB as bytes.
pub fn bytes_of(kib: u64) -> u64 {
    kib.saturating_mul(1024)
}

/// Microseconds as seconds.
pub fn seconds_of(us: u64) -> f64 {
    us as f64 / 1e6
}

/// The reason why a ledger was taken, as documents name it.
pub fn moment_kind(moment: Moment) -> &'static str {
    match moment {
        Moment::Mark => "mark",
        Moment::Peak => "peak",
        Moment::Exit => "exit",
        Moment::Every => "every",
        Moment::Start => "start",
        Moment::End => "end",
    }
}

/// The name of a ledger in a table: `mark loaded`, `exit`.
pub fn ledger_name(ledger: &Ledger) -> String {
    match &ledger.mark {
        Some(mark) => format!("mark {}", clean_sentence(mark)),
        None => moment_kind(ledger.moment).to_owned(),
    }
}

/// A change: `+20.0 MiB`, `−700 MiB`; empty without an earlier value.
pub fn change_text(current: u64, before: Option<u64>, format: fn(u64) -> String) -> String {
    let Some(before) = before else { return String::new() };
    let sign = match current.cmp(&before) {
        Ordering::Less => "−",
        Ordering::Equal => "",
        Ordering::Greater => "+",
    };
    format!("{sign}{}", format(current.abs_diff(before)))
}

/// The index of the one of `cells` equal intervals up to `end_us` that contains `at_us`.
pub fn cell_of(at_us: u64, end_us: u64, cells: usize) -> usize {
    let cell = u128::from(at_us) * cells as u128 / u128::from(end_us.max(1));
    usize::try_from(cell).unwrap_or(usize::MAX).min(cells.saturating_sub(1))
}

/// Indices of the processes that have samples, the highest RSS first.
pub fn largest(timeline: &Timeline) -> Vec<usize> {
    let has_samples = |&index: &usize| {
        timeline.processes.get(index).is_some_and(|process| !process.series.points().is_empty())
    };
    let peak_kib = |index: usize| timeline.processes.get(index).and_then(Process::high_water_kib);
    let mut indices: Vec<usize> = (0..timeline.processes.len()).filter(has_samples).collect();
    indices.sort_by_cached_key(|&index| std::cmp::Reverse(peak_kib(index)));
    indices
}

/// A short description of a process: `4711 tide-server --port 8080`, without the program's
/// directory.
pub fn process_name(process: &Process, max_columns: usize) -> String {
    let name = process.name().unwrap_or_else(|| "(name not known)".to_owned());
    let arguments = process.command().get(1..).unwrap_or_default();
    let listed = arguments.get(..MAX_ARGUMENTS).unwrap_or(arguments);
    let mut text = format!("{} {name}", process.start.pid);
    if !listed.is_empty() {
        text += &format!(" {}", argument_line(listed));
    }
    if listed.len() < arguments.len() {
        text += " …";
    }
    shorten(&text, max_columns)
}

/// The sum of the processes with these `indices` (from `largest`) at equidistant instants. RSS
/// counts shared pages once per process.
pub fn sum_of_processes(timeline: &Timeline, indices: &[usize]) -> Vec<Point> {
    let interval_us = (timeline.last_us() / SUM_INTERVALS).max(1);
    let mut sums = vec![Sample::default(); SUM_INTERVALS as usize + 1];
    for process in indices.iter().filter_map(|&index| timeline.processes.get(index)) {
        add_to_sums(process.series.points(), interval_us, &mut sums);
    }
    (0u64..).zip(sums).map(|(index, sample)| Point::new(interval_us.saturating_mul(index), sample)).collect()
}

/// Adds the values of `points` at each multiple of `interval_us`, from the first point to the last.
fn add_to_sums(points: &[Point], interval_us: u64, sums: &mut [Sample]) {
    let (Some(first_point), Some(last_point)) = (points.first(), points.last()) else { return };
    let mut current = 0;
    for (sum, at_us) in sums.iter_mut().zip((0u64..).map(|index| interval_us.saturating_mul(index))) {
        if at_us < first_point.at_us {
            continue;
        }
        if at_us > last_point.at_us {
            return;
        }
        while points.get(current + 1).is_some_and(|point| point.at_us <= at_us) {
            current += 1;
        }
        let Some(point) = points.get(current) else { return };
        let mut figures = sum.figures();
        for (total, figure) in figures.iter_mut().zip(point.sample.figures()) {
            *total = total.saturating_add(figure);
        }
        *sum = Sample::from_figures(figures);
    }
}

/// The command of a recording, or else the name of its file; of several, their number.
pub fn title(timelines: &[Timeline]) -> String {
    match timelines {
        [timeline] => command(timeline),
        several => format!("{} recordings", several.len()),
    }
}

/// The command that was recorded, or else the name of the file.
pub fn command(timeline: &Timeline) -> String {
    if timeline.header.command.is_empty() {
        return clean_sentence(&timeline.name);
    }
    own_command(&timeline.header.command)
}

/// The highest RSS of any single process; `None` if unknown.
pub fn peak_bytes(timeline: &Timeline) -> Option<u64> {
    let highest_kib = timeline.processes.iter().filter_map(Process::high_water_kib).max();
    highest_kib.max(timeline.end.as_ref().and_then(|end| end.high_water_kib)).map(bytes_of)
}

/// What the peak is of: the kernel's also counts the time before the recording.
pub fn peak_name(timeline: &Timeline) -> &'static str {
    if timeline.header.attached {
        "peak RSS of one process since its start"
    } else {
        "peak RSS of one process"
    }
}

/// A sentence on how the recording ended: `ended with status 0, after 12.4 s`.
pub fn ending(timeline: &Timeline) -> String {
    let Some(end) = &timeline.end else {
        return format!("no end: the recording stops after {}", time(timeline.last_us()));
    };
    let result = match (end.why.as_str(), end.status, end.signal) {
        ("interrupted", ..) => "still running when the recording was stopped".to_owned(),
        (_, _, Some(signal)) => format!("killed by signal {signal}{}", signal_name(signal)),
        (_, Some(status), _) => format!("ended with status {status}"),
        _ => "ended; its status is not known".to_owned(),
    };
    let killed = match (end.out_of_memory_kills.unwrap_or(0), end.signal) {
        (0, _) => String::new(),
        (_, Some(SIGKILL)) => ", its memory limit reached: the kernel killed it".to_owned(),
        (kills, _) => {
            format!(", its memory limit reached: the kernel killed {} of its processes", thousands(kills))
        }
    };
    format!("{result}{killed}, after {}", time(end.at_us))
}

/// A duration, given in microseconds; in hours and minutes from two hours on.
pub fn time(us: u64) -> String {
    const HOUR_SECONDS: u64 = 3_600;
    let whole_seconds = us / 1_000_000;
    if whole_seconds >= 2 * HOUR_SECONDS {
        return format!("{} h {} min", whole_seconds / HOUR_SECONDS, whole_seconds % HOUR_SECONDS / 60);
    }
    seconds(seconds_of(us))
}

/// The name of a signal that commonly ends a process, with a leading space.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        SIGKILL => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fabricated;

    #[test]
    fn the_largest_comes_first_and_the_others_add_up() {
        let timeline = fabricated::tree();
        let order = largest(&timeline);
        assert_eq!(order, [1, 2, 0]);
        let sum = sum_of_processes(&timeline, &order[1..]);
        let end = sum.iter().rfind(|point| point.sample.rss_kib > 0).unwrap();
        let shell = timeline.processes[0].series.points().last().unwrap();
        assert_eq!(end.sample.rss_kib, shell.sample.rss_kib, "only the shell is left at the end");
        let peak = sum.iter().map(|point| point.sample.rss_kib).max().unwrap();
        assert!(peak > shell.sample.rss_kib);
    }

    #[test]
    fn a_name_is_short_and_harmless() {
        let timeline = fabricated::hostile();
        for process in &timeline.processes {
            let name = process_name(process, 40);
            assert!(crate::text::width(&name) <= 40);
            assert!(!name.chars().any(crate::text::is_unsafe), "{name:?}");
        }
    }

    #[test]
    fn a_day_is_not_shown_in_minutes() {
        assert_eq!(time(86_400_000_000), "24 h 0 min");
        assert_eq!(time(7_199_000_000), "119 min 59 s");
    }

    #[test]
    fn endings_are_distinguished() {
        let mut timeline = fabricated::tree();
        assert_eq!(ending(&timeline), "ended with status 0, after 12 s");
        if let Some(end) = &mut timeline.end {
            end.out_of_memory_kills = Some(1);
        }
        assert!(
            ending(&timeline)
                .starts_with("ended with status 0, its memory limit reached: the kernel killed 1 of")
        );
        if let Some(end) = &mut timeline.end {
            end.signal = Some(9);
        }
        assert!(ending(&timeline).starts_with("killed by signal 9 (SIGKILL), its memory limit reached"));
        timeline.end = None;
        assert!(ending(&timeline).starts_with("no end:"));
    }
}

//! A recording prepared for reports: each process's series reduced to a few thousand points, marks,
//! ledgers, and the end. Read in one pass and in bounded memory, whatever the length.

pub mod chart;
mod choice;
pub mod export;
mod group_chart;
mod group_page;
mod group_view;
mod groups;
pub mod groups_csv;
mod groups_json;
pub mod html;
mod html_data;
mod series;
pub mod svg;
mod types;

#[cfg(test)]
mod fabricated;

use std::collections::BTreeMap;
use std::path::Path;

use strandline_inspect::Caveat;
use strandline_recording::{
    Ending, Error, Exec, Header, Heartbeat, Ledger, Mark, Moment, ProcessEnd, ProcessStart, Reader, Record,
    Run, cut_command,
};

use crate::text::{own_name, start_of};
use crate::units::thousands;
pub use groups::{GroupPoint, GroupTimeline, LimitStep};
pub use series::{Point, Series, SeriesPoint};

/// Further processes are counted, not drawn.
const MAX_PROCESSES: usize = 20_000;
/// Maximum number of control groups; the recorder follows the same number.
const MAX_GROUPS: usize = 16;
/// Maximum number of ledgers with page maps: above it, every second map is dropped.
const MAX_PAGE_MAPS: usize = 32;
const MAX_LEDGERS: usize = 5_000;
const MAX_MARKS: usize = 100_000;
const MAX_CAVEATS: usize = 200;
/// Maximum length of the texts of a caveat.
const MAX_CAVEAT_BYTES: usize = 64 << 10;
/// Maximum number of exec records of a process: the first ones and the last are kept.
const MAX_EXECS: usize = 16;
/// Maximum length of a word of a command line, or of another name.
const MAX_WORD_BYTES: usize = 1024;
/// Maximum number of sizes of /proc/PID/status in a mark; usually about twenty.
const MAX_SIZES: usize = 64;
/// Approximate memory of the entry of a size in a mark, without its name.
const SIZE_ENTRY_BYTES: usize = 64;
/// Maximum numbers of rows, of caveats and of remedies in a ledger; usually about twenty.
const MAX_ROWS: usize = 256;
/// Memory limit for names, marks and ledgers together.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// The same for ledgers at intervals, so that those at peaks, marks and ends are kept too.
const MAX_REGULAR_KEPT_BYTES: usize = MAX_KEPT_BYTES / 4 * 3;
/// Maximum number of points of all processes together, 128 bytes each. Above it, the series of all
/// but the largest processes are thinned.
const MAX_POINTS: usize = 300_000;
/// Number of the largest processes, whose series are not thinned.
const UNTHINNED_PROCESSES: usize = 32;
/// Number of points to which the other series are thinned at first.
const FIRST_THINNED_POINTS: usize = 2_048;
/// Number of points to which they are thinned at most.
const MIN_THINNED_POINTS: usize = 4;

/// The name of execs that were dropped.
const DROPPED_EXECS: &str = "started programs";

/// A recording that has been read.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The file's name, for titles.
    pub name: String,
    /// What was recorded, where and how.
    pub header: Header,
    /// The processes by number; the first is the command itself.
    pub processes: Vec<Process>,
    /// The control groups by number.
    pub groups: Vec<GroupTimeline>,
    /// The marks, in order of time.
    pub marks: Vec<Mark>,
    /// The ledgers, in order of time. Only the last peak ledger of each process is kept.
    pub ledgers: Vec<Ledger>,
    /// How it ended; `None` if the recording is truncated.
    pub end: Option<Ending>,
    /// The last recorded progress.
    pub heartbeat: Heartbeat,
    /// What is unknown or went wrong.
    pub caveats: Vec<Caveat>,
    /// Counts of what was dropped because of limits, by its name in the caveat.
    dropped: BTreeMap<&'static str, u64>,
    /// Numbers of rows, caveats and remedies that were dropped, by the index of their ledger: one
    /// at a peak may replace another.
    dropped_entries: BTreeMap<usize, u64>,
    /// Number of processes whose series were thinned in favour of others.
    thinned_processes: u64,
    /// Points added since the last check.
    new_points: usize,
    /// Approximate memory of names, marks and ledgers.
    kept_bytes: usize,
}

/// The last peak ledger of each process.
type Peaks = BTreeMap<u32, PeakLedger>;

/// A peak ledger, which the next one of its process replaces.
#[derive(Clone, Copy)]
struct PeakLedger {
    /// Its index among the ledgers.
    index: usize,
    reserved_bytes: usize,
}

/// One process of the recording.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its identity.
    pub start: ProcessStart,
    /// Its execs, in order of time.
    pub execs: Vec<Exec>,
    /// How it ended; `None` if it outlived the recording.
    pub end: Option<ProcessEnd>,
    /// Its figures over time, thinned.
    pub series: Series<Point>,
    /// Number of samples taken.
    pub samples: u64,
}

impl Process {
    /// The command line of its last program.
    pub fn command(&self) -> &[String] {
        self.execs.last().map_or(&self.start.command, |exec| &exec.command)
    }

    /// Its short name; `None` if none was read.
    pub fn name(&self) -> Option<String> {
        own_name(self.command(), self.executable())
    }

    /// The file of its last program.
    pub fn executable(&self) -> Option<&str> {
        self.execs.last().map_or(&self.start.executable, |exec| &exec.executable).as_deref()
    }

    /// The highest known RSS, in KiB: sampled, or the kernel's peak.
    pub fn high_water_kib(&self) -> Option<u64> {
        let sampled = self.series.points().iter().map(|point| point.rss_high_kib).max();
        sampled.max(self.end.as_ref().and_then(|end| end.high_water_kib))
    }

    /// Stores an exec; false if it replaced an earlier one.
    fn add_exec(&mut self, exec: Exec) -> bool {
        if self.execs.len() < MAX_EXECS {
            self.execs.push(exec);
            return true;
        }
        if let Some(last_exec) = self.execs.last_mut() {
            *last_exec = exec;
        }
        false
    }

    /// Adds a run of equal samples: its start, and its end if that differs.
    fn add(&mut self, run: &Run) {
        self.samples = self.samples.saturating_add(run.count);
        self.series.add(Point::new(run.at_us, run.sample));
        if run.span_us > 0 {
            self.series.add(Point::new(run.end_us(), run.sample));
        }
    }
}

impl Timeline {
    /// Reads the recording at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or is no recording.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut reader = Reader::open(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut timeline = Self { name, header: reader.header().clone(), ..Self::default() };
        let mut peaks = Peaks::new();
        while let Some(record) = reader.next_record()? {
            timeline.add_record(record, &mut peaks);
        }
        timeline.caveats.extend(reader.caveats());
        timeline.finish();
        Ok(timeline)
    }

    fn add_record(&mut self, record: Record, peaks: &mut Peaks) {
        match record {
            Record::Header(_) => {}
            Record::Process(start) => self.add_process(start),
            Record::Exec(exec) => self.add_exec(exec),
            Record::Samples(block) => {
                if let Some(process) = self.process(block.process) {
                    let count_before = process.series.points().len();
                    block.runs().for_each(|run| process.add(&run));
                    self.new_points += process.series.points().len().saturating_sub(count_before);
                    self.thin_series();
                }
            }
            Record::Group(start) => match self.group(start.group) {
                Some(group) => group.begin(*start),
                None => self.count_dropped("control groups", 1),
            },
            Record::GroupSamples(block) => {
                if let Some(group) = self.group(block.group) {
                    group.add(&block);
                }
            }
            Record::Mark(mark) => self.add_mark(*mark),
            Record::Ledger(ledger) => self.add_ledger(*ledger, peaks),
            Record::ProcessEnd(end) => {
                if let Some(process) = self.process(end.process) {
                    process.end = Some(end);
                }
            }
            Record::Caveat(record) => self.add_caveat(record.caveat),
            Record::Heartbeat(heartbeat) => self.heartbeat = heartbeat,
            Record::End(mut end) => {
                end.group_kill = end.group_kill.take().map(groups::truncated_kill);
                self.end = Some(*end);
            }
        }
    }

    /// Counts what was dropped; `what` is its name in the caveat.
    fn count_dropped(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.dropped.entry(what).or_default() += count;
        }
    }

    /// Reserves `bytes` if the memory limit allows it; returns whether it does.
    fn reserve(&mut self, bytes: usize) -> bool {
        self.reserve_instead(0, bytes)
    }

    /// Releases `old_bytes` and reserves `new_bytes` if the memory limit allows it; returns whether
    /// it does.
    fn reserve_instead(&mut self, old_bytes: usize, new_bytes: usize) -> bool {
        let kept_bytes = self.kept_bytes.saturating_sub(old_bytes).saturating_add(new_bytes);
        let is_allowed = kept_bytes <= MAX_KEPT_BYTES;
        if is_allowed {
            self.kept_bytes = kept_bytes;
        }
        is_allowed
    }

    /// Adds the identity of a process, without its names if there is no memory for them.
    fn add_process(&mut self, start: ProcessStart) {
        let command = truncated_command(start.command);
        let executable = start.executable.map(truncated_word);
        if self.process(start.process).is_none() {
            self.count_dropped("processes", 1);
            return;
        }
        let has_names = self.reserve(names_bytes(&command, &executable));
        self.count_dropped("names of processes", u64::from(!has_names));
        let command = if has_names { command } else { Vec::new() };
        let executable = executable.filter(|_| has_names);
        if let Some(process) = self.process(start.process) {
            process.start = ProcessStart { command, executable, ..start };
        }
    }

    fn add_exec(&mut self, exec: Exec) {
        let executable = exec.executable.map(truncated_word);
        let exec = Exec { command: truncated_command(exec.command), executable, ..exec };
        let Some(process) = self.process(exec.process) else {
            self.count_dropped(DROPPED_EXECS, 1);
            return;
        };
        // Beyond `MAX_EXECS`, an exec replaces the last one.
        let replaced = process.execs.last().filter(|_| process.execs.len() >= MAX_EXECS);
        let replaced_bytes = replaced.map_or(0, |exec| names_bytes(&exec.command, &exec.executable));
        let is_kept = self.reserve_instead(replaced_bytes, names_bytes(&exec.command, &exec.executable));
        let is_added = is_kept && self.process(exec.process).is_some_and(|process| process.add_exec(exec));
        self.count_dropped(DROPPED_EXECS, u64::from(!is_added));
    }

    /// Adds a mark, with as many sizes as a report keeps.
    fn add_mark(&mut self, mut mark: Mark) {
        mark.name = truncated_word(mark.name);
        while mark.status_bytes.len() > MAX_SIZES {
            mark.status_bytes.pop_last();
            self.count_dropped("sizes of marks", 1);
        }
        let sizes: usize = mark.status_bytes.keys().map(|name| name.len() + SIZE_ENTRY_BYTES).sum();
        if self.marks.len() < MAX_MARKS && self.reserve(mark.name.len() + sizes + size_of::<Mark>()) {
            self.marks.push(mark);
        } else {
            self.count_dropped("marks", 1);
        }
    }

    /// Adds a caveat of the recorder.
    fn add_caveat(&mut self, caveat: Caveat) {
        let bytes = caveat.code.len() + caveat.place.len() + caveat.text.len();
        if self.caveats.len() < MAX_CAVEATS && bytes <= MAX_CAVEAT_BYTES {
            self.caveats.push(caveat);
        } else {
            self.count_dropped("caveats", 1);
        }
    }

    /// Adds a ledger; one at a peak replaces the earlier one of its process.
    fn add_ledger(&mut self, mut ledger: Ledger, peaks: &mut Peaks) {
        let explain = &mut ledger.explain;
        let entry_counts = [explain.rows.len(), explain.caveats.len(), explain.remedies.len()];
        let dropped_entries = entry_counts.iter().map(|count| count.saturating_sub(MAX_ROWS) as u64).sum();
        explain.rows.truncate(MAX_ROWS);
        explain.caveats.truncate(MAX_ROWS);
        explain.remedies.truncate(MAX_ROWS);
        explain.target.command = truncated_command(std::mem::take(&mut explain.target.command));
        // Approximate memory of its text, without page maps, which are few. A ledger that cannot be
        // written as JSON is dropped as too large: no report could show it.
        let page_map = explain.page_map.take();
        let text_bytes = serde_json::to_string(&ledger).map_or(usize::MAX, |text| text.len());
        ledger.explain.page_map = page_map;
        let replaced = peaks.get(&ledger.process).copied().filter(|_| ledger.moment == Moment::Peak);
        let added_bytes = text_bytes.saturating_sub(replaced.map_or(0, |peak| peak.reserved_bytes));
        let is_countable = replaced.is_some() || self.ledgers.len() < MAX_LEDGERS;
        let is_regular = ledger.moment == Moment::Every;
        let max_bytes = if is_regular { MAX_REGULAR_KEPT_BYTES } else { MAX_KEPT_BYTES };
        let has_memory = self.kept_bytes.saturating_add(added_bytes) <= max_bytes;
        if !is_countable || !has_memory || !self.reserve(added_bytes) {
            self.count_dropped("ledgers", 1);
            return;
        }
        let index = replaced.map_or(self.ledgers.len(), |peak| peak.index);
        self.dropped_entries.insert(index, dropped_entries);
        if ledger.moment == Moment::Peak {
            let reserved_bytes = replaced.map_or(text_bytes, |peak| peak.reserved_bytes.max(text_bytes));
            peaks.insert(ledger.process, PeakLedger { index, reserved_bytes });
        }
        match self.ledgers.get_mut(index) {
            Some(replaced_ledger) => *replaced_ledger = ledger,
            None => self.ledgers.push(ledger),
        }
        self.thin_page_maps();
    }

    /// Bounds memory: if there are too many page maps, drops every second one, but keeps the first
    /// and the last.
    fn thin_page_maps(&mut self) {
        let has_map = |ledger: &&mut Ledger| ledger.explain.page_map.is_some();
        let count = self.ledgers.iter_mut().filter(has_map).count();
        if count <= MAX_PAGE_MAPS {
            return;
        }
        let with_map = self.ledgers.iter_mut().filter(has_map).enumerate();
        let mut dropped_count = 0;
        for (_, ledger) in with_map.filter(|(index, _)| index % 2 == 1 && index + 1 < count) {
            ledger.explain.page_map = None;
            dropped_count += 1;
        }
        self.count_dropped("page maps", dropped_count);
    }

    /// Bounds memory: if all series together are too long, thins those of all but the largest
    /// processes repeatedly. Their minima and maxima are kept.
    fn thin_series(&mut self) {
        if self.new_points < MAX_POINTS / 4 {
            return;
        }
        self.new_points = 0;
        let point_count = |processes: &[Process]| -> usize {
            processes.iter().map(|process| process.series.points().len()).sum()
        };
        let mut max_points = FIRST_THINNED_POINTS;
        while point_count(&self.processes) > MAX_POINTS && max_points >= MIN_THINNED_POINTS {
            let mut largest_first: Vec<&mut Process> = self.processes.iter_mut().collect();
            largest_first.sort_by_cached_key(|process| std::cmp::Reverse(process.high_water_kib()));
            let smaller = largest_first.iter_mut().skip(UNTHINNED_PROCESSES);
            smaller.for_each(|process| process.series.thin(max_points));
            self.thinned_processes = self.processes.len().saturating_sub(UNTHINNED_PROCESSES) as u64;
            max_points /= 2;
        }
    }

    /// The process of this number, created if new; `None` if the number is out of range.
    fn process(&mut self, number: u32) -> Option<&mut Process> {
        let index = usize::try_from(number).ok().filter(|&index| index < MAX_PROCESSES)?;
        if index >= self.processes.len() {
            self.processes.resize_with(index + 1, Process::default);
        }
        self.processes.get_mut(index)
    }

    /// The control group of this number, created if new; `None` if the number is out of range.
    fn group(&mut self, number: u32) -> Option<&mut GroupTimeline> {
        let index = usize::try_from(number).ok().filter(|&index| index < MAX_GROUPS)?;
        if index >= self.groups.len() {
            self.groups.resize_with(index + 1, GroupTimeline::default);
        }
        self.groups.get_mut(index)
    }

    /// Adds a caveat on what was dropped.
    fn report_dropped(&mut self) {
        let dropped_limits =
            self.groups.iter().map(|group| group.dropped_limits).fold(0, u64::saturating_add);
        self.count_dropped("changes of a limit", dropped_limits);
        let dropped_entries = self.dropped_entries.values().copied().fold(0, u64::saturating_add);
        self.count_dropped("rows, caveats and remedies of ledgers", dropped_entries);
        let parts: Vec<String> =
            self.dropped.iter().map(|(what, count)| format!("{what}: {}", thousands(*count))).collect();
        if !parts.is_empty() {
            let text =
                format!("the recording holds more than a report takes; left out: {}", parts.join("; "));
            self.caveats.push(Caveat::new("report_cut", self.name.clone(), None, text));
        }
        if self.thinned_processes > 0 {
            let text = format!(
                "processes whose lines are drawn with fewer points: {}",
                thousands(self.thinned_processes)
            );
            self.caveats.push(Caveat::new("report_thinned", self.name.clone(), None, text));
        }
    }

    /// Sorts what was read by time, and adds caveats on what is missing.
    fn finish(&mut self) {
        self.report_dropped();
        self.marks.sort_by_key(|mark| mark.at_us);
        self.ledgers.sort_by_key(|ledger| ledger.at_us);
        if self.end.is_none() {
            let place = format!("{:.3} s", self.last_us() as f64 / 1e6);
            let text = "the recording has no end: strandline was killed, or is still recording";
            self.caveats.push(Caveat::new("recording_unfinished", place, None, text));
        }
    }

    /// The last instant with known data, in microseconds.
    pub fn last_us(&self) -> u64 {
        let last_points = self.processes.iter().filter_map(|process| process.series.points().last());
        let last_sample_us = last_points.map(|point| point.at_us).max().unwrap_or(0);
        let last_mark_us = self.marks.last().map_or(0, |mark| mark.at_us);
        let end_us = self.end.as_ref().map_or(0, |end| end.at_us);
        last_sample_us.max(last_mark_us).max(end_us).max(self.heartbeat.at_us)
    }

    /// RSS at this ledger as a fraction of the process's peak, 1 at the actual peak; `None` if the
    /// peak is unknown.
    pub fn share_of_peak(&self, ledger: &Ledger) -> Option<f64> {
        let process = self.processes.get(usize::try_from(ledger.process).ok()?)?;
        let peak = process.high_water_kib().filter(|&kib| kib > 0)?.saturating_mul(1024);
        Some(ledger.explain.kernel.rss_bytes as f64 / peak as f64)
    }

    /// Numbers of instants, as last recorded.
    pub fn counts(&self) -> SampleCounts {
        let (samples, missed) = match &self.end {
            Some(end) => (end.samples, end.missed),
            None => (self.heartbeat.samples, self.heartbeat.missed),
        };
        SampleCounts { samples, missed }
    }
}

/// Numbers of instants of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCounts {
    /// Sampled.
    pub samples: u64,
    /// Missed.
    pub missed: u64,
}

/// Truncates a command line to what a report shows.
fn truncated_command(mut command: Vec<String>) -> Vec<String> {
    cut_command(&mut command);
    command.into_iter().map(truncated_word).collect()
}

/// Truncates a name to what a report shows; one that was cut ends in `…`.
fn truncated_word(word: String) -> String {
    if word.len() <= MAX_WORD_BYTES {
        return word;
    }
    format!("{}…", start_of(&word, MAX_WORD_BYTES - '…'.len_utf8()))
}

/// Approximate memory of a process's names.
fn names_bytes(command: &[String], executable: &Option<String>) -> usize {
    let words: usize = command.iter().map(|word| word.len() + size_of::<String>()).sum();
    words + executable.as_ref().map_or(0, String::len) + size_of::<Exec>()
}

#[cfg(test)]
mod tests {
    use strandline_inspect::facts::Explanation;
    use strandline_recording::{Block, CaveatRecord, Sample};

    use super::*;

    /// Only what the ledgers that are kept lack is counted.
    #[test]
    fn entries_of_replaced_ledgers_are_not_counted() {
        let mut timeline = Timeline::default();
        let mut peaks = Peaks::new();
        for count in [MAX_ROWS + 1_000, MAX_ROWS + 2] {
            let caveats = vec![Caveat::new("code", "place", None, "text"); count];
            let explain = Explanation { caveats, ..Explanation::default() };
            let ledger = Ledger { moment: Moment::Peak, explain, ..Ledger::default() };
            timeline.add_record(Record::Ledger(Box::new(ledger)), &mut peaks);
        }
        timeline.finish();
        let reported = timeline.caveats.iter().find(|caveat| caveat.code == "report_cut").unwrap();
        assert!(
            reported.text.ends_with("left out: rows, caveats and remedies of ledgers: 2"),
            "{reported:?}"
        );
    }

    #[test]
    fn many_processes_take_bounded_memory_and_keep_their_peaks() {
        let mut timeline = Timeline::default();
        let mut peaks = Peaks::new();
        for process in 0..5_000u32 {
            let runs: Vec<Run> = (0..300)
                .map(|n| {
                    let rss_kib = if n == 123 { 1_000_000 + u64::from(process) } else { n };
                    Run {
                        at_us: n * 1000,
                        span_us: 0,
                        count: 1,
                        sample: Sample { rss_kib, ..Sample::default() },
                    }
                })
                .collect();
            timeline.add_record(Record::Samples(Box::new(Block::new(process, &runs))), &mut peaks);
        }
        let points: usize = timeline.processes.iter().map(|process| process.series.points().len()).sum();
        assert!(points <= MAX_POINTS + MAX_POINTS / 4, "{points}");
        for (number, process) in timeline.processes.iter().enumerate() {
            assert_eq!(process.high_water_kib(), Some(1_000_000 + number as u64));
        }
        timeline.finish();
        assert!(timeline.caveats.iter().any(|caveat| caveat.code == "report_thinned"));
    }

    /// Large ledgers replace small ones, which reserved less.
    #[test]
    fn large_texts_take_bounded_memory() {
        let mut timeline = Timeline::default();
        let mut peaks = Peaks::new();
        let large = "x".repeat(1 << 20);
        for text in ["", large.as_str()] {
            for process in 0..100 {
                let caveat = Caveat::new("code", "place", None, text);
                let explain = Explanation { caveats: vec![caveat.clone()], ..Explanation::default() };
                let ledger = Ledger { process, moment: Moment::Peak, explain, ..Ledger::default() };
                timeline.add_record(Record::Ledger(Box::new(ledger)), &mut peaks);
                timeline.add_record(Record::Caveat(CaveatRecord { at_us: 0, caveat }), &mut peaks);
            }
        }
        assert!(timeline.kept_bytes <= MAX_KEPT_BYTES && timeline.kept_bytes > MAX_KEPT_BYTES / 2);
        let of_ledgers = timeline.ledgers.iter().flat_map(|ledger| &ledger.explain.caveats);
        let caveat_bytes: usize = of_ledgers.map(|caveat| caveat.text.len()).sum();
        assert!(caveat_bytes <= MAX_KEPT_BYTES, "{caveat_bytes}");
        assert_eq!((timeline.ledgers.len(), timeline.caveats.len()), (100, 100));
        assert!(timeline.dropped["ledgers"] > 0 && timeline.dropped["caveats"] == 100);
    }

    #[test]
    fn omissions_are_reported_once() {
        let mut timeline = Timeline::default();
        let mut peaks = Peaks::new();
        let word = "é".repeat(4000);
        for n in 0..1000 {
            let exec = Exec { at_us: n, command: vec![word.clone(); 200], ..Exec::default() };
            timeline.add_record(Record::Exec(exec), &mut peaks);
        }
        timeline.add_record(
            Record::Process(ProcessStart { process: u32::MAX, ..ProcessStart::default() }),
            &mut peaks,
        );
        timeline.finish();
        let process = &timeline.processes[0];
        assert_eq!((process.execs.len(), process.execs[MAX_EXECS - 1].at_us), (MAX_EXECS, 999));
        assert_eq!((process.command().len(), process.command()[0].len()), (64, MAX_WORD_BYTES - 1));
        assert!(process.command()[0].ends_with("é…") && process.command()[63] == "… and 137 more words");
        let reported: Vec<_> = timeline.caveats.iter().filter(|caveat| caveat.code == "report_cut").collect();
        assert!(reported.len() == 1 && reported[0].text.contains("started programs: 984"), "{reported:?}");
    }
}

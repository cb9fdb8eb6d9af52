//! Result of one run of a trial: its figures, and what was actually mapped.
//!
//! The recording of a batch run and the ledgers of a server both give an [`Observation`]. Without a
//! ledger at its end, the last sample stands for it; [`Observation::settled_source`] records that.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strandline_inspect::facts::{Explanation, Runtime};
use strandline_process::smaps::Counts;
use strandline_recording::{CaveatRecord, Moment, Reader, Record};

use super::applies::MappedAllocator;
use super::settled::{Series, Settled};
use crate::cell::{Figures, Outcome};
use crate::figures::US_PER_SECOND;

/// Note on a run whose recording lacks processes.
const UNSAMPLED_NOTE: &str = "has processes that were not sampled: the largest may be one of them";

/// Source of a settled figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledSource {
    /// The ledger of the largest process at its end.
    #[default]
    Exit,
    /// The level that the largest process held before memory fell at its end.
    Level,
    /// The value from which the memory of the largest process fell at its end, without a level
    /// before.
    Top,
    /// The last mark set by the largest process.
    Mark,
    /// The last sample of the largest process, without a ledger.
    Sample,
    /// The ledgers of a server after its load.
    Load,
}

impl SettledSource {
    /// Readable form, to follow "settled memory was measured".
    pub fn text(self) -> &'static str {
        match self {
            Self::Exit => "as the process ended",
            Self::Level => "on the last level before it ended",
            Self::Top => "at the top of its last fall",
            Self::Mark => "at the last mark",
            Self::Sample => "in the last sample, as there is no ledger",
            Self::Load => "after the load",
        }
    }

    /// Whether figures from both are comparable: those from a mark and from the end of a run are
    /// not. All sources for a process without marks are comparable.
    pub fn is_comparable(self, other: Self) -> bool {
        let is_without_mark = |source| matches!(source, Self::Exit | Self::Level | Self::Top | Self::Sample);
        self == other || is_without_mark(self) && is_without_mark(other)
    }
}

/// A period of a run, in seconds since its recording began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondsRange {
    /// Begin.
    pub from: f64,
    /// End.
    pub to: f64,
}

/// A language runtime that is mapped into a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedRuntime {
    /// `cpython`, `jvm`, …
    pub name: String,
    /// Its version, if known.
    pub version: Option<String>,
}

/// Result of one run. `None`: unknown.
///
/// For a batch run, settled memory, executable and allocators are from one process: that with the
/// largest high-water mark, the first started if several are equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Settled resident bytes. Batch run: of the largest process, at its last mark or else at the
    /// level before its end. Server: after its load.
    pub settled_bytes: Option<u64>,
    /// The largest resident set of any one process; unknown for a server with several processes.
    pub peak_bytes: Option<u64>,
    /// Seconds from start to end of a batch run, or of the load of a server.
    pub wall_seconds: Option<f64>,
    /// Page faults that needed no I/O.
    pub minor_faults: Option<u64>,
    /// Executable of the largest process.
    pub executable: Option<String>,
    /// The allocators mapped in it.
    pub allocators: Vec<MappedAllocator>,
    /// The runtimes mapped in it.
    pub runtimes: Vec<MappedRuntime>,
    /// The release of glibc, if its malloc is mapped.
    pub glibc: Option<String>,
    /// The bytes in transparent huge pages: of the largest process of a batch run at its end, of
    /// all processes of a server.
    pub huge_bytes: Option<u64>,
    /// Source of `settled_bytes`; without meaning if that is unknown.
    #[serde(rename = "settled_at")]
    pub settled_source: SettledSource,
    /// The time of the level, or of the top, if it is from one.
    #[serde(default)]
    pub settled_seconds: Option<SecondsRange>,
    /// Resident bytes at the end, if memory fell from the settled figure.
    #[serde(default)]
    pub ended_with_bytes: Option<u64>,
    /// Number of processes of a server that were inspected.
    pub processes: u32,
    /// Why the run counts as failed, if its end does not show it.
    pub failure: Option<String>,
    /// Notes on the run.
    pub notes: Vec<String>,
}

/// The ledger of one process of a server.
#[derive(Debug)]
pub struct ServerLedger {
    /// The ledger.
    pub explanation: Explanation,
    /// Its smaps_rollup; `None` if that cannot be read.
    pub rollup: Option<Counts>,
}

/// Data of one process in a recording.
#[derive(Debug, Default)]
struct RecordedProcess {
    /// Its largest known resident set.
    high_water_kib: u64,
    /// Resident set at its last mark.
    marked_kib: Option<u64>,
    /// Its resident set over time.
    series: Series,
    /// The ledger at its end, if one was taken.
    exit: Option<ExitLedger>,
}

#[derive(Debug)]
struct ExitLedger {
    explanation: Box<Explanation>,
    /// When the process was stopped for it.
    at_us: u64,
}

impl RecordedProcess {
    /// Takes what a record says of the process.
    fn add_record(&mut self, record: Record) {
        match record {
            Record::Ledger(ledger) => {
                let kernel = &ledger.explain.kernel;
                let high_water_bytes = kernel.high_water_bytes.unwrap_or(kernel.rss_bytes);
                self.update_high_water(high_water_bytes.max(kernel.rss_bytes) / 1024);
                if ledger.moment == Moment::Exit {
                    let explanation = Box::new(ledger.explain);
                    self.exit = Some(ExitLedger { explanation, at_us: ledger.at_us });
                }
            }
            Record::Mark(mark) => {
                self.update_high_water(mark.sample.rss_kib);
                self.marked_kib = Some(mark.sample.rss_kib);
            }
            Record::Samples(block) => {
                for run in block.runs().filter(|run| run.sample.rss_kib > 0) {
                    self.update_high_water(run.sample.rss_kib);
                    self.series.push(run.at_us, run.end_us(), run.sample.rss_kib);
                }
            }
            Record::ProcessEnd(end) => {
                self.update_high_water(end.high_water_kib.unwrap_or(self.high_water_kib));
            }
            _ => {}
        }
    }

    fn update_high_water(&mut self, kib: u64) {
        self.high_water_kib = self.high_water_kib.max(kib);
    }
}

impl Observation {
    /// The observation of a batch run.
    pub fn of_outcome(outcome: &Outcome) -> Self {
        let Figures { wall_seconds, minor_faults, high_water_bytes, .. } = outcome.figures;
        let mut observation =
            Self { wall_seconds, minor_faults, peak_bytes: high_water_bytes, ..Self::default() };
        let Some(recording) = &outcome.recording else { return observation };
        let mut reader = match Reader::open(recording) {
            Ok(reader) => reader,
            Err(error) => {
                // The end of a run that failed tells more.
                if outcome.end.is_success() && !is_unwritten(recording) {
                    observation.failure = Some(unreadable_recording(&error));
                }
                return observation;
            }
        };
        // The reader bounds what it reads; this loop keeps a bounded amount for each process.
        let mut processes: BTreeMap<u32, RecordedProcess> = BTreeMap::new();
        // A disk that was full for a time leaves a gap; a killed recorder writes no end.
        let (mut gap, mut has_end) = (None, false);
        loop {
            let record = match reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => {
                    observation.failure = Some(unreadable_recording(&error));
                    return observation;
                }
            };
            let process = match &record {
                Record::End(end) => {
                    has_end = true;
                    let note = (end.unsampled_processes > 0).then(|| UNSAMPLED_NOTE.to_owned());
                    observation.notes.extend(note);
                    continue;
                }
                Record::Caveat(CaveatRecord { caveat, .. }) if caveat.code == "recording_lost" => {
                    gap = Some(caveat.text.clone());
                    continue;
                }
                Record::Ledger(ledger) => ledger.process,
                Record::Mark(mark) => mark.process,
                Record::Samples(block) => block.process,
                Record::ProcessEnd(end) => end.process,
                _ => continue,
            };
            processes.entry(process).or_default().add_record(record);
        }
        let gap = gap.or_else(|| (!has_end).then(|| "it has no end".to_owned()));
        // The end of a run that failed tells more.
        let gap = gap.filter(|_| outcome.end.is_success());
        observation.failure = gap.map(|gap| format!("its recording is incomplete: {gap}"));
        observation.read_processes(processes);
        observation
    }

    /// Takes the data of the process with the largest high-water mark: a shell that sets a mark for
    /// its child has little memory itself and must not count for the run.
    fn read_processes(&mut self, processes: BTreeMap<u32, RecordedProcess>) {
        // Of equally large ones the first.
        let larger =
            |a: RecordedProcess, b: RecordedProcess| if a.high_water_kib >= b.high_water_kib { a } else { b };
        let Some(mut process) = processes.into_values().reduce(larger) else { return };
        let bytes = |kib: u64| kib.saturating_mul(1024);
        let exit_rss_bytes = process.exit.as_ref().map(|exit| exit.explanation.kernel.rss_bytes);
        if let Some(ExitLedger { explanation, at_us }) = &process.exit {
            self.take_mapped(explanation);
            process.series.truncate(*at_us);
        }
        if let Some(kib) = process.marked_kib {
            (self.settled_bytes, self.settled_source) = (Some(bytes(kib)), SettledSource::Mark);
            return;
        }
        let Some(end_bytes) = exit_rss_bytes.or(process.series.last_kib().map(bytes)) else {
            self.settled_source = SettledSource::Sample;
            return;
        };
        let seconds = |us: u64| us as f64 / US_PER_SECOND;
        let (settled_bytes, source) = match process.series.settled(end_bytes / 1024) {
            Settled::AtEnd if exit_rss_bytes.is_some() => (end_bytes, SettledSource::Exit),
            Settled::AtEnd => (end_bytes, SettledSource::Sample),
            Settled::Level { kib, from_us, to_us } => {
                self.settled_seconds = Some(SecondsRange { from: seconds(from_us), to: seconds(to_us) });
                (bytes(kib), SettledSource::Level)
            }
            Settled::BeforeFall { kib, at_us } => {
                self.settled_seconds = Some(SecondsRange { from: seconds(at_us), to: seconds(at_us) });
                (bytes(kib), SettledSource::Top)
            }
        };
        (self.settled_bytes, self.settled_source) = (Some(settled_bytes), source);
        let has_fallen = matches!(source, SettledSource::Level | SettledSource::Top);
        self.ended_with_bytes = has_fallen.then_some(end_bytes);
    }

    /// Takes executable, huge pages, allocators, runtimes and glibc's version from a ledger.
    fn take_mapped(&mut self, explanation: &Explanation) {
        self.executable.clone_from(&explanation.target.executable);
        self.huge_bytes = Some(explanation.kernel.huge_bytes);
        self.allocators = explanation
            .allocators
            .iter()
            .map(|allocator| MappedAllocator {
                name: allocator.name.clone(),
                is_in_program: allocator.found_by.ends_with("the executable"),
            })
            .collect();
        self.runtimes = explanation
            .runtimes
            .iter()
            .map(|Runtime { name, version, .. }| MappedRuntime {
                name: name.clone(),
                version: version.clone(),
            })
            .collect();
        let glibc = explanation.allocators.iter().find(|allocator| allocator.name == "glibc");
        self.glibc = glibc.and_then(|allocator| allocator.version.clone());
    }

    /// The observation of a server, from the ledgers of its processes and their shares. Pages
    /// shared between them count once, and unrelated processes have no influence.
    ///
    /// For one process the result is its resident set. For several it is the sum of their shares of
    /// anonymous and shared memory, plus the largest file-backed resident size of any one process:
    /// the share of a file would depend on unrelated processes that map it. Unknown if the shares
    /// of any process are unknown.
    pub fn of_ledgers(ledgers: &[ServerLedger]) -> Self {
        let processes = u32::try_from(ledgers.len()).unwrap_or(u32::MAX);
        let mut observation = Self { settled_source: SettledSource::Load, processes, ..Self::default() };
        let kernels = || ledgers.iter().map(|ledger| &ledger.explanation.kernel);
        let Some(largest) = ledgers.iter().max_by_key(|ledger| ledger.explanation.kernel.rss_bytes) else {
            return observation;
        };
        observation.take_mapped(&largest.explanation);
        observation.huge_bytes = Some(kernels().map(|kernel| kernel.huge_bytes).fold(0, u64::saturating_add));
        if let [ServerLedger { explanation, .. }] = ledgers {
            observation.settled_bytes = Some(explanation.kernel.rss_bytes);
            observation.peak_bytes = explanation.kernel.high_water_bytes;
            return observation;
        }
        let shares: Option<Vec<Counts>> =
            ledgers.iter().map(|ledger| ledger.rollup.filter(Counts::has_pss_parts)).collect();
        let max_file_bytes = kernels().map(|kernel| kernel.file_bytes).max().unwrap_or_default();
        observation.settled_bytes = shares.map(|shares| {
            let parts = shares.iter().flat_map(|shares| [shares.pss_anonymous_bytes, shares.pss_shmem_bytes]);
            parts.fold(max_file_bytes, u64::saturating_add)
        });
        if observation.settled_bytes.is_none() {
            observation.failure = Some(
                "what its processes share is not known (Pss_Anon of /proc/PID/smaps_rollup, Linux 5.3), nor \
                 therefore what they hold together"
                    .to_owned(),
            );
        }
        observation
    }

    /// Name of the program of the largest process.
    pub fn name(&self) -> Option<String> {
        let path = Path::new(self.executable.as_ref()?);
        Some(path.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether the allocator `name` was mapped; `None` if unknown.
    pub fn has_allocator(&self, name: &str) -> Option<bool> {
        let has_ledger = !self.allocators.is_empty() || self.executable.is_some();
        has_ledger.then(|| self.allocators.iter().any(|mapped| mapped.name == name))
    }

    /// Names of its allocators, in readable form.
    pub fn allocator_names(&self) -> String {
        let names: Vec<&str> = self.allocators.iter().map(|mapped| mapped.name.as_str()).collect();
        if names.is_empty() { "none that is known".to_owned() } else { names.join(", ") }
    }
}

/// Whether a recorder was killed before it wrote: there is no recording, or an empty one.
fn is_unwritten(recording: &Path) -> bool {
    match std::fs::metadata(recording) {
        Ok(metadata) => metadata.len() == 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Why a run counts as failed whose recording cannot be read.
fn unreadable_recording(error: &strandline_recording::Error) -> String {
    format!("its recording cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strandline_inspect::facts::{Allocator, Kernel, Target};
    use strandline_recording::{Ending, Header, ProcessEnd, Writer};

    use super::*;
    use crate::cell::{End, Measure, Subject};
    use crate::protocol::Ended;

    fn ledger(rss: u64, files: u64, allocator: &str, found_by: &str) -> Explanation {
        Explanation {
            target: Target { executable: Some(format!("/bin/{rss}")), ..Target::default() },
            kernel: Kernel {
                rss_bytes: rss,
                file_bytes: files,
                // Depends on unrelated processes, so the code must not use it.
                pss_bytes: Some(1),
                huge_bytes: 1,
                high_water_bytes: Some(2 * rss),
                ..Kernel::default()
            },
            allocators: vec![Allocator {
                name: allocator.into(),
                version: Some("2.36".into()),
                found_by: found_by.into(),
                ..Allocator::default()
            }],
            runtimes: vec![Runtime { name: "perl".into(), ..Runtime::default() }],
            ..Explanation::default()
        }
    }

    #[test]
    fn a_tree_counts_shared_pages_once_and_strangers_not_at_all() {
        let rollup = |pss_anonymous_bytes, pss_shmem_bytes| {
            Some(Counts { pss_bytes: 90, pss_anonymous_bytes, pss_shmem_bytes, ..Counts::default() })
        };
        let mut ledgers = [
            ServerLedger {
                explanation: ledger(90, 40, "glibc", "main_arena in libc.so.6"),
                rollup: rollup(20, 5),
            },
            ServerLedger {
                explanation: ledger(100, 30, "jemalloc", "symbol mallctl of the executable"),
                rollup: rollup(30, 5),
            },
        ];
        let observation = Observation::of_ledgers(&ledgers);
        assert_eq!(
            (observation.settled_bytes, observation.huge_bytes, observation.processes),
            (Some(100), Some(2), 2)
        );
        assert_eq!(
            observation.peak_bytes, None,
            "the high-water marks of two processes were not at one instant"
        );
        assert_eq!(
            (observation.executable.as_deref(), observation.name().as_deref()),
            (Some("/bin/100"), Some("100"))
        );
        assert!(observation.allocators[0].is_in_program);
        assert_eq!(
            (observation.has_allocator("jemalloc"), observation.has_allocator("glibc")),
            (Some(true), Some(false))
        );
        assert_eq!(Observation::default().has_allocator("glibc"), None);
        assert_eq!(Observation::of_ledgers(&[]).settled_bytes, None);
        let single = Observation::of_ledgers(&ledgers[..1]);
        assert_eq!((single.settled_bytes, single.peak_bytes), (Some(90), Some(180)));
        assert_eq!(single.glibc.as_deref(), Some("2.36"));
        // Linux 5.2 prints no parts of Pss.
        for unknown in [None, rollup(0, 0)] {
            ledgers[1].rollup = unknown;
            let unknown = Observation::of_ledgers(&ledgers);
            assert_eq!(unknown.settled_bytes, None, "kinds of figures are not mixed");
            assert!(unknown.failure.unwrap().contains("Pss_Anon"));
        }
    }

    #[test]
    fn an_incomplete_recording_is_no_result() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::figures::RECORDING);
        let measure =
            Measure::Recording { interval: Duration::ZERO, ledgers: String::new(), uses_snapshot: false };
        let subject = Subject { measure, ..Subject::default() };
        let observed = |records: &[Record]| {
            let header = Header { schema: strandline_recording::SCHEMA.to_owned(), ..Header::default() };
            let child = ProcessEnd { process: 1, high_water_kib: Some(7), ..ProcessEnd::default() };
            let begin = [Record::Header(Box::new(header)), Record::ProcessEnd(child)];
            let mut writer = Writer::new(std::fs::File::create(&path).unwrap()).unwrap();
            begin.iter().chain(records).for_each(|record| writer.push(record).unwrap());
            writer.flush().unwrap();
            let outcome = crate::figures::outcome(&subject, &Ended::default(), folder.path());
            Observation::of_outcome(&Outcome { recording: Some(path.clone()), ..outcome })
        };
        let cut = observed(&[]);
        assert_eq!(cut.peak_bytes, None, "the command may have held more than its child");
        assert!(cut.failure.unwrap().contains("no end"));
        let end = Ending { high_water_kib: Some(9), unsampled_processes: 1, ..Ending::default() };
        let end = Record::End(Box::new(end));
        let whole = observed(std::slice::from_ref(&end));
        assert_eq!((whole.peak_bytes, whole.failure, whole.notes.len()), (Some(9 << 10), None, 1));
        let caveat = strandline_inspect::Caveat::new("recording_lost", "", None, "the disk was full");
        let gap = Record::Caveat(CaveatRecord { at_us: 1, caveat });
        assert!(observed(&[gap, end]).failure.unwrap().contains("the disk was full"));
    }

    #[test]
    fn a_recording_that_cannot_be_opened_is_a_failure_unless_nothing_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::figures::RECORDING);
        let failure = |end| {
            let outcome =
                Outcome { end, recording: Some(path.clone()), ..Outcome::not_started(String::new()) };
            Observation::of_outcome(&outcome).failure
        };
        assert_eq!(failure(End::Exited(0)), None, "no file");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(failure(End::Exited(0)), None, "an empty file");
        std::fs::write(&path, b"not a recording").unwrap();
        assert!(failure(End::Exited(0)).unwrap().starts_with("its recording cannot be read: "));
        assert_eq!(failure(End::Exited(1)), None, "the exit status tells more");
    }

    #[test]
    fn names_in_json_are_those_of_earlier_versions() {
        let json = serde_json::to_value(Observation::default()).unwrap();
        assert_eq!(json["settled_at"], "exit");
    }

    fn recorded(high_water_kib: u64, marked_kib: Option<u64>, exit: Option<u64>) -> RecordedProcess {
        let exit = exit.map(|rss| Box::new(ledger(rss, 0, "glibc", "")));
        let mut series = Series::default();
        series.push(0, 0, high_water_kib);
        series.push(9, 9, 7);
        let exit = exit.map(|explanation| ExitLedger { explanation, at_us: u64::MAX });
        RecordedProcess { high_water_kib, marked_kib, series, exit }
    }

    #[test]
    fn a_mark_counts_only_of_the_largest_process() {
        let settled = |processes: Vec<RecordedProcess>| {
            let mut observation = Observation::default();
            observation.read_processes((0..).zip(processes).collect());
            (observation.settled_bytes, observation.settled_source, observation.name())
        };
        let shell = || recorded(2, Some(1), Some(1024));
        let script = || recorded(50, None, Some(40 << 10));
        let name = |bytes: u64| Some(bytes.to_string());
        assert_eq!(settled(vec![shell(), script()]), (Some(40 << 10), SettledSource::Exit, name(40 << 10)));
        let marked = || recorded(50, Some(30), Some(9));
        assert_eq!(settled(vec![shell(), marked()]), (Some(30 << 10), SettledSource::Mark, name(9)));
        assert_eq!(settled(vec![marked(), script()]).1, SettledSource::Mark, "of two as large the first");
        let killed = recorded(60, None, None);
        assert_eq!(settled(vec![shell(), script(), killed]), (Some(60 << 10), SettledSource::Top, None));
        assert_eq!(settled(Vec::new()), (None, SettledSource::Exit, None));
    }
}

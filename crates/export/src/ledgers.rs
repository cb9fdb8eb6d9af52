//! Takes ledgers one after another: of the process that has waited longest, as far as its budget of
//! stopped time and the exporter's share of a processor allow. A ledger ends early if its stop
//! would exceed the rest of the budget; the actual stop is counted, and what exceeds the budget is
//! paid back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strandline_inspect::Error;
use strandline_inspect::explain::{self, SnapshotMode};

use crate::LedgerOptions;
use crate::budget::{CpuBudget, StopBudget};
use crate::exchange::SurveyExchange;
use crate::page::own_processor_time;
use crate::states::{ProcessState, ProcessStates};
use crate::summary::Summary;
use strandline_survey::Survey;
use strandline_survey::figures::Figures;
use strandline_survey::select::Key;

/// Minimum time between checks whether a ledger may be taken.
const TICK: Duration = Duration::from_millis(250);
/// Interval of checks before the first survey is taken.
const FIRST_TICK: Duration = Duration::from_millis(20);
/// Part of the remaining budget that is requested: resuming a process takes time too.
const REQUESTED_PART: f64 = 0.9;
/// Part of the processor share that ledgers may use even if scrapes use all of it.
const RESERVED_PART: f64 = 0.1;
/// Part of the processor share that is aimed at: a ledger may take longer than expected.
const TARGET_PART: f64 = 0.8;
/// Processor time that is expected for the second ledger: the first does not wait, and later ones
/// pay it back.
const SECOND_LEDGER_TIME: Duration = Duration::from_millis(100);
/// Number of intervals that a process waits if the budget is too small for its ledger.
const SKIPPED_INTERVALS: u32 = 10;
/// With less anonymous memory than this, making a snapshot stops a process for longer than reading
/// it.
const MIN_SNAPSHOT_BYTES: u64 = 8 << 20;
/// Maximum time between checks whether a ledger may be taken.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The next ledger of a process is expected to stop it for this many times as long as the last one.
const EXPECTED_STOP_MARGIN: f64 = 1.2;
/// After a ledger that was cut short, the next one is expected to need this many times its stop.
const CUT_SHORT_GROWTH: f64 = 3.0;
/// A ledger that was cut short after this part of the whole budget hardly gets more time later.
const FULL_BUDGET_PART: f64 = 0.75;
/// Length of any stop. This and the next three were measured (docs/figures.md, "Pauses"), and have
/// a margin.
const BASE_STOP: Duration = Duration::from_millis(4);
/// In addition, for reading the page tables.
const PAGE_TABLE_SECONDS_PER_GIB: f64 = 0.018;
/// In addition, for reading the memory.
const READ_SECONDS_PER_GIB: f64 = 0.4;
/// In addition, for making a snapshot instead.
const SNAPSHOT_SECONDS_PER_GIB: f64 = 0.01;

/// Takes ledgers on a separate thread.
pub(crate) struct LedgerThread {
    /// State of each process.
    pub states: Arc<ProcessStates>,
    /// Where it finds the survey.
    pub exchange: Arc<SurveyExchange>,
    /// How to take ledgers.
    pub options: LedgerOptions,
    /// Rows below this share of their ledger's RSS are summed.
    pub row_share: f64,
}

/// A ledger that may be taken now.
struct Turn {
    key: Key,
    /// Since when it waits for a ledger.
    due_at: Instant,
    /// How long the process may be stopped for it; zero for not at all.
    remaining: Duration,
    snapshot: SnapshotMode,
}

impl LedgerThread {
    /// Starts the thread of an exporter that started at `exporter_started_at`.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn start(self, exporter_started_at: Instant) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("ledgers".into())
            .spawn(move || self.take_ledgers(exporter_started_at))
    }

    /// Takes ledgers until the end.
    fn take_ledgers(&self, exporter_started_at: Instant) {
        // The processor time of the start counts.
        let share = self.options.processor_share;
        let mut exporter_budget = CpuBudget::new(share * TARGET_PART, exporter_started_at, Duration::ZERO);
        let mut ledger_budget = CpuBudget::new(share * RESERVED_PART, exporter_started_at, Duration::ZERO);
        // Processor time that all ledgers took, and that the next one is expected to take.
        let (mut ledger_time, mut expected) = (Duration::ZERO, SECOND_LEDGER_TIME);
        let (mut pause, mut is_first) = (FIRST_TICK, true);
        while self.exchange.sleep(pause) {
            let now = Instant::now();
            let Some(time_used) = own_processor_time() else {
                // Without it, the budget cannot be checked.
                pause = MAX_PAUSE;
                continue;
            };
            let exporter_wait = exporter_budget.wait(now, time_used, expected);
            let wait = exporter_wait.min(ledger_budget.wait(now, ledger_time, expected));
            let Some(survey) = self.exchange.survey() else { continue };
            pause = TICK.max(wait.min(MAX_PAUSE));
            if !(wait.is_zero() || is_first) || !self.exchange.has_recent_reader() {
                continue;
            }
            if let Some(turn) = self.next_turn(&survey, now) {
                let time_before = own_processor_time();
                self.take_ledger(&turn);
                let times = time_before.zip(own_processor_time());
                let used_time = times.map_or(expected, |(before, after)| after.saturating_sub(before));
                ledger_time += used_time;
                // Recent ledgers weigh most: processes differ.
                expected = (expected + used_time) / 2;
                (pause, is_first) = (Duration::ZERO, false);
            }
        }
    }

    /// The next process to read: of those whose budget allows it, the one that has waited longest,
    /// and of new ones the largest.
    fn next_turn(&self, survey: &Survey, now: Instant) -> Option<Turn> {
        let own_pid = std::process::id().cast_signed();
        let budget = self.options.stop;
        let mut entries = self.states.entries();
        let mut longest_waiting: Option<Turn> = None;
        for process in survey.processes.iter().filter(|process| process.key.pid != own_pid) {
            let Some(entry) = entries.get_mut(&process.key).filter(|entry| entry.not_before <= now) else {
                continue;
            };
            let snapshot = self.snapshot_mode(&process.figures);
            let min_stop = shortest_stop(&process.figures);
            let (needed, remaining) = if min_stop > budget.stopped {
                // It can only be read while its threads sleep.
                (Duration::ZERO, Duration::ZERO)
            } else {
                let first_stop = || expected_first_stop(&process.figures, snapshot);
                let expected = entry.expected_stop.unwrap_or_else(first_stop);
                let needed = expected.max(min_stop).min(budget.stopped.mul_f64(REQUESTED_PART));
                (needed, entry.stops.remaining(now, budget))
            };
            let due_at = entry.not_before;
            if remaining >= needed && longest_waiting.as_ref().is_none_or(|turn| due_at < turn.due_at) {
                longest_waiting = Some(Turn { key: process.key, due_at, remaining, snapshot });
            }
        }
        longest_waiting
    }

    /// Whether to read a process from a snapshot.
    fn snapshot_mode(&self, figures: &Figures) -> SnapshotMode {
        let is_small = figures.anonymous_bytes.is_none_or(|bytes| bytes < MIN_SNAPSHOT_BYTES);
        match self.options.snapshot {
            SnapshotMode::IfPossible if is_small => SnapshotMode::IfShorter,
            requested => requested,
        }
    }

    /// Takes a ledger, and updates the state of its process.
    fn take_ledger(&self, turn: &Turn) {
        let requested = turn.remaining.mul_f64(REQUESTED_PART);
        let options = explain::Options {
            max_stop: Some(requested),
            snapshot: turn.snapshot,
            start_ticks: Some(turn.key.start_ticks),
            quiet_for: self.options.quiet_for,
            never_stops: turn.remaining.is_zero(),
            threads: Some(1),
            ..explain::Options::default()
        };
        let started_at = Instant::now();
        // A panic of a reader must not end the ledgers of the other processes.
        let outcome = catch_unwind(AssertUnwindSafe(|| explain::explain(turn.key.pid, &options)));
        let now = Instant::now();
        let max_stop = now.duration_since(started_at).min(requested);
        let (stopped, result) = match outcome {
            Ok(Ok(explanation)) => {
                let stopped =
                    Duration::try_from_secs_f64(explanation.cost.stopped_seconds).unwrap_or(requested);
                (stopped, Ok(Summary::new(&explanation, self.row_share, now)))
            }
            Ok(Err(error)) => {
                let FailedLedger { stopped, problem } = FailedLedger::new(&error, max_stop);
                (stopped, Err(problem))
            }
            Err(_) => (max_stop, Err(Some("cannot_be_read"))),
        };
        // Otherwise the exporter's memory would grow with each ledger.
        strandline_sys::own_memory::trim_heap();
        let counter = if result.is_ok() { &self.states.ledgers } else { &self.states.failures };
        counter.fetch_add(1, Ordering::Relaxed);
        self.states.overruns.fetch_add(u64::from(stopped > turn.remaining), Ordering::Relaxed);
        if let Some(entry) = self.states.entries().get_mut(&turn.key) {
            entry.stops.add(now, stopped, self.options.stop);
            entry.not_before = now + self.options.interval;
            match result {
                Ok(summary) => self.keep(entry, summary, requested, stopped),
                Err(problem) => entry.problem = problem,
            }
        }
    }

    /// Keeps a ledger, unless it is worse than the present one. It stopped its process for
    /// `stopped` of the `requested` time.
    fn keep(&self, entry: &mut ProcessState, summary: Summary, requested: Duration, stopped: Duration) {
        let now = summary.at;
        if !summary.is_cut_short {
            entry.problem = None;
            entry.expected_stop = Some(stopped.mul_f64(EXPECTED_STOP_MARGIN));
            entry.ledger = Some(summary);
            return;
        }
        let max_stop = self.options.stop.stopped;
        // No ledger of this process gets much more time than this.
        let had_all_time = requested.is_zero() || requested >= max_stop.mul_f64(FULL_BUDGET_PART);
        let has_whole_ledger = entry.ledger.as_ref().is_some_and(|ledger| !ledger.is_cut_short);
        let pause = if had_all_time { self.options.interval * SKIPPED_INTERVALS } else { Duration::ZERO };
        entry.not_before = now + pause;
        entry.expected_stop = Some(requested.mul_f64(CUT_SHORT_GROWTH).min(max_stop));
        if had_all_time {
            entry.problem = Some("stop_budget");
        }
        if !has_whole_ledger {
            entry.ledger = Some(summary);
        }
    }
}

/// Bytes in GiB.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

/// How long a process that was not stopped before may be stopped for its ledger; `None` if the part
/// of the stop that cannot be cut short exceeds the budget, so that it may not be stopped at all.
pub fn first_stop(figures: &Figures, budget: StopBudget) -> Option<Duration> {
    (shortest_stop(figures) <= budget.stopped).then(|| budget.stopped.mul_f64(REQUESTED_PART))
}

/// The part of a stop that cannot be cut short.
fn shortest_stop(figures: &Figures) -> Duration {
    Duration::from_secs_f64(PAGE_TABLE_SECONDS_PER_GIB * gib(figures.rss_bytes))
}

/// Expected stop for the first ledger of a process.
fn expected_first_stop(figures: &Figures, snapshot: SnapshotMode) -> Duration {
    let anonymous_gib = gib(figures.anonymous_bytes.unwrap_or(figures.rss_bytes));
    let seconds_per_gib = match snapshot {
        SnapshotMode::Always | SnapshotMode::IfPossible => SNAPSHOT_SECONDS_PER_GIB,
        SnapshotMode::IfShorter | SnapshotMode::Never => READ_SECONDS_PER_GIB,
    };
    BASE_STOP + shortest_stop(figures) + Duration::from_secs_f64(seconds_per_gib * anonymous_gib)
}

/// A ledger that failed.
struct FailedLedger {
    /// How long it has stopped its process; the maximum if unknown.
    stopped: Duration,
    /// Label of the reason; `None` if the process is gone, or if its next turn may succeed.
    problem: Option<&'static str>,
}

impl FailedLedger {
    fn new(error: &Error, max_stop: Duration) -> Self {
        let (stopped, problem) = match error {
            Error::NoSuchProcess { .. } | Error::Zombie { .. } => (Duration::ZERO, None),
            Error::Ended { .. } | Error::Replaced { .. } => (max_stop, None),
            Error::Permission { .. } => (Duration::ZERO, Some("permission")),
            Error::Traced { .. } => (Duration::ZERO, Some("traced")),
            Error::LeaderEnded { .. } => (Duration::ZERO, Some("main_thread_ended")),
            Error::DidNotStop { seconds, .. } => {
                let stopped = Duration::try_from_secs_f64(*seconds).unwrap_or(max_stop);
                (stopped.max(max_stop), Some("did_not_stop"))
            }
            Error::NeedsStop { .. } => (Duration::ZERO, Some("stop_budget")),
            Error::NoSnapshot { stopped_time, .. } => (*stopped_time, Some("no_photograph")),
            Error::DoesNotAddUp { .. } | Error::Overlap { .. } => (max_stop, Some("does_not_add_up")),
            Error::KernelThread { .. } | Error::Thread { .. } | Error::Myself { .. } => {
                (Duration::ZERO, Some("cannot_be_read"))
            }
            Error::Io { .. } | Error::File { .. } => (max_stop, Some("cannot_be_read")),
        };
        Self { stopped, problem }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::sync::atomic::Ordering;

    use strandline_survey::Surveyor;
    use strandline_survey::select::{Selection, SelectionRequest};

    use super::*;
    use crate::budget::StopBudget;

    /// A process that waits for input that does not come, and ends with the test.
    fn idle_process() -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Before its exec it shares the memory of this process.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn a_stop_is_an_overrun_exactly_where_it_is_longer_than_it_was_allowed() {
        let mut child = idle_process();
        let requested =
            SelectionRequest { pids: vec![child.id().cast_signed()], ..SelectionRequest::default() };
        let survey = Surveyor::default().take(&Selection::new(requested).unwrap(), 1);
        let key = survey.processes[0].key;
        let states = Arc::new(ProcessStates::default());
        states.follow(&survey);
        let plenty = Duration::from_secs(600);
        let options = LedgerOptions {
            stop: StopBudget { stopped: plenty, period: plenty * 10 },
            processor_share: 1.0,
            interval: Duration::from_secs(1),
            snapshot: SnapshotMode::Never,
            quiet_for: Duration::ZERO,
        };
        let exchange = Arc::new(SurveyExchange::new().unwrap());
        let ledger_thread = LedgerThread { states: Arc::clone(&states), exchange, options, row_share: 0.01 };
        let total = || states.entries().get(&key).map(|entry| entry.stops.total()).unwrap();
        let mut overruns = 0;
        let due_at = Instant::now();
        for allowed in [plenty, Duration::from_nanos(1), plenty] {
            let before = total();
            ledger_thread.take_ledger(&Turn {
                key,
                due_at,
                remaining: allowed,
                snapshot: SnapshotMode::Never,
            });
            let stopped = total() - before;
            assert!(stopped > Duration::ZERO);
            overruns += u64::from(stopped > allowed);
            assert_eq!(states.overruns.load(Ordering::Relaxed), overruns, "{stopped:?} of {allowed:?}");
        }
        assert!(overruns > 0, "no stop is as short as a nanosecond");
        // Another process with the same id.
        let (failures, before) = (states.failures.load(Ordering::Relaxed), total());
        let other_key = Key { start_ticks: key.start_ticks + 1, ..key };
        ledger_thread.take_ledger(&Turn {
            key: other_key,
            due_at,
            remaining: plenty,
            snapshot: SnapshotMode::Never,
        });
        assert_eq!((states.failures.load(Ordering::Relaxed), total()), (failures + 1, before));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_whose_shortest_stop_exceeds_the_budget_is_only_read_while_it_sleeps() {
        let mut child = idle_process();
        let requested =
            SelectionRequest { pids: vec![child.id().cast_signed()], ..SelectionRequest::default() };
        let mut survey = Surveyor::default().take(&Selection::new(requested).unwrap(), 1);
        survey.processes[0].figures.rss_bytes = 2 << 30;
        let key = survey.processes[0].key;
        let states = Arc::new(ProcessStates::default());
        states.follow(&survey);
        let options = LedgerOptions {
            stop: StopBudget { stopped: Duration::from_millis(20), period: Duration::from_secs(60) },
            processor_share: 1.0,
            interval: Duration::from_secs(1),
            snapshot: SnapshotMode::IfPossible,
            quiet_for: Duration::ZERO,
        };
        let exchange = Arc::new(SurveyExchange::new().unwrap());
        let thread = LedgerThread { states: Arc::clone(&states), exchange, options, row_share: 0.01 };
        let turn = thread.next_turn(&survey, Instant::now()).unwrap();
        assert_eq!(turn.remaining, Duration::ZERO);
        // Reading without a stop is switched off: nothing may be tried in its place.
        thread.take_ledger(&turn);
        let entry = states.entries()[&key].clone();
        assert_eq!((entry.problem, entry.stops.total()), (Some("stop_budget"), Duration::ZERO));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_a_stop_that_is_not_allowed_is_the_budgets_fault() {
        let source = std::io::Error::other("broken");
        let failed_read = Error::Io { pid: 1, what: "reading smaps".to_owned(), source };
        let problem = |error: &Error| FailedLedger::new(error, Duration::ZERO).problem;
        assert_eq!(problem(&failed_read), Some("cannot_be_read"));
        assert_eq!(problem(&Error::NeedsStop { pid: 1 }), Some("stop_budget"));
    }

    #[test]
    fn what_cannot_be_cut_short_is_at_least_what_was_measured() {
        // explain --max-stop 1ms --quiet-for 0 --snapshot=never: docs/figures.md, "Pauses".
        for (mib, measured_ms) in [(256, 7.7), (1024, 19.9), (2048, 34.9)] {
            let figures = Figures { rss_bytes: mib << 20, ..Figures::default() };
            let expected = (BASE_STOP + shortest_stop(&figures)).as_secs_f64() * 1e3;
            assert!((measured_ms..2.0 * measured_ms).contains(&expected), "{mib} MiB: {expected} ms");
        }
    }
}

//! Runs a command under limits, with an executor and a journal. Runs in the journal of an
//! interrupted squeeze are not repeated; as the same results lead to the same next run, the squeeze
//! resumes where it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use strandline_recording::{Reader, Record};

use super::failure::SuccessCriteria;
use super::search::LimitRunner;
use super::{LimitKind, LimitedRun};
use crate::cell::{End, Measure, Outcome, Subject};
use crate::executor::{Executor, StopReason};
use crate::journal::Journal;
use strandline_recorder::Limits;

/// Variable with the end of the run for the `--success` command: its exit status, or 128 plus the
/// signal.
pub const STATUS_VARIABLE: &str = "STRANDLINE_STATUS";
/// A run hangs if it takes longer than this multiple of the time without a limit, plus a constant
/// for very short runs.
const HANG_FACTOR: f64 = 10.0;
/// See [`HANG_FACTOR`].
const HANG_EXTRA_SECONDS: f64 = 10.0;
/// Status by which timeout(1) reports a timeout.
const TIMEOUT_STATUS: i32 = 124;
/// Status by which shells report a command that was not found.
const NOT_FOUND_STATUS: i32 = 127;
/// Status by which shells report a signal, whose number is added.
const SIGNAL_STATUS: i32 = 128;
/// Sampling interval of the run that measures the peak.
const INTERVAL: Duration = Duration::from_millis(1);

/// Runs a command under limits.
pub struct Runner<'a> {
    kind: LimitKind,
    /// The command, without limits. Its timeout, if any, was set by the user.
    subject: Subject,
    /// Shell command that judges runs.
    success: Option<String>,
    executor: &'a mut dyn Executor,
    journal: &'a mut Journal,
    /// How often each subject was run, by name.
    rounds: BTreeMap<String, u32>,
    /// Timeout of a run, once known.
    timeout: Option<Duration>,
    has_timed_out: bool,
}

impl<'a> Runner<'a> {
    /// Runs `subject` under limits of this kind.
    pub fn new(
        kind: LimitKind,
        subject: Subject,
        success: Option<String>,
        executor: &'a mut dyn Executor,
        journal: &'a mut Journal,
    ) -> Self {
        let timeout = subject.timeout;
        let rounds = BTreeMap::new();
        Self { kind, subject, success, executor, journal, rounds, timeout, has_timed_out: false }
    }

    /// Runs a subject, or takes the outcome from the journal.
    fn outcome(&mut self, subject: &Subject) -> Result<Outcome, StopReason> {
        let runs = self.rounds.entry(subject.name.clone()).or_default();
        let round = *runs;
        *runs = runs.saturating_add(1);
        if let Some(outcome) = self.journal.outcome(&subject.name, round) {
            return Ok(outcome.clone());
        }
        let outcome = self.executor.run(subject, &self.journal.cell(&subject.name, round))?;
        self.journal.keep(&subject.name, round, &outcome)?;
        Ok(outcome)
    }

    /// The first run, recorded to find the peak; `None` if it could not be recorded.
    fn recorded_run(&mut self) -> Result<Option<Outcome>, StopReason> {
        let measure =
            Measure::Recording { interval: INTERVAL, ledgers: "none".to_owned(), uses_snapshot: false };
        let subject = Subject { name: "watched".to_owned(), measure, ..self.subject.clone() };
        let outcome = self.outcome(&subject)?;
        Ok(Some(outcome).filter(|outcome| outcome.recording.is_some()))
    }

    /// Runs the `--success` command and returns how it ended.
    fn run_success_command(
        &mut self,
        command: &str,
        name: &str,
        outcome: &Outcome,
    ) -> Result<End, StopReason> {
        let status = match outcome.end {
            End::Exited(status) => i32::from(status),
            End::Signalled(signal) => SIGNAL_STATUS + signal,
            End::TimedOut => TIMEOUT_STATUS,
            End::NotStarted(_) => NOT_FOUND_STATUS,
        };
        let mut environment = self.subject.environment.clone();
        environment.push((STATUS_VARIABLE.to_owned(), Some(status.to_string())));
        let subject = Subject {
            name: format!("{name}, --success"),
            command: ["sh", "-c", command].map(str::to_owned).to_vec(),
            environment,
            directory: self.subject.directory.clone(),
            stdin: outcome.stdout.clone(),
            timeout: self.timeout,
            ..Subject::default()
        };
        match self.outcome(&subject)?.end {
            End::NotStarted(why) => Err(StopReason::Failed(format!("the --success command: {why}"))),
            end => Ok(end),
        }
    }
}

impl LimitRunner for Runner<'_> {
    /// Makes one run. The first run that exceeds a timeout that strandline chose is repeated: on a
    /// machine that stalled for a moment, the limit was not the cause.
    fn run(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason> {
        let run = self.run_once(limit_bytes)?;
        let is_first_timeout =
            run.failure.as_ref().is_some_and(|failure| failure.timed_out) && !self.has_timed_out;
        self.has_timed_out |= is_first_timeout;
        if !is_first_timeout || self.subject.timeout.is_some() {
            return Ok(run);
        }
        Ok(LimitedRun { repeats_timeout: true, ..self.run_once(limit_bytes)? })
    }
}

impl Runner<'_> {
    /// Makes one run; the first one is recorded, if a recording shows the peak.
    fn run_once(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason> {
        let name = limit_bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"));
        let is_first = self.rounds.is_empty();
        // For control groups the first guess is the high-water mark, which every run provides.
        let recorded = if is_first && self.kind != LimitKind::Cgroup { self.recorded_run()? } else { None };
        let is_recorded = recorded.is_some();
        let outcome = match recorded {
            Some(outcome) => outcome,
            None => {
                let subject = Subject {
                    name: name.clone(),
                    limits: limit_bytes.map_or_else(Limits::default, |bytes| self.kind.limits(bytes)),
                    timeout: self.timeout,
                    ..self.subject.clone()
                };
                self.outcome(&subject)?
            }
        };
        if self.timeout.is_none()
            && let Some(wall) = outcome.figures.wall_seconds
        {
            let timeout = Duration::try_from_secs_f64(HANG_EXTRA_SECONDS + HANG_FACTOR * wall);
            // In whole seconds, for readable messages.
            self.timeout = timeout.ok().map(|timeout| Duration::from_secs(timeout.as_secs()));
        }
        let success = self.success.clone();
        let verdict =
            success.map(|command| self.run_success_command(&command, &name, &outcome)).transpose()?;
        let kind = limit_bytes.map(|_| self.kind);
        let criteria = SuccessCriteria { kind, timeout: self.timeout, verdict };
        let sampled_bytes = outcome.recording.as_deref().and_then(|path| sampled_peak(path, self.kind));
        let high_water = outcome.figures.high_water_bytes;
        // Samples miss peaks shorter than their interval; resident memory is also address space.
        let peak_bytes = match self.kind {
            LimitKind::Cgroup => high_water,
            LimitKind::AddressSpace if sampled_bytes.is_some() => sampled_bytes.max(high_water),
            LimitKind::AddressSpace | LimitKind::Data => sampled_bytes,
        };
        let failure = criteria.failure(&outcome);
        let Outcome { figures, leftover_processes, swap_problem, .. } = outcome;
        Ok(LimitedRun {
            limit_bytes,
            failure,
            figures,
            peak_bytes,
            repeats_timeout: false,
            is_recorded,
            leftover_processes,
            swap_problem,
        })
    }
}

/// The largest address space, or data size, of one process at any sample of a recording; `None` if
/// it cannot be read to its end.
fn sampled_peak(path: &Path, kind: LimitKind) -> Option<u64> {
    let mut reader = Reader::open(path).ok()?;
    let mut max_kib = None;
    while let Some(record) = reader.next_record().ok()? {
        let Record::Samples(block) = record else { continue };
        for run in block.runs() {
            let kib = if kind == LimitKind::Data { run.sample.data_kib } else { run.sample.virtual_kib };
            max_kib = max_kib.max(Some(kib));
        }
    }
    max_kib.map(|kib: u64| kib.saturating_mul(1024))
}

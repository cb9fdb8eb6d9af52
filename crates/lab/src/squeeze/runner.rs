//! Runs a command under limits, by an executor and with a journal: what an earlier, interrupted squeeze has run is
//! not run again, and as the same runs lead to the same next one, it goes on where it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use strandline_recording::{Reader, Record};

use super::failure::Judge;
use super::search::Trial;
use super::{Kind, Tried};
use crate::cell::{End, Measure, Outcome, Subject};
use crate::executor::{Executor, Stopped};
use crate::journal::Journal;
use strandline_recorder::Limits;

/// The variable that tells the `--success` command how the run ended: its exit status, or 128 and the signal.
pub const STATUS_VARIABLE: &str = "STRANDLINE_STATUS";
/// A run that takes so many times as long as without a limit hangs,
const HUNG_TIMES: f64 = 10.0;
/// and this much longer, for those that are done in no time.
const HUNG_SECONDS: f64 = 10.0;
/// Between two samples of the run that shows what the command holds.
const INTERVAL: Duration = Duration::from_millis(1);

/// Runs a command under limits.
pub struct Runner<'a> {
    /// What is limited.
    pub kind: Kind,
    /// The command, without limits. Its timeout, where it has one, is the user's.
    pub subject: Subject,
    /// The shell command that judges runs.
    pub success: Option<String>,
    /// Where runs are made.
    pub executor: &'a mut dyn Executor,
    /// Where they are kept.
    pub journal: &'a mut Journal,
    state: State,
}

#[derive(Default)]
struct State {
    /// How often each subject was run.
    rounds: BTreeMap<String, u32>,
    /// What a run may take, once that is known.
    timeout: Option<Duration>,
}

impl<'a> Runner<'a> {
    /// Runs `subject` under limits of this kind.
    pub fn new(
        kind: Kind,
        subject: Subject,
        success: Option<String>,
        executor: &'a mut dyn Executor,
        journal: &'a mut Journal,
    ) -> Self {
        let state = State { timeout: subject.timeout, ..State::default() };
        Self { kind, subject, success, executor, journal, state }
    }

    /// Runs a subject, or takes what is known of that run.
    fn outcome(&mut self, subject: &Subject) -> Result<Outcome, Stopped> {
        let round = self.state.rounds.entry(subject.name.clone()).or_default();
        let this = *round;
        *round = round.saturating_add(1);
        if let Some(known) = self.journal.outcome(&subject.name, this) {
            return Ok(known.clone());
        }
        let outcome = self.executor.run(subject, &self.journal.cell(&subject.name, this))?;
        self.journal.keep(&subject.name, this, &outcome).map_err(Stopped::Failed)?;
        Ok(outcome)
    }

    /// The first run, watched for what it holds; `None` where it could not be watched.
    fn watched(&mut self) -> Result<Option<Outcome>, Stopped> {
        let measure = Measure::Recording { interval: INTERVAL, ledgers: "none".to_owned(), snapshot: false };
        let subject = Subject { name: "watched".to_owned(), measure, ..self.subject.clone() };
        let outcome = self.outcome(&subject)?;
        Ok(Some(outcome).filter(|outcome| outcome.recording.is_some()))
    }

    /// Asks the `--success` command: the status it ended with, `None` where it did not end by itself.
    fn ask(&mut self, command: &str, name: &str, outcome: &Outcome) -> Result<Option<u8>, Stopped> {
        let status = match outcome.end {
            End::Exited(status) => i32::from(status),
            End::Signalled(signal) => 128 + signal,
            // As timeout(1) and a shell put them.
            End::TimedOut => 124,
            End::NotStarted(_) => 127,
        };
        let mut environment = self.subject.environment.clone();
        environment.push((STATUS_VARIABLE.to_owned(), Some(status.to_string())));
        let subject = Subject {
            name: format!("{name}, --success"),
            command: ["sh", "-c", command].map(str::to_owned).to_vec(),
            environment,
            directory: self.subject.directory.clone(),
            stdin: outcome.stdout.clone(),
            timeout: self.state.timeout,
            ..Subject::default()
        };
        match self.outcome(&subject)?.end {
            End::Exited(status) => Ok(Some(status)),
            End::NotStarted(why) => Err(Stopped::Failed(format!("the --success command: {why}"))),
            End::Signalled(_) | End::TimedOut => Ok(None),
        }
    }
}

impl Trial for Runner<'_> {
    fn run(&mut self, limit_bytes: Option<u64>) -> Result<Tried, Stopped> {
        let name = limit_bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"));
        let is_first = self.state.rounds.is_empty();
        // A group's first guess is the high-water mark, which every run tells.
        let watched = if is_first && self.kind != Kind::Cgroup { self.watched()? } else { None };
        let is_recorded = watched.is_some();
        let outcome = match watched {
            Some(outcome) => outcome,
            None => {
                let subject = Subject {
                    name: name.clone(),
                    limits: limit_bytes.map_or_else(Limits::default, |bytes| self.kind.limits(bytes)),
                    timeout: self.state.timeout,
                    ..self.subject.clone()
                };
                self.outcome(&subject)?
            }
        };
        if self.state.timeout.is_none()
            && let Some(wall) = outcome.figures.wall_seconds
        {
            let most = Duration::try_from_secs_f64(HUNG_SECONDS + HUNG_TIMES * wall);
            // In whole seconds, so that it reads well.
            self.state.timeout = most.ok().map(|most| Duration::from_secs(most.as_secs()));
        }
        let success = self.success.clone();
        let verdict = success.map(|command| self.ask(&command, &name, &outcome)).transpose()?;
        let kind = limit_bytes.map(|_| self.kind);
        let judge = Judge { kind, timeout: self.state.timeout, verdict };
        let seen = outcome.recording.as_deref().and_then(|path| peak(path, self.kind));
        let high_water = outcome.figures.high_water_bytes;
        // Samples miss what was held for less than their interval; what was resident had addresses too.
        let peak_bytes = match self.kind {
            Kind::Cgroup => high_water,
            Kind::AddressSpace if seen.is_some() => seen.max(high_water),
            Kind::AddressSpace | Kind::Data => seen,
        };
        let failure = judge.failure(&outcome);
        Ok(Tried { limit_bytes, failure, figures: outcome.figures, peak_bytes, is_recorded })
    }
}

/// The most address space, or data, that one process of a recording had at a sample.
fn peak(path: &Path, kind: Kind) -> Option<u64> {
    let mut reader = Reader::open(path).ok()?;
    let mut most_kib = None;
    while let Ok(Some(record)) = reader.next_record() {
        let Record::Samples(block) = record else { continue };
        for run in block.runs() {
            let kib = if kind == Kind::Data { run.sample.data_kib } else { run.sample.virtual_kib };
            most_kib = most_kib.max(Some(kib));
        }
    }
    most_kib.map(|kib: u64| kib.saturating_mul(1024))
}

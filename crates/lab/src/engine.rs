//! Runs each subject once in every round that it takes part in, in an order drawn anew for each
//! round, so that drift (temperature, neighbours, caches) affects all subjects equally and figures
//! of one round can be compared as pairs.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::cell::{Outcome, Subject};
use super::executor::{Executor, StopReason};
use super::journal::Journal;
use super::remote::TaskCounts;
use super::remote_engine;

/// Multiplier that spreads the numbers of rounds over all bits of a seed: 2^64 divided by the
/// golden ratio, as in Fibonacci hashing.
const SEED_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// An impossible state: no thread of the lab panics.
const THREAD_PANICKED: &str = "a thread panicked";

/// The subjects of a lab, and how often they run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The compared subjects.
    pub subjects: Vec<Subject>,
    /// Number of leading rounds whose figures do not count.
    pub warm_up: u32,
    /// Minimum number of counted rounds.
    pub min_rounds: u32,
    /// Maximum number of counted rounds.
    pub max_rounds: u32,
    /// Seed for the order of each round.
    pub seed: u64,
}

/// How the lab continues after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRun {
    /// Continue.
    Continue,
    /// Do not run this subject again.
    Drop,
    /// Run nothing more.
    Stop,
}

/// Progress of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Finished runs, warm-ups included.
    pub finished_runs: usize,
    /// Upper bound of the number of runs; those of dropped subjects stay in it.
    pub max_runs: usize,
    /// The subject whose run ended last.
    pub subject: usize,
    /// Estimated time for the remaining runs; `None` as long as all finished ones are from the
    /// journal.
    pub remaining: Option<Duration>,
    /// Rounds under way, if other machines run rounds.
    pub tasks: Option<TaskCounts>,
}

/// Outcomes of the runs of a lab.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// By subject and counted round; `None` if the subject was not run.
    pub outcomes: Vec<Vec<Option<Outcome>>>,
    /// Whether the judge stopped the lab after a run.
    pub was_stopped: bool,
}

/// Judges each run and decides how the lab continues.
pub trait Judge {
    /// Called after each run; `round` is `None` if the run does not count.
    fn run_ended(&mut self, subject: usize, round: Option<u32>, outcome: &Outcome) -> AfterRun;
    /// Whether the rounds so far suffice.
    fn has_enough_rounds(&mut self, results: &Results) -> bool;
}

/// A subject whose turn it is in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledRun {
    /// Index of the subject in the plan.
    pub(super) subject: usize,
    /// Number of the round, from 0, warm-ups first.
    pub(super) round: u32,
}

/// Runs `plan` on `executors`, at least one, with one run on each at a time. `show_progress` is
/// called when runs have ended or were found in the journal, and when the state of rounds on other
/// machines is known.
///
/// # Errors
/// [`StopReason`]; the finished runs are in the journal.
pub fn run_plan(
    plan: &Plan,
    executors: &mut [Box<dyn Executor>],
    journal: &mut Journal,
    judge: &mut (dyn Judge + Send),
    show_progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Results, StopReason> {
    let results = Results { outcomes: vec![Vec::new(); plan.subjects.len()], was_stopped: false };
    let rounds = plan.warm_up.saturating_add(plan.max_rounds);
    let max_subject_runs = |subject: &Subject| {
        plan.warm_up.saturating_add(subject.rounds.unwrap_or(plan.max_rounds).min(plan.max_rounds)) as usize
    };
    let max_runs = plan.subjects.iter().map(max_subject_runs).fold(0, usize::saturating_add);
    let mut lab = Lab {
        plan,
        journal,
        judge,
        show_progress,
        results,
        is_dropped: vec![false; plan.subjects.len()],
        progress: Progress { max_runs, ..Progress::default() },
        started_at: Instant::now(),
        new_runs: 0,
    };
    // A lab with remote rounds has one executor: the others would have nothing to run.
    if let [executor] = &mut *executors
        && let Some(remote) = executor.remote()
    {
        remote_engine::run(&mut lab, remote)?;
        return Ok(lab.results);
    }
    for round in 0..rounds {
        lab.open_round(round);
        let turns = lab.order(round);
        lab.run_round(&turns, executors)?;
        if lab.is_finished_after(round) {
            break;
        }
    }
    Ok(lab.results)
}

/// A lab while it runs.
pub(super) struct Lab<'a> {
    pub(super) plan: &'a Plan,
    pub(super) journal: &'a mut Journal,
    pub(super) judge: &'a mut (dyn Judge + Send),
    pub(super) show_progress: &'a (dyn Fn(&Progress) + Sync),
    pub(super) results: Results,
    /// For each subject, whether the judge dropped it.
    is_dropped: Vec<bool>,
    pub(super) progress: Progress,
    /// When this process started the plan.
    started_at: Instant,
    /// Runs that are not from the journal.
    pub(super) new_runs: u32,
}

struct DueRun<'a> {
    turn: ScheduledRun,
    subject: &'a Subject,
    folder: PathBuf,
}

/// What the executors of a round share.
struct SharedRound<'r, 'a> {
    lab: &'r mut Lab<'a>,
    /// The turns that no executor has taken.
    turns: std::slice::Iter<'r, ScheduledRun>,
}

impl<'a> Lab<'a> {
    /// Makes room for the outcome of each subject in `round`, if the round counts.
    pub(super) fn open_round(&mut self, round: u32) {
        if round >= self.plan.warm_up {
            self.results.outcomes.iter_mut().for_each(|outcomes| outcomes.push(None));
        }
    }

    pub(super) fn is_finished_after(&mut self, round: u32) -> bool {
        let counted_rounds = (round + 1).saturating_sub(self.plan.warm_up);
        self.results.was_stopped
            || counted_rounds >= self.plan.min_rounds && self.judge.has_enough_rounds(&self.results)
    }

    /// The turns of a round, in the order drawn from its seed.
    pub(super) fn order(&self, round: u32) -> Vec<ScheduledRun> {
        let mut subjects: Vec<usize> = (0..self.plan.subjects.len()).collect();
        let seed = self.plan.seed ^ u64::from(round).wrapping_add(1).wrapping_mul(SEED_FACTOR);
        fastrand::Rng::with_seed(seed).shuffle(&mut subjects);
        let counted_round = round.saturating_sub(self.plan.warm_up);
        let takes_part = |&subject: &usize| {
            let rounds = self.plan.subjects.get(subject).and_then(|subject| subject.rounds);
            rounds.is_none_or(|rounds| counted_round < rounds)
        };
        subjects.into_iter().filter(takes_part).map(|subject| ScheduledRun { subject, round }).collect()
    }

    /// Makes the runs of a round that are not in the journal.
    fn run_round(
        &mut self,
        turns: &[ScheduledRun],
        executors: &mut [Box<dyn Executor>],
    ) -> Result<(), StopReason> {
        let mut missing_turns = Vec::new();
        for &turn in turns {
            if !self.take_from_journal(turn) {
                missing_turns.push(turn);
            }
        }
        if let [executor] = executors {
            for turn in missing_turns {
                if let Some(DueRun { subject, folder, .. }) = self.due_run(turn) {
                    let outcome = executor.run(subject, &folder)?;
                    self.store_run(turn, outcome)?;
                }
            }
            return Ok(());
        }
        self.run_concurrently(&missing_turns, executors)
    }

    /// Runs turns concurrently: each executor takes the next turn, once all have a thread. After a
    /// failure of one no further turn is taken.
    fn run_concurrently(
        &mut self,
        turns: &[ScheduledRun],
        executors: &mut [Box<dyn Executor>],
    ) -> Result<(), StopReason> {
        let shared = Mutex::new(SharedRound { lab: self, turns: turns.iter() });
        std::thread::scope(|scope| {
            let run_turns = |executor: &mut Box<dyn Executor>| -> Result<(), StopReason> {
                loop {
                    let due_run = {
                        let mut shared = shared.lock().map_err(|_| internal_error(THREAD_PANICKED))?;
                        let SharedRound { lab, turns } = &mut *shared;
                        turns.find_map(|&turn| lab.due_run(turn))
                    };
                    let Some(DueRun { turn, subject, folder }) = due_run else { return Ok(()) };
                    let run = executor.run(subject, &folder);
                    let mut shared = shared.lock().map_err(|_| internal_error(THREAD_PANICKED))?;
                    let stored = run.and_then(|outcome| shared.lab.store_run(turn, outcome));
                    if stored.is_err() {
                        shared.turns = [].iter();
                        return stored;
                    }
                }
            };
            let start =
                |executor| std::thread::Builder::new().spawn_scoped(scope, move || run_turns(executor));
            // Workers wait for the lock: with too few threads the round fails before its first run.
            let mut starting = shared.lock().map_err(|_| internal_error(THREAD_PANICKED))?;
            let workers: Vec<_> = executors.iter_mut().map(start).collect();
            if workers.iter().any(Result::is_err) {
                starting.turns = [].iter();
            }
            drop(starting);
            let finish = |worker: std::io::Result<ScopedJoinHandle<'_, _>>| match worker {
                Ok(worker) => worker.join().unwrap_or_else(|_| Err(internal_error(THREAD_PANICKED))),
                Err(error) => Err(StopReason::Failed(format!("no thread can be started: {error}"))),
            };
            // All are joined: the scope panics on a panic of a thread that was not.
            let results: Vec<_> = workers.into_iter().map(finish).collect();
            results.into_iter().collect()
        })
    }

    /// The run of a turn, if it is still to be made.
    fn due_run(&self, turn: ScheduledRun) -> Option<DueRun<'a>> {
        let subject = self.plan.subjects.get(turn.subject).filter(|_| self.is_due(turn))?;
        Some(DueRun { turn, subject, folder: self.journal.cell(&subject.name, turn.round) })
    }

    pub(super) fn is_due(&self, turn: ScheduledRun) -> bool {
        !self.results.was_stopped && self.is_dropped.get(turn.subject) == Some(&false)
    }

    /// Takes the outcome of a run from the journal, if an earlier process ran it. True if `turn`
    /// needs no run.
    fn take_from_journal(&mut self, turn: ScheduledRun) -> bool {
        let Some(subject) = self.plan.subjects.get(turn.subject) else { return true };
        if !self.is_due(turn) {
            return true;
        }
        let Some(outcome) = self.journal.outcome(&subject.name, turn.round).cloned() else { return false };
        self.judge_run(turn, outcome);
        self.report_progress(turn.subject, 1);
        true
    }

    /// Stores a finished run in the journal and has it judged.
    fn store_run(&mut self, turn: ScheduledRun, outcome: Outcome) -> Result<(), StopReason> {
        let subject = self.plan.subjects.get(turn.subject);
        let subject = subject.ok_or_else(|| internal_error("a turn has no subject"))?;
        self.journal.keep(&subject.name, turn.round, &outcome)?;
        self.new_runs += 1;
        self.judge_run(turn, outcome);
        self.report_progress(turn.subject, 1);
        Ok(())
    }

    /// Has the judge see a run, follows its decision, and adds the outcome to the results.
    pub(super) fn judge_run(&mut self, turn: ScheduledRun, outcome: Outcome) {
        let counted_round = turn.round.checked_sub(self.plan.warm_up);
        match self.judge.run_ended(turn.subject, counted_round, &outcome) {
            AfterRun::Continue => {}
            AfterRun::Drop => {
                if let Some(is_dropped) = self.is_dropped.get_mut(turn.subject) {
                    *is_dropped = true;
                }
            }
            AfterRun::Stop => self.results.was_stopped = true,
        }
        let outcomes = self.results.outcomes.get_mut(turn.subject);
        if let (Some(round), Some(outcomes)) = (counted_round, outcomes)
            && let Some(stored) = outcomes.get_mut(round as usize)
        {
            *stored = Some(outcome);
        }
    }

    /// Reports that `runs` more runs are finished, the last one of `subject`.
    pub(super) fn report_progress(&mut self, subject: usize, runs: usize) {
        self.progress.finished_runs += runs;
        self.progress.subject = subject;
        let remaining_runs = self.progress.max_runs.saturating_sub(self.progress.finished_runs);
        let remaining_runs = u32::try_from(remaining_runs).unwrap_or(u32::MAX);
        let time_per_run = self.started_at.elapsed().checked_div(self.new_runs);
        self.progress.remaining = time_per_run.map(|time| time.saturating_mul(remaining_runs));
        (self.show_progress)(&self.progress);
    }
}

/// The error of a lab in the impossible state `what`.
fn internal_error(what: &str) -> StopReason {
    StopReason::Failed(format!("an internal error stopped the lab: {what}; please report this"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::journal::JournalOptions;
    use strandline_sys::spawn::{Resource, Rlimit};

    thread_local! {
        /// Dropped at the end of its thread.
        static UNTIL_THREAD_ENDS: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
    }

    /// An executor that runs nothing.
    enum TestExecutor {
        /// Fails, and drops the sender as its thread ends.
        Fails(Option<Sender<()>>),
        /// Counts its runs, each of which lasts until the sender was dropped.
        Waits(Receiver<()>, Arc<AtomicU32>),
        /// Counts its runs.
        Counts(Arc<AtomicU32>),
    }

    impl Executor for TestExecutor {
        fn run(&mut self, _: &Subject, _: &Path) -> Result<Outcome, StopReason> {
            match self {
                Self::Fails(sender) => {
                    UNTIL_THREAD_ENDS.set(sender.take());
                    Err(StopReason::Failed("lost".to_owned()))
                }
                Self::Waits(receiver, runs) => {
                    assert!(receiver.recv().is_err());
                    runs.fetch_add(1, Ordering::Relaxed);
                    Ok(Outcome::not_started(String::new()))
                }
                Self::Counts(runs) => {
                    runs.fetch_add(1, Ordering::Relaxed);
                    Ok(Outcome::not_started(String::new()))
                }
            }
        }

        fn no_counters_reason(&self) -> Option<String> {
            None
        }
    }

    struct TestJudge;

    impl Judge for TestJudge {
        fn run_ended(&mut self, _: usize, _: Option<u32>, _: &Outcome) -> AfterRun {
            AfterRun::Continue
        }

        fn has_enough_rounds(&mut self, _: &Results) -> bool {
            false
        }
    }

    /// Runs one round of nine subjects on `executors`.
    fn run_round(mut executors: Vec<Box<dyn Executor>>) -> Result<Results, StopReason> {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions { folder: Some(folder.path().join("lab")), is_fresh: false };
        let mut journal = Journal::open("compare", &"x", &options).unwrap();
        let subject = |number: u32| Subject { name: number.to_string(), ..Subject::default() };
        let subjects = (0..9).map(subject).collect();
        let plan = Plan { subjects, warm_up: 0, min_rounds: 1, max_rounds: 1, seed: 1 };
        run_plan(&plan, &mut executors, &mut journal, &mut TestJudge, &|_| {})
    }

    #[test]
    fn no_turn_is_taken_after_a_failure() {
        let (sender, receiver) = channel();
        let runs = Arc::new(AtomicU32::new(0));
        let result = run_round(vec![
            Box::new(TestExecutor::Fails(Some(sender))),
            Box::new(TestExecutor::Waits(receiver, runs.clone())),
        ]);
        assert_eq!(result.unwrap_err(), StopReason::Failed("lost".to_owned()));
        let runs = runs.load(Ordering::Relaxed);
        assert!(runs <= 1, "{runs} runs, of which all but one began after the failure");
    }

    #[test]
    fn no_turn_is_taken_unless_each_executor_has_a_thread() {
        const IS_LIMITED: &str = "STRANDLINE_TEST_IS_LIMITED";
        const STACK_BYTES: u64 = 1 << 30;
        if std::env::var_os(IS_LIMITED).is_none() {
            // The limit is one of a whole process.
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "engine::tests::no_turn_is_taken_unless_each_executor_has_a_thread";
            child.args(["--exact", name, "--test-threads=1"]).env(IS_LIMITED, "1");
            let output = child.env("RUST_MIN_STACK", STACK_BYTES.to_string()).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        // One stack fits, a second one does not.
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let limits = Resource::AddressSpace.get().unwrap();
        let soft = pages * 4096 + STACK_BYTES + STACK_BYTES / 2;
        Resource::AddressSpace.set(Rlimit { soft, ..limits }).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counts = || -> Box<dyn Executor> { Box::new(TestExecutor::Counts(runs.clone())) };
        let result = run_round(vec![counts(), counts()]);
        assert!(matches!(&result, Err(StopReason::Failed(text)) if text.contains("no thread")), "{result:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }
}

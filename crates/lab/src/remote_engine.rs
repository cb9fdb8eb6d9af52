//! Runs rounds on other machines: requests many at a time, stores them as they finish, judges them
//! in order.

use std::collections::BTreeMap;

use super::cell::SubjectRun;
use super::engine::{Lab, Progress, ScheduledRun};
use super::executor::StopReason;
use super::remote::{RemoteEvent, RemoteExecutor, Round, TaskCounts};

/// If this many rounds are lost and none gave a result, the lab gives up.
const MAX_LOST_ROUNDS: u32 = 5;

/// Runs the rounds of `lab` on `remote`.
pub fn run(lab: &mut Lab<'_>, remote: &mut dyn RemoteExecutor) -> Result<(), StopReason> {
    let mut engine = RemoteLab {
        lab,
        remote,
        requested_rounds: 0,
        finished: BTreeMap::new(),
        lost_rounds: 0,
        has_results: false,
        first_loss: None,
    };
    let result = engine.run_rounds();
    // After a signal `remote` has already decided what becomes of the rounds.
    if !matches!(result, Err(StopReason::Interrupted(_))) {
        engine.remote.cancel();
    }
    result
}

/// A lab whose rounds run on other machines.
struct RemoteLab<'a, 'l> {
    lab: &'a mut Lab<'l>,
    remote: &'a mut dyn RemoteExecutor,
    /// Rounds that were requested or found in the journal.
    requested_rounds: u32,
    /// Finished and lost rounds that are not judged yet; a lost one has no runs.
    finished: BTreeMap<u32, Vec<SubjectRun>>,
    lost_rounds: u32,
    has_results: bool,
    first_loss: Option<String>,
}

impl RemoteLab<'_, '_> {
    fn run_rounds(&mut self) -> Result<(), StopReason> {
        let rounds = self.lab.plan.warm_up.saturating_add(self.lab.plan.max_rounds);
        for round in 0..rounds {
            if round >= self.requested_rounds {
                self.request_rounds(rounds)?;
            }
            let finished_runs = loop {
                match self.finished.remove(&round) {
                    Some(finished_runs) => break finished_runs,
                    None => self.handle_event()?,
                }
            };
            self.lab.open_round(round);
            for SubjectRun { subject, outcome } in finished_runs {
                let turn = ScheduledRun { subject, round };
                // Skipped if it would not have been run locally.
                if self.lab.is_due(turn) {
                    self.lab.judge_run(turn, outcome);
                }
            }
            if self.lab.is_finished_after(round) {
                break;
            }
        }
        if self.has_results || self.lost_rounds == 0 { Ok(()) } else { Err(self.all_rounds_lost()) }
    }

    /// Requests the first rounds, or as many again if they were not enough. Only rounds that are
    /// complete in the journal are taken from it, so that a pair never consists of runs on two
    /// machines.
    fn request_rounds(&mut self, rounds: u32) -> Result<(), StopReason> {
        let plan = self.lab.plan;
        let warm_up = if self.requested_rounds == 0 { plan.warm_up } else { 0 };
        let new_rounds = warm_up.saturating_add(plan.min_rounds.max(1));
        let until = self.requested_rounds.saturating_add(new_rounds).min(rounds);
        let mut missing = Vec::new();
        for round in self.requested_rounds..until {
            let turns: Vec<ScheduledRun> =
                self.lab.order(round).into_iter().filter(|&turn| self.lab.is_due(turn)).collect();
            let journaled = turns.iter().map(|turn| {
                let name = &plan.subjects.get(turn.subject)?.name;
                let outcome = self.lab.journal.outcome(name, round)?.clone();
                Some(SubjectRun { subject: turn.subject, outcome })
            });
            match journaled.collect::<Option<Vec<SubjectRun>>>() {
                Some(finished_runs) => {
                    self.report(&finished_runs);
                    self.finished.insert(round, finished_runs);
                }
                None => missing
                    .push(Round { number: round, turns: turns.iter().map(|turn| turn.subject).collect() }),
            }
        }
        self.requested_rounds = until;
        if missing.is_empty() { Ok(()) } else { self.remote.request(&plan.subjects, missing) }
    }

    fn handle_event(&mut self) -> Result<(), StopReason> {
        match self.remote.next()? {
            RemoteEvent::Status { tasks, ended_runs } => self.report_status(tasks, ended_runs),
            RemoteEvent::Finished { round, runs } => {
                for SubjectRun { subject, outcome } in &runs {
                    let Some(subject) = self.lab.plan.subjects.get(*subject) else { continue };
                    self.lab.journal.keep(&subject.name, round, outcome)?;
                    self.lab.new_runs += 1;
                }
                self.report(&runs);
                self.finished.insert(round, runs);
            }
            RemoteEvent::Lost { round, why } => {
                self.lost_rounds += 1;
                self.first_loss.get_or_insert(why);
                self.finished.insert(round, Vec::new());
                if self.lost_rounds >= MAX_LOST_ROUNDS && !self.has_results {
                    return Err(self.all_rounds_lost());
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, finished_runs: &[SubjectRun]) {
        if let Some(last_run) = finished_runs.last() {
            self.has_results = true;
            self.lab.report_progress(last_run.subject, finished_runs.len());
        }
    }

    fn report_status(&mut self, tasks: TaskCounts, ended_runs: usize) {
        self.lab.progress.tasks = Some(tasks);
        let finished_runs =
            self.lab.progress.finished_runs.saturating_add(ended_runs).min(self.lab.progress.max_runs);
        (self.lab.show_progress)(&Progress { finished_runs, ..self.lab.progress });
    }

    fn all_rounds_lost(&self) -> StopReason {
        let reason = self.first_loss.as_deref().unwrap_or("no reason is known");
        StopReason::Failed(format!("no round gave a result: {reason}"))
    }
}

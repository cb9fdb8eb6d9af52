//! The interface of the engine to an executor that runs whole rounds on other machines, many at a
//! time.
//!
//! Figures of one round are compared as pairs, so a round runs on one machine as a whole, in its
//! drawn order. Rounds finish in any order; they are stored as they finish and judged in round
//! order, so that the result of a lab does not depend on which machine is faster.

use serde::{Deserialize, Serialize};

use super::cell::{Outcome, Subject, SubjectRun};
use super::executor::StopReason;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Its number, from 0, warm-ups first.
    pub number: u32,
    /// Indices of its subjects, in the drawn order.
    pub turns: Vec<usize>,
}

/// Number of rounds under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Running rounds.
    pub running: u32,
    /// Rounds that wait for a machine.
    pub waiting: u32,
}

/// An event of the requested rounds.
#[derive(Clone, Debug)]
pub enum RemoteEvent {
    Status {
        tasks: TaskCounts,
        /// Number of runs that ended in rounds that are not finished.
        ended_runs: usize,
    },
    Finished {
        round: u32,
        runs: Vec<SubjectRun>,
    },
    /// A round was lost and is not retried.
    Lost {
        round: u32,
        why: String,
    },
}

/// Runs whole rounds. A method fails with a [`StopReason`]: a signal, or why no round can be run.
pub trait RemoteExecutor {
    /// Requests rounds of `subjects`; calls with the same subjects add rounds.
    fn request(&mut self, subjects: &[Subject], rounds: Vec<Round>) -> Result<(), StopReason>;

    /// Waits a moment for the next event.
    fn next(&mut self) -> Result<RemoteEvent, StopReason>;

    /// Drops all requests: waiting rounds are not started, running rounds are ended.
    fn cancel(&mut self);

    /// Removes the results of rounds, so that the same lab runs them again.
    fn discard_rounds(&self);

    /// Runs a whole command as one round: for a lab whose every step depends on the previous one.
    /// `report` is called while it waits and runs.
    fn run_as_round(
        &mut self,
        subject: &Subject,
        report: &dyn Fn(TaskCounts),
    ) -> Result<Outcome, StopReason> {
        self.request(std::slice::from_ref(subject), vec![Round { number: 0, turns: vec![0] }])?;
        loop {
            match self.next() {
                Ok(RemoteEvent::Status { tasks, .. }) => report(tasks),
                Ok(RemoteEvent::Finished { runs, .. }) => {
                    let outcome = runs.into_iter().next().map(|run| run.outcome);
                    return outcome.ok_or_else(|| StopReason::Failed("its round has no outcome".to_owned()));
                }
                Ok(RemoteEvent::Lost { why, .. }) => return Err(StopReason::Failed(why)),
                Err(StopReason::Failed(why)) => {
                    self.cancel();
                    return Err(StopReason::Failed(why));
                }
                Err(stopped) => return Err(stopped),
            }
        }
    }
}

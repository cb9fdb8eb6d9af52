//! The interface of the engine to rounds that run elsewhere, many at a time.
//!
//! Figures of one round are compared as pairs, so a round runs on one machine as a whole, in its
//! drawn order. Rounds finish in any order; they are stored as they finish and judged in round
//! order, so that the result of a lab does not depend on which machine is faster.

use super::cell::{Outcome, Subject};
use super::executor::Stopped;

/// A round to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0, warm-ups first.
    pub number: u32,
    /// Its subjects, in the drawn order.
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
    /// Current state.
    Status {
        /// Rounds under way.
        tasks: TaskCounts,
        /// Runs that ended in rounds that are not finished.
        runs: usize,
    },
    /// A round is finished.
    Finished {
        /// Its number.
        round: u32,
        /// All its runs: subject and outcome.
        outcomes: Vec<(usize, Outcome)>,
    },
    /// A round was lost and is not retried.
    Lost {
        /// Its number.
        round: u32,
        /// Why, in one line.
        why: String,
    },
}

/// Runs whole rounds.
pub trait RemoteExecutor {
    /// Requests rounds of `subjects`; calls with the same subjects add rounds.
    ///
    /// # Errors
    /// [`Stopped`].
    fn request(&mut self, subjects: &[Subject], rounds: Vec<Round>) -> Result<(), Stopped>;

    /// Waits a moment for the next event.
    ///
    /// # Errors
    /// [`Stopped`].
    fn next(&mut self) -> Result<RemoteEvent, Stopped>;

    /// Drops all requests: waiting rounds are not started, running rounds are ended.
    fn cancel(&mut self);
}

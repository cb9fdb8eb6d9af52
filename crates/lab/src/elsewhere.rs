//! Rounds that are run elsewhere, many at a time: what the engine knows of that.
//!
//! Figures of one round are compared as pairs, so a round goes to one machine as a whole, in its drawn order. Rounds
//! come back in any order; they are kept as they come, and judged in their own order, so that a lab comes to the
//! same whoever was quicker.

use super::cell::{Outcome, Subject};
use super::executor::Stopped;

/// A round to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0 on, warm-ups first.
    pub number: u32,
    /// Its subjects, in the drawn order.
    pub turns: Vec<usize>,
}

/// How many rounds are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// That run.
    pub running: u32,
    /// That wait for a machine.
    pub waiting: u32,
}

/// What became of the rounds that were asked for.
#[derive(Clone, Debug)]
pub enum News {
    /// So it stands; runs of rounds that are not over are counted as well.
    Standing {
        /// Rounds under way.
        tasks: Tasks,
        /// Runs that ended in rounds that are not over.
        runs: usize,
    },
    /// A round is over: its subjects and what came of each.
    Over {
        /// Its number.
        round: u32,
        /// What came of its runs, all of them.
        outcomes: Vec<(usize, Outcome)>,
    },
    /// A round was lost, and is not tried again.
    Lost {
        /// Its number.
        round: u32,
        /// Why, in one line.
        why: String,
    },
}

/// Something that runs whole rounds.
pub trait Elsewhere {
    /// Asks for rounds of `subjects`, which are the same until other subjects are asked for.
    ///
    /// # Errors
    /// [`Stopped`].
    fn ask(&mut self, subjects: &[Subject], rounds: Vec<Round>) -> Result<(), Stopped>;

    /// Waits a moment for news.
    ///
    /// # Errors
    /// [`Stopped`].
    fn next(&mut self) -> Result<News, Stopped>;

    /// Wants no more of what was asked for: what waits is not begun, what runs is ended.
    fn cancel(&mut self);
}

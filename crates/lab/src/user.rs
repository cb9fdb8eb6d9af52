//! The user who started a lab: sees messages and progress, and decides what happens to its jobs.

use super::engine::Progress;
use super::interrupt::Interrupt;
use super::remote::TaskCounts;

/// What happens to jobs after a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Cancel them.
    Cancel,
    /// Leave them running; the same command later collects their results.
    Leave,
}

/// Receives messages, and decides.
pub trait User: Send + Sync {
    /// Shows a line.
    fn show(&self, line: &str);
    /// Asks what happens to `jobs` after `signal`; `tasks` counts their rounds.
    fn decide(&self, signal: i32, jobs: &str, tasks: TaskCounts, interrupt: &Interrupt) -> Decision;
}

/// Shows the progress of a lab.
pub trait ProgressDisplay: Sync {
    /// Shows how many runs are done.
    fn update(&self, progress: &Progress);
    /// Shows a line.
    fn show_line(&self, line: &str);
}

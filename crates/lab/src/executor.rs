//! Where subjects run. The engine and the verbs use only this trait, so that a lab can run on other
//! machines.

use std::path::Path;

use super::cell::{LabCaveat, Outcome, Subject};
use super::remote::RemoteExecutor;

/// Why a lab stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The user sent this signal.
    Interrupted(i32),
    /// It cannot continue; holds the reason in one line.
    Failed(String),
}

impl From<String> for StopReason {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Why a trial, a squeeze or a study has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// The lab was stopped, and can be resumed.
    Stopped(StopReason),
    /// The command or study cannot be run, or fails without any setting or limit; one line.
    Failed(String),
    /// It is too long to start without a confirmation; one line.
    Unconfirmed(String),
}

impl From<StopReason> for NoResult {
    fn from(stopped: StopReason) -> Self {
        Self::Stopped(stopped)
    }
}

/// Runs subjects.
pub trait Executor: Send {
    /// Runs a subject to its end, or to its timeout. Its output is stored below `folder`, which is
    /// created if there is any. A command that cannot be run is not an error: its outcome says so.
    ///
    /// # Errors
    /// [`StopReason`]: a signal of the user, or why the run cannot be made, watched or ended.
    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, StopReason>;

    /// Why this executor does not count instructions and cycles; `None` if it does.
    fn no_counters_reason(&self) -> Option<String>;

    /// What runs whole rounds on other machines; `None` if rounds run here, as single runs always
    /// do.
    fn remote(&mut self) -> Option<&mut dyn RemoteExecutor> {
        None
    }

    /// Caveats on its runs.
    fn caveats(&self) -> Vec<LabCaveat> {
        Vec::new()
    }
}

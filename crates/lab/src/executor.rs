//! Where jobs run. The engine and the verbs use only this trait, so that a lab can run on other
//! machines.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cell::{End, LabCaveat, Outcome, Subject};
use super::remote::RemoteExecutor;

/// Time for a job to end after SIGTERM once it reached its timeout.
const GRACE: Duration = Duration::from_secs(2);
/// Time for the launcher to end the processes that a killed job left; on a busy machine they wait
/// for a processor.
const LAUNCHER_GRACE: Duration = Duration::from_secs(120);

/// Why a lab stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The user sent this signal.
    Interrupted(i32),
    /// It cannot continue; holds the reason in one line.
    Failed(String),
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

/// Identifier of a job.
pub type Job = u64;

/// The output files of a job.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    /// Its standard output.
    pub stdout: PathBuf,
    /// Its standard error.
    pub stderr: PathBuf,
}

/// Runs jobs. A method fails with a [`StopReason`]: a signal of the user, or why its job cannot be
/// started, watched or ended.
pub trait Executor: Send {
    /// Starts a job. Its output is stored below `folder`, which is created if there is any.
    /// A command that cannot be run is not an error: [`Executor::wait`] reports it.
    fn start(&mut self, subject: &Subject, folder: &Path) -> Result<Job, StopReason>;

    /// Waits for a job to end, at most `timeout`; `None` if it still runs. Each end is reported
    /// once.
    fn wait(&mut self, job: Job, timeout: Option<Duration>) -> Result<Option<Outcome>, StopReason>;

    /// Sends SIGTERM to the processes of a job, and kills all of them after `grace`.
    fn stop(&mut self, job: Job, grace: Duration) -> Result<(), StopReason>;

    /// Process id of the first process of a job, if it is known and on this machine.
    fn pid(&mut self, job: Job) -> Result<Option<i32>, StopReason>;

    /// The growing output files of a job; `None` after its end.
    fn output(&self, job: Job) -> Option<OutputFiles>;

    /// Why this executor does not count instructions and cycles; `None` if it does.
    fn no_counters_reason(&self) -> Option<String>;

    /// What runs whole rounds on other machines; `None` if rounds run here, as single jobs always
    /// do.
    fn remote(&mut self) -> Option<&mut dyn RemoteExecutor> {
        None
    }

    /// Caveats on its runs.
    fn caveats(&self) -> Vec<LabCaveat> {
        Vec::new()
    }

    /// Runs a job to its end.
    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, StopReason> {
        let job = self.start(subject, folder)?;
        self.finish_in_time(job, subject)
    }

    /// Waits for a job to end, and ends it at the timeout of its subject.
    fn finish_in_time(&mut self, job: Job, subject: &Subject) -> Result<Outcome, StopReason> {
        if let Some(outcome) = self.wait(job, subject.timeout)? {
            return Ok(outcome);
        }
        let stop_begin = Instant::now();
        self.stop(job, GRACE)?;
        match self.wait(job, Some(GRACE + LAUNCHER_GRACE))? {
            Some(outcome) => Ok(Outcome { end: End::TimedOut, ..outcome }),
            None => Err(StopReason::Failed(format!(
                "{}: has not ended {} s after SIGTERM and SIGKILL: the kernel holds it, or no processor was free (see its state in ps)",
                subject.name,
                stop_begin.elapsed().as_secs()
            ))),
        }
    }
}

/// Implements the methods of an [`Executor`] that delegates to another one, a field.
macro_rules! delegate_to {
    ($field:ident) => {
        fn start(&mut self, subject: &Subject, folder: &Path) -> Result<Job, StopReason> {
            self.$field.start(subject, folder)
        }

        fn wait(&mut self, job: Job, timeout: Option<Duration>) -> Result<Option<Outcome>, StopReason> {
            self.$field.wait(job, timeout)
        }

        fn stop(&mut self, job: Job, grace: Duration) -> Result<(), StopReason> {
            self.$field.stop(job, grace)
        }

        fn pid(&mut self, job: Job) -> Result<Option<i32>, StopReason> {
            self.$field.pid(job)
        }

        fn output(&self, job: Job) -> Option<$crate::executor::OutputFiles> {
            self.$field.output(job)
        }

        fn no_counters_reason(&self) -> Option<String> {
            self.$field.no_counters_reason()
        }
    };
}

pub(crate) use delegate_to;

//! Where jobs run. The engine and the verbs know this trait only, so that a lab can come to run elsewhere than
//! on this machine.

use std::path::Path;
use std::time::{Duration, Instant};

use super::cell::{End, Outcome, Subject};
use super::elsewhere::Elsewhere;

/// How long a job may take to end after SIGTERM when it ran into its timeout.
const GRACE: Duration = Duration::from_secs(2);
/// How long the launcher may take with what a killed job left.
const LAST_GRACE: Duration = Duration::from_secs(30);

/// Why a lab stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its user's signal.
    Interrupted(i32),
    /// It cannot go on: one line that says why.
    Failed(String),
}

/// A job that runs, or ran.
pub type Job = u64;

/// Something that runs jobs.
pub trait Executor: Send {
    /// Starts a job. Its outcome keeps what it wrote below `folder`, which is made if there is anything to keep.
    ///
    /// # Errors
    /// [`Stopped`]. A command that cannot be run is no error: [`Executor::wait`] tells of it.
    fn start(&mut self, subject: &Subject, folder: &Path) -> Result<Job, Stopped>;

    /// Waits for a job's end, at most so long; `None` where it still runs. An end is told once.
    ///
    /// # Errors
    /// [`Stopped`].
    fn wait(&mut self, job: Job, at_most: Option<Duration>) -> Result<Option<Outcome>, Stopped>;

    /// Asks a job to end (SIGTERM to its processes), and kills all of it where that takes longer than `grace`.
    ///
    /// # Errors
    /// [`Stopped`].
    fn stop(&mut self, job: Job, grace: Duration) -> Result<(), Stopped>;

    /// The process id of a job's first process on this machine, once it is known.
    ///
    /// # Errors
    /// [`Stopped`].
    fn pid(&mut self, job: Job) -> Result<Option<i32>, Stopped>;

    /// What a job has written so far: its standard output and error, as files that grow.
    fn output(&self, job: Job) -> Option<(std::path::PathBuf, std::path::PathBuf)>;

    /// Why this executor counts no instructions and cycles; `None` where it does.
    fn no_counters(&self) -> Option<String>;

    /// Where whole rounds are run, if that is elsewhere than here; single jobs run here all the same.
    fn elsewhere(&mut self) -> Option<&mut dyn Elsewhere> {
        None
    }

    /// What is to be known about its runs: code and sentence.
    fn caveats(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// [`Stopped`].
    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, Stopped> {
        let job = self.start(subject, folder)?;
        self.finish_in_time(job, subject)
    }

    /// Waits for a job's end, and ends it where it runs into its subject's timeout.
    ///
    /// # Errors
    /// [`Stopped`].
    fn finish_in_time(&mut self, job: Job, subject: &Subject) -> Result<Outcome, Stopped> {
        let begin = Instant::now();
        if let Some(outcome) = self.wait(job, subject.timeout)? {
            return Ok(outcome);
        }
        self.stop(job, GRACE)?;
        match self.wait(job, Some(GRACE + LAST_GRACE))? {
            Some(outcome) => Ok(Outcome { end: End::TimedOut, ..outcome }),
            None => Err(Stopped::Failed(format!(
                "{}: cannot be ended, {} s after its start: the kernel holds it (see its state in ps)",
                subject.name,
                begin.elapsed().as_secs()
            ))),
        }
    }
}

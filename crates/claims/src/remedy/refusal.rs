//! Why a remedy was not applied, or failed: one line each, with what to do next.

use std::io;

use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::target::admission;

/// Why a remedy was not applied, or failed. [`Refusal::has_begun`] is true for the few refusals
/// that come after the call had begun; for all others nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot be inspected or traced, or something about it could not be read.
    #[error(transparent)]
    Process(#[from] Error),
    /// It is stopped by a signal.
    #[error("process {pid} is stopped by a signal; continue it first (`kill -CONT {pid}`) and try again")]
    Stopped {
        /// The process.
        pid: i32,
    },
    /// It is in a state in which the call is not known to be safe.
    #[error("process {pid} {what}; {advice}")]
    Unsafe {
        /// The process.
        pid: i32,
        /// The obstacle.
        what: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// The function to call does not exist.
    #[error(
        "process {pid} has no function {function} to call ({detail}); restart it to give its memory back"
    )]
    NoFunction {
        /// The process.
        pid: i32,
        /// The function's name.
        function: &'static str,
        /// Where it was searched.
        detail: String,
    },
    /// No thread was found in a state in which the call is safe.
    #[error("no safe thread within {seconds} s in process {pid} ({detail}); try a longer --wait")]
    NoSafeThread {
        /// The process.
        pid: i32,
        /// How long strandline waited.
        seconds: f64,
        /// The reasons against its threads.
        detail: String,
    },
    /// The only possible method is used on request only.
    #[error("{reason}; --allow-lost-write-risk accepts that")]
    NeedsRisk {
        /// The risk, and why no safe method is possible here.
        reason: String,
    },
    /// The process ended during the call.
    #[error("process {pid} ended during the call or the work that it requested ({how})")]
    Died {
        /// The process.
        pid: i32,
        /// How it ended.
        how: String,
    },
    /// The call takes too long; the thread finishes it by itself.
    #[error(
        "the call in thread {tid} of process {pid} was not done after {seconds} s and runs on; \
         the thread resumes its own code after it; run `strandline explain {pid}` later"
    )]
    Abandoned {
        /// The process.
        pid: i32,
        /// The thread that runs the call.
        tid: i32,
        /// How long strandline waited.
        seconds: f64,
    },
    /// The tracer lost the thread during the call.
    #[error(
        "thread {tid} of process {pid} during the call: {source}; the thread finishes the call by itself and resumes its own code"
    )]
    Interrupted {
        /// The process.
        pid: i32,
        /// The thread that runs the call.
        tid: i32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Refusal {
    /// Whether the target had begun to run the remedy. Otherwise nothing in it was changed.
    pub fn has_begun(&self) -> bool {
        matches!(self, Self::Died { .. } | Self::Abandoned { .. } | Self::Interrupted { .. })
    }

    /// Makes the refusal for a failed step with `process` from the kernel's error: ended, not
    /// allowed, or the error itself. `what` names the step: `reading smaps`, `stopping thread 17`.
    pub fn from_io(process: &Process, what: impl Into<String>, source: io::Error) -> Self {
        let pid = process.pid();
        Self::Process(if process.means_ended(&source) {
            Error::Ended { pid }
        } else if source.kind() == io::ErrorKind::PermissionDenied {
            admission::refused(process)
        } else {
            Error::Io { pid, what: what.into(), source }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_does_not_end_a_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        let refusal =
            || Refusal::from_io(&process, "opening its /tmp", io::Error::from(io::ErrorKind::NotFound));
        assert!(matches!(refusal(), Refusal::Process(Error::Io { .. })), "it runs");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(refusal(), Refusal::Process(Error::Ended { .. })));
    }
}

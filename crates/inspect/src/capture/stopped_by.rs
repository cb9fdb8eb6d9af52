//! Why a process does not run while it is read.

use strandline_claims::caveat::Caveat;
use strandline_claims::units::counted;
use strandline_process::procfs::Process;
use strandline_sys::ptrace::Registers;

/// What keeps the target unchanged while it is read.
pub enum StoppedBy<'a> {
    /// strandline stops all threads of the running process, and releases them after the read.
    Us,
    /// The process is ending, and held by the caller.
    Ending(&'a Ending<'a>),
}

/// An ending process that is held.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The threads held at PTRACE_EVENT_EXIT, the leader among them, and their registers there.
    pub registers: &'a [(i32, Registers)],
    /// Number of other threads that the process had when it began to end, as far as the caller
    /// knows.
    pub other_threads: u64,
}

impl Ending<'_> {
    /// Returns a caveat about the threads that have ended already, if there are any.
    pub(super) fn caveat(&self, process: &Process) -> Option<Caveat> {
        let text = format!(
            "{} ended before strandline read the process: free chunks in their malloc caches count as in use, and their \
             stacks are on the row anonymous",
            counted(self.other_threads, "thread")
        );
        let place = format!("process {}", process.pid());
        (self.other_threads > 0).then(|| Caveat::new("threads_gone", place, None, text))
    }
}

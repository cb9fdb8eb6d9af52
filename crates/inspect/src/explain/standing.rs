//! Why a process stands still while it is read.

use strandline_claims::caveat::Caveat;
use strandline_process::procfs::Process;
use strandline_sys::ptrace::Registers;

/// What keeps the target as it is while it is read.
pub enum StoppedBy<'a> {
    /// It runs: all its threads are stopped for it, and let go once their heaps are read.
    Us,
    /// It stands at its end, held by the caller.
    Ending(&'a Ending<'a>),
}

/// A process that stands at its end.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The threads that are held at PTRACE_EVENT_EXIT, the leader among them, and their registers there.
    pub registers: &'a [(i32, Registers)],
    /// How many other threads the process had when its end began, as far as the caller knows.
    pub other_threads: u64,
}

impl Ending<'_> {
    /// What is not known of threads that are gone.
    pub(super) fn caveats(&self, process: &Process) -> Vec<Caveat> {
        if self.other_threads == 0 {
            return Vec::new();
        }
        let text = format!(
            "{} threads ended before the look: free chunks in their malloc caches count as in use, and their \
             stacks stand on the row anonymous",
            self.other_threads
        );
        vec![Caveat::new("threads_gone", format!("process {}", process.pid()), None, text)]
    }
}

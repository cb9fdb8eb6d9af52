//! Why a process could not be looked at: what, about which pid or path, and what to do next.

use std::path::PathBuf;

/// An error that ends a look at a process. Each `Display` is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no process with this id.
    #[error("no process {pid}: it does not exist or has ended (see `ps -e`)")]
    NoSuchProcess {
        /// The process asked for.
        pid: i32,
    },
    /// The process ended while it was looked at.
    #[error("process {pid} ended while it was looked at; its memory is gone")]
    Ended {
        /// The process asked for.
        pid: i32,
    },
    /// The main thread has ended, other threads run on.
    #[error(
        "process {pid}'s main thread has ended while others run on; such a process cannot be looked at yet, use \
         /proc/{pid}/task/*/smaps_rollup"
    )]
    LeaderEnded {
        /// The process asked for.
        pid: i32,
    },
    /// The process replaced its program while it was looked at.
    #[error("process {pid} started another program (exec) while it was looked at; run strandline again")]
    Replaced {
        /// The process asked for.
        pid: i32,
    },
    /// The process has ended and waits for its parent.
    #[error("process {pid} is a zombie: it has no memory left; its parent {parent} has not collected it yet")]
    Zombie {
        /// The process asked for.
        pid: i32,
        /// The parent that should wait for it.
        parent: i32,
    },
    /// The id is that of a kernel thread.
    #[error(
        "process {pid} is the kernel thread {name:?}: it has no memory of its own; look at a user process"
    )]
    KernelThread {
        /// The process asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The id is that of a thread that is not its process's leader.
    #[error("{tid} is a thread of process {pid}; use {pid}")]
    Thread {
        /// The id asked for.
        tid: i32,
        /// The process it belongs to.
        pid: i32,
    },
    /// strandline was asked to look at itself.
    #[error(
        "process {pid} is this strandline itself, which cannot stop itself; start a second one to look at it"
    )]
    Myself {
        /// The process asked for.
        pid: i32,
    },
    /// The kernel refuses access.
    #[error("may not look at process {pid} ({detail}): {advice}")]
    Permission {
        /// The process asked for.
        pid: i32,
        /// Whose it is, and what refused.
        detail: String,
        /// What would allow it.
        advice: String,
    },
    /// Another process traces the target already.
    #[error(
        "process {pid} is traced already by {tracer} ({tracer_name}): end that first, or look again when it is done"
    )]
    Traced {
        /// The process asked for.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// The tracer's name.
        tracer_name: String,
    },
    /// The threads could not be brought to a stop in time.
    #[error("process {pid} did not stop within {seconds} s ({detail}); try again")]
    DidNotStop {
        /// The process asked for.
        pid: i32,
        /// How long was waited.
        seconds: f64,
        /// Which threads run on, and in which state.
        detail: String,
    },
    /// It was to be read from a snapshot, and there is none.
    #[error(
        "no snapshot of process {pid}: {why}; --snapshot=try stops it for as long as reading takes instead"
    )]
    NoSnapshot {
        /// The process asked for.
        pid: i32,
        /// What speaks against it, or what became of it.
        why: String,
        /// How long the process was stopped for it.
        stopped: std::time::Duration,
    },
    /// The rows did not add up to the kernel's RSS, several times in a row.
    #[error(
        "the ledger of process {pid} does not add up: {detail}; please report this with `strandline doctor`'s output"
    )]
    DoesNotAddUp {
        /// The process asked for.
        pid: i32,
        /// Where the two differ, and by how much.
        detail: String,
    },
    /// Two claims stand on one byte.
    #[error("two claims on one byte at {address:#x}: {first} and {second}; this is a bug in strandline")]
    Overlap {
        /// The byte.
        address: u64,
        /// Who claimed it first.
        first: String,
        /// Who claimed it then.
        second: String,
    },
    /// A file or a system call failed.
    #[error("{what} of process {pid}: {source}")]
    Io {
        /// The process asked for.
        pid: i32,
        /// What was being done, with its path or address.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file that is not about a process failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The result of looking at a process.
pub type Result<T> = std::result::Result<T, Error>;

//! Errors of inspecting a process: what failed, for which pid or path, and what to do next.

use std::path::PathBuf;

/// An error that ends the inspection of a process. Each `Display` is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no process with this id.
    #[error(
        "no process {pid}: it has ended, or /proc does not show it here (another pid namespace, or hidepid); `ps -e` lists those \
         that it shows"
    )]
    NoSuchProcess {
        /// The process.
        pid: i32,
    },
    /// The process ended during the inspection.
    #[error("process {pid} ended while it was being read")]
    Ended {
        /// The process.
        pid: i32,
    },
    /// The main thread has ended, other threads run on.
    #[error(
        "the main thread of process {pid} has ended and others still run; such a process cannot be read yet, use /proc/{pid}/task/*/smaps_rollup"
    )]
    LeaderEnded {
        /// The process.
        pid: i32,
    },
    /// The process replaced its program (exec) during the inspection.
    #[error("process {pid} started another program (exec) while it was being read; run strandline again")]
    Replaced {
        /// The process.
        pid: i32,
    },
    /// The process has ended, and its parent has not reaped it.
    #[error(
        "process {pid} is a zombie: it has ended and has no memory left; it vanishes when its parent {parent} waits for it; choose \
         another process"
    )]
    Zombie {
        /// The process.
        pid: i32,
        /// The parent that should reap it.
        parent: i32,
    },
    /// The id belongs to a kernel thread.
    #[error("process {pid} is the kernel thread {name:?} and has no user memory; choose a user process")]
    KernelThread {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The id belongs to a thread that is not the leader of its process.
    #[error("{tid} is a thread of process {pid}; use {pid}")]
    Thread {
        /// The id.
        tid: i32,
        /// The process it belongs to.
        pid: i32,
    },
    /// The process is this strandline itself.
    #[error("process {pid} is this strandline, which cannot stop itself; read it with a second one")]
    Myself {
        /// The process.
        pid: i32,
    },
    /// The kernel refuses access.
    #[error("no permission to read process {pid} ({detail}): {advice}")]
    Permission {
        /// The process.
        pid: i32,
        /// The owner of the process, and what refused.
        detail: String,
        /// What would allow it.
        advice: String,
    },
    /// Another process already traces the target.
    #[error(
        "process {pid} is already traced by {tracer} ({tracer_name}): end that tracer, or try again later"
    )]
    Traced {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// The tracer's name.
        tracer_name: String,
    },
    /// The threads did not stop in time.
    #[error("process {pid} did not stop within {seconds} s ({detail}); try again")]
    DidNotStop {
        /// The process.
        pid: i32,
        /// The time waited.
        seconds: f64,
        /// Which threads run on, and in which state.
        detail: String,
    },
    /// It could not be read without a stop, and may not be stopped.
    #[error(
        "process {pid} could not be read without a stop: its threads run, or what it holds cannot be read while they sleep; try again, or \
         allow a stop"
    )]
    NeedsStop {
        /// The process.
        pid: i32,
    },
    /// A snapshot was required but could not be taken.
    #[error("no snapshot of process {pid}: {reason}")]
    NoSnapshot {
        /// The process.
        pid: i32,
        /// The objection to a snapshot, or why it failed.
        reason: String,
        /// How long the process was stopped for the snapshot.
        stopped_time: std::time::Duration,
    },
    /// The rows did not add up to the kernel's RSS, several times in a row.
    #[error(
        "the ledger of process {pid} does not add up: {detail}; please report this with `strandline doctor`'s output"
    )]
    DoesNotAddUp {
        /// The process.
        pid: i32,
        /// Where the two differ, and by how much.
        detail: String,
    },
    /// Two claims cover the same byte.
    #[error("two claims on one byte at {address:#x}: {first} and {second}; this is a bug in strandline")]
    Overlap {
        /// The byte.
        address: u64,
        /// The owner of the earlier claim.
        first: String,
        /// The owner of the later claim.
        second: String,
    },
    /// A file or a system call failed.
    #[error("{what} of process {pid}: {source}")]
    Io {
        /// The process.
        pid: i32,
        /// The operation, with its path or address.
        what: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// An operation on a file that does not belong to a process failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// The result of inspecting a process.
pub type Result<T> = std::result::Result<T, Error>;

//! The thread that reads a process at the user's request, one at a time. A request that is
//! unfinished at the end is abandoned: the kernel releases what it holds when this process ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use crate::terminal::Waker;

/// What may be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A ledger.
    Ledger,
    /// What the best remedy would release, without applying it.
    DryRun,
}

/// Result of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestResult {
    /// Text without escape sequences.
    pub text: String,
    /// Sums of the ledger; `None` if none was taken.
    pub sums: Option<StateSums>,
}

/// Sums of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSums {
    /// Stranded bytes.
    pub stranded_bytes: u64,
    /// Pinned bytes.
    pub pinned_bytes: u64,
}

/// Reads a process, given its id, the request, and the number of columns. An error is one line.
pub type LedgerCallback = Arc<dyn Fn(i32, Request, u16) -> Result<RequestResult, String> + Send + Sync>;

/// Result of a request, with its time.
#[derive(Debug)]
pub struct Answer {
    /// The process that was read.
    pub pid: i32,
    /// What was requested.
    pub request: Request,
    /// The text, or one line on why there is none.
    pub result: Result<RequestResult, String>,
    /// When it was done.
    pub at: Instant,
}

/// Access to the thread.
#[derive(Debug)]
pub struct Requester {
    requests: SyncSender<PendingRequest>,
    answers: Receiver<Answer>,
}

/// A request for a process.
#[derive(Debug)]
struct PendingRequest {
    pid: i32,
    request: Request,
    /// Width of the text.
    columns: u16,
}

impl Requester {
    /// Sends a request; false if it is not accepted.
    pub fn send(&self, pid: i32, request: Request, columns: u16) -> bool {
        self.requests.try_send(PendingRequest { pid, request, columns }).is_ok()
    }

    /// Results since the last call.
    pub fn answers(&self) -> impl Iterator<Item = Answer> {
        self.answers.try_iter()
    }
}

/// Starts the thread.
///
/// # Errors
/// If the kernel has no thread left.
pub fn start(read_process: LedgerCallback, waker: Waker) -> std::io::Result<Requester> {
    // One request may wait for the thread to start.
    let (requests, received_requests) = sync_channel::<PendingRequest>(1);
    let (answer_sender, answers) = sync_channel(1);
    let body = move || {
        for PendingRequest { pid, request, columns } in received_requests {
            // After a panic of a reader, other processes can still be read.
            let result = catch_unwind(AssertUnwindSafe(|| read_process(pid, request, columns)));
            let result = result.unwrap_or_else(|_| {
                Err(format!("process {pid}: a reader failed; try strandline explain --no-runtimes {pid}"))
            });
            if answer_sender.send(Answer { pid, request, result, at: Instant::now() }).is_err() {
                return;
            }
            waker.wake();
        }
    };
    std::thread::Builder::new().name("ledgers".into()).spawn(body)?;
    Ok(Requester { requests, answers })
}

//! The thread that takes what the user requests for a process, one request at a time. A request
//! that is unfinished at the end is abandoned: the kernel releases what it holds when this process
//! ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use crate::terminal::Waker;

/// What may be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A ledger.
    Ledger,
    /// What the best remedy would give back, without applying it.
    DryRun,
}

/// Result of a request.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// Text without escape sequences.
    pub text: String,
    /// Stranded and pinned bytes.
    pub sums: Option<(u64, u64)>,
}

/// Looks at a process, given its id, what is wanted, and the number of columns. An error is one
/// line.
pub type Look = Arc<dyn Fn(i32, Wanted, u16) -> Result<Looked, String> + Send + Sync>;

/// Result of a request, with its time.
#[derive(Debug)]
pub struct Answer {
    pub pid: i32,
    pub wanted: Wanted,
    pub result: Result<Looked, String>,
    /// When it was done.
    pub at: Instant,
}

/// Access to the thread.
#[derive(Debug)]
pub struct Looker {
    questions: SyncSender<(i32, Wanted, u16)>,
    answers: Receiver<Answer>,
}

impl Looker {
    /// Requests a look; false if it cannot be taken.
    pub fn ask(&self, pid: i32, wanted: Wanted, columns: u16) -> bool {
        self.questions.try_send((pid, wanted, columns)).is_ok()
    }

    /// Results since the last call.
    pub fn answers(&self) -> impl Iterator<Item = Answer> {
        self.answers.try_iter()
    }
}

/// Starts the thread.
pub fn start(look: Look, waker: Waker) -> std::io::Result<Looker> {
    // One request may wait for the thread to start.
    let (questions, asked) = sync_channel::<(i32, Wanted, u16)>(1);
    let (answer, answers) = sync_channel(1);
    let body = move || {
        for (pid, wanted, columns) in asked {
            let result = look(pid, wanted, columns);
            if answer.send(Answer { pid, wanted, result, at: Instant::now() }).is_err() {
                return;
            }
            waker.wake();
        }
    };
    std::thread::Builder::new().name("ledgers".into()).spawn(body)?;
    Ok(Looker { questions, answers })
}

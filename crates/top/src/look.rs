//! The thread that takes what its reader asks for of one process: one at a time. What is under way at the end is given up:
//! with this process the kernel lets go of what it holds.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use crate::terminal::Waker;

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A ledger.
    Ledger,
    /// What the best remedy would give back; nothing is done.
    DryRun,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// As text, without escape sequences.
    pub text: String,
    /// How much of it is stranded, and how much pinned, in bytes.
    pub sums: Option<(u64, u64)>,
}

/// Looks at a process: its id, what is wanted, how many columns there are. An error is one line.
pub type Look = Arc<dyn Fn(i32, Wanted, u16) -> Result<Looked, String> + Send + Sync>;

/// What came of one, and when.
#[derive(Debug)]
pub struct Answer {
    /// Of which process.
    pub pid: i32,
    /// What was asked for.
    pub wanted: Wanted,
    /// What came of it.
    pub result: Result<Looked, String>,
    /// When it was done.
    pub at: Instant,
}

/// The thread.
#[derive(Debug)]
pub struct Looker {
    questions: SyncSender<(i32, Wanted, u16)>,
    answers: Receiver<Answer>,
}

impl Looker {
    /// Asks for a look; false where it cannot be taken.
    pub fn ask(&self, pid: i32, wanted: Wanted, columns: u16) -> bool {
        self.questions.try_send((pid, wanted, columns)).is_ok()
    }

    /// What was answered since.
    pub fn answers(&self) -> impl Iterator<Item = Answer> {
        self.answers.try_iter()
    }
}

/// Starts it.
pub fn start(look: Look, waker: Waker) -> std::io::Result<Looker> {
    // One question may wait for the thread to start.
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

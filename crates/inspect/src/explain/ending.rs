//! The ledger of a process that is ending, while it still has its memory.
//!
//! A tracer that asked for PTRACE_O_TRACEEXIT is told when a thread ends, and holds it before the kernel
//! takes its memory away: smaps, page tables and memory read as ever. The last of a process's threads to
//! be held there is looked at here. This module traces nothing: the caller holds the thread, takes its
//! registers, and lets it go when the look is done. It must not wait for long: the process's parent waits
//! for its end.

use std::time::{Duration, Instant};

use super::look;
use super::standing::{Ending, StoppedBy};
use super::{Options, account};
use crate::facts::{Explanation, RemedyKind};
use strandline_claims::caveat::Caveat;
use strandline_process::error::{Error, Result};
use strandline_process::procfs::Process;
use strandline_process::target::admission;

/// How long the other threads of a process that ends may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_micros(200);
/// SIGKILL in a mask of signals: what the kernel sends to every thread of a process that ends.
const KILL: u64 = 1 << 8;

/// Flags of a thread that ends, of the kernel's `include/linux/sched.h`. Only such a thread may sleep without a
/// SIGKILL on its way (for its io_uring requests).
const PF_EXITING: u64 = 0x4;
const PF_POSTCOREDUMP: u64 = 0x8;

/// Explains process `pid`, whose leader stands at PTRACE_EVENT_EXIT, traced by a thread of this very
/// process and not resumed before this returns. May be called on any thread. Costs the target what the
/// look takes, as `cost.stopped_seconds` says; remedies that would be applied in it are left out.
///
/// # Errors
/// Those of [`super::explain`], [`Error::Traced`] where somebody else holds the leader among them;
/// [`Error::DidNotStop`] where nobody holds it; [`Error::LeaderEnded`] where only the leader ends and other
/// threads run on (pthread_exit in main); [`Error::Ended`] where the process went on to its end during the
/// look (kernels differ in what a second SIGKILL does).
pub fn at_exit(pid: i32, ending: &Ending<'_>, options: &Options<'_>) -> Result<Explanation> {
    let start = Instant::now();
    let process = admission::admit_ending(pid)?;
    let unfinished = wait_for_others(&process, ending)?;
    let mut frozen = look::take(&process, &StoppedBy::Ending(ending), options.reading_threads(), options)?;
    for tid in unfinished {
        let text = "the thread sleeps in the kernel in the middle of its end: it may still have used memory";
        frozen.caveats.push(Caveat::new("thread_asleep", format!("thread {tid}"), None, text));
    }
    let mut explanation = account(&process, frozen, start, options)?.explanation;
    // What was read of a process that went on meanwhile is of no one state.
    if !is_held(&process) {
        return Err(Error::Ended { pid });
    }
    explanation.remedies.retain(|remedy| remedy.kind != RemedyKind::Call);
    explanation.cost.stopped_seconds = start.elapsed().as_secs_f64();
    Ok(explanation)
}

fn is_held(process: &Process) -> bool {
    process.stat().is_ok_and(|stat| stat.state == Some('t'))
}

/// Waits until no other thread can touch the memory any more; returns those that take long to end.
///
/// All of them have been sent SIGKILL before the leader came to its end, unless only the leader ends.
fn wait_for_others(process: &Process, ending: &Ending<'_>) -> Result<Vec<i32>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut unfinished = Vec::new();
        let mut running = false;
        for tid in process.tasks()? {
            if ending.registers.iter().any(|&(stopped, _)| stopped == tid) {
                continue;
            }
            let Ok(stat) = process.task_stat(tid) else { continue };
            let ends = stat.flags & (PF_EXITING | PF_POSTCOREDUMP) != 0;
            match stat.state.unwrap_or('X') {
                'Z' | 'X' | 't' => {}
                'D' => unfinished.push(tid),
                _ if ends => unfinished.push(tid),
                'S' | 'T' if !is_killed(process, tid) => {
                    return Err(Error::LeaderEnded { pid: process.pid() });
                }
                _ => running = true,
            }
        }
        let late = Instant::now() >= deadline;
        if running && late {
            return Err(Error::LeaderEnded { pid: process.pid() });
        }
        if !running && (unfinished.is_empty() || late) {
            return Ok(unfinished);
        }
        std::thread::sleep(ASK_AGAIN);
    }
}

/// Whether a SIGKILL is on its way to the thread, or it is gone.
fn is_killed(process: &Process, tid: i32) -> bool {
    let Ok(status) = process.task_status(tid) else { return true };
    let pending = status.pending.unwrap_or(KILL) | status.shared_pending.unwrap_or(0);
    // The state may have changed since it was asked for.
    pending & KILL != 0 || !matches!(status.state, Some('S' | 'T'))
}

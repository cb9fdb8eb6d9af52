//! Makes the ledger of an ending process, while it still has its memory.
//!
//! A tracer with PTRACE_O_TRACEEXIT is notified when a thread ends, and holds it before the kernel
//! frees its memory: smaps, page tables and memory can be read as usual. The process is inspected
//! when the last of its threads is held there. This module traces nothing: the caller holds the
//! thread, takes its registers, and releases it after the inspection, which must be short: the
//! process's parent waits for its end.

use std::time::{Duration, Instant};

use super::describe;
use crate::account::Account;
use crate::capture::{Ending, Options, StoppedBy, read_process};
use crate::facts::{Explanation, RemedyKind};
use strandline_claims::caveat::Caveat;
use strandline_process::error::{Error, Result};
use strandline_process::procfs::Process;
use strandline_process::target::admission;

/// Maximum time for the other threads of an ending process to be gone.
const MAX_END_WAIT: Duration = Duration::from_secs(1);
/// Interval between checks whether they are gone.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);
/// SIGKILL (9) in a signal mask: the kernel sends it to every thread of an ending process.
const SIGKILL_BIT: u64 = 1 << 8;

/// Explains process `pid`, whose leader is held at PTRACE_EVENT_EXIT by a thread of this process
/// and not resumed before this returns. May be called on any thread. Delays the end of the target
/// by the time of the inspection, `cost.stopped_seconds`. Leaves out remedies that are calls in the
/// target.
///
/// # Errors
/// Those of [`super::explain()`], among them [`Error::Traced`] if another process holds the leader;
/// [`Error::DidNotStop`] if it is not held; [`Error::LeaderEnded`] if only the leader ends and
/// other threads run on (pthread_exit in main); [`Error::Ended`] if the process ended during the
/// inspection (kernels differ in what a second SIGKILL does).
pub fn at_exit(pid: i32, ending: &Ending<'_>, options: &Options<'_>) -> Result<Explanation> {
    let start = Instant::now();
    let process = admission::open_exiting(pid)?;
    let unfinished = wait_for_others(&process, ending)?;
    let mut frozen = read_process(&process, &StoppedBy::Ending(ending), options.reading_threads(), options)?;
    for tid in unfinished {
        let text = "the thread sleeps in the kernel while it ends: it may still have changed memory";
        frozen.caveats.push(Caveat::new("thread_asleep", format!("thread {tid}"), None, text));
    }
    let mut explanation = describe(&process, &mut Account::new(&process, frozen, options, start)?);
    // If the process ran meanwhile, what was read is not of one state.
    if !is_held(&process) {
        return Err(Error::Ended { pid });
    }
    explanation.remedies.retain(|remedy| remedy.kind != RemedyKind::Call);
    explanation.cost.stopped_seconds = start.elapsed().as_secs_f64();
    Ok(explanation)
}

/// Whether a tracer holds the leader.
fn is_held(process: &Process) -> bool {
    process.stat().is_ok_and(|stat| stat.state == Some('t'))
}

/// Waits until no other thread can access the memory any more; returns those that take long to end.
///
/// All of them were sent SIGKILL before the leader reached its end, unless only the leader ends.
fn wait_for_others(process: &Process, ending: &Ending<'_>) -> Result<Vec<i32>> {
    let deadline = Instant::now() + MAX_END_WAIT;
    loop {
        let mut unfinished = Vec::new();
        let tids = process.tasks()?;
        let mut is_any_running = !process.lists_all(&tids);
        for tid in tids {
            if ending.registers.iter().any(|&(stopped, _)| stopped == tid) {
                continue;
            }
            // It has ended meanwhile.
            let Ok(stat) = process.task_stat(tid) else { continue };
            match stat.state {
                Some('Z' | 'X' | 't') => {}
                Some('D') => unfinished.push(tid),
                _ if stat.is_ending() => unfinished.push(tid),
                Some('S' | 'T') if !is_killed(process, tid) => {
                    return Err(Error::LeaderEnded { pid: process.pid() });
                }
                // A thread in an unknown state may run.
                _ => is_any_running = true,
            }
        }
        let is_late = Instant::now() >= deadline;
        if is_any_running && is_late {
            return Err(Error::LeaderEnded { pid: process.pid() });
        }
        if !is_any_running && (unfinished.is_empty() || is_late) {
            return Ok(unfinished);
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Whether a SIGKILL is pending for the thread, or may be, or the thread is gone.
fn is_killed(process: &Process, tid: i32) -> bool {
    let Ok(status) = process.task_status(tid) else { return true };
    let pending =
        status.thread_pending_signals.unwrap_or(SIGKILL_BIT) | status.process_pending_signals.unwrap_or(0);
    // The state may have changed since it was read.
    pending & SIGKILL_BIT != 0 || !matches!(status.state, Some('S' | 'T'))
}

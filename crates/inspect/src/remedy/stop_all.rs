//! Stops all threads of a process for a moment, for the remedies that need that nobody writes.
//!
//! Call it on a thread of its own (`tracee::on_own_thread`): a thread that does not stop in time is
//! let go only by the tracer's end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use strandline_sys::ptrace;

use super::process;
use super::tracee::{NotStopped, TRACE_SYSTEM_CALLS, Tracee};

/// Looks for new threads; each finds none where the threads found before are stopped.
const MOST_ROUNDS: usize = 32;

/// Stops every thread of process `pid` within `limit`. Dropping the tracees lets them go.
pub(crate) fn stop_all(pid: i32, limit: Duration) -> Result<Vec<Tracee>, NotStopped> {
    let deadline = Instant::now() + limit;
    let mut stopped = Vec::new();
    let mut known: BTreeSet<i32> = BTreeSet::new();
    for _ in 0..MOST_ROUNDS {
        let mut fresh = process::threads(pid)?;
        fresh.retain(|tid| !known.contains(tid));
        if fresh.is_empty() {
            return Ok(stopped);
        }
        // All are asked before the first is waited for, so that they stop together.
        for &tid in &fresh {
            known.insert(tid);
            match seize(tid) {
                Ok(()) | Err(NotStopped::Gone) => {}
                Err(other) => return Err(other),
            }
        }
        for tid in fresh {
            match Tracee::stopped(pid, tid, deadline) {
                Ok(tracee) => stopped.push(tracee),
                Err(NotStopped::Gone) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Err(NotStopped::Late)
}

fn seize(tid: i32) -> Result<(), NotStopped> {
    ptrace::seize(tid, TRACE_SYSTEM_CALLS)?;
    ptrace::interrupt(tid)?;
    Ok(())
}

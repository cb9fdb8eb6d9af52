//! What is asked of a process before any of its threads is stopped: is it one whose memory can be
//! given back at all, and may we?

use super::Refusal;
use strandline_process::procfs::{Process, Status};
use strandline_process::target::admission;

/// Checks a process as a whole. Threads are judged one by one when they are chosen.
pub(crate) fn check(process: &Process) -> Result<Status, Refusal> {
    let pid = process.pid();
    let status = admission::check(process)?;
    if status.state == Some('T') {
        return Err(Refusal::Stopped { pid });
    }
    // A child of vfork runs on its parent's memory and thread pointer. Where the kernel cannot say
    // (no kcmp), the other checks stand.
    let parent = status.parent.filter(|&parent| parent > 0);
    if let Some(parent) = parent
        && strandline_sys::process::same_memory(pid, parent).unwrap_or(false)
    {
        return Err(Refusal::Unsafe {
            pid,
            what: format!("shares its memory with its parent {parent} (vfork)"),
            advice: "reclaim from the parent, or wait until it runs a program of its own",
        });
    }
    Ok(status)
}

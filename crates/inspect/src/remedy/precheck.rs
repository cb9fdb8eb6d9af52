//! Checks a process before any of its threads is stopped: whether its memory can be released at
//! all, and whether strandline is allowed to.

use super::Refusal;
use strandline_process::procfs::{Process, Status};
use strandline_process::target::admission;

/// Checks a process as a whole. Threads are checked one by one when one is chosen.
pub(crate) fn check(process: &Process) -> Result<Status, Refusal> {
    let pid = process.pid();
    let status = admission::check(process)?;
    if status.state == Some('T') {
        return Err(Refusal::Stopped { pid });
    }
    // A vfork child runs on its parent's memory and thread pointer. If the kernel cannot compare
    // the two (no kcmp), the other checks remain.
    let parent = status.parent.filter(|&parent| parent > 0);
    if let Some(parent) = parent
        && strandline_sys::process::have_same_memory(pid, parent).unwrap_or(false)
    {
        return Err(Refusal::Unsafe {
            pid,
            what: format!("shares its memory with its parent {parent} (vfork)"),
            advice: "reclaim from the parent, or wait until it runs another program (exec)",
        });
    }
    Ok(status)
}

//! What is asked of a process before any of its threads is stopped: is it one whose memory can be
//! given back at all, and may we?

use super::Refusal;
use super::process::{self, Status};

/// Checks process `pid` as a whole. Threads are judged one by one when they are chosen.
pub(crate) fn check(pid: i32) -> Result<Status, Refusal> {
    if pid == std::process::id() as i32 {
        return Err(Refusal::Myself { pid });
    }
    let status = process::status(pid, pid).map_err(|e| Refusal::from_io(pid, "status", e))?;
    if status.is_kernel_thread {
        return Err(Refusal::NoMemory { pid, what: "a kernel thread" });
    }
    match status.state {
        'Z' | 'X' => {
            let alone = process::threads(pid).map_or(true, |threads| threads.len() <= 1);
            return Err(if alone {
                Refusal::NoMemory { pid, what: "a zombie" }
            } else {
                Refusal::Unsafe {
                    pid,
                    what: "has ended its first thread, so that /proc no longer shows its memory".into(),
                    advice: "restart it to give its memory back",
                }
            });
        }
        'T' => return Err(Refusal::Stopped { pid }),
        _ => {}
    }
    if status.tracer != 0 {
        let name = process::name(status.tracer);
        return Err(Refusal::Traced { pid, tracer: status.tracer, name });
    }
    // A child of vfork runs on its parent's memory and thread pointer. Where the kernel cannot say
    // (no kcmp), the other checks stand.
    if status.parent > 0 && strandline_sys::process::same_memory(pid, status.parent).unwrap_or(false) {
        return Err(Refusal::Unsafe {
            pid,
            what: format!("shares its memory with its parent {} (vfork)", status.parent),
            advice: "reclaim from the parent, or wait until it runs a program of its own",
        });
    }
    Ok(status)
}

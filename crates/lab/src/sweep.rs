//! Ends the processes that a job left running.
//!
//! Descendants whose parents have ended are adopted by the process that called
//! `strandline_sys::process::become_subreaper`, which finds and ends them as its children, daemons
//! included.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use strandline_process::procfs::{Process, all_pids};
use strandline_sys::process::{Usage, try_reap};
use strandline_sys::signal;

/// Time for leftover processes to end after SIGTERM.
pub const GRACE: Duration = Duration::from_millis(500);
/// Time for the kernel to end killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks whether the processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Processes that were still running.
    pub leftover_processes: u32,
    /// Processes among them that did not end.
    pub unended_processes: u32,
    /// Their resource usage, as far as known.
    pub usage: Usage,
}

/// Ends all children of this process except `spared`, with all their descendants, and reaps them.
/// Processes that have not ended after `grace` are killed.
pub fn sweep(spared: &[i32], grace: Duration) -> SweepResult {
    let mut swept = SweepResult::default();
    let begin = Instant::now();
    let mut signalled = Vec::new();
    loop {
        let mut has_remaining = false;
        for pid in own_children() {
            if spared.contains(&pid) {
                continue;
            }
            match try_reap(pid) {
                Ok(Some(ended)) => {
                    swept.usage = swept.usage.plus(ended.usage);
                    has_remaining = true;
                }
                Ok(None) => {
                    has_remaining = true;
                    signal_child(pid, begin.elapsed() >= grace, &mut signalled);
                }
                // Already reaped.
                Err(_) => {}
            }
        }
        if !has_remaining {
            break;
        }
        if begin.elapsed() > grace + KILL_TIMEOUT {
            let count = own_children().iter().filter(|pid| !spared.contains(pid)).count();
            swept.unended_processes = u32::try_from(count).unwrap_or(u32::MAX);
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    swept.leftover_processes = u32::try_from(signalled.len()).unwrap_or(u32::MAX);
    swept
}

/// Sends SIGKILL to the child `pid` if it `is_overdue`, otherwise SIGTERM, once; `signalled` lists
/// the children that got a signal before.
fn signal_child(pid: i32, is_overdue: bool, signalled: &mut Vec<i32>) {
    let is_new = !signalled.contains(&pid);
    if is_new {
        signalled.push(pid);
    }
    if is_overdue {
        // Its children then become children of this process and are ended next.
        drop(signal::send(pid, Signal::SIGKILL as i32));
    } else if is_new {
        drop(signal::send(pid, Signal::SIGTERM as i32));
        // A stopped process handles SIGTERM only after it continues.
        drop(signal::send(pid, Signal::SIGCONT as i32));
    }
}

/// Process ids of the children of this process.
pub fn own_children() -> Vec<i32> {
    // Lists the children of the main thread only, which starts and adopts all of them
    // (proc_pid_task_children(5)). On kernels without CONFIG_PROC_CHILDREN every process is checked
    // for its parent.
    let own_pid = std::process::id();
    match std::fs::read_to_string(format!("/proc/{own_pid}/task/{own_pid}/children")) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        Err(_) => children_by_parent_pid(own_pid.cast_signed()),
    }
}

fn children_by_parent_pid(parent: i32) -> Vec<i32> {
    // Without /proc no child is known by its parent; those of running jobs still end with them.
    let Ok(pids) = all_pids() else { return Vec::new() };
    let stat = |pid| Process::open(pid).and_then(|process| process.stat());
    pids.filter(|&pid| stat(pid).is_ok_and(|stat| stat.parent == Some(parent))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_both_ways() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let child_pids = children_by_parent_pid(std::process::id().cast_signed());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(child_pids.contains(&pid), "{child_pids:?}");
    }
}

//! The memory budget for a copy of the target's memory, and the limits on what a process may still
//! allocate.

use std::fs;

use crate::control_groups::ControlGroups;
use crate::procfs::{self, Process, Status};

/// Maximum bytes read of /proc/PID/limits.
const MAX_LIMITS_BYTES: u64 = 64 << 10;

/// Half of what is available to strandline, including `allocated_bytes` that a copy already has.
/// Unknown memory counts as none.
pub fn copy_budget_bytes(allocated_bytes: u64) -> u64 {
    let own_process = Process::open(std::process::id().cast_signed()).ok();
    own_process.and_then(|process| available_bytes(&process)).unwrap_or(0).saturating_add(allocated_bytes) / 2
}

/// Bytes that a process can still allocate, by the memory of the machine and the limits of its
/// control groups; `None` if neither is known.
pub fn available_bytes(process: &Process) -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    machine.into_iter().chain(ControlGroups::of(process).memory_left_bytes()).min()
}

/// Number of further processes that a process may start, by its control groups and, for users
/// subject to it, by RLIMIT_NPROC; `None` if there is no limit. A limit or a count that cannot be
/// read counts as 0 left.
pub fn processes_left_to(process: &Process, status: &Status) -> Option<u64> {
    let user = status.user_ids.map(|ids| ids.real).filter(|&user| user != 0);
    let by_user = user.and_then(|user| {
        let limit = soft_limit(process, "Max processes")?;
        Some(tasks_of(user).map_or(0, |tasks| limit.saturating_sub(tasks)))
    });
    ControlGroups::of(process).processes_left().into_iter().chain(by_user).min()
}

/// The soft limit in the line `name` of /proc/PID/limits; `None` if it is "unlimited", 0 if it
/// cannot be read.
pub(crate) fn soft_limit(process: &Process, name: &str) -> Option<u64> {
    let limits = process.read_text("limits", MAX_LIMITS_BYTES).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => None,
        limit => Some(limit.and_then(|limit| limit.parse().ok()).unwrap_or(0)),
    }
}

/// Number of threads in all processes of a user that /proc shows, which RLIMIT_NPROC limits; `None`
/// if /proc cannot be listed.
fn tasks_of(user: u32) -> Option<u64> {
    let threads = procfs::all_pids().ok()?.filter_map(|pid| {
        let status = Process::open(pid).ok()?.status().ok()?;
        // A process has at least one.
        (status.user_ids?.real == user).then_some(status.threads.unwrap_or(1))
    });
    Some(threads.sum())
}

/// `MemAvailable` in the text of /proc/meminfo.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    procfs::kib(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_may_have_is_known() {
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(available_bytes(&own).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   24 kB\n"), Some(24 << 10));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert!(copy_budget_bytes(0) > 0);
    }
}

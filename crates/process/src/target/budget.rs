//! Memory for a copy of the target's: how much it may be, and how it is had before the target is stopped.

use std::fs;
use std::path::Path;

use crate::procfs::{Process, Status};

/// The most bytes read of /proc/PID/cgroup.
const MOST_GROUPS_BYTES: u64 = 1 << 20;

/// Half of what is available on this machine, and of what is left in the control group, where `taken` bytes were
/// taken for it already.
pub fn bytes(taken: u64) -> u64 {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let left = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| left_in_group(&text));
    [available, left].into_iter().flatten().min().unwrap_or(0).saturating_add(taken) / 2
}

/// What a process may still come to have, by the machine and by its control groups; `None` where neither is known.
pub fn available_to(process: &Process) -> Option<u64> {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let groups = process.read_file("cgroup", MOST_GROUPS_BYTES).ok();
    let left = groups.and_then(|text| left_in_group(&String::from_utf8_lossy(&text)));
    available.into_iter().chain(left).min()
}

/// How many processes more a process may come to have, by its control groups and, of a user who is bound by it, by
/// RLIMIT_NPROC; `None` where there is no limit, or it is not known.
pub fn processes_left_to(process: &Process, status: &Status) -> Option<u64> {
    let groups = process.read_file("cgroup", MOST_GROUPS_BYTES).unwrap_or_default();
    let in_group = String::from_utf8_lossy(&groups).lines().filter_map(processes_left_in).min();
    let user = status.users.map(|users| users[0]).filter(|&user| user != 0);
    let by_user = user.and_then(|user| {
        let limits = process.read_file("limits", MOST_GROUPS_BYTES).ok()?;
        let limits = String::from_utf8_lossy(&limits).into_owned();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max processes"))?;
        let most: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(most.saturating_sub(tasks_of(user)))
    });
    in_group.into_iter().chain(by_user).min()
}

/// Threads of all processes of a user, which is what RLIMIT_NPROC counts.
fn tasks_of(user: u32) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let threads = pids.filter_map(|pid| {
        let status = Process::open(pid).ok()?.status().ok()?;
        (status.users?[0] == user).then_some(status.threads.unwrap_or(1))
    });
    threads.sum()
}

/// Processes that are left of the limits of the group in a line of /proc/PID/cgroup, and of those above it.
fn processes_left_in(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let root = match controllers {
        "" => "/sys/fs/cgroup",
        _ if controllers.split(',').any(|one| one == "pids") => "/sys/fs/cgroup/pids",
        _ => return None,
    };
    let mut group = Path::new(root).join(path.trim_start_matches('/'));
    let mut least = None;
    while group.starts_with(root) {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(most), Some(current)) = (read("pids.max"), read("pids.current")) {
            let left = most.saturating_sub(current);
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    least
}

/// That many bytes, each page of them touched: the kernel finds and clears a page at its first touch, which takes half
/// of the time of a copy, and is done so while the target still runs. `None` where memory is refused.
pub fn touched(bytes: usize) -> Option<Vec<u8>> {
    let mut all: Vec<u8> = Vec::new();
    all.try_reserve_exact(bytes).ok()?;
    strandline_sys::host::prefer_huge_pages(all.spare_capacity_mut());
    all.resize(bytes, 0);
    Some(all)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What is left of the limits of the group and those above it; `None` where there are none. Version 2 has one tree of
/// groups, version 1 one for memory.
fn left_in_group(cgroup: &str) -> Option<u64> {
    const UNIFIED: (&str, &str, &str) = ("/sys/fs/cgroup", "memory.max", "memory.current");
    const MEMORY: (&str, &str, &str) =
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
    let of = |line: &str| {
        // NUMBER:CONTROLLERS:PATH (cgroups(7)).
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => left(UNIFIED, path),
            _ if controllers.split(',').any(|one| one == "memory") => left(MEMORY, path),
            _ => None,
        }
    };
    cgroup.lines().filter_map(of).min()
}

/// Whether a process's control groups let a copy of it be made: why not, where one of them ends all of its processes
/// together when memory is short (memory.oom.group), or stands still.
pub fn group_against(process: &Process) -> Option<&'static str> {
    let groups = process.read_file("cgroup", MOST_GROUPS_BYTES).ok()?;
    String::from_utf8_lossy(&groups).lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|one| one == "freezer") => "/sys/fs/cgroup/freezer",
            _ => return None,
        };
        let mut group = Path::new(root).join(path.trim_start_matches('/'));
        while group.starts_with(root) {
            let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
            if read("memory.oom.group").trim() == "1" && read("memory.max").trim() != "max" {
                return Some(
                    "its control group ends all of its processes where memory is short (memory.oom.group)",
                );
            }
            if read("cgroup.freeze").trim() == "1"
                || matches!(read("freezer.state").trim(), "FROZEN" | "FREEZING")
            {
                return Some("its control group stands still (frozen)");
            }
            if !group.pop() {
                break;
            }
        }
        None
    })
}

/// What is left in the group at `path` of the tree at `root` and in those above it. File pages that the kernel would drop
/// first are counted as used by it, and can be had all the same.
fn left((root, limit, usage): (&str, &str, &str), path: &str) -> Option<u64> {
    let mut group = Path::new(root).join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // Above memory.high (version 2) processes are slowed down before any limit is met.
        let most = [read(limit), read("memory.high")].into_iter().flatten().min();
        if let (Some(most), Some(current)) = (most, read(usage)) {
            let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
            let left = most.saturating_sub(current.saturating_sub(droppable(&text)));
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() || !group.starts_with(root) {
            return least;
        }
    }
}

/// The file pages of a group and those below it that were not used lately (memory.stat; version 1 has them with `total_`).
fn droppable(stat: &str) -> u64 {
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    of("total_inactive_file").or_else(|| of("inactive_file")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_pages_that_can_be_dropped_are_found_in_both_versions() {
        assert_eq!(droppable("anon 5\ninactive_file 4096\n"), 4096);
        assert_eq!(droppable("inactive_file 1\ntotal_inactive_file 8192\n"), 8192);
        assert_eq!(droppable(""), 0);
    }

    #[test]
    fn what_a_process_may_have_is_known() {
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(available_to(&own).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   24 kB\n"), Some(24 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert!(bytes(0) > 0);
    }
}

//! Memory for a copy of the target's: how much it may be, and how it is had before the target is stopped.

use std::fs;
use std::path::Path;

/// Half of what is available on this machine, and of what is left in the control group, where `taken` bytes were
/// taken for it already.
pub fn bytes(taken: u64) -> u64 {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let left = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| left_in_group(&text));
    [available, left].into_iter().flatten().min().unwrap_or(0).saturating_add(taken) / 2
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

/// What is left in the group at `path` of the tree at `root` and in those above it.
fn left((root, limit, usage): (&str, &str, &str), path: &str) -> Option<u64> {
    let mut group = Path::new(root).join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(most), Some(current)) = (read(limit), read(usage)) {
            let left = most.saturating_sub(current);
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() || !group.starts_with(root) {
            return least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   24 kB\n"), Some(24 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert!(bytes(0) > 0);
    }
}

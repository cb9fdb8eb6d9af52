//! How much memory a copy of the target's objects may take.

use std::fs;
use std::path::Path;

/// Half of what is available on this machine, and of what is left in the control group, where `taken` bytes were
/// taken for it already.
pub fn bytes(taken: u64) -> u64 {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let left = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| left_in_group(&text));
    [available, left].into_iter().flatten().min().unwrap_or(0).saturating_add(taken) / 2
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What is left of the limits of the group and those above it; `None` where there are none (cgroup v2 only).
fn left_in_group(cgroup: &str) -> Option<u64> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut group = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(most), Some(current)) = (read("memory.max"), read("memory.current")) {
            let left = most.saturating_sub(current);
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() || !group.starts_with("/sys/fs/cgroup") {
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

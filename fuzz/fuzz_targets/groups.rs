//! mountinfo, /proc/PID/cgroup and the files of a control group: whatever they contain, the rows of a
//! sample add up to the charge.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_inspect::group::sample::GroupSampler;
use strandline_process::group::{Hierarchy, Version};

/// The files in which figures stand; the parts of the input become their contents in this order.
const FILES: [&str; 15] = [
    "memory.stat",
    "memory.current",
    "memory.max",
    "memory.events",
    "memory.pressure",
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.oom_control",
    "memory.swap.current",
    "memory.peak",
    "memory.kmem.usage_in_bytes",
    "memory.kmem.tcp.usage_in_bytes",
    "memory.use_hierarchy",
    "memory.failcnt",
    "memory.soft_limit_in_bytes",
];

/// A folder of this process for a hierarchy with one group.
fn root() -> &'static PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = std::env::temp_dir().join(format!("strandline-fuzz-groups-{}", std::process::id()));
        let _ = std::fs::create_dir_all(root.join("group"));
        assert!(root.join("group").is_dir());
        root
    })
}

fuzz_target!(|input: &[u8]| {
    let mut parts = input.split(|byte| *byte == 0);
    let mounts = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let groups = String::from_utf8_lossy(parts.next().unwrap_or_default());
    if let Some(hierarchy) = Hierarchy::parse(&mounts) {
        let _ = hierarchy.path_in(&groups);
    }
    let folder = root().join("group");
    for name in FILES {
        assert!(std::fs::write(folder.join(name), parts.next().unwrap_or_default()).is_ok());
    }
    for version in [Version::One, Version::Two] {
        let Ok(group) = Hierarchy::at(version, root()).open("/group") else { continue };
        let Ok(sample) = GroupSampler::default().take(&group) else { continue };
        let sum: u128 = sample.rows.iter().map(|row| u128::from(row.bytes)).sum();
        assert_eq!(sum, u128::from(sample.figures.current_bytes));
    }
});

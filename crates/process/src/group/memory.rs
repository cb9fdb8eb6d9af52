//! What the kernel counts for a control group: charge, its parts, limits, events, pressure.
//!
//! Version 2: Documentation/admin-guide/cgroup-v2.rst; version 1: cgroup-v1/memory.rst. A file or
//! a line that is missing, malformed or overflows is `None`; nothing is guessed.

use std::io;
use std::path::Path;

use super::hierarchy::{Group, GroupError, Version};
use crate::pages::PAGE_BYTES;

/// A limit of at least this means no limit: without one, version 1 has PAGE_COUNTER_MAX, 2^63 less
/// a page (include/linux/page_counter.h).
pub const NO_LIMIT_BYTES: u64 = 1 << 62;
/// Maximum number of attempts to read the parts without a change of the charge meanwhile.
const MAX_ATTEMPTS: usize = 8;
/// Accepted change of the charge: what one processor charges at once (`MEMCG_CHARGE_BATCH`, 64
/// pages).
const MAX_CHANGE_BYTES: u64 = 64 * PAGE_BYTES;

/// The figures of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// memory.current or memory.usage_in_bytes.
    pub current_bytes: u64,
    /// Change of the charge while the parts were read, in bytes.
    pub changed_bytes: u64,
    /// The parts of the charge, including those of the groups below.
    pub parts: Parts,
    /// Its limits.
    pub limits: Limits,
    /// What happened at the limits.
    pub events: Events,
    /// Whether its tasks wait for memory at the limit now; `None` if this version does not report
    /// it, or it cannot be read.
    pub is_under_oom: Option<bool>,
    /// How long its tasks waited for memory; `None` if the kernel does not report it.
    pub pressure: Option<Pressure>,
    /// Swap in use; `None` if unknown.
    pub swap_bytes: Option<u64>,
    /// Whether its figures include the groups below it.
    pub is_hierarchical: bool,
    /// Number of removed groups below it whose memory is still charged; `None` if unknown.
    pub removed_groups: Option<u64>,
}

/// The parts of the charge in bytes, by the names of memory.stat of version 2; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Anonymous pages that are mapped.
    pub anon_bytes: Option<u64>,
    /// Pages of files, with shared memory and the swap cache.
    pub file_bytes: Option<u64>,
    /// Shared memory: tmpfs, memfd, System V, shared anonymous.
    pub shmem_bytes: Option<u64>,
    /// Pages in the swap cache.
    pub swapcached_bytes: Option<u64>,
    /// Pages of files that are mapped.
    pub file_mapped_bytes: Option<u64>,
    /// Written pages.
    pub file_dirty_bytes: Option<u64>,
    /// Pages being written.
    pub file_writeback_bytes: Option<u64>,
    /// Inactive list of file pages, which are reclaimed first.
    pub inactive_file_bytes: Option<u64>,
    /// Active list of file pages.
    pub active_file_bytes: Option<u64>,
    /// Pages that are not reclaimed: mlocked, ramfs.
    pub unevictable_bytes: Option<u64>,
    /// All memory of the kernel (Linux 5.18; version 1: memory.kmem.usage_in_bytes).
    pub kernel_bytes: Option<u64>,
    /// Stacks of threads in the kernel.
    pub kernel_stack_bytes: Option<u64>,
    /// Page tables.
    pub pagetables_bytes: Option<u64>,
    /// Page tables of devices and virtual machines.
    pub sec_pagetables_bytes: Option<u64>,
    /// Per-processor structures.
    pub percpu_bytes: Option<u64>,
    /// vmalloc.
    pub vmalloc_bytes: Option<u64>,
    /// Buffers of sockets.
    pub sock_bytes: Option<u64>,
    /// Compressed pages of zswap.
    pub zswap_bytes: Option<u64>,
    /// Size of these pages before compression.
    pub zswapped_bytes: Option<u64>,
    /// Slab objects that can be reclaimed: directory entries, inodes.
    pub slab_reclaimable_bytes: Option<u64>,
    /// Slab objects that cannot.
    pub slab_unreclaimable_bytes: Option<u64>,
    /// Huge pages of hugetlbfs, where they are charged (Linux 6.7, memory_hugetlb_accounting).
    pub hugetlb_bytes: Option<u64>,
    /// Buffers of TCP, beside the charge (version 1 only).
    pub tcp_beside_bytes: Option<u64>,
}

/// Limits and protections, in bytes; `None`: no limit, or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// memory.max, memory.limit_in_bytes.
    pub max_bytes: Option<u64>,
    /// memory.high: above it tasks are slowed down and reclaim.
    pub high_bytes: Option<u64>,
    /// memory.low: protected unless nothing else is left.
    pub low_bytes: Option<u64>,
    /// memory.min: never reclaimed.
    pub min_bytes: Option<u64>,
    /// memory.soft_limit_in_bytes (version 1).
    pub soft_bytes: Option<u64>,
    /// memory.peak, memory.max_usage_in_bytes.
    pub peak_bytes: Option<u64>,
    /// memory.swap.max.
    pub swap_bytes: Option<u64>,
}

/// How often something happened at the limits; `None` if this version does not count it, or the
/// count cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Its memory was reclaimed although the charge was below `low`.
    pub low: Option<u64>,
    /// Its tasks were slowed down because the charge was above `high`.
    pub high: Option<u64>,
    /// Charges that met the limit (version 1: memory.failcnt).
    pub max: Option<u64>,
    /// Charges that failed.
    pub oom: Option<u64>,
    /// Processes killed.
    pub oom_kill: Option<u64>,
    /// Times that all processes of the group were killed.
    pub oom_group_kill: Option<u64>,
}

/// memory.pressure: share of the time, as parts of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited, over the last 10 s.
    pub some_10s_millionths: u64,
    /// The same over 60 s.
    pub some_60s_millionths: u64,
    /// All tasks waited, over the last 10 s.
    pub full_10s_millionths: u64,
    /// The same over 60 s.
    pub full_60s_millionths: u64,
    /// Time that at least one task waited since the group exists, in microseconds.
    pub some_total_us: u64,
    /// The same for all tasks.
    pub full_total_us: u64,
}

impl Memory {
    /// Reads the figures of `group`. Reads the charge before and after its parts, and repeats all
    /// of it while the charge changes by more than a processor charges at once.
    ///
    /// # Errors
    /// [`GroupError::Gone`] or [`GroupError::NotCounted`].
    pub fn read(group: &Group) -> Result<Self, GroupError> {
        let mut best: Option<Self> = None;
        for _ in 0..MAX_ATTEMPTS {
            let charge_before = charge_bytes(group)?;
            let mut memory = Self::read_once(group);
            memory.current_bytes = charge_bytes(group)?;
            memory.changed_bytes = memory.current_bytes.abs_diff(charge_before);
            if best.as_ref().is_none_or(|best| memory.changed_bytes < best.changed_bytes) {
                best = Some(memory);
            }
            if best.as_ref().is_some_and(|best| best.changed_bytes <= MAX_CHANGE_BYTES) {
                break;
            }
        }
        best.ok_or_else(|| GroupError::Gone { path: group.path.clone() })
    }

    fn read_once(group: &Group) -> Self {
        match group.version {
            Version::One => read_version_1(group),
            Version::Two => read_version_2(group),
        }
    }
}

/// The charge, or why there is none.
fn charge_bytes(group: &Group) -> Result<u64, GroupError> {
    let name = group.version.current_file();
    let path = || group.path.clone();
    match group.read(name) {
        Ok(text) => text.trim().parse().map_err(|_| GroupError::NotCounted {
            path: path(),
            why: format!("{name} holds no number; report this with `strandline doctor`'s output"),
        }),
        Err(_) if group.is_gone() => Err(GroupError::Gone { path: path() }),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            Err(GroupError::NotCounted { path: path(), why: why_not_counted(group) })
        }
        Err(source) => Err(GroupError::Io { path: group.folder.join(name).display().to_string(), source }),
    }
}

/// Why a group of version 2 has no memory files.
fn why_not_counted(group: &Group) -> String {
    if group.text("cgroup.type").is_some_and(|kind| kind.trim() == "threaded") {
        return "it is threaded, and its memory is charged to the group above it: give that one".to_owned();
    }
    if group.path == "/" {
        return "the root group has no memory.current: give a group below it (`systemd-cgls`)".to_owned();
    }
    format!(
        "it has no {}, as the memory controller is not passed on to it (cgroup.subtree_control above it): give the group above",
        group.version.current_file()
    )
}

/// The value of `key` in text of lines `key value`.
pub fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn read_version_2(group: &Group) -> Memory {
    let stat = group.text("memory.stat").unwrap_or_default();
    let stat_of = |key: &str| value(&stat, key);
    let events = group.text("memory.events").unwrap_or_default();
    let event_count = |key: &str| value(&events, key);
    Memory {
        parts: Parts {
            anon_bytes: stat_of("anon"),
            file_bytes: stat_of("file"),
            shmem_bytes: stat_of("shmem"),
            swapcached_bytes: stat_of("swapcached"),
            file_mapped_bytes: stat_of("file_mapped"),
            file_dirty_bytes: stat_of("file_dirty"),
            file_writeback_bytes: stat_of("file_writeback"),
            inactive_file_bytes: stat_of("inactive_file"),
            active_file_bytes: stat_of("active_file"),
            unevictable_bytes: stat_of("unevictable"),
            kernel_bytes: stat_of("kernel"),
            kernel_stack_bytes: stat_of("kernel_stack"),
            pagetables_bytes: stat_of("pagetables"),
            sec_pagetables_bytes: stat_of("sec_pagetables"),
            percpu_bytes: stat_of("percpu"),
            vmalloc_bytes: stat_of("vmalloc"),
            sock_bytes: stat_of("sock"),
            zswap_bytes: stat_of("zswap"),
            zswapped_bytes: stat_of("zswapped"),
            slab_reclaimable_bytes: stat_of("slab_reclaimable"),
            slab_unreclaimable_bytes: stat_of("slab_unreclaimable"),
            hugetlb_bytes: stat_of("hugetlb"),
            tcp_beside_bytes: None,
        },
        limits: Limits {
            max_bytes: group.number("memory.max"),
            high_bytes: group.number("memory.high"),
            low_bytes: group.number("memory.low").filter(|&bytes| bytes > 0),
            min_bytes: group.number("memory.min").filter(|&bytes| bytes > 0),
            soft_bytes: None,
            peak_bytes: group.number("memory.peak"),
            swap_bytes: group.number("memory.swap.max"),
        },
        events: Events {
            low: event_count("low"),
            high: event_count("high"),
            max: event_count("max"),
            oom: event_count("oom"),
            oom_kill: event_count("oom_kill"),
            oom_group_kill: event_count("oom_group_kill"),
        },
        pressure: group.text("memory.pressure").and_then(|text| parse_pressure(&text)),
        swap_bytes: group.number("memory.swap.current"),
        is_hierarchical: true,
        removed_groups: group.text("cgroup.stat").and_then(|text| value(&text, "nr_dying_descendants")),
        ..Memory::default()
    }
}

fn read_version_1(group: &Group) -> Memory {
    let stat = group.text("memory.stat").unwrap_or_default();
    // A missing file counts as 1: Linux 5.11 and later have no other mode.
    let is_hierarchical = group.number("memory.use_hierarchy") != Some(0);
    let stat_of = |key: &str| {
        let total = is_hierarchical.then(|| value(&stat, &format!("total_{key}"))).flatten();
        total.or_else(|| value(&stat, key))
    };
    let limit = |name: &str| group.number(name).filter(|&bytes| bytes < NO_LIMIT_BYTES);
    let control = group.text("memory.oom_control").unwrap_or_default();
    Memory {
        parts: Parts {
            anon_bytes: stat_of("rss"),
            file_bytes: stat_of("cache"),
            shmem_bytes: stat_of("shmem"),
            swapcached_bytes: stat_of("swapcached"),
            file_mapped_bytes: stat_of("mapped_file"),
            file_dirty_bytes: stat_of("dirty"),
            file_writeback_bytes: stat_of("writeback"),
            inactive_file_bytes: stat_of("inactive_file"),
            active_file_bytes: stat_of("active_file"),
            unevictable_bytes: stat_of("unevictable"),
            // The root's charge is its pages alone (mm/memcontrol-v1.c, mem_cgroup_usage).
            kernel_bytes: (group.path != "/").then(|| group.number("memory.kmem.usage_in_bytes")).flatten(),
            tcp_beside_bytes: group.number("memory.kmem.tcp.usage_in_bytes"),
            ..Parts::default()
        },
        limits: Limits {
            max_bytes: limit("memory.limit_in_bytes"),
            soft_bytes: limit("memory.soft_limit_in_bytes"),
            peak_bytes: group.number("memory.max_usage_in_bytes"),
            ..Limits::default()
        },
        events: Events {
            max: group.number("memory.failcnt"),
            oom_kill: value(&control, "oom_kill"),
            ..Events::default()
        },
        is_under_oom: value(&control, "under_oom").map(|number| number != 0),
        swap_bytes: stat_of("swap"),
        is_hierarchical,
        ..Memory::default()
    }
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and the same for `full`.
fn parse_pressure(text: &str) -> Option<Pressure> {
    fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
        line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::trim)
    }
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    // From per cent.
    let millionths = |line: &str, name: &str| {
        let per_cent: f64 = field(line, name)?.parse().ok()?;
        (per_cent.is_finite() && per_cent >= 0.0).then_some((per_cent * 1e4).round() as u64)
    };
    let total_us = |line: &str| field(line, "total")?.parse().ok();
    let (some, full) = (line("some")?, line("full")?);
    Some(Pressure {
        some_10s_millionths: millionths(some, "avg10")?,
        some_60s_millionths: millionths(some, "avg60")?,
        full_10s_millionths: millionths(full, "avg10")?,
        full_60s_millionths: millionths(full, "avg60")?,
        some_total_us: total_us(some)?,
        full_total_us: total_us(full)?,
    })
}

/// The smallest limit of a group and those above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveLimit {
    /// The limit.
    pub bytes: u64,
    /// The group that has it.
    pub path: String,
}

/// A group whose limit could not be read: which limit applies to it and to the groups below it is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadLimit {
    /// Its path.
    pub path: String,
}

/// The limit that applies to `group`: the smallest of its limit and those of the groups above it.
/// `None` if there is no limit.
///
/// # Errors
/// One of these limits could not be read.
pub fn effective_limit(group: &Group) -> Result<Option<EffectiveLimit>, UnreadLimit> {
    let name = group.version.limit_file();
    let mut smallest: Option<EffectiveLimit> = None;
    let mut path = group.path.trim_end_matches('/');
    for folder in group.folder.ancestors() {
        let shown_path = if path.is_empty() { "/" } else { path };
        let limit =
            read_limit(&folder.join(name)).map_err(|_| UnreadLimit { path: shown_path.to_owned() })?;
        if let Some(bytes) = limit.filter(|&bytes| smallest.as_ref().is_none_or(|limit| bytes < limit.bytes))
        {
            smallest = Some(EffectiveLimit { bytes, path: shown_path.to_owned() });
        }
        if path.is_empty() {
            break;
        }
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
    Ok(smallest)
}

/// Reads the limit in a file; `None` if it says `max`, or does not exist: the root of version 2 and
/// groups without the memory controller have no such file.
fn read_limit(file: &Path) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    match text.trim() {
        "max" => Ok(None),
        number => {
            let bytes = number.parse::<u64>().map_err(io::Error::other)?;
            Ok(Some(bytes).filter(|&bytes| bytes < NO_LIMIT_BYTES))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hierarchy::Hierarchy;
    use super::*;

    /// A group in a folder made for the test, with these files.
    fn group(version: Version, files: &[(&str, &[u8])]) -> (tempfile::TempDir, Group) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join("a/b").join(name), text).unwrap();
        }
        let group = Hierarchy::at(version, folder.path()).open("/a/b").unwrap();
        (folder, group)
    }

    #[test]
    fn version_two_is_read_by_its_names() {
        let stat = b"anon 1000\nfile 500\nkernel 300\nshmem 100\ninactive_file 250\nactive_file 150\nslab_reclaimable 7\nanon_thp 99\nx\n";
        let (_folder, group) = group(
            Version::Two,
            &[
                ("memory.current", b"8192\n"),
                ("memory.stat", stat),
                ("memory.max", b"max\n"),
                ("memory.high", b"9000\n"),
                ("memory.low", b"0\n"),
                ("memory.events", b"low 0\nhigh 3\nmax 2\noom 1\noom_kill 1\n"),
                ("memory.pressure", b"some avg10=1.50 avg60=0.57 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.10 avg300=0.00 total=5\n"),
                ("memory.swap.current", b"4096\n"),
                ("cgroup.stat", b"nr_descendants 0\nnr_dying_descendants 2\n"),
            ],
        );
        let memory = Memory::read(&group).unwrap();
        assert_eq!((memory.current_bytes, memory.changed_bytes), (8192, 0));
        assert_eq!(
            (memory.parts.anon_bytes, memory.parts.kernel_bytes, memory.parts.sock_bytes),
            (Some(1000), Some(300), None)
        );
        assert_eq!(
            (memory.limits.max_bytes, memory.limits.high_bytes, memory.limits.low_bytes),
            (None, Some(9000), None)
        );
        assert_eq!(
            (memory.events.high, memory.events.oom_kill, memory.events.low),
            (Some(3), Some(1), Some(0))
        );
        let pressure = memory.pressure.unwrap();
        assert_eq!(
            (pressure.some_10s_millionths, pressure.some_60s_millionths, pressure.full_60s_millionths),
            (15_000, 5_700, 1_000)
        );
        assert_eq!((memory.swap_bytes, memory.removed_groups), (Some(4096), Some(2)));
    }

    #[test]
    fn version_one_has_totals_and_no_limit_is_a_large_number() {
        let stat =
            b"cache 1\nrss 2\ntotal_cache 500\ntotal_rss 1000\ntotal_inactive_file 300\ntotal_swap 0\n";
        let files: [(&str, &[u8]); 7] = [
            ("memory.usage_in_bytes", b"8192\n"),
            ("memory.stat", stat),
            ("memory.limit_in_bytes", b"9223372036854771712\n"),
            ("memory.failcnt", b"4\n"),
            ("memory.oom_control", b"oom_kill_disable 0\nunder_oom 1\noom_kill 6\n"),
            ("memory.kmem.usage_in_bytes", b"64\n"),
            ("memory.use_hierarchy", b"1\n"),
        ];
        let (folder, group) = group(Version::One, &files);
        let memory = Memory::read(&group).unwrap();
        assert_eq!(
            (memory.parts.anon_bytes, memory.parts.file_bytes, memory.parts.kernel_bytes),
            (Some(1000), Some(500), Some(64))
        );
        assert_eq!((memory.limits.max_bytes, memory.swap_bytes, memory.pressure), (None, Some(0), None));
        let events = memory.events;
        assert_eq!((events.max, events.oom_kill, memory.is_under_oom), (Some(4), Some(6), Some(true)));
        std::fs::write(folder.path().join("a/b/memory.use_hierarchy"), "0\n").unwrap();
        let memory = Memory::read(&group).unwrap();
        assert_eq!((memory.parts.anon_bytes, memory.is_hierarchical), (Some(2), false));
    }

    #[test]
    fn the_smallest_limit_above_holds() {
        let (folder, group) = group(Version::Two, &[("memory.max", b"9000\n")]);
        let limit = |bytes, path: &str| Ok(Some(EffectiveLimit { bytes, path: path.to_owned() }));
        assert_eq!(effective_limit(&group), limit(9000, "/a/b"));
        std::fs::write(folder.path().join("a/memory.max"), "5000").unwrap();
        assert_eq!(effective_limit(&group), limit(5000, "/a"));
        std::fs::write(folder.path().join("memory.max"), "100").unwrap();
        assert_eq!(effective_limit(&group), limit(100, "/"));
        std::fs::write(folder.path().join("a/memory.max"), "").unwrap();
        assert_eq!(effective_limit(&group), Err(UnreadLimit { path: "/a".to_owned() }));
        for name in ["a/b/memory.max", "a/memory.max", "memory.max"] {
            std::fs::write(folder.path().join(name), "max\n").unwrap();
        }
        assert_eq!(effective_limit(&group), Ok(None));
    }

    #[test]
    fn a_group_without_figures_has_a_reason() {
        let error_of = |files: &[(&str, &[u8])]| {
            let (_folder, group) =
                group(Version::Two, &[&[("cgroup.procs", b"".as_slice())], files].concat());
            Memory::read(&group).unwrap_err().to_string()
        };
        assert!(error_of(&[]).contains("cgroup.subtree_control"));
        assert!(error_of(&[("cgroup.type", b"threaded\n")]).contains("threaded"));
        assert!(error_of(&[("memory.current", b"lots\n")]).contains("holds no number"));
        let (folder, group) = group(Version::Two, &[]);
        let root = Hierarchy::at(Version::Two, folder.path()).open("/").unwrap();
        std::fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        assert!(Memory::read(&root).unwrap_err().to_string().contains("the root"));
        std::fs::remove_dir(folder.path().join("a/b")).unwrap();
        assert!(Memory::read(&group).unwrap_err().to_string().contains("was removed"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            stat in proptest::collection::vec(any::<u8>(), 0..400),
            lines in "((total_)?(anon|rss|file|cache|kernel|sock|shmem)[ =][0-9]{0,25}\n){0,9}",
            version in prop_oneof![Just(Version::One), Just(Version::Two)],
        ) {
            let text = [stat.as_slice(), b"\n", lines.as_bytes()].concat();
            let files: Vec<(&str, &[u8])> = ["memory.stat", "memory.events", "memory.pressure", "memory.oom_control"]
                .into_iter()
                .map(|name| (name, text.as_slice()))
                .chain([(version.current_file(), b"77".as_slice())])
                .collect();
            let (_folder, group) = group(version, &files);
            prop_assert_eq!(Memory::read(&group).unwrap().current_bytes, 77);
        }
    }
}

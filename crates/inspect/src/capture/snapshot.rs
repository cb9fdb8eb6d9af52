//! Decides whether to read a process from a snapshot, and guards the snapshot while it is read.
//!
//! [`strandline_process::snapshot`] makes it. Everything that is known to be harmful is checked
//! before the process is stopped.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use strandline_claims::units::{bytes, counted};
use strandline_process::call::code::CallSites;
use strandline_process::control_groups::ControlGroups;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::pages;
use strandline_process::procfs::{Process, Status};
use strandline_process::range::AddressRange;
use strandline_process::smaps::{Smaps, SmapsEntry};
use strandline_process::snapshot::{self, Snapshot, SnapshotCost, needed_bytes};
use strandline_process::target::{asleep, budget, exit_watch, holders};
use strandline_sys::host::{KernelVersion, kernel_version};
use strandline_sys::interrupt::{self, EndDelay};

/// When to read a process from a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotMode {
    /// Never.
    #[default]
    Never,
    /// If a snapshot is harmless, and it stops the process for less time than reading does.
    IfShorter,
    /// If it is harmless; otherwise the process is stopped while it is read, with a caveat.
    IfPossible,
    /// Always; if it is not possible, the process is not inspected.
    Always,
}

/// A snapshot ends by itself after this time, plus `LIFETIME_PER_GIB`, on an idle machine.
const MIN_LIFETIME: Duration = Duration::from_secs(15);
/// Added to its lifetime for each GiB of anonymous memory.
const LIFETIME_PER_GIB: Duration = Duration::from_secs(5);
/// Maximum lifetime: if strandline dies, nothing watches whether memory runs low.
pub const MAX_LIFETIME: Duration = Duration::from_secs(60);
/// Length of the stop for each GiB of anonymous memory, which the clone takes, with a margin.
const STOP_PER_GIB: Duration = Duration::from_millis(60);
/// The same if smaps is read in the stop too.
const STOP_PER_GIB_WITH_SMAPS: Duration = Duration::from_millis(180);
/// Interval between checks whether memory runs low.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between checks whether a signal of a watched process was passed on.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of these checks: a program may get one signal after the other.
const MAX_SIGNAL_CHECKS: u32 = 20;
/// Minimum number of further processes that must be allowed: the program may start some meanwhile.
const MIN_PROCESSES: u64 = 16;

/// A snapshot that may be taken.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the instructions to use are in the target.
    pub code: CallSites,
    /// Time after which it ends by itself.
    pub lifetime: Duration,
    /// How long taking it may stop the process, with a margin.
    pub longest_stop: Duration,
    /// Whether it gets the memory that the program keeps from its children (MADV_DONTFORK).
    pub with_hidden: bool,
    /// Its private anonymous mappings before the stop, by address. With `with_hidden`, `None` means
    /// that smaps has to be read in the stop; without it, they are not needed.
    pub mappings_before: Option<Vec<KnownMapping>>,
}

/// A mapping as smaps had it before the stop.
#[derive(Clone, Debug)]
pub struct KnownMapping {
    /// The mapping.
    pub mapping: Mapping,
    /// Whether the program keeps it from its children.
    pub is_hidden: bool,
}

/// Whether the program keeps this private anonymous mapping from its children; only smaps shows it.
pub fn is_hidden(entry: &SmapsEntry) -> bool {
    entry.mapping.is_private_anonymous() && entry.flags.has(b"dc") && !entry.flags.has(b"wf")
}

/// The hidden ranges of a process. V8 has a mapping for each of its pages.
pub fn hidden_ranges(smaps: &Smaps) -> Vec<AddressRange> {
    joined(smaps.entries.iter().map(|entry| is_hidden(entry).then(|| entry.mapping.range())))
}

/// Joins the ranges of hidden mappings between which there is no other mapping. `mappings` are all
/// of them, in address order: `None` for one that is not hidden.
pub fn joined(mappings: impl Iterator<Item = Option<AddressRange>>) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    let mut was_hidden = false;
    for hidden in mappings {
        match (hidden, ranges.last_mut().filter(|_| was_hidden)) {
            (Some(range), Some(last)) => last.end = range.end,
            (Some(range), None) => ranges.push(range),
            (None, _) => {}
        }
        was_hidden = hidden.is_some();
    }
    ranges
}

/// Returns the private anonymous mappings of the running process; `None` if smaps has to be read in
/// the stop anyway, or was not understood.
///
/// # Errors
/// It hides more ranges than a snapshot can show.
fn known_mappings(process: &Process, status: &Status) -> Result<Option<Vec<KnownMapping>>, String> {
    if !pages::has_scan() || status.locked_bytes != Some(0) {
        return Ok(None);
    }
    // If smaps cannot be read now, the read in the stop reports it.
    let smaps = process.open_file("smaps").ok();
    let smaps = smaps.and_then(|file| exit_watch::run_while_watching(|| Smaps::read(&file)).ok());
    let Some(smaps) = smaps.filter(|smaps| smaps.bad_lines == 0) else { return Ok(None) };
    if hidden_ranges(&smaps).len() > snapshot::MAX_HIDDEN {
        return Err("it keeps too many ranges of memory from its children".to_owned());
    }
    let private = smaps.entries.iter().filter(|entry| entry.mapping.is_private_anonymous());
    let known_mapping =
        |entry: &SmapsEntry| KnownMapping { mapping: entry.mapping.clone(), is_hidden: is_hidden(entry) };
    Ok(Some(private.map(known_mapping).collect()))
}

/// Checks whether a snapshot of the process with the mappings `space` is possible and harmless,
/// with the memory that it keeps from its children or without.
///
/// # Errors
/// The reason against it.
pub fn plan(
    process: &Process,
    space: &AddressSpace,
    max_stop: Option<Duration>,
    with_hidden: bool,
) -> Result<Plan, String> {
    let mut status = process.status().map_err(|error| error.to_string())?;
    // 't': a thread of strandline watches the process, and passes on a signal to it or listens for
    // its continuation. The next signal may follow at once.
    for _ in 0..MAX_SIGNAL_CHECKS {
        if status.state != Some('t') {
            break;
        }
        exit_watch::sleep_while_watching(SIGNAL_CHECK_INTERVAL);
        status = process.status().map_err(|error| error.to_string())?;
    }
    if matches!(status.state, Some('T' | 't')) {
        return Err("the process is stopped by a signal".to_owned());
    }
    check_parent(process, &status)?;
    // What it maps meanwhile would count as hidden.
    if with_hidden && let Some(other) = asleep::sharer(process).map_err(|error| error.to_string())? {
        return Err(format!("it has {other}"));
    }
    if status.hugetlb_bytes.is_some_and(|bytes| bytes > 0) {
        return Err("it has reserved huge pages (hugetlb), and a copy could take the last of them".to_owned());
    }
    check_writers(process, space)?;
    if let Some(objection) = ControlGroups::of(process).objection_to_copy() {
        return Err(objection.to_owned());
    }
    let anonymous_bytes = status.anonymous_bytes.ok_or("its anonymous memory is not known (RssAnon)")?;
    check_memory(process, &status, anonymous_bytes)?;
    let gibs = anonymous_bytes as f64 / (1_u64 << 30) as f64;
    let mappings_before = if with_hidden { known_mappings(process, &status)? } else { None };
    let reads_smaps = with_hidden && mappings_before.is_none();
    let stop_per_gib = if reads_smaps { STOP_PER_GIB_WITH_SMAPS } else { STOP_PER_GIB };
    let longest_stop = stop_per_gib.mul_f64(gibs);
    if max_stop.is_some_and(|max_stop| longest_stop > max_stop) {
        let milliseconds = longest_stop.as_secs_f64() * 1e3;
        return Err(format!(
            "taking it may stop the process for {milliseconds:.0} ms, longer than --max-stop allows"
        ));
    }
    if status.is_under_seccomp() {
        snapshot::filters_allow(process, with_hidden)?;
    }
    let code = CallSites::find(process, space)
        .ok_or("its code has no system call and no return from a signal handler that could be used")?;
    let lifetime = (MIN_LIFETIME + LIFETIME_PER_GIB.mul_f64(gibs)).saturating_mul(tasks_per_processor());
    let lifetime = lifetime.min(MAX_LIFETIME);
    Ok(Plan { code, lifetime, longest_stop, with_hidden, mappings_before })
}

/// Fails if the process shares its memory with its parent, or if that is not known.
fn check_parent(process: &Process, status: &Status) -> Result<(), String> {
    let parent = status.parent.ok_or("its parent is not known (PPid)")?;
    // The parent is in another pid namespace (0): no vfork crosses that.
    if parent == 0 {
        return Ok(());
    }
    match strandline_sys::process::have_same_memory(process.pid(), parent) {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!("it shares its memory with its parent {parent} (vfork)")),
        Err(error) => match error.raw_os_error() {
            // A parent that may not be traced has other credentials, whereas a child of vfork has
            // those of its parent; or the parent is gone. A container's seccomp filter may also
            // return EPERM for kcmp: then a child of vfork is not recognised.
            Some(EPERM | ESRCH) => Ok(()),
            Some(ENOSYS) => {
                Err("this kernel cannot say whether it shares its parent's memory (kcmp)".to_owned())
            }
            _ => Err(format!("strandline cannot compare its memory with its parent's (kcmp: {error})")),
        },
    }
}

/// The number of tasks that compete for each processor that strandline may use, at least 1: reading
/// takes that many times as long. Source: the fourth field of /proc/loadavg (proc_loadavg(5)); if
/// it cannot be read, the machine counts as idle.
fn tasks_per_processor() -> u32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running =
        text.split_ascii_whitespace().nth(3).and_then(|field| field.split('/').next()?.parse().ok());
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    running.unwrap_or(1_u32).div_ceil(processors).max(1)
}

// Error numbers of kcmp(2).
const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const ENOSYS: i32 = 38;
/// The first kernel with `CLOSE_RANGE_UNSHARE`, by which the copy drops the program's descriptors.
const FIRST_WITH_UNSHARE: KernelVersion = KernelVersion { major: 5, minor: 9 };
/// The first kernel whose fork copies pages that a device is writing to (a7e689dd1c06, "block:
/// Convert bio_iov_iter_get_pages to use iov_iter_extract_pages"): before, the program could lose
/// what the device writes (open(2), O_DIRECT).
const FIRST_COPYING_PINNED: KernelVersion = KernelVersion { major: 6, minor: 5 };

/// Fails if a copy would disturb something that writes to its memory or monitors it.
fn check_writers(process: &Process, space: &AddressSpace) -> Result<(), String> {
    let kernel = kernel_version();
    if kernel.is_none_or(|kernel| kernel < FIRST_WITH_UNSHARE) {
        return Err(
            "a copy would keep the program's descriptors open on this kernel (not known to be Linux 5.9 or \
                    later)"
                .to_owned(),
        );
    }
    let copies_pinned = kernel.is_some_and(|kernel| kernel >= FIRST_COPYING_PINNED);
    let harmless: &[&str] = if copies_pinned { &["io_uring", "kernel AIO"] } else { &[] };
    let text = |error: strandline_process::error::Error| error.to_string();
    if let Some(holder) = holders::find_except(process, space, harmless).map_err(text)? {
        return Err(format!("it has {holder}, which a copy of the process would disturb"));
    }
    let direct = holders::direct_mounts(process).map_err(text)?;
    if !copies_pinned && !direct.is_empty() {
        return Err("it has files open for direct input and output: on this kernel (not known to be Linux 6.5 or later) it \
                    could lose what it reads while it is copied"
            .to_owned());
    }
    let types = if direct.is_empty() { Default::default() } else { process.mount_types().map_err(text)? };
    let kinds = direct.ids.iter().map(|mount| types.get(mount).map_or("unknown", String::as_str));
    let kinds = kinds.chain(direct.may_lack_others.then_some("unknown"));
    if let Some(kind) = kinds.filter(|kind| !pins_pages(kind)).min() {
        return Err(format!(
            "it has files open for direct input and output on a file system ({kind}) where it could lose what it reads while it \
             is copied"
        ));
    }
    Ok(())
}

/// Whether a file system is known to pin the pages that a direct read writes to, so that the kernel
/// copies them for a child at once: local ones do. NFS, 9p, ceph and older FUSE do not; unknown
/// ones count as if they did not.
fn pins_pages(kind: &str) -> bool {
    const LOCAL: [&str; 9] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "devtmpfs", "overlay"];
    LOCAL.contains(&kind)
}

/// Fails if there is too little memory for it, or if one more process is not allowed.
fn check_memory(process: &Process, status: &Status, anonymous_bytes: u64) -> Result<(), String> {
    // The kernel would count the copy as committed memory, and refuse the program's own requests
    // meanwhile.
    match fs::read_to_string("/proc/sys/vm/overcommit_memory").as_deref().map(str::trim) {
        Ok("2") => {
            return Err(
                "this machine does not overcommit memory (vm.overcommit_memory is 2): a copy could make it \
                        refuse memory to the program"
                    .to_owned(),
            );
        }
        Ok(_) => {}
        Err(error) => return Err(format!("vm.overcommit_memory cannot be read ({error})")),
    }
    let needed = needed_bytes(anonymous_bytes);
    let available =
        budget::available_bytes(process).ok_or("the available memory is not known (MemAvailable)")?;
    if available < needed {
        return Err(format!(
            "the pages that the program writes to meanwhile may take {}, and {} is available",
            bytes(needed),
            bytes(available)
        ));
    }
    if let Some(left) = budget::processes_left_to(process, status).filter(|&left| left < MIN_PROCESSES) {
        return Err(format!(
            "it may start only {} (pids.max or RLIMIT_NPROC)",
            counted(left, "more process")
        ));
    }
    Ok(())
}

/// A snapshot while it is read; it is ended if memory runs low, or if a signal ends strandline.
#[derive(Debug)]
pub struct GuardedSnapshot {
    /// The snapshot, while it is guarded.
    pub snapshot: Arc<Snapshot>,
    /// Set once nothing reads it any more.
    is_over: Arc<AtomicBool>,
    /// Returns whether it ended the snapshot because memory ran low.
    watcher: Option<JoinHandle<bool>>,
    /// A signal to strandline ends the snapshot first.
    _delay: EndDelay,
}

impl GuardedSnapshot {
    /// Guards a snapshot from now on; `delay` began before it was taken.
    pub fn new(snapshot: Snapshot, delay: EndDelay) -> Self {
        let (snapshot, is_over) = (Arc::new(snapshot), Arc::new(AtomicBool::new(false)));
        let watcher = {
            let (snapshot, is_over) = (Arc::clone(&snapshot), Arc::clone(&is_over));
            move || {
                while !is_over.load(Ordering::Acquire) {
                    if interrupt::is_pending() {
                        snapshot.end();
                        interrupt::end_if_pending();
                    }
                    if snapshot.is_too_costly() {
                        snapshot.kill();
                        return true;
                    }
                    std::thread::park_timeout(MEMORY_CHECK_INTERVAL);
                }
                false
            }
        };
        // If no thread can be started, the kernel's out-of-memory killer takes the snapshot first.
        let watcher = std::thread::Builder::new().name("snapshot".into()).spawn(watcher).ok();
        Self { snapshot, is_over, watcher, _delay: delay }
    }

    /// Ends it and returns its cost. Fails if it had ended before: what was read from it is invalid
    /// then.
    pub fn end(mut self) -> Result<SnapshotCost, String> {
        let was_alive = self.snapshot.is_alive();
        if self.stop_watching() {
            return Err("memory ran low while it was read, and it was ended".to_owned());
        }
        if !was_alive {
            return Err("it ended before it was read".to_owned());
        }
        Ok(self.snapshot.end())
    }

    /// Stops watching memory; returns whether the snapshot was ended because memory ran low.
    fn stop_watching(&mut self) -> bool {
        self.is_over.store(true, Ordering::Release);
        let Some(watcher) = self.watcher.take() else { return false };
        watcher.thread().unpark();
        // A watcher that panicked has not ended the snapshot.
        watcher.join().unwrap_or(false)
    }
}

impl Drop for GuardedSnapshot {
    fn drop(&mut self) {
        self.stop_watching();
        if !self.snapshot.has_ended() {
            self.snapshot.end();
        }
    }
}

//! The ledger of a control group: every byte that the kernel charges to it on one row, and who
//! holds it.
//!
//! The kernel counts the charge by kind (memory.stat); `parts` makes these kinds add up to the
//! charge. `shares` divides each kind among processes and files, as far as they are known.
//! `verdict` draws conclusions. [`explain_group`] stops no process; [`ledgers`] may.

pub mod advice;
pub mod facts;
pub mod ledgers;
mod parts;
mod processes;
pub mod reclaim;
pub mod rows;
pub mod sample;
mod shares;
pub mod verdict;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use strandline_claims::Caveat;
use strandline_claims::units::{counted, thousands};
use strandline_process::group::charge::ChargeSampler;
use strandline_process::group::files::{FileSearch, Files};
use strandline_process::group::find::{Bounds, Members, arguments_for};
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::kernel_log;
use strandline_process::group::memory::{EffectiveLimit, Memory, UnreadLimit, effective_limit};
use strandline_process::group::shared_memory::SharedMemoryWalk;
use strandline_process::group::{Group, Hierarchy, Version};
use strandline_process::procfs::Process;
use strandline_process::work;

use self::facts::{GroupExplanation, GroupKill, GroupRemedy, GroupTarget};
use self::processes::GroupProcesses;
use self::rows::Inputs;
use crate::facts::Cost;

/// Maximum time to read the proportional set sizes of processes. With this and the following
/// limits, a group of any size takes about half a second.
const MAX_PSS_TIME: Duration = Duration::from_millis(300);
/// Maximum time to search for files in the page cache.
const MAX_FILES_TIME: Duration = Duration::from_millis(240);
/// Maximum time to search for files in shared memory.
const MAX_WALK_TIME: Duration = Duration::from_millis(100);
/// Maximum time to find the groups that pages are charged to.
const MAX_SAMPLE_TIME: Duration = Duration::from_millis(120);
/// Maximum time to read the kernel's log; another thread reads files meanwhile.
const MAX_LOG_TIME: Duration = Duration::from_millis(100);
/// Inode of the folder of the real root of control groups (kernfs).
const ROOT_INODE: u64 = 1;
/// Maximum number of processors in a range: a damaged text could name more.
const MAX_PROCESSORS: u64 = 1 << 20;

/// Makes the ledger of `group`, without stopping a process.
///
/// # Errors
/// The group was removed, or its memory is not counted.
pub fn explain_group(hierarchy: &Hierarchy, group: &Group) -> Result<GroupExplanation, GroupError> {
    let start = Instant::now();
    let members = hierarchy.members(group, Bounds::default());
    // Processes and files are read in parallel.
    let (files, (processes, memory, kills)) = work::in_parallel(
        || find_files(hierarchy, &members),
        || {
            let processes = GroupProcesses::read(&members, MAX_PSS_TIME);
            let memory = Memory::read(group);
            // The log has paths from the real root: below another root, or an unreadable one, no
            // kill can be assigned to this group.
            let is_real_root = std::fs::metadata(&hierarchy.root).is_ok_and(|root| root.ino() == ROOT_INODE);
            let kills = if is_real_root { kernel_log::kills(MAX_LOG_TIME) } else { None };
            (processes, memory, kills)
        },
    );
    let (memory, limit) = (memory?, effective_limit(group));
    let kills = kills.or_else(|| counts_no_kill(group, &members, &memory).then(Vec::new));
    let mut explanation = GroupExplanation {
        target: GroupTarget {
            kind: "cgroup".to_owned(),
            path: group.path.clone(),
            folder: group.folder.display().to_string(),
            arguments: arguments_for(&group.path),
            processes: processes.all.len() as u64,
        },
        caveats: caveats(&memory, &limit, &members, &processes, &files)
            .into_iter()
            .chain(caveat_if(kills.is_none(), "kills_not_read", || {
                "the kernel's log could not be read for it (no time, or only root on the host may): which of its processes the kernel killed is unknown"
                    .to_owned()
            }))
            .collect(),
        cgroup: facts::GroupFigures::new(group, &memory, limit),
        groups: facts::children(hierarchy, group, &members),
        kills: GroupKill::of_group(
            &group.path,
            kills.unwrap_or_default(),
            strandline_sys::host::monotonic_time(),
        ),
        remedies: memory_reclaim(group, &memory).into_iter().collect(),
        processes: processes.facts(&members),
        ..GroupExplanation::default()
    };
    let inputs =
        Inputs { memory: &memory, processes: &processes, files: &files, processors: online_processors() };
    rows::fill_in(&mut explanation, &inputs);
    verdict::set_verdict(&mut explanation);
    explanation.advice = advice::advice(&explanation);
    explanation.cost = Cost {
        wall_seconds: start.elapsed().as_secs_f64(),
        peak_rss_bytes: strandline_sys::host::own_peak_rss_bytes().ok(),
        ..Cost::default()
    };
    Ok(explanation)
}

/// Whether the kernel's counter says that it killed no process of the group. Version 1 does not
/// count those of the groups below.
fn counts_no_kill(group: &Group, members: &Members, memory: &Memory) -> bool {
    let counts_all = group.version == Version::Two || members.groups.len() <= 1 && !members.is_cut;
    counts_all && memory.events.oom_kill == Some(0)
}

/// The id of the remedy by which the kernel reclaims from a group.
pub const MEMORY_RECLAIM: &str = "memory_reclaim";
/// What is named as the remedy where none was requested: in each process the call that releases
/// most.
pub const BEST_CALLS: &str = "calls";
/// The file of a group that requests [`MEMORY_RECLAIM`] (Linux 5.19).
pub const MEMORY_RECLAIM_FILE: &str = "memory.reclaim";

/// What memory.reclaim would release without touching anything in use: clean inactive page cache.
/// `None` if the kernel does not offer it.
fn memory_reclaim(group: &Group, memory: &Memory) -> Option<GroupRemedy> {
    group.file(MEMORY_RECLAIM_FILE).exists().then(|| {
        let parts = &memory.parts;
        let unwritten = parts.file_dirty_bytes.zip(parts.file_writeback_bytes);
        let unwritten = unwritten.map(|(dirty, writeback)| dirty.saturating_add(writeback));
        let inactive_and_unwritten = parts.inactive_file_bytes.zip(unwritten);
        GroupRemedy {
            id: MEMORY_RECLAIM.to_owned(),
            kind: "reclaim".to_owned(),
            predicted_bytes: inactive_and_unwritten
                .map(|(inactive, unwritten)| inactive.saturating_sub(unwritten)),
            processes: 0,
            cost: "files that are used again are read from disk again".to_owned(),
        }
    })
}

/// The files that the processes use, and those of shared memory that they see.
fn find_files(hierarchy: &Hierarchy, members: &Members) -> Files {
    // A group or process that cannot be opened is gone.
    let folders = members.groups.iter().filter_map(|path| std::fs::metadata(hierarchy.root.join(path)).ok());
    let inodes: BTreeSet<u64> = folders.map(|folder| folder.ino()).collect();
    let mut search = FileSearch::new(MAX_FILES_TIME, ChargeSampler::new(inodes), MAX_SAMPLE_TIME);
    let mut walk = SharedMemoryWalk::new(MAX_WALK_TIME);
    for member in &members.processes {
        let Ok(process) = Process::open(member.pid) else { continue };
        search.add_process(&process);
        walk.add_process(&process, &mut search);
    }
    if members.processes.is_empty()
        && let Ok(own) = Process::open(std::process::id().cast_signed())
    {
        // Files that ended processes left in shared memory are searched for from here.
        walk.add_process(&own, &mut search);
    }
    let mut files = search.finish();
    files.has_unread_names |= walk.is_cut;
    files
}

/// Number of processors that are online, each of which may charge some memory in advance; if that
/// cannot be read, those on which strandline may run.
fn online_processors() -> u64 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(last.checked_sub(first)?.min(MAX_PROCESSORS) + 1)
    };
    let online: Option<u64> = text.split(',').map(count).sum();
    online.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
}

/// What was not read.
fn caveats(
    memory: &Memory,
    limit: &Result<Option<EffectiveLimit>, UnreadLimit>,
    members: &Members,
    processes: &GroupProcesses,
    files: &Files,
) -> Vec<Caveat> {
    let (invisible, estimated) = (members.invisible_processes, processes.estimated_count);
    let of_processes = [
        caveat_if(invisible > 0, "other_pid_namespace", || {
            format!(
                "strandline cannot see {} of it from this pid namespace: run strandline on the host",
                counted(invisible, "process")
            )
        }),
        caveat_if(members.is_cut, "too_many_groups", || {
            "it has groups or processes that strandline has not read (too many, or no permission)".to_owned()
        }),
        caveat_if(estimated > 0, "pss_not_read", || {
            format!(
                "strandline read RssAnon of {} instead of the proportional share (no permission, or no time): shared pages \
                 count for each",
                counted(estimated, "process")
            )
        }),
    ];
    let removed = memory.removed_groups.unwrap_or(0);
    let changed = (memory.changed_bytes > parts::STOCK_BYTES).then_some(memory.changed_bytes);
    let of_charge = [
        caveat_if(!memory.is_hierarchical, "not_hierarchical", || {
            "memory.use_hierarchy is 0: groups below it are not in its charge".to_owned()
        }),
        caveat_if(removed > 0, "removed_groups", || {
            format!(
                "its charge includes memory of {} below it that the kernel still has",
                counted(removed, "removed group")
            )
        }),
        changed.map(|bytes| {
            let text = "its charge changed while the parts were read";
            Caveat::new("group_changing", PLACE, Some(bytes), text)
        }),
        limit.as_ref().err().map(|UnreadLimit { path }| {
            let text = "its memory limit could not be read: which limit applies is unknown";
            Caveat::new("limit_unread", format!("{PLACE} {path}"), None, text)
        }),
    ];
    of_processes.into_iter().chain(file_caveats(files)).chain(of_charge).flatten().collect()
}

/// What was not read of files.
fn file_caveats(files: &Files) -> [Option<Caveat>; 5] {
    let unreadable = files.unreadable_files + files.unlisted_processes;
    let unsampled = files.unsampled_files;
    [
        caveat_if(files.has_unread_names, "files_left", || {
            "strandline did not read all files (no time, no permission, or too many): their bytes are on the rows without a file, and rows of \
             files may count pages that are charged to other groups"
                .to_owned()
        }),
        caveat_if(unreadable > 0, "files_not_readable", || {
            format!(
                "strandline could not read some files, or lists of the files of processes ({}): their bytes are on the rows \
                 without a file",
                thousands(unreadable)
            )
        }),
        caveat_if(files.remote_files > 0, "remote_files", || {
            format!(
                "strandline does not read files of remote file systems ({}): their bytes are on the rows without a file",
                thousands(files.remote_files)
            )
        }),
        caveat_if(files.is_sampled && unsampled > 0, "residency_not_charge", || {
            format!(
                "strandline had no time to find the groups that some files are charged to ({}): their rows count their page \
                 cache",
                thousands(unsampled)
            )
        }),
        caveat_if(!files.is_sampled && !files.files.is_empty(), "residency_not_charge", || {
            "bytes of files are their page cache, which may be charged to other groups (root can read /proc/kpagecgroup)"
                .to_owned()
        }),
    ]
}

/// What caveats on a group are about.
const PLACE: &str = "control group";

/// Makes a caveat on a group if it applies.
fn caveat_if(applies: bool, code: &str, text: impl FnOnce() -> String) -> Option<Caveat> {
    applies.then(|| Caveat::new(code, PLACE, None, text()))
}

#[cfg(test)]
mod tests;

//! What is known about a control group, as data: the shape of `explain --cgroup --json`
//! (`docs/schema.md`). Sizes are bytes, unknown is `None`, never 0.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use strandline_claims::Caveat;
use strandline_process::group::find::Members;
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::kernel_log::OomKill;
use strandline_process::group::memory::{EffectiveLimit, Memory, NO_LIMIT_BYTES, Pressure, UnreadLimit};
use strandline_process::group::{Group, Hierarchy, Version};

use super::advice::Advice;
use crate::facts::{Cost, HolderKind, State, Totals, Verdict};

/// Maximum number of kills that are listed, the last ones.
const MAX_KILLS: usize = 16;
/// Age from which a kill is irrelevant to the current state of the group.
const MAX_KILL_AGE_SECONDS: f64 = 3600.0;
/// Maximum number of groups below the inspected one that are listed, the largest. The rows contain
/// the memory of all.
const MAX_CHILDREN: usize = 1000;

/// What `explain --cgroup` reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupExplanation {
    /// The group.
    pub target: GroupTarget,
    /// The kernel's own figures.
    pub cgroup: GroupFigures,
    /// The ledger: every charged byte on exactly one row, largest first.
    pub rows: Vec<GroupRow>,
    /// The rows, added up by state.
    pub totals: Totals,
    /// Its processes and those of the groups below it, largest first.
    pub processes: Vec<GroupProcess>,
    /// The groups directly below it, largest first, at most `MAX_CHILDREN`. The memory of all is in
    /// the rows too.
    pub groups: Vec<ChildGroup>,
    /// Its processes that the kernel killed for lack of memory, by the kernel's log: the last
    /// `MAX_KILLS`, the last one first. With the caveat `kills_not_read` they are unknown.
    #[serde(default)]
    pub kills: Vec<GroupKill>,
    /// What releases memory, best first.
    pub remedies: Vec<GroupRemedy>,
    /// What to set, ready to paste.
    pub advice: Vec<Advice>,
    /// The conclusion.
    pub verdict: Verdict,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// Cost of the inspection.
    pub cost: Cost,
}

impl GroupExplanation {
    /// The last kill at the limit that holds for the group now, if it is not old.
    pub fn kill_at_limit(&self) -> Option<&GroupKill> {
        let limit = self.cgroup.effective_limit_path.as_ref()?;
        let is_at_limit = |kill: &&GroupKill| kill.limit_cgroup.as_ref() == Some(limit);
        self.kills.iter().find(is_at_limit).filter(|kill| kill.seconds_ago < MAX_KILL_AGE_SECONDS)
    }
}

/// A process that the kernel killed for lack of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupKill {
    /// How long ago it was killed.
    pub seconds_ago: f64,
    /// Its process id in the initial pid namespace.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Its group.
    pub cgroup: String,
    /// The group whose limit was reached; `None` if the whole machine was out of memory.
    pub limit_cgroup: Option<String>,
    /// Its resident anonymous bytes.
    pub anonymous_bytes: Option<u64>,
    /// Its resident bytes of files.
    pub file_bytes: Option<u64>,
    /// Its resident bytes of shared memory.
    pub shmem_bytes: Option<u64>,
}

impl GroupKill {
    /// The kills in `path` and the groups below it at time `now` since the machine started.
    pub fn of_group(path: &str, kills: Vec<OomKill>, now: Duration) -> Vec<Self> {
        let below = format!("{}/", path.trim_end_matches('/'));
        let kills = kills.into_iter().filter(|kill| kill.group == path || kill.group.starts_with(&below));
        let kills = kills.rev().take(MAX_KILLS).map(|kill| Self {
            seconds_ago: now.saturating_sub(kill.since_boot).as_secs_f64(),
            pid: kill.pid,
            name: kill.name,
            cgroup: kill.group,
            limit_cgroup: kill.limit_group,
            anonymous_bytes: kill.anonymous_bytes,
            file_bytes: kill.file_bytes,
            shmem_bytes: kill.shmem_bytes,
        });
        kills.collect()
    }
}

/// The inspected group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupTarget {
    /// Always `cgroup`.
    pub kind: String,
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// The path of its folder.
    pub folder: String,
    /// The arguments that name it on a command line.
    pub arguments: String,
    /// Number of processes in it and the groups below it.
    pub processes: u64,
}

/// One row of the ledger of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Name of the row: `group.anon`. `docs/accounting.md` defines each.
    pub id: String,
    /// Kind of the holder.
    pub stratum: HolderKind,
    /// What can release the bytes.
    pub state: State,
    /// The holder, for a person: a process, a file, or what the row is.
    pub holder: String,
    /// Number of bytes.
    pub bytes: u64,
    /// The process that holds it.
    pub pid: Option<i32>,
    /// The file that holds it; for small files their folder, which ends in `/`, if they have one.
    pub file: Option<String>,
}

/// The kernel's figures of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupFigures {
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// The version of control groups.
    pub version: u8,
    /// memory.current or memory.usage_in_bytes: the rows add up to it.
    pub current_bytes: u64,
    /// Its own limit; `None`: none, or not read.
    pub limit_bytes: Option<u64>,
    /// The smallest limit of it and the groups above it; `None`: none, or not read.
    pub effective_limit_bytes: Option<u64>,
    /// The path of the group that has that limit.
    pub effective_limit_path: Option<String>,
    /// The first of these groups whose limit could not be read: which limit applies is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_limit_path: Option<String>,
    /// memory.high; `None`: none, or not read.
    pub high_bytes: Option<u64>,
    /// memory.low; `None`: none, or not read.
    pub low_bytes: Option<u64>,
    /// memory.min; `None`: none, or not read.
    pub min_bytes: Option<u64>,
    /// memory.soft_limit_in_bytes (version 1); `None`: none, or not read.
    pub soft_limit_bytes: Option<u64>,
    /// The maximum that was charged.
    pub peak_bytes: Option<u64>,
    /// What kubelet and cAdvisor call the working set: the charge without `inactive_file_bytes`.
    pub working_set_bytes: Option<u64>,
    /// The inactive list of file pages.
    pub inactive_file_bytes: Option<u64>,
    /// The active list of file pages, which the working set contains.
    pub active_file_bytes: Option<u64>,
    /// Pages of files that are mapped.
    pub mapped_file_bytes: Option<u64>,
    /// Pages that are not reclaimed: mlocked, ramfs.
    pub unevictable_bytes: Option<u64>,
    /// What the kernel reclaims by itself before it kills: both lists of file pages, and
    /// reclaimable slab.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes swapped out; not in the charge.
    pub swap_bytes: Option<u64>,
    /// The limit of bytes swapped out; `None`: none, or not read.
    pub swap_limit_bytes: Option<u64>,
    /// Bytes that zswap uses for compressed pages; in the charge.
    pub zswap_bytes: Option<u64>,
    /// Bytes of these pages before they were compressed.
    pub zswapped_bytes: Option<u64>,
    /// Buffers of TCP, which version 1 counts beside the charge.
    pub tcp_beside_bytes: Option<u64>,
    /// What happened at its limits.
    pub events: GroupEvents,
    /// How long its tasks waited for memory.
    pub pressure: Option<GroupPressure>,
}

/// How often something happened at the limits of a group; `None` if this version does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEvents {
    /// Reclaims although the group was below memory.low.
    pub low: Option<u64>,
    /// Times that tasks were slowed down above memory.high.
    pub high: Option<u64>,
    /// Charges that reached the limit.
    pub max: Option<u64>,
    /// Charges that failed.
    pub oom: Option<u64>,
    /// Processes killed.
    pub oom_kill: Option<u64>,
    /// Times that all its processes were killed.
    pub oom_group_kill: Option<u64>,
    /// Whether tasks wait for memory now.
    pub under_oom: Option<bool>,
}

/// memory.pressure: parts of the time, from 0 to 1, and times in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupPressure {
    /// Part of the last 10 s in which at least one task waited.
    pub some_10: f64,
    /// Part of the last 60 s in which at least one task waited.
    pub some_60: f64,
    /// Part of the last 10 s in which all tasks waited.
    pub full_10: f64,
    /// Part of the last 60 s in which all tasks waited.
    pub full_60: f64,
    /// Time that at least one task has waited.
    pub some_seconds: f64,
    /// Time that all tasks have waited.
    pub full_seconds: f64,
}

/// A process of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupProcess {
    /// Its id.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Its group.
    pub cgroup: String,
    /// VmRSS.
    pub rss_bytes: Option<u64>,
    /// Its share of anonymous pages (Pss_Anon).
    pub pss_anonymous_bytes: Option<u64>,
    /// Its anonymous pages (RssAnon).
    pub anonymous_bytes: Option<u64>,
    /// Its bytes swapped out.
    pub swap_bytes: Option<u64>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Its ledger, if one was taken.
    pub ledger: Option<ProcessLedger>,
}

/// The states of a process's anonymous bytes, as parts of what is charged to the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessLedger {
    /// The states.
    pub totals: Totals,
    /// How long the process was stopped for it.
    pub stopped_seconds: f64,
}

/// What releases memory of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRemedy {
    /// Its name: `malloc_trim`, `memory_reclaim`.
    pub id: String,
    /// `call` (in processes) or `reclaim` (by the kernel).
    pub kind: String,
    /// What it is predicted to release in all.
    pub predicted_bytes: Option<u64>,
    /// The number of processes in which it releases something.
    pub processes: u64,
    /// What it costs.
    pub cost: String,
}

/// A group below the inspected one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildGroup {
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// What is charged to it.
    pub current_bytes: Option<u64>,
    /// Its own limit; `None`: none, or not read.
    pub limit_bytes: Option<u64>,
}

impl GroupFigures {
    /// Makes the figures from what was read.
    pub fn new(group: &Group, memory: &Memory, limit: Result<Option<EffectiveLimit>, UnreadLimit>) -> Self {
        let unread_limit_path = limit.as_ref().err().map(|unread| unread.path.clone());
        let limit = limit.ok().flatten();
        let (parts, limits, events) = (&memory.parts, &memory.limits, &memory.events);
        let lists = parts.inactive_file_bytes.zip(parts.active_file_bytes);
        let slab = match group.version {
            // It counts no slab: the result is a lower bound then.
            Version::One => Some(0),
            Version::Two => parts.slab_reclaimable_bytes,
        };
        let reclaimable = lists.zip(slab).map(|((inactive, active), slab)| {
            inactive.saturating_add(active).saturating_add(slab).min(memory.current_bytes)
        });
        Self {
            path: group.path.clone(),
            version: group.version.number(),
            current_bytes: memory.current_bytes,
            limit_bytes: limits.max_bytes,
            effective_limit_bytes: limit.as_ref().map(|limit| limit.bytes),
            effective_limit_path: limit.map(|limit| limit.path),
            unread_limit_path,
            high_bytes: limits.high_bytes,
            low_bytes: limits.low_bytes,
            min_bytes: limits.min_bytes,
            soft_limit_bytes: limits.soft_bytes,
            peak_bytes: limits.peak_bytes,
            working_set_bytes: parts
                .inactive_file_bytes
                .map(|bytes| memory.current_bytes.saturating_sub(bytes)),
            inactive_file_bytes: parts.inactive_file_bytes,
            active_file_bytes: parts.active_file_bytes,
            mapped_file_bytes: parts.file_mapped_bytes,
            unevictable_bytes: parts.unevictable_bytes,
            reclaimable_bytes: reclaimable,
            swap_bytes: memory.swap_bytes,
            swap_limit_bytes: limits.swap_bytes,
            zswap_bytes: parts.zswap_bytes,
            zswapped_bytes: parts.zswapped_bytes,
            tcp_beside_bytes: parts.tcp_beside_bytes,
            events: GroupEvents {
                low: events.low,
                high: events.high,
                max: events.max,
                oom: events.oom,
                oom_kill: events.oom_kill,
                oom_group_kill: events.oom_group_kill,
                under_oom: memory.is_under_oom,
            },
            pressure: memory.pressure.map(GroupPressure::new),
        }
    }
}

impl GroupPressure {
    fn new(pressure: Pressure) -> Self {
        let from_millionths = |millionths: u64| millionths as f64 / 1e6;
        Self {
            some_10: from_millionths(pressure.some_10s_millionths),
            some_60: from_millionths(pressure.some_60s_millionths),
            full_10: from_millionths(pressure.full_10s_millionths),
            full_60: from_millionths(pressure.full_60s_millionths),
            some_seconds: from_millionths(pressure.some_total_us),
            full_seconds: from_millionths(pressure.full_total_us),
        }
    }
}

/// The groups directly below `group`, largest first; with unknown figures if one cannot be opened.
pub(super) fn children(hierarchy: &Hierarchy, group: &Group, members: &Members) -> Vec<ChildGroup> {
    let start = members.groups.first();
    let below =
        members.groups.iter().skip(1).filter(|path| path.parent() == start.map(|path| path.as_path()));
    let mut children: Vec<ChildGroup> = below
        .filter_map(|path| {
            let is_utf_8 = path.to_str().is_some();
            let path = format!("/{}", path.to_string_lossy());
            let child = match hierarchy.open(&path) {
                Ok(child) => Some(child),
                // It was removed meanwhile: only a name that is not UTF-8 may still exist.
                Err(GroupError::NoSuchGroup { .. }) if is_utf_8 => return None,
                Err(_) => None,
            };
            let number = |file| child.as_ref()?.number(file);
            let current_bytes = number(group.version.current_file());
            let limit_bytes = number(group.version.limit_file()).filter(|&bytes| bytes < NO_LIMIT_BYTES);
            Some(ChildGroup { path, current_bytes, limit_bytes })
        })
        .collect();
    children.sort_by(|a, b| b.current_bytes.cmp(&a.current_bytes).then_with(|| a.path.cmp(&b.path)));
    children.truncate(MAX_CHILDREN);
    children
}

//! What to set, ready to paste for systemd, Docker and Kubernetes.

use serde::{Deserialize, Serialize};
use strandline_claims::units::bytes;

use super::facts::{GroupExplanation, GroupTarget};
use super::verdict::sums;
use strandline_process::shell::shell_word;

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What it sets: `limit`, `high`, `shared_memory`.
    pub id: String,
    /// What reads it: `systemd`, `docker`, `kubernetes`, `cgroup`.
    pub system: String,
    /// Why, in a sentence.
    pub text: String,
    /// The line to paste.
    pub paste: String,
}

const MIB: u64 = 1 << 20;
/// Sizes are rounded up to this.
const STEP_BYTES: u64 = 64 * MIB;
/// Headroom of a suggested limit: the bytes that cannot be reclaimed, divided by this.
const HEADROOM_DIVISOR: u64 = 4;
/// A limit is too small if the bytes that cannot be reclaimed leave less than the limit divided by
/// this.
const MIN_LEFT_DIVISOR: u64 = 10;
/// Shared memory of more than the limit divided by this gets a setting.
const MIN_SHARED_DIVISOR: u64 = 10;

/// What manages the group, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Kubernetes,
    Docker,
    Systemd,
    /// None that is known.
    Unknown,
}

/// Recognises what manages the group with this path.
fn manager(path: &str) -> Manager {
    let name = path.rsplit('/').next().unwrap_or(path);
    if path.contains("kubepods") {
        Manager::Kubernetes
    } else if path.contains("docker") || path.contains("libpod") {
        Manager::Docker
    } else if name.ends_with(".service") || name.ends_with(".slice") || name.ends_with(".scope") {
        Manager::Systemd
    } else {
        Manager::Unknown
    }
}

/// Rounds a size up to the next step.
fn round_up(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(STEP_BYTES).unwrap_or(bytes)
}

/// The settings that fit the group.
pub(super) fn advice(explanation: &GroupExplanation) -> Vec<Advice> {
    let cgroup = &explanation.cgroup;
    let (Some(limit), Some(reclaimable)) = (cgroup.effective_limit_bytes, cgroup.reclaimable_bytes) else {
        return Vec::new();
    };
    let unreclaimable = cgroup.current_bytes.saturating_sub(reclaimable);
    // A kill proves that the limit was reached.
    let needed = if explanation.kill_at_limit().is_some() { unreclaimable.max(limit) } else { unreclaimable };
    let mut settings = Vec::new();
    if limit.saturating_sub(needed) < limit / MIN_LEFT_DIVISOR {
        let with_headroom = needed.saturating_add(needed / HEADROOM_DIVISOR);
        settings.push(larger_limit(explanation, round_up(with_headroom)));
    } else if cgroup.high_bytes.is_none() && cgroup.version == 2 {
        settings.extend(memory_high(explanation, limit - limit / MIN_LEFT_DIVISOR));
    }
    let shared = sums(&explanation.rows).shared_bytes;
    if shared > limit / MIN_SHARED_DIVISOR {
        settings.extend(shared_memory(explanation, round_up(shared)));
    }
    settings
}

impl Advice {
    fn new(id: &str, system: &str, text: String, paste: String) -> Self {
        Self { id: id.to_owned(), system: system.to_owned(), text, paste }
    }
}

/// The unit of the group with this path, as a word for a shell.
fn unit(path: &str) -> String {
    shell_word(path.rsplit('/').next().unwrap_or_default())
}

/// The folder of the group with this path, which is `target` or a group above it.
fn folder<'a>(target: &'a GroupTarget, path: &str) -> &'a str {
    let below = target.path.strip_prefix(path.trim_end_matches('/'));
    below.and_then(|below| target.folder.strip_suffix(below)).unwrap_or(&target.folder)
}

/// A memory limit of `limit_bytes`, for the group that has the smallest one.
fn larger_limit(explanation: &GroupExplanation, limit_bytes: u64) -> Advice {
    let because = match explanation.kill_at_limit() {
        Some(_) => "a process was killed at the limit",
        None => "memory that cannot be reclaimed nearly fills the limit",
    };
    let text = format!("{because}; {} leaves headroom of a quarter", bytes(limit_bytes));
    let (mib, target) = (limit_bytes / MIB, &explanation.target);
    let path = explanation.cgroup.effective_limit_path.as_deref().unwrap_or(&target.path);
    let (system, paste) = match manager(path) {
        Manager::Kubernetes => ("kubernetes", format!("resources: {{limits: {{memory: {mib}Mi}}}}")),
        Manager::Docker => {
            ("docker", format!("docker update --memory {mib}m --memory-swap {mib}m CONTAINER"))
        }
        Manager::Systemd => ("systemd", format!("systemctl set-property {} MemoryMax={mib}M", unit(path))),
        Manager::Unknown => {
            let file = if explanation.cgroup.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
            let file = shell_word(&format!("{}/{file}", folder(target, path)));
            ("cgroup", format!("echo {limit_bytes} > {file}"))
        }
    };
    Advice::new("limit", system, text, paste)
}

/// A memory.high of `high_bytes`, which Docker and Kubernetes (without its feature MemoryQoS) do
/// not set.
fn memory_high(explanation: &GroupExplanation, high_bytes: u64) -> Option<Advice> {
    let target = &explanation.target;
    let (system, paste) = match manager(&target.path) {
        Manager::Systemd => {
            let mib = high_bytes / MIB;
            ("systemd", format!("systemctl set-property {} MemoryHigh={mib}M", unit(&target.path)))
        }
        Manager::Unknown => {
            let path = shell_word(&format!("{}/memory.high", target.folder));
            ("cgroup", format!("echo {high_bytes} > {path}"))
        }
        Manager::Kubernetes | Manager::Docker => return None,
    };
    let text = "above it the kernel reclaims and slows the group down, before anything is killed".to_owned();
    Some(Advice::new("high", system, text, paste))
}

/// A size of the group's shared memory. Without a manager the mount may be the machine's own, which
/// others use too: nothing is advised.
fn shared_memory(explanation: &GroupExplanation, size_bytes: u64) -> Option<Advice> {
    let mib = size_bytes / MIB;
    let text =
        "a size limits files in shared memory: a write fails instead of a process being killed".to_owned();
    let (system, paste) = match manager(&explanation.target.path) {
        Manager::Kubernetes => ("kubernetes", format!("emptyDir: {{medium: Memory, sizeLimit: {mib}Mi}}")),
        Manager::Docker => ("docker", format!("docker run --shm-size {mib}m …")),
        Manager::Systemd => ("systemd", format!("TemporaryFileSystem=/dev/shm:size={mib}M,mode=1777")),
        Manager::Unknown => return None,
    };
    Some(Advice::new("shared_memory", system, text, paste))
}

#[cfg(test)]
mod tests {
    use super::super::facts::{GroupFigures, GroupKill, GroupRow};
    use super::*;
    use crate::facts::{HolderKind, State};

    fn group(path: &str, version: u8, shared: u64) -> GroupExplanation {
        let row = GroupRow {
            id: "group.shmem".to_owned(),
            stratum: HolderKind::Kernel,
            state: State::Live,
            holder: String::new(),
            bytes: shared,
            pid: None,
            file: None,
        };
        GroupExplanation {
            target: GroupTarget {
                path: path.to_owned(),
                folder: format!("/sys/fs/cgroup{path}"),
                ..GroupTarget::default()
            },
            cgroup: GroupFigures {
                version,
                current_bytes: 1000 * MIB,
                reclaimable_bytes: Some(40 * MIB),
                effective_limit_bytes: Some(1024 * MIB),
                ..GroupFigures::default()
            },
            rows: vec![row],
            ..GroupExplanation::default()
        }
    }

    fn pastes(path: &str, version: u8) -> Vec<String> {
        advice(&group(path, version, 300 * MIB)).into_iter().map(|advice| advice.paste).collect()
    }

    #[test]
    fn settings_are_those_of_who_manages_the_group() {
        assert_eq!(
            pastes("/kubepods.slice/kubepods-podx.slice/cri-containerd-x.scope", 2),
            ["resources: {limits: {memory: 1216Mi}}", "emptyDir: {medium: Memory, sizeLimit: 320Mi}"]
        );
        assert_eq!(
            pastes("/system.slice/docker-x.scope", 1),
            ["docker update --memory 1216m --memory-swap 1216m CONTAINER", "docker run --shm-size 320m …"]
        );
        assert_eq!(
            pastes("/system.slice/web.service", 2)[0],
            "systemctl set-property web.service MemoryMax=1216M"
        );
        assert_eq!(pastes("/x", 1)[0], "echo 1275068416 > /sys/fs/cgroup/x/memory.limit_in_bytes");
        // systemd writes a dash in a unit's name as \x2d; other names may be made to be commands.
        assert_eq!(
            pastes(r"/app.slice/app-a\x2db.service", 2)[0],
            r"systemctl set-property 'app-a\x2db.service' MemoryMax=1216M"
        );
        assert_eq!(pastes("/x;reboot", 2)[0], "echo 1275068416 > '/sys/fs/cgroup/x;reboot/memory.max'");
    }

    #[test]
    fn a_larger_limit_is_for_the_group_that_has_it() {
        let paste = |path: &str, limit_path: &str| {
            let mut group = group(path, 2, 0);
            group.cgroup.effective_limit_path = Some(limit_path.to_owned());
            advice(&group).swap_remove(0).paste
        };
        assert_eq!(
            paste("/system.slice/web.service", "/system.slice"),
            "systemctl set-property system.slice MemoryMax=1216M"
        );
        assert_eq!(paste("/a/b/c", "/a"), "echo 1275068416 > /sys/fs/cgroup/a/memory.max");
        assert_eq!(paste("/a/b", "/"), "echo 1275068416 > /sys/fs/cgroup/memory.max");
    }

    #[test]
    fn a_kill_at_its_own_limit_asks_for_a_larger_one() {
        let kill = |limit: &str, seconds_ago| GroupKill {
            limit_cgroup: Some(limit.to_owned()),
            seconds_ago,
            anonymous_bytes: Some(900 * MIB),
            ..GroupKill::default()
        };
        let pastes_after = |kill| {
            let mut group = group("/x", 1, 0);
            group.cgroup.current_bytes = 300 * MIB;
            group.cgroup.effective_limit_path = Some("/x".to_owned());
            group.kills = vec![kill];
            advice(&group).into_iter().map(|advice| advice.paste).collect::<Vec<_>>()
        };
        assert_eq!(
            pastes_after(kill("/x", 10.0)),
            ["echo 1342177280 > /sys/fs/cgroup/x/memory.limit_in_bytes"]
        );
        assert_eq!(pastes_after(kill("/x/below", 10.0)), [""; 0]);
        assert_eq!(pastes_after(kill("/x", 1e6)), [""; 0]);
    }

    #[test]
    fn with_room_below_the_limit_only_memory_high_is_advised() {
        let mut explanation = group("/system.slice/web.service", 2, 0);
        explanation.cgroup.reclaimable_bytes = Some(500 * MIB);
        let all = advice(&explanation);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].paste, "systemctl set-property web.service MemoryHigh=921M");
        explanation.cgroup.version = 1;
        assert!(advice(&explanation).is_empty());
        explanation.cgroup.effective_limit_bytes = None;
        assert!(advice(&explanation).is_empty());
    }
}

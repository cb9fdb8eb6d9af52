//! The control groups of a process: how much it may still use under their limits, and whether they
//! rule out a snapshot of it.
//!
//! Version 2 has one tree of groups, version 1 one per controller; both may be mounted side by side
//! (cgroups(7)). A limit holds for all groups below it, so limits are looked up from the process's
//! own group to the root.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::group::memory::value;
use crate::procfs::Process;
use crate::procfs::mounts::unescaped;

/// Maximum bytes read of /proc/PID/cgroup.
const MAX_BYTES: u64 = 1 << 20;

/// The control groups of a process.
#[derive(Debug)]
pub struct ControlGroups {
    /// The text of its /proc/PID/cgroup.
    groups: String,
    /// The text of this program's mountinfo.
    mounts: String,
    /// Whether the process may be in groups that could not be read: then nothing is left.
    is_unread: bool,
}

/// A line of /proc/PID/cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership<'a> {
    /// The controllers of a hierarchy, separated by commas; empty for version 2.
    pub controllers: &'a str,
    /// The path of the process's group in it.
    pub path: &'a str,
}

impl Membership<'_> {
    /// Whether the hierarchy is of version 1 and has `controller`.
    pub fn has_controller(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|name| name == controller)
    }

    /// Whether the hierarchy is the one of version 2.
    pub fn is_version_2(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// The lines of the text of /proc/PID/cgroup; malformed ones are skipped.
pub fn memberships(text: &str) -> impl Iterator<Item = Membership<'_>> {
    text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some(Membership { controllers, path })
    })
}

impl ControlGroups {
    /// Reads the groups of `process`. If they cannot be read, nothing is left to it, and
    /// [`Self::objection_to_copy`] gives that reason.
    pub fn of(process: &Process) -> Self {
        let groups = process.read_text("cgroup", MAX_BYTES);
        // A kernel without control groups lacks the file, and a process that has ended has none.
        let has_none = |error: &Error| match error {
            Error::Ended { .. } => true,
            Error::Io { source, .. } => source.kind() == ErrorKind::NotFound,
            _ => false,
        };
        let mounts = fs::read("/proc/self/mountinfo");
        let is_unread = groups.as_ref().is_err_and(|error| !has_none(error)) || mounts.is_err();
        let mounts = String::from_utf8_lossy(&mounts.unwrap_or_default()).into_owned();
        Self { groups: groups.unwrap_or_default(), mounts, is_unread }
    }

    /// The directories of the groups that have `controller`, each with its ancestors.
    fn folders(&self, controller: &str) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for membership in memberships(&self.groups) {
            let root = if membership.is_version_2() {
                mount_point(&self.mounts, "cgroup2", None)
            } else if membership.has_controller(controller) {
                mount_point(&self.mounts, "cgroup", Some(controller))
            } else {
                None
            };
            let Some(root) = root else { continue };
            let folder = root.join(membership.path.trim_start_matches('/'));
            // In a container the path of the group is the host's, and the mount shows the group as
            // its root.
            let folder = if folder.is_dir() { folder } else { root.clone() };
            let above = folder.ancestors().take_while(|folder| folder.starts_with(&root));
            folders.extend(above.map(Path::to_owned));
        }
        folders
    }

    /// Memory left under all limits, in bytes; `None` if there is no limit.
    pub fn memory_left_bytes(&self) -> Option<u64> {
        self.least("memory", memory_left_bytes_in)
    }

    /// Swap left under all limits, in bytes; `None` if there is no limit. The limit of version 1
    /// covers memory and swap together, so paging out does not approach it.
    pub fn swap_left_bytes(&self) -> Option<u64> {
        self.left_under("memory", "memory.swap.max", "memory.swap.current")
    }

    /// Number of further processes allowed; `None` if there is no limit.
    pub fn processes_left(&self) -> Option<u64> {
        self.left_under("pids", "pids.max", "pids.current")
    }

    /// What its groups with `controller` may still use: the least of each limit less the number in
    /// the file `used_name`, which counts as all of it if it is unknown.
    fn left_under(&self, controller: &str, limit_name: &str, used_name: &str) -> Option<u64> {
        self.least(controller, |folder| {
            let limit = limit(folder, limit_name)?;
            Some(number(folder, used_name).map_or(0, |used| limit.saturating_sub(used)))
        })
    }

    /// The least of what is `left_in` its groups with `controller`; `None` if none has a limit,
    /// 0 if the groups are unknown.
    fn least(&self, controller: &str, left_in: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
        if self.is_unread {
            return Some(0);
        }
        self.folders(controller).iter().filter_map(|folder| left_in(folder)).min()
    }

    /// The objection of the groups to a copy of the process, if there is one.
    pub fn objection_to_copy(&self) -> Option<&'static str> {
        const UNREAD: &str = "its control groups cannot be read";
        if self.is_unread {
            return Some(UNREAD);
        }
        if memberships(&self.groups).any(|membership| membership.path.starts_with("/..")) {
            return Some("its control group and its limits are not visible from here");
        }
        self.objection_in_settings().unwrap_or(Some(UNREAD))
    }

    /// The objection in the files of its groups.
    fn objection_in_settings(&self) -> io::Result<Option<&'static str>> {
        let folders = self.folders("memory");
        for (index, folder) in folders.iter().enumerate() {
            let kills_all = setting(folder, "memory.oom.group")?.as_deref() == Some("1");
            // The limit may be that of a group above (mm/memcontrol.c, mem_cgroup_get_oom_group).
            let mut above = folders.iter().skip(index);
            if kills_all && above.any(|folder| limit(folder, "memory.max").is_some()) {
                return Ok(Some("its control group kills all its processes on an OOM (memory.oom.group)"));
            }
        }
        for folder in self.folders("freezer") {
            let is_frozen = setting(&folder, "cgroup.freeze")?.as_deref() == Some("1")
                || matches!(setting(&folder, "freezer.state")?.as_deref(), Some("FROZEN" | "FREEZING"));
            if is_frozen {
                return Ok(Some("its control group is frozen"));
            }
        }
        Ok(None)
    }
}

/// A mounted control group hierarchy.
struct HierarchyMount<'a> {
    /// `cgroup` (version 1) or `cgroup2`.
    kind: &'a str,
    /// Its options, separated by commas: the controllers of version 1.
    options: &'a str,
    /// Where it is mounted.
    point: PathBuf,
}

/// The hierarchies in the text of mountinfo (proc(5): the fifth field is the mount point, those
/// after " - " are type, source, options).
fn hierarchy_mounts(mounts: &str) -> impl Iterator<Item = HierarchyMount<'_>> {
    mounts.lines().filter_map(|line| {
        let (mount_fields, file_system) = line.split_once(" - ")?;
        let mut fields = file_system.split(' ');
        let kind = fields.next().filter(|kind| matches!(*kind, "cgroup" | "cgroup2"))?;
        let point = PathBuf::from(unescaped(mount_fields.split(' ').nth(4)?));
        Some(HierarchyMount { kind, options: fields.nth(1).unwrap_or_default(), point })
    })
}

/// The mount point of the first hierarchy of this type (`cgroup`, `cgroup2`) with `option`, in the
/// text of mountinfo.
pub fn mount_point(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    let has_option = |mount: &HierarchyMount<'_>| {
        option.is_none_or(|option| mount.options.split(',').any(|name| name == option))
    };
    hierarchy_mounts(mounts).find(|mount| mount.kind == kind && has_option(mount)).map(|mount| mount.point)
}

/// The mount points of all hierarchies in the text of mountinfo.
pub fn mount_points(mounts: &str) -> impl Iterator<Item = PathBuf> {
    hierarchy_mounts(mounts).map(|mount| mount.point)
}

/// The text of a file of a group, without blanks around it; `None` if there is no such file.
fn setting(folder: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(name)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number in a file of a group; `None` if it cannot be read.
fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// The limit in a file of a group; `None` if there is no such file, or for "max" (no limit). One
/// that cannot be read is 0: what is not known to be left must not be used.
fn limit(folder: &Path, name: &str) -> Option<u64> {
    match setting(folder, name).transpose()? {
        Ok(text) if text == "max" => None,
        text => Some(text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)),
    }
}

/// Memory left under the limit of one group, of either version. Inactive file pages count as
/// available: the kernel counts them as used, but drops them first. If their size is unknown, none
/// do.
fn memory_left_bytes_in(folder: &Path) -> Option<u64> {
    // Above memory.high (version 2) processes are throttled before any limit is met.
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits.into_iter().filter_map(|name| limit(folder, name)).min()?;
    let used = number(folder, "memory.current").or_else(|| number(folder, "memory.usage_in_bytes"));
    let Some(used) = used else { return Some(0) };
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    // Version 1 includes the groups below under `total_`.
    let droppable_bytes =
        ["total_inactive_file", "inactive_file"].into_iter().find_map(|key| value(&stat, key));
    Some(limit.saturating_sub(used.saturating_sub(droppable_bytes.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The groups of a process in `/a/b`, below a directory made for the test.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(tree.0.path().join("a/b")).unwrap();
            tree
        }

        fn write(&self, folder: &str, name: &str, text: &str) {
            fs::write(self.0.path().join(folder).join(name), text).unwrap();
        }

        fn groups(&self, groups: &str) -> ControlGroups {
            let root = self.0.path().display();
            let mounts = format!(
                "30 25 0:26 / {root} rw shared:9 - cgroup2 cgroup2 rw\n\
                 31 25 0:27 / {root} rw - cgroup cgroup rw,memory\n"
            );
            ControlGroups { groups: groups.to_owned(), mounts, is_unread: false }
        }
    }

    #[test]
    fn a_mount_point_may_have_blanks() {
        let mounts = "1 0 0:1 / / rw - ext4 x rw\n30 25 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(mounts, "cgroup2", None), Some(PathBuf::from("/mnt/my groups")));
        assert_eq!(mount_point(mounts, "cgroup", Some("memory")), None);
    }

    #[test]
    fn the_smallest_room_of_a_group_and_those_above_it_counts() {
        let tree = Tree::new();
        let (second, first) = (tree.groups("0::/a/b\n"), tree.groups("4:memory:/a/b\n3:cpu:/\n"));
        let unread = ControlGroups { is_unread: true, ..tree.groups("") };
        assert!(unread.objection_to_copy().is_some() && second.objection_to_copy().is_none());
        assert_eq!((unread.memory_left_bytes(), unread.processes_left()), (Some(0), Some(0)));
        assert_eq!(second.memory_left_bytes(), None);
        tree.write("a/b", "memory.max", "max\n");
        tree.write("a/b", "memory.current", "4096\n");
        assert_eq!(second.memory_left_bytes(), None);
        tree.write("a", "memory.max", "1000000\n");
        tree.write("a", "memory.current", "900000\n");
        tree.write("a", "memory.stat", "anon 1\ninactive_file 300000\n");
        assert_eq!(second.memory_left_bytes(), Some(400_000));
        tree.write("a", "memory.high", "700000\n");
        assert_eq!(second.memory_left_bytes(), Some(100_000));
        fs::remove_file(tree.0.path().join("a/b/memory.current")).unwrap();
        tree.write("a/b", "memory.limit_in_bytes", "5000\n");
        tree.write("a/b", "memory.usage_in_bytes", "6000\n");
        assert_eq!(first.memory_left_bytes(), Some(0));
        tree.write("a/b", "memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n");
        assert_eq!(first.memory_left_bytes(), Some(500));
        tree.write("a/b", "memory.limit_in_bytes", "");
        assert_eq!(first.memory_left_bytes(), Some(0), "an unreadable limit leaves nothing");
        assert_eq!(tree.groups("garbage\n::\n").memory_left_bytes(), None);
    }

    #[test]
    fn a_group_may_have_no_swap() {
        let tree = Tree::new();
        let groups = tree.groups("0::/a/b\n");
        tree.write("a/b", "memory.swap.max", "max\n");
        tree.write("a/b", "memory.swap.current", "0\n");
        assert_eq!(groups.swap_left_bytes(), None);
        tree.write("a", "memory.swap.max", "8192\n");
        tree.write("a", "memory.swap.current", "4096\n");
        assert_eq!(groups.swap_left_bytes(), Some(4096));
        tree.write("a/b", "memory.swap.max", "0\n");
        assert_eq!(groups.swap_left_bytes(), Some(0));
        tree.write("a/b", "memory.swap.max", "8192\n");
        fs::remove_file(tree.0.path().join("a/b/memory.swap.current")).unwrap();
        assert_eq!(groups.swap_left_bytes(), Some(0), "unknown use leaves nothing");
    }

    #[test]
    fn a_group_that_forbids_a_copy_is_reported() {
        let tree = Tree::new();
        let groups = tree.groups("0::/a/b\n");
        assert_eq!((groups.objection_to_copy(), groups.processes_left()), (None, None));
        tree.write("a", "pids.max", "20\n");
        tree.write("a", "pids.current", "17\n");
        assert_eq!(groups.processes_left(), Some(3));
        tree.write("a", "memory.oom.group", "1\n");
        tree.write("a", "memory.max", "max\n");
        assert_eq!(groups.objection_to_copy(), None, "without a limit it is ended by none");
        tree.write("a", "memory.max", "4096\n");
        assert!(groups.objection_to_copy().unwrap().contains("memory.oom.group"));
        tree.write("a", "memory.oom.group", "0\n");
        assert_eq!(groups.objection_to_copy(), None);
        tree.write("a/b", "memory.oom.group", "1\n");
        assert!(groups.objection_to_copy().is_some(), "the limit of the group above ends it whole");
        tree.write("a/b", "memory.oom.group", "0\n");
        tree.write("a/b", "cgroup.freeze", "1\n");
        assert!(groups.objection_to_copy().unwrap().contains("frozen"));
        assert!(tree.groups("0::/../other\n").objection_to_copy().unwrap().contains("not visible"));
    }
}

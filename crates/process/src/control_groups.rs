//! The control groups of a process: how much it may still use under their limits, and whether they
//! rule out a snapshot of it.
//!
//! Version 2 has one tree of groups, version 1 one per controller; both may be mounted side by side
//! (cgroups(7)). A limit holds for all groups below it, so limits are looked up from the process's
//! own group to the root.

use std::fs;
use std::io::ErrorKind;
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
    /// Whether the process may be in groups that could not be read.
    is_unread: bool,
}

impl ControlGroups {
    /// Reads the groups of `process`. If they cannot be read, no limit is known, and
    /// [`Self::objection_to_copy`] says so.
    pub fn of(process: &Process) -> Self {
        let groups = process.read_text("cgroup", MAX_BYTES);
        // A kernel without control groups lacks the file.
        let is_missing =
            |error: &Error| matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound);
        let is_unread = groups.as_ref().is_err_and(|error| !is_missing(error));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { groups: groups.unwrap_or_default(), mounts, is_unread }
    }

    /// The directories of the groups that have `controller`, each with its ancestors.
    fn folders(&self, controller: &str) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for (controllers, path) in self.groups.lines().filter_map(parse_line) {
            let root = match controllers {
                "" => mount_point(&self.mounts, "cgroup2", None),
                _ if controllers.split(',').any(|name| name == controller) => {
                    mount_point(&self.mounts, "cgroup", Some(controller))
                }
                _ => None,
            };
            let Some(root) = root else { continue };
            let folder = root.join(path.trim_start_matches('/'));
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
        self.folders("memory").iter().filter_map(|folder| memory_left_bytes_in(folder)).min()
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
        let left = |folder: &PathBuf| {
            let limit = limit(folder, limit_name)?;
            Some(number(folder, used_name).map_or(0, |used| limit.saturating_sub(used)))
        };
        self.folders(controller).iter().filter_map(left).min()
    }

    /// The objection of the groups to a copy of the process, if there is one.
    pub fn objection_to_copy(&self) -> Option<&'static str> {
        if self.is_unread {
            return Some("its control groups cannot be read");
        }
        if self.groups.lines().filter_map(parse_line).any(|(_, path)| path.starts_with("/..")) {
            return Some("its control group and its limits are not visible from here");
        }
        let is_one_of = |folder: &PathBuf, name: &str, values: &[&str]| {
            fs::read_to_string(folder.join(name)).is_ok_and(|text| values.contains(&text.trim()))
        };
        let folders = self.folders("memory");
        let has_limit = |folder: &PathBuf| limit(folder, "memory.max").is_some();
        // The limit may be that of a group above (mm/memcontrol.c, mem_cgroup_get_oom_group).
        let kills_all = |(index, folder): (usize, &PathBuf)| {
            is_one_of(folder, "memory.oom.group", &["1"]) && folders.iter().skip(index).any(has_limit)
        };
        if folders.iter().enumerate().any(kills_all) {
            return Some("its control group kills all its processes on an OOM (memory.oom.group)");
        }
        let is_frozen = |folder: &PathBuf| {
            is_one_of(folder, "cgroup.freeze", &["1"])
                || is_one_of(folder, "freezer.state", &["FROZEN", "FREEZING"])
        };
        self.folders("freezer").iter().any(is_frozen).then_some("its control group is frozen")
    }
}

/// The controllers (none for version 2) and the path of a line of /proc/PID/cgroup.
pub fn parse_line(line: &str) -> Option<(&str, &str)> {
    line.split_once(':')?.1.split_once(':')
}

/// The mount point of a control group hierarchy (proc(5), mountinfo: the fields after " - " are
/// type, source, options).
pub fn mount_point(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount_fields, file_system) = line.split_once(" - ")?;
        let mut file_system_fields = file_system.split(' ');
        let is_kind = file_system_fields.next()? == kind;
        let has_option = option.is_none_or(|option| {
            file_system_fields.nth(1).is_some_and(|options| options.split(',').any(|name| name == option))
        });
        let point = mount_fields.split(' ').nth(4).filter(|_| is_kind && has_option)?;
        Some(PathBuf::from(unescaped(point)))
    })
}

/// The number in a file of a group; `None` if it cannot be read.
fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// The limit in a file of a group; `None` if there is no such file, or for "max" (no limit). One
/// that cannot be read is 0: what is not known to be left must not be used.
fn limit(folder: &Path, name: &str) -> Option<u64> {
    match fs::read_to_string(folder.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Ok(text) if text.trim() == "max" => None,
        text => Some(text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)),
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

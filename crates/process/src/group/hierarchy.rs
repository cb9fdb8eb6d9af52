//! The hierarchy that counts memory, and one group in it.
//!
//! Version 1 of control groups has a hierarchy per controller, version 2 one for all
//! (cgroups(7)); where both are mounted, memory is counted by the one that has the controller.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::control_groups::{memberships, mount_point, mount_points};

/// The version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy per controller: memory.usage_in_bytes.
    One,
    /// One hierarchy: memory.current.
    Two,
}

impl Version {
    /// The number.
    pub fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The file that holds what is charged to a group.
    pub fn current_file(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }

    /// The file that holds the limit of a group.
    pub fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    /// The file with the number of processes killed for lack of memory.
    pub fn kills_file(self) -> &'static str {
        match self {
            Self::One => "memory.oom_control",
            Self::Two => "memory.events",
        }
    }
}

/// Maximum bytes read of a file of a group. memory.stat has about 5 KiB; cgroup.procs is read with
/// a limit of its own.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Why a group is not there, or has no memory figures.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// No hierarchy with the memory controller is mounted.
    #[error(
        "no control group hierarchy that counts memory is mounted here (see /proc/mounts); in a container, mount /sys/fs/cgroup"
    )]
    NoHierarchy,
    /// There is no such group.
    #[error(
        "no control group {path} below {root}; `cat /proc/PID/cgroup` shows that of a process, `systemd-cgls` all"
    )]
    NoSuchGroup {
        /// The requested path.
        path: String,
        /// The searched root.
        root: String,
    },
    /// The name cannot be that of a group.
    #[error("{what}: {advice}")]
    BadName {
        /// The requested name.
        what: String,
        /// What to give instead.
        advice: String,
    },
    /// Nothing has the name.
    #[error("no control group of {what} below {root}, among {groups} groups: {advice}")]
    NotFound {
        /// The requested name.
        what: String,
        /// The searched root.
        root: String,
        /// Number of groups searched.
        groups: usize,
        /// What to do next.
        advice: String,
    },
    /// The search ended before all groups were searched.
    #[error(
        "{what} was not found among the first {groups} groups below {root}, after {seconds:.1} s: give its path with --cgroup"
    )]
    SearchCut {
        /// The requested name.
        what: String,
        /// The searched root.
        root: String,
        /// Number of groups searched.
        groups: usize,
        /// The time that the search took.
        seconds: f64,
    },
    /// Several groups have the name.
    #[error("{what} names {count} control groups: {paths}; give one of them with --cgroup")]
    Ambiguous {
        /// The requested name.
        what: String,
        /// Number of groups with the name.
        count: usize,
        /// The first of them.
        paths: String,
    },
    /// The group exists, but its memory is not counted.
    #[error("the memory of control group {path} is not counted by itself: {why}")]
    NotCounted {
        /// The group.
        path: String,
        /// The reason, and what to do next.
        why: String,
    },
    /// The group was removed meanwhile.
    #[error("control group {path} was removed while it was being read")]
    Gone {
        /// The group.
        path: String,
    },
    /// A file of the group cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The hierarchy that counts memory.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Where it is mounted.
    pub root: PathBuf,
    /// The mount points of all hierarchies: a path below any of them names a group.
    mounts: Vec<PathBuf>,
}

impl Hierarchy {
    /// A hierarchy whose groups are folders below `root`.
    pub fn at(version: Version, root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { version, mounts: vec![root.clone()], root }
    }

    /// The hierarchy of this machine.
    ///
    /// # Errors
    /// [`GroupError::NoHierarchy`] if none is mounted; [`GroupError::Io`] if the mounts cannot be
    /// read.
    pub fn of_this_machine() -> Result<Self, GroupError> {
        const MOUNTS: &str = "/proc/self/mountinfo";
        let text =
            std::fs::read(MOUNTS).map_err(|source| GroupError::Io { path: MOUNTS.to_owned(), source })?;
        Self::parse(&String::from_utf8_lossy(&text)).ok_or(GroupError::NoHierarchy)
    }

    /// The hierarchy in the text of /proc/PID/mountinfo. Version 1 if it has the memory controller:
    /// a controller belongs to one hierarchy only.
    pub fn parse(mounts: &str) -> Option<Self> {
        let version_1 = mount_point(mounts, "cgroup", Some("memory")).map(|root| (Version::One, root));
        let (version, root) =
            version_1.or_else(|| mount_point(mounts, "cgroup2", None).map(|root| (Version::Two, root)))?;
        Some(Self { version, root, mounts: mount_points(mounts).collect() })
    }

    /// The path of this hierarchy's group in the text of /proc/PID/cgroup.
    pub fn path_in<'a>(&self, groups: &'a str) -> Option<&'a str> {
        let own = memberships(groups).find(|membership| match self.version {
            Version::One => membership.has_controller("memory"),
            Version::Two => membership.is_version_2(),
        });
        own.map(|membership| membership.path)
    }

    /// Opens a group by its path: below a mount point (/sys/fs/cgroup/…) or as in /proc/PID/cgroup.
    ///
    /// # Errors
    /// [`GroupError::NoSuchGroup`] if it does not exist.
    pub fn open(&self, path: &str) -> Result<Group, GroupError> {
        let relative = self.relative(path).ok_or_else(|| self.no_such_group(path))?;
        Group::open(self, &relative).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => self.no_such_group(path),
            _ => GroupError::Io { path: self.root.join(&relative).display().to_string(), source: error },
        })
    }

    pub(super) fn no_such_group(&self, path: &str) -> GroupError {
        GroupError::NoSuchGroup { path: path.to_owned(), root: self.root.display().to_string() }
    }

    /// The path below the root: without the longest mount point that it starts with.
    fn relative(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let below = self.mounts.iter().filter_map(|point| path.strip_prefix(point).ok());
        let below = below.min_by_key(|below| below.as_os_str().len()).unwrap_or(path);
        let mut relative = PathBuf::new();
        for part in below.components() {
            match part {
                Component::Normal(name) => relative.push(name),
                Component::RootDir | Component::CurDir => {}
                // A name above the root of this view (a control group namespace).
                Component::ParentDir | Component::Prefix(_) => return None,
            }
        }
        Some(relative)
    }
}

/// An open control group. A later group of the same name is a different one.
#[derive(Debug)]
pub struct Group {
    /// The version of its hierarchy.
    pub version: Version,
    /// Its path below the root of the hierarchy, with a slash before it; for display.
    pub path: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its open folder.
    directory: File,
}

impl Group {
    /// Opens the group at `relative` below the hierarchy's root.
    pub(super) fn open(hierarchy: &Hierarchy, relative: &Path) -> io::Result<Self> {
        let folder = hierarchy.root.join(relative);
        let directory = File::open(&folder)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let path = format!("/{}", relative.to_string_lossy());
        Ok(Self { version: hierarchy.version, path, folder, directory })
    }

    /// The number by which /proc/kpagecgroup names it; `None` if it cannot be read.
    pub fn inode(&self) -> Option<u64> {
        self.directory.metadata().ok().map(|data| data.ino())
    }

    /// The path of one of its files through the open directory; for opening, not for display.
    pub fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(name)
    }

    /// The text of one of its files; `None` if the file is missing or cannot be read.
    pub fn text(&self, name: &str) -> Option<String> {
        self.read(name).ok()
    }

    /// The text of one of its files, up to a limit.
    ///
    /// # Errors
    /// The kernel's: `ENODEV` from a file of a group that was removed.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.file(name))?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The number in one of its files; `None` for `max`, for text that is not a number, or if it
    /// cannot be read.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.trim().parse().ok()
    }

    /// Whether it was removed.
    pub fn is_gone(&self) -> bool {
        // A removed folder has no links any more; those of a control group cannot be opened either.
        !self.file("cgroup.procs").exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";

    #[test]
    fn memory_is_counted_by_the_hierarchy_that_has_the_controller() {
        let hybrid = Hierarchy::parse(HYBRID).unwrap();
        assert_eq!((hybrid.version, hybrid.root.to_str()), (Version::One, Some("/sys/fs/cgroup/memory")));
        let unified = Hierarchy::parse("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n").unwrap();
        assert_eq!((unified.version, unified.root.to_str()), (Version::Two, Some("/sys/fs/cgroup")));
        assert!(Hierarchy::parse("garbage\n1 2 3 - cgroup\n").is_none());
    }

    #[test]
    fn the_line_of_a_process_is_that_of_the_hierarchy() {
        let text = "9:name=systemd:/\n4:cpu,memory:/x/y\n0::/z\n";
        assert_eq!(Hierarchy::at(Version::One, "/").path_in(text), Some("/x/y"));
        assert_eq!(Hierarchy::at(Version::Two, "/").path_in(text), Some("/z"));
        assert_eq!(Hierarchy::at(Version::Two, "/").path_in("x\n"), None);
    }

    #[test]
    fn a_group_is_named_by_any_of_its_paths() {
        let hybrid = Hierarchy::parse(HYBRID).unwrap();
        let relative = |path: &str| hybrid.relative(path).map(|path| path.display().to_string());
        for path in ["/a/b", "a/b/", "/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/unified/a/b", "/a/./b"] {
            assert_eq!(relative(path).as_deref(), Some("a/b"), "{path}");
        }
        assert_eq!(relative("/sys/fs/cgroup/memory").as_deref(), Some(""));
        assert_eq!(relative("/../other"), None);
        let blank = Hierarchy::parse("30 25 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n").unwrap();
        assert_eq!(blank.relative("/mnt/my groups/a"), Some(PathBuf::from("a")));
    }

    #[test]
    fn groups_are_folders() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/memory.current"), "4096\n").unwrap();
        let hierarchy = Hierarchy::at(Version::Two, folder.path());
        let group = hierarchy.open("/a").unwrap();
        assert_eq!((group.path.as_str(), group.number("memory.current")), ("/a", Some(4096)));
        assert_eq!(group.number("memory.max"), None);
        assert!(group.inode().is_some());
        for wrong in ["/a/c", "/a/memory.current", "/../a"] {
            let error = hierarchy.open(wrong).unwrap_err();
            assert!(matches!(error, GroupError::NoSuchGroup { .. }), "{wrong}: {error}");
        }
    }
}

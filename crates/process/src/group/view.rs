//! Finds the folder of a path in /proc/PID/cgroup.
//!
//! Such a path begins at the root of this program's cgroup namespace (cgroup_namespaces(7)), or
//! above it with `/..`; what is mounted may begin above or below that root (proc(5), mountinfo:
//! the root of a mount).

use std::io;
use std::path::{Component, Path, PathBuf};

use super::find::Bounds;
use super::hierarchy::{Group, GroupError, Hierarchy};
use crate::procfs::Process;
use crate::procfs::mounts::unescaped;

/// Maximum bytes read of /proc/PID/cgroup.
const MAX_BYTES: u64 = 64 << 10;

/// How paths of /proc/PID/cgroup relate to the mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The namespace's root, below what is mounted; `None` if unknown.
    namespace: Option<PathBuf>,
    /// What is mounted, below the namespace's root.
    mounted: PathBuf,
}

impl Default for View {
    /// The namespace's root is what is mounted.
    fn default() -> Self {
        Self { namespace: Some(PathBuf::new()), mounted: PathBuf::new() }
    }
}

impl View {
    /// The view of this program on `hierarchy`.
    pub fn of(hierarchy: &Hierarchy) -> Self {
        let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else {
            return Self { namespace: None, ..Self::default() };
        };
        let Some(root) = mounted_root(&String::from_utf8_lossy(&mounts), &hierarchy.root) else {
            return Self::default();
        };
        let root = root.trim_start_matches('/');
        if !root.starts_with("..") {
            return Self { mounted: PathBuf::from(root), ..Self::default() };
        }
        // The mount begins above the namespace's root. Only a search finds the names in between:
        // this program is in the namespace's root, or below it.
        Self { namespace: namespace_root(hierarchy), ..Self::default() }
    }

    /// Opens the group of a path of /proc/PID/cgroup.
    ///
    /// # Errors
    /// It was removed, or is not below what is mounted.
    pub fn open(&self, hierarchy: &Hierarchy, path: &str) -> Result<Group, GroupError> {
        let group = self.relative(path).and_then(|relative| Group::open(hierarchy, &relative).ok());
        group.ok_or_else(|| hierarchy.no_such_group(path))
    }

    /// Opens the group that counts the memory of `process`.
    ///
    /// # Errors
    /// As [`View::open`]; [`GroupError::Io`] if the group of the process is unknown.
    pub fn group_of(&self, hierarchy: &Hierarchy, process: &Process) -> Result<Group, GroupError> {
        let unknown = |source| GroupError::Io { path: format!("/proc/{}/cgroup", process.pid()), source };
        let text =
            process.read_text("cgroup", MAX_BYTES).map_err(|error| unknown(io::Error::other(error)))?;
        // Without a path it is in an unknown group, not in the root.
        let path = hierarchy.path_in(&text).ok_or_else(|| {
            unknown(io::Error::new(io::ErrorKind::NotFound, "it has no group that counts memory"))
        })?;
        self.open(hierarchy, path)
    }

    /// The path below the mounted root; `None` if it is not below it, or that is unknown.
    fn relative(&self, path: &str) -> Option<PathBuf> {
        let mut joined_path = self.namespace.clone()?;
        for part in Path::new(path).components() {
            match part {
                Component::Normal(name) => joined_path.push(name),
                Component::ParentDir => joined_path.pop().then_some(())?,
                Component::RootDir | Component::CurDir => {}
                Component::Prefix(_) => return None,
            }
        }
        joined_path.strip_prefix(&self.mounted).ok().map(Path::to_owned)
    }
}

/// The root of the mount at `point`: the part of the hierarchy that is mounted there.
fn mounted_root(mounts: &str, point: &Path) -> Option<String> {
    let mut lines = mounts.lines().map(|line| line.split(' '));
    lines.find_map(|mut fields| {
        let root = fields.nth(3)?;
        fields.next().filter(|field| Path::new(&unescaped(field)) == point).map(|_| unescaped(root))
    })
}

/// The root of this program's namespace below the root of `hierarchy`; `None` if it is not found.
fn namespace_root(hierarchy: &Hierarchy) -> Option<PathBuf> {
    let pid = std::process::id().cast_signed();
    let text = Process::open(pid).ok()?.read_text("cgroup", MAX_BYTES).ok()?;
    let below = Path::new(hierarchy.path_in(&text)?).strip_prefix("/").ok()?.to_owned();
    let members = hierarchy.members(&hierarchy.open("/").ok()?, Bounds::default());
    let own_member = members.processes.iter().find(|member| member.pid == pid)?;
    let mut group = members.groups.get(own_member.group)?.clone();
    for _ in below.components() {
        group.pop();
    }
    Some(group)
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::Version;
    use super::*;

    fn view(namespace: &str, mounted: &str) -> View {
        View { namespace: Some(namespace.into()), mounted: mounted.into() }
    }

    fn relative(view: &View, path: &str) -> Option<String> {
        view.relative(path).map(|path| path.display().to_string())
    }

    #[test]
    fn paths_are_seen_from_the_namespace() {
        assert_eq!(relative(&View::default(), "/a/b").as_deref(), Some("a/b"));
        assert_eq!(relative(&View::default(), "/../a"), None);
        // The host's hierarchy in a container with a namespace.
        let host = view("kubepods/pod1/own", "");
        assert_eq!(relative(&host, "/").as_deref(), Some("kubepods/pod1/own"));
        assert_eq!(relative(&host, "/../../pod2/x").as_deref(), Some("kubepods/pod2/x"));
        assert_eq!(relative(&host, "/../../../..").as_deref(), None);
        let unknown = View { namespace: None, ..View::default() };
        assert_eq!(relative(&unknown, "/"), None, "not the root of the host");
        // A container's own part, and paths of the host.
        let part = view("", "docker/1");
        assert_eq!(relative(&part, "/docker/1/x").as_deref(), Some("x"));
        assert_eq!(relative(&part, "/docker/2"), None);
    }

    #[test]
    fn a_process_whose_group_is_unknown_is_not_in_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::at(Version::Two, folder.path());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = View::default().group_of(&hierarchy, &process).unwrap_err();
        assert!(matches!(error, GroupError::Io { .. }), "{error}");
    }

    #[test]
    fn the_root_of_a_mount_is_read() {
        let mounts = "1 0 0:1 / / rw - ext4 x rw\n30 25 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let root = |mounts: &str, point: &str| mounted_root(mounts, Path::new(point));
        assert_eq!(root(mounts, "/sys/fs/cgroup").as_deref(), Some("/../.."));
        let blanks = "30 25 0:26 /my\\040group /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(root(blanks, "/mnt/my groups").as_deref(), Some("/my group"));
        assert_eq!(mounted_root("x\n1 2 3\n", Path::new("/sys/fs/cgroup")), None);
    }
}

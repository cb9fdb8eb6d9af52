//! Finds the group of a container, a unit or a pod by its folder's name, and lists the groups and
//! processes below a group. Both are bounded in groups and time.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::hierarchy::{Group, GroupError, Hierarchy};
use crate::shell::shell_word;

/// Maximum number of groups searched: ten times what a busy host has.
const MAX_GROUPS: usize = 100_000;
/// Maximum time of a search.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Maximum number of processes of a group.
const MAX_PROCESSES: usize = 100_000;
/// Maximum bytes read of a cgroup.procs: more ids than [`MAX_PROCESSES`].
const MAX_PROCS_BYTES: u64 = 4 << 20;
/// Maximum number of paths in a message.
const MAX_SHOWN: usize = 5;
/// Digits of a container's complete id.
const ID_DIGITS: usize = 64;
/// Minimum number of digits given of a container's id: fewer are soon ambiguous.
const MIN_ID_DIGITS: usize = 4;
/// Digits of a pod's UID (RFC 9562), or of the MD5 sum of a static pod's manifest, without hyphens.
const UID_DIGITS: usize = 32;

/// The name of a group to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOwner {
    /// A container by its id, or the first digits of it.
    Container(String),
    /// A unit of systemd.
    Unit(String),
    /// A Kubernetes pod by its UID.
    Pod(String),
}

impl GroupOwner {
    /// Whether a folder named `folder` belongs to the group.
    fn matches(&self, folder: &str) -> bool {
        match self {
            Self::Container(id) => {
                container_id(folder).is_some_and(|whole_id| whole_id.starts_with(id.as_str()))
            }
            Self::Unit(unit) => is_unit(folder, unit),
            Self::Pod(uid) => pod_uid(folder).is_some_and(|folder_uid| &folder_uid == uid),
        }
    }

    /// The name in its canonical form, as the hierarchy has it.
    ///
    /// # Errors
    /// Advice, if no group can have the name.
    fn canonical(&self) -> Result<Self, String> {
        match self {
            Self::Container(id) => {
                // Kubernetes shows it as containerd://ID.
                let id = id.rsplit_once("://").map_or(id.as_str(), |(_, id)| id).to_lowercase();
                let is_id = id.len() >= MIN_ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
                if is_id {
                    return Ok(Self::Container(id));
                }
                Err(format!(
                    "a container's id has {MIN_ID_DIGITS} or more hexadecimal digits; that of a name: docker inspect -f '{{{{.Id}}}}' NAME, crictl ps, podman ps --no-trunc"
                ))
            }
            Self::Unit(unit) if unit.is_empty() || unit.contains('/') => {
                Err("a unit's name has no slash; `systemctl list-units` lists them".to_owned())
            }
            Self::Unit(_) => Ok(self.clone()),
            Self::Pod(uid) => {
                let uid = digits_of(uid.strip_prefix("pod").unwrap_or(uid));
                uid.map(Self::Pod).ok_or_else(|| {
                    "a pod's UID has 32 hexadecimal digits: kubectl get pod NAME -o jsonpath='{.metadata.uid}'"
                        .to_owned()
                })
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Container(id) => format!("container {id}"),
            Self::Unit(unit) => format!("unit {unit}"),
            Self::Pod(uid) => format!("pod {uid}"),
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Self::Container(_) => "is it running, and on this machine (docker ps, crictl ps, podman ps)?",
            Self::Unit(_) => {
                "is it active (systemctl status), and does systemd count its memory (MemoryAccounting=yes)?"
            }
            Self::Pod(_) => "does it run on this node (kubectl get pod -o wide)?",
        }
    }
}

/// Whether a folder is that of a unit of systemd; the type of a service may be left out. A unit's
/// folder ends with its type, and other dots are part of its name.
pub fn is_unit(folder: &str, unit: &str) -> bool {
    let has_type = folder.contains('.');
    !unit.is_empty() && has_type && (folder == unit || folder.strip_suffix(".service") == Some(unit))
}

/// The id in the name of a container's folder: `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `crio-ID.scope`, `libpod-ID.scope`, or `ID` alone (the cgroupfs driver).
fn container_id(name: &str) -> Option<&str> {
    let scope = name.strip_suffix(".scope");
    let id = match scope {
        Some(scope) => scope.rsplit_once('-')?.1,
        // The cgroupfs driver of CRI-O and Podman keeps the prefix.
        None => name.rsplit_once('-').map_or(name, |(_, id)| id),
    };
    let is_monitor = name.contains("conmon");
    (id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit()) && !is_monitor).then_some(id)
}

/// The 32 digits of a pod's UID in the name of its folder: `podUID` (the kubelet's cgroupfs driver)
/// or `kubepods-…-podUID.slice` with `_` for `-` (its systemd driver).
pub fn pod_uid(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let uid = name.strip_prefix("pod").or_else(|| name.rsplit_once("-pod").map(|(_, uid)| uid))?;
    digits_of(uid)
}

/// The hexadecimal digits of a pod's UID; `None` if it is not one.
fn digits_of(uid: &str) -> Option<String> {
    let digits: String = uid.chars().filter(|c| !"-_".contains(*c)).collect::<String>().to_lowercase();
    (digits.len() == UID_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(digits)
}

/// The arguments that name the group at `path`, the shortest that are not too long to type.
pub fn arguments_for(path: &str) -> String {
    /// Maximum length of a path that is not replaced by an id.
    const MAX_PATH_BYTES: usize = 32;
    /// Digits of an id that Docker shows.
    const SHOWN_DIGITS: usize = 12;
    let name = path.rsplit('/').next().unwrap_or(path);
    if path.len() > MAX_PATH_BYTES {
        if let Some(id) = container_id(name).and_then(|id| id.get(..SHOWN_DIGITS)) {
            return format!("--container {id}");
        }
        if let Some(uid) = pod_uid(name) {
            return format!("--pod {uid}");
        }
    }
    format!("--cgroup {}", shell_word(path))
}

/// The groups that were found.
#[derive(Debug, Default)]
pub struct FoundGroups {
    /// Their paths below the root of the hierarchy, those nearer to it first.
    pub paths: Vec<PathBuf>,
    /// Number of groups searched.
    pub searched: usize,
    /// Whether some groups were not searched: there are too many, or a folder cannot be listed.
    pub is_cut: bool,
}

/// Limits of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of groups.
    pub groups: usize,
    /// Maximum time.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { groups: MAX_GROUPS, time: MAX_TIME }
    }
}

/// Walks the groups below `start` (a path below the root), those nearer to it first; keeps those
/// whose folder name is wanted.
pub fn walk(root: &Path, start: &Path, bounds: Bounds, is_wanted: impl Fn(&str) -> bool) -> FoundGroups {
    let since = Instant::now();
    let mut found = FoundGroups::default();
    let mut level = vec![start.to_owned()];
    while !level.is_empty() {
        let mut below = Vec::new();
        for path in level {
            if found.searched >= bounds.groups || since.elapsed() > bounds.time {
                found.is_cut = true;
                return found;
            }
            found.searched += 1;
            let is_match = path.file_name().is_some_and(|name| is_wanted(&name.to_string_lossy()));
            match children(root, &path) {
                Ok(folders) => below.extend(folders),
                Err(error) if was_removed(&error) => {}
                Err(_) => found.is_cut = true,
            }
            // A folder may have any number of entries. If some are not kept, the bound ends the
            // walk.
            below.truncate(bounds.groups);
            if is_match {
                found.paths.push(path);
            }
        }
        level = below;
    }
    found
}

/// The groups directly below a group.
fn children(root: &Path, path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = root.join(path);
    let mut folders = Vec::new();
    // The kernel counts two links of a folder and one more for each folder within (kernfs), so that
    // groups without any need not be listed.
    if std::fs::metadata(&folder)?.nlink() == 2 {
        return Ok(folders);
    }
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        if folders.len() >= MAX_GROUPS {
            break;
        }
        if entry.file_type()?.is_dir() {
            folders.push(path.join(entry.file_name()));
        }
    }
    Ok(folders)
}

/// Whether an error means that a group was removed meanwhile.
fn was_removed(error: &io::Error) -> bool {
    /// From an open file of a removed group (kernfs).
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}

impl Hierarchy {
    /// Finds the group of a container, a unit or a pod. The outermost of nested matches counts (the
    /// scope of a container has groups too).
    ///
    /// # Errors
    /// No group has the name, or several have it, or the search exceeded its bounds.
    pub fn find(&self, name: &GroupOwner, bounds: Bounds) -> Result<Group, GroupError> {
        let since = Instant::now();
        let what = name.describe();
        let root = self.root.display().to_string();
        let name = name.canonical().map_err(|advice| GroupError::BadName { what: what.clone(), advice })?;
        let found = walk(&self.root, Path::new(""), bounds, |folder| name.matches(folder));
        let matching: BTreeSet<&Path> = found.paths.iter().map(PathBuf::as_path).collect();
        let is_outermost = |path: &&PathBuf| !path.ancestors().skip(1).any(|above| matching.contains(above));
        let outermost: Vec<&PathBuf> = found.paths.iter().filter(is_outermost).collect();
        match outermost[..] {
            [] if found.is_cut => Err(GroupError::SearchCut {
                what,
                root,
                groups: found.searched,
                seconds: since.elapsed().as_secs_f64(),
            }),
            [] => {
                let advice = name.advice().to_owned();
                Err(GroupError::NotFound { what, root, groups: found.searched, advice })
            }
            [path] => Group::open(self, path).map_err(|source| {
                let path = path.display().to_string();
                if was_removed(&source) { GroupError::Gone { path } } else { GroupError::Io { path, source } }
            }),
            [..] => {
                let shown = outermost.iter().take(MAX_SHOWN).map(|path| format!("/{}", path.display()));
                let mut paths = shown.collect::<Vec<_>>().join(", ");
                if outermost.len() > MAX_SHOWN {
                    paths += ", …";
                }
                Err(GroupError::Ambiguous { what, count: outermost.len(), paths })
            }
        }
    }

    /// The group and all below it, and their processes.
    pub fn members(&self, group: &Group, bounds: Bounds) -> Members {
        // Every group is opened below the root.
        let start = group.folder.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let found = walk(&self.root, start, bounds, |_| true);
        let mut members = Members { is_cut: found.is_cut, ..Members::default() };
        let mut seen_pids = BTreeSet::new();
        // The root of the hierarchy has no name, and is not among those found.
        let paths: Vec<PathBuf> = std::iter::once(start.to_owned())
            .chain(found.paths.into_iter().filter(|path| path != start))
            .collect();
        for (index, path) in paths.iter().enumerate() {
            let Ok(pids) = pids(&self.root.join(path)) else {
                members.is_cut = true;
                continue;
            };
            for pid in pids {
                if pid == 0 {
                    members.invisible_processes += 1;
                } else if seen_pids.len() >= MAX_PROCESSES {
                    members.is_cut = true;
                } else if seen_pids.insert(pid) {
                    members.processes.push(Member { pid, group: index });
                }
            }
        }
        members.groups = paths;
        members
    }
}

/// The groups of a subtree and their processes.
#[derive(Debug, Default)]
pub struct Members {
    /// Paths below the root of the hierarchy; the first is the group itself.
    pub groups: Vec<PathBuf>,
    /// The processes.
    pub processes: Vec<Member>,
    /// Processes that are in another pid namespace than this program, which the kernel lists as 0.
    pub invisible_processes: u64,
    /// Whether there are more groups or processes, or some could not be listed.
    pub is_cut: bool,
}

/// A process of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub pid: i32,
    /// Its group, an index of [`Members::groups`].
    pub group: usize,
}

/// The processes of one group; none if it was removed.
fn pids(folder: &Path) -> io::Result<Vec<i32>> {
    /// From a threaded group of version 2: its processes are its domain's.
    const EOPNOTSUPP: i32 = 95;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(folder.join("cgroup.procs"));
    match file.and_then(|file| file.take(MAX_PROCS_BYTES).read_to_end(&mut bytes)) {
        Err(error) if was_removed(&error) || error.raw_os_error() == Some(EOPNOTSUPP) => {
            return Ok(Vec::new());
        }
        read => read?,
    };
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid >= 0).collect())
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::Version;
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "0123ffff89abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn tree(folders: &[String]) -> (tempfile::TempDir, Hierarchy) {
        // Removing thousands of folders takes a disk half a minute.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for path in folders {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        let hierarchy = Hierarchy::at(Version::Two, folder.path());
        (folder, hierarchy)
    }

    /// Bounds with a time that tests do not reach.
    fn bounds() -> Bounds {
        Bounds { time: Duration::from_secs(600), ..Bounds::default() }
    }

    fn find(hierarchy: &Hierarchy, wanted: GroupOwner) -> Result<String, String> {
        let found = hierarchy.find(&wanted, bounds());
        found.map(|group| group.path).map_err(|error| error.to_string())
    }

    #[test]
    fn containers_are_found_by_the_names_that_runtimes_give() {
        for name in [
            format!("system.slice/docker-{ID}.scope"),
            format!("docker/{ID}"),
            format!("kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope"),
            format!("kubepods/besteffort/podx/{ID}"),
            format!("machine.slice/libpod-{ID}.scope"),
            format!("kubepods.slice/crio-{ID}.scope"),
        ] {
            let monitor = format!("{}/libpod-conmon-{ID}.scope", name.split('/').next().unwrap());
            let (_folder, hierarchy) =
                tree(&[format!("{name}/container"), monitor, format!("x/docker-{OTHER}.scope")]);
            for id in [ID, &ID[..12], &format!("containerd://{ID}"), &ID[..12].to_uppercase()] {
                let found = find(&hierarchy, GroupOwner::Container(id.to_owned()));
                assert_eq!(found.as_deref(), Ok(format!("/{name}").as_str()), "{id}");
            }
            let several = find(&hierarchy, GroupOwner::Container("0123".into())).unwrap_err();
            assert!(several.contains("names 2 control groups"), "{several}");
            assert!(
                find(&hierarchy, GroupOwner::Container("web".into())).unwrap_err().contains("docker inspect")
            );
            assert!(
                find(&hierarchy, GroupOwner::Container("ffff".into())).unwrap_err().contains("is it running")
            );
        }
    }

    #[test]
    fn pods_and_units_are_found() {
        let uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let name = uid.replace('-', "_");
        let slice = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{name}.slice");
        let (_folder, hierarchy) =
            tree(&[slice.clone(), "system.slice/web-1.2.service".into(), "user.slice".into()]);
        for written in [uid, &name, &uid.to_uppercase(), &format!("pod{uid}")] {
            assert_eq!(find(&hierarchy, GroupOwner::Pod(written.to_owned())), Ok(format!("/{slice}")));
        }
        assert!(find(&hierarchy, GroupOwner::Pod("web".into())).unwrap_err().contains("kubectl"));
        for unit in ["web-1.2", "web-1.2.service"] {
            assert_eq!(
                find(&hierarchy, GroupOwner::Unit(unit.into())).as_deref(),
                Ok("/system.slice/web-1.2.service")
            );
        }
        assert_eq!(find(&hierarchy, GroupOwner::Unit("user.slice".into())).as_deref(), Ok("/user.slice"));
        assert!(find(&hierarchy, GroupOwner::Unit("we".into())).unwrap_err().contains("systemctl"));
        assert!(find(&hierarchy, GroupOwner::Unit("../x".into())).unwrap_err().contains("no slash"));
        let (_folder, hierarchy) = tree(&[format!("kubepods/pod{uid}/{ID}")]);
        assert_eq!(find(&hierarchy, GroupOwner::Pod(uid.into())), Ok(format!("/kubepods/pod{uid}")));
    }

    #[test]
    fn long_paths_have_short_names() {
        assert_eq!(arguments_for("/system.slice/web.service"), "--cgroup /system.slice/web.service");
        assert_eq!(arguments_for("/a b'c"), "--cgroup '/a b'\\''c'");
        let container = format!("/kubepods.slice/x/cri-containerd-{ID}.scope");
        assert_eq!(arguments_for(&container), "--container 0123456789ab");
        let pod = format!("/kubepods.slice/kubepods-burstable-pod{}.slice", &ID[..32]);
        assert_eq!(arguments_for(&pod), format!("--pod {}", &ID[..32]));
    }

    #[test]
    fn ten_thousand_groups_are_searched_and_more_than_the_bound_are_not() {
        let names = (0..10_000).map(|n| format!("system.slice/s{}.slice/n{n}.service", n % 100));
        let (_folder, hierarchy) = tree(&names.collect::<Vec<_>>());
        assert_eq!(
            find(&hierarchy, GroupOwner::Unit("n9999".into())).as_deref(),
            Ok("/system.slice/s99.slice/n9999.service")
        );
        let few = Bounds { groups: 50, ..bounds() };
        let cut = hierarchy.find(&GroupOwner::Unit("n9999".into()), few).unwrap_err().to_string();
        assert!(cut.contains("among the first 50 groups") && cut.contains("--cgroup"), "{cut}");
    }

    #[test]
    fn members_are_those_of_all_groups_below_each_once() {
        let (folder, hierarchy) = tree(&["a/b/c".into(), "other".into()]);
        let write = |path: &str, text: &str| std::fs::write(folder.path().join(path), text).unwrap();
        write("a/cgroup.procs", "12\n7\n");
        write("a/b/c/cgroup.procs", "0\n7\nx\n-4\n99999999999\n9\n");
        write("other/cgroup.procs", "1\n");
        let members = hierarchy.members(&hierarchy.open("/a").unwrap(), bounds());
        let pids: Vec<i32> = members.processes.iter().map(|member| member.pid).collect();
        assert_eq!((pids, members.invisible_processes, members.groups.len()), (vec![12, 7, 9], 1, 3));
        assert_eq!(members.groups[members.processes[2].group], Path::new("a/b/c"));
    }
}

//! Limits that a command is started with: on address space and data segment by `setrlimit`, on
//! resident memory by a separate control group.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::control_groups::mount_point;
use strandline_process::group::Version;
use strandline_process::group::memory::value;
use strandline_recording::Limit;
use strandline_sys::host;
use strandline_sys::spawn::{Resource, ResourceLimit, Rlimit};

/// Requested limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// `RLIMIT_AS`.
    #[serde(rename = "address_space")]
    pub address_space_bytes: Option<u64>,
    /// `RLIMIT_DATA`.
    #[serde(rename = "data")]
    pub data_bytes: Option<u64>,
    /// Memory limit of a control group.
    #[serde(rename = "memory")]
    pub memory_bytes: Option<u64>,
}

/// The resource limits of a new process.
#[derive(Debug, Default)]
pub struct ResourceLimits {
    /// What the process sets.
    pub to_set: Vec<ResourceLimit>,
    /// The same for the recording.
    pub recorded: Vec<Limit>,
}

impl Limits {
    /// The resource limits that a new process has to set.
    ///
    /// # Errors
    /// One line if a limit is above the hard limit of this user.
    pub fn resources(&self) -> Result<ResourceLimits, String> {
        let mut limits = ResourceLimits::default();
        for (requested, resource, kind, by) in [
            (self.address_space_bytes, Resource::AddressSpace, "address_space", "RLIMIT_AS"),
            (self.data_bytes, Resource::Data, "data", "RLIMIT_DATA"),
        ] {
            let Some(bytes) = requested else { continue };
            let hard = resource.get().map_err(|error| format!("{by}: {error}"))?.hard;
            if bytes > hard {
                return Err(format!(
                    "{by} cannot be {bytes} bytes: this user's hard limit is {hard} (ulimit -H)"
                ));
            }
            limits.to_set.push(ResourceLimit { resource, limits: Rlimit { soft: bytes, hard: bytes } });
            limits.recorded.push(Limit { kind: kind.to_owned(), bytes, by: by.to_owned() });
        }
        Ok(limits)
    }
}

/// What to do where no control group limits memory.
pub const MOUNT_CONTROL_GROUPS: &str = "mount cgroup2 on /sys/fs/cgroup with the memory controller";

/// Why no control group with a limit on memory can be made.
#[derive(Debug)]
pub struct MemoryLimitRefusal {
    /// The groups that were tried, and why each failed.
    pub reasons: String,
    /// What to do.
    pub advice: &'static str,
}

impl fmt::Display for MemoryLimitRefusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reasons, advice } = self;
        write!(
            to,
            "a limit on memory cannot be set here ({reasons}); limit the address space or the data segment, or {advice}"
        )
    }
}

impl MemoryLimitRefusal {
    /// The refusal for these `reasons`, one for each group that was tried.
    fn new(reasons: &[String], user: u32) -> Self {
        if reasons.is_empty() {
            let reasons = "no control group hierarchy with memory is mounted".to_owned();
            return Self { reasons, advice: MOUNT_CONTROL_GROUPS };
        }
        // The groups of root's sessions belong to the machine's systemd, those of another user's to
        // the user's own.
        let advice = if user == 0 {
            "run in `systemd-run --scope -p Delegate=yes` (in a container: on its host)"
        } else {
            "run as root, or in `systemd-run --user --scope -p Delegate=yes`"
        };
        Self { reasons: reasons.join("; "), advice }
    }
}

/// A control group with a limit on memory, for one command.
#[derive(Debug)]
pub struct LimitedGroup {
    folder: PathBuf,
    version: Version,
    /// The limit as the kernel stored it.
    pub limit: Limit,
    /// Why memory may move to swap at the limit; `None` if it may not.
    pub swap_problem: Option<String>,
}

impl LimitedGroup {
    /// Creates a group with a limit of `bytes`.
    ///
    /// # Errors
    /// The parents that were tried and why each failed.
    pub fn new(bytes: u64) -> Result<Self, MemoryLimitRefusal> {
        let user = host::effective_user();
        let parents = memory_parents().map_err(|reason| MemoryLimitRefusal::new(&[reason], user))?;
        let mut reasons = Vec::new();
        for parent in parents {
            match Self::create_below(&parent, bytes) {
                Ok(group) => return Ok(group),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(MemoryLimitRefusal::new(&reasons, user))
    }

    /// Creates a group with a limit of `bytes` below `parent`.
    fn create_below(parent: &ParentGroup, bytes: u64) -> Result<Self, String> {
        static CREATED_COUNT: AtomicU64 = AtomicU64::new(0);
        let number = CREATED_COUNT.fetch_add(1, Ordering::Relaxed);
        let version = parent.version;
        let by = format!("cgroup v{}", version.number());
        let folder = parent.folder.join(format!("strandline-{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{by} {}: {error}", parent.folder.display()))?;
        // From here on, an error removes the group: see Drop.
        let limit = Limit { kind: "memory".to_owned(), bytes, by: by.clone() };
        let mut group = Self { folder, version, limit, swap_problem: None };
        let file = match version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let path = group.folder.join(file);
        if !path.exists() {
            return Err(format!("{by} {}: memory is not delegated to it", parent.folder.display()));
        }
        fs::write(&path, bytes.to_string()).map_err(|error| format!("{by} {}: {error}", path.display()))?;
        group.swap_problem = limit_swap(&group.folder, bytes);
        // The kernel rounds to pages; where that cannot be read, the requested limit stands.
        if let Some(stored) = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()) {
            group.limit.bytes = stored;
        }
        Ok(group)
    }

    /// Opens its `cgroup.procs`: a new process that writes its id into it joins the group.
    ///
    /// # Errors
    /// One line with the reason why the group cannot be joined.
    pub fn open_procs(&self) -> Result<OwnedFd, String> {
        let path = self.procs();
        let file: Result<File, _> = OpenOptions::new().write(true).open(&path);
        file.map(OwnedFd::from).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of its `cgroup.procs`.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Number of processes that the kernel killed because the limit was reached; `None` if it does
    /// not count them (before Linux 4.13), or the count cannot be read.
    pub fn out_of_memory_kills(&self) -> Option<u64> {
        value(&fs::read_to_string(self.folder.join(self.version.kills_file())).ok()?, "oom_kill")
    }

    /// Removes the group.
    ///
    /// # Errors
    /// One line if processes are left in the group: they stay under the limit.
    pub fn remove(&self) -> Result<(), String> {
        fs::remove_dir(&self.folder).map_err(|error| {
            format!(
                "{} is left behind ({error}): processes that the command left run on under its limit; remove it with rmdir when \
                 they have ended",
                self.folder.display()
            )
        })
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        // For a group that was not removed, or not set up completely.
        drop(fs::remove_dir(&self.folder));
    }
}

/// Keeps pages of a group with a limit of `bytes` from moving to swap at the limit. Returns why
/// they may; `None` if they may not.
fn limit_swap(folder: &Path, bytes: u64) -> Option<String> {
    let files = [("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", bytes)];
    let file = files.into_iter().find(|(name, _)| folder.join(name).exists());
    let Some((name, max_bytes)) = file else {
        return match read_if_present("/proc/swaps") {
            // The first line has the names of the columns.
            Ok(swaps) if swaps.lines().count() <= 1 => None,
            Ok(_) => Some("the kernel does not limit a group's swap".to_owned()),
            Err(reason) => Some(reason),
        };
    };
    fs::write(folder.join(name), max_bytes.to_string()).err().map(|error| format!("{name}: {error}"))
}

/// Creates a group with a limit of `bytes` and removes it. Returns what enforces such a limit here,
/// and whether the group is gone, as a clause.
///
/// # Errors
/// Like [`LimitedGroup::new`].
pub fn can_limit_memory(bytes: u64) -> Result<String, MemoryLimitRefusal> {
    let group = LimitedGroup::new(bytes)?;
    let by = &group.limit.by;
    let is_gone = fs::remove_dir(&group.folder).is_ok();
    Ok(if is_gone {
        format!("{by}, and taken back")
    } else {
        format!("{by}; remove its empty group {}", group.folder.display())
    })
}

/// A control group below which a group with a memory limit could be created.
#[derive(Debug, PartialEq, Eq)]
struct ParentGroup {
    version: Version,
    folder: PathBuf,
}

/// [`parent_groups`] of this process.
fn memory_parents() -> Result<Vec<ParentGroup>, String> {
    let memberships = read_if_present("/proc/self/cgroup")?;
    Ok(parent_groups(&memberships, &read_if_present("/proc/self/mountinfo")?))
}

/// The text of a file of /proc; empty if the kernel was built without what it shows.
fn read_if_present(path: &str) -> Result<String, String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        text => text.map_err(|error| format!("{path}: {error}")),
    }
}

/// Possible parents, best first: this process's own group in each hierarchy that controls memory,
/// and for version 2 also the group above it, because a group with processes cannot contain groups
/// with limits there. The parameters are the texts of /proc/self/cgroup and /proc/self/mountinfo.
fn parent_groups(memberships: &str, mounts: &str) -> Vec<ParentGroup> {
    let mut parents = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let relative = path.trim_start_matches('/');
        if controllers.is_empty()
            && let Some(root) = mount_point(mounts, "cgroup2", None)
        {
            let folder = root.join(relative);
            let above = folder.parent().filter(|_| !relative.is_empty()).map(Path::to_owned);
            let folders = [Some(folder), above].into_iter().flatten();
            parents.extend(folders.map(|folder| ParentGroup { version: Version::Two, folder }));
        } else if controllers.split(',').any(|name| name == "memory")
            && let Some(root) = mount_point(mounts, "cgroup", Some("memory"))
        {
            let folder = root.join(relative);
            // In a container, the path of the group is that of the host, and the mount shows the
            // group as its root.
            let folder = if folder.is_dir() { folder } else { root };
            parents.push(ParentGroup { version: Version::One, folder });
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
35 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:14 - cgroup cgroup rw,memory
36 25 0:32 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
";

    #[test]
    fn groups_are_searched_below_the_kernels_mount_point() {
        let found = parent_groups("4:memory:/a/b\n1:cpu:/\n0::/user/x\n", MOUNTS);
        let found: Vec<_> =
            found.iter().map(|parent| (parent.version.number(), parent.folder.to_str().unwrap())).collect();
        assert_eq!(
            found,
            [
                (1, "/sys/fs/cgroup/memory"),
                (2, "/sys/fs/cgroup/unified/user/x"),
                (2, "/sys/fs/cgroup/unified/user")
            ]
        );
        assert!(parent_groups("garbage\n::\n", "garbage").is_empty());
    }

    #[test]
    fn the_advice_on_memory_limits_goes_by_the_cause() {
        let refusal = |reasons: &[&str], user| {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            MemoryLimitRefusal::new(&reasons, user)
        };
        for user in [0, 7] {
            assert_eq!(refusal(&[], user).advice, MOUNT_CONTROL_GROUPS);
            let other = refusal(&["a", "b"], user).to_string();
            assert!(other.contains("(a; b)") && other.contains("-p Delegate=yes`"), "{other}");
        }
        assert!(!refusal(&["a"], 0).advice.contains("as root"));
    }

    #[test]
    fn a_swap_limit_that_cannot_be_set_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.memsw.limit_in_bytes"), "").unwrap();
        assert_eq!(limit_swap(folder.path(), 4096), None);
        assert_eq!(fs::read_to_string(folder.path().join("memory.memsw.limit_in_bytes")).unwrap(), "4096");
        // A folder cannot be written.
        fs::create_dir(folder.path().join("memory.swap.max")).unwrap();
        assert!(limit_swap(folder.path(), 4096).unwrap().starts_with("memory.swap.max: "));
    }

    #[test]
    fn a_limit_above_the_hard_one_is_refused() {
        let limits = Limits { address_space_bytes: Some(1 << 40), ..Limits::default() };
        let ResourceLimits { to_set, recorded } = limits.resources().unwrap();
        assert_eq!((to_set[0].limits.soft, recorded[0].by.as_str()), (1 << 40, "RLIMIT_AS"));
        assert!(Limits::default().resources().unwrap().to_set.is_empty());
    }
}

//! Which processes: by id, name, control group or unit, and their descendants. Only names, parents
//! and groups are read. Processes choose their names, which may be any bytes: they are matched and
//! shown as text, never used as paths.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use regex_lite::Regex;
use strandline_process::control_groups::{memberships, mount_points};
use strandline_process::error::Error;
use strandline_process::group::find::{is_unit, pod_uid};
use strandline_process::map::file_name;
use strandline_process::procfs::{self, Process, Stat};
use strandline_process::snapshot;
use strandline_report::text::{clean, shorten};

/// Maximum bytes read from /proc/PID/stat.
const MAX_STAT_BYTES: u64 = 4 << 10;
/// Maximum bytes read from /proc/PID/cgroup.
const MAX_GROUP_BYTES: u64 = 64 << 10;
/// Width of the longest path of a group that is not shortened: the path of a pod's container,
/// nested in another container, takes about 320 columns.
const MAX_GROUP_COLUMNS: usize = 1024;

/// Checks a regular expression of [`SelectionRequest::names`].
///
/// # Errors
/// One line: what is wrong with it.
pub fn check_expression(text: &str) -> Result<(), String> {
    Regex::new(text).map(drop).map_err(|error| in_one_line(&error))
}

fn in_one_line(error: &regex_lite::Error) -> String {
    error.to_string().replace('\n', " ")
}

/// Identity of a process: a later process with the same id is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Process id.
    pub pid: i32,
    /// Start time, in the kernel's ticks.
    pub start_ticks: u64,
}

/// Chosen processes: those that match a part of the request.
#[derive(Debug)]
pub struct Selection {
    /// The request, with paths of groups as in /proc/PID/cgroup.
    request: SelectionRequest,
    /// The requested process ids, as the processes that had them at the start.
    processes: Vec<Key>,
    /// The requested names.
    names: Vec<Regex>,
}

/// A selection as the user gave it.
#[derive(Clone, Debug, Default)]
pub struct SelectionRequest {
    /// Process ids.
    pub pids: Vec<i32>,
    /// Regular expressions that match within the name of a process or of its executable.
    pub names: Vec<String>,
    /// Paths of control groups, as in /proc/PID/cgroup or below /sys/fs/cgroup.
    pub groups: Vec<String>,
    /// Names of systemd units: see [`is_unit`].
    pub units: Vec<String>,
    /// Whether to choose the processes of Kubernetes pods.
    pub selects_pods: bool,
    /// Whether to choose all processes.
    pub selects_all: bool,
    /// Whether to include all descendants.
    pub adds_descendants: bool,
}

impl SelectionRequest {
    /// Whether processes are chosen by their control groups.
    fn selects_groups(&self) -> bool {
        self.selects_pods || !self.groups.is_empty() || !self.units.is_empty()
    }
}

/// A process that was found.
#[derive(Debug)]
pub struct FoundProcess {
    /// Its identity.
    pub key: Key,
    /// Its parent's process id; 0 if it has none here.
    pub parent: i32,
    /// Its name, safe to display; newlines are the only control characters.
    pub name: String,
    /// Page faults since its start that needed no disk.
    pub minor_faults: u64,
    /// Page faults since its start that read from a disk.
    pub major_faults: u64,
    /// Its files.
    pub process: Process,
}

/// The chosen processes.
#[derive(Debug)]
pub struct FoundProcesses {
    /// Those whose files can be read.
    pub processes: Vec<FoundProcess>,
    /// Number of processes whose files cannot be read, so that they may be chosen or not.
    pub unread: u64,
}

impl FoundProcess {
    /// The control group that counts its memory, if known.
    pub fn group(&self) -> Option<String> {
        own_group(&groups_of(&self.process).ok()?)
    }
}

/// Writes it as options of the command line, without the one that leaves out descendants.
impl fmt::Display for Selection {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SelectionRequest { pids, names, groups, units, selects_pods, selects_all, .. } = &self.request;
        let mut options: Vec<String> = pids.iter().map(|pid| format!("--pid {pid}")).collect();
        options.extend(names.iter().map(|name| format!("--name {}", clean(name))));
        options.extend(groups.iter().map(|group| format!("--cgroup {}", clean(group))));
        options.extend(units.iter().map(|unit| format!("--unit {}", clean(unit))));
        options.extend(selects_pods.then(|| "--pods".to_owned()));
        options.extend(selects_all.then(|| "--all".to_owned()));
        to.write_str(&options.join(" "))
    }
}

impl Selection {
    /// Resolves a selection.
    ///
    /// # Errors
    /// One line: no such process, an invalid expression, nothing chosen, or no mountinfo.
    pub fn new(mut request: SelectionRequest) -> Result<Self, String> {
        let SelectionRequest { pids, names, .. } = &request;
        if !request.selects_all && pids.is_empty() && names.is_empty() && !request.selects_groups() {
            return Err(
                "no process is chosen: give --pid, --name, --cgroup, --unit, --pods or --all".to_owned()
            );
        }
        let key = |pid: &i32| {
            let stat = Process::open(*pid).and_then(|process| process.stat());
            stat.map(|stat| Key { pid: *pid, start_ticks: stat.start_ticks })
                .map_err(|error| error.to_string())
        };
        let expression = |name: &String| {
            Regex::new(name).map_err(|error| format!("--name {}: {}", clean(name), in_one_line(&error)))
        };
        let processes = pids.iter().map(key).collect::<Result<_, _>>()?;
        let names = names.iter().map(expression).collect::<Result<_, _>>()?;
        if !request.groups.is_empty() {
            let mounts = read_mounts()?;
            request.groups.iter_mut().for_each(|path| *path = group_path(path, &mounts));
        }
        Ok(Self { request, processes, names })
    }

    /// The processes that are chosen now. A /proc that cannot be listed counts as one unread.
    pub fn find(&self) -> FoundProcesses {
        let SelectionRequest { selects_all, adds_descendants, .. } = self.request;
        let goes_by_id =
            !selects_all && !adds_descendants && self.names.is_empty() && !self.request.selects_groups();
        let mut unread = 0;
        let mut open = |pid| unless_unread(open_process(pid), &mut unread);
        let mut processes: Vec<FoundProcess> = if goes_by_id {
            self.processes.iter().filter_map(|key| open(key.pid)).collect()
        } else if let Ok(pids) = procfs::all_pids() {
            pids.filter_map(open).collect()
        } else {
            unread = 1;
            Vec::new()
        };
        let mut is_chosen = |process: &&FoundProcess| {
            unless_unread(self.chooses(process).map(Some), &mut unread).unwrap_or(false)
        };
        let mut chosen: HashSet<i32> =
            processes.iter().filter(|process| is_chosen(process)).map(|process| process.key.pid).collect();
        if adds_descendants {
            add_descendants(&mut chosen, processes.iter().map(|process| (process.key.pid, process.parent)));
        }
        processes.retain(|process| chosen.contains(&process.key.pid));
        FoundProcesses { processes, unread }
    }

    /// The requested groups: those given by path, and those of the chosen units and pods that are
    /// among `process_groups` or above one of them.
    pub fn requested_groups<'a>(&self, process_groups: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut requested: Vec<String> = self.request.groups.clone();
        for path in process_groups {
            let mut end = 0;
            for component in path.split('/') {
                end += component.len();
                if let Some(group) = path.get(..end).filter(|_| self.selects_component(component)) {
                    requested.push(group.to_owned());
                }
                end += 1;
            }
        }
        let mut unique_groups = HashSet::new();
        requested.retain(|group| unique_groups.insert(group.clone()));
        requested
    }

    /// Whether a component of a group's path is a chosen unit or pod.
    fn selects_component(&self, component: &str) -> bool {
        (self.request.selects_pods && pod_uid(component).is_some())
            || self.request.units.iter().any(|unit| is_unit(component, unit))
    }

    /// Whether the process itself is chosen, not as a descendant.
    fn chooses(&self, found: &FoundProcess) -> Result<bool, Error> {
        if self.request.selects_all || self.processes.contains(&found.key) {
            return Ok(true);
        }
        if !self.names.is_empty() {
            let is_named = |name: &str| self.names.iter().any(|expression| expression.is_match(name));
            if is_named(&found.name)
                || found.process.executable().is_some_and(|path| is_named(file_name(&path)))
            {
                return Ok(true);
            }
        }
        if !self.request.selects_groups() {
            return Ok(false);
        }
        let text = groups_of(&found.process)?;
        Ok(memberships(&text).any(|membership| {
            self.request.groups.iter().any(|group| is_within(membership.path, group))
                || membership.path.split('/').any(|component| self.selects_component(component))
        }))
    }
}

/// Adds all descendants of `chosen`; `parents` has each process with its parent.
fn add_descendants(chosen: &mut HashSet<i32>, parents: impl Iterator<Item = (i32, i32)>) {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, parent) in parents {
        children.entry(parent).or_default().push(pid);
    }
    let mut waiting: Vec<i32> = chosen.iter().copied().collect();
    while let Some(pid) = waiting.pop() {
        // Ids may be reused while /proc is read, so even a cycle is possible.
        for child in children.remove(&pid).unwrap_or_default() {
            if chosen.insert(child) {
                waiting.push(child);
            }
        }
    }
}

/// The text of this program's mountinfo, or an error in one line.
fn read_mounts() -> Result<String, String> {
    let text = std::fs::read("/proc/self/mountinfo");
    let text = text.map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A fact about a process; without one, counts the process in `unread` unless it has ended.
pub(crate) fn unless_unread<T>(fact: Result<Option<T>, Error>, unread: &mut u64) -> Option<T> {
    fact.unwrap_or_else(|error| {
        *unread += u64::from(!matches!(error, Error::NoSuchProcess { .. } | Error::Ended { .. }));
        None
    })
}

/// Basic facts about a process; `None` if it has no memory of its own.
fn open_process(pid: i32) -> Result<Option<FoundProcess>, Error> {
    let process = Process::open(pid)?;
    let text = process.read_file("stat", MAX_STAT_BYTES)?;
    let malformed = || process.error("stat", std::io::ErrorKind::InvalidData.into());
    let stat = Stat::parse(&text).ok_or_else(malformed)?;
    let has_no_memory = stat.is_kernel_thread() || matches!(stat.state, Some('Z' | 'X'));
    // A snapshot: a copy of a process, made to be read and never run.
    if has_no_memory || (stat.exit_signal == Some(0) && snapshot::is_snapshot(&process)) {
        return Ok(None);
    }
    Ok(Some(FoundProcess {
        key: Key { pid, start_ticks: stat.start_ticks },
        parent: stat.parent.unwrap_or(0),
        name: displayable(name_in(&text)),
        minor_faults: stat.minor_faults,
        major_faults: stat.major_faults,
        process,
    }))
}

/// The name in the text of /proc/PID/stat, any bytes: from the first `(` to the last `)`.
fn name_in(stat: &[u8]) -> &[u8] {
    let open = stat.iter().position(|&byte| byte == b'(');
    let close = stat.iter().rposition(|&byte| byte == b')');
    open.zip(close).and_then(|(open, close)| stat.get(open + 1..close)).unwrap_or_default()
}

/// Makes a name safe for terminals and parsers. Newlines stay: the exposition has an escape for
/// them.
fn displayable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

/// The text of /proc/PID/cgroup; empty if this kernel has no control groups, and so no such file.
fn groups_of(process: &Process) -> Result<String, Error> {
    match process.read_text("cgroup", MAX_GROUP_BYTES) {
        // A process that has ended is another error.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(String::new()),
        text => text,
    }
}

/// The group that counts the memory of a process: that of version 1's memory controller if it is in
/// use, otherwise that of version 2. `…` in a shortened path keeps it from naming another group.
fn own_group(text: &str) -> Option<String> {
    let version_1 = memberships(text).find(|membership| membership.has_controller("memory"));
    let own = version_1.or_else(|| memberships(text).find(|membership| membership.is_version_2()))?;
    Some(shorten(&clean(own.path), MAX_GROUP_COLUMNS))
}

/// Whether the group at `path` is `group` or below it.
fn is_within(path: &str, group: &str) -> bool {
    group == "/" || path.strip_prefix(group).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The path of a group as in /proc/PID/cgroup: without the mount point of its hierarchy. `mounts`
/// is the text of mountinfo.
fn group_path(requested: &str, mounts: &str) -> String {
    let path_in_hierarchy = mount_points(mounts)
        .filter_map(|point| Path::new(requested).strip_prefix(point).ok())
        .min_by_key(|path| path.as_os_str().len());
    let path =
        path_in_hierarchy.map_or_else(|| requested.to_owned(), |path| path.to_string_lossy().into_owned());
    format!("/{}", path.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_the_kernel_or_the_mount_does() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(group_path("/system.slice/a.service/", mounts), "/system.slice/a.service");
        assert_eq!(group_path("system.slice", mounts), "/system.slice");
        assert_eq!(group_path("/sys/fs/cgroup/memory/a/b", mounts), "/a/b");
        assert_eq!(group_path("/sys/fs/cgroup/a", mounts), "/a");
        assert_eq!(group_path("/sys/fs/cgroup", mounts), "/");
        let blank = "30 25 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(group_path("/mnt/my groups/a", blank), "/a");
        assert!(
            is_within("/a/b", "/a")
                && is_within("/a", "/a")
                && !is_within("/ab", "/a")
                && is_within("/x", "/")
        );
        let text = "9:name=systemd:/\n4:memory:/x/y\n0::/\n";
        assert_eq!(own_group(text).as_deref(), Some("/x/y"));
        assert_eq!(own_group("0::/a:b\n").as_deref(), Some("/a:b"));
        assert_eq!(own_group("garbage\n"), None);
    }

    #[test]
    fn pods_are_known_by_their_groups() {
        let pods = [
            "pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
            "kubepods-burstable-pod0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice",
            "kubepods-pod0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice",
            "kubelet-kubepods-besteffort-pod0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice",
            // A static pod: the sum of its manifest.
            "kubepods-burstable-pod0a1b2c3d4e5f60718293a4b5c6d7e8f9.slice",
        ];
        let others = [
            "",
            "..",
            "pod",
            "kubepods.slice",
            "kubepods-burstable.slice",
            "tripod.service",
            "libpod-0a1b2c3d4e5f60718293a4b5c6d7e8f9.scope",
            "machine-libpod_pod_0a1b2c3d4e5f60718293a4b5c6d7e8f9.slice",
        ];
        let is_pod = |component: &str| pod_uid(component).is_some();
        assert!(pods.into_iter().all(is_pod) && !others.into_iter().any(is_pod));
    }

    #[test]
    fn groups_are_selected_by_path_unit_and_pod() {
        let pod = "pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let requested = |request: SelectionRequest| {
            let container = format!("/kubepods/{pod}/0123");
            let paths = ["/system.slice/web.service/worker", &container, "/../é/web.service"];
            Selection::new(request).unwrap().requested_groups(paths.into_iter().chain(paths))
        };
        let units = SelectionRequest { units: vec!["web".to_owned()], ..SelectionRequest::default() };
        assert_eq!(Selection::new(units.clone()).unwrap().to_string(), "--unit web");
        assert_eq!(requested(units), ["/system.slice/web.service", "/../é/web.service"]);
        let empty = SelectionRequest { units: vec![String::new()], ..SelectionRequest::default() };
        assert!(requested(empty).is_empty());
        let pods = SelectionRequest { selects_pods: true, ..SelectionRequest::default() };
        assert_eq!(requested(pods), [format!("/kubepods/{pod}")]);
        let groups = SelectionRequest { groups: vec!["/a/".to_owned()], ..SelectionRequest::default() };
        assert_eq!(requested(groups), ["/a"]);
        let all = SelectionRequest { selects_all: true, ..SelectionRequest::default() };
        assert!(requested(all).is_empty());
    }

    #[test]
    fn names_of_any_bytes_are_shown() {
        assert_eq!(name_in(b"17 (a) R (b) S 1"), b"a) R (b");
        assert_eq!(name_in(b"nothing"), b"");
        assert_eq!(displayable(b"a\"\\\nb\xff\x1b[2J"), "a\"\\\nb\u{fffd}\\u{1b}[2J");
        assert_eq!(file_name("/usr/bin/x (deleted)"), "x");
    }

    #[test]
    fn descendants_are_found_and_rings_end() {
        let parents = [(2, 1), (3, 2), (4, 5), (5, 4), (6, 7), (7, 6)];
        let mut chosen = HashSet::from([1, 6]);
        add_descendants(&mut chosen, parents.into_iter());
        assert_eq!(chosen, HashSet::from([1, 2, 3, 6, 7]));
    }

    #[test]
    fn only_processes_that_have_not_ended_count_as_unread() {
        let mut unread = 0;
        assert!(unless_unread(open_process(i32::MAX), &mut unread).is_none());
        assert_eq!(unread, 0);
        let source = std::io::Error::from_raw_os_error(24);
        let too_many_files = Err(Error::Io { pid: 1, what: String::new(), source });
        assert_eq!(unless_unread::<()>(too_many_files, &mut unread), None);
        assert_eq!(unread, 1);
    }

    #[test]
    fn selections_are_checked() {
        let error = |request| Selection::new(request).unwrap_err();
        assert!(error(SelectionRequest::default()).contains("--pid"));
        assert!(
            error(SelectionRequest { pids: vec![i32::MAX], ..SelectionRequest::default() })
                .contains("no process")
        );
        let wrong = error(SelectionRequest { names: vec!["(".to_owned()], ..SelectionRequest::default() });
        assert!(wrong.contains("--name (") && !wrong.contains('\n'), "{wrong}");
        let own_pid = std::process::id().cast_signed();
        let processes =
            Selection::new(SelectionRequest { pids: vec![own_pid], ..SelectionRequest::default() })
                .unwrap()
                .find()
                .processes;
        assert_eq!(processes.iter().map(|process| process.key.pid).collect::<Vec<_>>(), [own_pid]);
        assert!(processes[0].group().is_some());
    }
}

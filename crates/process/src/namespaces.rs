//! Files that a target maps, opened from where strandline stands.
//!
//! A target may live in another mount namespace: the path that maps shows is its own, and the same
//! path here is another file. The kernel's doors are /proc/PID/map_files/START-END (the very file,
//! deleted or not; needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE) and /proc/PID/root/PATH, where the
//! inode must match. The path is the target's choice: only regular files are opened, for reading,
//! without waiting. This module must not open any path of the target outside /proc/PID.
//!
//! A strandline with file capabilities has rights over files that its user has not. A target of that user's own making must not
//! turn them to another file: the first door is the kernel's and needs no trust; at the second what was opened so must be
//! the target's user's own, or the very file that is mapped, device and all.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use strandline_sys::capabilities::with_file_rights;

use crate::error::Result;
use crate::map::Mapping;
use crate::procfs::Process;

/// `O_NONBLOCK` and `O_NOCTTY` of x86-64: opening never waits for a pipe's other end and never takes
/// a terminal.
const QUIETLY: i32 = 0o4000 | 0o400;

/// What the kernel appends to the name of a mapped file without a path.
const DELETED: &str = " (deleted)";

/// Opens the file behind `mapping` of a process.
///
/// Fails with [`crate::Error::Permission`] where the kernel refuses both doors, and with
/// [`crate::Error::Io`] where the path now leads to another file, or to none.
pub fn open_mapped_file(process: &Process, mapping: &Mapping) -> Result<File> {
    let name = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    match with_file_rights(|| open_regular(&process.path(&name))) {
        Ok(file) => Ok(file),
        Err(first) => {
            let path = mapping.name.strip_suffix(DELETED).unwrap_or(&mapping.name);
            let path = below_root(process, path);
            let inside = format!("root{path}");
            match open_or_lend(process, &path, |file| same_device(file, mapping) && same_file(file, mapping))
            {
                Ok(file) if same_file(&file, mapping) => Ok(file),
                Ok(_) => {
                    let source = io::Error::new(
                        io::ErrorKind::NotFound,
                        "the path now leads to another file than the one that is mapped; run as root to reach that",
                    );
                    Err(crate::Error::Io { pid: process.pid(), what: format!("opening {inside}"), source })
                }
                // Refused at both doors: the first says what is missing.
                Err(_) if first.kind() == io::ErrorKind::PermissionDenied => Err(process.error(&name, first)),
                Err(source) => {
                    Err(crate::Error::Io { pid: process.pid(), what: format!("opening {inside}"), source })
                }
            }
        }
    }
}

/// A path of /proc/PID/maps as the target itself would write it. The kernel begins paths at our root, or where they do not
/// lead there at that of the target's mount namespace, which is above the root of a process that was put into a folder
/// (chroot): that folder's path is in front then.
fn below_root(process: &Process, path: &str) -> String {
    let root = std::fs::read_link(process.path("root")).unwrap_or_default();
    without_root(root.to_str().unwrap_or("/"), path).to_owned()
}

fn without_root<'a>(root: &str, path: &'a str) -> &'a str {
    path.strip_prefix(root).filter(|below| below.starts_with('/')).unwrap_or(path)
}

/// Opens a file by its path in the target's own mount namespace: `path` is absolute there.
pub fn open_in_root(process: &Process, path: &str) -> io::Result<File> {
    open_or_lend(process, path, |_| false)
}

/// The same; where strandline's own rights do not do, with those over files that its file gave it, if what was opened is of the
/// target's user, or `is_known`.
fn open_or_lend(process: &Process, path: &str, is_known: impl Fn(&File) -> bool) -> io::Result<File> {
    // A path that is not absolute, or climbs, is none that the kernel printed.
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path"));
    }
    let path = process.path("root").join(path.trim_start_matches('/'));
    let refused = match open_regular(&path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        opened => return opened,
    };
    let Ok(file) = with_file_rights(|| open_regular(&path)) else { return Err(refused) };
    let user = process.status().ok().and_then(|status| status.users).map(|users| users[1]);
    let is_theirs = file.metadata().is_ok_and(|data| Some(data.uid()) == user);
    if is_theirs || is_known(&file) { Ok(file) } else { Err(refused) }
}

/// Opens the target's executable, deleted or replaced though it may be.
pub fn open_executable(process: &Process) -> Result<File> {
    with_file_rights(|| open_regular(&process.path("exe"))).map_err(|source| process.error("exe", source))
}

fn open_regular(path: &Path) -> io::Result<File> {
    let refuse = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    // Asked before opening too: opening a device can do things.
    if !std::fs::metadata(path)?.is_file() {
        return Err(refuse());
    }
    let file = std::fs::OpenOptions::new().read(true).custom_flags(QUIETLY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refuse()) }
}

/// Whether an open file is the mapped one. Overlay and btrfs file systems show another device in maps
/// than in stat: the inode decides.
fn same_file(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.ino() == mapping.inode)
}

/// Whether it lies on the device that maps shows. See `same_file` for where that is another.
fn same_device(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| numbers(metadata.dev()) == mapping.device)
}

/// A device's major and minor number, as glibc packs them (`gnu_dev_major`, `gnu_dev_minor`): low bits of both below, high ones above.
fn numbers(device: u64) -> (u32, u32) {
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & !0xff);
    (major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::AddressSpace;

    #[test]
    fn devices_have_two_numbers() {
        assert_eq!(numbers(0xfe0a), (0xfe, 0x0a));
        assert_eq!(numbers(0x0000_1001_2345_6789), (0x1567, 0x0012_3489));
    }

    fn own() -> Process {
        Process::open(i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    #[test]
    fn own_mapped_files_open_by_either_door() {
        let process = own();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let mapping = space.mappings().iter().find(|m| m.name.starts_with('/')).unwrap();
        assert!(same_file(&open_mapped_file(&process, mapping).unwrap(), mapping));
        assert!(same_file(&open_in_root(&process, &mapping.name).unwrap(), mapping));
        assert!(open_executable(&process).unwrap().metadata().unwrap().len() > 0);
    }

    #[test]
    fn a_root_is_taken_off_whole() {
        assert_eq!(without_root("/jail", "/jail/lib/libc.so.6"), "/lib/libc.so.6");
        assert_eq!(without_root("/jail", "/jailed/lib"), "/jailed/lib");
        assert_eq!(without_root("/jail", "/lib/libc.so.6"), "/lib/libc.so.6");
        assert_eq!(without_root("/", "/lib/libc.so.6"), "/lib/libc.so.6");
    }

    #[test]
    fn devices_pipes_and_climbing_paths_are_refused() {
        let process = own();
        assert!(open_in_root(&process, "/dev/null").is_err());
        assert!(open_in_root(&process, "/tmp/../etc/passwd").is_err());
        assert!(open_in_root(&process, "etc/passwd").is_err());
        let gone =
            Mapping { start: 4096, end: 8192, inode: 1, name: "/etc/passwd".into(), ..Mapping::default() };
        assert!(open_mapped_file(&process, &gone).is_err(), "the inode is another");
    }

    /// Starts a program from a file system that only its own mount namespace has, in a pid namespace
    /// of its own. `None` where this machine or user may not.
    fn elsewhere() -> Option<(std::process::Child, Process)> {
        use std::process::{Command, Stdio};

        let script = "mount -t tmpfs none /mnt && cp /bin/sleep /mnt/nap && exec /mnt/nap 1000";
        let mut child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let unshare = child.id();
        // By nanosleep or clock_nanosleep: all of it is mapped then.
        let sleeps = |pid: i32| {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            ["35 ", "230 "].iter().any(|number| call.starts_with(number))
        };
        // Where it may not, unshare or the shell ends.
        while child.try_wait().ok()?.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let path = format!("/proc/{unshare}/task/{unshare}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let process =
                children.split_whitespace().next().and_then(|pid| Process::open(pid.parse().ok()?).ok());
            let process = process.filter(|process| process.executable().is_some_and(|e| e.ends_with("/nap")));
            if let Some(process) = process.filter(|process| sleeps(process.pid())) {
                return Some((child, process));
            }
        }
        None
    }

    #[test]
    fn files_of_another_mount_namespace_open_by_its_own_doors() {
        let Some((mut child, process)) = elsewhere() else {
            eprintln!("skipped: no namespaces for this user");
            return;
        };
        assert!(process.status().unwrap().is_in_inner_pid_namespace());
        assert_eq!(process.status().unwrap().namespace_pids.last(), Some(&1));
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let mapping = space.mappings().iter().find(|m| m.name.ends_with("/nap")).unwrap();
        assert!(same_file(&open_mapped_file(&process, mapping).unwrap(), mapping));
        assert!(same_file(&open_executable(&process).unwrap(), mapping));
        assert!(same_file(&open_in_root(&process, "/mnt/nap").unwrap(), mapping));
        assert!(File::open("/mnt/nap").is_err(), "it is not there from here");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

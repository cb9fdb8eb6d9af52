//! Opens files that a target maps, from strandline's own mount namespace.
//!
//! A target may live in another mount namespace: the path in maps is the target's, and the same
//! path here is another file. The kernel offers two ways: /proc/PID/map_files/START-END (the mapped
//! file itself, deleted or not; needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), and PATH below
//! /proc/PID/root, where the inode must match. The target chooses the path and the links on it:
//! links resolve as they do for the target and never leave its root (openat2(2), `RESOLVE_IN_ROOT`;
//! on kernels before 5.6 no link is followed), and only regular files are opened, for reading,
//! without blocking. This module must not open any path of the target outside /proc/PID.
//!
//! A strandline with file capabilities may open files that its user may not. A target made by this
//! user must not exploit that to reach another file: the first way is the kernel's own and needs no
//! trust; with the second, a file opened by these capabilities must belong to the target's user, or
//! be the mapped file with the same device and inode.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use strandline_sys::capabilities::with_dac_capabilities;

use crate::error::Result;
use crate::map::{DELETED_SUFFIX, DeviceNumber, Mapping};
use crate::procfs::Process;

/// `O_NONBLOCK` and `O_NOCTTY` of x86-64: opening neither waits for the other end of a pipe nor
/// acquires a controlling terminal.
const NONBLOCK_NOCTTY: i32 = 0o4000 | 0o400;

/// Opens the file behind `mapping` of a process.
///
/// # Errors
/// [`crate::Error::Permission`] if the kernel refuses both ways, [`crate::Error::Io`] if the path
/// now leads to another file, or to none.
pub fn open_mapped_file(process: &Process, mapping: &Mapping) -> Result<File> {
    let name = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    let link_error = match with_dac_capabilities(|| open_regular(&process.path(&name))) {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    let path = mapping.name.strip_suffix(DELETED_SUFFIX).unwrap_or(&mapping.name);
    let path = below_root(process, path);
    let is_mapped = |file: &File| same_device(file, mapping) && same_file(file, mapping);
    let source = match open_with_capabilities(process, &path, is_mapped) {
        Ok(file) if same_file(&file, mapping) => return Ok(file),
        Ok(_) => io::Error::new(
            io::ErrorKind::NotFound,
            "the path now names a different file than the mapped one; run as root to open the mapped one",
        ),
        // Both ways were refused: the first error shows what is missing.
        Err(_) if link_error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(process.error(&name, link_error));
        }
        Err(source) => source,
    };
    Err(crate::Error::Io { pid: process.pid(), what: format!("opening root{path}"), source })
}

/// Converts a path of /proc/PID/maps to one relative to the target's root. The kernel's paths start
/// at strandline's root, or if they are not below it, at the root of the target's mount namespace.
/// For a target in a chroot the latter includes the path of the chroot directory.
fn below_root(process: &Process, path: &str) -> String {
    // If the link cannot be read, the file cannot be opened through it either.
    let root = std::fs::read_link(process.path("root")).unwrap_or_default();
    without_root(root.to_str().unwrap_or("/"), path).to_owned()
}

fn without_root<'a>(root: &str, path: &'a str) -> &'a str {
    path.strip_prefix(root).filter(|below| below.starts_with('/')).unwrap_or(path)
}

/// Opens a file by its path in the target's own mount namespace: `path` is absolute there.
///
/// # Errors
/// The kernel's, and `InvalidInput` if the path is not absolute or leads to no regular file.
pub fn open_in_root(process: &Process, path: &str) -> io::Result<File> {
    open_with_capabilities(process, path, |_| false)
}

/// Like [`open_in_root`]; if strandline's own rights do not suffice, opens with its file
/// capabilities, provided that the file belongs to the target's user or `is_known`.
fn open_with_capabilities(
    process: &Process,
    path: &str,
    is_known: impl Fn(&File) -> bool,
) -> io::Result<File> {
    // The kernel prints neither relative paths nor paths with "..".
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path"));
    }
    // Read before the open and compared after it: a target that changes its user meanwhile must not
    // have a file of the new user opened.
    let effective_user = || process.status().ok().and_then(|status| status.user_ids).map(|ids| ids.effective);
    let user_before = effective_user();
    let refusal = match open_below(process, path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        opened => return opened,
    };
    let Ok(file) = with_dac_capabilities(|| open_below(process, path)) else { return Err(refusal) };
    let belongs_to_target_user =
        file.metadata().is_ok_and(|data| Some(data.uid()) == user_before) && effective_user() == user_before;
    if belongs_to_target_user || is_known(&file) { Ok(file) } else { Err(refusal) }
}

/// Opens a regular file by its path in the target's root.
fn open_below(process: &Process, path: &str) -> io::Result<File> {
    let root = open(process.path("root"), PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let location = match openat2(&root, path, PATH_FLAGS, Mode::empty(), within) {
        // Before Linux 5.6, or under a seccomp filter that does not know openat2.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => resolve_without_links(root, path)?,
        location => location?,
    };
    reopen(&location)
}

/// Flags for a location that is resolved but not opened for reading.
pub(crate) const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Resolves a path below `root` without following links.
fn resolve_without_links(root: OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let mut location = root;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        location = openat(&location, part, PATH_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(location)
}

/// Opens the file at a resolved location if it is a regular file: opening a device can have
/// effects.
fn reopen(location: &impl AsFd) -> io::Result<File> {
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(location)?.st_mode);
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // Reopens exactly this file, wherever its path leads by now.
    let path = format!("/proc/self/fd/{}", location.as_fd().as_raw_fd());
    std::fs::OpenOptions::new().read(true).custom_flags(NONBLOCK_NOCTTY).open(path)
}

/// Opens the target's executable, even if it was deleted or replaced.
///
/// # Errors
/// The process has ended, or may not be inspected.
pub fn open_executable(process: &Process) -> Result<File> {
    with_dac_capabilities(|| open_regular(&process.path("exe")))
        .map_err(|source| process.error("exe", source))
}

/// Opens the target of one of the kernel's own links.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    reopen(&open(path, PATH_FLAGS, Mode::empty())?)
}

/// Whether an open file is known to be the mapped one. Compares only inodes: overlay and btrfs show
/// another device in maps than in stat.
fn same_file(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.ino() == mapping.inode)
}

/// Whether an open file is known to be on the device shown in maps; see `same_file` for file
/// systems where it is not.
fn same_device(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| device_number(metadata.dev()) == mapping.device)
}

/// The number of a device, as glibc packs it (`gnu_dev_major`, `gnu_dev_minor`): low bits of both
/// parts below, high bits above.
fn device_number(device: u64) -> DeviceNumber {
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & !0xff);
    DeviceNumber { major: major as u32, minor: minor as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::AddressSpace;

    #[test]
    fn devices_have_two_numbers() {
        let number = |major, minor| DeviceNumber { major, minor };
        assert_eq!(device_number(0xfe0a), number(0xfe, 0x0a));
        assert_eq!(device_number(0x0000_1001_2345_6789), number(0x1567, 0x0012_3489));
    }

    fn own_process() -> Process {
        Process::open(i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    #[test]
    fn own_mapped_files_open_in_both_ways() {
        let process = own_process();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let mapping = space.mappings().iter().find(|m| m.name.starts_with('/')).unwrap();
        assert!(same_file(&open_mapped_file(&process, mapping).unwrap(), mapping));
        assert!(same_file(&open_in_root(&process, &mapping.name).unwrap(), mapping));
        assert!(open_executable(&process).unwrap().metadata().unwrap().len() > 0);
    }

    #[test]
    fn a_root_is_removed_completely() {
        assert_eq!(without_root("/jail", "/jail/lib/libc.so.6"), "/lib/libc.so.6");
        assert_eq!(without_root("/jail", "/jailed/lib"), "/jailed/lib");
        assert_eq!(without_root("/jail", "/lib/libc.so.6"), "/lib/libc.so.6");
        assert_eq!(without_root("/", "/lib/libc.so.6"), "/lib/libc.so.6");
    }

    #[test]
    fn devices_pipes_and_climbing_paths_are_refused() {
        let process = own_process();
        assert!(open_in_root(&process, "/dev/null").is_err());
        assert!(open_in_root(&process, "/tmp/../etc/passwd").is_err());
        assert!(open_in_root(&process, "etc/passwd").is_err());
        let gone =
            Mapping { start: 4096, end: 8192, inode: 1, name: "/etc/passwd".into(), ..Mapping::default() };
        assert!(open_mapped_file(&process, &gone).is_err(), "the inode is another");
    }

    #[test]
    fn links_lead_where_they_lead_for_the_target() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().unwrap();
        let jail = folder.path().join("jail");
        std::fs::create_dir_all(jail.join("etc")).unwrap();
        std::fs::write(jail.join("etc/passwd"), "theirs").unwrap();
        symlink("/etc/passwd", jail.join("absolute")).unwrap();
        symlink("../../../../etc/passwd", jail.join("climbing")).unwrap();
        symlink("/proc/self/root/etc/passwd", jail.join("magic")).unwrap();
        let mut command = std::process::Command::new("chroot");
        command.arg(&jail).arg("/sleep").arg("1000");
        let source = folder.path().join("sleep.c");
        std::fs::write(&source, "int pause(void); int main(void) { return pause(); }").unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-static", "-o"]).arg(jail.join("sleep")).arg(&source).stderr(std::process::Stdio::null());
        let has_static = cc.status().is_ok_and(|status| status.success());
        if !has_static || strandline_sys::host::effective_user() != 0 {
            eprintln!(
                "skipped: links_lead_where_they_lead_for_the_target: needs root and a static C library"
            );
            return;
        }
        let mut child = command.spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        while process.executable().is_none_or(|path| !path.ends_with("/sleep")) {
            assert!(child.try_wait().unwrap().is_none(), "chroot failed");
            std::thread::yield_now();
        }
        let text = |path: &str| std::io::read_to_string(open_in_root(&process, path).unwrap()).unwrap();
        assert_eq!(text("/absolute"), "theirs");
        assert_eq!(text("/climbing"), "theirs");
        assert!(open_in_root(&process, "/magic").is_err(), "it has no /proc there");
        let root = open(process.path("root"), PATH_FLAGS | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let open_without_links = |path: &str| {
            resolve_without_links(root.try_clone().unwrap(), path).and_then(|location| reopen(&location))
        };
        assert_eq!(std::io::read_to_string(open_without_links("/etc/passwd").unwrap()).unwrap(), "theirs");
        assert!(open_without_links("/absolute").is_err() && open_without_links("/climbing").is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a program from a file system that exists only in its own mount namespace, in its own
    /// pid namespace. `None` if this machine or user may not.
    fn start_in_own_namespaces() -> Option<(std::process::Child, Process)> {
        use std::process::{Command, Stdio};

        let script = "mount -t tmpfs none /mnt && cp /bin/sleep /mnt/nap && exec /mnt/nap 1000";
        let mut child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let unshare = child.id();
        // It sleeps in nanosleep or clock_nanosleep once everything is mapped.
        let sleeps = |pid: i32| {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            ["35 ", "230 "].iter().any(|number| call.starts_with(number))
        };
        // Without the permission, unshare or the shell exits.
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
    fn files_of_another_mount_namespace_open_in_both_ways() {
        let Some((mut child, process)) = start_in_own_namespaces() else {
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

//! The files of tmpfs mounts that the processes of a group see, whether or not a process has them
//! open: a file that was written and closed stays in memory until it is removed.
//!
//! Folders are walked below /proc/PID/root without following links or leaving the mount
//! (openat2(2), Linux 5.6), up to a number of entries and a time.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstatfs, open, openat2, statat};
use rustix::io::Errno;
use strandline_sys::capabilities::SYS_PTRACE;

use super::files::{FileSearch, FileUse, TMPFS_MAGIC};
use crate::error::Error;
use crate::map::DeviceNumber;
use crate::namespaces::PATH_FLAGS;
use crate::procfs::{MAX_MOUNTS_BYTES, Process, mounts};

/// Maximum number of directory entries read.
const MAX_ENTRIES: u64 = 100_000;
/// Maximum number of mount namespaces whose mounts are walked.
const MAX_NAMESPACES: usize = 16;
/// Maximum number of mounts walked in a namespace.
const MAX_MOUNTS: usize = 256;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 32;
/// Smallest file that is opened to be counted.
const MIN_FILE_BYTES: u64 = 16 << 10;
/// The unit of `st_blocks` (stat(3type)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Looks through tmpfs mounts.
#[derive(Debug)]
pub struct SharedMemoryWalk {
    /// The inodes of the mount namespaces that were walked.
    namespaces: BTreeSet<u64>,
    /// The devices of the mounts that were walked.
    devices: BTreeSet<DeviceNumber>,
    /// Number of directory entries read.
    entries: u64,
    /// Time left for walking.
    time_left: Duration,
    /// Whether what this user may not read counts as unseen. Without the right to inspect other
    /// users' processes no: its own processes, which are all that are walked, have nothing there.
    counts_denied: bool,
    /// Whether there are entries, mounts or namespaces that it has not seen: too many, or they
    /// cannot be read.
    pub is_cut: bool,
}

impl SharedMemoryWalk {
    /// A walk that takes at most `time` in total.
    pub fn new(time: Duration) -> Self {
        Self {
            namespaces: BTreeSet::new(),
            devices: BTreeSet::new(),
            entries: 0,
            time_left: time,
            counts_denied: SYS_PTRACE.is_held(),
            is_cut: false,
        }
    }

    /// Adds the files of the mounts that `process` sees to `search`; each mount once.
    pub fn add_process(&mut self, process: &Process, search: &mut FileSearch) {
        use std::os::unix::fs::MetadataExt;

        // Fails for a process that has ended or may not be inspected, whose files cannot be opened.
        let Ok(namespace) = std::fs::metadata(process.path("ns/mnt")) else { return };
        let namespace = namespace.ino();
        if self.namespaces.contains(&namespace) {
            return;
        }
        if self.namespaces.len() >= MAX_NAMESPACES {
            self.is_cut = true;
            return;
        }
        self.namespaces.insert(namespace);
        let since = Instant::now();
        self.walk_mounts(process, since + self.time_left, search);
        self.time_left = self.time_left.saturating_sub(since.elapsed());
    }

    /// Walks the tmpfs mounts that `process` sees and that were not walked yet.
    fn walk_mounts(&mut self, process: &Process, deadline: Instant, search: &mut FileSearch) {
        let root = match open(process.path("root"), PATH_FLAGS, Mode::empty()) {
            Ok(root) => root,
            Err(error) => return self.note_unread(error),
        };
        let text = match process.read_file("mountinfo", MAX_MOUNTS_BYTES) {
            Ok(text) => text,
            Err(error) => {
                self.is_cut |= !matches!(error, Error::Ended { .. });
                return;
            }
        };
        let tmpfs_mounts = mounts::parse(&text).into_iter().filter(|mount| mount.kind == "tmpfs");
        let mut new_mounts = 0;
        for mount in tmpfs_mounts {
            if !self.devices.insert(mount.device) {
                continue;
            }
            new_mounts += 1;
            if new_mounts > MAX_MOUNTS {
                self.is_cut = true;
                return;
            }
            let in_root = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
            match openat2(&root, mount.point.as_str(), PATH_FLAGS, Mode::empty(), in_root) {
                Ok(top) if is_tmpfs(&top) => self.walk(&top, &mount.point, deadline, search),
                // Another file system is mounted over it, or over a folder above it.
                Ok(_) | Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => self.note_unread(error),
            }
        }
    }

    /// Notes what could not be read, unless it was removed or its process ended meanwhile.
    fn note_unread(&mut self, error: Errno) {
        self.is_cut |= match error {
            Errno::NOENT | Errno::SRCH => false,
            Errno::ACCESS => self.counts_denied,
            _ => true,
        };
    }

    /// Walks the folders below `top`, which is mounted at `point`.
    fn walk(&mut self, top: &OwnedFd, point: &str, deadline: Instant, search: &mut FileSearch) {
        let mut unread_folders = vec![(String::from("."), 0)];
        while let Some((path, depth)) = unread_folders.pop() {
            let opened = openat2(top, path.as_str(), FOLDER_FLAGS, Mode::empty(), BELOW);
            let (entries, folder) = match opened.and_then(|folder| Ok((Dir::read_from(&folder)?, folder))) {
                Ok(opened) => opened,
                // Another mount, which is walked on its own; or the mount is of a single file, as
                // containers have many.
                Err(Errno::XDEV | Errno::NOTDIR) => continue,
                Err(error) => {
                    self.note_unread(error);
                    continue;
                }
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => {
                        self.note_unread(error);
                        break;
                    }
                };
                self.entries += 1;
                if self.entries > MAX_ENTRIES || Instant::now() >= deadline {
                    self.is_cut = true;
                    return;
                }
                // A name that is not UTF-8 would name another file once converted.
                let Ok(name) = entry.file_name().to_str() else {
                    self.is_cut = true;
                    continue;
                };
                if matches!(name, "." | "..") {
                    continue;
                }
                match entry.file_type() {
                    FileType::Directory if depth < MAX_DEPTH => {
                        unread_folders.push((format!("{path}/{name}"), depth + 1));
                    }
                    FileType::Directory => self.is_cut = true,
                    FileType::RegularFile => {
                        let shown_path = format!("{point}{}/{name}", &path[1..]);
                        if let Err(error) = add_file(&folder, name, &shown_path, search) {
                            self.note_unread(error);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Adds the file `name` of `folder` to `search` as `path`, unless it is small.
fn add_file(folder: &impl AsFd, name: &str, path: &str, search: &mut FileSearch) -> Result<(), Errno> {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
    // tmpfs has blocks for each page, swapped out or not.
    let bytes = stat.st_blocks.cast_unsigned().saturating_mul(STAT_BLOCK_BYTES);
    if bytes >= MIN_FILE_BYTES && FileType::from_raw_mode(stat.st_mode).is_file() {
        let file = match openat2(folder, name, FILE_FLAGS, Mode::empty(), BELOW) {
            // Another file is mounted over it.
            Err(Errno::XDEV) => return Ok(()),
            opened => opened?,
        };
        search.add(File::from(file), path, FileUse::Found);
    }
    Ok(())
}

/// Flags with which a folder is opened.
const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags with which a file is opened: the open neither waits nor follows a link.
const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Paths stay below the folder that they start at, on its mount, and follow no link.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// Whether an open folder is known to be of a tmpfs.
fn is_tmpfs(folder: &OwnedFd) -> bool {
    fstatfs(folder).is_ok_and(|stat| stat.f_type.cast_unsigned() == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_files_of_shared_memory_are_found_and_links_are_not_followed() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(folder.path().join("a/db"), [1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let mut search = FileSearch::new(Duration::from_secs(600), None, Duration::ZERO);
        let mut walk = SharedMemoryWalk::new(Duration::from_secs(600));
        let own_process = Process::open(std::process::id().cast_signed()).unwrap();
        walk.add_process(&own_process, &mut search);
        walk.add_process(&own_process, &mut search);
        let found = search.finish();
        let path = folder.path().join("a/db").display().to_string();
        let file = found.files.iter().find(|file| file.path == path);
        assert!(file.is_some_and(|file| file.cached_bytes == 25 * 4096 && !file.is_used), "{found:?}");
        assert!(found.files.iter().all(|file| !file.path.contains("/root/")));
    }

    #[test]
    fn folders_that_are_too_deep_are_reported() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("skipped: folders_that_are_too_deep_are_reported: /dev/shm cannot be written to");
            return;
        };
        std::fs::create_dir_all(folder.path().join(["a"; MAX_DEPTH + 1].join("/"))).unwrap();
        let mut search = FileSearch::new(Duration::from_secs(600), None, Duration::ZERO);
        let mut walk = SharedMemoryWalk::new(Duration::from_secs(600));
        let own_process = Process::open(std::process::id().cast_signed()).unwrap();
        walk.add_process(&own_process, &mut search);
        assert!(walk.is_cut);
    }

    #[test]
    fn a_mount_of_a_single_file_hides_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let top = open(file.path(), PATH_FLAGS, Mode::empty()).unwrap();
        let mut search = FileSearch::new(Duration::from_secs(600), None, Duration::ZERO);
        let mut walk = SharedMemoryWalk::new(Duration::from_secs(600));
        walk.walk(&top, "/etc/hosts", Instant::now() + Duration::from_secs(600), &mut search);
        assert!(!walk.is_cut);
    }

    #[test]
    fn denied_folders_count_only_with_the_right_to_inspect_others() {
        for counts_denied in [false, true] {
            let mut walk = SharedMemoryWalk { counts_denied, ..SharedMemoryWalk::new(Duration::ZERO) };
            walk.note_unread(Errno::NOENT);
            walk.note_unread(Errno::ACCESS);
            assert_eq!(walk.is_cut, counts_denied);
        }
    }
}

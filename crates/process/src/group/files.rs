//! The files that the processes of a group have open or mapped, and what the page cache holds of
//! each.
//!
//! Files are opened through /proc/PID, deleted or not, and only if they are regular files of a
//! local file system: opening a device has effects, and a server that does not answer would hang
//! the reader. Their bytes are never read. The search ends after a number of names or after a time,
//! and reports that it did.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use strandline_sys::files::{FileWindow, cache_stat};

use super::charge::ChargeSampler;
use crate::error::Error;
use crate::map::{AddressSpace, DELETED_SUFFIX, FileId};
use crate::namespaces::{open_mapped_file, open_regular};
use crate::pages::PAGE_BYTES;
use crate::procfs::mounts::{self, Mount};
use crate::procfs::{MAX_INFO_BYTES, MAX_MOUNTS_BYTES, Process};

/// Maximum number of file descriptors and mappings checked.
const MAX_NAMES: u64 = 1_000_000;
/// Maximum number of files kept; of more the smaller half is dropped. The ledger of a group has
/// their bytes on the rows without a file.
const MAX_FILES: usize = 4096;
/// Maximum number of the largest files that are kept open: they are sampled last, when it is known
/// which are the largest.
const MAX_OPEN: usize = 96;
/// Smallest file of which a sample is taken.
const MIN_SAMPLED_BYTES: u64 = 16 << 10;
/// Maximum bytes of a process's mappings that are read.
const MAX_MAPS_BYTES: u64 = 32 << 20;
/// Maximum bytes of a file that are mapped to count its pages where cachestat(2) is missing; pages
/// beyond are not counted.
const MAX_COUNTED_BYTES: u64 = 8 << 30;
/// Bytes mapped at once for that.
const COUNTED_WINDOW_BYTES: u64 = 256 << 20;

/// Types of file systems (statfs(2)).
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// File systems whose servers may not answer.
const REMOTE: &[&str] = &["nfs", "cifs", "smb", "fuse", "9p", "ceph", "afs", "lustre", "virtiofs", "ocfs2"];

/// A file with pages in the page cache.
#[derive(Debug)]
pub struct CachedFile {
    /// Its path in the mount namespace of the process that uses it, without ` (deleted)`.
    pub path: String,
    /// Whether it has no name any more.
    pub is_deleted: bool,
    /// Whether it is shared memory.
    pub is_shared_memory: bool,
    /// Whether a process of the group has it open or mapped.
    pub is_used: bool,
    /// Bytes in the page cache; of a file above 8 GiB a lower bound, where cachestat(2) is missing
    /// (before Linux 6.5).
    pub cached_bytes: u64,
    /// The part of `cached_bytes` that is written and not yet on disk; `None` before Linux 6.5.
    pub dirty_bytes: Option<u64>,
    /// The part that is being written to disk; `None` before Linux 6.5.
    pub writeback_bytes: Option<u64>,
    /// The part that is charged to the group, by a sample; `None` if unknown.
    pub charged_bytes: Option<u64>,
    size_bytes: u64,
    /// The open file, until it is sampled.
    open: Option<File>,
}

/// Who uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// A process of the group has it open or mapped.
    OpenOrMapped,
    /// No process is known to: it was found in a folder.
    Found,
}

/// The files that were found.
#[derive(Debug, Default)]
pub struct Files {
    /// Those with the most bytes in the page cache, in descending order.
    pub files: Vec<CachedFile>,
    /// Whether names were skipped: for lack of time, or because there are too many.
    pub has_unread_names: bool,
    /// Files that could not be opened or counted.
    pub unreadable_files: u64,
    /// Files of remote file systems, which were left out.
    pub remote_files: u64,
    /// Processes whose files may not be listed.
    pub unlisted_processes: u64,
    /// Whether the pages of files were sampled for their groups.
    pub is_sampled: bool,
    /// Number of files of at least 16 KiB that were not sampled: there was no sampler, or no time.
    pub unsampled_files: u64,
}

/// Identifies a file as stat(2) does: the device may differ from that of maps ([`FileId`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StatId {
    device: u64,
    inode: u64,
}

/// Collects files.
#[derive(Debug)]
pub struct FileSearch {
    files: Files,
    /// The files that were opened.
    opened_ids: HashSet<StatId>,
    /// Hashes of mount namespace and path.
    name_hashes: HashSet<u64>,
    /// The mapped files that were opened.
    mapped_ids: HashSet<FileId>,
    /// Those of the last process's namespace.
    mounts: Option<Mounts>,
    /// Number of file descriptors and mappings checked.
    checked_names: u64,
    deadline: Instant,
    sampling: Option<Sampling>,
}

/// Samples files for the groups that they are charged to.
#[derive(Debug)]
struct Sampling {
    sampler: ChargeSampler,
    /// Time left for files that are not among the largest.
    time_left: Duration,
    /// Time for the largest files.
    time_for_largest: Duration,
}

impl Sampling {
    /// Samples the file while it is open.
    fn sample(&self, file: &mut CachedFile) {
        let Some(open) = &file.open else { return };
        let sample = self.sampler.sample(open, file.size_bytes);
        file.charged_bytes = sample.and_then(|sample| sample.share_of(file.cached_bytes));
    }
}

/// The mounts of one mount namespace.
#[derive(Debug)]
struct Mounts {
    /// The inode of the namespace; `None` if unknown.
    namespace: Option<u64>,
    list: Vec<Mount>,
}

impl FileSearch {
    /// Ends after `time`. The files are sampled, the largest for at most half of `sampling_time`.
    pub fn new(time: Duration, sampler: Option<ChargeSampler>, sampling_time: Duration) -> Self {
        let half = sampling_time / 2;
        let sampling = sampler.map(|sampler| Sampling { sampler, time_left: half, time_for_largest: half });
        Self {
            files: Files::default(),
            opened_ids: HashSet::new(),
            name_hashes: HashSet::new(),
            mapped_ids: HashSet::new(),
            mounts: None,
            checked_names: 0,
            deadline: Instant::now() + time,
            sampling,
        }
    }

    /// Whether time or bounds are used up.
    pub fn is_over(&self) -> bool {
        self.checked_names >= MAX_NAMES || Instant::now() >= self.deadline
    }

    /// Adds the files that `process` has mapped or open.
    pub fn add_process(&mut self, process: &Process) {
        if self.is_over() {
            self.files.has_unread_names = true;
            return;
        }
        let namespace = std::fs::metadata(process.path("ns/mnt")).ok().map(|metadata| metadata.ino());
        if self.mounts.as_ref().is_none_or(|mounts| mounts.namespace != namespace || namespace.is_none()) {
            self.mounts = None;
            let Ok(text) = process.read_file("mountinfo", MAX_MOUNTS_BYTES) else {
                // Any of its files may be on a server that does not answer. One that has ended
                // uses none.
                self.files.unlisted_processes += u64::from(!has_ended(process));
                return;
            };
            self.mounts = Some(Mounts { namespace, list: mounts::parse(&text) });
        }
        let can_list = self.add_mapped(process, namespace) & self.add_open(process, namespace);
        self.files.unlisted_processes += u64::from(!can_list && !has_ended(process));
    }

    /// Whether the first mount that `matches` is of a remote file system; `None` if there is no
    /// such mount.
    fn is_remote(&self, matches: impl Fn(&Mount) -> bool) -> Option<bool> {
        let mount = self.mounts.as_ref()?.list.iter().find(|mount| matches(mount))?;
        Some(REMOTE.iter().any(|kind| mount.kind.starts_with(kind)))
    }

    /// Adds the files that a process has mapped; false if its mappings cannot be read.
    fn add_mapped(&mut self, process: &Process, namespace: Option<u64>) -> bool {
        let Ok(text) = process.read_file("maps", MAX_MAPS_BYTES) else { return false };
        self.files.has_unread_names |= text.len() as u64 >= MAX_MAPS_BYTES;
        let (space, _) = AddressSpace::parse(&text);
        for mapping in space.mappings().iter().filter(|mapping| mapping.has_file()) {
            self.checked_names += 1;
            if !self.mapped_ids.insert(mapping.file_id()) {
                continue;
            }
            if self.is_over() {
                self.files.has_unread_names = true;
                break;
            }
            if self.is_remote(|mount| mount.device == mapping.device) == Some(true) {
                self.files.remote_files += 1;
                continue;
            }
            // A descriptor of the same file need not be opened too.
            self.note_name(namespace, &mapping.name);
            match open_mapped_file(process, mapping) {
                Ok(file) => self.add(file, &mapping.name, FileUse::OpenOrMapped),
                Err(_) => self.files.unreadable_files += 1,
            }
        }
        true
    }

    /// Adds the files that a process has open; false if its descriptors cannot be listed.
    fn add_open(&mut self, process: &Process, namespace: Option<u64>) -> bool {
        let Ok(entries) = std::fs::read_dir(process.path("fd")) else { return false };
        for entry in entries {
            self.checked_names += 1;
            let Ok(entry) = entry else { return false };
            if self.is_over() {
                self.files.has_unread_names = true;
                break;
            }
            // A descriptor that was closed meanwhile.
            let Ok(link) = std::fs::read_link(entry.path()) else { continue };
            let name = link.to_string_lossy();
            // Sockets, pipes and the like have names without a slash.
            let is_file =
                name.starts_with('/') && !name.starts_with("/dev/") || name.starts_with("/dev/shm/");
            if !is_file || !self.note_name(namespace, &name) {
                continue;
            }
            let number = entry.file_name();
            match self.is_remote_descriptor(process, &number.to_string_lossy()) {
                Some(true) => self.files.remote_files += 1,
                // The mounts of memfd and System V segments are not listed.
                None if !is_on_kernels_tmpfs(&name) => self.files.unreadable_files += 1,
                None | Some(false) => match open_regular(&entry.path()) {
                    Ok(file) => self.add(file, &name, FileUse::OpenOrMapped),
                    // Directories and devices are opened too.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                    Err(_) => self.files.unreadable_files += 1,
                },
            }
        }
        true
    }

    /// Whether an open file is on a remote file system, by its mount; `None` if that is unknown or
    /// not listed.
    fn is_remote_descriptor(&self, process: &Process, number: &str) -> Option<bool> {
        let info = process.read_text(&format!("fdinfo/{number}"), MAX_INFO_BYTES).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let id: u64 = line.trim().parse().ok()?;
        self.is_remote(|mount| mount.id == id)
    }

    /// Notes a name; returns whether it is new. A deleted file shares its name with others, and one
    /// of an unknown namespace may: they always count as new.
    fn note_name(&mut self, namespace: Option<u64>, name: &str) -> bool {
        if name.ends_with(DELETED_SUFFIX) || namespace.is_none() {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        (namespace, name).hash(&mut hasher);
        self.name_hashes.insert(hasher.finish())
    }

    /// Adds an open file under its name.
    pub fn add(&mut self, file: File, name: &str, file_use: FileUse) {
        let facts = file.metadata().and_then(|metadata| Ok((metadata, rustix::fs::fstatfs(&file)?)));
        let Ok((metadata, file_system)) = facts else {
            self.files.unreadable_files += 1;
            return;
        };
        let is_new = self.opened_ids.insert(StatId { device: metadata.dev(), inode: metadata.ino() });
        let file_system_type = file_system.f_type.cast_unsigned();
        if !is_new || file_system_type == HUGETLBFS_MAGIC {
            return;
        }
        let Ok(count) = count_cached(&file, metadata.len()) else {
            self.files.unreadable_files += 1;
            return;
        };
        if count.cached_bytes == 0 {
            return;
        }
        let path = name.strip_suffix(DELETED_SUFFIX).unwrap_or(name);
        self.files.files.push(CachedFile {
            path: path.to_owned(),
            is_deleted: path.len() < name.len() || metadata.nlink() == 0,
            is_shared_memory: file_system_type == TMPFS_MAGIC,
            is_used: file_use == FileUse::OpenOrMapped,
            cached_bytes: count.cached_bytes,
            dirty_bytes: count.dirty_bytes,
            writeback_bytes: count.writeback_bytes,
            charged_bytes: None,
            size_bytes: metadata.len(),
            open: (count.cached_bytes >= MIN_SAMPLED_BYTES).then_some(file),
        });
        self.shrink();
    }

    /// Samples and closes all files but the largest, and forgets the smaller half of too many.
    fn shrink(&mut self) {
        let files = &mut self.files.files;
        let open_count = files.iter().filter(|file| file.open.is_some()).count();
        if open_count < 2 * MAX_OPEN && files.len() < MAX_FILES {
            return;
        }
        sort(files);
        let since = Instant::now();
        for file in files.iter_mut().skip(MAX_OPEN).filter(|file| file.open.is_some()) {
            match self.sampling.as_ref().filter(|sampling| since.elapsed() < sampling.time_left) {
                Some(sampling) => sampling.sample(file),
                None => self.files.unsampled_files += 1,
            }
            file.open = None;
        }
        if let Some(sampling) = &mut self.sampling {
            sampling.time_left = sampling.time_left.saturating_sub(since.elapsed());
        }
        if files.len() >= MAX_FILES {
            files.truncate(MAX_FILES / 2);
        }
    }

    /// Samples the files that are open, the largest first, and returns all.
    pub fn finish(mut self) -> Files {
        sort(&mut self.files.files);
        let since = Instant::now();
        for file in &mut self.files.files {
            match self.sampling.as_ref().filter(|sampling| since.elapsed() < sampling.time_for_largest) {
                Some(sampling) => sampling.sample(file),
                None if file.open.is_some() => self.files.unsampled_files += 1,
                None => {}
            }
            file.open = None;
            self.files.is_sampled |= file.charged_bytes.is_some();
        }
        self.files
    }
}

/// Whether a file is on the kernel's own tmpfs, which is not mounted.
fn is_on_kernels_tmpfs(name: &str) -> bool {
    name.starts_with("/memfd:") || name.starts_with("/SYSV")
}

/// Sorts files by their bytes in the page cache, the largest first.
fn sort(files: &mut [CachedFile]) {
    files.sort_by(|a, b| b.cached_bytes.cmp(&a.cached_bytes).then_with(|| a.path.cmp(&b.path)));
}

/// Whether all threads of a process are known to have ended.
fn has_ended(process: &Process) -> bool {
    match process.status() {
        Ok(status) => status.is_zombie() && status.threads.is_none_or(|threads| threads <= 1),
        Err(error) => matches!(error, Error::Ended { .. }),
    }
}

/// What the page cache holds of a file: see [`CachedFile`].
struct CacheCount {
    cached_bytes: u64,
    dirty_bytes: Option<u64>,
    writeback_bytes: Option<u64>,
}

/// Counts what the page cache holds of a file of `size_bytes`: by cachestat(2), else by mincore(2),
/// which does not distinguish written pages.
fn count_cached(file: &File, size_bytes: u64) -> io::Result<CacheCount> {
    /// The error of a kernel without the call.
    const ENOSYS: i32 = 38;
    let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
    match cache_stat(file) {
        Ok(stat) => {
            // The kernel counts while pages change, so the parts may exceed the whole.
            let cached_bytes = bytes(stat.cached_pages);
            let dirty_bytes = bytes(stat.dirty_pages).min(cached_bytes);
            let writeback_bytes = bytes(stat.writeback_pages).min(cached_bytes - dirty_bytes);
            Ok(CacheCount {
                cached_bytes,
                dirty_bytes: Some(dirty_bytes),
                writeback_bytes: Some(writeback_bytes),
            })
        }
        Err(error) if error.raw_os_error() == Some(ENOSYS) && can_trust_mincore(file) => {
            let cached_bytes = bytes(resident_pages(file, size_bytes)?);
            Ok(CacheCount { cached_bytes, dirty_bytes: None, writeback_bytes: None })
        }
        Err(error) => Err(error),
    }
}

/// Whether mincore(2) is known to report the truth to this user, the owner of the file or root: to
/// others it may report every page ([`FileWindow::resident_pages`]).
fn can_trust_mincore(file: &File) -> bool {
    let user = strandline_sys::host::effective_user();
    user == 0 || file.metadata().is_ok_and(|metadata| metadata.uid() == user)
}

/// Counts the pages of a file that are in the page cache, by mincore(2), up to
/// [`MAX_COUNTED_BYTES`].
fn resident_pages(file: &File, size_bytes: u64) -> io::Result<u64> {
    let mut pages = 0;
    let mut offset = 0;
    let end = size_bytes.min(MAX_COUNTED_BYTES);
    while offset < end {
        let bytes = (end - offset).min(COUNTED_WINDOW_BYTES);
        let window = FileWindow::new(file, offset, bytes as usize)?;
        pages += window.resident_pages()?.iter().filter(|is_resident| **is_resident).count() as u64;
        offset += bytes;
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn own_process() -> Process {
        Process::open(std::process::id().cast_signed()).unwrap()
    }

    fn search() -> FileSearch {
        FileSearch::new(Duration::from_secs(600), None, Duration::ZERO)
    }

    /// A file in memory of `bytes` written bytes: it stays when the page cache is dropped.
    fn memory_file(name: &str, bytes: usize) -> File {
        let memory = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::empty());
        let mut memory = memory.map(File::from).unwrap();
        memory.write_all(&vec![1; bytes]).unwrap();
        memory
    }

    #[test]
    fn open_deleted_and_shared_files_are_found_once() {
        // The page cache of a disk may be dropped at any time.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = folder.path().join("kept");
        let mut kept = File::create(&path).unwrap();
        kept.write_all(&[1; 300_000]).unwrap();
        let mut second_handle = File::open(&path).unwrap();
        let mut deleted = tempfile::NamedTempFile::new_in(folder.path()).unwrap().into_file();
        deleted.write_all(&[1; 200_000]).unwrap();
        let _memory = memory_file("pages-found", 100_000);
        let mut search = search();
        search.add_process(&own_process());
        search.add_process(&own_process());
        let found = search.finish();
        let files_named = |name: &str| {
            let all = found.files.iter().filter(|file| file.path.contains(name));
            all.map(|file| (file.cached_bytes, file.is_deleted, file.is_shared_memory)).collect::<Vec<_>>()
        };
        let is_tmpfs = rustix::fs::fstatfs(&kept).unwrap().f_type.cast_unsigned() == TMPFS_MAGIC;
        assert_eq!(files_named("/kept"), [(74 * PAGE_BYTES, false, is_tmpfs)]);
        assert_eq!(files_named("/memfd:pages-found"), [(25 * PAGE_BYTES, true, true)]);
        let all = found.files.iter().filter(|file| file.is_deleted && file.cached_bytes == 49 * PAGE_BYTES);
        assert!(all.count() >= 1, "{found:?}");
        assert!(!found.has_unread_names && found.unlisted_processes == 0);
        std::io::Read::read(&mut second_handle, &mut [0]).unwrap();
    }

    #[test]
    fn a_process_that_has_ended_has_no_unlisted_files() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        while !process.status().unwrap().is_zombie() {
            std::thread::yield_now();
        }
        let mut search = search();
        search.add_process(&process);
        child.wait().unwrap();
        search.add_process(&process);
        let found = search.finish();
        assert_eq!((found.unlisted_processes, found.files.len()), (0, 0));
    }

    #[test]
    fn an_expired_deadline_reads_nothing() {
        let mut search = FileSearch::new(Duration::ZERO, None, Duration::ZERO);
        search.add_process(&own_process());
        let found = search.finish();
        assert!(found.files.is_empty() && found.has_unread_names);
    }

    #[test]
    fn pages_are_counted_without_the_newer_call_too() {
        let file = memory_file("pages-counted", 10 * PAGE_BYTES as usize + 1);
        assert_eq!(resident_pages(&file, 10 * PAGE_BYTES + 1).unwrap(), 11);
        assert_eq!(resident_pages(&tempfile::tempfile().unwrap(), 0).unwrap(), 0);
    }
}

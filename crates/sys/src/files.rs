//! What the page cache holds of a file, what a socket is, and locks of files.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::host::PAGE_BYTES;

/// Pages of a file by their state in the page cache (struct cachestat, Linux 6.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// In the cache.
    pub cached_pages: u64,
    /// Written and not yet on disk.
    pub dirty_pages: u64,
    /// Being written to disk.
    pub writeback_pages: u64,
    /// No longer in the cache; of shared memory: swapped out.
    pub evicted_pages: u64,
    /// Evicted so recently that another read counts as pressure.
    pub recently_evicted_pages: u64,
}

/// struct cachestat_range; a length of 0 means up to the end of the file.
#[repr(C)]
struct CacheStatRange {
    offset: u64,
    length: u64,
}

/// cachestat(2) on x86-64, which the libc crate does not name there.
const SYS_CACHESTAT: libc::c_long = 451;

/// Counts the pages of a whole file in the page cache.
///
/// # Errors
/// Returns the error of cachestat(2): `ENOSYS` before Linux 6.5, `EOPNOTSUPP` for hugetlbfs, and
/// from Linux 6.14 on (in updates of 6.6, 6.12 and 6.13 too) `EPERM` for a file that this user
/// neither owns nor may write.
pub fn cache_stat(file: &File) -> io::Result<CacheStat> {
    let range = CacheStatRange { offset: 0, length: 0 };
    let mut stat = CacheStat::default();
    // SAFETY: the kernel reads `range` and writes `stat`, both of the layout of linux/mman.h and
    // alive for the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    crate::check(result)?;
    Ok(stat)
}

/// Whether a descriptor, by its link in /proc/PID/fd, is known to be a socket of `protocol`
/// (net/socket.c, `sockfs_xattr_get`: the name of its `struct proto` with a zero byte).
pub fn is_socket_of(link: &Path, protocol: &str) -> bool {
    let Ok(path) = CString::new(link.as_os_str().as_bytes()) else { return false };
    // The kernel's names have at most 32 bytes (include/net/sock.h, `struct proto`). Another kind
    // of file has no such name, and the call fails.
    let mut buffer = [0_u8; 64];
    // SAFETY: both names are live and NUL-terminated; the kernel writes at most `buffer.len()`
    // bytes to `buffer`.
    let bytes = unsafe {
        let name = c"system.sockprotoname".as_ptr();
        libc::getxattr(path.as_ptr(), name, buffer.as_mut_ptr().cast(), buffer.len())
    };
    let name = usize::try_from(bytes).ok().and_then(|bytes| buffer.get(..bytes)).unwrap_or_default();
    name.strip_suffix(&[0]) == Some(protocol.as_bytes())
}

/// Part of a file, mapped to query its pages. Its bytes are never accessed, so that a file
/// that is truncated meanwhile does no harm.
#[derive(Debug)]
pub struct FileWindow {
    address: *mut libc::c_void,
    bytes: usize,
}

impl FileWindow {
    /// Maps `bytes` of `file` from `offset` on, a multiple of the page size; the last page may
    /// be partial.
    ///
    /// # Errors
    /// Returns the error of mmap(2).
    pub fn new(file: &File, offset: u64, bytes: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: the kernel chooses a free address; no Rust reference to the memory is ever made.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Unmapping then does not mark the pages as used (include/linux/mm_inline.h,
        // vma_has_recency; Linux 6.3). Before, it does.
        // SAFETY: the range is the mapping just made; the advice changes no byte.
        unsafe { libc::madvise(address, bytes, libc::MADV_RANDOM) };
        Ok(Self { address, bytes })
    }

    /// The address of the mapping, for /proc/self/pagemap.
    pub fn address(&self) -> u64 {
        self.address.addr() as u64
    }

    /// Whether each page is in the page cache (mincore(2)). The kernel answers `true` for all pages
    /// of a file that this user neither owns nor may write (since Linux 5.2).
    ///
    /// # Errors
    /// Returns the error of mincore(2).
    pub fn resident_pages(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0_u8; self.bytes.div_ceil(PAGE_BYTES)];
        // SAFETY: the vector has a byte for each page of the mapping.
        let result = unsafe { libc::mincore(self.address, self.bytes, pages.as_mut_ptr()) };
        crate::check(result.into())?;
        Ok(pages.iter().map(|page| page & 1 != 0).collect())
    }

    /// Maps one page into this process, without accessing it (MADV_POPULATE_READ, Linux 5.14).
    ///
    /// # Errors
    /// Returns the error of madvise(2): `EFAULT` for a page past the end of the file.
    pub fn populate(&self, page: usize) -> io::Result<()> {
        if page.checked_mul(PAGE_BYTES).is_none_or(|at| at >= self.bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the page is in the mapping; the kernel fills in page tables only.
        let result = unsafe {
            libc::madvise(self.address.byte_add(page * PAGE_BYTES), PAGE_BYTES, libc::MADV_POPULATE_READ)
        };
        crate::check(result.into()).map(drop)
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and belongs to this value alone.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

/// Takes an exclusive flock(2) lock on an open file without waiting. It lasts until the file is
/// closed.
///
/// # Errors
/// Returns the error of flock(2): `EWOULDBLOCK` if another process has the lock.
pub fn lock(file: &File) -> io::Result<()> {
    // SAFETY: flock reads its integer arguments only.
    crate::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }.into()).map(drop)
}

/// Releases the lock of [`lock`], for all descriptors of this open file.
///
/// # Errors
/// Returns the error of flock(2).
pub fn unlock(file: &File) -> io::Result<()> {
    // SAFETY: flock reads its integer arguments only.
    crate::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::UdpSocket;

    #[test]
    fn a_socket_has_a_protocol() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = |descriptor: i32| format!("/proc/self/fd/{descriptor}");
        assert!(is_socket_of(Path::new(&link(socket.as_raw_fd())), "UDP"));
        assert!(!is_socket_of(Path::new(&link(socket.as_raw_fd())), "XDP"));
        let file = File::open("/proc/self/exe").unwrap();
        assert!(!is_socket_of(Path::new(&link(file.as_raw_fd())), "UDP"));
    }

    #[test]
    fn a_written_file_is_in_the_cache() {
        let path = std::env::temp_dir().join(format!("strandline-cached-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[1; 5 * PAGE_BYTES]).unwrap();
        // Mapped pages stay when the machine drops its page cache.
        let window = FileWindow::new(&file, 0, 8 * PAGE_BYTES).unwrap();
        assert!((0..5).all(|page| window.populate(page).is_ok()));
        match cache_stat(&file) {
            Ok(stat) => assert_eq!(stat.cached_pages, 5, "{stat:?}"),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}")
            }
        }
        let resident = window.resident_pages().unwrap();
        assert_eq!((resident.len(), resident.iter().filter(|page| **page).count()), (8, 5));
        assert!(window.populate(7).is_err() && window.populate(8).is_err());
        file.set_len(0).unwrap();
        assert!(window.populate(2).is_err(), "a truncated file does no harm");
    }
}

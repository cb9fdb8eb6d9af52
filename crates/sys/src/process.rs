//! Questions about whole processes: do two share one memory, and advice given from outside.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `KCMP_VM` of `include/uapi/linux/kcmp.h`: compare the address spaces.
const KCMP_VM: libc::c_long = 1;

/// `MADV_PAGEOUT` of `madvise(2)`: reclaim these pages, to swap where they are dirty.
pub const MADV_PAGEOUT: i32 = 21;

/// Whether two processes run on one address space (as after `vfork`).
///
/// Fails with `EPERM` without ptrace access to both, with `ENOSYS` on kernels built without `kcmp`.
pub fn same_memory(first: i32, second: i32) -> io::Result<bool> {
    // SAFETY: kcmp reads its integer arguments only; KCMP_VM ignores the last two.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, first, second, KCMP_VM, 0, 0) };
    Ok(crate::check(order)? == 0)
}

/// A descriptor of the process `pid` that never comes to mean another process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open reads its integer arguments only.
    let descriptor = crate::check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Gives `advice` (`MADV_*`) about at most 1024 ranges of a process's memory, from outside, and
/// returns how many bytes of them the kernel took.
pub fn advise(process: &OwnedFd, ranges: &[Range<u64>], advice: i32) -> io::Result<u64> {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .take(crate::memory::MOST_RANGES)
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: range.end.saturating_sub(range.start) as usize,
        })
        .collect();
    // SAFETY: `vectors` is a live array of `vectors.len()` descriptors; the addresses in it are the
    // other process's, and the kernel checks them.
    let taken = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            advice,
            0,
        )
    };
    Ok(crate::check(taken)? as u64)
}

/// Sends `signal` to the one thread `tid` of process `pid`.
pub fn signal_thread(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: tgkill reads its integer arguments only.
    crate::check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_memory_with_itself_only() {
        let pid = std::process::id() as i32;
        assert!(same_memory(pid, pid).unwrap());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let shared = same_memory(pid, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shared.unwrap());
    }
}

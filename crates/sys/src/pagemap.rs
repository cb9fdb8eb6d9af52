//! The `PAGEMAP_SCAN` ioctl (Linux 6.7), which lists a process's pages as runs of equal state.
//!
//! Layouts and constants are those of `include/uapi/linux/fs.h`, struct `pm_scan_arg` and struct
//! `page_region`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The page is of a file or of shared memory, not anonymous.
pub const FILE: u64 = 1 << 2;
/// The page is in memory.
pub const PRESENT: u64 = 1 << 3;
/// The page was swapped out, or is being moved (a migration entry).
pub const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's shared page of zeros.
pub const ZERO_PFN: u64 = 1 << 5;
/// The page is part of a transparent huge page mapped whole.
pub const HUGE: u64 = 1 << 6;

/// Runs asked for in one call. Kernel 6.18 returned a stale `walk_end` and repeated ranges with
/// vectors above 512.
pub const MOST_REGIONS: usize = 512;

/// One run of pages of equal state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First byte of the run.
    pub start: u64,
    /// First byte behind the run.
    pub end: u64,
    /// Which of the constants of this module hold for it.
    pub categories: u64,
}

#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30) | (96 << 16) | (0x66 << 8) | 16;

/// Lists runs of pages in `start..end` for which any of `wanted` holds, with all of `wanted` as
/// returned categories.
///
/// `pagemap` is an open /proc/PID/pagemap. Fills `regions` from its start and returns how many were
/// filled and the address where the walk ended: call again from there until it is `end`. Fails with
/// `ENOTTY` on kernels without the ioctl.
pub fn scan(
    pagemap: &File,
    start: u64,
    end: u64,
    wanted: u64,
    regions: &mut [Region],
) -> io::Result<(usize, u64)> {
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        flags: 0,
        start,
        end,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len().min(MOST_REGIONS) as u64,
        max_pages: 0,
        category_inverted: 0,
        category_mask: 0,
        category_anyof_mask: wanted,
        return_mask: wanted,
    };
    // SAFETY: `argument` has the layout the kernel expects (its size is checked by it), and `vec`
    // points to at least `vec_len` writable regions that live through the call.
    let filled = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
    let filled = crate::check(filled.into())? as usize;
    Ok((filled.min(regions.len()), argument.walk_end))
}

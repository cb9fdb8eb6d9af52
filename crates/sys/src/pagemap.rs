//! The `PAGEMAP_SCAN` ioctl (Linux 6.7), which lists a process's pages as runs of equal state.
//!
//! Layouts and constants are those of `include/uapi/linux/fs.h`, struct `pm_scan_arg` and struct
//! `page_region`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The page belongs to a file or to shared memory; it is not anonymous.
pub const FILE: u64 = 1 << 2;
/// The page is in memory.
pub const PRESENT: u64 = 1 << 3;
/// The page was swapped out, or its entry is another special one (migration, guard, marker).
pub const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's shared page of zeros.
pub const ZERO_PFN: u64 = 1 << 5;
/// The page is part of a huge page mapped as a whole: a transparent one, or one of hugetlbfs.
pub const HUGE: u64 = 1 << 6;

/// Runs requested per call. Kernel 6.18 returned a stale `walk_end` and repeated ranges with
/// vectors above 512.
pub const MAX_REGIONS: usize = 512;

/// One run of pages of equal state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First byte of the run.
    pub start: u64,
    /// First byte behind the run.
    pub end: u64,
    /// The constants of this module that hold for it, as bits.
    pub categories: u64,
}

/// `struct pm_scan_arg`, by its names.
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

/// Lists runs of pages in `range` for which any of `wanted` holds, with all of `wanted` as
/// returned categories.
///
/// `pagemap` is an open /proc/PID/pagemap. Fills `regions` from its start.
///
/// # Errors
/// Returns the error of the ioctl: `ENOTTY` on kernels without it.
pub fn scan(pagemap: &File, range: Range<u64>, wanted: u64, regions: &mut [Region]) -> io::Result<Progress> {
    request(pagemap, ScanArgument::new(range, wanted), regions)
}

/// Returns the address of the first page of `range`, in memory or swapped out; `None` if the
/// range has no such page. Zero pages do not count.
///
/// # Errors
/// As [`scan`].
pub fn first_page(pagemap: &File, range: Range<u64>) -> io::Result<Option<u64>> {
    let mut regions = [Region::default()];
    let argument = ScanArgument {
        max_pages: 1,
        // An inverted category must not hold.
        category_inverted: ZERO_PFN,
        category_mask: ZERO_PFN,
        ..ScanArgument::new(range, PRESENT | SWAPPED)
    };
    let progress = request(pagemap, argument, &mut regions)?;
    Ok((progress.filled_regions > 0).then_some(regions[0].start))
}

impl ScanArgument {
    /// Requests the pages of `range` for which any of `wanted` holds.
    fn new(range: Range<u64>, wanted: u64) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            flags: 0,
            start: range.start,
            end: range.end,
            walk_end: 0,
            vec: 0,
            vec_len: 0,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: wanted,
            return_mask: wanted,
        }
    }
}

/// Makes the request `argument` with room for `regions`.
fn request(pagemap: &File, argument: ScanArgument, regions: &mut [Region]) -> io::Result<Progress> {
    let vec_len = regions.len().min(MAX_REGIONS) as u64;
    let mut argument = ScanArgument { vec: regions.as_mut_ptr() as u64, vec_len, ..argument };
    // SAFETY: `argument` has the layout that the kernel expects (the kernel checks its size), and
    // `vec` points to at least `vec_len` writable regions that live through the call.
    let filled_regions = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
    let filled_regions = crate::check(filled_regions.into())? as usize;
    Ok(Progress { filled_regions: filled_regions.min(regions.len()), walk_end: argument.walk_end })
}

/// How far a call of [`scan`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of regions filled.
    pub filled_regions: usize,
    /// Where the walk ended: call again from there until it is the end of the range.
    pub walk_end: u64,
}

/// The bits of an 8-byte entry of /proc/PID/pagemap (the kernel's
/// `Documentation/admin-guide/mm/pagemap.rst`).
pub mod entry {
    /// The page is in memory.
    pub const PRESENT: u64 = 1 << 63;
    /// The page was swapped out, or its entry is another special one (migration, guard, marker).
    pub const SWAPPED: u64 = 1 << 62;
    /// The page belongs to a file or to shared memory.
    pub const FILE: u64 = 1 << 61;
    /// A guard region (Linux 6.15): it has no page, and an access raises SIGSEGV.
    pub const GUARD: u64 = 1 << 58;
    /// The page is mapped only once (Linux 4.2). Never set for the kernel's shared zero pages.
    pub const EXCLUSIVE: u64 = 1 << 56;
    /// The page frame number of a present page; swap type (bits 0–4) and offset otherwise. Zero for
    /// readers without CAP_SYS_ADMIN.
    pub const FRAME: u64 = (1 << 55) - 1;
}

/// Page frames of the kernel's shared zero pages, which smaps does not count as resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFrames {
    /// The frame of the small one; `None` if frames are hidden from this user.
    pub small_page: Option<u64>,
    /// The first frame of the huge one; `None` if hidden or if the kernel uses none.
    pub huge_page: Option<u64>,
}

/// Frames in a huge page of 2 MiB.
pub const HUGE_FRAMES: u64 = 512;
/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// Finds the frames of the kernel's zero pages: reads fresh memory of this process, which maps
/// them, and looks them up in its own pagemap.
///
/// # Errors
/// Fails if that memory cannot be mapped, or its pagemap not be read.
pub fn zero_frames() -> io::Result<ZeroFrames> {
    // The file belongs to root if the program has file capabilities.
    let own_pagemap = crate::capabilities::with_dac_capabilities(|| File::open("/proc/self/pagemap"))?;
    let small_page = first_touch_frame(&own_pagemap, libc::MADV_NOHUGEPAGE)?;
    let huge_page = first_touch_frame(&own_pagemap, libc::MADV_HUGEPAGE)?;
    // If both reads mapped the small page, huge zero pages are off or none was free.
    let huge_page = huge_page.filter(|frame| Some(*frame) != small_page && frame % HUGE_FRAMES == 0);
    Ok(ZeroFrames { small_page, huge_page })
}

/// Returns the frame that a first read maps at an aligned huge-page boundary in fresh memory;
/// `None` if it is hidden, or not one of the kernel's shared pages.
fn first_touch_frame(own_pagemap: &File, advice: libc::c_int) -> io::Result<Option<u64>> {
    use std::os::unix::fs::FileExt;

    let length = 2 * HUGE_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new private mapping anywhere; it touches no memory that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let aligned = (base as usize).next_multiple_of(HUGE_BYTES);
    // SAFETY: base..base+length is the mapping made above; advice only changes how it is backed.
    // Its failure (no huge pages in this kernel) leaves small pages, which the caller sees.
    let _ = unsafe { libc::madvise(base, length, advice) };
    // SAFETY: `aligned` is within the readable mapping, at least HUGE_BYTES before its end.
    let _ = unsafe { std::ptr::read_volatile(aligned as *const u8) };
    let mut bytes = [0; 8];
    let read = own_pagemap.read_exact_at(&mut bytes, aligned as u64 / crate::host::page_bytes() * 8);
    // SAFETY: unmaps exactly the mapping made above, to which no reference exists.
    unsafe { libc::munmap(base, length) };
    read?;
    let value = u64::from_le_bytes(bytes);
    // A page mapped once belongs to this process alone: a real page, not the zero page.
    let is_shared = value & (entry::PRESENT | entry::EXCLUSIVE) == entry::PRESENT;
    Ok(Some(value & entry::FRAME).filter(|&frame| is_shared && frame != 0))
}

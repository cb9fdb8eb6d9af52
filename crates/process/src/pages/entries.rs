//! Residency from the 8-byte entries of /proc/PID/pagemap, for kernels without PAGEMAP_SCAN and for
//! what the ioctl leaves undecided.
//!
//! Entries are read in bounded blocks. A reservation of many TiB with few pages would take minutes
//! to read: reading stops once the Rss of smaps is found, and all mappings together have a budget
//! of address space.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use strandline_sys::pagemap::{HUGE_FRAMES, ZeroFrames, entry, zero_frames};

use super::{Builder, CountedKinds, PAGE_BYTES, kind, page_of};
use crate::memory::words_in;
use crate::range::{AddressRange, RangeSet};
use crate::smaps::SmapsEntry;

/// Maximum address space read entry by entry, for one [`super::Residency`] or for the ranges of one
/// call: 2 GiB of entries, about two seconds.
pub(super) const MAX_WALK_BYTES: u64 = 1 << 40;

/// Bytes of an entry.
const ENTRY_BYTES: usize = 8;
/// Maximum entries per read: 32 MiB of address space, 64 KiB of entries.
const BLOCK_ENTRIES: usize = 8192;

/// Number of low bits of the frame field of a swapped entry that hold its type: the swap area, or
/// one of the kernel's own types. The bits above hold the offset.
const TYPE_BITS: u32 = 5;
/// Mask of the type.
const TYPE_MASK: u64 = (1 << TYPE_BITS) - 1;
/// The first of the kernel's own types, which are above all swap areas (`MAX_SWAPFILES` in
/// `include/linux/swap.h` is 23 with every option on; no machine with that many swap areas is
/// known).
const FIRST_SPECIAL_TYPE: u64 = 23;
/// Smallest offset of a special type that is a frame: a smaller one is a set of marker bits
/// (`PTE_MARKER_*`: 1, 2, 4).
const MIN_SPECIAL_FRAME: u64 = 8;

/// The meaning of an entry, with the flags of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// No resident page.
    None,
    /// A resident page.
    Resident(u64),
    /// A resident, zero or swapped-out page: undecided, because its frame is hidden from this user.
    Undecided(u64),
}

/// Decodes an entry.
fn classify(value: u64, zero_frames: ZeroFrames) -> Page {
    let is_file = value & entry::FILE != 0;
    let anonymous = if is_file { 0 } else { kind::ANONYMOUS };
    let frame = value & entry::FRAME;
    if value & entry::PRESENT != 0 {
        let is_zero_page = zero_frames.small_page == Some(frame)
            || zero_frames
                .huge_page
                .is_some_and(|first| (first..first.saturating_add(HUGE_FRAMES)).contains(&frame));
        return match frame {
            // Some kernels mark the huge zero page as a file page, so check for it first.
            _ if is_zero_page => Page::None,
            _ if is_file => Page::Resident(0),
            0 if value & entry::EXCLUSIVE == 0 => Page::Undecided(kind::ANONYMOUS),
            _ => Page::Resident(kind::ANONYMOUS),
        };
    }
    if value & entry::SWAPPED == 0 || value & entry::GUARD != 0 {
        return Page::None;
    }
    let flags = anonymous | kind::MIGRATING;
    match frame {
        // Only entries that refer to a page have the file bit.
        _ if is_file => Page::Resident(flags),
        0 => Page::Undecided(flags),
        _ if frame & TYPE_MASK < FIRST_SPECIAL_TYPE || frame >> TYPE_BITS < MIN_SPECIAL_FRAME => Page::None,
        _ => Page::Resident(flags),
    }
}

/// Calls `each` with the address and value of every nonzero entry of `start..end` until it returns
/// false. Returns the address where reading ended: `end`, or an earlier one if `each` returned
/// false or the process no longer has page tables.
fn walk(pagemap: &File, start: u64, end: u64, mut each: impl FnMut(u64, u64) -> bool) -> io::Result<u64> {
    let mut at = page_of(start);
    let max_entries = end.saturating_sub(at).div_ceil(PAGE_BYTES).min(BLOCK_ENTRIES as u64);
    let mut block = vec![0u8; max_entries as usize * ENTRY_BYTES];
    while at < end {
        let entries = (end - at).div_ceil(PAGE_BYTES).min(max_entries);
        let part = &mut block[..entries as usize * ENTRY_BYTES];
        let read_entries = match pagemap.read_at(part, at / PAGE_BYTES * ENTRY_BYTES as u64) {
            Ok(read_bytes) => read_bytes / ENTRY_BYTES,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read_entries == 0 {
            return Ok(at);
        }
        for value in words_in(&part[..read_entries * ENTRY_BYTES]) {
            if value != 0 && !each(at, value) {
                return Ok(at);
            }
            at += PAGE_BYTES;
        }
    }
    Ok(end)
}

impl Builder<'_> {
    /// Adds the resident pages of a mapping from its entries.
    pub(super) fn read_entries(&mut self, smaps_entry: &SmapsEntry) -> io::Result<()> {
        self.begin_mapping();
        let zero_frames = self.zero_frames()?;
        let rss_bytes = smaps_entry.counts.rss_bytes;
        let counted = CountedKinds::of(smaps_entry);
        let start = smaps_entry.mapping.start;
        let end = smaps_entry.mapping.end.min(start.saturating_add(self.budget_bytes));
        let pagemap = self.pagemap;
        let walk_end = walk(pagemap, start, end, |at, value| {
            match classify(value, zero_frames) {
                Page::Resident(flags) | Page::Undecided(flags) if !counted.allows(flags) => {}
                Page::Resident(flags) => self.push(at, at + PAGE_BYTES, flags),
                Page::Undecided(flags) => self.push(at, at + PAGE_BYTES, flags | kind::UNDECIDED),
                Page::None => {}
            }
            self.certain_bytes < rss_bytes
        })?;
        self.budget_bytes = self.budget_bytes.saturating_sub(walk_end.saturating_sub(start));
        self.end_mapping(rss_bytes);
        Ok(())
    }

    /// The frames of the kernel's zero pages, looked up once.
    fn zero_frames(&mut self) -> io::Result<ZeroFrames> {
        let frames = self.zero_frames.map_or_else(zero_frames, Ok)?;
        self.zero_frames = Some(frames);
        Ok(frames)
    }
}

/// Refuses ranges of more than 1 TiB in total.
fn check_size(ranges: &[Range<u64>]) -> io::Result<()> {
    let sum =
        ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    if sum > MAX_WALK_BYTES {
        let text = format!(
            "{sum} bytes of address space are more than the {MAX_WALK_BYTES} that are read page by page: \
             use Linux 6.7 or later, and a seccomp profile that permits PAGEMAP_SCAN"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Whether an entry is that of a page that is swapped out, or may be: its frame may be hidden.
fn is_swapped(value: u64) -> bool {
    let frame = value & entry::FRAME;
    let is_missing = value & (entry::PRESENT | entry::FILE | entry::GUARD) == 0;
    is_missing && value & entry::SWAPPED != 0 && frame & TYPE_MASK < FIRST_SPECIAL_TYPE
}

/// Runs of swapped-out pages in `range`, cut to it.
///
/// # Errors
/// The kernel's, and `InvalidInput` if the range exceeds 1 TiB.
pub fn swapped_runs(pagemap: &File, range: AddressRange) -> io::Result<RangeSet> {
    check_size(&[range.into()])?;
    let mut pages = Vec::new();
    walk(pagemap, range.start, range.end, |at, value| {
        if is_swapped(value) {
            pages.push(AddressRange::sized(at, PAGE_BYTES).intersection(range));
        }
        true
    })?;
    Ok(pages.into_iter().collect())
}

/// Bytes of those resident pages in `ranges` that are mapped only once.
///
/// # Errors
/// The kernel's, and `InvalidInput` if the ranges exceed 1 TiB in total.
pub fn exclusive_bytes(pagemap: &File, ranges: &[Range<u64>]) -> io::Result<u64> {
    const PRESENT_EXCLUSIVE: u64 = entry::PRESENT | entry::EXCLUSIVE;
    check_size(ranges)?;
    let mut bytes = 0;
    for range in ranges {
        walk(pagemap, range.start, range.end, |_, value| {
            bytes += if value & PRESENT_EXCLUSIVE == PRESENT_EXCLUSIVE { PAGE_BYTES } else { 0 };
            true
        })?;
    }
    Ok(bytes)
}

/// Implements [`super::each_anonymous_run`] with entries.
///
/// # Errors
/// The kernel's, and `InvalidInput` if the ranges exceed 1 TiB in total.
pub(super) fn each_anonymous_run(
    pagemap: &File,
    ranges: &[Range<u64>],
    each: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    check_size(ranges)?;
    let frames = zero_frames()?;
    for range in ranges {
        let mut run = range.start..range.start;
        walk(pagemap, range.start, range.end, |at, value| {
            let is_anonymous = match classify(value, frames) {
                Page::Resident(flags) => flags & kind::ANONYMOUS != 0,
                Page::Undecided(flags) => flags & kind::MIGRATING == 0,
                Page::None => false,
            };
            if is_anonymous {
                if run.end != at {
                    if !run.is_empty() {
                        each(run.clone());
                    }
                    run.start = at;
                }
                run.end = at + PAGE_BYTES;
            }
            true
        })?;
        if !run.is_empty() {
            each(run);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZERO: ZeroFrames = ZeroFrames { small_page: Some(77), huge_page: Some(1024) };

    #[test]
    fn entries_mean_what_smaps_means() {
        let present = entry::PRESENT;
        assert_eq!(classify(present | 100, ZERO), Page::Resident(kind::ANONYMOUS));
        assert_eq!(classify(present | entry::FILE | 100, ZERO), Page::Resident(0));
        assert_eq!(classify(present | 77, ZERO), Page::None, "the page of zeros");
        assert_eq!(classify(present | (1024 + 511), ZERO), Page::None, "the huge page of zeros");
        assert_eq!(classify(present | entry::FILE | 1024, ZERO), Page::None, "shown as a file's by 6.18");
        assert_eq!(classify(present | (1024 + 512), ZERO), Page::Resident(kind::ANONYMOUS));
        assert_eq!(classify(present, ZERO), Page::Undecided(kind::ANONYMOUS), "frame hidden, shared");
        assert_eq!(classify(present | entry::EXCLUSIVE, ZERO), Page::Resident(kind::ANONYMOUS));
    }

    #[test]
    fn swapped_entries_are_distinguished_from_migrating_ones() {
        let swapped = entry::SWAPPED;
        let moving = kind::ANONYMOUS | kind::MIGRATING;
        assert_eq!(classify(swapped | (500 << 5), ZERO), Page::None, "area 0, slot 500");
        assert_eq!(classify(swapped | 28 | (99_999 << 5), ZERO), Page::Resident(moving));
        assert_eq!(classify(swapped | 24 | (99_999 << 5), ZERO), Page::Resident(moving));
        assert_eq!(classify(swapped | 31 | (4 << 5), ZERO), Page::None, "a guard marker of Linux 6.13");
        assert_eq!(classify(swapped | entry::GUARD, ZERO), Page::None);
        assert_eq!(classify(swapped | entry::FILE, ZERO), Page::Resident(kind::MIGRATING));
        assert_eq!(classify(swapped, ZERO), Page::Undecided(moving), "frame hidden");
        let marker = 31 | (4 << 5);
        let others = [0, entry::PRESENT | 7, swapped | 28, swapped | marker, swapped | entry::FILE];
        assert!(others.into_iter().all(|value| !is_swapped(value)));
        assert!(is_swapped(swapped | (500 << 5)) && is_swapped(swapped));
        assert_eq!(classify(0, ZERO), Page::None);
    }

    proptest! {
        #[test]
        fn only_entries_of_pages_are_resident(value: u64) {
            let special = value & (entry::PRESENT | entry::SWAPPED);
            if special == 0 {
                prop_assert_eq!(classify(value, ZERO), Page::None);
            }
            if let Page::Resident(flags) = classify(value, ZERO) {
                prop_assert_eq!(flags & kind::MIGRATING != 0, value & entry::PRESENT == 0);
                prop_assert_eq!(flags & kind::ANONYMOUS == 0, value & entry::FILE != 0);
            }
        }
    }
}

//! Residency by the PAGEMAP_SCAN ioctl: one walk over the whole address space.
//!
//! What the ioctl leaves open (an entry that shows as swapped may be a page on the move; a huge page
//! of zeros is not marked as such by every kernel) is settled by smaps and, where the two disagree,
//! by the mapping's own entries.

use std::fs::File;
use std::io;
use std::ops::Range;

use strandline_sys::pagemap::{self, Region};

use super::{Builder, Expected, entries, kind, may_hold_pages, page_of};
use crate::smaps::SmapsEntry;

/// What is asked of the kernel about each page.
const WANTED: u64 = pagemap::FILE | pagemap::PRESENT | pagemap::SWAPPED | pagemap::ZERO_PFN | pagemap::HUGE;

/// Ranges with less than this between them are looked at in one walk.
const NEAR_BYTES: u64 = 4 << 20;

/// Whether an error says that this kernel has no such ioctl, or does not let this user have it.
pub(super) fn is_missing(error: &io::Error) -> bool {
    // EPERM 1, EINVAL 22, ENOTTY 25, ENOSYS 38.
    matches!(error.raw_os_error(), Some(1 | 22 | 25 | 38))
}

/// Calls `each` with the regions of `start..end` in address order.
fn walk(
    pagemap: &File,
    start: u64,
    end: u64,
    mut each: impl FnMut(Region) -> io::Result<()>,
) -> io::Result<()> {
    let mut regions = vec![Region::default(); pagemap::MOST_REGIONS];
    let mut at = start;
    let mut last_end = start;
    while at < end {
        let (filled, walk_end) = pagemap::scan(pagemap, at, end, WANTED, &mut regions)?;
        for region in &regions[..filled] {
            // A region that was told already (seen with large vectors on 6.18) is told once.
            let start = region.start.max(last_end);
            if start < region.end {
                each(Region { start, ..*region })?;
                last_end = region.end;
            }
        }
        if walk_end <= at {
            let text = format!("PAGEMAP_SCAN does not move on at {at:#x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        at = walk_end;
    }
    Ok(())
}

/// Fills `builder` with the resident pages of `spaces`.
pub(super) fn fill(builder: &mut Builder<'_>, spaces: &[SmapsEntry]) -> io::Result<()> {
    let spaces: Vec<&SmapsEntry> = spaces.iter().filter(|space| may_hold_pages(space)).collect();
    let (Some(first), Some(last)) = (spaces.first(), spaces.last()) else { return Ok(()) };
    let pagemap = builder.pagemap;
    let mut current = 0;
    builder.open();
    walk(pagemap, first.mapping.start, last.mapping.end, |region| {
        while let Some(space) = spaces.get(current) {
            let mapping = &space.mapping;
            if region.start >= mapping.end {
                finish(builder, space)?;
                builder.open();
                current += 1;
                continue;
            }
            let (start, end) = (region.start.max(mapping.start), region.end.min(mapping.end));
            if start < end {
                take(builder, space, start, end, region.categories);
            }
            if region.end <= mapping.end {
                break;
            }
            finish(builder, space)?;
            builder.open();
            current += 1;
        }
        Ok(())
    })?;
    for space in &spaces[current.min(spaces.len())..] {
        finish(builder, space)?;
        builder.open();
    }
    Ok(())
}

/// Adds the part `start..end` of a region that lies in `space`.
fn take(builder: &mut Builder<'_>, space: &SmapsEntry, start: u64, end: u64, categories: u64) {
    let file = categories & pagemap::FILE != 0;
    let anonymous = if file { 0 } else { kind::ANONYMOUS };
    if categories & pagemap::PRESENT != 0 {
        if categories & pagemap::ZERO_PFN == 0 && Expected::of(space).allows(anonymous) {
            let huge = if categories & pagemap::HUGE != 0 { kind::HUGE } else { 0 };
            builder.push(start, end, anonymous | huge);
        }
    } else if categories & pagemap::SWAPPED != 0 {
        builder.push(start, end, anonymous | kind::MOVING | kind::DOUBTFUL);
    }
}

/// Ends a mapping. Where the sure pages make up its Rss, what shows as swapped is; where they do not
/// and the doubtful ones do not fit either, its entries tell more.
fn finish(builder: &mut Builder<'_>, space: &SmapsEntry) -> io::Result<()> {
    let rss_bytes = space.counts.rss_bytes;
    let fits = builder.sure_bytes == rss_bytes || builder.sure_bytes + builder.doubtful_bytes == rss_bytes;
    if fits {
        builder.close(rss_bytes);
        return Ok(());
    }
    builder.reopen();
    builder.read_entries_of_open(space)
}

/// [`super::each_anonymous_run`] by PAGEMAP_SCAN.
pub(super) fn each_anonymous_run(
    pagemap: &File,
    ranges: &[Range<u64>],
    each: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let mut rest = ranges;
    let mut swapped: Vec<Range<u64>> = Vec::new();
    while let Some(first) = rest.first() {
        let near =
            rest.windows(2).take_while(|pair| pair[1].start.saturating_sub(pair[0].end) < NEAR_BYTES).count();
        let (window, after) = rest.split_at(near + 1);
        rest = after;
        let end = window.last().map_or(first.end, |last| last.end);
        let mut index = 0;
        walk(pagemap, page_of(first.start), end, |region| {
            while window.get(index).is_some_and(|range| range.end <= region.start) {
                index += 1;
            }
            for range in window[index..].iter().take_while(|range| range.start < region.end) {
                let (start, end) = (region.start.max(range.start), region.end.min(range.end));
                if start >= end || region.categories & (pagemap::FILE | pagemap::ZERO_PFN) != 0 {
                    continue;
                }
                if region.categories & pagemap::PRESENT != 0 {
                    each(start..end);
                } else if region.categories & pagemap::SWAPPED != 0 {
                    swapped.push(start..end);
                }
            }
            Ok(())
        })?;
    }
    entries::each_anonymous_run(pagemap, &swapped, each)
}

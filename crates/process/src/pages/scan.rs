//! Residency from the PAGEMAP_SCAN ioctl: one walk over the whole address space.
//!
//! The ioctl leaves some pages undecided (an entry that shows as swapped may be a migrating page;
//! not every kernel marks the huge zero page). smaps decides these and, if the two disagree, the
//! entries of the mapping.

use std::fs::File;
use std::io;
use std::ops::Range;

use strandline_sys::pagemap::{self, Progress, Region};

use super::{Builder, CountedKinds, PAGE_BYTES, USER_ADDRESS_END, entries, kind, may_hold_pages, page_of};
use crate::map::Mapping;
use crate::range::{AddressRange, RangeSet};
use crate::smaps::{Counts, SmapsEntry};

/// Categories requested for each page.
const WANTED: u64 = pagemap::FILE | pagemap::PRESENT | pagemap::SWAPPED | pagemap::ZERO_PFN | pagemap::HUGE;

/// Marks a region for which the FILE category was not requested: a bit that the kernel does not
/// use.
const FILE_UNKNOWN: u64 = 1 << 63;
/// Minimum size of a run of mappings that is scanned separately where that saves time.
const LARGE_BYTES: u64 = 4 << 20;
/// End of user addresses (`TASK_SIZE_MAX` of x86-64), unless the program requested more (5-level
/// page tables).
const END: u64 = USER_ADDRESS_END - PAGE_BYTES;
/// Ranges with smaller gaps between them are scanned in one walk.
const NEAR_BYTES: u64 = 4 << 20;

/// Mappings that follow each other, all private and anonymous or all not.
struct Run {
    range: AddressRange,
    is_anonymous: bool,
    /// Bytes of its mappings, without the gaps between them.
    bytes: u64,
}

/// The runs of `mappings`, which are in address order.
fn anonymous_runs<'m>(mappings: impl Iterator<Item = &'m Mapping>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for mapping in mappings.filter(|mapping| mapping.name != "[vsyscall]") {
        let is_anonymous = mapping.is_private_anonymous();
        match runs.last_mut().filter(|run| run.is_anonymous == is_anonymous) {
            Some(run) => {
                run.range.end = mapping.end;
                run.bytes += mapping.bytes();
            }
            None => runs.push(Run { range: mapping.range(), is_anonymous, bytes: mapping.bytes() }),
        }
    }
    runs
}

/// Whether an error of [`ScannedRegions::of`] means that this kernel lacks the ioctl or refuses it
/// to this user.
pub fn is_missing(error: &io::Error) -> bool {
    // EPERM 1, EINVAL 22, ENOTTY 25, ENOSYS 38.
    matches!(error.raw_os_error(), Some(1 | 22 | 25 | 38))
}

/// Calls `each` with the regions of `range` in address order, with the categories `wanted`.
fn walk(pagemap: &File, range: Range<u64>, wanted: u64, mut each: impl FnMut(Region)) -> io::Result<()> {
    let mut regions = vec![Region::default(); pagemap::MAX_REGIONS];
    let mut at = range.start;
    let mut last_end = range.start;
    while at < range.end {
        let Progress { filled_regions, walk_end } =
            pagemap::scan(pagemap, at..range.end, wanted, &mut regions)?;
        for region in &regions[..filled_regions] {
            // Linux 6.18 repeats regions with large vectors; pass each part on once.
            let start = region.start.max(last_end);
            if start < region.end {
                each(Region { start, ..*region });
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

/// The kernel's scan of a whole address space, taken at the same time as smaps and completed with
/// it.
#[derive(Debug)]
pub struct ScannedRegions(Vec<Region>);

/// A scan without the large runs of private anonymous mappings.
#[derive(Debug)]
pub struct PartialScan {
    /// What was scanned.
    pub regions: ScannedRegions,
    /// The runs that were not.
    pub left_out: RangeSet,
}

impl ScannedRegions {
    /// Scans all pages of an open /proc/PID/pagemap. `mappings` (in address order) only determine
    /// which categories are requested where, and may be slightly out of date: if too little was
    /// requested, the entries are read.
    ///
    /// The FILE category requires the kernel to access the page itself, which takes three times as
    /// long as all else: it is not requested for large runs of mappings that cannot have file
    /// pages (V8's heap is thousands of mappings of 256 KiB).
    ///
    /// # Errors
    /// Returns the kernel's errors; `ENOTTY` before Linux 6.7.
    pub fn of<'m>(pagemap: &File, mappings: impl Iterator<Item = &'m Mapping>) -> io::Result<Self> {
        let PartialScan { mut regions, left_out } = Self::without_large(pagemap, mappings)?;
        regions.add(pagemap, &left_out)?;
        Ok(regions)
    }

    /// Like [`ScannedRegions::of`], but leaves out the large runs of private anonymous mappings: a
    /// snapshot has the same pages there.
    ///
    /// # Errors
    /// As [`ScannedRegions::of`].
    pub fn without_large<'m>(
        pagemap: &File,
        mappings: impl Iterator<Item = &'m Mapping>,
    ) -> io::Result<PartialScan> {
        let (mut regions, mut large) = (Vec::new(), Vec::new());
        let (mut at, mut end) = (0, END);
        for run in anonymous_runs(mappings) {
            end = end.max(run.range.end);
            if run.is_anonymous && run.bytes >= LARGE_BYTES {
                scan_range(pagemap, at..run.range.start, WANTED, &mut regions)?;
                large.push(run.range);
                at = run.range.end;
            }
        }
        scan_range(pagemap, at..end, WANTED, &mut regions)?;
        Ok(PartialScan { regions: Self(regions), left_out: large.into_iter().collect() })
    }

    /// Adds the pages of `ranges`, which were not scanned yet and cannot have file pages.
    ///
    /// # Errors
    /// Returns the kernel's errors.
    pub fn add(&mut self, pagemap: &File, ranges: &RangeSet) -> io::Result<()> {
        for &range in ranges {
            scan_range(pagemap, range.into(), WANTED & !pagemap::FILE, &mut self.0)?;
        }
        // Stable: this merges two sorted runs in linear time.
        self.0.sort_by_key(|region| region.start);
        Ok(())
    }
}

/// The contents of a mapping according to the page tables alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct MappingSummary {
    /// Resident, anonymous and swapped bytes, and bytes in huge pages mapped as a whole; without
    /// zero pages.
    pub counts: Counts,
    /// Whether a page exists, in memory or swapped out; zero pages, which a copy may lack, do not
    /// count.
    pub has_pages: bool,
}

impl ScannedRegions {
    /// Summarises each of `mappings`, which are in address order.
    pub fn summaries(&self, mappings: &[Mapping]) -> Vec<MappingSummary> {
        let mut summaries = vec![MappingSummary::default(); mappings.len()];
        let mut current = 0;
        for region in &self.0 {
            while mappings.get(current).is_some_and(|mapping| mapping.end <= region.start) {
                current += 1;
            }
            let overlapping = mappings.iter().zip(&mut summaries).skip(current);
            for (mapping, summary) in overlapping.take_while(|(mapping, _)| mapping.start < region.end) {
                let (start, end) = (region.start.max(mapping.start), region.end.min(mapping.end));
                if start < end {
                    summary.add(start, end, region.categories);
                }
            }
        }
        summaries
    }

    /// Whether `range` has a page, present or swapped out; zero pages do not count.
    pub fn has_page_in(&self, range: AddressRange) -> bool {
        self.overlapping(range).any(|region| !is_zero_page(region.categories))
    }

    /// The present pages of `range`, in runs; without zero pages.
    pub fn present_in(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> {
        let is_present =
            |region: &&Region| region.categories & pagemap::PRESENT != 0 && !is_zero_page(region.categories);
        let present = self.overlapping(range).filter(is_present);
        present.map(move |region| AddressRange::new(region.start, region.end).intersection(range))
    }

    /// The regions that overlap `range`.
    fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = &Region> {
        let first_index = self.0.partition_point(|region| region.end <= range.start);
        let regions = self.0.get(first_index..).unwrap_or_default().iter();
        regions.take_while(move |region| region.start < range.end)
    }
}

fn is_zero_page(categories: u64) -> bool {
    categories & pagemap::PRESENT != 0 && categories & pagemap::ZERO_PFN != 0
}

impl MappingSummary {
    /// Adds the pages `start..end` of these categories.
    fn add(&mut self, start: u64, end: u64, categories: u64) {
        let bytes = end - start;
        let counts = &mut self.counts;
        if is_zero_page(categories) {
            return;
        }
        self.has_pages = true;
        if categories & pagemap::PRESENT == 0 {
            counts.swap_bytes += bytes;
            return;
        }
        let (is_file, is_huge) = (categories & pagemap::FILE != 0, categories & pagemap::HUGE != 0);
        counts.rss_bytes += bytes;
        if !is_file {
            counts.anonymous_bytes += bytes;
        }
        match (is_huge, is_file) {
            (true, true) => counts.file_pmd_bytes += bytes,
            (true, false) => counts.anon_huge_bytes += bytes,
            (false, _) => {}
        }
    }
}

/// The regions of `range`, without the FILE category.
pub(super) fn regions(pagemap: &File, range: Range<u64>) -> io::Result<Vec<Region>> {
    let mut regions = Vec::new();
    scan_range(pagemap, range, WANTED & !pagemap::FILE, &mut regions)?;
    Ok(regions)
}

/// Appends the regions of `range` with the categories `wanted`.
fn scan_range(pagemap: &File, range: Range<u64>, wanted: u64, regions: &mut Vec<Region>) -> io::Result<()> {
    let unknown = if wanted & pagemap::FILE == 0 { FILE_UNKNOWN } else { 0 };
    walk(pagemap, range, wanted, |region| {
        regions.push(Region { categories: region.categories | unknown, ..region });
    })
}

/// Adds the resident pages of the mappings in `smaps` to `builder`, from `scanned`.
pub(super) fn add_scanned(
    builder: &mut Builder<'_>,
    smaps: &[SmapsEntry],
    scanned: &ScannedRegions,
) -> io::Result<()> {
    let counted: Vec<&SmapsEntry> = smaps.iter().filter(|smaps_entry| may_hold_pages(smaps_entry)).collect();
    let mut current = 0;
    builder.begin_mapping();
    for region in &scanned.0 {
        while let Some(smaps_entry) = counted.get(current) {
            let mapping = &smaps_entry.mapping;
            if region.start >= mapping.end {
                finish(builder, smaps_entry)?;
                current += 1;
                continue;
            }
            let (start, end) = (region.start.max(mapping.start), region.end.min(mapping.end));
            if start < end {
                add_part(builder, smaps_entry, start, end, region.categories);
            }
            if region.end <= mapping.end {
                break;
            }
            finish(builder, smaps_entry)?;
            current += 1;
        }
    }
    counted.iter().skip(current).try_for_each(|smaps_entry| finish(builder, smaps_entry))
}

/// Adds the part `start..end` of a region that is in `smaps_entry`.
fn add_part(builder: &mut Builder<'_>, smaps_entry: &SmapsEntry, start: u64, end: u64, categories: u64) {
    builder.is_unclear |= categories & FILE_UNKNOWN != 0 && !smaps_entry.mapping.is_private_anonymous();
    let is_file = categories & pagemap::FILE != 0;
    let anonymous = if is_file { 0 } else { kind::ANONYMOUS };
    if categories & pagemap::PRESENT != 0 {
        if categories & pagemap::ZERO_PFN == 0 && CountedKinds::of(smaps_entry).allows(anonymous) {
            builder.push(start, end, anonymous);
        }
    } else if categories & pagemap::SWAPPED != 0 {
        builder.push(start, end, anonymous | kind::MIGRATING | kind::UNDECIDED);
    }
}

/// Ends a mapping and begins the next. Pages that show as swapped count as swapped if the others
/// add up to its Rss, and as resident if all together do; otherwise the entries are read.
fn finish(builder: &mut Builder<'_>, smaps_entry: &SmapsEntry) -> io::Result<()> {
    let rss_bytes = smaps_entry.counts.rss_bytes;
    let fits =
        builder.certain_bytes == rss_bytes || builder.certain_bytes + builder.undecided_bytes == rss_bytes;
    if fits && !builder.is_unclear {
        builder.end_mapping(rss_bytes);
    } else {
        builder.runs.truncate(builder.first_run);
        builder.read_entries(smaps_entry)?;
    }
    builder.begin_mapping();
    Ok(())
}

/// Implements [`super::each_anonymous_run`] with PAGEMAP_SCAN.
pub(super) fn each_anonymous_run(
    pagemap: &File,
    ranges: &[Range<u64>],
    each: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let mut unscanned = ranges;
    let mut swapped: Vec<Range<u64>> = Vec::new();
    while let Some(first) = unscanned.first() {
        let near = unscanned
            .windows(2)
            .take_while(|pair| pair[1].start.saturating_sub(pair[0].end) < NEAR_BYTES)
            .count();
        let (window, after) = unscanned.split_at(near + 1);
        unscanned = after;
        let end = window.last().map_or(first.end, |last| last.end);
        let mut index = 0;
        walk(pagemap, page_of(first.start)..end, WANTED, |region| {
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
        })?;
    }
    entries::each_anonymous_run(pagemap, &swapped, each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_swap_exists_and_a_zero_page_does_not() {
        let region = |start, categories| Region { start, end: start + 0x1000, categories };
        let regions = ScannedRegions(vec![
            region(0x1000, pagemap::SWAPPED),
            region(0x3000, pagemap::PRESENT | pagemap::ZERO_PFN),
            region(0x5000, pagemap::PRESENT),
        ]);
        let has_page = |start, end| regions.has_page_in(AddressRange::new(start, end));
        assert_eq!([has_page(0x1000, 0x2000), has_page(0x2000, 0x5000)], [true, false]);
        assert_eq!([has_page(0x4000, 0x6000), has_page(0x6000, 0x9000)], [true, false]);
        let present: Vec<_> = regions.present_in(AddressRange::new(0, 0x9000)).collect();
        assert_eq!(present, [AddressRange::new(0x5000, 0x6000)]);
    }

    #[test]
    fn neighbouring_anonymous_mappings_are_one_run() {
        let text = b"100000-140000 r--p 00000000 08:01 7 /lib/a\n140000-180000 rw-p 00000000 00:00 0\n\
            1c0000-200000 rw-p 00000000 00:00 0\n200000-240000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n";
        let (space, bad_lines) = crate::map::AddressSpace::parse(text);
        assert_eq!(bad_lines, 0);
        let runs: Vec<_> = anonymous_runs(space.mappings().iter())
            .iter()
            .map(|run| (run.range.start, run.range.end, run.is_anonymous, run.bytes))
            .collect();
        let expected = [
            (0x100000, 0x140000, false, 0x40000),
            (0x140000, 0x200000, true, 0x80000),
            (0x200000, 0x240000, false, 0x40000),
        ];
        assert_eq!(runs, expected);
    }
}

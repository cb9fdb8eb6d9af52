//! Which pages of a process are resident: [`Residency`], in sorted runs that equal smaps to the
//! byte.
//!
//! The kernel reports it in two ways, the PAGEMAP_SCAN ioctl (Linux 6.7) and the entries of
//! /proc/PID/pagemap; [`Residency::read`] uses the ioctl if it works. In both, "present" differs
//! from the "Rss" of smaps, to which the ledger adds up. Like smaps, this module does not count
//!
//! - the kernel's shared zero pages, small and huge, which a first read maps;
//! - mappings without `struct page` (VmFlags `pf`: devices, the vdso's clock pages);
//! - hugetlb pages (VmFlags `ht`), which the kernel accounts separately;
//! - swapped-out pages, guard regions and markers, which use no memory.
//!
//! Like smaps, it does count a page under migration (a migration entry), which shows as swapped but
//! is in memory.
//!
//! This module must not read target memory, only page table summaries.

mod entries;
mod scan;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;

use strandline_sys::pagemap::ZeroFrames;

pub use self::entries::{exclusive_bytes, swapped_runs};
pub use self::scan::{MappingSummary, PartialScan, ScannedRegions, is_missing as is_scan_missing};

use crate::range::{AddressRange, RangeSet};
use crate::smaps::SmapsEntry;

/// Bytes of a page, on every machine strandline runs on (x86-64).
pub const PAGE_BYTES: u64 = 4096;

/// First address past user memory on x86-64 with page tables of four levels
/// (Documentation/arch/x86/x86_64/mm.rst). With five, a program gets more only on request, which is
/// not expected. The kernel maps nothing in the last page below (`TASK_SIZE_MAX`).
pub const USER_ADDRESS_END: u64 = 1 << 47;

/// The first byte of the page that holds `address`.
pub fn page_of(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// The first page boundary at or after `address`.
pub fn page_up(address: u64) -> u64 {
    page_of(address.saturating_add(PAGE_BYTES - 1))
}

/// Flags of a run, stored in the low bits of its page-aligned start.
mod kind {
    /// The pages are anonymous.
    pub const ANONYMOUS: u64 = 1;
    /// The kernel is migrating the pages.
    pub const MIGRATING: u64 = 2;
    /// Residency is still undecided; never in a finished [`super::Residency`].
    pub const UNDECIDED: u64 = 4;
    /// All flag bits.
    pub const MASK: u64 = super::PAGE_BYTES - 1;
}

/// Adjacent resident pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// Whether they are anonymous, private copies of file pages included. Others are of a file or
    /// of shared memory.
    pub is_anonymous: bool,
}

impl PageRun {
    /// Its addresses.
    pub fn range(self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Its length.
    pub fn bytes(self) -> u64 {
        self.end - self.start
    }
}

/// A run in 16 bytes: a heap with every other page resident has one run per 8 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedRun {
    /// The start, with the flags of [`kind`] in its low bits.
    start_and_kind: u64,
    end: u64,
}

impl PackedRun {
    fn start(self) -> u64 {
        self.start_and_kind & !kind::MASK
    }

    fn has(self, flag: u64) -> bool {
        self.start_and_kind & flag != 0
    }

    fn bytes(self) -> u64 {
        self.end - self.start()
    }

    fn run(self) -> PageRun {
        PageRun { start: self.start(), end: self.end, is_anonymous: self.has(kind::ANONYMOUS) }
    }
}

/// The kernel interface that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// The PAGEMAP_SCAN ioctl, Linux 6.7 and later.
    Scan,
    /// The 8-byte entries of /proc/PID/pagemap.
    Entries,
}

/// The resident pages of a process.
#[derive(Clone, Debug)]
pub struct Residency {
    runs: Vec<PackedRun>,
}

impl Residency {
    /// Reads the resident pages of all mappings of `smaps` from an open /proc/PID/pagemap, with
    /// PAGEMAP_SCAN or, if the kernel lacks it, from the entries.
    ///
    /// `smaps` has the mappings of the same process in the same state, so stop the process before.
    ///
    /// # Errors
    /// Errors of the kernel. If the process ended, [`reconcile`] reports differences.
    pub fn read(pagemap: &File, smaps: &[SmapsEntry]) -> io::Result<Self> {
        match Self::read_by(pagemap, smaps, Interface::Scan) {
            Err(error) if scan::is_missing(&error) => Self::read_by(pagemap, smaps, Interface::Entries),
            other => other,
        }
    }

    /// Like [`Residency::read`], with one interface only.
    ///
    /// # Errors
    /// Errors of the kernel: `ENOTTY` from [`Interface::Scan`] before Linux 6.7.
    pub fn read_by(pagemap: &File, smaps: &[SmapsEntry], interface: Interface) -> io::Result<Self> {
        let scanned = match interface {
            Interface::Scan => {
                Some(ScannedRegions::of(pagemap, smaps.iter().map(|smaps_entry| &smaps_entry.mapping))?)
            }
            Interface::Entries => None,
        };
        Self::build(pagemap, smaps, scanned)
    }

    /// Makes it from an earlier scan ([`ScannedRegions::of`]), with smaps of the same state; from
    /// the entries if this kernel has no scan.
    ///
    /// # Errors
    /// That of the scan, or errors of the kernel.
    pub fn of_scanned(
        pagemap: &File,
        smaps: &[SmapsEntry],
        scanned: io::Result<ScannedRegions>,
    ) -> io::Result<Self> {
        match scanned {
            Ok(scanned) => Self::build(pagemap, smaps, Some(scanned)),
            Err(error) if scan::is_missing(&error) => Self::build(pagemap, smaps, None),
            Err(error) => Err(error),
        }
    }

    /// Uses the scan if there is one, else the entries.
    fn build(pagemap: &File, smaps: &[SmapsEntry], scanned: Option<ScannedRegions>) -> io::Result<Self> {
        let mut builder = Builder::new(pagemap);
        match scanned {
            Some(scanned) => scan::add_scanned(&mut builder, smaps, &scanned)?,
            None => {
                for smaps_entry in smaps.iter().filter(|smaps_entry| may_hold_pages(smaps_entry)) {
                    builder.read_entries(smaps_entry)?;
                }
            }
        }
        builder.runs.shrink_to_fit();
        Ok(Self { runs: builder.runs })
    }

    /// The runs within `range`, clipped to it; none if its end is not above its start. The first is
    /// found by binary search.
    pub fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = PageRun> + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        self.runs[first..]
            .iter()
            .map(|packed| packed.run())
            .take_while(move |run| run.start < range.end && range.start < range.end)
            .map(move |run| PageRun { start: run.start.max(range.start), end: run.end.min(range.end), ..run })
    }

    /// Whether the page that contains `address` is resident.
    pub fn is_resident(&self, address: u64) -> bool {
        self.runs_in(address..address.saturating_add(1)).next().is_some()
    }

    /// Resident bytes within `range`.
    pub fn resident_bytes_in(&self, range: Range<u64>) -> u64 {
        self.runs_in(range).map(|run| run.bytes()).sum()
    }
}

/// Whether smaps may count pages in it. Excluded are the kernel's `[vsyscall]`, `ht` and `pf`
/// mappings, which are no RSS, and mappings with an Rss of 0.
fn may_hold_pages(smaps_entry: &SmapsEntry) -> bool {
    smaps_entry.counts.rss_bytes > 0
        && smaps_entry.mapping.name != "[vsyscall]"
        && !smaps_entry.flags.is_hugetlb()
        && !smaps_entry.flags.is_pfn_map()
}

/// The kinds of present pages in a mapping that smaps can count.
#[derive(Clone, Copy)]
struct CountedKinds {
    has_anonymous: bool,
    has_file: bool,
}

impl CountedKinds {
    /// If smaps counts no anonymous page, a present anonymous page is a zero page or has no `struct
    /// page`. In private memory without a file, a page marked as a file page is the huge zero page.
    fn of(smaps_entry: &SmapsEntry) -> Self {
        Self {
            has_anonymous: smaps_entry.counts.anonymous_bytes > 0,
            has_file: !smaps_entry.mapping.is_private_anonymous(),
        }
    }

    /// Whether smaps can count a page with these run flags. Migrating pages always count: only
    /// pages with a `struct page` migrate.
    fn allows(self, flags: u64) -> bool {
        if flags & kind::MIGRATING != 0 {
            return true;
        }
        if flags & kind::ANONYMOUS != 0 { self.has_anonymous } else { self.has_file }
    }
}

/// Runs under construction, mapping by mapping in address order.
struct Builder<'a> {
    /// The open /proc/PID/pagemap.
    pagemap: &'a File,
    /// The runs of the mappings so far.
    runs: Vec<PackedRun>,
    /// Index of the current mapping's first run: runs are merged only from here on.
    first_run: usize,
    /// Bytes of the current mapping that are certainly resident.
    certain_bytes: u64,
    /// Bytes of the current mapping that may be resident.
    undecided_bytes: u64,
    /// Whether the current mapping must be read from its entries, because the scan did not request
    /// all its bits.
    is_unclear: bool,
    /// Address space that may still be read entry by entry.
    budget_bytes: u64,
    /// The frames of the kernel's zero pages, looked up on first use.
    zero_frames: Option<ZeroFrames>,
}

impl<'a> Builder<'a> {
    fn new(pagemap: &'a File) -> Self {
        Self {
            pagemap,
            runs: Vec::new(),
            first_run: 0,
            certain_bytes: 0,
            undecided_bytes: 0,
            is_unclear: false,
            budget_bytes: entries::MAX_WALK_BYTES,
            zero_frames: None,
        }
    }

    /// Starts a mapping.
    fn begin_mapping(&mut self) {
        self.first_run = self.runs.len();
        self.certain_bytes = 0;
        self.undecided_bytes = 0;
        self.is_unclear = false;
    }

    /// Adds pages `start..end`, which begin at or after the end of the last ones.
    fn push(&mut self, start: u64, end: u64, flags: u64) {
        let start = start & !kind::MASK;
        if start >= end {
            return;
        }
        let bytes = end - start;
        let sum =
            if flags & kind::UNDECIDED == 0 { &mut self.certain_bytes } else { &mut self.undecided_bytes };
        *sum += bytes;
        if let Some(last) = self.runs[self.first_run..].last_mut()
            && last.end == start
            && last.start_and_kind & kind::MASK == flags
        {
            last.end = end;
            return;
        }
        self.runs.push(PackedRun { start_and_kind: start | flags, end });
    }

    /// Ends a mapping for which smaps counts `rss_bytes`: takes its undecided pages as resident,
    /// lowest first, until that is reached. Which of them are resident cannot be seen: the sum is
    /// right, the place a guess.
    fn end_mapping(&mut self, rss_bytes: u64) {
        if self.undecided_bytes == 0 {
            return;
        }
        let mut missing_bytes = rss_bytes.saturating_sub(self.certain_bytes);
        let mapping_runs = self.runs.split_off(self.first_run);
        for mut run in mapping_runs {
            if run.has(kind::UNDECIDED) {
                let resident_bytes = run.bytes().min(missing_bytes);
                missing_bytes -= resident_bytes;
                let end = run.start() + resident_bytes;
                run = PackedRun { start_and_kind: run.start_and_kind & !kind::UNDECIDED, end };
            }
            if run.bytes() > 0 {
                self.runs.push(run);
            }
        }
    }
}

/// A mapping whose pages do not add up to the Rss in smaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{start:#x}-{end:#x} {name}: {pages_bytes} bytes of resident pages, smaps says {smaps_bytes}")]
pub struct Difference {
    /// First byte of the mapping.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Its name as in maps.
    pub name: String,
    /// Sum of the runs.
    pub pages_bytes: u64,
    /// Rss in smaps.
    pub smaps_bytes: u64,
}

/// Checks that in every mapping the runs add up to the Rss of smaps; returns the mappings where
/// they do not.
///
/// They may differ even for a stopped process if the kernel dropped or migrated pages between the
/// two reads: then read both again.
pub fn reconcile(residency: &Residency, smaps: &[SmapsEntry]) -> Result<(), Vec<Difference>> {
    let differences: Vec<Difference> = smaps
        .iter()
        .filter_map(|smaps_entry| {
            let (start, end) = (smaps_entry.mapping.start, smaps_entry.mapping.end);
            let pages_bytes = residency.resident_bytes_in(start..end);
            let smaps_bytes = smaps_entry.counts.rss_bytes;
            let name = smaps_entry.mapping.name.clone();
            (pages_bytes != smaps_bytes).then_some(Difference { start, end, name, pages_bytes, smaps_bytes })
        })
        .collect();
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

/// Widens `ranges` to whole pages, in address order and without overlap, as [`each_anonymous_run`]
/// requires.
pub fn whole_pages(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let widened = ranges.iter().map(|range| AddressRange::from(range.clone()).widened_to_pages());
    widened.collect::<RangeSet>().into_iter().map(Range::from).collect()
}

/// Passes to `each` the runs of resident anonymous pages in `ranges` (whole pages, ascending,
/// without overlap: see [`whole_pages`]) of the process of an open /proc/PID/pagemap, without zero
/// pages. Runs come in address order, except that migrating pages come last.
///
/// Cheaper than a [`Residency`], as it needs no smaps. If page frames are hidden from this user,
/// pages that show as swapped count as absent, and without PAGEMAP_SCAN indistinguishable zero
/// pages count as resident.
///
/// # Errors
/// Errors of the kernel; without PAGEMAP_SCAN `InvalidInput` if the ranges exceed 1 TiB in total.
pub fn each_anonymous_run(
    pagemap: &File,
    ranges: &[Range<u64>],
    each: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let mut has_found_run = false;
    let by_scan = scan::each_anonymous_run(pagemap, ranges, &mut |run| {
        has_found_run = true;
        each(run);
    });
    match by_scan {
        Err(error) if !has_found_run && scan::is_missing(&error) => {
            entries::each_anonymous_run(pagemap, ranges, each)
        }
        other => other,
    }
}

/// Whether this user can use PAGEMAP_SCAN on this kernel; false also if the own pagemap cannot be
/// opened. Determined once.
pub fn has_scan() -> bool {
    static HAS_SCAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS_SCAN.get_or_init(|| {
        File::open("/proc/self/pagemap").is_ok_and(|own| scan::regions(&own, 0..PAGE_BYTES).is_ok())
    })
}

/// Whether there is a page at `address`, in memory or swapped out; zero pages count.
///
/// # Errors
/// Errors of the kernel: `ENOTTY` before Linux 6.7.
pub fn has_page(pagemap: &File, address: u64) -> io::Result<bool> {
    let at = page_of(address);
    let scanned = scan::regions(pagemap, at..at.saturating_add(PAGE_BYTES))?;
    Ok(!scanned.is_empty())
}

/// Returns the first page of `range`, in memory or swapped out; zero pages do not count.
///
/// # Errors
/// Errors of the kernel: `ENOTTY` before Linux 6.7.
pub fn first_page(pagemap: &File, range: AddressRange) -> io::Result<Option<u64>> {
    strandline_sys::pagemap::first_page(pagemap, range.into())
}

/// Total bytes of the runs of [`each_anonymous_run`], by which the effect of a remedy is measured.
///
/// # Errors
/// Those of [`each_anonymous_run`].
pub fn anonymous_bytes_in(pagemap: &File, ranges: &[Range<u64>]) -> io::Result<u64> {
    let mut bytes = 0;
    each_anonymous_run(pagemap, ranges, &mut |run| bytes += run.end - run.start)?;
    Ok(bytes)
}

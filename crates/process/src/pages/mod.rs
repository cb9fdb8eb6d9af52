//! Which pages of a process are resident: [`Residency`], in sorted runs, equal to smaps to the byte.
//!
//! The kernel tells it in two ways, the PAGEMAP_SCAN ioctl (Linux 6.7) and the entries of
//! /proc/PID/pagemap; [`Residency::read`] takes the better one that works. Neither means by "present"
//! what smaps means by "Rss", and the ledger adds up to smaps. What smaps leaves out is left out:
//!
//! - the kernel's shared pages of zeros, small and huge, which a first read maps;
//! - mappings without `struct page` behind them (VmFlags `pf`: devices, the vdso's clock pages);
//! - hugetlb pages (VmFlags `ht`), which the kernel accounts apart;
//! - pages swapped out, guard regions and markers, which hold no memory.
//!
//! What smaps counts although it shows as swapped is counted: a page that the kernel is moving just
//! now (a migration entry) is in memory.
//!
//! This module must not read target memory, only its page tables' summary.

mod entries;
mod scan;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;

use strandline_sys::pagemap::ZeroFrames;

pub use self::scan::{Scanned, Seen};

use crate::smaps::SmapsEntry;

/// Bytes of a page, on every machine strandline runs on (x86-64).
pub const PAGE_BYTES: u64 = 4096;

/// The first byte of the page that holds `address`.
pub fn page_of(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// The first page boundary at or behind `address`.
pub fn page_up(address: u64) -> u64 {
    page_of(address.saturating_add(PAGE_BYTES - 1))
}

/// Flags of a run, kept in the low bits of its page-aligned start.
mod kind {
    /// The pages are anonymous.
    pub const ANONYMOUS: u64 = 1;
    /// The pages are part of a huge page mapped whole.
    pub const HUGE: u64 = 2;
    /// The kernel is moving the pages.
    pub const MOVING: u64 = 4;
    /// Not known yet whether they are resident; never in a finished [`super::Residency`].
    pub const DOUBTFUL: u64 = 8;
    /// All of them.
    pub const MASK: u64 = super::PAGE_BYTES - 1;
}

/// Neighbouring resident pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Anonymous, a private copy of a file's page included; otherwise of a file or shared memory.
    pub anonymous: bool,
    /// Part of a transparent huge page mapped whole. Only PAGEMAP_SCAN tells: false otherwise.
    pub huge: bool,
    /// The kernel is moving it: shown as swapped, though it is in memory.
    pub moving: bool,
}

impl Run {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// A run in 16 bytes: a heap with every other page resident has a run for every 8 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    start_and_kind: u64,
    end: u64,
}

impl Packed {
    fn start(self) -> u64 {
        self.start_and_kind & !kind::MASK
    }

    fn has(self, flag: u64) -> bool {
        self.start_and_kind & flag != 0
    }

    fn bytes(self) -> u64 {
        self.end - self.start()
    }

    fn run(self) -> Run {
        Run {
            start: self.start(),
            end: self.end,
            anonymous: self.has(kind::ANONYMOUS),
            huge: self.has(kind::HUGE),
            moving: self.has(kind::MOVING),
        }
    }
}

/// How the kernel was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The PAGEMAP_SCAN ioctl, Linux 6.7 and later.
    Scan,
    /// The 8-byte entries of /proc/PID/pagemap.
    Entries,
}

/// The resident pages of a process.
#[derive(Clone, Debug)]
pub struct Residency {
    runs: Vec<Packed>,
    way: Way,
    guessed_bytes: u64,
    unread_bytes: u64,
}

impl Residency {
    /// Reads the resident pages of all mappings of `spaces` from an open /proc/PID/pagemap: by
    /// PAGEMAP_SCAN, or where the kernel has none by entries.
    ///
    /// `spaces` is the smaps of the same state of the same process: stop it before. Fails with what
    /// the kernel answered; a process that ended is seen as differences by [`reconcile`].
    pub fn read(pagemap: &File, spaces: &[SmapsEntry]) -> io::Result<Self> {
        match Self::read_by(pagemap, spaces, Way::Scan) {
            Err(error) if scan::is_missing(&error) => Self::read_by(pagemap, spaces, Way::Entries),
            other => other,
        }
    }

    /// As [`Residency::read`], by one way only. `Way::Scan` fails with ENOTTY on kernels before 6.7.
    pub fn read_by(pagemap: &File, spaces: &[SmapsEntry], way: Way) -> io::Result<Self> {
        let scanned = match way {
            Way::Scan => Some(Scanned::of(pagemap, spaces.iter().map(|space| &space.mapping))?),
            Way::Entries => None,
        };
        Self::of(pagemap, spaces, scanned)
    }

    /// Of what the kernel answered ([`Scanned::of`]), with smaps of the same state.
    pub fn of_scanned(
        pagemap: &File,
        spaces: &[SmapsEntry],
        scanned: io::Result<Scanned>,
    ) -> io::Result<Self> {
        match scanned {
            Ok(scanned) => Self::of(pagemap, spaces, Some(scanned)),
            Err(error) if scan::is_missing(&error) => Self::of(pagemap, spaces, None),
            Err(error) => Err(error),
        }
    }

    fn of(pagemap: &File, spaces: &[SmapsEntry], scanned: Option<Scanned>) -> io::Result<Self> {
        let way = if scanned.is_some() { Way::Scan } else { Way::Entries };
        let mut builder = Builder::new(pagemap);
        match scanned {
            Some(scanned) => scan::fill(&mut builder, spaces, &scanned)?,
            None => {
                for space in spaces.iter().filter(|space| may_hold_pages(space)) {
                    builder.read_entries(space)?;
                }
            }
        }
        builder.runs.shrink_to_fit();
        Ok(Self {
            runs: builder.runs,
            way,
            guessed_bytes: builder.guessed_bytes,
            unread_bytes: builder.unread_bytes,
        })
    }

    /// How the kernel was asked.
    pub fn way(&self) -> Way {
        self.way
    }

    /// All runs, in address order and without overlap.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().map(|packed| packed.run())
    }

    /// The runs within `range`, clipped to it. Finding the first takes a binary search.
    pub fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = Run> + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        self.runs[first..]
            .iter()
            .map(|packed| packed.run())
            .take_while(move |run| run.start < range.end)
            .map(move |run| Run { start: run.start.max(range.start), end: run.end.min(range.end), ..run })
    }

    /// Whether the page that holds `address` is resident.
    pub fn is_resident(&self, address: u64) -> bool {
        self.runs_in(address..address.saturating_add(1)).next().is_some()
    }

    /// Resident bytes within `range`.
    pub fn resident_bytes_in(&self, range: Range<u64>) -> u64 {
        self.runs_in(range).map(|run| run.bytes()).sum()
    }

    /// Resident anonymous bytes within `range`.
    pub fn anonymous_bytes_in(&self, range: Range<u64>) -> u64 {
        self.runs_in(range).filter(|run| run.anonymous).map(|run| run.bytes()).sum()
    }

    /// All resident bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes()).sum()
    }

    /// All resident anonymous bytes.
    pub fn anonymous_bytes(&self) -> u64 {
        self.runs().filter(|run| run.anonymous).map(|run| run.bytes()).sum()
    }

    /// How many runs there are; each takes 16 bytes.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Bytes whose number is right and whose place is a guess: where page frames are hidden (no
    /// CAP_SYS_ADMIN), pages of zeros cannot be told from shared pages, nor swapped from moving ones.
    pub fn guessed_bytes(&self) -> u64 {
        self.guessed_bytes
    }

    /// Address space that was not looked at because it is too large to read entry by entry.
    pub fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }
}

/// Whether smaps may count pages in it, other than none: the kernel's `[vsyscall]` is not the
/// process's, `ht` and `pf` mappings are no RSS, and where Rss is 0 there is nothing to find.
fn may_hold_pages(space: &SmapsEntry) -> bool {
    space.counts.rss_bytes > 0
        && space.mapping.name != "[vsyscall]"
        && !space.flags.is_hugetlb()
        && !space.flags.is_pfn_map()
}

/// Which kinds of present pages a mapping can hold that smaps counts.
#[derive(Clone, Copy)]
struct Expected {
    anonymous: bool,
    file: bool,
}

impl Expected {
    /// Where smaps counts no anonymous page, one that is present and not a file's is a page of zeros
    /// or has no `struct page`. In private memory without a file, one that shows as a file's is the
    /// huge page of zeros.
    fn of(space: &SmapsEntry) -> Self {
        Self { anonymous: space.counts.anonymous_bytes > 0, file: !space.mapping.is_private_anonymous() }
    }

    /// Whether a page with these flags of a run can be one. What is on the move always can: only
    /// pages with a `struct page` move.
    fn allows(self, flags: u64) -> bool {
        if flags & kind::MOVING != 0 {
            return true;
        }
        if flags & kind::ANONYMOUS != 0 { self.anonymous } else { self.file }
    }
}

/// Runs under construction, mapping by mapping in address order.
struct Builder<'a> {
    pagemap: &'a File,
    runs: Vec<Packed>,
    /// Where the current mapping's runs begin: runs are joined only behind it.
    floor: usize,
    /// Bytes of the current mapping that are resident for sure, and that may be.
    sure_bytes: u64,
    doubtful_bytes: u64,
    /// Whether the current mapping is to be read by its entries: the kernel was not asked all about it.
    is_unclear: bool,
    guessed_bytes: u64,
    unread_bytes: u64,
    /// How much more address space may be read entry by entry.
    budget_bytes: u64,
    /// Looked up when first needed.
    zero_frames: Option<ZeroFrames>,
}

impl<'a> Builder<'a> {
    fn new(pagemap: &'a File) -> Self {
        Self {
            pagemap,
            runs: Vec::new(),
            floor: 0,
            sure_bytes: 0,
            doubtful_bytes: 0,
            is_unclear: false,
            guessed_bytes: 0,
            unread_bytes: 0,
            budget_bytes: entries::MAX_BYTES,
            zero_frames: None,
        }
    }

    /// Starts a mapping.
    fn open(&mut self) {
        self.floor = self.runs.len();
        self.sure_bytes = 0;
        self.doubtful_bytes = 0;
        self.is_unclear = false;
    }

    /// Forgets the current mapping's runs.
    fn reopen(&mut self) {
        self.runs.truncate(self.floor);
        self.open();
    }

    /// Adds pages `start..end`, which begin where the last ones ended or later.
    fn push(&mut self, start: u64, end: u64, flags: u64) {
        let start = start & !kind::MASK;
        if start >= end {
            return;
        }
        let bytes = end - start;
        let sum = if flags & kind::DOUBTFUL == 0 { &mut self.sure_bytes } else { &mut self.doubtful_bytes };
        *sum += bytes;
        if let Some(last) = self.runs[self.floor..].last_mut()
            && last.end == start
            && last.start_and_kind & kind::MASK == flags
        {
            last.end = end;
            return;
        }
        self.runs.push(Packed { start_and_kind: start | flags, end });
    }

    /// Ends a mapping of which smaps counts `rss_bytes`: settles its doubtful pages, lowest first.
    fn close(&mut self, rss_bytes: u64) {
        if self.doubtful_bytes == 0 {
            return;
        }
        let mut missing = rss_bytes.saturating_sub(self.sure_bytes);
        if missing > 0 && missing < self.doubtful_bytes {
            self.guessed_bytes += missing;
        }
        let tail = self.runs.split_off(self.floor);
        for mut run in tail {
            if run.has(kind::DOUBTFUL) {
                let take = run.bytes().min(missing);
                missing -= take;
                run =
                    Packed { start_and_kind: run.start_and_kind & !kind::DOUBTFUL, end: run.start() + take };
            }
            if run.bytes() > 0 {
                self.runs.push(run);
            }
        }
    }
}

/// A mapping whose pages do not add up to what smaps says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{start:#x}-{end:#x} {name}: {pages_bytes} bytes of resident pages, smaps says {smaps_bytes}")]
pub struct Difference {
    /// First byte of the mapping.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// Its name as in maps.
    pub name: String,
    /// What the runs add up to.
    pub pages_bytes: u64,
    /// Rss of smaps.
    pub smaps_bytes: u64,
}

/// Checks that in every mapping the runs add up to smaps' Rss, and returns those where they do not.
///
/// Of a stopped process they may differ where the kernel dropped or moved pages in between: read
/// both again.
pub fn reconcile(residency: &Residency, spaces: &[SmapsEntry]) -> Result<(), Vec<Difference>> {
    let differences: Vec<Difference> = spaces
        .iter()
        .filter_map(|space| {
            let (start, end) = (space.mapping.start, space.mapping.end);
            let pages_bytes = residency.resident_bytes_in(start..end);
            let smaps_bytes = space.counts.rss_bytes;
            let name = space.mapping.name.clone();
            (pages_bytes != smaps_bytes).then_some(Difference { start, end, name, pages_bytes, smaps_bytes })
        })
        .collect();
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

/// `ranges` widened to whole pages, in address order and without overlap, as
/// [`each_anonymous_run`] wants them.
pub fn whole_pages(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges
        .iter()
        .map(|range| page_of(range.start)..page_up(range.end))
        .filter(|range| !range.is_empty())
        .collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut whole: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match whole.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => whole.push(range),
        }
    }
    whole
}

/// Shows `each` the runs of resident anonymous pages in `ranges` (whole pages, ascending, without
/// overlap: see [`whole_pages`]) of the process of an open /proc/PID/pagemap, pages of zeros left out.
/// Runs come in address order, but pages that the kernel is moving just now come last.
///
/// Cheaper than a [`Residency`]: no smaps is needed. Where page frames are hidden from this user,
/// pages that show as swapped count as absent, and without PAGEMAP_SCAN pages of zeros count as
/// resident where they cannot be told.
pub fn each_anonymous_run(
    pagemap: &File,
    ranges: &[Range<u64>],
    each: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let mut has_shown = false;
    let by_scan = scan::each_anonymous_run(pagemap, ranges, &mut |run| {
        has_shown = true;
        each(run);
    });
    match by_scan {
        Err(error) if !has_shown && scan::is_missing(&error) => {
            entries::each_anonymous_run(pagemap, ranges, each)
        }
        other => other,
    }
}

/// Whether an error of [`Scanned::of`] says that this kernel has no PAGEMAP_SCAN, or not for this user.
pub fn is_scan_missing(error: &io::Error) -> bool {
    scan::is_missing(error)
}

/// Whether this kernel has PAGEMAP_SCAN and lets this user have it; asked once.
pub fn has_scan() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        File::open("/proc/self/pagemap").is_ok_and(|own| scan::regions(&own, 0..PAGE_BYTES).is_ok())
    })
}

/// Whether there is a page at `address`, in memory or swapped out, pages of zeros among them.
pub fn has_page(pagemap: &File, address: u64) -> io::Result<bool> {
    let at = page_of(address);
    let scanned = scan::regions(pagemap, at..at + PAGE_BYTES)?;
    Ok(!scanned.is_empty())
}

/// The bytes of resident pages in `ranges` that no other process has mapped.
///
/// Fails with `InvalidInput` where the ranges are more than 1 TiB together.
pub fn exclusive_bytes(pagemap: &File, ranges: &[Range<u64>]) -> io::Result<u64> {
    entries::exclusive_bytes(pagemap, ranges)
}

/// The bytes of all runs of [`each_anonymous_run`]: the "actual" of a remedy, read before and after.
pub fn read_ranges(pagemap: &File, ranges: &[Range<u64>]) -> io::Result<u64> {
    let mut bytes = 0;
    each_anonymous_run(pagemap, ranges, &mut |run| bytes += run.end - run.start)?;
    Ok(bytes)
}

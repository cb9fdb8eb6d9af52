//! Reads the kernel's view of a stopped process's mappings and pages, in the shortest possible
//! stop.
//!
//! smaps contains all of it, and is the slowest source: it walks all pages and prints twenty lines
//! for each mapping. Read in parallel, the mappings (maps), the page tables (PAGEMAP_SCAN) and the
//! kernel's own sums over both (smaps_rollup) contain the same, in half of the time or less. If
//! they do not add up, or if the process has something that only smaps reports by mapping
//! (MADV_FREE, locked memory, hugetlb), smaps is read.

use std::fs::File;
use std::io;
use std::time::Duration;

use strandline_claims::units::{counted, thousands};
use strandline_process::error::{Error, Result};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::pages::{self, MappingSummary, Residency, ScannedRegions};
use strandline_process::procfs::Process;
use strandline_process::smaps::{self, Counts, Smaps, SmapsEntry};
use strandline_process::work;

/// Maximum number of attempts to read page tables while the kernel moves pages.
const MAX_ATTEMPTS: u32 = 8;
/// Pause before the third attempt, doubled before each further one, 126 ms in all. A thread that
/// sleeps in the kernel, waiting for a page from swap, is not stopped yet, and moves pages in and
/// out until it is.
const PAUSE: Duration = Duration::from_millis(2);
/// From this number of resident bytes on, two threads read: for fewer, starting a thread takes
/// longer than reading.
const LARGE_BYTES: u64 = 32 << 20;
/// The same for the number of mappings.
const MANY_MAPPINGS: usize = 1000;

/// What was known about the process before it was stopped.
pub struct FactsBeforeStop<'a> {
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// Its resident bytes, if they are known.
    pub rss_bytes: Option<u64>,
    /// Whether it has, or may have, locked memory or reserved huge pages: only smaps contains which
    /// mappings have them.
    pub has_locked_or_hugetlb: bool,
}

impl FactsBeforeStop<'_> {
    /// Whether reading its pages is worth a second thread; also if its size is not known.
    fn is_large(&self) -> bool {
        self.rss_bytes.is_none_or(|bytes| bytes >= LARGE_BYTES)
            || self.space.mappings().len() >= MANY_MAPPINGS
    }
}

/// The kernel's view of a process's pages.
pub struct Pages {
    /// Its mappings.
    pub smaps: Smaps,
    /// Its resident pages.
    pub residency: Residency,
    /// The kernel's own sums, if they were read too.
    pub rollup: Option<Counts>,
}

/// Runs both functions, in parallel if that is worth a thread.
fn run_both<A: Send, B>(
    is_large: bool,
    mut first: impl FnMut() -> A + Send,
    second: impl FnOnce() -> B,
) -> (A, B) {
    if is_large { work::in_parallel(first, second) } else { (first(), second()) }
}

/// Reads the pages of a stopped or sleeping process. `pagemap` is its open /proc/PID/pagemap.
///
/// # Errors
/// Those of [`read_by_smaps`].
pub fn read(process: &Process, pagemap: &File, before: &FactsBeforeStop<'_>) -> Result<Pages> {
    match read_by_sums(process, pagemap, before)? {
        Some(pages) => Ok(pages),
        None => read_by_smaps(process, pagemap, before),
    }
}

/// Reads the mappings of a stopped process; `None` if a line of maps is not understood.
pub fn address_space(process: &Process) -> Result<Option<AddressSpace>> {
    let (space, bad_lines) = AddressSpace::parse(&process.maps_text()?);
    Ok((bad_lines == 0).then_some(space))
}

/// Reads the mappings and page tables of a process; `None` if the kernel has no PAGEMAP_SCAN, or a
/// line of maps is not understood.
fn scanned(process: &Process, pagemap: &File) -> Result<Option<(AddressSpace, ScannedRegions)>> {
    let Some(space) = address_space(process)? else { return Ok(None) };
    match ScannedRegions::of(pagemap, space.mappings().iter()) {
        Ok(scanned) => Ok(Some((space, scanned))),
        Err(error) if pages::is_scan_missing(&error) => Ok(None),
        Err(source) => Err(process.error("pagemap", source)),
    }
}

/// Returns the counts of a mapping by its page tables, as smaps reports them: smaps skips pages
/// without a `struct page` (fs/proc/task_mmu.c, smaps_pte_entry), which the mappings `[vvar]`,
/// `[vvar_vclock]` and `[vsyscall]` of the kernel consist of.
pub fn counts_in_page_tables(mapping: &Mapping, summary: &MappingSummary) -> Counts {
    let has_special_pages = mapping.name.starts_with("[vvar") || mapping.name == "[vsyscall]";
    if has_special_pages { Counts::default() } else { summary.counts }
}

/// Reads mappings, page tables and sums; `None` if these do not contain everything, cannot be read
/// or do not agree: smaps is read then, and an error in that is reported.
fn read_by_sums(process: &Process, pagemap: &File, before: &FactsBeforeStop<'_>) -> Result<Option<Pages>> {
    if before.has_locked_or_hugetlb || !pages::has_scan() {
        return Ok(None);
    }
    let Ok(file) = process.open_file("smaps_rollup") else { return Ok(None) };
    let scan = || scanned(process, pagemap).map_err(io::Error::other);
    let (sums, scanned) = run_both(before.is_large(), || smaps::read_rollup(&file), scan);
    let (Ok(sums), Ok(Some((space, scanned)))) = (sums, scanned) else { return Ok(None) };
    if sums.lazy_free_bytes > 0 || sums.locked_bytes > 0 || sums.hugetlb_bytes() > 0 {
        return Ok(None);
    }
    let mut summaries = scanned.summaries(space.mappings());
    if sums.swap_bytes == 0 {
        // Guard regions and other markers of the kernel look like swapped pages.
        summaries.iter_mut().for_each(|summary| summary.counts.swap_bytes = 0);
    }
    let entry = |(mapping, summary): (&Mapping, &MappingSummary)| SmapsEntry {
        mapping: mapping.clone(),
        counts: counts_in_page_tables(mapping, summary),
        flags: Default::default(),
    };
    let entries: Vec<SmapsEntry> = space.mappings().iter().zip(&summaries).map(entry).collect();
    let smaps = Smaps { entries, bad_lines: 0 };
    let total = smaps.total();
    let compared = |counts: &Counts| (counts.rss_bytes, counts.anonymous_bytes, counts.swap_bytes);
    if compared(&total) != compared(&sums) {
        return Ok(None);
    }
    let Ok(residency) = Residency::of_scanned(pagemap, &smaps.entries, Ok(scanned)) else { return Ok(None) };
    let do_agree = pages::reconcile(&residency, &smaps.entries).is_ok();
    Ok((do_agree && !smaps.entries.is_empty()).then_some(Pages { smaps, residency, rollup: Some(sums) }))
}

/// Reads smaps and the page tables until they agree: the kernel may drop or move file pages of a
/// stopped process in between.
///
/// # Errors
/// [`Error::DoesNotAddUp`] if they do not agree in [`MAX_ATTEMPTS`] attempts, [`Error::Ended`] if
/// the process has no memory any more, [`Error::Io`] if a file cannot be read.
pub fn read_by_smaps(process: &Process, pagemap: &File, before: &FactsBeforeStop<'_>) -> Result<Pages> {
    let pid = process.pid();
    let mut detail = String::new();
    for attempt in 0..MAX_ATTEMPTS {
        if attempt > 1 {
            std::thread::sleep(PAUSE * (1 << (attempt - 2)));
        }
        let file = process.open_file("smaps")?;
        let scan = || ScannedRegions::of(pagemap, before.space.mappings().iter());
        let (smaps, scanned) = match run_both(before.is_large(), scan, || Smaps::read(file)) {
            (scanned, Ok(smaps)) => (smaps, scanned),
            (_, Err(error)) => return Err(process.error("smaps", error)),
        };
        let residency = Residency::of_scanned(pagemap, &smaps.entries, scanned)
            .map_err(|error| process.error("pagemap", error))?;
        if smaps.entries.is_empty() {
            return Err(Error::Ended { pid });
        }
        let Err(differences) = pages::reconcile(&residency, &smaps.entries) else {
            return Ok(Pages { smaps, residency, rollup: None });
        };
        let example = differences.first().map(|first| {
            format!(
                "{:#x}-{:#x} has {} bytes in its page tables, {} in smaps",
                first.start,
                first.end,
                thousands(first.pages_bytes),
                thousands(first.smaps_bytes)
            )
        });
        let count = counted(differences.len() as u64, "difference");
        detail = format!("{} ({count})", example.unwrap_or_default());
    }
    Err(Error::DoesNotAddUp { pid, detail })
}

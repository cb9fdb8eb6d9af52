//! Reads a process from a snapshot: what is taken during the stop, and the frozen state made of
//! that and of the snapshot while the process runs on.
//!
//! During the stop, only mappings and the page tables of files and shared memory are read, and the
//! snapshot is made: it has private anonymous memory page for page, so that page tables and smaps
//! of that are read from it later. Only smaps shows what the process keeps from its children: it is
//! read before the stop, and counts for the mappings that have not changed since.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::frozen::{FrozenState, IsLastAttempt, KernelView, ReadPlan, Threads};
use super::page_tables::{self, FactsBeforeStop, counts_in_page_tables};
use super::snapshot::{GuardedSnapshot, KnownMapping, Plan, hidden_ranges, joined};
use strandline_claims::units;
use strandline_process::error::{Error, Result};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::pages::{self, MappingSummary, PageRun, PartialScan, Residency, ScannedRegions};
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet, containing};
use strandline_process::smaps::{Counts, Smaps, SmapsEntry};
use strandline_process::snapshot::{MAX_HIDDEN, NotTaken, Snapshot, SnapshotMemory, SnapshotRequest};
use strandline_process::target::copy::{CopyBuffer, MemoryCopy};
use strandline_process::target::exit_watch;
use strandline_process::target::live::{ByPid, MemFile};
use strandline_process::target::stop::Stopped;
use strandline_sys::interrupt::EndDelay;

/// Maximum bytes of memory missing in the snapshot that are copied during the stop.
const MAX_MISSING_BYTES: u64 = 64 << 20;
/// Maximum memory in mappings that are new since smaps was read: it may be hidden, and then has to
/// be copied during the stop.
const MAX_NEW_BYTES: u64 = 32 << 20;
/// For more mappings than this, all page tables are read during the stop, because a query for each
/// mapping takes a thousand times as long per page.
const MANY_MAPPINGS: usize = 500;
/// Reading a snapshot ends this long before the snapshot ends by itself.
const BEFORE_ITS_END: Duration = Duration::from_secs(2);

/// What was taken of a process while it was stopped.
pub struct SnapshotInputs {
    snapshot: GuardedSnapshot,
    pages: PagesAtStop,
    start_brk: Option<u64>,
    /// A copy of what the snapshot lacks.
    copy: MemoryCopy<'static>,
    /// Ranges of the copy, in address order.
    copied: Vec<AddressRange>,
    /// See [`SnapshotRequest::hidden`].
    hidden: Vec<AddressRange>,
}

/// What the kernel reported about the pages of the stopped process.
enum PagesAtStop {
    /// Mappings and page tables; what they lack is read from the snapshot.
    Scanned(Scan),
    /// All of smaps: if the kernel has no PAGEMAP_SCAN, or if memory is locked, which it is not in
    /// a child.
    Read(Smaps, Residency),
}

/// What maps and PAGEMAP_SCAN contain.
struct Scan {
    space: AddressSpace,
    regions: ScannedRegions,
    /// Private anonymous memory of which the snapshot's page tables are read.
    left_out: RangeSet,
    /// See [`SnapshotRequest::hidden`].
    hidden: Vec<AddressRange>,
}

impl Scan {
    /// Reads the mappings of a stopped process and the page tables that the snapshot may lack;
    /// `None` if the kernel has no PAGEMAP_SCAN, or a line of maps is not understood.
    fn new(process: &Process, pagemap: &File, plan: &Plan) -> Result<Option<Self>> {
        let failed = |source| process.error("pagemap", source);
        let Some(space) = page_tables::address_space(process)? else { return Ok(None) };
        let before = plan.mappings_before.as_deref().unwrap_or_default();
        let hidden = if plan.with_hidden { hidden_ranges_before(before, &space) } else { Vec::new() };
        let scanned = ScannedRegions::without_large(pagemap, space.mappings().iter());
        let PartialScan { regions, left_out } = match scanned {
            Err(error) if pages::is_scan_missing(&error) => return Ok(None),
            scanned => scanned.map_err(failed)?,
        };
        let mut scan = Self { space, regions, left_out, hidden };
        if scan.in_question().nth(MANY_MAPPINGS).is_some() {
            let all = scan.left_out.clone();
            scan.read_now(pagemap, &all).map_err(failed)?;
        }
        Ok(Some(scan))
    }

    /// The private anonymous mappings that the snapshot may lack. Those of `hidden` are checked
    /// when the process runs again.
    fn in_question(&self) -> impl Iterator<Item = &Mapping> {
        let private = self.space.mappings().iter().filter(|mapping| mapping.is_private_anonymous());
        private.filter(|mapping| !is_in(&self.hidden, mapping))
    }

    /// Reads page tables of the process in `ranges`, instead of the snapshot's later.
    fn read_now(&mut self, pagemap: &File, ranges: &RangeSet) -> io::Result<()> {
        let now = self.left_out.intersection(ranges);
        self.left_out = self.left_out.without(&now);
        self.regions.add(pagemap, &now)
    }

    /// Whether little has changed since smaps was read (`before`): what is new may be hidden and
    /// has to be copied, and splits the hidden ranges.
    fn has_changed_little(&mut self, pagemap: &File, before: &[KnownMapping]) -> io::Result<bool> {
        let private = self.space.mappings().iter().filter(|mapping| mapping.is_private_anonymous());
        let new_mappings = private.filter(|mapping| entry_before(before, mapping).is_none());
        let new_ranges: RangeSet = new_mappings.map(Mapping::range).collect();
        self.read_now(pagemap, &new_ranges)?;
        let pages = new_ranges.iter().flat_map(|&range| self.regions.present_in(range));
        let bytes: u64 = pages.map(|run| run.len()).sum();
        Ok(bytes <= MAX_NEW_BYTES && self.hidden.len() <= MAX_HIDDEN)
    }

    /// The mappings that have a page in the process and none at that address in `child`.
    fn missing_in(&self, pagemap: &File, child: &File) -> io::Result<Vec<Mapping>> {
        let mut missing = Vec::new();
        // All page tables were read if there are many.
        let is_many = self.in_question().nth(MANY_MAPPINGS).is_some();
        let in_child = if is_many { Some(ScannedRegions::of(child, self.in_question())?) } else { None };
        for mapping in self.in_question() {
            let is_missing = match &in_child {
                Some(in_child) => {
                    self.regions.has_page_in(mapping.range()) && !in_child.has_page_in(mapping.range())
                }
                None => match pages::first_page(pagemap, mapping.range())? {
                    Some(first) => !pages::has_page(child, first)?,
                    None => false,
                },
            };
            if is_missing {
                missing.push(mapping.clone());
            }
        }
        Ok(missing)
    }

    /// Completes the mappings and resident pages by the smaps and the page tables of the snapshot.
    ///
    /// # Errors
    /// The reason for which the snapshot cannot be used.
    fn complete(
        self,
        smaps: File,
        pagemap: &File,
        hidden: &[AddressRange],
    ) -> std::result::Result<(Smaps, Residency), String> {
        let Self { space, mut regions, left_out, .. } = self;
        let child_smaps = exit_watch::run_while_watching(|| Smaps::read(&smaps));
        let child_smaps = child_smaps.map_err(|error| format!("reading its smaps: {error}"))?;
        check_hidden(&child_smaps, &space, hidden)?;
        let failed = |error: io::Error| format!("reading its page tables: {error}");
        exit_watch::run_while_watching(|| regions.add(pagemap, &left_out)).map_err(failed)?;
        let summaries = regions.summaries(space.mappings());
        let smaps = merge_smaps(&child_smaps, &space, &summaries, hidden);
        let residency = Residency::of_scanned(pagemap, &smaps.entries, Ok(regions)).map_err(failed)?;
        if let Err(differences) = pages::reconcile(&residency, &smaps.entries) {
            let first = differences.first().map(ToString::to_string).unwrap_or_default();
            return Err(format!("its pages differ from those of the process ({first})"));
        }
        Ok((smaps, residency))
    }
}

impl PagesAtStop {
    fn space(&self) -> AddressSpace {
        match self {
            Self::Scanned(scan) => scan.space.clone(),
            Self::Read(smaps, _) => {
                AddressSpace::from_mappings(smaps.entries.iter().map(|entry| entry.mapping.clone())).0
            }
        }
    }
}

/// Takes a snapshot of a stopped process, and copies what it lacks.
///
/// # Errors
/// The reason against it. Threads may run by then: the process must be released.
pub fn take(
    process: &Process,
    stopped: &mut Stopped<'_>,
    plan: &Plan,
    before: &FactsBeforeStop<'_>,
) -> std::result::Result<SnapshotInputs, NotTaken> {
    let reason = |error: Error| error.to_string();
    let pagemap = process.open_file("pagemap").map_err(reason)?;
    let start_brk = process.stat().map_err(reason)?.start_brk;
    let mut pages = read_pages(process, &pagemap, plan, before).map_err(reason)?;
    let (space, hidden) = (pages.space(), hidden_ranges_of(&pages, plan));
    // Made before the thread that made the child runs, so the copy is of the same instant.
    let request = SnapshotRequest { space: &space, code: plan.code, lifetime: plan.lifetime, hidden };
    let delay = EndDelay::begin();
    let taken = Snapshot::take(stopped, process, &request, |child| {
        let missing = find_missing(&mut pages, &pagemap, &request.hidden, child)?;
        copy(process, missing.runs).map(|copy| (copy, missing.ranges))
    });
    let (snapshot, (copy, copied)) = taken?;
    let (snapshot, hidden) = (GuardedSnapshot::new(snapshot, delay), request.hidden);
    Ok(SnapshotInputs { snapshot, pages, start_brk, copy, copied, hidden })
}

/// Reads the kernel's view of a stopped process's pages.
fn read_pages(
    process: &Process,
    pagemap: &File,
    plan: &Plan,
    before: &FactsBeforeStop<'_>,
) -> Result<PagesAtStop> {
    let needs_smaps = before.has_locked_or_hugetlb || (plan.with_hidden && plan.mappings_before.is_none());
    let scan = if needs_smaps { None } else { Scan::new(process, pagemap, plan)? };
    if let Some(mut scan) = scan {
        let is_usable = match &plan.mappings_before {
            Some(before) => {
                scan.has_changed_little(pagemap, before).map_err(|source| process.error("pagemap", source))?
            }
            None => true,
        };
        if is_usable {
            return Ok(PagesAtStop::Scanned(scan));
        }
    }
    let page_tables::Pages { smaps, residency, .. } = page_tables::read_by_smaps(process, pagemap, before)?;
    Ok(PagesAtStop::Read(smaps, residency))
}

/// Copies `runs` of a stopped process.
fn copy(process: &Process, runs: Vec<AddressRange>) -> std::result::Result<MemoryCopy<'static>, String> {
    let bytes: u64 = runs.iter().map(|run| run.len()).sum();
    if bytes > MAX_MISSING_BYTES {
        return Err(format!(
            "it keeps {} of its memory from its children (MADV_DONTFORK, MADV_WIPEONFORK)",
            units::bytes(bytes)
        ));
    }
    let too_much = || "strandline has no room for the memory that it keeps from its children".to_owned();
    let buffer = if bytes == 0 { Some(CopyBuffer::default()) } else { CopyBuffer::for_bytes(bytes) };
    let buffer = buffer.ok_or_else(too_much)?;
    MemoryCopy::take(&ByPid::new(process.pid()), runs.into_iter(), buffer, 1, None).ok_or_else(too_much)
}

/// Private anonymous memory that the snapshot lacks.
#[derive(Default)]
struct Missing {
    ranges: Vec<AddressRange>,
    /// The resident pages of `ranges`.
    runs: Vec<AddressRange>,
}

impl Missing {
    fn add(&mut self, mapping: &Mapping, runs: impl Iterator<Item = AddressRange>) {
        self.ranges.push(mapping.range());
        self.runs.extend(runs);
    }
}

/// The ranges of private anonymous mappings that the program keeps from its children. V8 has a
/// mapping for each of its pages: those without another between them are one range, because each
/// range costs a system call.
fn hidden_ranges_of(pages: &PagesAtStop, plan: &Plan) -> Vec<AddressRange> {
    match pages {
        // A mapping that was not understood may be between two.
        PagesAtStop::Read(smaps, _) if !plan.with_hidden || smaps.bad_lines > 0 => Vec::new(),
        PagesAtStop::Read(smaps, _) => hidden_ranges(smaps),
        PagesAtStop::Scanned(scan) => scan.hidden.clone(),
    }
}

/// The hidden ranges of a stopped process, by smaps from before the stop.
fn hidden_ranges_before(before: &[KnownMapping], space: &AddressSpace) -> Vec<AddressRange> {
    let is_hidden = |mapping: &Mapping| entry_before(before, mapping).is_some_and(|entry| entry.is_hidden);
    joined(space.mappings().iter().map(|mapping| is_hidden(mapping).then(|| mapping.range())))
}

/// The entry of this mapping in smaps from before the stop; `None` if there was another mapping.
fn entry_before<'a>(before: &'a [KnownMapping], mapping: &Mapping) -> Option<&'a KnownMapping> {
    let index = before.partition_point(|entry| entry.mapping.start < mapping.start);
    before.get(index).filter(|entry| entry.mapping == *mapping)
}

/// Whether one of `ranges`, which are in address order, contains the mapping.
fn is_in(ranges: &[AddressRange], mapping: &Mapping) -> bool {
    containing(ranges, mapping.start).is_some()
}

/// Finds what `child` lacks: mappings that it does not have, other than those of `provided`, and
/// mappings that have no page at the address of the process's first page.
fn find_missing(
    pages: &mut PagesAtStop,
    pagemap: &File,
    provided: &[AddressRange],
    child: &Process,
) -> std::result::Result<Missing, String> {
    let mut missing = Missing::default();
    match pages {
        PagesAtStop::Read(smaps, residency) => {
            for entry in &smaps.entries {
                let mapping = &entry.mapping;
                let is_absent = entry.flags.has(b"dc") || entry.flags.has(b"wf");
                if mapping.is_private_anonymous() && is_absent && !is_in(provided, mapping) {
                    let runs = residency.runs_in(mapping.start..mapping.end);
                    missing.add(mapping, runs.map(PageRun::range));
                }
            }
        }
        PagesAtStop::Scanned(scan) => {
            let unreadable = |error: &dyn std::fmt::Display| format!("the snapshot cannot be read: {error}");
            let of_child = child.open_file("pagemap").map_err(|error| unreadable(&error))?;
            let absent = scan.missing_in(pagemap, &of_child).map_err(|error| unreadable(&error))?;
            let ranges = absent.iter().map(Mapping::range).collect();
            scan.read_now(pagemap, &ranges).map_err(|error| unreadable(&error))?;
            for mapping in &absent {
                missing.add(mapping, scan.regions.present_in(mapping.range()));
            }
        }
    }
    Ok(missing)
}

impl SnapshotInputs {
    /// Makes the frozen state, while the process runs on.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if the snapshot cannot be read or did not last.
    pub fn read(
        self,
        process: &Process,
        threads: Threads,
        read_plan: &ReadPlan<'_>,
        is_last: IsLastAttempt,
    ) -> Result<FrozenState> {
        let no_snapshot =
            |reason: String| Error::NoSnapshot { pid: process.pid(), reason, stopped_time: Duration::ZERO };
        let child = self.snapshot.snapshot.process();
        let open = |name: &str| {
            let file = child.open_file(name);
            file.map_err(|error| no_snapshot(format!("it cannot be read ({error})")))
        };
        let pagemap = open("pagemap")?;
        // Read before its memory, because reading memory brings in pages.
        let (smaps, residency) = match self.pages {
            PagesAtStop::Read(smaps, residency) => (smaps, residency),
            PagesAtStop::Scanned(scan) => {
                scan.complete(open("smaps")?, &pagemap, &self.hidden).map_err(no_snapshot)?
            }
        };
        // Shared writable memory changes meanwhile, and device memory is not the process's memory.
        let is_readable = |entry: &&SmapsEntry| {
            let permissions = entry.mapping.permissions;
            let changes = permissions.shared && permissions.write;
            !entry.flags.is_io() && !entry.flags.is_pfn_map() && !changes
        };
        let readable = smaps.entries.iter().filter(is_readable).map(|entry| entry.mapping.range()).collect();
        let view = KernelView {
            smaps,
            residency,
            rollup: None,
            start_brk: self.start_brk,
            memory: MemFile::new(open("mem")?),
            pagemap,
        };
        let mut frozen = FrozenState::new(process, view, threads, read_plan);
        frozen.reading_ends = Some(self.snapshot.snapshot.ends_at() - BEFORE_ITS_END);
        let file = MemFile::new(open("mem")?);
        let snapshot = Arc::clone(&frozen.snapshot.insert(self.snapshot).snapshot);
        let memory = Arc::new(SnapshotMemory { file, readable, copy: self.copy, copied: self.copied });
        frozen.snapshot_memory = Some(Arc::clone(&memory));
        exit_watch::run_while_watching(|| frozen.read_all(process, &*memory, read_plan, is_last))
            // What was read from a snapshot that ended meanwhile is in doubt, and so is the error.
            .map_err(|error| if snapshot.is_alive() { error } else { no_snapshot("it ended".to_owned()) })?;
        Ok(frozen)
    }
}

/// Fails unless the smaps of the snapshot have each mapping of `hidden`: with the mapping it has
/// its pages, except if they are wiped in a child (MADV_WIPEONFORK).
fn check_hidden(
    child_smaps: &Smaps,
    space: &AddressSpace,
    hidden: &[AddressRange],
) -> std::result::Result<(), String> {
    let kept = child_smaps.entries.iter().filter(|entry| !entry.flags.has(b"wf"));
    let of_child: RangeSet = kept.map(|entry| entry.mapping.range()).collect();
    let mut of_process = space.mappings().iter().filter(|mapping| is_in(hidden, mapping));
    match of_process.find(|mapping| !of_child.covers(mapping.range())) {
        Some(mapping) => Err(format!("it lacks the pages at {:#x}", mapping.start)),
        None => Ok(()),
    }
}

/// The entry of the mapping in the smaps of the snapshot.
fn child_entry<'a>(child_smaps: &'a Smaps, mapping: &Mapping) -> Option<&'a SmapsEntry> {
    let index = child_smaps.entries.partition_point(|entry| entry.mapping.start < mapping.start);
    child_smaps.entries.get(index).filter(|entry| entry.mapping.range() == mapping.range())
}

/// Makes the smaps of a process with the mappings `space`, from what its page tables contain
/// (`summaries`) and the smaps of its snapshot, in which nothing of `hidden` is hidden.
fn merge_smaps(
    child_smaps: &Smaps,
    space: &AddressSpace,
    summaries: &[MappingSummary],
    hidden: &[AddressRange],
) -> Smaps {
    let mut entries = Vec::with_capacity(space.mappings().len());
    for (mapping, summary) in space.mappings().iter().zip(summaries) {
        let in_child = child_entry(child_smaps, mapping);
        // The flags of a mapping that only the process has are not known: none is set.
        let flags = in_child.map(|entry| entry.flags).unwrap_or_default();
        let flags = if is_in(hidden, mapping) { flags.with(b"dc") } else { flags };
        let has_pages = |counts: &Counts| counts.rss_bytes > 0 || counts.swap_bytes > 0;
        let has_child_pages = in_child.is_some_and(|entry| has_pages(&entry.counts));
        // A named mapping that children do not get belongs to a device, or is a ring of the kernel:
        // it has no pages of the process.
        let is_device = in_child.is_none() && !mapping.is_private_anonymous();
        let counts = match in_child {
            Some(entry) if mapping.is_private_anonymous() && (has_child_pages || !summary.has_pages) => {
                entry.counts
            }
            _ if flags.is_pfn_map() || is_device => Counts::default(),
            _ => counts_in_page_tables(mapping, summary),
        };
        entries.push(SmapsEntry { mapping: mapping.clone(), counts, flags });
    }
    Smaps { entries, bad_lines: child_smaps.bad_lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Private anonymous mappings of 1 MiB each.
    fn space(starts: &[u64]) -> AddressSpace {
        let lines = starts.iter().map(|start| format!("{start:x}-{:x} rw-p 00000000 00:00 0\n", start + MIB));
        AddressSpace::parse(lines.collect::<String>().as_bytes()).0
    }

    fn known_as(space: &AddressSpace, is_hidden: bool) -> Vec<KnownMapping> {
        space.mappings().iter().map(|mapping| KnownMapping { mapping: mapping.clone(), is_hidden }).collect()
    }

    #[test]
    fn only_identical_mappings_count_as_hidden() {
        let before = known_as(&space(&[MIB, 2 * MIB, 8 * MIB]), true);
        let found = hidden_ranges_before(&before, &space(&[MIB, 2 * MIB, 4 * MIB, 8 * MIB]));
        let range = |start: u64, end: u64| AddressRange::new(start * MIB, end * MIB);
        assert_eq!(found, [range(1, 3), range(8, 9)], "one is new between them");
        let (text, _) = AddressSpace::parse(b"100000-200000 r--p 00000000 00:00 0\n");
        assert_eq!(hidden_ranges_before(&before, &text), [], "other permissions");
        assert_eq!(hidden_ranges_before(&known_as(&space(&[MIB]), false), &space(&[MIB])), []);
    }

    #[test]
    fn many_new_mappings_cause_another_read_of_smaps() {
        if !pages::has_scan() {
            eprintln!(
                "skipped: many_new_mappings_cause_another_read_of_smaps: this kernel has no PAGEMAP_SCAN"
            );
            return;
        }
        let own = Process::open(std::process::id() as i32).unwrap();
        let pagemap = own.open_file("pagemap").unwrap();
        let memory = std::hint::black_box(vec![1_u8; MAX_NEW_BYTES as usize + 1]);
        let space = own.address_space().unwrap();
        let known = known_as(&space, false);
        let changed_little = |hidden: usize, before: &[KnownMapping]| {
            let PartialScan { regions, left_out } =
                ScannedRegions::without_large(&pagemap, space.mappings().iter()).unwrap();
            let hidden = vec![AddressRange::new(0, MIB); hidden];
            let mut scan = Scan { space: space.clone(), regions, left_out, hidden };
            scan.has_changed_little(&pagemap, before).unwrap()
        };
        assert!(changed_little(MAX_HIDDEN, &known), "nothing is new");
        assert!(!changed_little(MAX_HIDDEN + 1, &known), "more hidden ranges than a snapshot can show");
        let address = memory.as_ptr() as u64;
        let other_mappings: Vec<_> =
            known.iter().filter(|known| !known.mapping.range().contains(address)).cloned().collect();
        assert!(!changed_little(0, &other_mappings), "a large one is new");
    }
}

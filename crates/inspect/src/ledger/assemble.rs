//! Puts every resident byte on one row.
//!
//! Claims of readers are finer than the kernel's view, and come first; two claims of one layer on
//! the same byte are an error. Unclaimed bytes are on the row of their mapping, in private
//! anonymous memory on `anonymous`: unknown memory stays visible.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::inputs::Inputs;
use super::named;
use super::overlaps::Overlaps;
use super::page_map::PageMapWriter;
use super::rows::{NamedHolders, Tally};
use super::spans::{Holder, HolderUntil, Span, Spans};
use crate::facts::PageMap;
use crate::ledger::sharing::Sharing;
use strandline_claims::accumulator::{CellSums, ResidentBytes};
use strandline_claims::allocator::{Layer, MappedBlock, RangeClaim, Reading};
use strandline_claims::caveat::Caveat;
use strandline_claims::class::{Class, Slot};
use strandline_claims::palette::{BlockRows, SlotTable};
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::refinements::Finder;
use strandline_claims::rows::{
    ANONYMOUS, DEVICE, FILE, LAZY_FREE, PROGRAM_DATA, PROGRAM_STACK, PROGRAM_TEXT, RowRef, SHMEM,
    STACK_BELOW_SP, ZERO,
};
use strandline_claims::runtime;
use strandline_process::call::frame::RED_ZONE_BYTES;
use strandline_process::error::Result;
use strandline_process::map::{FileId, Mapping};
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::smaps::SmapsEntry;

/// The ledger.
#[derive(Default)]
pub struct Ledger {
    /// Bytes by row.
    pub tally: Tally,
    /// Bytes of named holders.
    pub holders: NamedHolders,
    /// Bytes of all-zero pages in claimed ranges and outside: what the zero_pages remedy would
    /// free.
    pub zero_bytes: u64,
    /// How much of these pages other processes have mapped too, if determined.
    pub zero_sharing: Option<Sharing>,
    /// Bytes of shared memory, claimed or not.
    pub shmem_bytes: u64,
    /// The page map, if requested.
    pub page_map: Option<PageMap>,
    /// Claims that do not count, and figures that do not fit.
    pub caveats: Vec<Caveat>,
}

/// The bytes of one mapping by row, and the page map of all mappings.
struct LedgerWriter<'a> {
    tally: Tally,
    page_map: Option<&'a mut PageMapWriter>,
}

impl LedgerWriter<'_> {
    fn add(&mut self, row: RowRef, range: AddressRange) {
        self.tally.add(row, range.len());
        if let Some(page_map) = &mut self.page_map {
            page_map.add(row, range);
        }
    }
}

/// The rows of the classes of one reader's claims. A class without a row counts as
/// unknown, and stays visible.
#[derive(Clone, Copy)]
struct ClassRows<'a> {
    palette: &'a SlotTable,
    rows: Option<&'static BlockRows>,
}

impl<'a> ClassRows<'a> {
    /// Returns the row of a slot, and its named holder.
    fn of_slot(self, slot: Slot) -> (RowRef, Option<&'a str>) {
        let entry = self.palette.get(slot);
        entry.map_or((&ANONYMOUS, None), |entry| (entry.row, entry.holder.as_deref()))
    }

    /// Returns the row of blocks with their own mappings.
    fn mapped(self) -> RowRef {
        self.rows.map_or(&ANONYMOUS, |rows| rows.mapped)
    }
}

/// A claim, with the rows of its classes.
#[derive(Clone, Copy)]
struct Claim<'a> {
    claim: &'a RangeClaim,
    rows: ClassRows<'a>,
}

/// A cell of a claim, with the rows of its classes.
struct ClaimedCell<'a> {
    cell: &'a CellSums,
    rows: ClassRows<'a>,
}

/// A block with its own mapping, with the rows of its allocator's classes.
struct MappedClaim<'a> {
    block: &'a MappedBlock,
    rows: ClassRows<'a>,
}

/// All claims, in layers.
struct Layers<'a> {
    /// Claims that count, with the rows of their classes.
    claims: Vec<Claim<'a>>,
    /// The spans of these claims, and of blocks with their own mappings.
    spans: Spans,
    /// Claims on shared memory, and their spans.
    shared: Vec<Claim<'a>>,
    shared_spans: Spans,
    /// Caveats about claims that do not count.
    caveats: Vec<Caveat>,
}

impl<'a> Layers<'a> {
    /// Sorts claims into layers: a finer claim within an allocator's memory counts only if the
    /// allocator holds the block around it in use. `palette` has the slots of refined blocks.
    fn new(inputs: &Inputs<'a>, palette: &'a SlotTable) -> Result<Self> {
        let class_rows = |reading: &'a Reading| ClassRows { palette, rows: reading.rows };
        let (pools, coarse): (Vec<&Reading>, Vec<&Reading>) =
            inputs.allocator_readings.iter().partition(|reading| reading.layer == Layer::Blocks);
        let mut layers = Self {
            claims: Vec::new(),
            spans: Spans::default(),
            shared: Vec::new(),
            shared_spans: Spans::default(),
            caveats: Vec::new(),
        };
        let mut below = LowerLayer::default();
        for reading in coarse {
            reading.claims.iter().for_each(|claim| layers.add(claim, class_rows(reading)));
            below.add(reading, |_| true);
        }
        let mut counting: Vec<AddressRange> = Vec::new();
        for reading in &pools {
            for claim in &reading.claims {
                if layers.refine(claim, class_rows(reading), &mut below) {
                    counting.push(claim.range());
                }
            }
        }
        counting.sort_unstable();
        // Blocks that a pool reports count only where its own claim counts.
        let is_in = |range: AddressRange| {
            let index = counting.partition_point(|claim| claim.end <= range.start);
            counting.get(index).is_some_and(|claim| claim.covers(range))
        };
        pools.iter().for_each(|reading| below.add(reading, is_in));
        let mut taken = RangeSet::default();
        for reading in inputs.runtime_readings {
            layers.add_runtime(reading, &mut below, &mut taken);
        }
        let mut finder = inputs.refinements.finder();
        let mapped_of = |reading: &'a Reading| {
            let rows = class_rows(reading);
            reading.mapped_blocks.iter().map(move |block| MappedClaim { block, rows })
        };
        let mut mapped: Vec<_> = inputs.allocator_readings.iter().flat_map(mapped_of).collect();
        mapped.sort_unstable_by_key(|mapped| mapped.block.start);
        for MappedClaim { block, rows } in mapped {
            layers.add_mapped(block, rows, &mut finder);
        }
        layers.spans = Spans::in_order(std::mem::take(&mut layers.spans.0))?;
        layers.shared_spans = Spans::in_order(std::mem::take(&mut layers.shared_spans.0))?;
        Ok(layers)
    }

    /// Adds a claim of a finer layer, on mappings or within a block in use; returns whether it
    /// counts.
    fn refine(&mut self, claim: &'a RangeClaim, rows: ClassRows<'a>, below: &mut LowerLayer) -> bool {
        let range = claim.range();
        if !below.ranges.overlaps(range) {
            self.add(claim, rows);
        } else if below.left_out.remove(&range) {
            self.claims.push(Claim { claim, rows });
        } else {
            self.caveats.push(not_in_block_caveat(claim));
            return false;
        }
        true
    }

    /// Adds the claims of a runtime, except those that overlap claims of earlier runtimes
    /// (`taken`): bytes may look like the structures of two.
    fn add_runtime(&mut self, reading: &'a runtime::Reading, below: &mut LowerLayer, taken: &mut RangeSet) {
        let rows = ClassRows { palette: &reading.palette, rows: reading.rows };
        let is_taken = |claim: &&RangeClaim| taken.overlaps(claim.range());
        let all_claims = || reading.claims.iter().chain(&reading.shared_claims);
        self.caveats.extend(all_claims().find(is_taken).map(|first| {
            let bytes = all_claims().filter(is_taken).map(|claim| claim.sums.resident.total()).sum();
            let place = format!("{:#x}-{:#x}", first.start, first.end);
            let text = "two runtimes' readers claim the same memory: it is on the rows of the first";
            Caveat::new("runtimes_disagree", place, Some(bytes), text)
        }));
        let private = reading.claims.iter().filter(|claim| !is_taken(claim));
        let refining = private.filter(|claim| self.refine(claim, rows, below));
        let mut counting: Vec<AddressRange> = refining.map(RangeClaim::range).collect();
        for claim in reading.shared_claims.iter().filter(|claim| !is_taken(claim)) {
            self.shared_spans.0.push(Span { range: claim.range(), holder: Holder::Claimed });
            self.shared.push(Claim { claim, rows });
            counting.push(claim.range());
        }
        taken.add(counting);
    }

    /// Adds a claim that counts, with its span.
    fn add(&mut self, claim: &'a RangeClaim, rows: ClassRows<'a>) {
        self.spans.0.push(Span { range: claim.range(), holder: Holder::Claimed });
        self.claims.push(Claim { claim, rows });
    }

    /// Adds a block with its own mapping, with the finer claims in it.
    fn add_mapped(&mut self, block: &MappedBlock, rows: ClassRows<'_>, finder: &mut Finder<'_>) {
        let mut at = block.start;
        let mut push_up_to = |end: u64, holder| {
            self.spans.0.push(Span { range: AddressRange::new(at, end), holder });
            at = end;
        };
        let mapped = Holder::Row(rows.mapped());
        let nested = finder.nested(block.pointer, block.usable_end);
        for range in nested {
            push_up_to(range.start, mapped);
            push_up_to(range.end, Holder::Claimed);
        }
        let refined = finder.find(block.pointer, block.usable_end.saturating_sub(block.pointer));
        if let Some(refined) = refined.filter(|_| nested.is_empty()) {
            push_up_to(block.pointer, mapped);
            push_up_to(block.pointer + refined.bytes, Holder::Row(rows.of_slot(refined.slot).0));
        }
        push_up_to(block.end, mapped);
    }
}

/// What is below a layer: claimed ranges, and the ranges left to finer claims, each to be used
/// once.
#[derive(Default)]
struct LowerLayer {
    ranges: RangeSet,
    left_out: HashSet<AddressRange>,
}

impl LowerLayer {
    /// Adds the claims of an allocator, and the ranges that it left to finer claims, if `counts`
    /// accepts them.
    fn add(&mut self, reading: &Reading, counts: impl Fn(AddressRange) -> bool) {
        let claims = reading.ranges().filter(|&range| counts(range));
        let mapped = reading.mapped_blocks.iter().map(|block| AddressRange::new(block.start, block.end));
        self.ranges.add(claims.chain(mapped));
        self.left_out.extend(reading.refined.nested.iter().copied().filter(|&range| counts(range)));
    }
}

/// Returns the caveat for a claim in an allocator's memory that is not within one block in use.
fn not_in_block_caveat(claim: &RangeClaim) -> Caveat {
    let place = format!("{:#x}-{:#x}", claim.start, claim.end);
    let bytes = Some(claim.sums.resident.total());
    let text = "a reader claims this memory, but no block in use of the allocator around it contains all of it: it \
                counts on the allocator's rows";
    Caveat::new("claim_not_in_block", place, bytes, text)
}

/// Makes the ledger.
///
/// # Errors
/// [`Error::Overlap`](strandline_process::error::Error::Overlap) if two readers claim the same
/// byte.
pub fn assemble(inputs: &Inputs<'_>) -> Result<Ledger> {
    let palette = inputs.refinements.palette();
    let Layers { mut claims, spans: claimed, shared, shared_spans, caveats } = Layers::new(inputs, &palette)?;
    claims.sort_unstable_by_key(|claimed| claimed.claim.start);
    let mut overlaps = Overlaps::new(&claims, |claimed| claimed.claim.range());
    let program = program_spans(inputs);
    let zero_span = |&range: &AddressRange| Span { range, holder: Holder::Row(&ZERO) };
    let zeros = Spans(inputs.zero_runs.iter().map(zero_span).collect());
    let mut ledger = Ledger { caveats, ..Ledger::default() };
    for &Claim { claim, rows } in claims.iter().chain(&shared) {
        add_claim(&mut ledger.tally, &claim.sums.resident, rows, Some(&mut ledger.holders));
    }
    named::add_named_blocks(inputs, &palette, &mut ledger.holders);
    let mut page_map = inputs.page_map.map(PageMapWriter::new);
    let mut cells = claimed_cells(claims.iter().chain(&shared)).into_iter().peekable();
    let no_spans = Spans::default();
    let programs = program_files(inputs.smaps_entries);
    let mut shared_memory = SharedMemory::default();
    for (index, entry) in inputs.smaps_entries.iter().enumerate() {
        if let (Some(page_map), Some(plan)) = (&mut page_map, inputs.page_map) {
            page_map.open(plan.lists(index), entry);
            while let Some(claimed) = cells.next_if(|claimed| claimed.cell.start < entry.mapping.end) {
                add_cell(page_map, &claimed);
            }
        }
        let mut writer = LedgerWriter { tally: Tally::default(), page_map: page_map.as_mut() };
        for run in inputs.residency.runs_in(entry.mapping.start..entry.mapping.end) {
            if run.is_anonymous && entry.mapping.is_private_anonymous() {
                split(&mut writer, run.range(), [&claimed, &zeros, &program], &ANONYMOUS);
            } else if run.is_anonymous && entry.mapping.has_file() {
                // brk can start on the last page of a program's data, and a runtime's heap can be
                // in the file that it was saved in.
                split(&mut writer, run.range(), [&claimed, &no_spans, &no_spans], &PROGRAM_DATA);
            } else if !run.is_anonymous && (inputs.is_shared_memory)(&entry.mapping) {
                ledger.shmem_bytes += run.bytes();
                split(&mut writer, run.range(), [&shared_spans, &no_spans, &no_spans], &SHMEM);
            } else {
                writer.add(mapping_row(entry, run.is_anonymous, &programs), run.range());
            }
        }
        if entry.counts.lazy_free_bytes > 0 {
            move_lazy_free(&mut writer, entry, inputs.allocator_readings, &mut overlaps, &mut ledger);
        }
        shared_memory.add(&entry.mapping.name, writer.tally.bytes_of(&SHMEM));
        ledger.tally.add_all(&writer.tally);
        if let Some(page_map) = &mut page_map {
            page_map.close();
        }
    }
    shared_memory.add_holders(&mut ledger.holders);
    ledger.zero_bytes = ledger.tally.bytes_of(&ZERO);
    ledger.page_map = page_map.map(PageMapWriter::finish);
    Ok(ledger)
}

/// Adds the bytes that a claim has in a cell to the page map.
fn add_cell(page_map: &mut PageMapWriter, ClaimedCell { cell, rows }: &ClaimedCell<'_>) {
    let mut tally = Tally::default();
    add_claim(&mut tally, &cell.resident, *rows, None);
    page_map.add_tally(cell.start, &tally);
}

/// Maximum number of names of shared memory that get a row.
const MAX_NAMED_ROWS: usize = 5;
/// Maximum number of names to count; bytes of further ones stay on the row without a name.
const MAX_NAMES: usize = 1 << 16;

/// Shared memory by the names of its mappings.
#[derive(Default)]
struct SharedMemory<'a>(HashMap<&'a str, u64>);

impl<'a> SharedMemory<'a> {
    /// Adds the resident bytes of a mapping.
    fn add(&mut self, name: &'a str, bytes: u64) {
        if bytes > 0 && (self.0.len() < MAX_NAMES || self.0.contains_key(name)) {
            *self.0.entry(name).or_default() += bytes;
        }
    }

    /// Gives each of the largest a row with its name.
    fn add_holders(self, holders: &mut NamedHolders) {
        let mut all: Vec<(&str, u64)> = self.0.into_iter().filter(|(name, _)| !name.is_empty()).collect();
        all.sort_unstable_by_key(|&(name, bytes)| (Reverse(bytes), name));
        for (name, bytes) in all.into_iter().take(MAX_NAMED_ROWS) {
            holders.add(&SHMEM, name.trim_end_matches(" (deleted)"), bytes);
        }
    }
}

/// Bytes on one row that may have been given up with MADV_FREE.
struct LazyFreeCandidate {
    /// Order in which candidates are taken: free pages of all claims come first.
    rank: usize,
    row: RowRef,
    bytes: u64,
}

/// Returns the bytes, by row, of the claims overlapping a mapping that may have been given up with
/// MADV_FREE: free pages, and pages that were free, are in use again and were not written since.
fn lazy_free_candidates(claims: &[Claim<'_>]) -> Vec<LazyFreeCandidate> {
    let mut candidates: Vec<LazyFreeCandidate> = Vec::new();
    for Claim { claim, rows } in claims {
        let (Some(rows), resident) = (rows.rows, &claim.sums.resident) else { continue };
        let by_rank = [
            (rows.releasable, resident.releasable),
            (rows.kept, resident.kept),
            (rows.cached, resident.of(Class::Cached)),
            (rows.live, resident.of(Class::Live)),
            (rows.header, resident.of(Class::Header)),
            (rows.pinned, resident.pinned),
        ];
        for (rank, (row, bytes)) in by_rank.into_iter().enumerate() {
            match candidates.iter_mut().find(|candidate| candidate.rank == rank && candidate.row == row) {
                Some(candidate) => candidate.bytes += bytes,
                None => candidates.push(LazyFreeCandidate { rank, row, bytes }),
            }
        }
    }
    candidates.sort_by_key(|candidate| candidate.rank);
    candidates
}

/// Returns the cells of all claims, in address order; none crosses the start of a mapping.
fn claimed_cells<'a: 'b, 'b>(claims: impl Iterator<Item = &'b Claim<'a>>) -> Vec<ClaimedCell<'a>> {
    let cells_of = |&Claim { claim, rows }: &'b Claim<'a>| {
        claim.sums.cells.iter().map(move |cell| ClaimedCell { cell, rows })
    };
    let mut cells: Vec<_> = claims.flat_map(cells_of).collect();
    cells.sort_by_key(|claimed| claimed.cell.start);
    cells
}

/// Returns the spans of stacks above and below their stack pointers, and of bss.
fn program_spans(inputs: &Inputs<'_>) -> Spans {
    let mut spans = Vec::new();
    for stack in inputs.stacks {
        let used = stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).clamp(stack.low, stack.high);
        let (below, above) = (AddressRange::new(stack.low, used), AddressRange::new(used, stack.high));
        spans.push(Span { range: below, holder: Holder::Row(&STACK_BELOW_SP) });
        spans.push(Span { range: above, holder: Holder::Row(&PROGRAM_STACK) });
    }
    let data_span = |&range: &AddressRange| Span { range, holder: Holder::Row(&PROGRAM_DATA) };
    spans.extend(inputs.bss.iter().map(data_span));
    spans.retain(|span| !span.range.is_empty());
    spans.sort_by_key(|span| span.range.start);
    // A stack may be in a library's bss: the span that starts first keeps the bytes.
    let mut end = 0;
    for span in &mut spans {
        span.range.start = span.range.start.max(end);
        end = end.max(span.range.end);
    }
    spans.retain(|span| !span.range.is_empty());
    Spans(spans)
}

/// Splits a resident run. Bytes that a reader claims are counted already; the others go to the row
/// of the first span among zeros, allocators and program that covers them, or else to
/// `default_row`.
fn split(
    writer: &mut LedgerWriter<'_>,
    run: AddressRange,
    [allocators, zeros, program]: [&Spans; 3],
    default_row: RowRef,
) {
    let mut at = run.start;
    while at < run.end {
        let allocator = allocators.holder_at(at);
        let candidates = [zeros.holder_at(at), allocator, program.holder_at(at)];
        let end = candidates.iter().fold(run.end, |end, candidate| end.min(candidate.end));
        if allocator.holder != Some(Holder::Claimed) {
            let row = candidates.iter().find_map(|candidate| match candidate.holder {
                Some(Holder::Row(row)) => Some(row),
                Some(Holder::Claimed) | None => None,
            });
            writer.add(row.unwrap_or(default_row), AddressRange::new(at, end));
        }
        at = end;
    }
}

/// Adds the bytes of a claim to their rows, and to the named holders on these.
fn add_claim(
    tally: &mut Tally,
    resident: &ResidentBytes,
    rows: ClassRows<'_>,
    mut holders: Option<&mut NamedHolders>,
) {
    for slot in Slot::all() {
        let bytes = resident.of(Class::Refined(slot));
        if bytes == 0 {
            continue;
        }
        let (row, holder) = rows.of_slot(slot);
        tally.add(row, bytes);
        if let (Some(holder), Some(holders)) = (holder, &mut holders) {
            holders.add(row, holder, bytes);
        }
    }
    let row_of = |class: fn(&BlockRows) -> RowRef| rows.rows.map_or(&ANONYMOUS, class);
    for (bytes, row) in [
        (resident.of(Class::Live), row_of(|rows| rows.live)),
        (resident.of(Class::Header), row_of(|rows| rows.header)),
        (resident.of(Class::Metadata), row_of(|rows| rows.metadata)),
        (resident.of(Class::Cached), row_of(|rows| rows.cached)),
        (resident.of(Class::Mmapped), row_of(|rows| rows.mapped)),
        (resident.of(Class::Foreign), &ANONYMOUS),
        (resident.of(Class::Unread), row_of(|rows| rows.unread)),
        (resident.releasable, row_of(|rows| rows.releasable)),
        (resident.kept, row_of(|rows| rows.kept)),
        (resident.pinned, row_of(|rows| rows.pinned)),
        (resident.zero, &ZERO),
    ] {
        tally.add(row, bytes);
    }
}

/// Returns every file with an executable mapping, sorted: programs and libraries.
fn program_files(smaps_entries: &[SmapsEntry]) -> Vec<FileId> {
    let mappings = smaps_entries.iter().map(|entry| &entry.mapping);
    let executable = mappings.filter(|mapping| mapping.permissions.execute && mapping.has_file());
    let mut files: Vec<FileId> = executable.map(Mapping::file_id).collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// Returns the row of a page that no finer claim can cover.
fn mapping_row(entry: &SmapsEntry, is_anonymous: bool, programs: &[FileId]) -> RowRef {
    let mapping = &entry.mapping;
    if is_anonymous {
        // No known kernel has anonymous pages in shared mappings: such a page is unexplained.
        return &ANONYMOUS;
    }
    if !mapping.has_file() || mapping.name.starts_with("/dev/") {
        return &DEVICE;
    }
    let is_program = programs.binary_search(&mapping.file_id()).is_ok();
    if is_program { &PROGRAM_TEXT } else { &FILE }
}

/// Moves bytes given up with MADV_FREE to their row. The kernel counts them by mapping, not by
/// page: they are taken from unclaimed memory, then zeros, then free memory of allocators, then
/// memory in use; on the page map, from the lowest addresses of those rows.
fn move_lazy_free(
    writer: &mut LedgerWriter<'_>,
    entry: &SmapsEntry,
    readings: &[Reading],
    claims: &mut Overlaps<'_, Claim<'_>>,
    ledger: &mut Ledger,
) {
    let mapped = readings.iter().filter_map(|reading| Some(reading.rows?.mapped));
    let rows = [&ANONYMOUS as RowRef, &ZERO, &PROGRAM_DATA, &STACK_BELOW_SP].into_iter().chain(mapped);
    let move_bytes = |writer: &mut LedgerWriter<'_>, row, taken| {
        writer.tally.add(&LAZY_FREE, taken);
        if let Some(page_map) = &mut writer.page_map {
            page_map.move_bytes(row, &LAZY_FREE, taken);
        }
    };
    let mut remaining_bytes = entry.counts.lazy_free_bytes;
    for row in rows {
        let taken = writer.tally.take(row, remaining_bytes);
        move_bytes(writer, row, taken);
        remaining_bytes -= taken;
    }
    // A claim may span several mappings.
    let overlapping = claims.overlapping(entry.mapping.range());
    let candidates = if remaining_bytes > 0 { lazy_free_candidates(overlapping) } else { Vec::new() };
    for LazyFreeCandidate { row, bytes, .. } in candidates {
        let taken = ledger.tally.take(row, bytes.min(remaining_bytes));
        move_bytes(writer, row, taken);
        remaining_bytes -= taken;
    }
    if remaining_bytes > 0 {
        let place = format!("{:#x}-{:#x}", entry.mapping.start, entry.mapping.end);
        let text = "pages freed with MADV_FREE are within an allocator's heap and counted on its rows";
        ledger.caveats.push(Caveat::new("lazyfree_in_heap", place, Some(remaining_bytes), text));
    }
}

/// Returns the resident parts of private anonymous memory that no reader claimed. They include
/// blocks with their own mappings, because no reader walked those.
///
/// # Errors
/// As [`assemble`].
pub fn unclaimed_runs(inputs: &Inputs<'_>) -> Result<RangeSet> {
    let palette = SlotTable::default();
    let spans = Layers::new(inputs, &palette)?.spans;
    let is_searched =
        |entry: &&SmapsEntry| entry.mapping.is_private_anonymous() && entry.mapping.permissions.read;
    let mut runs: Vec<AddressRange> = Vec::new();
    for entry in inputs.smaps_entries.iter().filter(is_searched) {
        let resident = inputs.residency.runs_in(entry.mapping.start..entry.mapping.end);
        for run in resident.filter(|run| run.is_anonymous) {
            let mut at = run.start;
            while at < run.end {
                let HolderUntil { holder, end } = spans.holder_at(at);
                let end = end.min(run.end);
                if holder != Some(Holder::Claimed) {
                    // Claims may start within a page, whose zeros their readers find.
                    let (from, to) = (at.next_multiple_of(PAGE_BYTES), end - end % PAGE_BYTES);
                    runs.push(AddressRange::new(from, to));
                }
                at = end;
            }
        }
    }
    Ok(runs.into_iter().collect())
}

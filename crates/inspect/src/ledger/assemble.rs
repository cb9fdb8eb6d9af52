//! Puts every resident byte on one row.
//!
//! Claims of allocators are finer than what the kernel's view alone tells, and come first; two of
//! them on one byte are refused. What nobody claims falls to the row of its mapping, and in private
//! anonymous memory to `anonymous`: unknown stays visible.

use std::ops::Range;

use super::accumulator::{CellSums, Class, Held, Slot};
use super::named;
use super::page_map::{Painter, Plan};
use super::range::PAGE_BYTES;
use super::rows::{Holders, Id, Tally};
use crate::alloc::{RangeClaim, Reading};
use crate::caveat::Caveat;
use crate::error::{Error, Result};
use crate::facts::PageMap;
use crate::layout::glibc as layout;
use crate::map::Mapping;
use crate::pages::Residency;
use crate::runtime::refine::{Finder, Refinements};
use crate::runtime::{self, Palette};
use crate::smaps::SmapsEntry;
use crate::stacks::Stack;

/// The bytes below the stack pointer that a function may use without moving it (System V ABI).
const RED_ZONE_BYTES: u64 = 128;

/// Everything that is known when the ledger is made.
pub struct Inputs<'a> {
    /// The kernel's view of each mapping.
    pub spaces: &'a [SmapsEntry],
    /// The resident pages.
    pub residency: &'a Residency,
    /// What allocators claim.
    pub readings: &'a [Reading],
    /// What language runtimes claim.
    pub runtimes: &'a [runtime::Reading],
    /// What language runtimes say of allocators' chunks.
    pub refinements: &'a Refinements,
    /// Thread stacks, in address order.
    pub stacks: &'a [Stack],
    /// Where programs' bss lies, in address order.
    pub bss: &'a [Range<u64>],
    /// All-zero resident pages of unclaimed private anonymous memory: runs, in address order.
    pub zero_runs: &'a [(u64, u64)],
    /// What a picture of the address space shows, where one is to be made.
    pub page_map: Option<&'a Plan>,
    /// Whether a mapping's file pages are shared memory.
    pub is_shared_memory: &'a dyn Fn(&Mapping) -> bool,
}

/// Who stands on a range, before zeros are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Folded by an allocator's reader; counted already.
    Claimed,
    /// One row.
    Row(Id),
}

struct Span {
    range: Range<u64>,
    holder: Holder,
}

/// A list of spans, sorted and without overlap, asked front to back or anywhere.
struct Spans(Vec<Span>);

impl Spans {
    /// Who stands on `at`, and up to where that answer holds.
    fn at(&self, at: u64) -> (Option<Holder>, u64) {
        let index = self.0.partition_point(|span| span.range.end <= at);
        match self.0.get(index) {
            Some(span) if span.range.start <= at => (Some(span.holder), span.range.end),
            Some(span) => (None, span.range.start),
            None => (None, u64::MAX),
        }
    }
}

/// The ledger.
pub struct Ledger {
    /// Bytes by row.
    pub tally: Tally,
    /// Those of holders with names of their own.
    pub holders: Holders,
    /// All zero pages' bytes in claimed ranges and outside: what the zero_pages remedy would free.
    pub zero_bytes: u64,
    /// The picture of the address space, where one was asked for.
    pub page_map: Option<PageMap>,
    /// What did not fit.
    pub caveats: Vec<Caveat>,
}

/// The sums of one mapping, and its part of the picture.
struct LedgerWriter<'a> {
    tally: Tally,
    painter: Option<&'a mut Painter>,
}

impl LedgerWriter<'_> {
    fn add(&mut self, id: Id, range: Range<u64>) {
        self.tally.add(id, range.end - range.start);
        if let Some(painter) = &mut self.painter {
            painter.add(id, range);
        }
    }
}

/// What refined classes of one reader's claims stand for.
#[derive(Clone, Copy)]
struct Meaning<'a>(Option<&'a Palette>);

impl<'a> Meaning<'a> {
    /// The row of a slot, and who holds it. A slot without a meaning is unknown, and stays visible.
    fn of(self, slot: Slot) -> (Id, Option<&'a str>) {
        self.0.and_then(|palette| palette.get(slot)).unwrap_or((Id::Anonymous, None))
    }
}

impl<'a> Inputs<'a> {
    /// All claims on ranges, with what their refined classes stand for.
    fn claims(&self) -> impl Iterator<Item = (&'a RangeClaim, Meaning<'a>)> {
        let refined = self.refined();
        let allocators = self.readings.iter().flat_map(|reading| &reading.claims);
        let runtimes = self
            .runtimes
            .iter()
            .flat_map(|reading| reading.claims.iter().map(|claim| (claim, Meaning(Some(&reading.palette)))));
        allocators.map(move |claim| (claim, refined)).chain(runtimes)
    }

    /// What the slots of refined chunks stand for.
    fn refined(&self) -> Meaning<'a> {
        Meaning(self.runtimes.iter().find(|reading| reading.refines).map(|reading| &reading.palette))
    }
}

/// Makes the ledger. Fails with [`Error::Overlap`] where two readers claim one byte.
pub fn assemble(inputs: &Inputs<'_>) -> Result<Ledger> {
    let claimed = claimed_spans(inputs.readings, inputs.runtimes, inputs.refined(), inputs.refinements)?;
    let program = program_spans(inputs);
    let zeros = Spans(
        inputs
            .zero_runs
            .iter()
            .map(|&(start, end)| Span { range: start..end, holder: Holder::Row(Id::Zero) })
            .collect(),
    );
    let mut ledger = Ledger {
        tally: Tally::default(),
        holders: Holders::default(),
        zero_bytes: 0,
        page_map: None,
        caveats: Vec::new(),
    };
    for (claim, meaning) in inputs.claims() {
        add_claim(&mut ledger.tally, &claim.sums.held, meaning, Some(&mut ledger.holders));
    }
    named::add(inputs, &mut ledger.holders);
    let mut painter = inputs.page_map.map(Painter::new);
    let mut cells = claimed_cells(inputs).into_iter().peekable();
    let none = Spans(Vec::new());
    let programs = program_files(inputs.spaces);
    for (index, space) in inputs.spaces.iter().enumerate() {
        if let (Some(painter), Some(plan)) = (&mut painter, inputs.page_map) {
            painter.open(plan.lists(index), space);
            while let Some((cell, meaning)) = cells.next_if(|(cell, _)| cell.start < space.mapping.end) {
                let mut tally = Tally::default();
                add_claim(&mut tally, &cell.held, meaning, None);
                painter.add_tally(cell.start, &tally);
            }
        }
        let mut writer = LedgerWriter { tally: Tally::default(), painter: painter.as_mut() };
        for run in inputs.residency.runs_in(space.mapping.start..space.mapping.end) {
            if run.anonymous && space.mapping.is_private_anonymous() {
                split(&mut writer, run.start..run.end, [&claimed, &zeros, &program], Id::Anonymous);
            } else if run.anonymous && space.mapping.has_file() {
                // brk can start on the last page of a program's data, and a runtime's heap in the file it was
                // saved in.
                split(&mut writer, run.start..run.end, [&claimed, &none, &none], Id::ProgramData);
            } else {
                writer.add(mapping_row(inputs, space, run.anonymous, &programs), run.start..run.end);
            }
        }
        take_lazy_free(&mut writer, space, &mut ledger.caveats);
        ledger.tally.add_all(&writer.tally);
        if let Some(painter) = &mut painter {
            painter.close();
        }
    }
    ledger.zero_bytes = ledger.tally.of(Id::Zero);
    ledger.page_map = painter.map(Painter::finish);
    Ok(ledger)
}

/// The cells of what is claimed, in address order; none overlaps a mapping's start.
fn claimed_cells<'a>(inputs: &Inputs<'a>) -> Vec<(&'a CellSums, Meaning<'a>)> {
    let mut cells: Vec<_> = inputs
        .claims()
        .flat_map(|(claim, meaning)| claim.sums.cells.iter().map(move |cell| (cell, meaning)))
        .collect();
    cells.sort_by_key(|(cell, _)| cell.start);
    cells
}

fn claimed_spans(
    readings: &[Reading],
    runtimes: &[runtime::Reading],
    meaning: Meaning<'_>,
    refinements: &Refinements,
) -> Result<Spans> {
    let claims = readings.iter().flat_map(|reading| &reading.claims);
    let claims = claims.chain(runtimes.iter().flat_map(|reading| &reading.claims));
    let mut spans: Vec<Span> =
        claims.map(|claim| Span { range: claim.start..claim.end, holder: Holder::Claimed }).collect();
    let mut finder = refinements.finder();
    for &(start, end) in readings.iter().flat_map(|reading| &reading.mapped_chunks) {
        let mut at = start;
        let mut push = |until: u64, id| {
            spans.push(Span { range: at..until, holder: Holder::Row(id) });
            at = until;
        };
        if let Some((payload, refined)) = refined_mapped(&mut finder, start, end) {
            push(payload.start, Id::GlibcMmapped);
            push(payload.end, meaning.of(refined).0);
        }
        push(end, Id::GlibcMmapped);
    }
    spans.retain(|span| !span.range.is_empty());
    spans.sort_by_key(|span| span.range.start);
    for pair in spans.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            return Err(Error::Overlap {
                address: pair[1].range.start,
                first: format!("a claim on {:#x}-{:#x}", pair[0].range.start, pair[0].range.end),
                second: format!("a claim on {:#x}-{:#x}", pair[1].range.start, pair[1].range.end),
            });
        }
    }
    Ok(Spans(spans))
}

/// What a runtime says of a chunk that is a mapping of its own: which part of it, and what that is.
fn refined_mapped(finder: &mut Finder<'_>, start: u64, end: u64) -> Option<(Range<u64>, Slot)> {
    let payload = start.checked_add(layout::CHUNK_HEADER_BYTES)?;
    let refined = finder.find(start, end.checked_sub(payload)?)?;
    Some((payload..payload + refined.bytes, refined.slot))
}

/// Stacks above and below their pointers, and bss.
fn program_spans(inputs: &Inputs<'_>) -> Spans {
    let mut spans = Vec::new();
    for stack in inputs.stacks {
        let used = stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).clamp(stack.low, stack.high);
        spans.push(Span { range: stack.low..used, holder: Holder::Row(Id::StackBelowSp) });
        spans.push(Span { range: used..stack.high, holder: Holder::Row(Id::ProgramStack) });
    }
    spans.extend(
        inputs.bss.iter().map(|bss| Span { range: bss.clone(), holder: Holder::Row(Id::ProgramData) }),
    );
    spans.retain(|span| !span.range.is_empty());
    spans.sort_by_key(|span| span.range.start);
    // A stack may have been carved out of a library's bss: the first to start keeps the bytes.
    let mut end = 0;
    for span in &mut spans {
        span.range.start = span.range.start.max(end);
        end = end.max(span.range.end);
    }
    spans.retain(|span| !span.range.is_empty());
    Spans(spans)
}

/// Divides a resident run among allocators, zeros and program, in this order of who explains a byte
/// better; what nobody claims goes to `rest`.
fn split(
    writer: &mut LedgerWriter<'_>,
    run: Range<u64>,
    [allocators, zeros, program]: [&Spans; 3],
    rest: Id,
) {
    let mut at = run.start;
    while at < run.end {
        let (allocator, allocator_until) = allocators.at(at);
        let (zero, zero_until) = zeros.at(at);
        let (program, program_until) = program.at(at);
        let until = run.end.min(allocator_until).min(zero_until).min(program_until);
        if allocator != Some(Holder::Claimed) {
            let id = [zero, allocator, program].into_iter().flatten().find_map(|holder| match holder {
                Holder::Row(id) => Some(id),
                Holder::Claimed => None,
            });
            writer.add(id.unwrap_or(rest), at..until);
        }
        at = until;
    }
}

fn add_claim(tally: &mut Tally, held: &Held, meaning: Meaning<'_>, mut holders: Option<&mut Holders>) {
    for slot in Slot::all() {
        let bytes = held.of(Class::Refined(slot));
        if bytes == 0 {
            continue;
        }
        let (id, holder) = meaning.of(slot);
        tally.add(id, bytes);
        if let (Some(holder), Some(holders)) = (holder, &mut holders) {
            holders.add(id, holder, bytes);
        }
    }
    for (class, id) in [
        (Class::Live, Id::GlibcLive),
        (Class::Header, Id::GlibcHeader),
        (Class::Metadata, Id::GlibcMetadata),
        (Class::Cached, Id::GlibcTcache),
        (Class::Mmapped, Id::GlibcMmapped),
        (Class::Foreign, Id::Anonymous),
        (Class::Unread, Id::GlibcUnread),
    ] {
        tally.add(id, held.of(class));
    }
    tally.add(Id::GlibcFreeTrim, held.trim);
    tally.add(Id::GlibcFreeKept, held.kept);
    tally.add(Id::GlibcFreePinned, held.pinned);
    tally.add(Id::Zero, held.zero);
}

/// Device and inode of every file of which some mapping is executable: programs and libraries.
fn program_files(spaces: &[SmapsEntry]) -> Vec<((u32, u32), u64)> {
    let executable = spaces.iter().map(|s| &s.mapping).filter(|m| m.permissions.execute && m.has_file());
    let mut files: Vec<_> = executable.map(|m| (m.device, m.inode)).collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// The row of a page that no finer claim can stand on.
fn mapping_row(
    inputs: &Inputs<'_>,
    space: &SmapsEntry,
    anonymous: bool,
    programs: &[((u32, u32), u64)],
) -> Id {
    let mapping = &space.mapping;
    if anonymous {
        // Anonymous pages of shared mappings: none on any known kernel.
        return Id::Anonymous;
    }
    if (inputs.is_shared_memory)(mapping) {
        return Id::Shmem;
    }
    if !mapping.has_file() || mapping.name.starts_with("/dev/") {
        return Id::Device;
    }
    let is_program = programs.binary_search(&(mapping.device, mapping.inode)).is_ok();
    if is_program { Id::ProgramText } else { Id::File }
}

/// The kernel counts pages given up with MADV_FREE by mapping, not by page: they are taken from what
/// nobody claims, then from zeros. In the picture they stand on the mapping's first bytes of those rows.
fn take_lazy_free(writer: &mut LedgerWriter<'_>, space: &SmapsEntry, caveats: &mut Vec<Caveat>) {
    let wanted = space.counts.lazy_free_bytes;
    let mut rest = wanted;
    for id in [Id::Anonymous, Id::Zero, Id::ProgramData, Id::StackBelowSp, Id::GlibcMmapped] {
        let taken = writer.tally.take(id, rest);
        writer.tally.add(Id::LazyFree, taken);
        if let Some(painter) = &mut writer.painter {
            painter.turn(id, Id::LazyFree, taken);
        }
        rest -= taken;
    }
    if rest > 0 {
        let place = format!("{:#x}-{:#x}", space.mapping.start, space.mapping.end);
        let text = "pages given up with MADV_FREE lie within an allocator's heap and stand on its rows";
        caveats.push(Caveat::new("lazyfree_in_heap", place, Some(rest), text));
    }
}

/// The parts of private anonymous memory that no reader claimed: resident runs, in address order.
pub fn unclaimed_runs(
    spaces: &[SmapsEntry],
    residency: &Residency,
    readings: &[Reading],
    runtimes: &[runtime::Reading],
) -> Result<Vec<(u64, u64)>> {
    let spans = claimed_spans(readings, runtimes, Meaning(None), &Refinements::default())?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for space in
        spaces.iter().filter(|space| space.mapping.is_private_anonymous() && space.mapping.permissions.read)
    {
        for run in residency.runs_in(space.mapping.start..space.mapping.end).filter(|run| run.anonymous) {
            let mut at = run.start;
            while at < run.end {
                let (holder, until) = spans.at(at);
                let until = until.min(run.end);
                if holder != Some(Holder::Claimed) {
                    // Claims may start within a page: their zero pages are theirs to find.
                    let (from, to) = (at.next_multiple_of(PAGE_BYTES), until - until % PAGE_BYTES);
                    match runs.last_mut() {
                        Some(last) if last.1 == from => last.1 = to.max(last.1),
                        _ if from < to => runs.push((from, to)),
                        _ => {}
                    }
                }
                at = until;
            }
        }
    }
    Ok(runs)
}

//! The memory of SBCL's objects, and claims on it.
//!
//! Dynamic space is counted by the collector's pages: bytes in use by generation, the unused rest
//! of pages, free pages that are resident. The other spaces, threads' own stacks and tables are
//! claimed completely. In file mappings (an uncompressed core is mapped) only the pages that were
//! written to are claimed; the others belong to the file. Memory from malloc (the page table) stays
//! with malloc.

use super::facts::Sbcl;
use super::heap::DynamicSpace;
use super::locate::Program;
use super::rows;
use super::threads::{Region, Threads};
use crate::sbcl::layout::{GC_PAGE_BYTES, GENERATIONS, Layout, PSEUDO_STATIC};
use strandline_claims::accumulator::{Accumulator, Class, Slot, Sums};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::caveat::Caveat;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::{PAGE_BYTES, RangePages, page_up};
use strandline_claims::rows::RowRef;
use strandline_claims::runtime::{Context, Reading};
use strandline_process::map::Mapping;
use strandline_process::memory::Memory;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::stacks;

/// Size and alignment of static space, and size of the space of alien linkage
/// (`alien-linkage-space-size` in generic/parms.lisp).
const STATIC_BYTES: u64 = 1 << 20;
/// Bytes that `extra_thread_data` (thread.h) behind thread-local storage may take.
const EXTRA_THREAD_BYTES: u64 = 4096;
/// Limit on the binary logarithm of the bytes of the card table; a larger table is not claimed.
const MAX_CARD_BITS: u64 = 40;
/// Limit on the bytes of a space besides dynamic space; a larger one is left out.
const MAX_SPACE_BYTES: u64 = 4 << 30;

/// What a space holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// NIL, T and what the runtime must find at known addresses; all of it is a root.
    Static,
    /// Symbols, layouts, fdefns, each at a fixed address.
    Fixed,
    /// Compiled code.
    Text,
    /// Constants without pointers to other spaces.
    ReadOnly,
    /// Objects that never move or die; all of it is a root.
    Permanent,
}

/// A space besides dynamic space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What it holds.
    pub kind: SpaceKind,
    /// First byte.
    pub start: u64,
    /// End of the part in use.
    pub end: u64,
}

impl SpaceKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Fixed => "immobile_fixed",
            Self::Text => "immobile_text",
            Self::ReadOnly => "read_only",
            Self::Permanent => "permanent",
        }
    }
}

/// The spaces of a program besides dynamic space.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Spaces {
    /// By address, without overlap.
    pub list: Vec<Space>,
    /// A space that is left out because it overlaps a lower one, or has an impossible place; `None`
    /// if no space is left out.
    pub left_out: Option<SpaceKind>,
}

/// Finds the spaces of `program` besides dynamic space.
pub fn spaces(memory: &dyn Memory, program: &Program) -> Spaces {
    let value = |name: &str| program.value(memory, name);
    let mut spaces = Vec::new();
    let mut left_out = None;
    let mut add_space = |kind, start: Option<u64>, end: Option<u64>| {
        // Objects are aligned to 16: the rest of a last unit holds none. A space that is empty, or
        // that the release does not have, has no start, no end, or an end below its start.
        let Some((start, end)) = start.zip(end.map(|end| end & !15)) else { return };
        if start == 0 || start >= end {
            return;
        }
        // An alignment of 8 is enough: `walk_space` begins at the next multiple of 16.
        if end - start <= MAX_SPACE_BYTES && start.is_multiple_of(8) {
            spaces.push(Space { kind, start, end });
        } else {
            left_out = Some(kind);
        }
    };
    let last_static_byte = value("static_space_free_pointer").and_then(|end| end.checked_sub(1));
    let start = value("STATIC_SPACE_START").or(last_static_byte.map(|last| last & !(STATIC_BYTES - 1)));
    add_space(SpaceKind::Static, start, start.and_then(|start| start.checked_add(STATIC_BYTES)));
    add_space(SpaceKind::Fixed, value("FIXEDOBJ_SPACE_START"), value("fixedobj_free_pointer"));
    let text = value("TEXT_SPACE_START").or_else(|| value("VARYOBJ_SPACE_START"));
    let text_end = value("text_space_highwatermark").or_else(|| value("varyobj_free_pointer"));
    add_space(SpaceKind::Text, text, text_end);
    add_space(SpaceKind::ReadOnly, value("READ_ONLY_SPACE_START"), value("read_only_space_free_pointer"));
    let permanent = program.address("permgen_bounds").and_then(|at| memory.read_word(at).ok());
    add_space(SpaceKind::Permanent, permanent, value("permgen_space_free_pointer"));
    spaces.sort_by_key(|space| space.start);
    let mut previous_end = 0;
    spaces.retain(|space| {
        let is_apart = space.start >= previous_end;
        if is_apart {
            previous_end = space.end;
        } else {
            left_out = Some(space.kind);
        }
        is_apart
    });
    Spaces { list: spaces, left_out }
}

/// A range that is claimed whole.
pub struct ClaimedRange {
    /// Its addresses.
    pub range: AddressRange,
    /// The row of its bytes.
    pub row: RowRef,
}

impl ClaimedRange {
    fn new(start: u64, end: u64, row: RowRef) -> Self {
        Self { range: AddressRange::new(start, end), row }
    }
}

/// The ranges of SBCL besides dynamic space: spaces, threads' own memory, tables.
pub fn claimed_ranges(
    context: &Context<'_>,
    program: &Program,
    spaces: &[Space],
    threads: &Threads,
) -> Vec<ClaimedRange> {
    let mut ranges = Vec::new();
    for space in spaces {
        let row = match space.kind {
            SpaceKind::Static | SpaceKind::ReadOnly | SpaceKind::Permanent => &rows::STATIC,
            SpaceKind::Fixed => &rows::IMMOBILE,
            SpaceKind::Text => &rows::CODE,
        };
        ranges.push(ClaimedRange::new(space.start, page_up(space.end), row));
    }
    let stacks = stacks::stacks(context.threads, context.memory, context.space);
    let stacks: RangeSet = stacks.iter().map(|stack| (stack.low, stack.high)).collect();
    for thread in &threads.threads {
        let AddressRange { start, end } = thread.control;
        // The kernel's stack, and stacks that glibc knows, have their own rows.
        let is_known = stacks.overlaps(thread.control)
            || context.space.find(start).is_none_or(|mapping| mapping.name.starts_with("[stack"));
        if !is_known {
            ranges.push(ClaimedRange::new(start, end, &rows::THREAD));
        }
        let end = thread.locals.end.saturating_add(EXTRA_THREAD_BYTES);
        let end = context.space.find(thread.address).map_or(end, |mapping| end.min(mapping.end));
        ranges.push(ClaimedRange::new(thread.bindings.start, page_up(end), &rows::THREAD));
    }
    add_tables(context, program, &mut ranges);
    without_overlap(context, ranges)
}

/// Adds the tables that the runtime took from the kernel. A table from malloc does not start on a
/// page boundary, and stays with malloc.
fn add_tables(context: &Context<'_>, program: &Program, ranges: &mut Vec<ClaimedRange>) {
    let value = |name: &str| program.value(context.memory, name);
    let card_bytes =
        value("gc_card_table_nbits").filter(|&bits| bits < MAX_CARD_BITS).map(|bits| 1u64 << bits);
    let linkage = value("ALIEN_LINKAGE_SPACE_START").or_else(|| value("ALIEN_LINKAGE_TABLE_SPACE_START"));
    for (start, bytes) in [(value("gc_card_mark"), card_bytes), (linkage, Some(STATIC_BYTES))] {
        let (Some(start), Some(bytes)) = (start, bytes) else { continue };
        if let Some(end) = start.checked_add(bytes).filter(|_| start != 0 && start.is_multiple_of(PAGE_BYTES))
        {
            ranges.push(ClaimedRange::new(start, end, &rows::TABLES));
        }
    }
}

/// Sorts the ranges and leaves out those that overlap an earlier one, or are in memory that cannot
/// be the runtime's. That includes ranges that do not start on a page, as the runtime takes whole
/// pages from the kernel: others may use the first one.
fn without_overlap(context: &Context<'_>, mut ranges: Vec<ClaimedRange>) -> Vec<ClaimedRange> {
    ranges.retain(|claimed| !claimed.range.is_empty() && claimed.range.start.is_multiple_of(PAGE_BYTES));
    ranges.sort_by_key(|claimed| (claimed.range.start, claimed.range.end));
    let foreign_ranges = foreign_memory(context);
    let mut previous_end = 0;
    ranges.retain(|claimed| {
        let is_own = claimed.range.start >= previous_end && !foreign_ranges.overlaps(claimed.range);
        if is_own {
            previous_end = claimed.range.end;
        }
        is_own
    });
    ranges
}

/// The mappings that have other owners: the heap of malloc and the main thread's stack.
pub fn foreign_memory(context: &Context<'_>) -> RangeSet {
    let mappings = context.space.mappings().iter();
    let foreign_ranges =
        mappings.filter(|mapping| mapping.name == "[heap]" || mapping.name.starts_with("[stack"));
    foreign_ranges.map(Mapping::range).collect()
}

/// The slots of dynamic space's rows.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Bytes in use that are not known to be dead, by generation.
    pub live: Vec<Slot>,
    /// Unreachable bytes, by generation; empty if objects are not traced.
    pub dead: Vec<Slot>,
    /// Unused rest of pages.
    pub waste: Slot,
    /// Free pages.
    pub free: Slot,
    /// Bytes in use that are unknown: those that could not be walked, or of no known generation.
    pub unread: Slot,
}

impl Slots {
    /// Adds slots to the palette of `reading`; bytes in use are on `row_in_use`. `None`, with a
    /// caveat, if the palette has too few slots.
    pub fn new(reading: &mut Reading, row_in_use: RowRef) -> Option<Self> {
        let slots = Self::in_palette(&mut reading.palette, row_in_use);
        if slots.is_none() {
            let text = "too few slots for claims are left: SBCL's dynamic space is not claimed";
            reading.caveats.push(Caveat::new("slots_taken", &reading.facts.found_by, None, text));
        }
        slots
    }

    fn in_palette(palette: &mut SlotTable, row_in_use: RowRef) -> Option<Self> {
        let mut by_generation = |row: RowRef| -> Option<Vec<Slot>> {
            (0..GENERATIONS).map(|number| palette.add(row, Some(&holder(number)))).collect()
        };
        let live = by_generation(row_in_use)?;
        let dead = if row_in_use == &rows::LIVE { by_generation(&rows::DEAD)? } else { Vec::new() };
        let (waste, free) = (palette.add(&rows::WASTE, None)?, palette.add(&rows::FREE, None)?);
        let unread = palette.add(&rows::ALLOCATED, None)?;
        Some(Self { live, dead, waste, free, unread })
    }

    /// Fills in the resident bytes of dynamic space without objects.
    pub fn fill_in_unused(&self, sums: &Sums, figures: &mut Sbcl) {
        figures.free_resident_bytes = Some(sums.resident.of(Class::Refined(self.free)));
        figures.waste_resident_bytes = Some(sums.resident.of(Class::Refined(self.waste)));
    }
}

/// The name of a generation in rows.
pub fn holder(number: usize) -> String {
    if number == PSEUDO_STATIC { "pseudo-static".to_owned() } else { format!("generation {number}") }
}

/// End of the allocated part of the open region on the page at `start`, within the page; `None` if
/// no open region is on it.
fn allocated_end(regions: &[Region], start: u64) -> Option<u64> {
    let index = regions.partition_point(|region| region.end <= start);
    let region = regions.get(index).filter(|region| region.start < start + GC_PAGE_BYTES)?;
    Some(region.allocated_end.clamp(start, start + GC_PAGE_BYTES))
}

/// End of the objects on page `index`: of its used part, or of what an open region on it has
/// allocated.
pub fn used_end(heap: &DynamicSpace, regions: &[Region], index: usize) -> u64 {
    let start = heap.address_of(index);
    let used_bytes = heap.pages.get(index).map_or(0, |page| u64::from(page.used_bytes));
    allocated_end(regions, start).map_or(start + used_bytes, |end| end.max(start + used_bytes))
}

/// Claims dynamic space by page, because live and dead objects are not distinguished, and fills in
/// the resident bytes without objects. `None`, with a caveat and nothing claimed, if the palette
/// has too few slots.
pub fn claim_by_page(
    pages: &RangePages,
    heap: &DynamicSpace,
    regions: &[Region],
    layout: &Layout,
    figures: &mut Sbcl,
    reading: &mut Reading,
) -> Option<()> {
    let slots = Slots::new(reading, &rows::ALLOCATED)?;
    let end = heap.claim_end();
    let mut accumulator = Accumulator::new(heap.start, pages);
    for (index, page) in heap.pages.iter().enumerate() {
        let start = heap.address_of(index);
        let objects_end = used_end(heap, regions, index);
        let used_slot = slots.live.get(usize::from(page.generation)).copied().unwrap_or(slots.unread);
        accumulator.claim_to(objects_end, Class::Refined(used_slot));
        let unused_slot = if page.is_free(layout) && objects_end == start { slots.free } else { slots.waste };
        accumulator.claim_to(start + GC_PAGE_BYTES, Class::Refined(unused_slot));
    }
    accumulator.claim_to(end, Class::Refined(slots.free));
    let sums = accumulator.cut().finish(pages);
    slots.fill_in_unused(&sums, figures);
    reading.claims.push(RangeClaim { start: heap.start, end, sums });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words from address 0 on.
    struct Words([u64; 2]);

    impl Memory for Words {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            let source = bytes.get(address as usize..).unwrap_or_default();
            let count = source.len().min(buffer.len());
            buffer[..count].copy_from_slice(&source[..count]);
            count
        }
    }

    #[test]
    fn a_space_does_not_end_before_it_starts() {
        let symbols = [("READ_ONLY_SPACE_START", 0), ("read_only_space_free_pointer", 8)]
            .map(|(name, address)| (name, AddressRange::sized(address, 8)));
        let program = Program::with_symbols("/usr/bin/fabricated", "2.2.9", symbols);
        assert_eq!(spaces(&Words([0x1008, 0x1009]), &program), Spaces::default());
        let space = Space { kind: SpaceKind::ReadOnly, start: 0x1008, end: 0x1010 };
        assert_eq!(spaces(&Words([0x1008, 0x1011]), &program), Spaces { list: vec![space], left_out: None });
        let too_large = Spaces { list: Vec::new(), left_out: Some(SpaceKind::ReadOnly) };
        assert_eq!(spaces(&Words([0x1008, 0x1008 + 2 * MAX_SPACE_BYTES]), &program), too_large);
    }
}

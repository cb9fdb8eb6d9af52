//! glibc's malloc, read from outside without symbols or calls.
//!
//! `locate` finds the arenas, `parameters` the settings, `regions` and `pieces` the address ranges
//! of the arenas, `tcache` and `lists` the free chunks that look in use; `arenas` has every chunk
//! visited by `walk` and `segments`, `mmapped` finds those with their own mapping.

mod arenas;
mod bins;
mod chunk_set;
pub mod code;
mod excluded;
mod fastbins;
mod layout;
pub mod lists;
mod locate;
mod mapped_header;
mod mmapped;
mod objects;
mod parameters;
mod pieces;
mod regions;
mod release;
mod rows;
pub mod segments;
mod settings;
mod summary;
mod tcache;
pub mod walk;
pub mod walk_context;

use self::arenas::{Arenas, Walked};
use self::mmapped::MappedChunks;
use self::objects::Object;
use self::regions::ArenaRegion;
use self::segments::RegionTotals;
use self::summary::{SUM_DIFFERS, check_sums, facts, group_by_arena, trim_bytes};
use strandline_claims::accumulator::OutOfOrder;
use strandline_claims::allocator::{
    self, Argument, CallPlan, Context, FoundAllocator, Function, HazardCause, Layer, RangeClaim, Reading,
    Readings,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Remedy;
use strandline_claims::range::RangePages;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::refinements::Matches;
use strandline_claims::remedy::Spec;
use strandline_claims::units::{bytes, counted, thousands};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// Entry of glibc's malloc in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "glibc",
    title: "GNU libc's malloc",
    versions: "2.31 to 2.43, 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "glibc rounds up by 15 bytes at most, and to 24",
    remedies: &[
        CALL,
        Spec::next_start("trim_threshold", "glibc releases free memory at the end of its heap at once"),
        Spec::next_start("arena_max", "threads share two arenas"),
        Spec::next_start("jemalloc", "jemalloc instead of glibc's malloc"),
    ],
    not_read: "caches of threads that could not be stopped: their blocks count as in use",
    has_main_arena: true,
    // The reader itself recognises it by its structures.
    ..ReaderInfo::NONE
};

/// The call that `reclaim` makes.
const CALL: Spec = Spec::call("malloc_trim", "glibc", "glibc releases the whole free pages of its heaps");

/// Releases free pages. [`code`] finds malloc's own functions, without a prefix of their names.
const MALLOC_TRIM: Function = Function {
    name: "malloc_trim",
    sibling: None,
    argument: Argument::Number(0),
    stack_bytes: 16 << 10,
    own_prefixes: &[],
};

/// The reader of glibc's malloc.
pub static READER: allocator::Reader = allocator::Reader {
    layer: Layer::RestOfMappings,
    remedies: |view| settings::arena_max(view).into_iter().chain(settings::other_allocator(view)).collect(),
    // Nearly every process has one; a static one is recognised by structures that are read with
    // the heap.
    ..allocator::Reader::new(|_, _| Some(Box::new(Glibc)))
};

struct Glibc;

impl FoundAllocator for Glibc {
    /// It is searched for in every process.
    fn takes_long(&self) -> bool {
        false
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        read(context)
    }

    fn finish(&self, process: &Process, space: &AddressSpace, reading: &mut Reading) {
        let object = reading.call.as_ref().map(|trim| trim.object);
        reading.allocator.version = object.and_then(|object| release::release(process, space, object));
        settings::finish(process, reading);
        let zero_bytes = reading.releasable_bytes().saturating_sub(reading.releasable_row_bytes());
        reading
            .remedies
            .extend(reading.call.as_ref().map(|call| trim_remedy(process.pid(), call, zero_bytes)));
    }
}

/// Returns the remedy `malloc_trim`, which also releases `zero_bytes` in pages of zeros.
fn trim_remedy(pid: i32, call: &CallPlan, zero_bytes: u64) -> Remedy {
    let zeros_note = match zero_bytes.min(call.predicted_bytes) {
        0 => String::new(),
        zeros => format!("; {} of it is on the row kernel.zero", bytes(zeros)),
    };
    let cost = format!(
        "one call in one thread, which holds each arena's lock in turn; page faults when the heap grows again{zeros_note}"
    );
    // It is what `reclaim` does by itself.
    let how = format!("strandline reclaim {pid}");
    Remedy { how, ..call.remedy(pid, &cost) }
}

/// Reads every glibc of the process: most have one, `dlmopen` loads more.
pub fn read(context: &Context<'_>) -> Result<Readings, OutOfOrder> {
    let mut readings: Vec<Reading> = Vec::new();
    let objects = objects::find(context);
    let mut mapped_chunks = MappedChunks::default();
    let excluded = excluded::ranges(context);
    for object in &objects {
        readings.extend(read_object(context, object, &readings, &excluded, &mut mapped_chunks)?);
    }
    mapped_chunks.find(context, &excluded, &mut readings);
    let libc = objects.iter().find(|object| object.is_libc);
    let unread = libc.filter(|_| readings.is_empty()).and_then(|object| unread_heap(context, object));
    Ok((readings, unread.into_iter().collect()))
}

/// Returns a caveat if a heap on brk is resident but no arena that owns it was found.
fn unread_heap(context: &Context<'_>, object: &Object) -> Option<Caveat> {
    let heap = context.space.mappings().iter().find(|mapping| mapping.name == "[heap]")?;
    let claimed: RangeSet = context.claimed_ranges.iter().copied().collect();
    let bytes = claimed.gaps_in(heap.range()).map(|range| context.resident_bytes(range)).sum::<u64>();
    let text = format!("{}'s arenas were not found: damaged, or another allocator is in use", object.name);
    (bytes > 0).then(|| Caveat::new("heap_not_found", format!("{:#x}", heap.start), Some(bytes), text))
}

/// Reads the glibc in `object`, if there is one, outside the memory of `earlier_readings`.
fn read_object(
    context: &Context<'_>,
    object: &Object,
    earlier_readings: &[Reading],
    excluded: &RangeSet,
    mapped_chunks: &mut MappedChunks,
) -> Result<Option<Reading>, OutOfOrder> {
    let Some(main) = locate::main_arena(context, &object.data) else { return Ok(None) };
    // Without randomisation, brk starts on the last page of the program's own data.
    let is_private = |mapping: &Mapping| !mapping.permissions.shared && mapping.permissions.write;
    let may_be_brk = |address: u64| context.space.find(address).is_none_or(is_private);
    let parameters = parameters::find(context, &object.data, main.address, may_be_brk);
    let heap_max_bytes = parameters.map_or(layout::HEAP_MAX_BYTES, |parameters| parameters.heap_max_bytes());
    let arenas = locate::arenas(context.whole_memory, &main, heap_max_bytes);
    let taken = earlier_readings.iter().flat_map(|reading| reading.ranges()).collect();
    let regions = regions::of_arenas(context, &arenas, parameters.as_ref(), &taken, excluded);

    let pages: Vec<RangePages> =
        regions.iter().map(|arena_region| context.pages(arena_region.region.range())).collect();
    let refined = Matches::new(context.keeps_blocks);
    let mut reading = Reading {
        rows: Some(&rows::BLOCKS),
        payload_offset_bytes: layout::SIZE_WORD_BYTES,
        refined,
        ..Reading::default()
    };
    let heap = Arenas { context, arenas: &arenas, regions: &regions, pages: &pages };
    let Walked { totals: mut walked, list_hazard } = heap.walk(parameters.as_ref(), &mut reading)?;
    add_walked(context, &mut reading, &regions, &mut walked, &pages);
    mapped_chunks.add(parameters.as_ref(), &walked);
    for totals in &mut walked {
        reading.refined.add(std::mem::take(&mut totals.counts.refined));
    }
    let by_arena = group_by_arena(&arenas, &regions, &walked);
    check_sums(&arenas, &by_arena, &mut reading);
    add_reserved_caveat(context, &mut reading);
    reading.allocator = facts(object, &arenas, &by_arena, parameters.as_ref());
    if parameters.is_none() {
        let text = "malloc's parameters (mp_) were not found: its chunks with their own mapping are unknown";
        reading.caveats.push(Caveat::new(mmapped::CHUNKS_DIFFER, object.name.clone(), None, text));
    }
    reading.remedies.extend(settings::trim_threshold(parameters.as_ref(), &walked));
    reading.call = Some(CallPlan {
        spec: &CALL,
        function: MALLOC_TRIM,
        object: object.address,
        locks: arenas.iter().map(|arena| arena.address).collect(),
        heaps: regions.iter().map(|arena_region| arena_region.region.range()).collect(),
        releases_all: false,
        fs_bases: Vec::new(),
        predicted_bytes: walked.iter().map(trim_bytes).sum(),
        due_milliseconds: 0,
        libc_code: Some(code::ranges),
        doubt: heap.call_hazard(&walked, list_hazard, &reading),
    });
    Ok(Some(reading))
}

/// Returns why a region was not walked completely; `is_late` if time ran out.
fn hazard_cause(context: &Context<'_>, arena_region: &ArenaRegion, is_late: bool) -> HazardCause {
    if !overlapping(context.swapped_mappings, arena_region.region.range()).is_empty() {
        HazardCause::Swapped
    } else if is_reserved(context, arena_region) {
        HazardCause::Reserved
    } else if is_late {
        HazardCause::TooSlow
    } else {
        HazardCause::Broken
    }
}

/// Code of the caveat for a heap on reserved huge pages.
const ON_RESERVED: &str = "heap_hugetlb";

/// If an arena has more memory than was found, adds a caveat for reserved huge pages, which no
/// reader reads.
fn add_reserved_caveat(context: &Context<'_>, reading: &mut Reading) {
    let Some(&AddressRange { start, .. }) = context.reserved_mappings.first() else { return };
    if !has_caveat(reading, SUM_DIFFERS) {
        return;
    }
    let bytes = context.reserved_mappings.iter().map(|range| range.len()).sum();
    let text = "the process has reserved huge pages (hugetlb), which are not RSS and were not read: malloc's figures count its memory there as in use";
    reading.caveats.push(Caveat::new(ON_RESERVED, format!("{start:#x}"), Some(bytes), text));
}

/// Whether part of a region is on reserved huge pages.
fn is_reserved(context: &Context<'_>, arena_region: &ArenaRegion) -> bool {
    !overlapping(context.reserved_mappings, arena_region.region.range()).is_empty()
}

/// Whether there is a caveat with this code.
fn has_caveat(reading: &Reading, code: &str) -> bool {
    reading.caveats.iter().any(|caveat| caveat.code == code)
}

/// Adds the claims of the walked regions to `reading`, with a caveat for each damaged one.
fn add_walked(
    context: &Context<'_>,
    reading: &mut Reading,
    regions: &[ArenaRegion],
    walked: &mut [RegionTotals],
    pages: &[RangePages],
) {
    for ((arena_region, totals), pages) in regions.iter().zip(walked).zip(pages) {
        let region = &arena_region.region;
        // The cells are many, and needed only in the claim.
        let cells = std::mem::take(&mut totals.sums.cells);
        let mut sums = totals.sums.clone();
        sums.cells = cells;
        reading.claims.push(RangeClaim { start: region.start, end: region.end, sums });
        reading.zero_runs.extend(pages.zero_runs());
        if totals.counts.damages > 0 {
            let at = totals.counts.first_damage.unwrap_or(region.start);
            let cause = hazard_cause(context, arena_region, totals.counts.is_late);
            let (code, explanation) = match cause {
                HazardCause::Swapped => {
                    ("heap_swapped", "parts of it are swapped out, and reading them would load them")
                }
                HazardCause::Reserved => (ON_RESERVED, "parts of it are on reserved huge pages"),
                HazardCause::TooSlow => ("heap_too_slow", "the time that a target may be stopped was over"),
                HazardCause::Broken | HazardCause::Outside | HazardCause::LittleMemory => {
                    ("heap_damaged", "damaged, or read during a change")
                }
            };
            let text = format!(
                "strandline could not walk the heap at {:#x}-{:#x} at {} ({explanation}), and skipped {} bytes",
                region.start,
                region.end,
                counted(totals.counts.damages, "place"),
                thousands(totals.counts.unread_bytes)
            );
            reading.is_inconsistent |= matches!(cause, HazardCause::Broken | HazardCause::Outside);
            reading.caveats.push(Caveat::new(
                code,
                format!("{at:#x}"),
                Some(totals.counts.unread_bytes),
                text,
            ));
        }
    }
}

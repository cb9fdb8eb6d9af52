//! glibc's malloc, read from outside without symbols or calls.
//!
//! `locate` finds the arenas, `regions` and `pieces` their address ranges, `tcache` and `lists` the
//! free chunks that look in use; `walk` and `segments` visit every chunk, `mmapped` finds those
//! with their own mapping.

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

use std::time::Instant;

use self::fastbins::{Candidate, CandidateBudget, LinkTargets, Membership};
use self::lists::{ChunkKind, LinkEncoding, List, Ranges, SpecialChunks};
use self::locate::{Arena, Parameters};
use self::mmapped::MappedChunks;
use self::objects::Object;
use self::regions::ArenaRegion;
use self::segments::{RegionParts, RegionTotals};
use self::summary::{SUM_DIFFERS, check_sums, facts, group_by_arena, trim_bytes};
use self::walk_context::{FastbinMode, Region, WalkContext};
use strandline_claims::accumulator::OutOfOrder;
use strandline_claims::allocator::{
    self, Argument, CallHazard, CallPlan, Context, FoundAllocator, Function, HazardCause, Layer, RangeClaim,
    Reading, Readings,
};
use strandline_claims::bits;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Remedy;
use strandline_claims::range::RangePages;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::refinements::Matches;
use strandline_claims::remedy::Spec;
use strandline_claims::units::{bytes, counted, thousands};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::page_cache::PageCache;
use strandline_process::procfs::Process;
use strandline_process::range::overlapping;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::target::budget;
use strandline_process::work::in_order;

/// Entry of glibc's malloc in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "glibc",
    title: "GNU libc's malloc",
    versions: "2.31 to 2.43, 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
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

/// Releases free pages. malloc's own functions are found from the functions around them.
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
    let Some(main) = locate::main_arena(context.whole_memory, &object.data) else { return Ok(None) };
    // Without randomisation, brk starts on the last page of the program's own data.
    let is_private = |mapping: &Mapping| !mapping.permissions.shared && mapping.permissions.write;
    let may_be_brk = |address: u64| context.space.find(address).is_none_or(is_private);
    let parameters = locate::parameters(context.whole_memory, &object.data, main.address, may_be_brk);
    let scales_heaps = |parameters: &Parameters| {
        parameters.layout.heaps_scale_with_hp_pagesize && parameters.huge_page_bytes != 0
    };
    let heap_max_bytes = parameters.filter(scales_heaps).map_or(layout::HEAP_MAX_BYTES, |parameters| {
        parameters.huge_page_bytes.saturating_mul(layout::HUGE_PAGES_PER_HEAP)
    });
    let arenas = locate::arenas(context.whole_memory, &main, heap_max_bytes);
    let taken = earlier_readings.iter().flat_map(|reading| reading.ranges()).collect();
    let regions = regions::of_arenas(context, &arenas, parameters.as_ref(), &taken, excluded);

    let pages: Vec<RangePages> =
        regions.iter().map(|arena_region| context.pages(arena_region.region.range())).collect();
    let refined = Matches::new(context.collects_blocks);
    let mut reading = Reading {
        rows: Some(&rows::BLOCKS),
        payload_offset_bytes: layout::SIZE_WORD_BYTES,
        refined,
        ..Reading::default()
    };
    let heap = Arenas { context, arenas: &arenas, regions: &regions, pages: &pages };
    let mut walked = heap.walk(parameters.as_ref(), &mut reading)?;
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
        threads: Vec::new(),
        predicted_bytes: walked.iter().map(trim_bytes).sum(),
        due_milliseconds: 0,
        libc_code: Some(code::ranges),
        doubt: heap.call_hazard(&walked, &reading),
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

/// Minimum memory for chunks that may be in fastbins, however little is available: enough for those
/// of a heap of 256 MiB.
const MIN_CANDIDATE_BYTES: u64 = 128 << 20;

/// Names a part of a walked region.
#[derive(Clone, Copy)]
struct PartIndex {
    region: usize,
    part: usize,
}

/// The ranges of all arenas, to be walked.
struct Arenas<'a> {
    context: &'a Context<'a>,
    arenas: &'a [Arena],
    regions: &'a [ArenaRegion],
    pages: &'a [RangePages],
}

impl Arenas<'_> {
    /// Walks every range and returns the totals of each.
    fn walk(
        &self,
        parameters: Option<&Parameters>,
        reading: &mut Reading,
    ) -> Result<Vec<RegionTotals>, OutOfOrder> {
        let (mut special_chunks, links) = self.thread_caches(parameters, reading);
        let targets: Vec<LinkTargets> =
            (0..self.arenas.len()).map(|index| self.link_targets(index)).collect();
        let first_deadline = self.first_deadline();
        let budget = self.candidate_budget();
        let guess_mode = |arena_region: &ArenaRegion| FastbinMode::Guess {
            targets: &targets[arena_region.arena],
            links,
            budget: &budget,
        };
        let contexts: Vec<WalkContext<'_>> = self.contexts(&special_chunks, guess_mode, first_deadline);
        let mut walked = segments::walk(&contexts, self.context.threads, self.context.progress);
        drop(contexts);
        if budget.is_used_up() {
            let text =
                "there is too little memory to note all chunks in fastbins: the others count as in use";
            reading.caveats.push(Caveat::new(LIST_BROKEN, "glibc, fastbins", None, text));
        }
        let parts_to_redo =
            self.separate_fastbin_members(&targets, &mut special_chunks, &walked, &budget, reading);
        let contexts: Vec<WalkContext<'_>> =
            self.contexts(&special_chunks, |_| FastbinMode::Known, self.context.deadline);
        let redone_parts = in_order(parts_to_redo.len(), self.context.threads, |item| {
            let PartIndex { region, part } = parts_to_redo[item];
            Some(segments::walk_again(contexts[region], &walked[region].parts[part]))
        });
        for (&PartIndex { region, part }, redone_part) in parts_to_redo.iter().zip(redone_parts) {
            if let Some(redone_part) = redone_part {
                walked[region].parts[part] = redone_part;
            }
        }
        for (parts, arena_region) in walked.iter().zip(self.regions) {
            reading.bytes_read += parts.bytes_read;
            if parts.unreadable_bytes > 0 {
                let place = format!("{:#x}-{:#x}", arena_region.region.start, arena_region.region.end);
                let text = "resident pages of the heap could not be read";
                reading.caveats.push(Caveat::new(
                    "heap_unreadable",
                    place,
                    Some(parts.unreadable_bytes),
                    text,
                ));
            }
        }
        walked.into_iter().zip(&contexts).map(|(parts, walk_context)| parts.sum(walk_context)).collect()
    }

    /// Returns when the first walk has to end: if there are fastbins, the second can take as long.
    fn first_deadline(&self) -> Instant {
        let (now, deadline) = (Instant::now(), self.context.deadline);
        if self.has_fastbins() { now + deadline.saturating_duration_since(now) / 2 } else { deadline }
    }

    /// Whether any fastbin has chunks.
    fn has_fastbins(&self) -> bool {
        self.arenas.iter().flat_map(|arena| &arena.fastbins).any(|&head| head != 0)
    }

    /// Returns the bound of the candidates: a hostile heap has one for each 32 of its bytes.
    fn candidate_budget(&self) -> CandidateBudget {
        if !self.has_fastbins() {
            return CandidateBudget::default();
        }
        CandidateBudget::new(budget::copy_budget_bytes(0).max(MIN_CANDIDATE_BYTES))
    }

    /// Returns the first inconsistent place of the heap. A differing sum alone is not one: then
    /// part of the heap was not found, and what matters is whether the call would go there.
    fn call_hazard(&self, walked: &[RegionTotals], reading: &Reading) -> Option<CallHazard> {
        let damage = |(totals, arena_region): (&RegionTotals, &ArenaRegion)| {
            let at = totals.counts.first_damage?;
            Some(CallHazard { at, cause: hazard_cause(self.context, arena_region, totals.counts.is_late) })
        };
        if let Some(hazard) = walked.iter().zip(self.regions).find_map(damage) {
            return Some(hazard);
        }
        if has_caveat(reading, ON_RESERVED) {
            let at = self.context.reserved_mappings.first().map_or(0, |range| range.start);
            return Some(CallHazard { at, cause: HazardCause::Reserved });
        }
        if has_caveat(reading, LIST_BROKEN) {
            let at = self.arenas.first().map_or(0, |arena| arena.address);
            return Some(CallHazard { at, cause: HazardCause::Broken });
        }
        if !self.context.checks_free_lists {
            return None;
        }
        let max_chunks = walked.iter().map(|totals| totals.counts.bin_chunks).sum::<u64>() + 1;
        let mut check = bins::Check {
            cache: PageCache::new(self.context.whole_memory),
            pages: self.pages,
            max_chunks,
            deadline: self.context.deadline,
        };
        let hazard = self.arenas.iter().find_map(|arena| check.first_hazard(arena))?;
        Some(match hazard.cause {
            HazardCause::Outside if !has_caveat(reading, SUM_DIFFERS) => {
                CallHazard { cause: HazardCause::Broken, ..hazard }
            }
            _ => hazard,
        })
    }

    /// Returns the input of a walk for each region. `mode_of` chooses how the walk recognises
    /// chunks in fastbins.
    fn contexts<'a>(
        &'a self,
        special_chunks: &'a [SpecialChunks],
        mode_of: impl Fn(&ArenaRegion) -> FastbinMode<'a>,
        deadline: Instant,
    ) -> Vec<WalkContext<'a>> {
        let parts = self.regions.iter().zip(self.pages.iter().zip(special_chunks));
        let walk_context = |(arena_region, (pages, special_chunks)): (
            &'a ArenaRegion,
            (&'a RangePages, &'a SpecialChunks),
        )| {
            WalkContext {
                region: &arena_region.region,
                special_chunks,
                fastbin_mode: mode_of(arena_region),
                memory: self.context.whole_memory,
                pages,
                refinements: self.context.refinements,
                keeps_blocks: self.context.collects_blocks,
                deadline,
            }
        };
        parts.map(walk_context).collect()
    }

    /// Returns what links of an arena's fastbins may point to.
    fn link_targets(&self, arena: usize) -> LinkTargets {
        let regions = self
            .regions
            .iter()
            .filter(|arena_region| arena_region.arena == arena)
            .map(|arena_region| &arena_region.region);
        let ranges: Vec<AddressRange> = regions.map(Region::range).collect();
        LinkTargets::new(&ranges, &self.arenas[arena].fastbins)
    }

    /// Follows the thread caches. Returns one [`SpecialChunks`] per region, and the encoding of
    /// links.
    fn thread_caches(
        &self,
        parameters: Option<&Parameters>,
        reading: &mut Reading,
    ) -> (Vec<SpecialChunks>, LinkEncoding) {
        let memory = self.context.whole_memory;
        let part = |(arena_region, pages): (&ArenaRegion, _)| {
            (pages, SpecialChunks::new(arena_region.region.start, arena_region.region.end))
        };
        let mut ranges = Ranges { parts: self.regions.iter().zip(self.pages).map(part).collect() };
        let has_large_bins = parameters.is_some_and(|parameters| parameters.layout.has_large_tcache_bins);
        let caches = tcache::find(self.context, &ranges, has_large_bins);
        let fastbins = self.arenas.iter().flat_map(|arena| &arena.fastbins).filter(|&&head| head != 0);
        let lists: Vec<_> =
            caches.lists.iter().copied().chain(fastbins.map(|&head| List::fastbin(head))).collect();
        let mut cache = PageCache::new(memory);
        let links = lists::detect_encoding(&mut cache, &ranges, &lists, LinkEncoding::Protected);
        for &chunk in &caches.structures {
            ranges.insert(chunk, ChunkKind::Metadata);
        }
        let max_chunks = layout::MAX_THREAD_CACHE_ENTRIES as u64;
        // After the deadline the heap is not walked further either.
        let is_broken = |list: &&List| {
            !self.context.deadline_passed()
                && !lists::follow(&mut cache, &mut ranges, **list, links, ChunkKind::ThreadCache, max_chunks)
        };
        let broken_lists = caches.lists.iter().filter(is_broken).count() as u64;
        add_broken_caveat(broken_lists, "thread caches", reading);
        reading.bytes_read += cache.bytes_read;
        (ranges.parts.into_iter().map(|(_, special_chunks)| special_chunks).collect(), links)
    }

    /// Separates members of fastbins from chunks that only look like members. Adds the members of
    /// parts that have to be walked again to `special_chunks`, and returns these parts.
    fn separate_fastbin_members(
        &self,
        targets: &[LinkTargets],
        special_chunks: &mut [SpecialChunks],
        walked: &[RegionParts],
        budget: &CandidateBudget,
        reading: &mut Reading,
    ) -> Vec<PartIndex> {
        let mut parts_to_redo = Vec::new();
        for (arena, targets) in targets.iter().enumerate() {
            let arena_regions = (0..walked.len()).filter(|&region| self.regions[region].arena == arena);
            let parts: Vec<PartIndex> = arena_regions
                .flat_map(|region| {
                    (0..walked[region].parts.len()).map(move |part| PartIndex { region, part })
                })
                .collect();
            let slices: Vec<&[Candidate]> = parts
                .iter()
                .map(|index| walked[index.region].parts[index.part].candidates.as_slice())
                .collect();
            let Membership::Members { members, broken_lists } = fastbins::separate_members(targets, &slices)
            else {
                continue;
            };
            // Without the time for all of the heap, or the memory, some members are not known.
            let is_late = parts.iter().any(|index| walked[index.region].parts[index.part].counts.is_late);
            if !is_late && !budget.is_used_up() {
                add_broken_caveat(broken_lists, "fastbins", reading);
            }
            let mut position = 0;
            for (&index, slice) in parts.iter().zip(&slices) {
                let is_member = |offset: &usize| bits::has(&members, position + offset);
                // The members are not collected: no bound would count the memory of such a list.
                let members_of_part = (0..slice.len()).filter(is_member);
                if members_of_part.clone().count() < slice.len() {
                    parts_to_redo.push(index);
                    for member in members_of_part {
                        special_chunks[index.region]
                            .insert(targets.address(slice[member]), ChunkKind::Fastbin);
                    }
                }
                position += slice.len();
            }
        }
        parts_to_redo
    }
}

/// Code of the caveat for broken free lists.
const LIST_BROKEN: &str = "free_list_broken";

fn add_broken_caveat(broken_lists: u64, list_kind: &str, reading: &mut Reading) {
    if broken_lists > 0 {
        let text = format!(
            "{broken_lists} lists of {list_kind} are damaged, or were read during a change: the rest of each counts as in use"
        );
        reading.caveats.push(Caveat::new(LIST_BROKEN, format!("glibc, {list_kind}"), None, text));
    }
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
            let (code, explanation) = match hazard_cause(context, arena_region, totals.counts.is_late) {
                HazardCause::Swapped => {
                    ("heap_swapped", "parts of it are swapped out, and reading them would load them")
                }
                HazardCause::Reserved => (ON_RESERVED, "parts of it are on reserved huge pages"),
                HazardCause::TooSlow => ("heap_too_slow", "the time that a target may be stopped was over"),
                HazardCause::Broken | HazardCause::Outside => {
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
            reading.is_inconsistent |= code == "heap_damaged";
            reading.caveats.push(Caveat::new(
                code,
                format!("{at:#x}"),
                Some(totals.counts.unread_bytes),
                text,
            ));
        }
    }
}

//! All arenas of one glibc: walks their ranges, finds out which chunks are in fastbins, and decides
//! whether a call into malloc would be safe.

use std::time::Instant;

use super::fastbins::{self, Candidate, CandidateBudget, LinkTargets, Membership};
use super::lists::{self, ChunkKind, LinkEncoding, List, Ranges, SpecialChunks};
use super::locate::Arena;
use super::parameters::Parameters;
use super::regions::ArenaRegion;
use super::segments::{self, RegionParts, RegionTotals};
use super::summary::SUM_DIFFERS;
use super::walk_context::{FastbinMode, WalkContext};
use super::{ON_RESERVED, bins, has_caveat, hazard_cause, layout, tcache};
use crate::scan::DeadlineCheck;
use strandline_claims::accumulator::OutOfOrder;
use strandline_claims::allocator::{CallHazard, Context, HazardCause, Reading};
use strandline_claims::bits;
use strandline_claims::caveat::Caveat;
use strandline_claims::range::RangePages;
use strandline_claims::units::counted;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;
use strandline_process::target::budget;
use strandline_process::work::in_order;

/// Minimum memory for chunks that may be in fastbins, however little is available: enough for those
/// of a heap of 256 MiB.
const MIN_CANDIDATE_BYTES: u64 = 128 << 20;

/// Code of the caveat for broken free lists.
const LIST_BROKEN: &str = "free_list_broken";
/// Code of the caveat for chunks in fastbins that count as in use.
const FASTBINS_UNREAD: &str = "fastbins_unread";
/// Code of the caveat for pages that could not be read.
const HEAP_UNREADABLE: &str = "heap_unreadable";

/// Identifies a part of a walked region.
#[derive(Clone, Copy)]
struct PartIndex {
    /// Index of the region.
    region: usize,
    /// Index of the part in it.
    part: usize,
}

/// The ranges of all arenas, to be walked.
pub struct Arenas<'a> {
    /// What may be read.
    pub context: &'a Context<'a>,
    /// The arenas.
    pub arenas: &'a [Arena],
    /// Their ranges, in address order.
    pub regions: &'a [ArenaRegion],
    /// The pages of each range.
    pub pages: &'a [RangePages],
}

/// What a walk found.
pub struct Walked {
    /// The totals of each range.
    pub totals: Vec<RegionTotals>,
    /// Why a call that goes through the free lists would be unsafe.
    pub list_hazard: Option<CallHazard>,
}

/// What is known of the chunks before the walk.
struct KnownChunks {
    /// The special chunks of each region.
    special_chunks: Vec<SpecialChunks>,
    /// Encoding of the links of free lists.
    links: LinkEncoding,
    /// Head of the first broken list of a thread cache.
    first_broken_list: Option<u64>,
}

/// What the candidates for fastbins show.
#[derive(Default)]
struct SeparatedMembers {
    /// Parts that have to be walked again.
    parts_to_redo: Vec<PartIndex>,
    /// Head of the first broken fastbin.
    first_broken_list: Option<u64>,
}

impl Arenas<'_> {
    /// Walks every range.
    ///
    /// # Errors
    /// [`OutOfOrder`] if a byte would be claimed twice, which is a bug of the walk.
    pub fn walk(&self, parameters: Option<&Parameters>, reading: &mut Reading) -> Result<Walked, OutOfOrder> {
        let KnownChunks { mut special_chunks, links, first_broken_list } =
            self.follow_thread_caches(parameters, reading);
        let targets: Vec<LinkTargets> =
            (0..self.arenas.len()).map(|index| self.link_targets(index, reading)).collect();
        let first_deadline = self.first_deadline();
        let budget = self.candidate_budget();
        let guess_mode = |arena_region: &ArenaRegion| FastbinMode::Guess {
            targets: &targets[arena_region.arena],
            links,
            budget: &budget,
        };
        let walk_contexts: Vec<WalkContext<'_>> =
            self.walk_contexts(&special_chunks, guess_mode, first_deadline);
        let mut walked = segments::walk(&walk_contexts, self.context.workers, self.context.progress);
        drop(walk_contexts);
        if budget.is_used_up() {
            let text =
                "there is too little memory to note all chunks in fastbins: the others count as in use";
            reading.caveats.push(Caveat::new(FASTBINS_UNREAD, "glibc, fastbins", None, text));
        }
        let separated =
            self.separate_fastbin_members(&targets, &mut special_chunks, &walked, &budget, reading);
        let walk_contexts: Vec<WalkContext<'_>> =
            self.walk_contexts(&special_chunks, |_| FastbinMode::Known, self.context.deadline);
        self.walk_again(&walk_contexts, &separated.parts_to_redo, &mut walked);
        for (parts, ArenaRegion { region, .. }) in walked.iter().zip(self.regions) {
            reading.bytes_read += parts.bytes_read;
            let bytes = parts.unreadable_bytes;
            if bytes > 0 {
                let text = "resident pages of the heap could not be read";
                let place = format!("{:#x}-{:#x}", region.start, region.end);
                reading.caveats.push(Caveat::new(HEAP_UNREADABLE, place, Some(bytes), text));
            }
        }
        let sum = |(parts, walk_context): (RegionParts, _)| parts.sum(walk_context);
        let totals = walked.into_iter().zip(&walk_contexts).map(sum).collect::<Result<_, _>>()?;
        let first_broken_list = first_broken_list.or(separated.first_broken_list);
        let broken = first_broken_list.map(|at| CallHazard { at, cause: HazardCause::Broken });
        let unchecked_arena = self.arenas.first().filter(|_| budget.is_used_up());
        let unchecked =
            unchecked_arena.map(|arena| CallHazard { at: arena.address, cause: HazardCause::LittleMemory });
        Ok(Walked { totals, list_hazard: broken.or(unchecked) })
    }

    /// Replaces these parts of the walked regions, now that the members of fastbins are known.
    fn walk_again(&self, walk_contexts: &[WalkContext<'_>], parts: &[PartIndex], walked: &mut [RegionParts]) {
        let new_parts = in_order(parts.len(), self.context.workers, |index| {
            let PartIndex { region, part } = parts[index];
            Some(segments::walk_again(walk_contexts[region], &walked[region].parts[part]))
        });
        for (&PartIndex { region, part }, new_part) in parts.iter().zip(new_parts) {
            if let Some(new_part) = new_part {
                walked[region].parts[part] = new_part;
            }
        }
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

    /// Returns why a call into malloc would be unsafe, with the first such place. That an arena's
    /// sum differs is no reason by itself: part of the heap was not found, and only a call that
    /// would go there is unsafe.
    pub fn call_hazard(
        &self,
        walked: &[RegionTotals],
        list_hazard: Option<CallHazard>,
        reading: &Reading,
    ) -> Option<CallHazard> {
        let damage = |(totals, arena_region): (&RegionTotals, &ArenaRegion)| {
            let at = totals.counts.first_damage?;
            Some(CallHazard { at, cause: hazard_cause(self.context, arena_region, totals.counts.is_late) })
        };
        if let Some(hazard) = walked.iter().zip(self.regions).find_map(damage) {
            return Some(hazard);
        }
        let reserved = self.context.reserved_mappings.first();
        if let Some(range) = reserved.filter(|_| has_caveat(reading, ON_RESERVED)) {
            return Some(CallHazard { at: range.start, cause: HazardCause::Reserved });
        }
        if list_hazard.is_some() {
            return list_hazard;
        }
        if !self.context.checks_free_lists {
            return None;
        }
        let max_chunks = walked.iter().map(|totals| totals.counts.bin_chunks).sum::<u64>() + 1;
        let mut check = bins::Check {
            deadline: DeadlineCheck::new(self.context),
            cache: PageCache::new(self.context.whole_memory),
            pages: self.pages,
            max_chunks,
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
    fn walk_contexts<'a>(
        &'a self,
        special_chunks: &'a [SpecialChunks],
        mode_of: impl Fn(&ArenaRegion) -> FastbinMode<'a>,
        deadline: Instant,
    ) -> Vec<WalkContext<'a>> {
        let mut walk_contexts = Vec::with_capacity(self.regions.len());
        for ((arena_region, pages), special_chunks) in self.regions.iter().zip(self.pages).zip(special_chunks)
        {
            walk_contexts.push(WalkContext {
                region: &arena_region.region,
                special_chunks,
                fastbin_mode: mode_of(arena_region),
                memory: self.context.whole_memory,
                pages,
                refinements: self.context.refinements,
                keeps_blocks: self.context.keeps_blocks,
                deadline,
            });
        }
        walk_contexts
    }

    /// Returns what links of an arena's fastbins may point to. If the arena is too large, that is
    /// nothing, with a caveat if it has chunks in fastbins.
    fn link_targets(&self, arena: usize, reading: &mut Reading) -> LinkTargets {
        let regions = self.regions.iter().filter(|arena_region| arena_region.arena == arena);
        let ranges: Vec<AddressRange> = regions.map(|arena_region| arena_region.region.range()).collect();
        let Arena { address, fastbins, .. } = &self.arenas[arena];
        let targets = LinkTargets::new(&ranges, fastbins);
        if targets.is_none() && fastbins.iter().any(|&head| head != 0) {
            let text = "the arena's ranges exceed 64 GiB: its chunks in fastbins count as in use";
            reading.caveats.push(Caveat::new(FASTBINS_UNREAD, format!("{address:#x}"), None, text));
        }
        targets.unwrap_or_default()
    }

    /// Follows the thread caches; returns their chunks, and the encoding of links.
    fn follow_thread_caches(&self, parameters: Option<&Parameters>, reading: &mut Reading) -> KnownChunks {
        let region_ranges = self.regions.iter().map(|arena_region| arena_region.region.range());
        let mut ranges = Ranges::new(region_ranges.zip(self.pages));
        let has_large_bins = parameters.is_some_and(|parameters| parameters.layout.has_large_tcache_bins);
        let caches = tcache::find(self.context, &ranges, has_large_bins);
        let fastbins = self.arenas.iter().flat_map(|arena| &arena.fastbins).filter(|&&head| head != 0);
        let lists: Vec<_> =
            caches.lists.iter().copied().chain(fastbins.map(|&head| List::fastbin(head))).collect();
        let mut cache = PageCache::new(self.context.whole_memory);
        let links = lists::detect_encoding(&mut cache, &ranges, &lists);
        for &chunk in &caches.structures {
            ranges.insert(chunk, ChunkKind::Metadata);
        }
        let max_chunks = layout::MAX_THREAD_CACHE_ENTRIES as u64;
        let mut broken_lists = Vec::new();
        for &list in &caches.lists {
            // After the deadline the heap is not walked further either.
            if self.context.deadline_passed() {
                break;
            }
            if !lists::follow(&mut cache, &mut ranges, list, links, max_chunks) {
                broken_lists.push(list.head);
            }
        }
        add_broken_caveat(&broken_lists, "thread caches", reading);
        reading.caveats.extend(caches.swapped.caveat(&super::ABOUT));
        reading.bytes_read += cache.bytes_read;
        let first_broken_list = broken_lists.first().copied();
        KnownChunks { special_chunks: ranges.into_special_chunks(), links, first_broken_list }
    }

    /// Separates members of fastbins from chunks that only look like members. Adds the members of
    /// parts that have to be walked again to `special_chunks`.
    fn separate_fastbin_members(
        &self,
        targets: &[LinkTargets],
        special_chunks: &mut [SpecialChunks],
        walked: &[RegionParts],
        budget: &CandidateBudget,
        reading: &mut Reading,
    ) -> SeparatedMembers {
        let mut separated = SeparatedMembers::default();
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
                add_broken_caveat(&broken_lists, "fastbins", reading);
                separated.first_broken_list =
                    separated.first_broken_list.or_else(|| broken_lists.first().copied());
            }
            let parts_to_redo = add_members(targets, &members, &parts, &slices, special_chunks);
            separated.parts_to_redo.extend(parts_to_redo);
        }
        separated
    }
}

/// Adds the members of fastbins in those of `parts` that have to be walked again to
/// `special_chunks`, and returns these parts. `slices` are the candidates of each part, and
/// `members` has one bit for each of them.
fn add_members(
    targets: &LinkTargets,
    members: &[u64],
    parts: &[PartIndex],
    slices: &[&[Candidate]],
    special_chunks: &mut [SpecialChunks],
) -> Vec<PartIndex> {
    let mut parts_to_redo = Vec::new();
    let mut position = 0;
    for (&index, slice) in parts.iter().zip(slices) {
        let is_member = |offset: &usize| bits::has(members, position + offset);
        // The members are not collected: no bound would count the memory of such a list.
        let members_of_part = (0..slice.len()).filter(is_member);
        // A part whose candidates are all members was walked correctly.
        if members_of_part.clone().count() < slice.len() {
            parts_to_redo.push(index);
            for member in members_of_part {
                special_chunks[index.region].insert(targets.address(slice[member]), ChunkKind::Fastbin);
            }
        }
        position += slice.len();
    }
    parts_to_redo
}

/// Adds a caveat on lists that did not end properly, if there are any; `broken_lists` are their
/// heads.
fn add_broken_caveat(broken_lists: &[u64], list_kind: &str, reading: &mut Reading) {
    if !broken_lists.is_empty() {
        let text = format!(
            "{} of {list_kind} could not be followed to the end (damaged, swapped out, or read during a change): the rest counts as in use",
            counted(broken_lists.len() as u64, "list")
        );
        reading.caveats.push(Caveat::new(LIST_BROKEN, format!("glibc, {list_kind}"), None, text));
    }
}

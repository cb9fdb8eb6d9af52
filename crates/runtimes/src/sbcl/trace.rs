//! Traces the copy once the target runs again, and claims live and dead objects.

use std::collections::HashMap;
use std::time::Instant;

use super::census::{self, Census, CensusContext, Counted, Tallies, Tally, TypeCount, TypeKey};
use super::copy;
use super::facts::{Sbcl, TypeBytes};
use super::heap::DynamicSpace;
use super::mark::{PinnedSet, Tracer};
use super::names::Names;
use super::objects::{self, Kinds, Run};
use super::remedies;
use super::roots::{RootContext, Roots};
use super::rows;
use super::spaces::{self, Slots, Space};
use super::store::HeapCopy;
use super::threads::Region;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout, OLDEST, PSEUDO_STATIC, Release};
use strandline_claims::accumulator::{Accumulator, Class, OutOfOrder};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{TypeFacts, sum_other_types};
use strandline_claims::range::RangePages;
use strandline_claims::runtime::{FinishContext, Pending, Reading};
use strandline_claims::units::{bytes, counted};
use strandline_process::range::AddressRange;
use strandline_process::work::in_order;

/// Limit on the types listed by dead bytes, and on those listed by live bytes.
const MAX_TYPES: usize = 50;
/// Limit on the types listed by all bytes; one more entry has the sum of the others.
const MAX_TYPES_IN_ALL: usize = 200;
/// Pages that a collection leaves partly full: it copies to pages of six types (`PAGE_TYPE_BOXED`
/// and others in gencgc-impl.h), and does not fill the last page of each.
const PARTIAL_PAGES: u64 = 6;

/// The copy of the target, and what is needed to trace it.
pub struct PendingTrace {
    pub(super) figures: Sbcl,
    pub(super) copied: copy::CopiedHeap,
    pub(super) heap: DynamicSpace,
    pub(super) regions: Vec<Region>,
    pub(super) runs: Vec<Run>,
    pub(super) spaces: Vec<Space>,
    pub(super) layout: &'static Layout,
    pub(super) release: Release,
    pub(super) roots: Roots,
    pub(super) pages: RangePages,
    pub(super) program_path: String,
}

impl Pending for PendingTrace {
    /// Traces the objects, and claims live and dead ones in `reading`.
    fn finish(mut self: Box<Self>, reading: &mut Reading, context: &FinishContext<'_>) {
        let FinishContext { workers, path_to, progress, .. } = *context;
        let started = Instant::now();
        progress("tracing SBCL's objects", 0, 3);
        let missing_bytes = self.copied.fill_from_files();
        if missing_bytes > 0 || self.copied.unopened_files > 0 {
            let files = counted(self.copied.unopened_files, "file");
            return self.claim_by_page(&format!("{}, {files}", bytes(missing_bytes)), reading);
        }
        let kinds = Kinds::new(self.layout);
        let Some(pinned) = self.mark(&kinds, workers) else {
            return self.claim_by_page("a thread of strandline failed", reading);
        };
        progress("tracing SBCL's objects", 2, 3);
        let Some(slots) = Slots::new(reading, &rows::LIVE) else { return };
        let Counted { census, claims } = match self.count(&kinds, &pinned, &slots, workers) {
            Ok(counted) => counted,
            Err(error) => {
                let text = format!("SBCL's objects are not claimed: {error}");
                reading.caveats.push(Caveat::new("sbcl_damaged", format!("{:#x}", error.at), None, text));
                return;
            }
        };
        let sums = claims.finish(&self.pages);
        let mut figures = std::mem::take(&mut self.figures);
        slots.fill_in_unused(&sums, &mut figures);
        reading.facts.types = self.fill_figures(&mut figures, &census, &pinned, &kinds);
        match path_to.map(|name| self.path_to_root(name, &kinds)) {
            Some(Ok(None)) if census.damage_address.is_some() => {
                figures.no_path =
                    Some("not all of the heap could be walked: the rest may hold one".to_owned());
            }
            Some(Ok(path)) => figures.path = path,
            Some(Err(reason)) => figures.no_path = Some(reason.to_owned()),
            None => {}
        }
        // No collection is advised for a heap that is damaged somewhere.
        if census.damage_address.is_none() {
            reading.remedies.extend(remedies::remedies(&figures));
        }
        figures.trace_seconds = Some(started.elapsed().as_secs_f64());
        figures.write_to(&mut reading.facts);
        reading.zero_runs.extend(self.pages.zero_runs());
        reading.claims.push(RangeClaim { start: self.heap.start, end: self.heap.claim_end(), sums });
        reading.caveats.extend(self.caveats(&census));
        progress("tracing SBCL's objects", 3, 3);
    }
}

impl PendingTrace {
    /// Records where objects start, and marks what is reachable from the roots. `None` if a thread
    /// panicked.
    fn mark(&mut self, kinds: &Kinds, workers: usize) -> Option<PinnedSet> {
        self.copied.store.make_bits();
        let store = &self.copied.store;
        let unread = record_all_starts(store, kinds, &self.runs, workers)?;
        for space in &self.spaces {
            objects::walk_space(store, kinds, space, |object| objects::record_start(store, kinds, object));
        }
        self.copied.store.index_starts();
        let store = &self.copied.store;
        let mut tracer = Tracer::new(store, kinds, self.layout, &self.heap, self.release);
        self.roots.visit(&mut tracer, &self.root_context(kinds), |_, _| {});
        for &range in &unread {
            visit_unread(store, &mut tracer, range);
        }
        tracer.run();
        Some(tracer.into_pinned())
    }

    /// Counts all objects, and claims all of dynamic space.
    ///
    /// # Errors
    /// If the claims leave a gap.
    fn count(
        &self,
        kinds: &Kinds,
        pinned: &PinnedSet,
        slots: &Slots,
        workers: usize,
    ) -> Result<Counted, OutOfOrder> {
        let context = CensusContext {
            store: &self.copied.store,
            kinds,
            heap: &self.heap,
            layout: self.layout,
            runs: &self.runs,
            pinned,
            slots,
            pages: &self.pages,
        };
        let mut counted = context.count(workers)?;
        let mut accumulator = Accumulator::new(self.heap.end(), &self.pages);
        accumulator.claim_to(self.heap.claim_end(), Class::Refined(slots.free));
        counted.claims.join(accumulator.cut(), &self.pages)?;
        Ok(counted)
    }

    /// What visiting the roots needs besides these.
    pub(super) fn root_context<'a>(&'a self, kinds: &'a Kinds) -> RootContext<'a> {
        let (heap, spaces, runs) = (&self.heap, &self.spaces, &self.runs);
        RootContext { store: &self.copied.store, kinds, heap, spaces, runs }
    }

    /// A reader of the names of types.
    pub(super) fn names<'a>(&'a self, kinds: &'a Kinds) -> Names<'a> {
        let (layout, release) = (self.layout, self.release);
        Names { store: &self.copied.store, kinds, layout, release, replaced_names: 0 }
    }

    /// Fills in the figures that follow from the trace, and returns the types of all objects.
    fn fill_figures(
        &self,
        figures: &mut Sbcl,
        census: &Census,
        pinned: &PinnedSet,
        kinds: &Kinds,
    ) -> Vec<TypeFacts> {
        let mut total = TypeCount::default();
        census.types.values().for_each(|count| total.add(count));
        for (number, generation) in figures.generations.iter_mut().enumerate() {
            generation.live_bytes = total.live.get(number).map(|live| live.bytes);
            generation.dead_bytes = total.dead.get(number).map(|dead| dead.bytes);
            generation.filler_bytes = census.filler_bytes.get(number).copied();
        }
        figures.traced = true;
        figures.live_bytes = Some(Tally::sum(&total.live).bytes);
        figures.dead_bytes = Some(Tally::sum(&total.dead).bytes);
        let after = self.after_full_collection(census, pinned);
        figures.usage_after_full_gc_bytes = Some(after.usage_bytes);
        let resident_bytes =
            self.pages.runs_in(self.heap.start, self.heap.claim_end()).map(AddressRange::len).sum::<u64>();
        figures.full_gc_gives_back_bytes = Some(resident_bytes.saturating_sub(after.resident_bytes));
        let mut names = self.names(kinds);
        figures.dead_by_type = by_type(&census.types, &mut names, |count| &count.dead);
        // What came with the core is always live: it would hide the objects of the program.
        let types = census.types.iter().map(|(&key, count)| {
            let mut count = *count;
            if let Some(core_tally) = count.live.get_mut(PSEUDO_STATIC) {
                *core_tally = Tally::default();
            }
            (key, count)
        });
        figures.live_by_type = by_type(&types.collect(), &mut names, |count| &count.live);
        figures.names_replaced = names.replaced_names;
        all_types(&census.types, &mut names)
    }

    /// Dynamic space after a full collection. What is not pinned is copied to new pages, a page
    /// with a pinned object stays whole (`obliterate_nonpinned_words` fills its rest;
    /// `wipe_nonpinned_words` in 2.1), large objects and pseudo-static ones stay where they are;
    /// all other pages are released (`remap_free_pages`).
    fn after_full_collection(&self, census: &Census, pinned: &PinnedSet) -> AfterCollection {
        let mut usage_bytes = census.moved_bytes + census.large_bytes;
        let partial_pages = if census.moved_bytes > 0 { PARTIAL_PAGES } else { 0 };
        let copied_pages = census.moved_bytes.div_ceil(GC_PAGE_BYTES) + partial_pages;
        let mut resident_bytes = copied_pages * GC_PAGE_BYTES + census.large_resident_bytes;
        for (index, page) in self.heap.pages.iter().enumerate() {
            let generation = usize::from(page.generation);
            let is_pinned = pinned.has_page(index) && generation <= OLDEST;
            let is_kept = generation == PSEUDO_STATIC && page.used_bytes > 0;
            if is_kept || (is_pinned && !page.is_large(self.layout)) {
                usage_bytes += u64::from(page.used_bytes);
                let start = self.heap.address_of(index);
                resident_bytes +=
                    self.pages.runs_in(start, start + GC_PAGE_BYTES).map(AddressRange::len).sum::<u64>();
            }
        }
        AfterCollection { usage_bytes, resident_bytes }
    }

    /// Claims dynamic space by page: because of `reason`, not all objects are known.
    fn claim_by_page(&mut self, reason: &str, reading: &mut Reading) {
        let text = format!(
            "parts of the memory with SBCL's objects could not be read ({reason}): live and dead objects are not \
             distinguished"
        );
        let affected_bytes = Some(self.heap.bytes_allocated);
        reading.caveats.push(Caveat::new("sbcl_core_not_read", &self.program_path, affected_bytes, text));
        let (pages, figures) = (&self.pages, &mut self.figures);
        if spaces::claim_by_page(pages, &self.heap, &self.regions, self.layout, figures, reading).is_some() {
            figures.write_to(&mut reading.facts);
            reading.zero_runs.extend(pages.zero_runs());
        }
    }

    /// Returns the caveats on objects and stacks that are not known.
    fn caveats(&self, census: &Census) -> Vec<Caveat> {
        let mut caveats = Vec::new();
        if let Some(at) = census.damage_address {
            let text = "SBCL's objects are inconsistent from here to the end of their run: the rest of the run counts as neither \
                        live nor dead, and objects that it may point to count as live";
            caveats.push(Caveat::new("sbcl_damaged", format!("{at:#x}"), Some(census.unread_bytes), text));
        }
        if self.roots.whole_stack_count > 0 {
            let text = format!(
                "the extent of the control stack in use is not known for {} of SBCL's threads: their whole stacks count as roots",
                self.roots.whole_stack_count
            );
            caveats.push(Caveat::new("sbcl_whole_stack", &self.program_path, None, text));
        }
        caveats
    }
}

/// Dynamic space after a collection.
#[derive(Clone, Copy, Debug)]
struct AfterCollection {
    /// Dynamic usage.
    usage_bytes: u64,
    /// Resident bytes of dynamic space.
    resident_bytes: u64,
}

/// Visits every word of a part of dynamic space that could not be walked: its contents are not
/// known, so whatever it may point to counts as live.
fn visit_unread(store: &HeapCopy, tracer: &mut Tracer<'_>, range: AddressRange) {
    let AddressRange { start: mut at, end } = range;
    while at < end {
        let page_end = ((at | (GC_PAGE_BYTES - 1)).saturating_add(1)).min(end);
        store.each_word(at, 0, (page_end - at) / 8, |_, word| tracer.visit_unread(word));
        at = page_end;
    }
}

/// Records the starts of all objects of dynamic space. Returns the ranges that could not be walked;
/// `None` if a thread panicked, so that starts are missing.
fn record_all_starts(
    store: &HeapCopy,
    kinds: &Kinds,
    runs: &[Run],
    workers: usize,
) -> Option<Vec<AddressRange>> {
    let chunks: Vec<&[Run]> = runs.chunks(census::RUNS_AT_ONCE).collect();
    let unread_range = |run: &Run| {
        let end = objects::walk(store, kinds, *run, |object| objects::record_start(store, kinds, object));
        (end < run.end).then_some(AddressRange::new(end, run.end))
    };
    let unread_ranges = in_order(chunks.len(), workers, |index| {
        Some(chunks.get(index)?.iter().filter_map(unread_range).collect::<Vec<_>>())
    });
    Some(unread_ranges.into_iter().collect::<Option<Vec<_>>>()?.concat())
}

/// Counts by type.
type Types = HashMap<TypeKey, TypeCount>;

/// Objects of one type.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct TypeTotal {
    bytes: u64,
    objects: u64,
    key: TypeKey,
}

/// The types by the bytes that `tally` counts, largest first, without those that have none.
fn totals_by_type(types: &Types, tally: impl Fn(&TypeCount) -> Tally) -> Vec<TypeTotal> {
    let total = |(&key, count): (&TypeKey, &TypeCount)| {
        let Tally { objects, bytes } = tally(count);
        TypeTotal { bytes, objects, key }
    };
    let mut totals: Vec<TypeTotal> = types.iter().map(total).filter(|entry| entry.bytes > 0).collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    totals
}

/// The types of all objects, live or dead, those with most bytes first. Types that are not listed
/// are not named either: names are read from the copy.
fn all_types(types: &Types, names: &mut Names<'_>) -> Vec<TypeFacts> {
    let tally = |count: &TypeCount| {
        let mut tally = Tally::sum(&count.live);
        tally.add(Tally::sum(&count.dead));
        tally
    };
    let facts = |(rank, TypeTotal { bytes, objects, key })| {
        let name = if rank < MAX_TYPES_IN_ALL { names.name_of_key(key).text } else { String::new() };
        TypeFacts { name, instances: objects, bytes }
    };
    let mut types = totals_by_type(types, tally).into_iter().enumerate().map(facts).collect();
    sum_other_types(&mut types, MAX_TYPES_IN_ALL);
    types
}

/// The types with most of the bytes that `tallies` counts, largest first.
fn by_type(types: &Types, names: &mut Names<'_>, tallies: impl Fn(&TypeCount) -> &Tallies) -> Vec<TypeBytes> {
    let totals = totals_by_type(types, |count| Tally::sum(tallies(count)));
    let type_bytes = |TypeTotal { bytes, objects, key }| {
        let counts = types.get(&key).map(&tallies)?;
        let name = names.name_of_key(key);
        let largest = counts.iter().enumerate().max_by_key(|(_, tally)| tally.bytes);
        Some(TypeBytes {
            is_named: name.is_program_type,
            type_name: name.text,
            instances: objects,
            bytes,
            generation: largest.map_or(0, |(number, _)| number as u64),
            by_generation: (0..)
                .zip(counts)
                .filter(|(_, tally)| tally.objects > 0)
                .map(|(number, tally)| [number, tally.objects, tally.bytes].into())
                .collect(),
        })
    };
    totals.into_iter().take(MAX_TYPES).filter_map(type_bytes).collect()
}

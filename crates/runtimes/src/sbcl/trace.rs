//! Traces the copy once the target runs again, and claims live and dead objects.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::census::{self, Census, Tallies, Tally, TypeCount};
use super::copy;
use super::facts::{Sbcl, TypeBytes};
use super::heap::DynamicSpace;
use super::mark::Tracer;
use super::names::Names;
use super::objects::{self, Kinds, Run};
use super::remedies;
use super::roots::{self, Roots};
use super::rows;
use super::spaces::{self, Slots, Space};
use super::store::{HeapCopy, UnitIndex};
use super::threads::Region;
use crate::resident::bytes_of;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout, OLDEST, ObjectKind, PSEUDO_STATIC, Release};
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::TypeFacts;
use strandline_claims::range::RangePages;
use strandline_claims::runtime::{FinishContext, Pending, Reading};
use strandline_process::range::AddressRange;

/// Types reported by dead bytes, and by live ones.
const MAX_TYPES: usize = 50;
/// Types reported in all.
const MAX_TYPES_IN_ALL: usize = 200;
/// A collection copies to pages of some six kinds, and does not fill the last page of each.
const PARTIAL_PAGES: u64 = 6;

/// The copy of the target, and what is needed to trace it.
pub struct PendingTrace {
    pub(super) figures: Sbcl,
    pub(super) copied: copy::Copied,
    pub(super) heap: DynamicSpace,
    pub(super) regions: Vec<Region>,
    pub(super) runs: Vec<Run>,
    pub(super) spaces: Vec<Space>,
    pub(super) layout: &'static Layout,
    pub(super) release: Release,
    pub(super) roots: Roots,
    pub(super) pages: RangePages,
    pub(super) place: String,
}

/// Pages and objects that conservative roots pin.
struct PinnedSet {
    pinned: Vec<bool>,
    pins: Vec<UnitIndex>,
}

impl Pending for PendingTrace {
    /// Traces the objects, and claims live and dead ones in `reading`.
    fn finish(mut self: Box<Self>, reading: &mut Reading, how: &FinishContext<'_>) {
        let FinishContext { workers, path_to, progress, .. } = *how;
        let started = Instant::now();
        progress("tracing SBCL's objects", 0, 3);
        let missing = self.copied.fill();
        if missing > 0 || self.copied.unopened > 0 {
            self.claim_by_page(missing, reading);
            return;
        }
        let kinds = Kinds::new(self.layout);
        let marked = self.mark(&kinds, workers);
        progress("tracing SBCL's objects", 2, 3);
        let slots = Slots::new(&mut reading.palette, &rows::LIVE);
        let unread = reading.palette.add(&rows::ALLOCATED, None);
        let (Some(slots), Some(unread)) = (slots, unread) else { return };
        let context = census::CensusContext {
            store: &self.copied.store,
            kinds: &kinds,
            heap: &self.heap,
            layout: self.layout,
            runs: &self.runs,
            pinned: &marked.pinned,
            pins: &marked.pins,
            slots: &slots,
            unread,
            pages: &self.pages,
        };
        let (census, mut block) = context.count(workers);
        let end = self.heap.claim_end();
        let mut accumulator = Accumulator::new(self.heap.end(), &self.pages);
        accumulator.claim_to(end, Class::Refined(slots.free));
        // The accumulator starts where the blocks end.
        let _ = block.join(accumulator.cut(), &self.pages);
        let sums = block.finish(&self.pages);
        let mut figures = std::mem::take(&mut self.figures);
        figures.free_resident_bytes = sums.resident.of(Class::Refined(slots.free));
        figures.waste_resident_bytes = sums.resident.of(Class::Refined(slots.waste));
        reading.facts.types = self.fill_figures(&mut figures, &census, &marked, &kinds);
        figures.path = path_to.and_then(|name| self.path_to_root(name, &kinds));
        // No collection is advised for a heap that is damaged somewhere.
        if census.damage.is_none() {
            reading.remedies.extend(remedies::remedies(&figures));
        }
        figures.trace_seconds = Some(started.elapsed().as_secs_f64());
        figures.write_to(&mut reading.facts);
        reading.zero_runs.extend(self.pages.zero_runs());
        reading.claims.push(RangeClaim { start: self.heap.start, end, sums });
        reading.caveats.extend(self.caveats(&census));
        progress("tracing SBCL's objects", 3, 3);
    }
}

impl PendingTrace {
    /// Records where objects start, and marks what is reachable from the roots.
    fn mark(&mut self, kinds: &Kinds, workers: usize) -> PinnedSet {
        self.copied.store.make_bits();
        let store = &self.copied.store;
        let unread = note_all_starts(store, kinds, &self.runs, workers);
        for space in &self.spaces {
            objects::walk_space(store, kinds, space, |object| {
                if kinds.of(object.header) != Some(ObjectKind::Filler)
                    && let Some(unit) = store.unit(object.address)
                {
                    store.set_start(unit);
                }
            });
        }
        self.copied.store.index_starts();
        let store = &self.copied.store;
        let mut tracer = Tracer::new(store, kinds, self.layout, &self.heap, self.release);
        let context =
            roots::RootContext { store, kinds, heap: &self.heap, spaces: &self.spaces, runs: &self.runs };
        self.roots.visit(&mut tracer, &context, |_, _| {});
        for &range in &unread {
            visit_unread(store, &mut tracer, range);
        }
        tracer.run();
        let (pinned, pins) = tracer.into_pinned();
        PinnedSet { pinned, pins }
    }

    /// Fills in the figures that follow from the trace, and returns the types of all objects.
    fn fill_figures(
        &self,
        figures: &mut Sbcl,
        census: &Census,
        marked: &PinnedSet,
        kinds: &Kinds,
    ) -> Vec<TypeFacts> {
        let mut all = TypeCount::default();
        census.types.values().for_each(|count| all.add(count));
        for (generation, (live, dead)) in figures.generations.iter_mut().zip(all.live.iter().zip(&all.dead)) {
            generation.live_bytes = Some(live.bytes);
            generation.dead_bytes = Some(dead.bytes);
        }
        for (generation, &fillers) in figures.generations.iter_mut().zip(&census.fillers) {
            generation.filler_bytes = Some(fillers);
        }
        figures.traced = true;
        figures.live_bytes = Some(Tally::sum(&all.live).bytes);
        figures.dead_bytes = Some(Tally::sum(&all.dead).bytes);
        let after = self.after_full_collection(census, marked);
        figures.usage_after_full_gc_bytes = Some(after.usage_bytes);
        let resident = bytes_of(self.pages.runs_in(self.heap.start, self.heap.claim_end()));
        figures.full_gc_gives_back_bytes = Some(resident.saturating_sub(after.resident_bytes));
        let mut names = Names {
            store: &self.copied.store,
            kinds,
            layout: self.layout,
            release: self.release,
            replaced: 0,
        };
        figures.dead_by_type = by_type(census, &mut names, |count| &count.dead);
        // What came with the core is always live: it would hide the objects of the program.
        let types = census.types.iter().map(|(&key, count)| {
            let mut count = *count;
            if let Some(of_core) = count.live.get_mut(PSEUDO_STATIC) {
                *of_core = Tally::default();
            }
            (key, count)
        });
        let made = Census { types: types.collect(), ..Census::default() };
        figures.live_by_type = by_type(&made, &mut names, |count| &count.live);
        figures.names_replaced = names.replaced;
        all_types(census, &mut names)
    }

    /// Dynamic space after a full collection. What is not pinned is copied to new pages, a page
    /// with a pinned object stays whole (obliterate_nonpinned_words fills its rest), large objects
    /// and pseudo-static ones stay where they are; all other pages are released (remap_free_pages),
    /// each in one piece.
    fn after_full_collection(&self, census: &Census, marked: &PinnedSet) -> AfterCollection {
        let mut usage = census.moved_bytes + census.large_bytes;
        let copied_pages = census.moved_bytes.div_ceil(GC_PAGE_BYTES) + PARTIAL_PAGES.min(census.moved_bytes);
        let mut resident = copied_pages * GC_PAGE_BYTES + census.large_resident_bytes;
        for (index, page) in self.heap.pages.iter().enumerate() {
            let generation = usize::from(page.generation);
            let is_pinned = marked.pinned.get(index).copied().unwrap_or(false) && generation <= OLDEST;
            let stays = generation == PSEUDO_STATIC && page.used > 0;
            if stays || (is_pinned && !page.is_large(self.layout)) {
                usage += u64::from(page.used);
                let start = self.heap.address_of(index);
                resident += bytes_of(self.pages.runs_in(start, start + GC_PAGE_BYTES));
            }
        }
        AfterCollection { usage_bytes: usage, resident_bytes: resident }
    }

    /// Claims dynamic space by page, because parts of the copy are missing.
    fn claim_by_page(&mut self, missing: u64, reading: &mut Reading) {
        let text = format!(
            "parts of the memory with SBCL's objects could not be read ({missing} bytes, {} files): live and dead \
             objects are not distinguished",
            self.copied.unopened
        );
        let bytes = Some(self.heap.bytes_allocated);
        reading.caveats.push(Caveat::new("sbcl_core_not_read", self.place.clone(), bytes, text));
        let Some(slots) = Slots::new(&mut reading.palette, &rows::ALLOCATED) else { return };
        let claim = spaces::claim_pages(&self.pages, &self.heap, &self.regions, self.layout, &slots);
        self.figures.free_resident_bytes = claim.sums.resident.of(Class::Refined(slots.free));
        self.figures.waste_resident_bytes = claim.sums.resident.of(Class::Refined(slots.waste));
        self.figures.write_to(&mut reading.facts);
        reading.zero_runs.extend(self.pages.zero_runs());
        reading.claims.push(claim);
    }

    fn caveats(&self, census: &Census) -> Vec<Caveat> {
        let mut caveats = Vec::new();
        if let Some(at) = census.damage {
            let text = "SBCL's objects are inconsistent from here to the end of their run: the rest of the run counts as neither live nor dead, and \
                        objects that it may point to count as live";
            caveats.push(Caveat::new("sbcl_damaged", format!("{at:#x}"), Some(census.unread_bytes), text));
        }
        if self.roots.whole_stacks > 0 {
            let text = format!(
                "the extent of the control stack in use is not known for {} of SBCL's threads: their whole stacks count as roots",
                self.roots.whole_stacks
            );
            caveats.push(Caveat::new("sbcl_whole_stack", self.place.clone(), None, text));
        }
        caveats
    }
}

/// Dynamic space after a collection.
#[derive(Clone, Copy, Debug)]
struct AfterCollection {
    /// Dynamic usage.
    usage_bytes: u64,
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

/// Records the starts of all objects of dynamic space. Returns the ranges that could not be walked.
fn note_all_starts(store: &HeapCopy, kinds: &Kinds, runs: &[Run], workers: usize) -> Vec<AddressRange> {
    let next = AtomicUsize::new(0);
    let unread = Mutex::new(Vec::new());
    let chunks: Vec<&[Run]> = runs.chunks(64).collect();
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for run in *chunk {
                        let end = objects::record_starts(store, kinds, *run);
                        if end < run.end
                            && let Ok(mut unread) = unread.lock()
                        {
                            unread.push(AddressRange::new(end, run.end));
                        }
                    }
                }
            });
        }
    });
    unread.into_inner().unwrap_or_default()
}

/// The types of all objects, live or dead, those with most bytes first.
fn all_types(census: &Census, names: &mut Names<'_>) -> Vec<TypeFacts> {
    let mut totals: Vec<(u64, u64, u64)> = census
        .types
        .iter()
        .map(|(&key, count)| (Tally::sum(&count.live), Tally::sum(&count.dead), key))
        .map(|(live, dead, key)| (live.bytes + dead.bytes, live.objects + dead.objects, key))
        .filter(|total| total.0 > 0)
        .collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    totals.truncate(MAX_TYPES_IN_ALL);
    let of = |(bytes, instances, key)| TypeFacts { name: names.of_key(key).0, instances, bytes };
    totals.into_iter().map(of).collect()
}

/// The types with most bytes, largest first.
fn by_type(census: &Census, names: &mut Names<'_>, which: impl Fn(&TypeCount) -> &Tallies) -> Vec<TypeBytes> {
    let mut all: Vec<TypeBytes> = Vec::new();
    let mut totals: Vec<(u64, u64)> = census
        .types
        .iter()
        .map(|(&key, count)| (Tally::sum(which(count)).bytes, key))
        .filter(|total| total.0 > 0)
        .collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    for (bytes, key) in totals.into_iter().take(MAX_TYPES) {
        let Some(counts) = census.types.get(&key).map(&which) else { continue };
        let (type_name, is_named) = names.of_key(key);
        let most =
            counts.iter().enumerate().max_by_key(|(_, tally)| tally.bytes).map_or(0, |(number, _)| number);
        all.push(TypeBytes {
            is_named,
            type_name,
            instances: Tally::sum(counts).objects,
            bytes,
            generation: most as u64,
            by_generation: (0..)
                .zip(counts)
                .filter(|(_, tally)| tally.objects > 0)
                .map(|(number, tally)| (number, tally.objects, tally.bytes))
                .collect(),
        });
    }
    all
}

//! Counts the objects of dynamic space by type, generation and reachability, and claims their
//! bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::heap::DynamicSpace;
use super::mark::PinnedSet;
use super::objects::{Kinds, Object, Run};
use super::spaces::Slots;
use super::store::{HeapCopy, UnitIndex};
use crate::sbcl::layout::{GC_PAGE_BYTES, GENERATIONS, Layout, ObjectKind, PSEUDO_STATIC};
use strandline_claims::accumulator::{AccumulatedPart, Accumulator, Class, OutOfOrder};
use strandline_claims::add_fields;
use strandline_claims::range::RangePages;
use strandline_process::range::AddressRange;
use strandline_process::work::on_threads;

/// Binary logarithm of the number of entries of the cache of types.
const CACHE_BITS: u32 = 10;
/// Number of entries of the cache of types.
const CACHE_ENTRIES: usize = 1 << CACHE_BITS;
/// Limit on distinct types, beyond which instances count as [`TypeKey::OtherLayouts`]: a program
/// has thousands, a damaged heap as many as it has instances.
const MAX_TYPES: usize = 65_536;
/// Factor of Fibonacci hashing: 2^64 divided by the golden ratio.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Runs that a thread counts at a time.
pub const RUNS_AT_ONCE: usize = 64;

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TypeKey {
    /// That of an object without a layout, by its widetag; 0 for conses.
    Widetag(u8),
    /// That of instances with the layout at this address.
    Layout(u32),
    /// All further types of instances.
    OtherLayouts,
}

impl TypeKey {
    /// The key under which a type is counted: `self`, unless it is a further type of instances
    /// while there are [`MAX_TYPES`] `types`.
    fn within_limit(self, types: usize, is_counted: impl Fn(&Self) -> bool) -> Self {
        let is_full = types >= MAX_TYPES && matches!(self, Self::Layout(_)) && !is_counted(&self);
        if is_full { Self::OtherLayouts } else { self }
    }
}

/// A number of objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    /// The sum of several tallies.
    pub fn sum(tallies: &[Self]) -> Self {
        let mut sum = Self::default();
        tallies.iter().for_each(|tally| sum.add(*tally));
        sum
    }
}

/// Tallies by generation.
pub type Tallies = [Tally; GENERATIONS];

/// Objects of one type, reachable and not, by generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeCount {
    /// Reachable, or pseudo-static.
    pub live: Tallies,
    /// Not reachable.
    pub dead: Tallies,
}

impl TypeCount {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        for (sums, addend) in [(&mut self.live, &other.live), (&mut self.dead, &other.dead)] {
            sums.iter_mut().zip(addend).for_each(|(sum, addend)| sum.add(*addend));
        }
    }
}

/// Counts of all types.
#[derive(Default)]
pub struct Census {
    /// Counts by type.
    pub types: HashMap<TypeKey, TypeCount>,
    /// Bytes of fillers, by generation.
    pub filler_bytes: [u64; GENERATIONS],
    /// Bytes of runs behind the point where the walk failed, and of objects on no page.
    pub unread_bytes: u64,
    /// Live bytes that a full collection copies: all but those of large, pinned or pseudo-static
    /// objects.
    pub moved_bytes: u64,
    /// Live bytes of large objects that are not pseudo-static.
    pub large_bytes: u64,
    /// Resident bytes of these objects.
    pub large_resident_bytes: u64,
    /// The lowest address of the unread bytes; `None` if all bytes were read.
    pub damage_address: Option<u64>,
}

impl Census {
    fn add(&mut self, other: Self) {
        for (key, count) in other.types {
            let key = key.within_limit(self.types.len(), |key| self.types.contains_key(key));
            self.types.entry(key).or_default().add(&count);
        }
        for (sum, addend) in self.filler_bytes.iter_mut().zip(other.filler_bytes) {
            *sum += addend;
        }
        add_fields!(self, other: unread_bytes, moved_bytes, large_bytes, large_resident_bytes);
        self.damage_address = [self.damage_address, other.damage_address].into_iter().flatten().min();
    }

    /// Counts bytes in use whose objects are unknown.
    fn note_unread(&mut self, start: u64, end: u64) {
        self.unread_bytes += end - start;
        self.damage_address = Some(self.damage_address.map_or(start, |lowest| lowest.min(start)));
    }
}

/// Counts by type, with a small cache because most objects are of few types.
struct TypeCounter {
    counts: Vec<CountedType>,
    /// Index of each type in `counts`.
    indices: HashMap<TypeKey, usize>,
    /// The type counted last of each hash.
    cache: Vec<Option<CachedIndex>>,
}

/// A type and its count.
struct CountedType {
    key: TypeKey,
    count: TypeCount,
}

/// Where a type is counted.
#[derive(Clone, Copy)]
struct CachedIndex {
    key: TypeKey,
    /// Its index in [`TypeCounter::counts`].
    index: usize,
}

impl TypeCounter {
    fn new() -> Self {
        Self { counts: Vec::new(), indices: HashMap::new(), cache: vec![None; CACHE_ENTRIES] }
    }

    #[inline]
    fn count_mut(&mut self, key: TypeKey) -> Option<&mut TypeCount> {
        let bits = match key {
            TypeKey::Widetag(widetag) => u64::from(widetag),
            TypeKey::Layout(address) => u64::from(address),
            TypeKey::OtherLayouts => u64::MAX,
        };
        let entry = (bits.wrapping_mul(HASH_FACTOR) >> (u64::BITS - CACHE_BITS)) as usize;
        let cached = self.cache[entry].filter(|cached| cached.key == key);
        let index = match cached {
            Some(cached) => cached.index,
            None => {
                let next = self.counts.len();
                let key = key.within_limit(next, |key| self.indices.contains_key(key));
                let index = *self.indices.entry(key).or_insert(next);
                if index == next {
                    self.counts.push(CountedType { key, count: TypeCount::default() });
                }
                self.cache[entry] = Some(CachedIndex { key, index });
                index
            }
        };
        self.counts.get_mut(index).map(|counted| &mut counted.count)
    }

    fn into_counts(self) -> HashMap<TypeKey, TypeCount> {
        self.counts.into_iter().map(|counted| (counted.key, counted.count)).collect()
    }
}

/// Inputs of the census.
pub struct CensusContext<'a> {
    /// The copied objects, with their marks.
    pub store: &'a HeapCopy,
    /// Size and kind of an object by its header.
    pub kinds: &'a Kinds,
    /// The page table and the generations.
    pub heap: &'a DynamicSpace,
    /// The layout of the release.
    pub layout: &'static Layout,
    /// Dynamic space's runs of objects.
    pub runs: &'a [Run],
    /// The objects that conservative roots pin.
    pub pinned: &'a PinnedSet,
    /// Slots of live, dead, unused, free and unread bytes.
    pub slots: &'a Slots,
    /// Residency and all-zero pages of dynamic space.
    pub pages: &'a RangePages,
}

/// The claims on one chunk of runs.
struct ChunkClaims {
    /// Index of the chunk.
    index: usize,
    claims: AccumulatedPart,
}

/// What one thread counted.
struct ThreadCounts {
    census: Census,
    chunks: Vec<ChunkClaims>,
}

/// The counts of all objects, and the claims on their memory.
pub struct Counted {
    /// The counts.
    pub census: Census,
    /// The claims, up to the end of the pages that are or were in use.
    pub claims: AccumulatedPart,
}

impl CensusContext<'_> {
    /// Counts and claims all runs with `workers` threads.
    ///
    /// # Errors
    /// If the claims leave a gap: that of a thread that panicked.
    pub fn count(&self, workers: usize) -> Result<Counted, OutOfOrder> {
        let chunks: Vec<&[Run]> = self.runs.chunks(RUNS_AT_ONCE).collect();
        let next = AtomicUsize::new(0);
        let mut census = Census::default();
        let mut chunk_claims = Vec::with_capacity(chunks.len());
        for counts in on_threads(workers, || self.count_chunks(&chunks, &next)) {
            census.add(counts.census);
            chunk_claims.extend(counts.chunks);
        }
        chunk_claims.sort_by_key(|chunk| chunk.index);
        let mut claims = AccumulatedPart::empty(self.heap.start);
        for chunk in chunk_claims {
            claims.join(chunk.claims, self.pages)?;
        }
        if claims.end < self.heap.end() {
            let mut accumulator = Accumulator::new(claims.end, self.pages);
            self.claim_gap(&mut accumulator, self.heap.end());
            claims.join(accumulator.cut(), self.pages)?;
        }
        Ok(Counted { census, claims })
    }

    /// Counts and claims chunks of runs, from `next` on, until none is left.
    fn count_chunks(&self, chunks: &[&[Run]], next: &AtomicUsize) -> ThreadCounts {
        let mut census = Census::default();
        let mut counter = TypeCounter::new();
        let mut chunk_claims = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(index) else { break };
            // A chunk extends to the start of the next one; none is empty.
            let start_of = |chunk: &&[Run]| chunk.first().map(|run| run.start);
            let own_start = start_of(chunk).filter(|_| index > 0);
            let start = own_start.unwrap_or(self.heap.start);
            let end = chunks.get(index + 1).and_then(start_of).unwrap_or(self.heap.end());
            let claims = self.count_runs(chunk, start, end, &mut census, &mut counter);
            chunk_claims.push(ChunkClaims { index, claims });
        }
        census.types = counter.into_counts();
        ThreadCounts { census, chunks: chunk_claims }
    }

    /// Counts the objects of `runs`, and claims `start..end`, which contains them.
    fn count_runs(
        &self,
        runs: &[Run],
        start: u64,
        end: u64,
        census: &mut Census,
        counter: &mut TypeCounter,
    ) -> AccumulatedPart {
        let mut accumulator = Accumulator::new(start, self.pages);
        for run in runs {
            self.claim_gap(&mut accumulator, run.start);
            let walk_end = self.count_run(*run, &mut accumulator, census, counter);
            if walk_end < run.end {
                census.note_unread(walk_end, run.end);
                accumulator.claim_to(run.end, Class::Refined(self.slots.unread));
            }
        }
        self.claim_gap(&mut accumulator, end);
        accumulator.cut()
    }

    /// Claims memory without objects up to `end`: the rest of a page that has objects, and pages
    /// that are free or not used yet.
    fn claim_gap(&self, accumulator: &mut Accumulator<'_>, end: u64) {
        if !accumulator.cursor().is_multiple_of(GC_PAGE_BYTES) {
            let page_end = (accumulator.cursor() | (GC_PAGE_BYTES - 1)) + 1;
            accumulator.claim_to(page_end.min(end), Class::Refined(self.slots.waste));
        }
        while accumulator.cursor() < end {
            let is_free =
                self.heap.page_of(accumulator.cursor()).is_none_or(|page| page.is_free(self.layout));
            let slot = if is_free { self.slots.free } else { self.slots.waste };
            accumulator.claim_to((accumulator.cursor() + GC_PAGE_BYTES).min(end), Class::Refined(slot));
        }
    }

    /// Counts and claims the objects of one run. Returns the address where the walk ended, which is
    /// before the end of the run if the walk failed.
    fn count_run(
        &self,
        run: Run,
        accumulator: &mut Accumulator<'_>,
        census: &mut Census,
        counter: &mut TypeCounter,
    ) -> u64 {
        let is_large = self.heap.pages.get(run.page).is_some_and(|page| page.is_large(self.layout));
        super::objects::walk(self.store, self.kinds, run, |Object { address: at, words, header }| {
            let bytes = words * 8;
            let Some(page) = self.heap.page_of(at) else {
                census.note_unread(at, at + bytes);
                accumulator.claim_to(at + bytes, Class::Refined(self.slots.unread));
                return;
            };
            let generation = usize::from(page.generation);
            let unit = self.store.unit(at);
            let is_reached = unit.is_some_and(|unit| self.store.is_marked(unit));
            let is_live = is_reached || generation == PSEUDO_STATIC;
            if is_reached && generation != PSEUDO_STATIC {
                if is_large {
                    census.large_resident_bytes +=
                        self.pages.runs_in(at, at + bytes).map(AddressRange::len).sum::<u64>();
                    census.large_bytes += bytes;
                } else if !self.is_pinned(at, unit) {
                    census.moved_bytes += bytes;
                }
            }
            if self.kinds.kind_of(header) == Some(ObjectKind::Filler) {
                if let Some(filler_bytes) = census.filler_bytes.get_mut(generation) {
                    *filler_bytes += bytes;
                }
                accumulator.claim_to(at + bytes, Class::Refined(self.slots.waste));
                return;
            }
            if let Some(count) = counter.count_mut(self.type_of(header)) {
                let counts = if is_live { &mut count.live } else { &mut count.dead };
                if let Some(tally) = counts.get_mut(generation) {
                    tally.add(Tally { objects: 1, bytes });
                }
            }
            let slots = if is_live { &self.slots.live } else { &self.slots.dead };
            // `parse_page` of heap.rs admits no other generation.
            let slot = slots.get(generation).copied().unwrap_or(self.slots.unread);
            accumulator.claim_to(at + bytes, Class::Refined(slot));
        })
    }

    /// Whether conservative roots pin the object at `unit`, which has this address.
    fn is_pinned(&self, address: u64, unit: Option<UnitIndex>) -> bool {
        // Most pages have no pinned object, and need no search.
        self.heap.index_of(address).is_some_and(|page| self.pinned.has_page(page))
            && unit.is_some_and(|unit| self.pinned.objects.binary_search(&unit).is_ok())
    }

    #[inline]
    fn type_of(&self, header: u64) -> TypeKey {
        match self.kinds.kind_of(header) {
            Some(ObjectKind::Cons) => TypeKey::Widetag(0),
            // The upper half of the header is the address of the layout.
            Some(ObjectKind::Instance | ObjectKind::FunInstance) if header >> 32 != 0 => {
                TypeKey::Layout((header >> 32) as u32)
            }
            _ => TypeKey::Widetag(header as u8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_distinct_types_is_limited() {
        let mut counter = TypeCounter::new();
        for layout in 0..3 * MAX_TYPES as u32 {
            counter.count_mut(TypeKey::Layout(0x1000 + layout * 16)).unwrap().dead[0].objects += 1;
        }
        counter.count_mut(TypeKey::Widetag(0x11)).unwrap().dead[0].objects += 1;
        assert_eq!(counter.counts.len(), MAX_TYPES + 2, "also a key for further types, and a widetag");
        let mut census = Census { types: counter.into_counts(), ..Census::default() };
        let counts = (0..100).map(|layout| (TypeKey::Layout(0x8000_0000 + layout), TypeCount::default()));
        let counts = counts.collect();
        census.add(Census { types: counts, ..Census::default() });
        assert_eq!(census.types.len(), MAX_TYPES + 2);
        let counted_objects: u64 = census.types.values().map(|count| count.dead[0].objects).sum();
        assert_eq!(counted_objects, 3 * MAX_TYPES as u64 + 1);
    }
}

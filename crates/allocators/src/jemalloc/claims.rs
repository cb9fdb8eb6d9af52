//! Classifies each byte of an extent: regions of slabs, large allocations, free pages.
//!
//! A slab in full use is one claim; for each region of other slabs the bitmap and the thread caches
//! are checked.

use std::collections::BTreeMap;
use std::time::Instant;

use super::caches::CacheContents;
use super::extents::Extent;
use super::layout::{
    Layout, NUM_CLASSES, NUM_SMALL_CLASSES, State, arena_index, class_bytes, regions_per_slab,
};
use super::locate::read_extent;
use crate::blocks::{Blocks, CachedBlock};
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::{Context, RangeClaim};
use strandline_claims::bits;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::range::{PAGE_BYTES, RangePages};
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Regions of slabs, or large allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Regions {
    /// Their number.
    pub count: u64,
    /// Their usable bytes.
    pub bytes: u64,
}

impl Regions {
    fn add(&mut self, count: u64, region_bytes: u64) {
        self.count += count;
        self.bytes += count * region_bytes;
    }
}

/// Totals of the extents of one size class, slabs or large allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassTotals {
    /// Number of extents in use.
    pub extents: u64,
    /// Bytes of extents in use.
    pub extent_bytes: u64,
    /// In use by the program: neither cached nor jemalloc's own.
    pub live: Regions,
    /// In thread caches.
    pub cached: Regions,
    /// jemalloc's own allocations.
    pub internal: Regions,
    /// Free.
    pub free: Regions,
}

/// Bytes of extents, by state.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaBytes {
    /// In use.
    pub active_bytes: u64,
    /// Dirty.
    pub dirty_bytes: u64,
    /// Muzzy.
    pub muzzy_bytes: u64,
    /// Returned to the kernel; only the addresses are kept.
    pub retained_bytes: u64,
}

/// Totals of all extents.
#[derive(Default)]
pub struct Counts {
    /// By size class.
    pub classes: BTreeMap<usize, ClassTotals>,
    /// Bytes by arena index.
    pub arenas: BTreeMap<u64, ArenaBytes>,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid extents, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Cached blocks that matched a region in use.
    pub matched_blocks: u64,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `extents`: one claim per run of adjacent extents.
pub fn claim(
    context: &Context<'_>,
    layout: &Layout,
    extents: &[Extent],
    caches: &CacheContents,
) -> (Vec<RangeClaim>, Counts) {
    let mut claimer = Claimer {
        context,
        layout,
        cache: PageCache::new(context.memory),
        marked: MarkedRegions { cached_blocks: &caches.blocks, own_addresses: &caches.own_addresses },
        padding_bytes: padding_bytes(layout, extents),
        blocks: Blocks::new(context),
        counts: Counts::default(),
    };
    let mut claims = Vec::new();
    for run in extents.chunk_by(|extent, next| extent.end == next.start) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let (start, end) = (first.start, last.end);
        let pages: RangePages = context.pages((start, end));
        let mut accumulator = Accumulator::new(start, &pages);
        for extent in run {
            claimer.claim_extent(extent, &mut accumulator);
        }
        let sums = accumulator.cut().finish(&pages);
        claims.push(RangeClaim { start, end, sums });
    }
    claimer.counts.matched = claimer.blocks.matched;
    claimer.counts.bytes_read = claimer.cache.bytes_read;
    (claims, claimer.counts)
}

struct Claimer<'a> {
    context: &'a Context<'a>,
    layout: &'a Layout,
    cache: PageCache<'a>,
    /// The marked regions at or after the current extent.
    marked: MarkedRegions<'a>,
    /// Bytes by which the extent of a large allocation exceeds it.
    padding_bytes: u64,
    blocks: Blocks<'a>,
    counts: Counts,
}

/// Regions that are in use but not live, in address order.
#[derive(Clone, Copy)]
struct MarkedRegions<'a> {
    /// Regions in thread caches.
    cached_blocks: &'a [CachedBlock],
    /// Addresses of jemalloc's own structures.
    own_addresses: &'a [u64],
}

impl<'a> MarkedRegions<'a> {
    /// Returns the regions within `range`, and advances past them.
    fn advance_to(&mut self, range: AddressRange) -> Self {
        Self {
            cached_blocks: advance_to(&mut self.cached_blocks, |block| block.address, range),
            own_addresses: advance_to(&mut self.own_addresses, |&address| address, range),
        }
    }

    fn is_empty(&self) -> bool {
        self.cached_blocks.is_empty() && self.own_addresses.is_empty()
    }
}

/// A slab, as its extent describes it.
struct Slab {
    start: u64,
    /// One bit per region, set if it is free.
    bitmap: [u64; 8],
    class: usize,
    /// Bytes of a region.
    region_bytes: u64,
    /// Number of regions.
    regions: u64,
}

/// Returns the items (in address order) within `range`, and advances `items` past them.
fn advance_to<'a, T>(items: &mut &'a [T], address: impl Fn(&T) -> u64, range: AddressRange) -> &'a [T] {
    if items.is_empty() {
        return items;
    }
    let (before_end, after_end) = items.split_at(items.partition_point(|item| address(item) < range.end));
    *items = after_end;
    within(before_end, range, address)
}

impl Claimer<'_> {
    fn claim_extent(&mut self, extent: &Extent, accumulator: &mut Accumulator<'_>) {
        if extent.structure == 0 {
            // Free pages of a huge page.
            return accumulator.claim_to(extent.end, Class::Free);
        }
        let bytes = extent.end - extent.start;
        let arena = self.counts.arenas.entry(arena_index(extent.bits)).or_default();
        match self.layout.state(extent.bits) {
            // An active extent without a size class is nearly free: a purge takes extents while it
            // works (`extents_evict`, `ecache_evict`), and extents of huge pages wait in a cache
            // for a request of their size (`sec.c`).
            Some(State::Active) if self.layout.class(extent.bits) == NUM_CLASSES => {
                arena.active_bytes += if self.layout.is_of_huge_page(extent.bits) { 0 } else { bytes };
                accumulator.claim_to(extent.end, Class::Free);
            }
            Some(State::Active) => {
                arena.active_bytes += bytes;
                self.claim_active(extent, accumulator);
            }
            Some(state @ (State::Dirty | State::Muzzy)) => {
                *(if state == State::Dirty { &mut arena.dirty_bytes } else { &mut arena.muzzy_bytes }) +=
                    bytes;
                let is_locked = self.context.is_locked(extent.range());
                let releasable_end = if is_locked { extent.start } else { extent.end };
                accumulator.claim_free(extent.end, extent.start, releasable_end);
            }
            Some(State::Retained) => {
                arena.retained_bytes += bytes;
                accumulator.claim_to(extent.end, Class::Free);
            }
            Some(State::Transition) | None => accumulator.claim_to(extent.end, Class::Free),
        }
    }

    fn claim_active(&mut self, extent: &Extent, accumulator: &mut Accumulator<'_>) {
        if Instant::now() >= self.context.deadline {
            self.counts.doubts.note_timeout(extent.start);
            return accumulator.claim_to(extent.end, Class::Unread);
        }
        let marked = self.marked.advance_to(extent.range());
        let class = self.layout.class(extent.bits);
        let claimed = if extent.is_slab(self.layout) {
            self.claim_slab(extent, class, marked, accumulator)
        } else {
            self.claim_large(extent, class, marked, accumulator)
        };
        if claimed.is_none() {
            self.counts.doubts.note_damage(extent.start, extent.end - accumulator.cursor());
            accumulator.claim_to(extent.end, Class::Unread);
        }
    }

    /// Claims a slab. `None` if it is invalid; then nothing is claimed.
    fn claim_slab(
        &mut self,
        extent: &Extent,
        class: usize,
        marked: MarkedRegions<'_>,
        accumulator: &mut Accumulator<'_>,
    ) -> Option<()> {
        let region_bytes = class_bytes(class)?;
        let regions = regions_per_slab(class, extent.end - extent.start)?;
        let end = extent.start + regions * region_bytes;
        if self.layout.free_regions(extent.bits) == 0 && marked.is_empty() && !self.blocks.are_refined() {
            accumulator.claim_to(end, Class::Live);
            self.add_extent(class, extent).live.add(regions, region_bytes);
        } else {
            let fields = read_extent(&mut self.cache, extent.structure)?;
            if fields.bits != extent.bits || !self.layout.slab_count_matches_bitmap(&fields) {
                return None;
            }
            self.add_extent(class, extent);
            let slab = Slab { start: extent.start, bitmap: fields.bitmap, class, region_bytes, regions };
            self.claim_regions(&slab, marked, accumulator);
        }
        accumulator.claim_to(extent.end, Class::Header);
        Some(())
    }

    /// Counts an extent; returns the totals of its class.
    fn add_extent(&mut self, class: usize, extent: &Extent) -> &mut ClassTotals {
        let totals = self.counts.classes.entry(class).or_default();
        totals.extents += 1;
        totals.extent_bytes += extent.end - extent.start;
        totals
    }

    /// Claims the regions of a slab one by one.
    fn claim_regions(
        &mut self,
        slab: &Slab,
        mut marked: MarkedRegions<'_>,
        accumulator: &mut Accumulator<'_>,
    ) {
        let &Slab { start, class, region_bytes, .. } = slab;
        let totals = self.counts.classes.entry(class).or_default();
        for region in 0..slab.regions {
            let pointer = start + region * region_bytes;
            let end = pointer + region_bytes;
            let marks = marked.advance_to(AddressRange::new(pointer, end));
            if bits::has(&slab.bitmap, region as usize) {
                totals.free.add(1, region_bytes);
                accumulator.claim_to(end, Class::Free);
            } else if marks.cached_blocks.contains(&CachedBlock { address: pointer, class: class as u16 }) {
                totals.cached.add(1, region_bytes);
                self.counts.matched_blocks += 1;
                accumulator.claim_to(end, Class::Cached);
            } else if !marks.own_addresses.is_empty() {
                totals.internal.add(1, region_bytes);
                accumulator.claim_to(end, Class::Metadata);
            } else {
                totals.live.add(1, region_bytes);
                self.blocks.claim(end, accumulator);
            }
        }
    }

    /// Claims a large allocation, which begins at a cache line of its first page: its extent has
    /// one extra page so that not all allocations are aligned the same (`opt.cache_oblivious`).
    fn claim_large(
        &mut self,
        extent: &Extent,
        class: usize,
        marked: MarkedRegions<'_>,
        accumulator: &mut Accumulator<'_>,
    ) -> Option<()> {
        let class_size = class_bytes(class)?;
        let extent_bytes = extent.end - extent.start;
        // From 5.3.1 on large allocations are whole pages, not the size of their class
        // (`edata_usize_get`, `opt.disable_large_size_classes`). A small allocation that is sampled
        // for a profile has its own extent.
        let bytes = if class < NUM_SMALL_CLASSES {
            class_size
        } else {
            class_size.min(extent_bytes.checked_sub(self.padding_bytes)?)
        };
        let end = extent.pointer.checked_add(bytes).filter(|&end| end <= extent.end)?;
        let is_cached =
            marked.cached_blocks.contains(&CachedBlock { address: extent.pointer, class: class as u16 });
        let totals = self.add_extent(class, extent);
        accumulator.claim_to(extent.pointer, Class::Header);
        if is_cached {
            totals.cached.add(1, bytes);
            self.counts.matched_blocks += 1;
            accumulator.claim_to(end, Class::Cached);
        } else if !marked.own_addresses.is_empty() {
            totals.internal.add(1, bytes);
            accumulator.claim_to(end, Class::Metadata);
        } else {
            totals.live.add(1, bytes);
            self.blocks.claim(end, accumulator);
        }
        accumulator.claim_to(extent.end, Class::Header);
        Some(())
    }
}

/// Returns by how many bytes extents of large allocations exceed them: a page, unless every
/// allocation begins where its extent does and some extent is exactly as large as its class.
fn padding_bytes(layout: &Layout, extents: &[Extent]) -> u64 {
    let is_large = |extent: &&Extent| {
        layout.state(extent.bits) == Some(State::Active)
            && !extent.is_slab(layout)
            && layout.class(extent.bits) >= NUM_SMALL_CLASSES
    };
    let is_moved = |extent: &Extent| extent.pointer != extent.start;
    let is_full = |extent: &Extent| class_bytes(layout.class(extent.bits)) == Some(extent.end - extent.start);
    let large_extents = || extents.iter().filter(is_large);
    if !large_extents().any(is_moved) && large_extents().any(is_full) { 0 } else { PAGE_BYTES }
}

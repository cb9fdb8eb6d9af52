//! Classifies each byte of an extent: regions of slabs, large allocations, free pages.
//!
//! A slab in full use is one claim; for each region of other slabs the bitmap and the thread caches
//! are checked.

use std::collections::BTreeMap;

use super::caches::CacheContents;
use super::extents::Extent;
use super::layout::{Layout, State, arena_index};
use super::locate::read_extent;
use crate::blocks::{Blocks, CachedBlock, claim_range};
use crate::parallel::Claimed;
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_claims::bits;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::SizeClass;
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// A number of regions of slabs and large allocations.
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
    /// By size class. jemalloc's own allocations count as live there.
    pub classes: BTreeMap<usize, SizeClass>,
    /// In use by the program: neither cached nor jemalloc's own.
    pub live: Regions,
    /// In thread caches.
    pub cached: Regions,
    /// jemalloc's own allocations.
    pub internal: Regions,
    /// Bytes of free regions.
    pub free_bytes: u64,
    /// Bytes by arena index.
    pub arenas: BTreeMap<u64, ArenaBytes>,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid extents, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `extents`: one claim per run of adjacent extents.
pub fn claim(
    context: &Context<'_>,
    layout: &Layout,
    extents: &[Extent],
    caches: &CacheContents,
) -> Claimed<Counts> {
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
        claims.push(claim_range(context, AddressRange::new(first.start, last.end), |accumulator| {
            for extent in run {
                claimer.claim_extent(extent, accumulator);
            }
        }));
    }
    claimer.counts.matched = claimer.blocks.matched;
    claimer.counts.bytes_read = claimer.cache.bytes_read;
    Claimed { claims, counts: claimer.counts }
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
        let Some(structure) = extent.structure else {
            // Free pages of a huge page.
            return accumulator.claim_to(extent.end, Class::Free);
        };
        let bytes = extent.end - extent.start;
        let arena = self.counts.arenas.entry(arena_index(extent.bits)).or_default();
        match self.layout.state(extent.bits) {
            // An active extent without a size class holds nothing live: a purge takes such extents
            // while it works (`extents_evict`, `ecache_evict`), and those of huge pages wait in a
            // cache for a request of their size (`sec.c`).
            Some(State::Active) if self.layout.class(extent.bits) == self.layout.classes.count() => {
                arena.active_bytes += if self.layout.is_of_huge_page(extent.bits) { 0 } else { bytes };
                accumulator.claim_to(extent.end, Class::Free);
            }
            Some(State::Active) => {
                arena.active_bytes += bytes;
                self.claim_active(extent, structure, accumulator);
            }
            Some(state @ (State::Dirty | State::Muzzy)) => {
                let state_bytes =
                    if state == State::Dirty { &mut arena.dirty_bytes } else { &mut arena.muzzy_bytes };
                *state_bytes += bytes;
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

    /// Claims an extent in use, whose structure is at `structure`.
    fn claim_active(&mut self, extent: &Extent, structure: u64, accumulator: &mut Accumulator<'_>) {
        let marked = self.marked.advance_to(extent.range());
        if self.context.deadline_passed() {
            self.counts.doubts.note_timeout(extent.start);
        } else {
            let claimed = if extent.is_slab(self.layout) {
                self.claim_slab(extent, structure, marked, accumulator)
            } else {
                self.claim_large(extent, marked, accumulator)
            };
            if let Some(totals) = claimed {
                let class = self.layout.class(extent.bits);
                return self.counts.classes.entry(class).or_default().add(&totals);
            }
            self.counts.doubts.note_damage(extent.start, extent.end - accumulator.cursor());
        }
        accumulator.claim_to(extent.end, Class::Unread);
    }

    /// Claims a slab; returns its totals. `None` if it is invalid; then nothing is claimed.
    fn claim_slab(
        &mut self,
        extent: &Extent,
        structure: u64,
        mut marked: MarkedRegions<'_>,
        accumulator: &mut Accumulator<'_>,
    ) -> Option<SizeClass> {
        let class = self.layout.class(extent.bits);
        let mut totals = extent_totals(extent, self.layout.classes.bytes(class)?);
        let regions = self.layout.classes.regions_per_slab(class, totals.span_bytes)?;
        if self.layout.free_regions(extent.bits) == 0 && marked.is_empty() && !self.blocks.are_refined() {
            accumulator.claim_to(extent.start + regions * totals.bytes, Class::Live);
            self.counts.live.add(regions, totals.bytes);
            totals.live_blocks += regions;
        } else {
            let fields = read_extent(&mut self.cache, structure)?;
            if fields.bits != extent.bits || !self.layout.slab_count_matches_bitmap(&fields) {
                return None;
            }
            for region in 0..regions {
                let range = AddressRange::sized(extent.start + region * totals.bytes, totals.bytes);
                let marks = marked.advance_to(range);
                if bits::has(&fields.bitmap, region as usize) {
                    totals.free_blocks += 1;
                    self.counts.free_bytes += totals.bytes;
                    accumulator.claim_to(range.end, Class::Free);
                } else {
                    self.claim_region(range, class, marks, &mut totals, accumulator);
                }
            }
        }
        accumulator.claim_to(extent.end, Class::Header);
        Some(totals)
    }

    /// Claims a region or a large allocation that looks in use.
    fn claim_region(
        &mut self,
        range: AddressRange,
        class: usize,
        marks: MarkedRegions<'_>,
        totals: &mut SizeClass,
        accumulator: &mut Accumulator<'_>,
    ) {
        // There are 235 classes at most.
        let cached_block = CachedBlock { address: range.start, class: class as u16 };
        if marks.cached_blocks.contains(&cached_block) {
            totals.cached_blocks += 1;
            self.counts.cached.add(1, range.len());
            accumulator.claim_to(range.end, Class::Cached);
            return;
        }
        totals.live_blocks += 1;
        if marks.own_addresses.is_empty() {
            self.counts.live.add(1, range.len());
            self.blocks.claim(range.end, accumulator);
        } else {
            self.counts.internal.add(1, range.len());
            accumulator.claim_to(range.end, Class::Metadata);
        }
    }

    /// Claims a large allocation, which begins at a cache line of its first page: its extent has
    /// one extra page so that not all allocations are aligned the same (`opt.cache_oblivious`).
    /// Returns its totals; `None` if it is invalid, and then nothing is claimed.
    fn claim_large(
        &mut self,
        extent: &Extent,
        marked: MarkedRegions<'_>,
        accumulator: &mut Accumulator<'_>,
    ) -> Option<SizeClass> {
        let class = self.layout.class(extent.bits);
        let class_size = self.layout.classes.bytes(class)?;
        let mut totals = extent_totals(extent, class_size);
        // From 5.3.1 on large allocations are whole pages, not the size of their class
        // (`edata_usize_get`, `opt.disable_large_size_classes`). A small allocation that is sampled
        // for a profile has its own extent.
        let bytes = if class < self.layout.classes.small_count() {
            class_size
        } else {
            class_size.min(totals.span_bytes.checked_sub(self.padding_bytes)?)
        };
        let end = extent.pointer.checked_add(bytes).filter(|&end| end <= extent.end)?;
        accumulator.claim_to(extent.pointer, Class::Header);
        let allocation = AddressRange::new(extent.pointer, end);
        self.claim_region(allocation, class, marked, &mut totals, accumulator);
        accumulator.claim_to(extent.end, Class::Header);
        Some(totals)
    }
}

/// Totals of one extent with regions of `bytes`, before its regions are counted.
fn extent_totals(extent: &Extent, bytes: u64) -> SizeClass {
    SizeClass { bytes, spans: 1, span_bytes: extent.end - extent.start, ..SizeClass::default() }
}

/// Returns by how many bytes extents of large allocations exceed them: a page, unless every
/// allocation begins where its extent does and some extent is exactly as large as its class.
fn padding_bytes(layout: &Layout, extents: &[Extent]) -> u64 {
    let is_large = |extent: &&Extent| {
        layout.state(extent.bits) == Some(State::Active)
            && !extent.is_slab(layout)
            && layout.class(extent.bits) >= layout.classes.small_count()
    };
    let is_moved = |extent: &Extent| extent.pointer != extent.start;
    let is_full =
        |extent: &Extent| layout.classes.bytes(layout.class(extent.bits)) == Some(extent.end - extent.start);
    let large_extents = || extents.iter().filter(is_large);
    if !large_extents().any(is_moved) && large_extents().any(is_full) { 0 } else { PAGE_BYTES }
}

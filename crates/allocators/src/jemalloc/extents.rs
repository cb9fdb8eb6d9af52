//! Walks all extents of a jemalloc in address order, through its page map.

use super::layout::{Layout, PAGE_MAP_LAYOUT, State, entry_extent, is_slab};
use super::locate::{PageMap, read_extent};
use crate::radix::{self, UnclaimedMemory, Walk};
use strandline_claims::allocator::Context;
use strandline_process::page_cache::PageCache;
use strandline_process::range::{AddressRange, RangeSet};

/// An extent: a run of pages of one state.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Address of the structure that describes it; free pages of a huge page have none.
    pub structure: Option<u64>,
    /// Pointer of a large allocation.
    pub pointer: u64,
    /// Its flags (`e_bits`).
    pub bits: u64,
}

/// All extents of one jemalloc.
#[derive(Default)]
pub struct Extents {
    /// The extents, in address order, without overlap.
    pub all: Vec<Extent>,
    /// Outcome of the walk.
    pub walk: Walk,
}

/// Walks the extents under `page_map` outside `taken` (claimed by others).
pub fn walk(context: &Context<'_>, page_map: &PageMap, taken: &RangeSet) -> Extents {
    let mut extents: Vec<Extent> = Vec::new();
    let mut unclaimed = UnclaimedMemory::new(context, taken);
    let walk = radix::walk(context, &page_map.leaves, PAGE_MAP_LAYOUT, &mut |cache, page, entry| {
        let extent = extent_at(cache, page, entry, page_map.layout)?;
        if !unclaimed.contains(extent.range()) {
            return None;
        }
        (context.progress)(extent.end - extent.start);
        extents.push(extent);
        Some(extent.end)
    });
    Extents { all: extents, walk }
}

/// Returns the extent that begins at `page` and to which `entry` of the map points.
fn extent_at(cache: &mut PageCache<'_>, page: u64, entry: u64, layout: &Layout) -> Option<Extent> {
    let structure = entry_extent(entry)?;
    let fields = read_extent(cache, structure)?;
    let end = page.checked_add(fields.bytes)?;
    let is_consistent = fields.start() == page && layout.state(fields.bits).is_some();
    is_consistent.then_some(Extent {
        start: page,
        end,
        structure: Some(structure),
        pointer: fields.address,
        bits: fields.bits,
    })
}

impl Extent {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Whether it is a slab in use.
    pub fn is_slab(&self, layout: &Layout) -> bool {
        is_slab(self.bits) && layout.state(self.bits) == Some(State::Active)
    }
}

//! Goes over all extents of a jemalloc in address order: what its map says of each page that it has.

use super::layout::{Layout, MAP, State, entry_extent};
use super::locate::{Tree, read_extent};
use crate::page_cache::PageCache;
use crate::radix::{self, Free, Walk};
use strandline_claims::allocator::Context;

/// An extent: a run of pages of one state.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Where the structure that describes it stands; 0 for free pages of a huge page, of which no extent is.
    pub structure: u64,
    /// What a large allocation's pointer is.
    pub pointer: u64,
    /// Its flags.
    pub bits: u64,
}

/// All of them.
#[derive(Default)]
pub struct Extents {
    /// In address order, without overlap.
    pub all: Vec<Extent>,
    /// What became of the walk over them.
    pub walk: Walk,
}

/// Goes over the extents under `tree`, where `taken` (in address order) is claimed by others.
pub fn walk(context: &Context<'_>, tree: &Tree, layout: &Layout, taken: &[(u64, u64)]) -> Extents {
    let mut all: Vec<Extent> = Vec::new();
    let mut free = Free::new(context, taken);
    let walk = radix::walk(context, &tree.leaves, MAP, &mut |cache, page, entry| {
        let extent = extent_at(cache, (page, entry), layout)?;
        if !free.contains(extent.start, extent.end) {
            return None;
        }
        (context.progress)(extent.end - extent.start);
        all.push(extent);
        Some(extent.end)
    });
    Extents { all, walk }
}

/// The extent that begins at `page`, to which an entry of the map leads.
fn extent_at(cache: &mut PageCache<'_>, (page, entry): (u64, u64), layout: &Layout) -> Option<Extent> {
    let structure = entry_extent(entry);
    let words = read_extent(cache, structure)?;
    let end = page.checked_add(words.bytes)?;
    let is_one = words.start() == page && layout.state(words.bits).is_some();
    is_one.then_some(Extent { start: page, end, structure, pointer: words.address, bits: words.bits })
}

impl Extent {
    /// Whether it is in use as a slab of small regions.
    pub fn is_slab(&self, layout: &Layout) -> bool {
        self.bits >> 12 & 1 != 0 && layout.state(self.bits) == Some(State::Active)
    }
}

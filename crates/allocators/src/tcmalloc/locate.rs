//! Finds the table of size classes of tcmalloc (`SizeMap`) and the root of its page map, in the
//! static data of the program or library that contains it.
//!
//! The table is searched for first, because few programs have one. Then the page map is tried with
//! each page size that tcmalloc can be built with, because no structure holds the page size.

use super::ABOUT;
use super::layout::{
    BEFORE_SIZES_BYTES, Classes, LEAF_ALIGNMENT, MAPS, MIN_ROOT_BYTES, SIZES_BYTES, SPAN_BYTES, SpanFields,
};
use crate::radix::{self, FoundHeaps, Leaf, MapLayout, StaticData};
use strandline_claims::allocator::Context;
use strandline_process::map::AddressSpace;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// The heap of one tcmalloc.
pub struct Heap {
    /// An address in the program or library that contains it.
    pub object: u64,
    /// Name of that program or library.
    pub name: String,
    /// Range of its static data.
    pub data: AddressRange,
    /// Its size classes.
    pub classes: Classes,
    /// Layout of its page map.
    pub map_layout: MapLayout,
    /// Leaves of its page map.
    pub leaves: Vec<Leaf>,
}

/// Whether a mapped program or library may contain a tcmalloc.
pub fn is_possible(space: &AddressSpace) -> bool {
    !radix::large_data(space, MIN_ROOT_BYTES).is_empty()
}

/// Finds all heaps of a process.
pub fn find(context: &Context<'_>) -> FoundHeaps<Heap> {
    let mut found_heaps = FoundHeaps { heaps: Vec::new(), caveats: Vec::new() };
    for data in radix::large_data(context.space, MIN_ROOT_BYTES) {
        let Some(classes) = find_classes(context, &data) else { continue };
        match find_page_map(context, &data) {
            Some(PageMap { map_layout, root }) => found_heaps.heaps.push(Heap {
                object: data.object.start,
                name: data.object.name.clone(),
                data: data.range,
                classes,
                map_layout,
                leaves: radix::leaves(context, root, map_layout),
            }),
            None => found_heaps.add_unread(context, &ABOUT, &data.object.name),
        }
    }
    found_heaps
}

/// Finds the table of size classes.
fn find_classes(context: &Context<'_>, data: &StaticData<'_>) -> Option<Classes> {
    radix::size_table(context, data, &mut |at| {
        let mut bytes = vec![0; SIZES_BYTES];
        context.memory.read(at.checked_sub(BEFORE_SIZES_BYTES)?, &mut bytes).ok()?;
        Classes::new(&bytes, at)
    })
}

/// A page map.
struct PageMap {
    map_layout: MapLayout,
    /// Address of its root.
    root: u64,
}

/// Finds the page map, for the first page size with which a root is found.
fn find_page_map(context: &Context<'_>, data: &StaticData<'_>) -> Option<PageMap> {
    let candidates = radix::root_candidates(context, data, LEAF_ALIGNMENT);
    MAPS.iter().find_map(|&map_layout| {
        let range_of_span =
            |cache: &mut PageCache<'_>, entry| read_span(cache, entry)?.range(map_layout.page_shift);
        let found = radix::roots(context, data, &candidates, map_layout, &range_of_span);
        let root = found.roots.into_iter().next()?;
        Some(PageMap { map_layout, root })
    })
}

/// Reads the span structure at `address`; `None` if its fields are not those of a span.
pub fn read_span(cache: &mut PageCache<'_>, address: u64) -> Option<SpanFields> {
    let mut bytes = [0; SPAN_BYTES];
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    cache.read(address, &mut bytes).ok()?;
    SpanFields::new(&bytes)
}

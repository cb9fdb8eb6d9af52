//! Finds jemalloc's page map: a radix tree from pages to extents.

use std::time::Instant;

use super::layout::{EXTENT_BYTES, ExtentFields, LAYOUTS, Layout, PAGE_MAP_LAYOUT, entry_extent};
use crate::radix::{self, Leaf};
use crate::scan::each_word;
use strandline_claims::allocator::Context;
use strandline_process::map::AddressSpace;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Maximum extents sampled to determine the layout: most may be free and cast no vote.
const MAX_SAMPLED_EXTENTS: usize = 1 << 16;
/// Number of votes that suffices.
const ENOUGH_VOTES: usize = 256;
/// Minimum votes for a layout for each one against it.
const MIN_VOTES_PER_CONTRADICTION: usize = 10;
/// Minimum static data that can hold a root and more.
const MIN_DATA_BYTES: u64 = 2 << 20;

/// The page map of one jemalloc.
pub struct PageMap {
    /// An address in the program or library that contains it.
    pub object: u64,
    /// Name of that program or library.
    pub name: String,
    /// Its leaves, in address order.
    pub leaves: Vec<Leaf>,
    /// Its layout; `None` if no known one fits.
    pub layout: Option<&'static Layout>,
}

/// Whether a mapped program or library may contain one.
pub fn is_possible(space: &AddressSpace) -> bool {
    !radix::large_data(space, MIN_DATA_BYTES).is_empty()
}

/// Finds all page maps of a process.
pub fn find(context: &Context<'_>) -> Vec<PageMap> {
    let mut page_maps: Vec<PageMap> = Vec::new();
    for data in radix::large_data(context.space, MIN_DATA_BYTES) {
        let candidates = radix::root_candidates(context, &data, PAGE_MAP_LAYOUT.leaf_alignment);
        for root in radix::roots(context, &data, &candidates, PAGE_MAP_LAYOUT, &extent_of_entry) {
            let leaves = radix::leaves(context, root, PAGE_MAP_LAYOUT);
            let layout = layout_by_votes(context, &leaves);
            let (object, name) = (data.object.start, data.object.name.clone());
            page_maps.push(PageMap { object, name, leaves, layout });
        }
    }
    page_maps
}

/// Returns the range of the extent that an entry points to.
fn extent_of_entry(cache: &mut PageCache<'_>, entry: u64) -> Option<AddressRange> {
    let extent = read_extent(cache, entry_extent(entry))?;
    Some(AddressRange::new(extent.start(), extent.start().checked_add(extent.bytes)?))
}

/// Reads an extent structure.
pub fn read_extent(cache: &mut PageCache<'_>, address: u64) -> Option<ExtentFields> {
    if address == 0 {
        return None;
    }
    let mut bytes = [0; EXTENT_BYTES];
    let (first_half, second_half) = bytes.split_at_mut(EXTENT_BYTES / 2);
    cache.read(address, first_half).ok()?;
    // A never used extent may reach into a page that was never written.
    if cache.read(address + first_half.len() as u64, second_half).is_err() {
        second_half.fill(0);
    }
    Some(ExtentFields::new(&bytes))
}

/// Numbers of extents that agree with a layout and that contradict it.
#[derive(Clone, Copy, Default)]
struct Votes {
    agreeing_extents: usize,
    contradicting_extents: usize,
}

/// Returns the layout under which extents in use and their leaf entries agree.
fn layout_by_votes(context: &Context<'_>, leaves: &[Leaf]) -> Option<&'static Layout> {
    let mut cache = PageCache::new(context.memory);
    let mut votes = [Votes::default(); LAYOUTS.len()];
    let (mut cursor, mut sampled_extents) = (0, 0);
    for &Leaf { covered_start: start, address: leaf } in leaves {
        let is_enough = sampled_extents >= MAX_SAMPLED_EXTENTS
            || votes.iter().any(|votes| votes.agreeing_extents >= ENOUGH_VOTES);
        if is_enough || Instant::now() >= context.deadline {
            break;
        }
        each_word(context, (leaf, leaf + PAGE_MAP_LAYOUT.leaf_bytes()), &mut |at, entry| {
            let page = start + (((at - leaf) / 8) << PAGE_MAP_LAYOUT.page_shift);
            // Entries inside an extent may be stale; the allocator does not read them.
            let extent = if page < cursor { None } else { read_extent(&mut cache, entry_extent(entry)) };
            if let Some(extent) = extent.filter(|extent| extent.start() == page) {
                cursor = page.saturating_add(extent.bytes);
                sampled_extents += 1;
                for (layout, votes) in LAYOUTS.iter().zip(&mut votes) {
                    let agrees = layout.agrees_with_entry(entry, &extent);
                    votes.agreeing_extents += usize::from(agrees == Some(true));
                    votes.contradicting_extents += usize::from(agrees == Some(false));
                }
            }
            sampled_extents < MAX_SAMPLED_EXTENTS
                && votes.iter().all(|votes| votes.agreeing_extents < ENOUGH_VOTES)
        });
    }
    let (layout, votes) = LAYOUTS.iter().zip(votes).max_by_key(|(_, votes)| votes.agreeing_extents)?;
    // Some extents may be mid-update.
    (votes.agreeing_extents > MIN_VOTES_PER_CONTRADICTION * votes.contradicting_extents).then_some(layout)
}

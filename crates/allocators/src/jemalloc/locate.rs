//! Finds jemalloc's map of the address space: a radix tree from pages to extents.

use std::time::Instant;

use super::layout::{EXTENT_BYTES, LAYOUTS, Layout, MAP, Words, entry_extent};
use crate::page_cache::PageCache;
use crate::radix;
use crate::scan::each_word;
use strandline_claims::allocator::Context;
use strandline_process::map::AddressSpace;

/// Extents by which the layout is told, most of which may be free and say nothing of it; and how many that are in use are
/// enough.
const MAX_SAMPLED: usize = 1 << 16;
const ENOUGH_VOTES: usize = 256;
/// The root stands in static data, with more beside it.
const MIN_DATA_BYTES: u64 = 2 << 20;

/// The map of one jemalloc.
pub struct Tree {
    /// Where its root stands.
    pub root: u64,
    /// An address of the program or library that it is in.
    pub object: u64,
    /// What that is called.
    pub name: String,
    /// Its leaves, in address order: the first address that each stands for, and where it is.
    pub leaves: Vec<(u64, u64)>,
    /// Its layout; `None` where none fits.
    pub layout: Option<&'static Layout>,
}

/// Whether some mapped program or library could hold one.
pub fn is_possible(space: &AddressSpace) -> bool {
    !radix::large_data(space, MIN_DATA_BYTES).is_empty()
}

/// Finds all of a process.
pub fn find(context: &Context<'_>) -> Vec<Tree> {
    let mut trees: Vec<Tree> = Vec::new();
    for data in radix::large_data(context.space, MIN_DATA_BYTES) {
        let edges = radix::edges(context, &data, MAP.leaf_alignment);
        for root in radix::roots(context, (&data, &edges), MAP, &extent_of_entry) {
            let leaves = radix::leaves(context, root, MAP);
            let layout = layout(context, &leaves);
            let (object, name) = (data.object.start, data.object.name.clone());
            trees.push(Tree { root, object, name, leaves, layout });
        }
    }
    trees
}

/// The pages of the extent that an entry leads to.
fn extent_of_entry(cache: &mut PageCache<'_>, entry: u64) -> Option<(u64, u64)> {
    let extent = read_extent(cache, entry_extent(entry))?;
    Some((extent.start(), extent.start().checked_add(extent.bytes)?))
}

/// Reads an extent.
pub fn read_extent(cache: &mut PageCache<'_>, address: u64) -> Option<Words> {
    if address == 0 {
        return None;
    }
    let mut bytes = [0; EXTENT_BYTES];
    let (first, second) = bytes.split_at_mut(EXTENT_BYTES / 2);
    cache.read(address, first)?;
    // One that was never in use may reach into a page that nobody has written to yet.
    if cache.read(address + first.len() as u64, second).is_none() {
        second.fill(0);
    }
    Some(Words::new(&bytes))
}

/// The layout by which extents in use and the entries that lead to them say the same.
fn layout(context: &Context<'_>, leaves: &[(u64, u64)]) -> Option<&'static Layout> {
    let mut cache = PageCache::new(context.memory);
    // For and against each.
    let mut votes = [(0_usize, 0_usize); LAYOUTS.len()];
    let (mut cursor, mut sampled) = (0, 0);
    for &(start, leaf) in leaves {
        let is_enough = sampled >= MAX_SAMPLED || votes.iter().any(|votes| votes.0 >= ENOUGH_VOTES);
        if is_enough || Instant::now() >= context.deadline {
            break;
        }
        each_word(context, leaf, leaf + MAP.leaf_bytes(), &mut |at, entry| {
            let page = start + (((at - leaf) / 8) << 12);
            // Within an extent old entries may stand that nobody asks for.
            let extent = if page < cursor { None } else { read_extent(&mut cache, entry_extent(entry)) };
            if let Some(extent) = extent.filter(|extent| extent.start() == page) {
                cursor = page.saturating_add(extent.bytes);
                sampled += 1;
                for (layout, votes) in LAYOUTS.iter().zip(&mut votes) {
                    let agrees = layout.agree(entry, &extent);
                    votes.0 += usize::from(agrees == Some(true));
                    votes.1 += usize::from(agrees == Some(false));
                }
            }
            sampled < MAX_SAMPLED && votes.iter().all(|votes| votes.0 < ENOUGH_VOTES)
        });
    }
    let (layout, (with, against)) = LAYOUTS.iter().zip(votes).max_by_key(|(_, votes)| votes.0)?;
    // A few may be in motion.
    (with > 10 * against).then_some(layout)
}

//! Finds jemalloc's page map: a radix tree from pages to extents.

use super::layout::{EXTENT_WORDS, ExtentFields, LAYOUTS, Layout, PAGE_MAP_LAYOUT, entry_extent};
use crate::radix::{self, FoundHeaps, FoundRoots, Leaf};
use crate::scan::each_word;
use strandline_claims::allocator::Context;
use strandline_claims::caveat::Caveat;
use strandline_process::map::AddressSpace;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Maximum extents sampled to determine the layout: most may be free and cast no vote.
const MAX_SAMPLED_EXTENTS: usize = 1 << 16;
/// Number of votes that suffices.
const ENOUGH_VOTES: usize = 256;
/// Points by which the best layout must then lead the others.
const MIN_LEAD: usize = 32;
/// A layout needs more votes than this for each one against it.
const MIN_VOTES_PER_CONTRADICTION: usize = 10;
/// Minimum extents of a page map that is reported as unread: other static data may look like the
/// root of fewer.
const MIN_UNREAD_EXTENTS: usize = 8;
/// Bytes of a whole root: static data with a page map is larger.
const MIN_DATA_BYTES: u64 = 2 << 20;

/// The page map of one jemalloc.
pub struct PageMap {
    /// An address in the program or library that contains it.
    pub object: u64,
    /// Name of that program or library.
    pub name: String,
    /// Its leaves, in address order.
    pub leaves: Vec<Leaf>,
    /// Layout of its extents.
    pub layout: &'static Layout,
}

/// Whether a mapped program or library may contain one.
pub fn is_possible(space: &AddressSpace) -> bool {
    !radix::large_data(space, MIN_DATA_BYTES).is_empty()
}

/// Finds all page maps of a process.
pub fn find(context: &Context<'_>) -> FoundHeaps<PageMap> {
    let mut found_maps = FoundHeaps { heaps: Vec::new(), caveats: Vec::new() };
    let mut first_late_file: Option<&str> = None;
    for data in radix::large_data(context.space, MIN_DATA_BYTES) {
        let candidates = radix::root_candidates(context, &data, PAGE_MAP_LAYOUT.leaf_alignment);
        let FoundRoots { roots, is_late } =
            radix::roots(context, &data, &candidates, PAGE_MAP_LAYOUT, &extent_of_entry);
        if is_late {
            first_late_file.get_or_insert(&data.object.name);
        }
        for root in roots {
            let leaves = radix::leaves(context, root, PAGE_MAP_LAYOUT);
            let (object, name) = (data.object.start, data.object.name.clone());
            match layout_by_votes(context, &leaves) {
                Ok(layout) => found_maps.heaps.push(PageMap { object, name, leaves, layout }),
                Err(_) if context.deadline_passed() => found_maps.caveats.push(unread_caveat(name, true)),
                Err(sampled_extents) if sampled_extents < MIN_UNREAD_EXTENTS => {}
                Err(_) => found_maps.caveats.push(unread_caveat(name, false)),
            }
        }
    }
    let text = "not all static data was searched for jemalloc in the time that a target may be stopped";
    let late_caveat = first_late_file.map(|name| Caveat::new("jemalloc_too_slow", name, None, text));
    found_maps.caveats.extend(late_caveat);
    found_maps
}

/// Returns the caveat on a page map in the file `name` whose layout is not known; `is_late` if the
/// deadline may be the reason.
fn unread_caveat(name: String, is_late: bool) -> Caveat {
    let (code, reason) = if is_late {
        (
            "jemalloc_too_slow",
            "the layout of its extents was not found in the time that a target may be stopped",
        )
    } else {
        ("jemalloc_unknown_layout", "its extents have an unknown layout")
    };
    Caveat::new(code, name, None, format!("jemalloc's page map was found, but {reason}: it is not read"))
}

/// Returns the range of the extent that an entry points to.
fn extent_of_entry(cache: &mut PageCache<'_>, entry: u64) -> Option<AddressRange> {
    let extent = read_extent(cache, entry_extent(entry)?)?;
    Some(AddressRange::new(extent.start(), extent.start().checked_add(extent.bytes)?))
}

/// Reads an extent structure.
pub fn read_extent(cache: &mut PageCache<'_>, address: u64) -> Option<ExtentFields> {
    let mut words = [[0; 8]; EXTENT_WORDS];
    let (first_half, second_half) = words.as_flattened_mut().split_at_mut(EXTENT_WORDS / 2 * 8);
    cache.read(address, first_half).ok()?;
    // A never used extent may reach into a page that was never written.
    if cache.read(address + first_half.len() as u64, second_half).is_err() {
        second_half.fill(0);
    }
    Some(ExtentFields::new(&words.map(u64::from_le_bytes)))
}

/// Numbers of extents that agree with a layout and that contradict it.
#[derive(Clone, Copy, Default)]
struct Votes {
    agreeing_extents: usize,
    /// Agreeing ones that also have the usual size of their class. Slabs in full use agree with
    /// any quantum.
    fitting_extents: usize,
    contradicting_extents: usize,
}

impl Votes {
    fn count(&mut self, layout: &Layout, entry: u64, extent: &ExtentFields) {
        let agrees = layout.agrees_with_entry(entry, extent);
        self.agreeing_extents += usize::from(agrees == Some(true));
        self.fitting_extents += usize::from(agrees == Some(true) && layout.fits_class(extent));
        self.contradicting_extents += usize::from(agrees == Some(false));
    }

    fn points(&self) -> usize {
        self.agreeing_extents + self.fitting_extents
    }
}

/// Whether one layout has enough votes, and enough more than the others.
fn is_decided(votes: &[Votes]) -> bool {
    votes.iter().enumerate().any(|(index, best)| {
        let mut others = votes.iter().enumerate().filter(|(other, _)| *other != index);
        best.agreeing_extents >= ENOUGH_VOTES
            && others.all(|(_, other)| other.points() + MIN_LEAD <= best.points())
    })
}

/// Returns the layout under which extents in use and their leaf entries agree; without one the
/// number of extents.
fn layout_by_votes(context: &Context<'_>, leaves: &[Leaf]) -> Result<&'static Layout, usize> {
    let mut cache = PageCache::new(context.memory);
    let mut votes = [Votes::default(); LAYOUTS.len()];
    let (mut cursor, mut sampled_extents) = (0, 0);
    for &Leaf { covered_start: start, address: leaf } in leaves {
        let is_enough = sampled_extents >= MAX_SAMPLED_EXTENTS || is_decided(&votes);
        if is_enough || context.deadline_passed() {
            break;
        }
        each_word(context, (leaf, leaf + PAGE_MAP_LAYOUT.leaf_bytes()), &mut |at, entry| {
            let page = start + (((at - leaf) / 8) << PAGE_MAP_LAYOUT.page_shift);
            // Entries inside an extent may be stale; the allocator does not read them.
            let structure = entry_extent(entry).filter(|_| page >= cursor);
            let extent = structure.and_then(|structure| read_extent(&mut cache, structure));
            let Some(extent) = extent.filter(|extent| extent.start() == page) else { return true };
            cursor = page.saturating_add(extent.bytes);
            sampled_extents += 1;
            for (layout, votes) in LAYOUTS.iter().zip(&mut votes) {
                votes.count(layout, entry, &extent);
            }
            sampled_extents < MAX_SAMPLED_EXTENTS && !is_decided(&votes)
        });
    }
    let best = LAYOUTS.iter().zip(votes).max_by_key(|(_, votes)| votes.points());
    // Some extents may be mid-update.
    let is_clear =
        |votes: &Votes| votes.agreeing_extents > MIN_VOTES_PER_CONTRADICTION * votes.contradicting_extents;
    best.filter(|(_, votes)| is_clear(votes)).map(|(layout, _)| layout).ok_or(sampled_extents)
}

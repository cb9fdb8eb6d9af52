//! Goes over all extents of a jemalloc in address order: what its map says of each page that it has.

use std::time::Instant;

use super::layout::{LEVEL_BYTES, Layout, State, entry_extent};
use super::locate::{Tree, read_extent};
use crate::page_cache::PageCache;
use crate::scan::{each_word, is_own};
use strandline_claims::allocator::{Context, overlapping};

/// An extent: a run of pages of one state.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Where the structure that describes it stands.
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
    /// Entries that did not lead to an extent of their page.
    pub damages: u64,
    /// The first page of such a one.
    pub first_damage: Option<u64>,
    /// Whether the time was over before all were seen.
    pub is_late: bool,
    /// Target memory read.
    pub bytes_read: u64,
}

/// After so many extents the time is looked at.
const LOOKS_AT_THE_TIME: u64 = 256;

/// Goes over the extents under `tree`, where `taken` (in address order) is claimed by others.
pub fn walk(context: &Context<'_>, tree: &Tree, layout: &Layout, taken: &[(u64, u64)]) -> Extents {
    let mut cache = PageCache::new(context.memory);
    let mut extents = Extents::default();
    let (mut cursor, mut seen) = (0, 0_u64);
    for &(first, leaf) in &tree.leaves {
        if Instant::now() >= context.deadline {
            extents.is_late = true;
            break;
        }
        each_word(context, leaf, leaf + LEVEL_BYTES, &mut |at, entry| {
            let page = first + (((at - leaf) / 8) << 12);
            // Of most extents the first and the last page have an entry, of slabs all.
            if page < cursor {
                return true;
            }
            // A map made to hurt has damage on every page.
            seen += 1;
            if seen.is_multiple_of(LOOKS_AT_THE_TIME) && Instant::now() >= context.deadline {
                extents.is_late = true;
                return false;
            }
            match extent_at(context, &mut cache, (page, entry), layout, taken) {
                Some(extent) => {
                    cursor = extent.end;
                    (context.progress)(extent.end - extent.start);
                    extents.all.push(extent);
                }
                None => {
                    extents.damages += 1;
                    extents.first_damage.get_or_insert(page);
                }
            }
            true
        });
        extents.bytes_read +=
            (context.resident)(leaf, leaf + LEVEL_BYTES).iter().map(|run| run.1 - run.0).sum::<u64>();
    }
    extents.bytes_read += cache.bytes_read;
    extents
}

/// The extent that begins at `page`, to which an entry of the map leads.
fn extent_at(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    (page, entry): (u64, u64),
    layout: &Layout,
    taken: &[(u64, u64)],
) -> Option<Extent> {
    let structure = entry_extent(entry);
    let words = read_extent(cache, structure)?;
    let end = page.checked_add(words.bytes)?;
    let is_one = words.start() == page
        && layout.state(words.bits).is_some()
        && is_own(context, page, end)
        && overlapping(taken, page, end).is_empty()
        && overlapping(context.stacks, page, end).is_empty();
    is_one.then_some(Extent { start: page, end, structure, pointer: words.address, bits: words.bits })
}

impl Extent {
    /// Whether it is in use as a slab of small regions.
    pub fn is_slab(&self, layout: &Layout) -> bool {
        self.bits >> 12 & 1 != 0 && layout.state(self.bits) == Some(State::Active)
    }
}

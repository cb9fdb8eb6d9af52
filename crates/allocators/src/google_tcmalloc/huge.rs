//! Huge pages without a tracker: free ones, in maps of ranges (treaps), and those of regions, which
//! large blocks share.
//!
//! Static data points to both. A map is recognised by its counts of nodes and of huge pages. The
//! words after it show whether it is of `HugeCache`, whose memory is still backed, or of
//! `HugeAllocator`, whose memory is not.

use std::collections::{BTreeSet, HashSet};

use super::layout::{
    HUGE_BYTES, MAP_BYTES, MAP_HUGE_PAGES, MAP_NODE_COUNT, NODE_BYTES, NODE_LINKS, REGION_BITS,
    REGION_HUGE_PAGES, RegionLayout,
};
use super::locate::{Heap, read_bytes};
use crate::radix::StaticWord;
use crate::scan::{is_mapped_memory, is_private_memory};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::range::page_of;
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};

/// Maximum nodes of all maps together: each stands for at least 2 MiB.
const MAX_NODES: u64 = 1 << 20;
/// Maximum regions read: 1 TiB.
const MAX_REGIONS: usize = 1024;
/// Huge pages in the address space.
const MAX_HUGE_PAGES: u64 = USER_ADDRESS_END / HUGE_BYTES;

/// A range of free huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether its memory is still backed; otherwise it was released or never used.
    pub is_backed: bool,
}

/// A region of huge pages.
pub struct HugeRegion {
    /// First byte.
    pub start: u64,
    /// One bit per page, set if it is in use.
    pub used_pages: Vec<u64>,
    /// Whether each huge page is backed.
    pub is_backed: Vec<bool>,
}

/// The huge pages found.
#[derive(Default)]
pub struct HugePages {
    /// Free ranges, in address order.
    pub free_ranges: Vec<FreeRange>,
    /// Regions, in address order.
    pub regions: Vec<HugeRegion>,
    /// Pages that hold structures.
    pub structure_pages: BTreeSet<u64>,
    /// Where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Finds all maps and regions that the static data of `heap` points to.
pub fn find(context: &Context<'_>, heap: &Heap) -> HugePages {
    let mut finder = Finder {
        context,
        heap,
        cache: PageCache::new(context.memory),
        huge_pages: HugePages::default(),
        remaining_nodes: MAX_NODES,
    };
    let is_outside = |word: &StaticWord| {
        !heap.data.contains(word.value)
            && word.value.is_multiple_of(8)
            && context.space.find(word.value).is_some_and(is_mapped_memory)
    };
    // Maps first: most words are no regions, which costs a read each.
    for StaticWord { address, value } in heap.statics.words().filter(is_outside) {
        if context.deadline_passed() {
            finder.huge_pages.doubts.note_timeout(address);
            break;
        }
        finder.add_map(address, value);
    }
    let mut tried_regions = HashSet::new();
    for StaticWord { address, value } in heap.statics.words().filter(is_outside) {
        if context.deadline_passed() {
            finder.huge_pages.doubts.note_timeout(address);
            break;
        }
        if tried_regions.insert(value) {
            finder.add_regions(value);
        }
    }
    let mut huge_pages = finder.huge_pages;
    huge_pages.bytes_read = finder.cache.bytes_read;
    huge_pages.free_ranges.sort_unstable();
    huge_pages.regions.sort_by_key(|region| region.start);
    huge_pages
}

/// What a map and the words after it state.
struct MapHeader {
    /// Number of its nodes.
    node_count: u64,
    /// Number of huge pages of all nodes.
    total_pages: u64,
    /// Whether the memory of these huge pages is still backed.
    is_backed: bool,
}

/// A node of a map.
struct Node {
    /// Address of its structure.
    address: u64,
    /// Number of its first huge page.
    first_huge_page: u64,
    /// Number of its huge pages.
    huge_pages: u64,
}

struct Finder<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    cache: PageCache<'a>,
    huge_pages: HugePages,
    /// Nodes that may still be read.
    remaining_nodes: u64,
}

impl Finder<'_> {
    /// Reads the map at `at`, whose root is at `root`, if it is one.
    fn add_map(&mut self, at: u64, root: u64) {
        let Some(MapHeader { node_count, total_pages, is_backed }) = self.map_header(at) else { return };
        let Some(nodes) = self.nodes(root, node_count) else { return };
        if nodes.iter().map(|node| node.huge_pages).sum::<u64>() != total_pages {
            return;
        }
        let free_range = |node: &Node| FreeRange {
            start: node.first_huge_page * HUGE_BYTES,
            end: (node.first_huge_page + node.huge_pages) * HUGE_BYTES,
            is_backed,
        };
        let free_ranges: Vec<FreeRange> = nodes.iter().map(free_range).collect();
        self.huge_pages.structure_pages.extend(nodes.iter().map(|node| page_of(node.address)));
        if free_ranges.iter().all(|range| is_private_memory(self.context, (range.start, range.end))) {
            self.huge_pages.free_ranges.extend(free_ranges);
        }
    }

    /// Returns the counts of the map at `at`; `None` if they show that it is not one, or if it has
    /// more nodes than may still be read.
    fn map_header(&self, at: u64) -> Option<MapHeader> {
        let word = |offset: usize| self.heap.statics.word(at + offset as u64);
        let (node_count, total_pages) = (word(MAP_NODE_COUNT)?, word(MAP_HUGE_PAGES)?);
        if node_count == 0
            || node_count > total_pages
            || total_pages > MAX_HUGE_PAGES
            || node_count > self.remaining_nodes
        {
            return None;
        }
        // The map is followed, in `HugeAllocator`, by the huge pages from the kernel and those in
        // use; in `HugeCache`, by its size and its limit.
        let (first_word, second_word) = (word(MAP_BYTES)?, word(MAP_BYTES + 8)?);
        let is_backed = if first_word.checked_sub(second_word) == Some(total_pages) {
            false
        } else if first_word == total_pages && second_word > 0 {
            true
        } else {
            return None;
        };
        Some(MapHeader { node_count, total_pages, is_backed })
    }

    /// Reads the nodes below `root`; `None` unless there are exactly `count`.
    fn nodes(&mut self, root: u64, count: u64) -> Option<Vec<Node>> {
        let (mut pending, mut nodes) = (vec![(root, 0)], Vec::new());
        while let Some((at, parent)) = pending.pop() {
            let mut bytes = [0; NODE_BYTES];
            self.remaining_nodes = self.remaining_nodes.checked_sub(1)?;
            read_bytes(&mut self.cache, at, &mut bytes)?;
            let word = |offset| word_at(&bytes, offset);
            let (first_huge_page, huge_pages) = (word(0)?, word(8)?);
            let [Some(left), Some(right), Some(up)] = NODE_LINKS.map(word) else { return None };
            let is_node =
                up == parent && first_huge_page > 0 && huge_pages > 0 && first_huge_page < MAX_HUGE_PAGES;
            if !is_node || huge_pages > MAX_HUGE_PAGES - first_huge_page || nodes.len() as u64 >= count {
                return None;
            }
            nodes.push(Node { address: at, first_huge_page, huge_pages });
            pending.extend([left, right].into_iter().filter(|&link| link != 0).map(|link| (link, at)));
        }
        (nodes.len() as u64 == count).then_some(nodes)
    }

    /// Reads the region at `at`, if it is one, and those that follow it in the list.
    fn add_regions(&mut self, at: u64) {
        let layout = RegionLayout::new(self.heap.page_shift);
        let mut next = Some(at);
        while let Some(at) =
            next.filter(|at| at.is_multiple_of(8) && self.huge_pages.regions.len() < MAX_REGIONS)
        {
            let location = at.saturating_add(layout.location_offset() as u64);
            let Some((start, huge_pages)) = self.cache.pair(location) else { return };
            if huge_pages != REGION_HUGE_PAGES as u64 || !(1..MAX_HUGE_PAGES).contains(&start) {
                return;
            }
            let start = start * HUGE_BYTES;
            let is_new = self.huge_pages.regions.iter().all(|region| region.start != start);
            if !is_new || self.add_region(at, start, &layout).is_none() {
                return;
            }
            next = self.cache.word(at);
        }
    }

    /// Reads the region of the memory at `start`, whose structure is at `at`; `None` if it is not
    /// one.
    fn add_region(&mut self, at: u64, start: u64, layout: &RegionLayout) -> Option<()> {
        let mut bytes = vec![0; layout.bytes()];
        read_bytes(&mut self.cache, at, &mut bytes)?;
        let words = (REGION_BITS..REGION_BITS + layout.bits_bytes).step_by(8);
        let used_pages: Vec<u64> = words.map(|offset| word_at(&bytes, offset)).collect::<Option<_>>()?;
        let is_backed: Vec<bool> =
            bytes.get(layout.backed_offset()..)?.iter().map(|&flag| flag == 1).collect();
        // The count of pages in use of each huge page must match its bits.
        let bits_bytes = layout.bits_bytes / REGION_HUGE_PAGES;
        let has_matching_count = |number: usize| {
            let from = REGION_BITS + number * bits_bytes;
            let bits = bytes.get(from..from + bits_bytes).unwrap_or_default();
            let bit_count = bits.iter().map(|byte| u64::from(byte.count_ones())).sum();
            word_at(&bytes, layout.pages_used_offset() + 8 * number) == Some(bit_count)
        };
        let is_private =
            is_private_memory(self.context, (start, start + REGION_HUGE_PAGES as u64 * HUGE_BYTES));
        let is_region = is_private
            && is_backed.len() == REGION_HUGE_PAGES
            && (0..REGION_HUGE_PAGES).all(has_matching_count);
        is_region.then(|| {
            let pages = (page_of(at)..at + layout.bytes() as u64).step_by(PAGE_BYTES as usize);
            self.huge_pages.structure_pages.extend(pages);
            self.huge_pages.regions.push(HugeRegion { start, used_pages, is_backed });
        })
    }
}

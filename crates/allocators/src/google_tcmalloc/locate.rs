//! Finds tcmalloc's table of size classes and the root of its page map, in the static data of the
//! program or library that contains it.
//!
//! The table is searched first, as few programs have one. An entry of the root is a word that
//! points to a leaf, or to a node of leaves, whose classes match the spans it points to. The first
//! pages of these spans yield the index of the entry, and so the address of the root.

use std::collections::{BTreeMap, HashSet};

use super::layout::{
    BEFORE_SIZES_BYTES, Classes, LAYOUTS, Layout, LeafParts, MIN_DATA_BYTES, PageMapLayout, SIZES_BYTES,
    SPAN_BITS, SpanBytes, SpanFields,
};
use super::statics::Statics;
use super::{ABOUT, detect};
use crate::radix::{self, FoundHeaps, Leaf, StaticData, StaticWord};
use crate::scan::{each_word, each_word_in_steps, is_mapped_memory, is_private_memory};
use strandline_claims::allocator::Context;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::map::AddressSpace;
use strandline_process::modules;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Memory that follows static data is added to it up to this size.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Leaves tried per node candidate: a leaf with large blocks only does not identify itself.
const MAX_LEAVES_TRIED: usize = 1 << 10;
/// Maximum bytes of leaf and node candidates that are read.
const MAX_TRIED_BYTES: u64 = 256 << 20;
/// Spans tried per leaf candidate.
const MAX_SPANS_TRIED: usize = 64;
/// Number of spans of which at least one must match a candidate.
const MIN_SPANS_TRIED: usize = 8;

/// The heap of one tcmalloc.
pub struct Heap {
    /// Name of the program or library that contains it.
    pub name: String,
    /// A copy of its static data.
    pub statics: Statics,
    /// Range of the static data.
    pub data: AddressRange,
    /// Its size classes.
    pub classes: Classes,
    /// Layout of its spans and trackers.
    pub layout: &'static Layout,
    /// Binary logarithm of its page size.
    pub page_shift: u32,
    /// Layout of its page map.
    pub map_layout: PageMapLayout,
    /// The leaves of its page map, in address order.
    pub leaves: Vec<Leaf>,
}

impl Heap {
    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// Returns where the parts of a leaf are.
    pub fn parts_of_leaf(&self, leaf: u64) -> LeafParts {
        self.map_layout.parts_of_leaf(leaf, self.classes.compact_bytes())
    }

    /// Address of the size class of the page with this index in a leaf.
    pub fn class_address(&self, leaf: u64, index: u64) -> u64 {
        leaf + index * self.classes.compact_bytes()
    }

    /// Bytes of an object of a class; `None` if the class is unused or does not exist.
    pub fn class_bytes(&self, class: u16) -> Option<u64> {
        self.classes.object_bytes.get(usize::from(class)).copied().filter(|&bytes| bytes > 0)
    }
}

/// Whether a mapped program or library may contain one.
pub fn is_possible(space: &AddressSpace) -> bool {
    !large_data(space).is_empty()
}

/// Returns the static data of mapped programs and libraries that is larger than a root. tcmalloc
/// maps its root with small pages (`PageMap::MapRootWithSmallPages`), so the kernel lists its bss
/// as several mappings; where the headers are known, they show the last.
fn large_data(space: &AddressSpace) -> Vec<StaticData<'_>> {
    let mut static_data = Vec::new();
    for group in modules::file_groups(space) {
        let Some(mut range) = modules::data(&group) else { continue };
        let end = space.spans().end(group[0]).unwrap_or(u64::MAX);
        while let Some(next) = space.find(range.end)
            && next.start == range.end
            && next.start < end
            && next.name.is_empty()
            && is_mapped_memory(next)
            && next.end - range.start <= MAX_DATA_BYTES
        {
            range.end = next.end.min(end);
        }
        if range.len() > MIN_DATA_BYTES {
            static_data.push(StaticData { range, object: group[0] });
        }
    }
    static_data
}

/// Finds all heaps of a process.
pub fn find(context: &Context<'_>) -> FoundHeaps<Heap> {
    let mut found_heaps = FoundHeaps { heaps: Vec::new(), caveats: Vec::new() };
    for data in large_data(context.space) {
        let Some(classes) = find_classes(context, &data) else { continue };
        let Some(PageMap { map_layout, root }) = find_page_map(context, &data, &classes) else {
            found_heaps.add_unread(context, &ABOUT, &data.object.name);
            continue;
        };
        let heap = Heap {
            name: data.object.name.clone(),
            statics: Statics::read(context, data.range),
            data: data.range,
            leaves: find_leaves(context, root, &classes, map_layout),
            classes,
            // Detected below.
            layout: &LAYOUTS[0],
            page_shift: map_layout.page_shift,
            map_layout,
        };
        match detect::layout(context, &heap) {
            Some(layout) => found_heaps.heaps.push(Heap { layout, ..heap }),
            None => found_heaps.add_unread(context, &ABOUT, &heap.name),
        }
    }
    found_heaps
}

/// Finds the table of size classes.
fn find_classes(context: &Context<'_>, data: &StaticData<'_>) -> Option<Classes> {
    radix::size_table(context, data, &mut |at| {
        let mut bytes = vec![0; SIZES_BYTES];
        context.memory.read(at.checked_sub(BEFORE_SIZES_BYTES as u64)?, &mut bytes).ok()?;
        Classes::new(&bytes)
    })
}

/// A page map.
struct PageMap {
    map_layout: PageMapLayout,
    /// Address of its root.
    root: u64,
}

/// Finds the page map on whose layout and root most spans of a leaf agree.
fn find_page_map(context: &Context<'_>, data: &StaticData<'_>, classes: &Classes) -> Option<PageMap> {
    let mut tried = HashSet::new();
    let mut finder =
        Finder { context, classes, cache: PageCache::new(context.memory), remaining_bytes: MAX_TRIED_BYTES };
    for StaticWord { address, value: word } in radix::root_candidates(context, data, 8) {
        if finder.remaining_bytes == 0 || context.deadline_passed() {
            return None;
        }
        if !tried.insert(word) {
            continue;
        }
        for map_layout in PageMapLayout::all() {
            let index = if map_layout.has_nodes {
                finder.root_index_of_node(word, map_layout)
            } else {
                finder.leaf_number(word, map_layout)
            };
            let root = index.and_then(|index| address.checked_sub(8 * index));
            let is_within =
                |root: &u64| data.range.covers(AddressRange::sized(*root, map_layout.root_bytes()));
            if let Some(root) = root.filter(is_within) {
                return Some(PageMap { map_layout, root });
            }
        }
    }
    None
}

struct Finder<'a> {
    context: &'a Context<'a>,
    classes: &'a Classes,
    cache: PageCache<'a>,
    /// Bytes that may still be read.
    remaining_bytes: u64,
}

impl Finder<'_> {
    /// Returns the index of the root entry that points to `node`; `None` if it is not a node, or
    /// has no leaf that shows its own number.
    fn root_index_of_node(&mut self, node: u64, map_layout: PageMapLayout) -> Option<u64> {
        let range = AddressRange::sized(node, 8 * map_layout.node_entries());
        if !is_private_memory(self.context, range) {
            return None;
        }
        let (context, class_bytes) = (self.context, self.classes.compact_bytes());
        let (mut leaves, mut is_node) = (Vec::new(), true);
        let bytes_read = each_word_in_steps(context, range, PAGE_BYTES as usize, &mut |at, leaf| {
            // A node points to leaves only; other memory is rejected after a few words.
            let end = map_layout.parts_of_leaf(leaf, class_bytes).end;
            is_node = leaf.is_multiple_of(8) && is_private_memory(context, (leaf, end));
            leaves.push(((at - node) / 8, leaf));
            is_node && leaves.len() < MAX_LEAVES_TRIED
        });
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes_read);
        if !is_node {
            return None;
        }
        leaves.into_iter().find_map(|(index, leaf)| {
            let number = self.leaf_number(leaf, map_layout)?;
            (number % map_layout.node_entries() == index).then_some(number / map_layout.node_entries())
        })
    }

    /// Returns the number of `leaf`: how many leaves cover the addresses before its own, according
    /// to most of its spans. `None` if it is not a leaf.
    fn leaf_number(&mut self, leaf: u64, map_layout: PageMapLayout) -> Option<u64> {
        let class_bytes = self.classes.compact_bytes();
        let LeafParts { spans, end, .. } = map_layout.parts_of_leaf(leaf, class_bytes);
        if self.remaining_bytes == 0
            || !leaf.is_multiple_of(8)
            || !is_private_memory(self.context, (leaf, end))
        {
            return None;
        }
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        let mut tried_spans = HashSet::new();
        let bytes_read_before = self.cache.bytes_read;
        let bytes_read =
            each_word_in_steps(self.context, (leaf, spans), PAGE_BYTES as usize, &mut |at, word| {
                let first_index = (at - leaf) / class_bytes;
                for (index, class) in (first_index..).zip(self.classes.in_word(word)) {
                    if let Some(class) = class
                        && let Some(entry) = self.cache.word(spans + 8 * index)
                        && tried_spans.insert(entry & SPAN_BITS)
                        && let Some(number) =
                            self.leaf_number_by_span(entry & SPAN_BITS, class, index, map_layout)
                    {
                        *votes.entry(number).or_default() += 1;
                    }
                }
                // If none of the first few is a span of its class, this is not a leaf.
                tried_spans.len() < MAX_SPANS_TRIED
                    && (tried_spans.len() < MIN_SPANS_TRIED || !votes.is_empty())
            });
        self.remaining_bytes =
            self.remaining_bytes.saturating_sub(bytes_read + self.cache.bytes_read - bytes_read_before);
        // Some spans may be mid-update: three quarters suffice.
        let (number, agreeing) = votes.into_iter().max_by_key(|&(_, agreeing)| agreeing)?;
        (agreeing * 4 > tried_spans.len() * 3).then_some(number)
    }

    /// Returns the number of the leaf that has, at `index`, a page of the span at `at` and that
    /// span's class, under any layout.
    fn leaf_number_by_span(
        &mut self,
        at: u64,
        class: u16,
        index: u64,
        map_layout: PageMapLayout,
    ) -> Option<u64> {
        let has_class = |span: &SpanFields| {
            self.classes.span_pages.get(usize::from(class)) == Some(&span.pages) && span.sample.is_none()
        };
        let cache = &mut self.cache;
        let spans = LAYOUTS
            .iter()
            .filter_map(|layout| layout.span(&read_span(cache, layout, at)?, map_layout.page_shift))
            .filter(has_class);
        let entries = map_layout.leaf_entries();
        spans.map(|span| (span, span.first_page & !(entries - 1) | index)).find_map(|(span, page)| {
            (span.first_page <= page && page < span.first_page + span.pages).then_some(page / entries)
        })
    }
}

/// Returns the leaves under a root that cover mapped memory.
fn find_leaves(context: &Context<'_>, root: u64, classes: &Classes, map_layout: PageMapLayout) -> Vec<Leaf> {
    let (mut leaves, mut seen_leaves) = (Vec::new(), HashSet::new());
    let mut take = |number: u64, leaf: u64| {
        let start = number * map_layout.leaf_span();
        let end = map_layout.parts_of_leaf(leaf, classes.compact_bytes()).end;
        // Each leaf covers only one part of the address space.
        if radix::has_mapping(context, AddressRange::sized(start, map_layout.leaf_span()))
            && seen_leaves.insert(leaf)
            && is_private_memory(context, (leaf, end))
        {
            leaves.push(Leaf { covered_start: start, address: leaf });
        }
    };
    let mut nodes = HashSet::new();
    each_word(context, (root, root + map_layout.root_bytes()), &mut |at, word| {
        let first_number = (at - root) / 8 * map_layout.node_entries();
        if !map_layout.has_nodes {
            take(first_number, word);
        } else if nodes.insert(word)
            && is_private_memory(context, AddressRange::sized(word, 8 * map_layout.node_entries()))
        {
            each_word(context, (word, word + 8 * map_layout.node_entries()), &mut |at, leaf| {
                take(first_number + (at - word) / 8, leaf);
                true
            });
        }
        !context.deadline_passed()
    });
    leaves
}

/// Reads a span structure.
pub fn read_span(cache: &mut PageCache<'_>, layout: &Layout, address: u64) -> Option<SpanBytes> {
    layout.span_bytes(|bytes| read_bytes(cache, address, bytes))
}

/// Reads a structure that is aligned to words.
pub fn read_bytes(cache: &mut PageCache<'_>, address: u64, bytes: &mut [u8]) -> Option<()> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    cache.read(address, bytes).ok()
}

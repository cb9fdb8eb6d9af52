//! Maps from pages to what holds them, as several allocators keep one: a radix tree of two levels, whose root stands in the
//! static data of whatever the allocator is linked into.
//!
//! No symbol is needed. A word of that data is an entry of the root if it leads to a leaf whose first entries lead to
//! structures that stand for just their pages; the page says which entry of the root it is, and so where the root begins.

use std::collections::HashSet;
use std::time::Instant;

use crate::page_cache::PageCache;
use crate::scan::{each_word, each_word_by, is_mapped_memory, is_own};
use strandline_claims::allocator::{Context, overlapping};
use strandline_claims::doubts::Doubts;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::modules;

/// Tables of size classes that are looked at, of one program.
const MAX_TABLES: usize = 4096;
/// Words that could be entries of the root, of one program.
const MAX_TRIED: usize = 1 << 16;
/// So much of zeros lies before or behind a word that begins or ends a run of others.
const GAP_BYTES: u64 = 64;
/// Of what could be a leaf so many entries are looked at.
const MAX_ENTRIES_TRIED: usize = 16;
/// Bytes of what could be leaves that are read in all.
const MAX_TRIED_BYTES: u64 = 256 << 20;
/// After so many structures the time is looked at.
const LOOKS_AT_THE_TIME: u64 = 256;

/// How a map is laid out. Entries are words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Binary logarithm of the allocator's page size.
    pub page_shift: u32,
    /// Binary logarithm of the number of a leaf's entries.
    pub leaf_bits: u32,
    /// Bytes of the root that user addresses can use.
    pub used_root_bytes: u64,
    /// What leaves are aligned to.
    pub leaf_alignment: u64,
    /// The bits of a leaf's entry that lead somewhere: where they are 0 nothing has that page, whatever else is left of it.
    pub pointer: u64,
}

impl Shape {
    /// Bytes of a leaf.
    pub fn leaf_bytes(&self) -> u64 {
        8 << self.leaf_bits
    }

    /// Addresses under one leaf.
    pub fn leaf_span(&self) -> u64 {
        1 << (self.leaf_bits + self.page_shift)
    }
}

/// What an entry of a leaf leads to, by the structure itself: the first page and the end of what it stands for, both in bytes.
pub type Extent<'a> = &'a dyn Fn(&mut PageCache<'_>, u64) -> Option<(u64, u64)>;

/// A program's or a library's static data.
pub struct Data<'a> {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// A mapping of the program or library.
    pub object: &'a Mapping,
}

/// The static data of mapped programs and libraries, where it is larger than a root; of very much the first part.
pub fn large_data(space: &AddressSpace, larger_than: u64) -> Vec<Data<'_>> {
    let mut all = Vec::new();
    for group in modules::groups(space.mappings()) {
        if let Some((start, end)) = modules::data(&group).filter(|data| data.1 - data.0 > larger_than) {
            all.push(Data { start, end, object: group[0] });
        }
    }
    all
}

/// What could be entries of a root, with their addresses. Most of those are 0, and what is not stands in a few runs, as many as
/// there are parts of the address space in use: so words are looked at that begin or end a run.
pub fn edges(context: &Context<'_>, data: &Data<'_>, alignment: u64) -> Vec<(u64, u64)> {
    let mut edges = Vec::new();
    let (mut before, mut behind_gap) = (None::<(u64, u64)>, true);
    let mut take = |(at, word): (u64, u64), is_edge: bool| {
        let is_mapped = || context.space.find(word).is_some_and(is_mapped_memory);
        if is_edge && word.is_multiple_of(alignment) && word < 1 << 47 && is_mapped() {
            edges.push((at, word));
        }
        edges.len() < MAX_TRIED
    };
    each_word(context, data.start, data.end, &mut |at, word| {
        let is_gap = before.is_none_or(|(last, _)| at - last > GAP_BYTES);
        let goes_on = before.is_none_or(|last| take(last, behind_gap || is_gap));
        (before, behind_gap) = (Some((at, word)), is_gap);
        goes_on
    });
    if let Some(last) = before {
        take(last, true);
    }
    edges
}

/// The first table of size classes in some static data that `read` makes sense of: one that begins with a class of no bytes and
/// then one of 8 or 16, in 32 bits each.
pub fn size_table<T>(
    context: &Context<'_>,
    data: &Data<'_>,
    read: &mut dyn FnMut(u64) -> Option<T>,
) -> Option<T> {
    let mut places = Vec::new();
    each_word(context, data.start, data.end, &mut |at, word| {
        // The first two sizes that are not 0 stand in a word, or the 0 before them and the first one do.
        let begins =
            if matches!((word as u32, word >> 32), (8, 16) | (16, 32)) { at.checked_sub(4) } else { None };
        let is_half = matches!(word >> 32, 8 | 16) && word as u32 == 0;
        places.extend(begins.or_else(|| is_half.then_some(at)));
        places.len() < MAX_TABLES
    });
    places.into_iter().find_map(read)
}

/// The roots of all maps of this shape in some static data, by its [`edges`].
pub fn roots(
    context: &Context<'_>,
    (data, edges): (&Data<'_>, &[(u64, u64)]),
    shape: Shape,
    extent: Extent<'_>,
) -> Vec<u64> {
    let mut finder = Finder {
        context,
        data,
        shape,
        extent,
        tried: HashSet::new(),
        roots: Vec::new(),
        left: MAX_TRIED_BYTES,
    };
    finder.look(edges);
    finder.roots
}

struct Finder<'a> {
    context: &'a Context<'a>,
    data: &'a Data<'a>,
    shape: Shape,
    extent: Extent<'a>,
    tried: HashSet<u64>,
    roots: Vec<u64>,
    /// Bytes of what could be leaves that may yet be read.
    left: u64,
}

impl Finder<'_> {
    fn look(&mut self, edges: &[(u64, u64)]) {
        let mut cache = PageCache::new(self.context.memory);
        for &(at, word) in edges {
            let is_within = |root: &u64| (*root..root + self.shape.used_root_bytes).contains(&at);
            if Instant::now() >= self.context.deadline {
                return;
            }
            let could_be = word.is_multiple_of(self.shape.leaf_alignment);
            if !could_be || self.roots.iter().any(is_within) || !self.tried.insert(word) {
                continue;
            }
            let Some(span) = self.span_of(&mut cache, word) else { continue };
            let root = at.wrapping_sub(span * 8);
            if root >= self.data.start && root.saturating_add(self.shape.used_root_bytes) <= self.data.end {
                self.roots.push(root);
            }
        }
    }

    /// Which part of the address space the leaf at `leaf` stands for, if it is one, in spans of a leaf.
    fn span_of(&mut self, cache: &mut PageCache<'_>, leaf: u64) -> Option<u64> {
        let end = leaf + self.shape.leaf_bytes();
        if !is_own(self.context, leaf, end) {
            return None;
        }
        if self.left == 0 {
            return None;
        }
        let (mut spans, mut tried) = (Vec::new(), 0);
        let (mut behind, before) = (0, cache.bytes_read);
        let bytes_read = each_word_by(self.context, (leaf, end), PAGE_BYTES as usize, &mut |at, entry| {
            let index = (at - leaf) / 8;
            // Within an extent old entries may stand that nobody asks for.
            if index < behind || entry & self.shape.pointer == 0 {
                return true;
            }
            if let Some((page, end)) = self.page_of_entry(cache, index, entry) {
                spans.push(page / self.shape.leaf_span());
                behind = index + ((end - page) >> self.shape.page_shift);
            }
            tried += 1;
            tried < MAX_ENTRIES_TRIED
        });
        self.left = self.left.saturating_sub(bytes_read + cache.bytes_read - before);
        // Some may be in motion; and what is no leaf may begin with a word that leads to an extent.
        let first = *spans.first()?;
        let agreeing = spans.iter().filter(|&&span| span == first).count();
        (agreeing * 2 > tried).then_some(first)
    }

    /// The page for which an entry of a leaf stands, if the extent that it leads to has it, and where that ends.
    fn page_of_entry(&self, cache: &mut PageCache<'_>, index: u64, entry: u64) -> Option<(u64, u64)> {
        let (start, end) = (self.extent)(cache, entry)?;
        if !is_own(self.context, start, end) {
            return None;
        }
        let shift = self.shape.page_shift;
        let ahead = index.wrapping_sub(start >> shift) % (1 << self.shape.leaf_bits);
        (ahead < (end - start) >> shift).then(|| (start + (ahead << shift), end))
    }
}

/// The leaves under a root, in address order: those of addresses that the process has memory at, each with the first address
/// that it stands for.
pub fn leaves(context: &Context<'_>, root: u64, shape: Shape) -> Vec<(u64, u64)> {
    let (mut leaves, mut seen) = (Vec::new(), HashSet::new());
    each_word(context, root, root + shape.used_root_bytes, &mut |at, leaf| {
        let start = (at - root) / 8 * shape.leaf_span();
        let mappings = context.space.mappings();
        let next = mappings.get(mappings.partition_point(|mapping| mapping.end <= start));
        let has_memory = next.is_some_and(|mapping| mapping.start < start + shape.leaf_span());
        // No two parts of the address space have one leaf.
        let end = leaf.saturating_add(shape.leaf_bytes());
        if has_memory && seen.insert(leaf) && is_own(context, leaf, end) {
            leaves.push((start, leaf));
        }
        true
    });
    leaves
}

/// What became of a walk over a map.
#[derive(Default)]
pub struct Walk {
    /// Entries that did not lead to what has their page, and where the time was over.
    pub doubts: Doubts,
    /// Target memory read.
    pub bytes_read: u64,
}

/// Goes over a map in address order: `take` is given the page and the entry of each extent's first page, and says where that
/// extent ends, or nothing where it makes no sense.
pub fn walk(
    context: &Context<'_>,
    leaves: &[(u64, u64)],
    shape: Shape,
    take: &mut dyn FnMut(&mut PageCache<'_>, u64, u64) -> Option<u64>,
) -> Walk {
    let mut cache = PageCache::new(context.memory);
    let mut walk = Walk::default();
    let (mut cursor, mut seen) = (0, 0_u64);
    for &(first, leaf) in leaves {
        if Instant::now() >= context.deadline {
            walk.doubts.late(first);
            break;
        }
        each_word(context, leaf, leaf + shape.leaf_bytes(), &mut |at, entry| {
            let page = first + (((at - leaf) / 8) << shape.page_shift);
            // Of most extents the first and the last page have an entry, of those of small blocks all.
            if page < cursor || entry & shape.pointer == 0 {
                return true;
            }
            // A map made to hurt has damage on every page.
            seen += 1;
            if seen.is_multiple_of(LOOKS_AT_THE_TIME) && Instant::now() >= context.deadline {
                walk.doubts.late(page);
                return false;
            }
            match take(&mut cache, page, entry) {
                Some(end) => cursor = end,
                None => walk.doubts.damage(page, 0),
            }
            true
        });
        let resident = (context.resident)(leaf, leaf + shape.leaf_bytes());
        walk.bytes_read += resident.iter().map(|run| run.1 - run.0).sum::<u64>();
    }
    walk.bytes_read += cache.bytes_read;
    walk
}

/// Tells of ranges, mostly in address order, whether they are memory that an allocator could have mapped, and nobody else's.
/// Remembers the last part of the address space of which that is so.
pub struct Free<'a> {
    context: &'a Context<'a>,
    taken: &'a [(u64, u64)],
    free: (u64, u64),
}

impl<'a> Free<'a> {
    /// Beside what is `taken` by others, in address order, and beside stacks.
    pub fn new(context: &'a Context<'a>, taken: &'a [(u64, u64)]) -> Self {
        Self { context, taken, free: (0, 0) }
    }

    /// Whether all of a range is.
    pub fn contains(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return false;
        }
        if start >= self.free.0 && end <= self.free.1 {
            return true;
        }
        let is_free = is_own(self.context, start, end)
            && overlapping(self.taken, start, end).is_empty()
            && overlapping(self.context.stacks, start, end).is_empty();
        if is_free && let Some(mapping) = self.context.space.find(start) {
            let next = |all: &[(u64, u64)]| {
                all.get(all.partition_point(|range| range.1 <= start)).map_or(u64::MAX, |range| range.0)
            };
            let until = mapping.end.min(next(self.taken)).min(next(self.context.stacks));
            self.free = (start, until);
        }
        is_free
    }
}

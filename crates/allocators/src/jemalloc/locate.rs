//! Finds jemalloc's map of the address space: the radix tree from pages to extents, whose root stands in the static data of
//! whatever jemalloc is linked into.
//!
//! No symbol is needed. A word of that data is an entry of the root if it leads to a leaf whose first entry leads to an
//! extent that stands for just that page; the page says which entry of the root it is, and so where the root begins.

use std::collections::HashSet;
use std::time::Instant;

use super::layout::{
    ENTRIES, EXTENT_BYTES, LAYOUTS, LEAF_SPAN, LEVEL_BYTES, Layout, USED_ROOT_BYTES, Words, entry_extent,
};
use crate::modules;
use crate::page_cache::PageCache;
use crate::scan::{each_word, is_mapped_memory, is_own};
use strandline_claims::allocator::Context;
use strandline_process::map::{AddressSpace, Mapping};

/// Static data of a program beyond this is not searched: the root and what stands before it is 3 MiB in a library.
const MOST_DATA_BYTES: u64 = 64 << 20;
/// Words that could be entries of the root, of one program.
const MOST_TRIED: usize = 1 << 16;
/// Of what could be a leaf so many entries are looked at.
const MOST_ENTRIES_TRIED: usize = 16;
/// Bytes of what could be leaves that are read in all.
const MOST_TRIED_BYTES: u64 = 256 << 20;
/// Extents by which the layout is told, most of which may be free and say nothing of it; and how many that are in use are
/// enough.
const MOST_SAMPLED: usize = 1 << 16;
const ENOUGH_VOTES: usize = 256;

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

/// A program's or a library's static data, where it is large enough to hold a root.
struct Data<'a> {
    start: u64,
    end: u64,
    object: &'a Mapping,
}

/// Whether some mapped program or library could hold one.
pub fn is_possible(space: &AddressSpace) -> bool {
    !large_data(space).is_empty()
}

fn large_data(space: &AddressSpace) -> Vec<Data<'_>> {
    let mut all = Vec::new();
    for group in modules::groups(space.mappings()) {
        let mut written = group.iter().filter(|mapping| mapping.permissions.write);
        let (Some(first), Some(last)) = (written.next(), group.last()) else { continue };
        if last.end - first.start > LEVEL_BYTES {
            all.push(Data { start: first.start, end: last.end, object: group[0] });
        }
    }
    all
}

/// Finds all of a process.
pub fn find(context: &Context<'_>) -> Vec<Tree> {
    let mut trees: Vec<Tree> = Vec::new();
    for data in large_data(context.space) {
        let mut finder =
            Finder { context, data: &data, tried: HashSet::new(), roots: Vec::new(), left: MOST_TRIED_BYTES };
        finder.look();
        for root in finder.roots {
            let leaves = leaves(context, root);
            let layout = layout(context, &leaves);
            let (object, name) = (data.object.start, data.object.name.clone());
            trees.push(Tree { root, object, name, leaves, layout });
        }
    }
    trees
}

struct Finder<'a> {
    context: &'a Context<'a>,
    data: &'a Data<'a>,
    tried: HashSet<u64>,
    roots: Vec<u64>,
    /// Bytes of what could be leaves that may yet be read.
    left: u64,
}

impl Finder<'_> {
    fn look(&mut self) {
        let end = self.data.end.min(self.data.start + MOST_DATA_BYTES);
        let mut words = Vec::new();
        // Leaves are aligned to cache lines.
        each_word(self.context, self.data.start, end, &mut |at, word| {
            let is_mapped = || self.context.space.find(word).is_some_and(is_mapped_memory);
            if word.is_multiple_of(64) && word < 1 << 47 && is_mapped() {
                words.push((at, word));
            }
            words.len() < MOST_TRIED
        });
        for (at, word) in words {
            let is_within = |root: &u64| (*root..root + LEVEL_BYTES).contains(&at);
            if Instant::now() >= self.context.deadline {
                return;
            }
            if self.roots.iter().any(is_within) || !self.tried.insert(word) {
                continue;
            }
            let Some(span) = self.span_of(word) else { continue };
            let root = at.wrapping_sub(span * 8);
            if root >= self.data.start && root.saturating_add(USED_ROOT_BYTES) <= self.data.end {
                self.roots.push(root);
            }
        }
    }

    /// Which part of the address space the leaf at `leaf` stands for, if it is one, in spans of a leaf.
    fn span_of(&mut self, leaf: u64) -> Option<u64> {
        if !is_own(self.context, leaf, leaf + LEVEL_BYTES) {
            return None;
        }
        let resident = (self.context.resident)(leaf, leaf + LEVEL_BYTES);
        self.left = self.left.checked_sub(resident.iter().map(|run| run.1 - run.0).sum())?;
        let (mut spans, mut tried) = (Vec::new(), 0);
        let (mut cache, mut behind) = (PageCache::new(self.context.memory), 0);
        each_word(self.context, leaf, leaf + LEVEL_BYTES, &mut |at, entry| {
            let index = (at - leaf) / 8;
            // Within an extent old entries may stand that nobody asks for.
            if index < behind {
                return true;
            }
            if let Some((page, end)) = page_of_entry(self.context, &mut cache, index, entry) {
                spans.push(page / LEAF_SPAN);
                behind = index + ((end - page) >> 12);
            }
            tried += 1;
            tried < MOST_ENTRIES_TRIED
        });
        // Some may be in motion; and what is no leaf may begin with a word that leads to an extent.
        let first = *spans.first()?;
        let agreeing = spans.iter().filter(|&&span| span == first).count();
        (agreeing * 2 > tried).then_some(first)
    }
}

/// The page for which an entry of a leaf stands, if the extent that it leads to has it, and where that ends.
fn page_of_entry(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    index: u64,
    entry: u64,
) -> Option<(u64, u64)> {
    let extent = read_extent(cache, entry_extent(entry))?;
    let end = extent.start().checked_add(extent.bytes)?;
    if !is_own(context, extent.start(), end) {
        return None;
    }
    let ahead = index.wrapping_sub(extent.start() >> 12) % ENTRIES;
    (ahead < extent.bytes >> 12).then(|| (extent.start() + (ahead << 12), end))
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

/// The leaves under a root, in address order: those of addresses that the process has memory at.
fn leaves(context: &Context<'_>, root: u64) -> Vec<(u64, u64)> {
    let (mut leaves, mut seen) = (Vec::new(), HashSet::new());
    each_word(context, root, root + USED_ROOT_BYTES, &mut |at, leaf| {
        let start = (at - root) / 8 * LEAF_SPAN;
        let mappings = context.space.mappings();
        let next = mappings.get(mappings.partition_point(|mapping| mapping.end <= start));
        let has_memory = next.is_some_and(|mapping| mapping.start < start + LEAF_SPAN);
        // No two parts of the address space have one leaf.
        if has_memory && seen.insert(leaf) && is_own(context, leaf, leaf.saturating_add(LEVEL_BYTES)) {
            leaves.push((start, leaf));
        }
        true
    });
    leaves
}

/// The layout by which extents in use and the entries that lead to them say the same.
fn layout(context: &Context<'_>, leaves: &[(u64, u64)]) -> Option<&'static Layout> {
    let mut cache = PageCache::new(context.memory);
    // For and against each.
    let mut votes = [(0_usize, 0_usize); LAYOUTS.len()];
    let (mut cursor, mut sampled) = (0, 0);
    for &(start, leaf) in leaves {
        let is_enough = sampled >= MOST_SAMPLED || votes.iter().any(|votes| votes.0 >= ENOUGH_VOTES);
        if is_enough || Instant::now() >= context.deadline {
            break;
        }
        each_word(context, leaf, leaf + LEVEL_BYTES, &mut |at, entry| {
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
            sampled < MOST_SAMPLED && votes.iter().all(|votes| votes.0 < ENOUGH_VOTES)
        });
    }
    let (layout, (with, against)) = LAYOUTS.iter().zip(votes).max_by_key(|(_, votes)| votes.0)?;
    // A few may be in motion.
    (with > 10 * against).then_some(layout)
}

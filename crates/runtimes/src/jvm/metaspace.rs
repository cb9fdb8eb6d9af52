//! What classes are kept in: metaspace, and the compressed class space.
//!
//! Each class loader has chunks of both; what of these is used, and what is reserved and committed of each kind, the JVM counts
//! itself, in counters that the structures point to. No symbol leads to them: the list of class loaders does.

use std::collections::HashSet;

use strandline_process::memory::word_at;

use super::layout::{
    ARENA_CHUNKS, ARENA_COUNTER, CHUNK_BASE, CHUNK_BYTES, CHUNK_NEXT, CHUNK_NODE, CHUNK_USED_WORDS,
    LIST_COMMITTED, LIST_FIRST, LIST_LIMITER, LIST_RESERVED, METASPACE_ARENAS, METASPACE_BEHIND_LOADER,
    METASPACE_LOCK, METASPACE_VERSIONS, MOST_CHUNK_BYTES, NODE_BASE, NODE_BYTES, NODE_NEXT, NODE_SIZE,
};
use super::view::View;

/// The most class loaders, chunks and nodes that are read.
const MOST_LOADERS: usize = 1 << 18;
const MOST_CHUNKS: usize = 1 << 21;
const MOST_NODES: usize = 1 << 12;
/// The most that may be reserved, and where.
const MOST_RESERVED: u64 = 1 << 40;
const LAST: u64 = 1 << 47;

/// One of the two kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The ranges that are reserved for it, in the order of addresses.
    pub ranges: Vec<(u64, u64)>,
    /// What of them is used, in the order of addresses.
    pub used: Vec<(u64, u64)>,
    /// Bytes that it counts as used.
    pub used_bytes: u64,
    /// Bytes that it counts as committed.
    pub committed_bytes: u64,
}

/// Both, and who has how much of them.
#[derive(Clone, Debug, Default)]
pub struct Metaspace {
    /// Method code, constant pools and the like.
    pub others: Space,
    /// What narrow class pointers point to; empty where they are off.
    pub classes: Space,
    /// By class loader: where its oop is kept, and how much of both kinds it has.
    pub loaders: Vec<(u64, u64)>,
}

impl Metaspace {
    /// Reads it; `None` where it is of a version that is not known, or does not hold together.
    pub fn read(view: &View<'_>) -> Option<Self> {
        let (first, last) = METASPACE_VERSIONS;
        if !view.structs.major().is_some_and(|major| (first..=last).contains(&major)) {
            return None;
        }
        let mut reader = Reader { view, kinds: Default::default(), seen: HashSet::new() };
        let mut loaders = Vec::new();
        let mut at = view.fixed(&["ClassLoaderDataGraph::_head"])?;
        while at != 0 && loaders.len() < MOST_LOADERS && reader.seen.insert(at) {
            loaders.extend(reader.loader(at)?);
            at = view.field(at, &["ClassLoaderData::_next"])?;
        }
        let [others, classes] = reader.kinds;
        let others = others.space(view)?;
        let classes = if classes.counter == 0 { Space::default() } else { classes.space(view)? };
        loaders.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        Some(Self { others, classes, loaders })
    }
}

/// What is known of one kind while loaders are gone over.
#[derive(Clone, Debug, Default)]
struct KindOf {
    counter: u64,
    node: u64,
    used: Vec<(u64, u64)>,
}

struct Reader<'a> {
    view: &'a View<'a>,
    kinds: [KindOf; 2],
    seen: HashSet<u64>,
}

impl Reader<'_> {
    /// A class loader: where its oop is kept, and how much it has. One that has loaded nothing has no metaspace.
    fn loader(&mut self, at: u64) -> Option<Option<(u64, u64)>> {
        let loader = self.view.place(at, &["ClassLoaderData::_class_loader"])?;
        let place = loader.checked_add(METASPACE_BEHIND_LOADER)?;
        let (metaspace, lock) = (self.view.word(place)?, self.view.word(place.checked_add(8)?)?);
        if metaspace == 0 {
            return Some(None);
        }
        if self.view.word(metaspace.checked_add(METASPACE_LOCK)?)? != lock {
            return None;
        }
        let mut bytes = 0;
        for (kind, offset) in METASPACE_ARENAS.into_iter().enumerate() {
            let arena = self.view.word(metaspace.checked_add(offset)?)?;
            if arena != 0 {
                bytes += self.arena(arena, kind)?;
            }
        }
        Some(Some((self.view.word(loader)?, bytes)))
    }

    fn arena(&mut self, arena: u64, kind: usize) -> Option<u64> {
        let counter = self.view.word(arena.checked_add(ARENA_COUNTER)?)?;
        let kind = self.kinds.get_mut(kind)?;
        if kind.counter == 0 {
            kind.counter = counter;
        }
        if kind.counter != counter {
            return None;
        }
        let mut bytes = 0;
        let mut at = self.view.word(arena.checked_add(ARENA_CHUNKS)?)?;
        while at != 0 {
            if self.seen.len() >= MOST_CHUNKS || !self.seen.insert(at) {
                return None;
            }
            let mut chunk = [0; CHUNK_BYTES];
            self.view.memory.read(at, &mut chunk).ok()?;
            let base = word_at(&chunk, CHUNK_BASE)?;
            let used = word_at(&chunk, CHUNK_USED_WORDS)?.checked_mul(8)?;
            if used > MOST_CHUNK_BYTES || !base.is_multiple_of(8) {
                return None;
            }
            if used > 0 {
                kind.used.push((base, base.checked_add(used)?));
            }
            kind.node = word_at(&chunk, CHUNK_NODE)?;
            bytes += used;
            at = word_at(&chunk, CHUNK_NEXT)?;
        }
        Some(bytes)
    }
}

impl KindOf {
    /// Its ranges, by the list that a node of it is in: the node points to counters within that list.
    fn space(mut self, view: &View<'_>) -> Option<Space> {
        let mut node = [0; NODE_BYTES];
        let got = view.memory.read_some(self.node, &mut node);
        let words: Vec<u64> = (0..got / 8).filter_map(|index| word_at(&node, index * 8)).collect();
        // The limiter, the counter of what is reserved, and the one of what is committed, follow each other.
        let list = words.windows(3).find_map(|three| {
            let list = three[1].checked_sub(LIST_RESERVED).filter(|list| list.is_multiple_of(8))?;
            let follows = three[2] == list.checked_add(LIST_COMMITTED)?;
            (follows && view.word(list.checked_add(LIST_LIMITER)?)? == three[0]).then_some(list)
        })?;
        let mut ranges = Vec::new();
        let mut at = view.word(list.checked_add(LIST_FIRST)?)?;
        let mut seen = HashSet::new();
        while at != 0 && ranges.len() < MOST_NODES && seen.insert(at) {
            let start = view.word(at.checked_add(NODE_BASE)?)?;
            ranges.push((start, start.checked_add(view.word(at.checked_add(NODE_SIZE)?)?)?));
            at = view.word(at.checked_add(NODE_NEXT)?)?;
        }
        ranges.sort_unstable();
        self.used.sort_unstable();
        let apart = |ranges: &[(u64, u64)]| ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        let is_inside = |&(start, end): &(u64, u64)| {
            let index = ranges.partition_point(|range| range.1 <= start);
            ranges.get(index).is_some_and(|range| range.0 <= start && end <= range.1)
        };
        let reserved: u64 =
            ranges.iter().map(|range| range.1.saturating_sub(range.0)).fold(0, u64::saturating_add);
        let is_sound = seen.contains(&self.node)
            && reserved <= MOST_RESERVED
            && ranges.last().is_none_or(|range| range.1 <= LAST)
            && apart(&ranges)
            && apart(&self.used)
            && self.used.iter().all(is_inside)
            && view.word(list.checked_add(LIST_RESERVED)?)?.checked_mul(8)? == reserved;
        if !is_sound {
            return None;
        }
        Some(Space {
            used: self.used,
            used_bytes: view.word(self.counter)?.checked_mul(8)?,
            committed_bytes: view.word(list.checked_add(LIST_COMMITTED)?)?.checked_mul(8)?,
            ranges,
        })
    }
}

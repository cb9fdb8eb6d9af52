//! Free chunks that look in use to their neighbours: those in thread caches, and those in fastbins
//! if a walk has to know them beforehand.
//!
//! Both are singly linked lists. glibc 2.32 and later encode the links ("safe-linking", malloc.c,
//! PROTECT_PTR: the link XOR its own address shifted right by 12). Which encoding is in force is
//! determined from the lists. A list is followed only through resident pages of the arenas' ranges,
//! and to each chunk once, so a cycle ends it.

use std::collections::HashMap;

use super::chunk_set::ChunkSet;
use strandline_claims::range::RangePages;
use strandline_process::page_cache::PageCache;

/// Kind of a special chunk: one that looks in use and is not in use by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Free, in a fastbin.
    Fastbin,
    /// Free, in a thread cache.
    ThreadCache,
    /// In use by malloc itself.
    Metadata,
}

/// The special chunks of one range.
pub struct SpecialChunks {
    marks: ChunkSet,
    /// Chunks that are not in fastbins; fastbin chunks can be millions and need no entry.
    others: HashMap<u64, ChunkKind>,
}

impl SpecialChunks {
    /// No special chunks in `start..end`.
    pub fn new(start: u64, end: u64) -> Self {
        Self { marks: ChunkSet::new(start & !15, end), others: HashMap::new() }
    }

    /// Adds the chunk at `address`; false if it was added before or is outside.
    pub fn insert(&mut self, address: u64, kind: ChunkKind) -> bool {
        let is_new = self.marks.insert(address);
        if is_new && kind != ChunkKind::Fastbin {
            self.others.insert(address, kind);
        }
        is_new
    }

    /// Returns the kind of the chunk at `address`; `None` if it is not special.
    #[inline]
    pub fn kind_of(&self, address: u64) -> Option<ChunkKind> {
        if !self.marks.contains(address) {
            return None;
        }
        Some(self.others.get(&address).copied().unwrap_or(ChunkKind::Fastbin))
    }
}

/// Encoding of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEncoding {
    /// Plain addresses (up to 2.31).
    Plain,
    /// Addresses XOR the link's own address shifted right by 12 (2.32 on).
    Protected,
}

impl LinkEncoding {
    /// Returns the address to which `link`, stored at `place`, points.
    pub fn decode(self, link: u64, place: u64) -> u64 {
        match self {
            Self::Plain => link,
            Self::Protected => link ^ (place >> 12),
        }
    }
}

/// The ranges that may hold chunks, each with its special chunks.
pub struct Ranges<'a> {
    /// Sorted by address.
    pub parts: Vec<(&'a RangePages, SpecialChunks)>,
}

impl Ranges<'_> {
    /// Returns the part with the resident address `address`.
    fn part(&mut self, address: u64) -> Option<&mut SpecialChunks> {
        let index = self.parts.partition_point(|(pages, _)| pages.end() <= address);
        let (pages, lists) = self.parts.get_mut(index)?;
        pages.is_resident(address).then_some(lists)
    }

    /// Whether a chunk may be at `address`: aligned, resident, in an arena.
    pub fn holds(&self, address: u64) -> bool {
        let index = self.parts.partition_point(|(pages, _)| pages.end() <= address);
        address.is_multiple_of(16)
            && self.parts.get(index).is_some_and(|(pages, _)| pages.is_resident(address))
    }

    /// Adds the chunk at `address`; false if there can be none, or it was added before.
    pub fn insert(&mut self, address: u64, kind: ChunkKind) -> bool {
        address.is_multiple_of(16) && self.part(address).is_some_and(|lists| lists.insert(address, kind))
    }
}

/// Follows one list and adds each chunk. Links are `link_offset` after the start of an element and
/// point to elements; a chunk is `chunk_offset` before its element. Returns whether the list ended
/// properly within `max_chunks`.
pub fn follow(
    cache: &mut PageCache<'_>,
    ranges: &mut Ranges<'_>,
    list: List,
    links: LinkEncoding,
    kind: ChunkKind,
    max_chunks: u64,
) -> bool {
    let mut element = list.head;
    let mut count = 0;
    while element != 0 && count < max_chunks {
        let Some(chunk) = element.checked_sub(list.chunk_offset) else { return false };
        if !ranges.insert(chunk, kind) {
            return false;
        }
        count += 1;
        let place = element + list.link_offset;
        let Some(link) = cache.word(place) else { return false };
        element = links.decode(link, place);
    }
    element == 0
}

/// The start of a list and the layout of its elements.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// The first element; 0 if the list is empty.
    pub head: u64,
    /// From an element to its link: 16 in fastbins (`fd`), 0 in thread caches (`next`).
    pub link_offset: u64,
    /// From the chunk to the element: 0 in fastbins, 16 in thread caches.
    pub chunk_offset: u64,
}

impl List {
    /// A fastbin that starts with the chunk `head`.
    pub fn fastbin(head: u64) -> Self {
        Self { head, link_offset: 16, chunk_offset: 0 }
    }

    /// A bin of a thread cache that starts with the block `head`.
    pub fn thread_cache(head: u64) -> Self {
        Self { head, link_offset: 0, chunk_offset: 16 }
    }
}

/// Determines the encoding of links from the first links of all lists: the one under which more
/// links point to a chunk or end the list.
pub fn detect_encoding(
    cache: &mut PageCache<'_>,
    ranges: &Ranges<'_>,
    lists: &[List],
    default: LinkEncoding,
) -> LinkEncoding {
    let (mut plain, mut protected) = (0u32, 0u32);
    for list in lists.iter().take(1000) {
        if !ranges.holds(list.head) {
            continue;
        }
        let place = list.head + list.link_offset;
        let Some(link) = cache.word(place) else { continue };
        let is_valid = |target: u64| target == 0 || ranges.holds(target);
        plain += u32::from(is_valid(LinkEncoding::Plain.decode(link, place)));
        protected += u32::from(is_valid(LinkEncoding::Protected.decode(link, place)));
    }
    match plain.cmp(&protected) {
        std::cmp::Ordering::Greater => LinkEncoding::Plain,
        std::cmp::Ordering::Less => LinkEncoding::Protected,
        std::cmp::Ordering::Equal => default,
    }
}

//! Chunks that are marked as in use but not in use by the program: free ones in thread caches and
//! fastbins, and those of malloc itself.
//!
//! Thread caches and fastbins are singly linked lists. glibc 2.32 and later encode the links
//! ("safe-linking", malloc.c, PROTECT_PTR: the link XOR its own address shifted right by 12). The
//! lists show which encoding is used. A list is followed only through resident pages of the arenas'
//! ranges, and to each chunk once, so a cycle ends it.

use std::collections::HashMap;

use super::chunk_set::ChunkSet;
use super::layout::{ALIGNMENT, CHUNK_FORWARD, CHUNK_HEADER_BYTES};
use strandline_claims::range::RangePages;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Maximum number of lists whose first links are examined to determine the encoding.
const MAX_LISTS_EXAMINED: usize = 1000;

/// Kind of a special chunk: one that is marked as in use but not in use by the program.
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
    /// The addresses of all.
    addresses: ChunkSet,
    /// Kinds of those that are not in fastbins, which can hold millions.
    other_kinds: HashMap<u64, ChunkKind>,
}

impl SpecialChunks {
    /// No special chunks in `start..end`.
    pub fn new(start: u64, end: u64) -> Self {
        let aligned_start = start - start % ALIGNMENT;
        Self { addresses: ChunkSet::new(aligned_start, end), other_kinds: HashMap::new() }
    }

    /// Adds the chunk at `address`; false if it was added before or is outside.
    pub fn insert(&mut self, address: u64, kind: ChunkKind) -> bool {
        let is_new = self.addresses.insert(address);
        if is_new && kind != ChunkKind::Fastbin {
            self.other_kinds.insert(address, kind);
        }
        is_new
    }

    /// Returns the kind of the chunk at `address`; `None` if it is not special.
    #[inline]
    pub fn kind_of(&self, address: u64) -> Option<ChunkKind> {
        if !self.addresses.contains(address) {
            return None;
        }
        Some(self.other_kinds.get(&address).copied().unwrap_or(ChunkKind::Fastbin))
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
    /// Returns the address to which `link`, stored at `link_address`, points.
    pub fn decode(self, link: u64, link_address: u64) -> u64 {
        match self {
            Self::Plain => link,
            Self::Protected => link ^ (link_address >> 12),
        }
    }
}

/// A range that may hold chunks.
struct ChunkRange<'a> {
    pages: &'a RangePages,
    special_chunks: SpecialChunks,
}

/// The ranges that may hold chunks, each with its special chunks, in address order.
pub struct Ranges<'a>(Vec<ChunkRange<'a>>);

impl<'a> Ranges<'a> {
    /// Takes the ranges, in address order, and the pages of each. There are no special chunks yet.
    pub fn new(ranges: impl Iterator<Item = (AddressRange, &'a RangePages)>) -> Self {
        let chunk_range = |(range, pages): (AddressRange, &'a RangePages)| ChunkRange {
            pages,
            special_chunks: SpecialChunks::new(range.start, range.end),
        };
        Self(ranges.map(chunk_range).collect())
    }

    /// Whether there is no range.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the special chunks of each range.
    pub fn into_special_chunks(self) -> Vec<SpecialChunks> {
        self.0.into_iter().map(|range| range.special_chunks).collect()
    }

    /// Returns the index of the range where a chunk may be at `address`: aligned, resident, in an
    /// arena.
    fn index_of(&self, address: u64) -> Option<usize> {
        self.index_of_resident(address).filter(|_| address.is_multiple_of(ALIGNMENT))
    }

    /// Returns the index of the range with `address`; `None` if its page is not resident.
    fn index_of_resident(&self, address: u64) -> Option<usize> {
        let index = self.0.partition_point(|range| range.pages.end() <= address);
        self.0.get(index)?.pages.is_resident(address).then_some(index)
    }

    /// Whether the page of `address` is resident, in an arena.
    fn is_resident(&self, address: u64) -> bool {
        self.index_of_resident(address).is_some()
    }

    /// Whether a chunk may be at `address`.
    pub fn holds(&self, address: u64) -> bool {
        self.index_of(address).is_some()
    }

    /// Adds the chunk at `address`; false if there can be none, or it was added before.
    pub fn insert(&mut self, address: u64, kind: ChunkKind) -> bool {
        let range = self.index_of(address).and_then(|index| self.0.get_mut(index));
        range.is_some_and(|range| range.special_chunks.insert(address, kind))
    }
}

/// Follows one list of a thread cache and adds each chunk. Returns whether the list ended with a
/// link of 0 within `max_chunks`.
pub fn follow(
    cache: &mut PageCache<'_>,
    ranges: &mut Ranges<'_>,
    list: List,
    links: LinkEncoding,
    max_chunks: u64,
) -> bool {
    let mut element = list.head;
    let mut count = 0;
    while element != 0 && count < max_chunks {
        let Some(chunk) = element.checked_sub(list.chunk_offset) else { return false };
        if !ranges.insert(chunk, ChunkKind::ThreadCache) {
            return false;
        }
        count += 1;
        let link_address = element + list.link_offset;
        // The link may be on the page behind that of the chunk's header.
        if !ranges.is_resident(link_address) {
            return false;
        }
        let Some(link) = cache.word(link_address) else { return false };
        element = links.decode(link, link_address);
    }
    element == 0
}

/// The start of a list and the layout of its elements, to which links point.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// The first element; 0 if the list is empty.
    pub head: u64,
    /// Bytes from an element to its link: the offset of `fd` in fastbins, 0 in thread caches
    /// (`next`).
    pub link_offset: u64,
    /// Bytes from the chunk to the element: 0 in fastbins, the header's in thread caches.
    pub chunk_offset: u64,
}

impl List {
    /// A fastbin that starts with the chunk `head`.
    pub fn fastbin(head: u64) -> Self {
        Self { head, link_offset: CHUNK_FORWARD, chunk_offset: 0 }
    }

    /// A bin of a thread cache that starts with the block `head`.
    pub fn thread_cache(head: u64) -> Self {
        Self { head, link_offset: 0, chunk_offset: CHUNK_HEADER_BYTES }
    }
}

/// Determines the encoding from the first links of lists: the one under which more links point to a
/// chunk or end the list; [`LinkEncoding::Protected`] if it is equally many under both.
pub fn detect_encoding(cache: &mut PageCache<'_>, ranges: &Ranges<'_>, lists: &[List]) -> LinkEncoding {
    let (mut valid_plain, mut valid_protected) = (0u32, 0u32);
    for list in lists.iter().take(MAX_LISTS_EXAMINED) {
        if !ranges.holds(list.head) {
            continue;
        }
        let link_address = list.head + list.link_offset;
        if !ranges.is_resident(link_address) {
            continue;
        }
        let Some(link) = cache.word(link_address) else { continue };
        let is_valid = |target: u64| target == 0 || ranges.holds(target);
        valid_plain += u32::from(is_valid(LinkEncoding::Plain.decode(link, link_address)));
        valid_protected += u32::from(is_valid(LinkEncoding::Protected.decode(link, link_address)));
    }
    if valid_plain > valid_protected { LinkEncoding::Plain } else { LinkEncoding::Protected }
}

//! What runtimes' readers report about references: blocks in the runtimes' own memory, and
//! variables by name.
//!
//! A runtime is a root of all blocks in its memory, so none of them counts as unreachable. It is
//! also a root of objects linked by the collector, of the objects at which paths from variables
//! stop ([`strandline_claims::runtime::ReferenceHints`]; otherwise each variable would lead to
//! everything), and of blocks that words of objects point into without being references. Characters
//! of texts are not references; numbers that hold addresses are.

use std::ops::Range;

use strandline_claims::places::AddressSet;
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::runtime::{EncodedWord, ObjectTypes, Reading, ReferenceHints, claimed_ranges};
use strandline_holders::{BlockSet, Blocks, ExactBlocks, Refused, TaggedBlocks};
use strandline_process::range::{AddressRange, RangeSet, containing};

/// Maximum bytes before the collector's link in an object's block (CPython): 16 of the debug
/// allocator (obmalloc.c, `_PyMem_DebugRawAlloc`), two words for a dictionary and weak references
/// (pycore_object.h, `_PyType_PreHeaderSize`), and a margin.
const MAX_HEADER_BYTES: u64 = 48;
/// Maximum bytes of a small block beyond the size that was requested.
const MAX_PADDING_BYTES: u64 = 32;
/// The same for a block that malloc maps.
const MAX_MAPPED_PADDING_BYTES: u64 = PAGE_BYTES + MAX_PADDING_BYTES;
/// Mask of the address in a collector's link, whose two low bits are flags (CPython, pycore_gc.h,
/// `_PyGC_PREV_SHIFT`).
const LINK_ADDRESS_MASK: u64 = !3;

/// Words of objects that are not references, though they may be addresses of blocks, and words that
/// are references, though they have another form.
pub struct WordCorrections<'a> {
    hints: Vec<&'a ReferenceHints>,
    blocks: &'a Blocks,
}

impl<'a> WordCorrections<'a> {
    /// Collects what all runtimes' readers report.
    pub fn new(runtimes: &'a [Reading], blocks: &'a Blocks) -> Self {
        let hints = runtimes.iter().filter_map(|runtime| runtime.reference_hints.as_ref());
        Self { hints: hints.collect(), blocks }
    }

    /// Replaces the former by zeros and the latter by addresses in `bytes`, which were read at
    /// `address`.
    pub fn apply(&self, address: u64, bytes: &mut [u8]) {
        for hints in &self.hints {
            zero_links(&hints.gc_links, address, bytes);
            zero_words(&hints.weak_words, address, bytes);
            self.zero_texts(&hints.opaque_from, address, bytes);
            self.decode_words(&hints.encoded_words, address, bytes);
        }
    }

    /// Replaces those of `words`, which are in order, that are in `bytes`, read at `address`, by
    /// the addresses that they hold, if a block begins there: others are numbers.
    fn decode_words(&self, words: &[EncodedWord], address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        let first = words.partition_point(|word| word.at < address);
        for &EncodedWord { at, target } in words.iter().skip(first).take_while(|word| word.at < end) {
            let is_block = self.blocks.find(target).is_some_and(|block| self.blocks.start(block) == target);
            if let Some(word) = word_mut(bytes, address, at).filter(|_| is_block) {
                *word = target.to_le_bytes();
            }
        }
    }

    /// Zeroes the characters of `texts`, each from its start to the end of its block.
    fn zero_texts(&self, texts: &AddressSet, address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        let block_end = |text: u64| {
            let block = self.blocks.find(text);
            block.map_or(0, |block| self.blocks.start(block).saturating_add(self.blocks.bytes(block)))
        };
        // A text may begin before `address`.
        let first_block = self.blocks.find(address).map(|block| self.blocks.start(block));
        let first_text = first_block.and_then(|start| texts.within(start, address).next());
        let mut zeroed_end = address;
        for text in first_text.into_iter().chain(texts.within(address, end)) {
            let text_end = block_end(text);
            let index = |position: u64| usize::try_from(position.checked_sub(address)?).ok();
            let indices = index(text.max(zeroed_end)).zip(index(text_end.min(end)));
            let Some((first, last)) = indices else { continue };
            bytes.get_mut(first..last).unwrap_or_default().fill(0);
            zeroed_end = zeroed_end.max(text_end);
        }
    }
}

/// Zeroes those of `words`, which are in order, that are in `bytes`, read at `address`.
fn zero_words(words: &[u64], address: u64, bytes: &mut [u8]) {
    let end = address.saturating_add(bytes.len() as u64);
    let first = words.partition_point(|word| *word < address);
    for &at in words.iter().skip(first).take_while(|word| **word < end) {
        word_mut(bytes, address, at).into_iter().for_each(|word| *word = [0; 8]);
    }
}

/// Returns the word at `at` in `bytes`, read at `address`; `None` if not all of it is there.
fn word_mut(bytes: &mut [u8], address: u64, at: u64) -> Option<&mut [u8; 8]> {
    let offset = usize::try_from(at.checked_sub(address)?).ok()?;
    bytes.get_mut(offset..)?.first_chunk_mut()
}

/// Zeroes links in `bytes`, read at `address`, that point to other links: they are not references.
fn zero_links(links: &AddressSet, address: u64, bytes: &mut [u8]) {
    let end = address.saturating_add(bytes.len() as u64);
    for link in links.within(address.saturating_sub(8), end) {
        for word_address in [link, link.saturating_add(8)] {
            let is_link =
                |word: &&mut [u8; 8]| links.contains(u64::from_le_bytes(**word) & LINK_ADDRESS_MASK);
            if let Some(word) = word_mut(bytes, address, word_address).filter(is_link) {
                *word = [0; 8];
            }
        }
    }
}

/// Marks the blocks in memory of runtimes whose readers report objects; `None` if there is no such
/// memory.
///
/// # Errors
/// [`Refused::NoMemory`].
pub fn exact_blocks(runtimes: &[Reading], blocks: &Blocks) -> Result<Option<ExactBlocks>, Refused> {
    let (mut exact, mut tagged, mut plain_targets) =
        (BlockSet::new(blocks.len())?, BlockSet::new(blocks.len())?, BlockSet::new(blocks.len())?);
    let (mut has_exact, mut has_tagged) = (false, false);
    for reading in runtimes {
        let Some(hints) = &reading.reference_hints else { continue };
        for &range in &claimed_ranges(std::slice::from_ref(reading)) {
            has_exact = true;
            for block in block_range(blocks, range) {
                exact.set(block);
                if hints.plain_targets.is_some() {
                    tagged.set(block);
                }
            }
        }
        if let Some(targets) = &hints.plain_targets {
            has_tagged = true;
            // A target that is a part of a block may be in a structure that refers to others.
            let is_whole_block = |block: &u32, target: &AddressRange| {
                let unused_bytes = blocks.bytes(*block).saturating_sub(target.len());
                let max_padding = MAX_PADDING_BYTES.max(target.len() / 8).min(MAX_MAPPED_PADDING_BYTES);
                blocks.start(*block) == target.start && unused_bytes <= max_padding
            };
            for target in targets {
                let block = blocks.find(target.start).filter(|block| is_whole_block(block, target));
                block.into_iter().for_each(|block| _ = plain_targets.set(block));
            }
        }
    }
    if !has_exact {
        return Ok(None);
    }
    let tagged = has_tagged.then_some(TaggedBlocks { blocks: tagged, plain_targets });
    Ok(Some(ExactBlocks::new(exact, blocks.len())?.with_tagged(tagged)))
}

/// What a runtime refers to according to its reader.
#[derive(Default)]
pub struct RuntimeReferences {
    /// Blocks in its memory, and linked objects.
    pub blocks: Vec<Range<u32>>,
    /// Objects at which paths from variables stop.
    pub stops: Vec<u32>,
}

impl RuntimeReferences {
    /// Takes the references in `hints`. `claims` is the runtime's own memory.
    pub fn new(hints: &ReferenceHints, claims: &RangeSet, blocks: &Blocks) -> Self {
        let mut references = Self::default();
        for &claim in claims {
            let range = block_range(blocks, claim);
            match references.blocks.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => references.blocks.push(range),
            }
        }
        for gap in claims.gaps_in((0, u64::MAX)) {
            for link in hints.gc_links.within(gap.start, gap.end) {
                let is_header = |block: &u32| link - blocks.start(*block) <= MAX_HEADER_BYTES;
                let block = blocks.find(link).filter(is_header);
                references.blocks.extend(block.map(|block| block..block + 1));
            }
        }
        references.stops = hints.stops.within(0, u64::MAX).filter_map(|stop| blocks.find(stop)).collect();
        references
    }
}

/// Returns the numbers of the blocks that begin in `range`.
fn block_range(blocks: &Blocks, range: AddressRange) -> Range<u32> {
    first_from(blocks, range.start)..first_from(blocks, range.end)
}

/// Returns the first block that begins at or after `address`.
fn first_from(blocks: &Blocks, address: u64) -> u32 {
    let (mut low, mut high) = (0, blocks.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if blocks.start(middle) < address { low = middle + 1 } else { high = middle }
    }
    low
}

/// The type of an object, according to its runtime's reader.
pub struct ObjectType<'a> {
    /// The types of that runtime.
    pub types: &'a ObjectTypes,
    /// Number of the type there.
    pub number: u16,
}

/// A runtime's own memory.
struct RuntimeClaim<'a> {
    range: AddressRange,
    reading: &'a Reading,
}

/// Rows and types of blocks in runtimes' own memory.
pub struct RuntimeBlocks<'a> {
    /// In address order, without overlap.
    claims: Vec<RuntimeClaim<'a>>,
    /// The types of objects of the runtimes whose readers know them.
    types: Vec<&'a ObjectTypes>,
}

impl<'a> RuntimeBlocks<'a> {
    /// Collects the claims of all runtimes whose readers report objects.
    pub fn new(runtimes: &'a [Reading]) -> Self {
        let readings = runtimes.iter().filter(|reading| reading.reference_hints.is_some());
        let claims_of = |reading: &'a Reading| {
            reading.claims.iter().map(move |claim| RuntimeClaim { range: claim.range(), reading })
        };
        let mut claims: Vec<RuntimeClaim<'_>> = readings.flat_map(claims_of).collect();
        claims.sort_unstable_by_key(|claim| claim.range.start);
        let types = runtimes.iter().map(|reading| &reading.object_types);
        Self { claims, types: types.filter(|types| !types.is_empty()).collect() }
    }

    /// What the reader of the runtime found in whose memory `start` is.
    fn reading(&self, start: u64) -> Option<&'a Reading> {
        let index = self.claims.partition_point(|claim| claim.range.end <= start);
        self.claims.get(index).filter(|claim| claim.range.start <= start).map(|claim| claim.reading)
    }

    /// Returns the type of the object at `start` in a runtime's own memory, if its reader knows it.
    pub fn object_type(&self, start: u64) -> Option<ObjectType<'a>> {
        if self.types.is_empty() {
            return None;
        }
        let types = &self.reading(start)?.object_types;
        Some(ObjectType { types, number: types.find(start)? })
    }

    /// Returns the type of the object in an allocator's block at `start`, which a runtime's reader
    /// has claimed, if it knows the type.
    pub fn claimed_object_type(&self, start: u64) -> Option<ObjectType<'a>> {
        self.types.iter().find_map(|&types| Some(ObjectType { types, number: types.find(start)? }))
    }

    /// Whether the block at `start` is in a runtime's own memory.
    pub fn contains(&self, start: u64) -> bool {
        self.reading(start).is_some()
    }

    /// Returns the memory that the runtime releases as a whole with the block at `start` in it.
    pub fn unit(&self, start: u64) -> Option<AddressRange> {
        let units = &self.reading(start)?.reference_hints.as_ref()?.release_units;
        containing(units, start)
    }

    /// Returns the row of the block at `start`.
    pub fn row(&self, start: u64) -> Option<&'static str> {
        let reading = self.reading(start)?;
        let hints = reading.reference_hints.as_ref()?;
        let object = hints.object_row.filter(|_| hints.objects.contains(start)).map(|row| row.id);
        object.or_else(|| reading.rows.map(|rows| rows.live.id))
    }
}

#[cfg(test)]
mod tests {
    use strandline_holders::Builder;

    use super::*;

    #[test]
    fn single_words_are_zeroed_within_read_memory() {
        let mut bytes = [1; 24];
        zero_words(&[0xff8, 0x1008, 0x1018], 0x1000, &mut bytes);
        assert_eq!((bytes[7], &bytes[8..16], bytes[16]), (1, &[0; 8][..], 1));
    }

    #[test]
    fn words_that_hold_the_start_of_a_block_become_addresses() {
        let mut builder = Builder::default();
        builder.push(0x7fff_1234_5670, 32);
        let blocks = builder.finish().unwrap();
        let corrections = WordCorrections { hints: Vec::new(), blocks: &blocks };
        let decoded = |target: u64| {
            let words = [0xff8, 0x1008, 0x1014].map(|at| EncodedWord { at, target });
            let mut bytes = [1; 24];
            corrections.decode_words(&words, 0x1000, &mut bytes);
            assert_eq!((bytes[7], bytes[23]), (1, 1), "words that are not whole in the bytes");
            u64::from_le_bytes(bytes[8..16].try_into().unwrap())
        };
        assert_eq!(decoded(0x7fff_1234_5670), 0x7fff_1234_5670);
        assert_eq!(decoded(0x7fff_1234_5678), u64::from_le_bytes([1; 8]), "further in the block");
    }

    #[test]
    fn mutual_links_are_removed_and_others_stay() {
        let mut links = AddressSet::default();
        assert!([0x1000, 0x1040, 0x2000].into_iter().all(|place| links.insert(place)));
        let words = [0x1041_u64, 0x2002, 0x1000, 0x1040, 7, 7, 7, 7, 0x3000, 0x1000];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        zero_links(&links, 0x1000, &mut bytes);
        let left: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(left, [0, 0, 0x1000, 0x1040, 7, 7, 7, 7, 0x3000, 0]);
        // The second word of a link whose first word was read before.
        let mut rest = 0x1000_u64.to_le_bytes();
        zero_links(&links, 0x2008, &mut rest);
        assert_eq!(rest, [0; 8]);
        zero_links(&links, u64::MAX - 3, &mut rest);
    }
}

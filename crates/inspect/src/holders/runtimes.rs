//! What runtimes' readers report about references: blocks in the runtimes' own memory, and
//! variables by name.
//!
//! A runtime is a root of all blocks in its memory, so none of them counts as unreachable. It is
//! also a root of objects linked by the collector, of the objects at which paths from variables
//! stop ([`strandline_claims::runtime::ReferenceHints`]; otherwise each variable would lead to
//! everything), and of blocks that words of objects point into without being references. Characters
//! of texts are not references.

use std::ops::Range;

use strandline_claims::places::AddressSet;
use strandline_claims::runtime::{Reading, ReferenceHints, claimed_ranges};
use strandline_holders::{BlockSet, Blocks, Exact, Refused};
use strandline_process::range::{AddressRange, RangeSet};

/// Maximum bytes before the collector's link in an object's block: guards, and two words.
const MAX_HEADER_BYTES: u64 = 48;
/// The low bits of links are flags.
const LINK: u64 = !3;

/// Words of objects that are no references, though they may be addresses of blocks.
pub struct NonReferences<'a> {
    holdings: Vec<&'a ReferenceHints>,
    blocks: &'a Blocks,
}

impl<'a> NonReferences<'a> {
    /// Collects what all runtimes' readers report.
    pub fn new(runtimes: &'a [Reading], blocks: &'a Blocks) -> Self {
        let holdings = runtimes.iter().filter_map(|runtime| runtime.holding.as_ref());
        Self { holdings: holdings.collect(), blocks }
    }

    /// Replaces such words by zeros in `bytes`, which were read at `address`.
    pub fn zero(&self, address: u64, bytes: &mut [u8]) {
        for holding in &self.holdings {
            zero_links(&holding.gc_links, address, bytes);
            self.zero_texts(&holding.opaque_from, address, bytes);
        }
    }

    fn zero_texts(&self, texts: &AddressSet, address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        let behind = |place: u64| {
            let block = self.blocks.find(place);
            block.map_or(0, |block| self.blocks.start(block).saturating_add(self.blocks.bytes(block)))
        };
        // A text may begin before `address`.
        let begun = self.blocks.find(address).map(|block| self.blocks.start(block));
        let begun = begun.and_then(|start| texts.within(start, address).next());
        let mut done = address;
        for place in begun.into_iter().chain(texts.within(address, end)) {
            let (from, to) = (place.max(done), behind(place).min(end));
            let part = |at: u64| usize::try_from(at.checked_sub(address)?).ok();
            let Some((from, to)) = part(from).zip(part(to)) else { continue };
            bytes.get_mut(from..to).unwrap_or_default().fill(0);
            done = done.max(behind(place));
        }
    }
}

/// Zeroes links in `bytes`, read at `address`, that point to other links: they are not references.
fn zero_links(links: &AddressSet, address: u64, bytes: &mut [u8]) {
    let end = address.saturating_add(bytes.len() as u64);
    for place in links.within(address.saturating_sub(8), end) {
        for at in [place, place.saturating_add(8)] {
            let offset = at.checked_sub(address).and_then(|offset| usize::try_from(offset).ok());
            let word = offset.and_then(|offset| bytes.get_mut(offset..)?.first_chunk_mut::<8>());
            if let Some(word) = word.filter(|word| links.contains(u64::from_le_bytes(**word) & LINK)) {
                *word = [0; 8];
            }
        }
    }
}

/// Marks the blocks in memory of runtimes whose readers report objects.
pub fn exact_blocks(runtimes: &[Reading], blocks: &Blocks) -> Result<Option<Exact>, Refused> {
    let some = runtimes.iter().filter(|reading| reading.holding.is_some());
    let claims: Vec<AddressRange> =
        some.flat_map(|reading| claimed_ranges(std::slice::from_ref(reading))).collect();
    if claims.is_empty() {
        return Ok(None);
    }
    let mut own = BlockSet::new(blocks.len())?;
    for AddressRange { start, end } in claims {
        (first_from(blocks, start)..first_from(blocks, end)).for_each(|block| _ = own.set(block));
    }
    Exact::new(own, blocks.len()).map(Some)
}

/// What a runtime refers to according to its reader.
#[derive(Default)]
pub struct Whole {
    /// Blocks in its memory, and linked objects.
    pub blocks: Vec<Range<u32>>,
    /// Objects at which paths from variables stop.
    pub stops: Vec<u32>,
}

impl Whole {
    /// Takes the references in `holding`. `claims` is the runtime's own memory.
    pub fn new(holding: &ReferenceHints, claims: &RangeSet, blocks: &Blocks) -> Self {
        let mut whole = Self::default();
        for &AddressRange { start, end } in claims {
            let range = first_from(blocks, start)..first_from(blocks, end);
            match whole.blocks.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => whole.blocks.push(range),
            }
        }
        for gap in claims.gaps_in((0, u64::MAX)) {
            for link in holding.gc_links.within(gap.start, gap.end) {
                let block = blocks.find(link);
                let is_its = |block: &u32| link - blocks.start(*block) <= MAX_HEADER_BYTES;
                whole.blocks.extend(block.filter(is_its).map(|block| block..block + 1));
            }
        }
        whole.stops = holding.stops.within(0, u64::MAX).filter_map(|stop| blocks.find(stop)).collect();
        whole
    }
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

/// Rows of blocks in runtimes' own memory.
pub struct RuntimeBlocks<'a> {
    /// In address order, without overlap.
    ranges: Vec<(u64, u64, &'a Reading)>,
}

impl<'a> RuntimeBlocks<'a> {
    /// Collects the claims of all runtimes whose readers report objects.
    pub fn new(runtimes: &'a [Reading]) -> Self {
        let some = runtimes.iter().filter(|reading| reading.holding.is_some());
        let ranges = some.flat_map(|of| of.claims.iter().map(move |claim| (claim.start, claim.end, of)));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.0);
        Self { ranges }
    }

    fn reading(&self, start: u64) -> Option<&'a Reading> {
        let index = self.ranges.partition_point(|range| range.1 <= start);
        self.ranges.get(index).filter(|range| range.0 <= start).map(|range| range.2)
    }

    /// Whether the block at `start` is in a runtime's own memory.
    pub fn have(&self, start: u64) -> bool {
        !self.ranges.is_empty() && self.reading(start).is_some()
    }

    /// Returns the row of the block at `start`.
    pub fn row(&self, start: u64) -> Option<&'static str> {
        let reading = self.reading(start).filter(|_| !self.ranges.is_empty())?;
        let holding = reading.holding.as_ref()?;
        let object = holding.object.filter(|_| holding.objects.contains(start)).map(|row| row.id);
        object.or_else(|| reading.rows.map(|rows| rows.live.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_each_other_are_none_and_others_stay() {
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

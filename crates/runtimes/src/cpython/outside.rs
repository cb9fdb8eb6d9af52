//! Memory outside the arenas that objects can point to.

use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

/// Logarithm of the bytes of a block, which has one bit.
const BLOCK_SHIFT: u32 = 16;
/// Logarithm of the bytes of a span, whose bitmap is allocated if it has a block of this memory.
const SPAN_SHIFT: u32 = 30;
/// Words of a span's bitmap.
const SPAN_WORDS: usize = 1 << (SPAN_SHIFT - BLOCK_SHIFT - 6);
/// Number of spans of the address space.
const SPANS: usize = (USER_ADDRESS_END >> SPAN_SHIFT) as usize;

/// Memory outside the arenas that objects can point to, in whole blocks of 64 KiB.
pub struct OutsideMemory {
    /// Bitmaps of blocks, by span.
    spans: Vec<Option<Box<[u64; SPAN_WORDS]>>>,
    /// Arenas and static data, which need not begin at a block; in address order.
    excluded_ranges: RangeSet,
}

impl OutsideMemory {
    /// The blocks that contain a part of `runs`, without `excluded_ranges`.
    pub fn new(runs: impl IntoIterator<Item = AddressRange>, excluded_ranges: RangeSet) -> Self {
        let mut spans: Vec<Option<Box<[u64; SPAN_WORDS]>>> = Vec::new();
        spans.resize_with(SPANS, || None);
        for run in runs {
            for block in run.start >> BLOCK_SHIFT..run.end.div_ceil(1 << BLOCK_SHIFT) {
                let Some(span) = spans.get_mut((block >> (SPAN_SHIFT - BLOCK_SHIFT)) as usize) else { break };
                let bits = span.get_or_insert_with(|| Box::new([0; SPAN_WORDS]));
                bits[(block >> 6) as usize % SPAN_WORDS] |= 1 << (block % 64);
            }
        }
        Self { spans, excluded_ranges }
    }

    /// Whether `address` is in this memory.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let span = self.spans.get((address >> SPAN_SHIFT) as usize).and_then(Option::as_ref);
        let block = address >> BLOCK_SHIFT;
        span.is_some_and(|bits| bits[(block >> 6) as usize % SPAN_WORDS] >> (block % 64) & 1 != 0)
            && !self.excluded_ranges.contains(address)
    }

    /// Whether `address` is in this memory, in an arena or in static data.
    pub fn is_known(&self, address: u64) -> bool {
        self.contains(address) || self.excluded_ranges.contains(address)
    }
}

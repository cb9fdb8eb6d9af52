//! Memory outside the arenas that objects can point to.

use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

const BLOCK_SHIFT: u32 = 16;
const SPAN_SHIFT: u32 = 30;
const WORDS: usize = 1 << (SPAN_SHIFT - BLOCK_SHIFT - 6);
const SPANS: usize = (USER_ADDRESS_END >> SPAN_SHIFT) as usize;

/// Memory outside the arenas that objects can point to.
pub struct OutsideMemory {
    /// Bitmap of blocks of 64 KiB.
    spans: Vec<Option<Box<[u64; WORDS]>>>,
    /// Arenas and static data, which need not begin at a multiple of 64 KiB; in address order.
    held: RangeSet,
}

impl OutsideMemory {
    /// The memory of `runs` without `held`.
    pub fn new(runs: impl IntoIterator<Item = AddressRange>, held: RangeSet) -> Self {
        let mut spans: Vec<Option<Box<[u64; WORDS]>>> = Vec::new();
        spans.resize_with(SPANS, || None);
        for run in runs {
            for block in run.start >> BLOCK_SHIFT..run.end.div_ceil(1 << BLOCK_SHIFT) {
                let Some(span) = spans.get_mut((block >> (SPAN_SHIFT - BLOCK_SHIFT)) as usize) else { break };
                let bits = span.get_or_insert_with(|| Box::new([0; WORDS]));
                bits[(block >> 6) as usize % WORDS] |= 1 << (block % 64);
            }
        }
        Self { spans, held }
    }

    /// Whether `address` is in this memory.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let span = self.spans.get((address >> SPAN_SHIFT) as usize).and_then(Option::as_ref);
        let block = address >> BLOCK_SHIFT;
        span.is_some_and(|bits| bits[(block >> 6) as usize % WORDS] >> (block % 64) & 1 != 0)
            && !self.is_held(address)
    }

    /// Whether `address` is in this memory, in an arena or in static data.
    pub fn is_known(&self, address: u64) -> bool {
        self.contains(address) || self.is_held(address)
    }

    fn is_held(&self, address: u64) -> bool {
        let next = self.held.partition_point(|range| range.end <= address);
        self.held.get(next).is_some_and(|range| range.start <= address)
    }
}

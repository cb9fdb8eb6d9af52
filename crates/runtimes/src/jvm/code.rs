//! Compiled code: the code cache, in one segment or up to four (`code/codeCache.cpp`,
//! `memory/heap.hpp`).

use std::ops::RangeInclusive;
use std::time::Instant;

use strandline_process::memory::word_at;
use strandline_process::range::AddressRange;

use super::heap::{Pool, is_claimable};
use super::view::View;
use crate::batch::PageCache;

/// Limit on segments; HotSpot has four at most.
const MAX_SEGMENTS: u32 = 16;
/// Limit on ranges in use of a segment; beyond it, the code cache is not read.
const MAX_RANGES: usize = 1 << 18;
/// Limit on blocks of a segment, free ones included, beyond which the code cache is not read: 2 GiB
/// of code in blocks of 512 bytes.
const MAX_BLOCKS: usize = 1 << 22;
/// Blocks read between two checks of the deadline.
const BLOCKS_AT_ONCE: usize = 1024;
/// Values of `CodeHeap::_log2_segment_size` that are accepted; HotSpot's is 7 by default.
const SEGMENT_SHIFTS: RangeInclusive<u32> = 3..=16;
/// Largest accepted header of a block; `HeapBlock` has 16 bytes up to JDK 21, 8 in later ones.
const MAX_HEADER_BYTES: u64 = 16;
/// Distance from `CodeHeap::_log2_segment_size` to `_next_segment`, the end of the blocks
/// (`memory/heap.hpp`, the same from JDK 9 to 27).
const NEXT_SEGMENT_DISTANCE: u64 = 8;
/// Distance from `CodeHeap::_log2_segment_size` to `_code_blob_type`.
const BLOB_TYPE_DISTANCE: u64 = 64;
/// Names of the pools, by `CodeBlobType` of JDK 27 (`code/codeBlob.hpp`).
const POOL_NAMES: [&str; 5] = [
    "CodeHeap 'non-profiled nmethods'",
    "CodeHeap 'profiled nmethods'",
    "CodeHeap 'hot nmethods'",
    "CodeHeap 'non-nmethods'",
    "CodeCache",
];
/// Name of a pool of any other type.
const OTHER_POOL_NAME: &str = "CodeHeap";
/// Index of `CodeBlobType::MethodHot`.
const HOT_INDEX: usize = 2;
/// First version with `CodeBlobType::MethodHot`.
const FIRST_VERSION_WITH_HOT: u32 = 27;

/// A segment of the code cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Committed range.
    pub range: AddressRange,
    /// Name of its pool.
    pub name: &'static str,
    /// Parts in use, in address order; adjacent ones are joined.
    pub used_ranges: Vec<AddressRange>,
    /// Range of the map of its blocks.
    pub map: AddressRange,
}

impl Segment {
    /// Returns the bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_ranges.iter().map(|range| range.len()).sum()
    }
}

/// Range of a segment, and the map for finding the block at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMap {
    /// Committed range.
    pub range: AddressRange,
    /// log2 of the bytes per byte of the map.
    pub shift: u32,
    /// Committed range of the map.
    pub map: AddressRange,
    /// Bytes of a block's header.
    pub header_bytes: u64,
}

/// Returns the ranges and maps of all segments; `None` if one cannot be read, or is inconsistent.
pub fn segment_maps(view: &View<'_>) -> Option<Vec<SegmentMap>> {
    heaps(view)?.into_iter().map(|heap| segment_map(view, heap)).collect()
}

/// Reads the range and the map of the segment of a `CodeHeap`.
fn segment_map(view: &View<'_>, heap: u64) -> Option<SegmentMap> {
    let used_offset = view.offset(&["HeapBlock::Header::_used"])?;
    let length_offset = view.offset(&["HeapBlock::Header::_length"])?;
    // Size of `HeapBlock`: its header, rounded up to whole words (memory/heap.hpp).
    let header_bytes = used_offset.checked_sub(length_offset)?.checked_add(1)?.checked_next_multiple_of(8)?;
    if header_bytes > MAX_HEADER_BYTES {
        return None;
    }
    let shift = view.half_field(heap, &["CodeHeap::_log2_segment_size"])?;
    let range = committed_range(view, view.field_address(heap, &["CodeHeap::_memory"])?)?;
    let map = committed_range(view, view.field_address(heap, &["CodeHeap::_segmap"])?)?;
    SEGMENT_SHIFTS.contains(&shift).then_some(SegmentMap { range, shift, map, header_bytes })
}

/// Returns the segments in the JVM's order; `None` if one cannot be read or is inconsistent, at a
/// limit, or at the deadline.
pub fn segments(view: &View<'_>, deadline: Instant) -> Option<Vec<Segment>> {
    heaps(view)?.into_iter().map(|heap| segment(view, heap, deadline)).collect()
}

/// Returns the addresses of the `CodeHeap`s.
fn heaps(view: &View<'_>) -> Option<Vec<u64>> {
    let heaps = view.static_field(&["CodeCache::_heaps"])?;
    let count = view.half_field(heaps, &["GrowableArrayBase::_len", "GenericGrowableArray::_len"])?;
    if count == 0 || count > MAX_SEGMENTS {
        return None;
    }
    let data = view.field(heaps, &["GrowableArray<int>::_data"])?;
    view.words(data, count as usize)
}

/// Reads the committed range of a `VirtualSpace`.
fn committed_range(view: &View<'_>, space: u64) -> Option<AddressRange> {
    let low = view.field(space, &["VirtualSpace::_low"])?;
    let high = view.field(space, &["VirtualSpace::_high"])?;
    (low <= high && is_claimable(low, high)).then_some(AddressRange::new(low, high))
}

/// Reads the segment of a `CodeHeap`.
fn segment(view: &View<'_>, heap: u64, deadline: Instant) -> Option<Segment> {
    let SegmentMap { range, shift, map, .. } = segment_map(view, heap)?;
    let shift_at = view.field_address(heap, &["CodeHeap::_log2_segment_size"])?;
    let next_segment = view.word(shift_at.checked_add(NEXT_SEGMENT_DISTANCE)?)?;
    let blob_type = view.half_word(shift_at.checked_add(BLOB_TYPE_DISTANCE)?)?;
    if next_segment > range.len() >> shift {
        return None;
    }
    let end = range.start + (next_segment << shift);
    Some(Segment {
        range,
        name: pool_name(view, blob_type as usize),
        used_ranges: used_ranges(view, range.start, end, shift, deadline)?,
        map,
    })
}

/// Returns the name of the pool for a `CodeBlobType`.
fn pool_name(view: &View<'_>, blob_type: usize) -> &'static str {
    let has_hot = view.structs.major().is_some_and(|major| major >= FIRST_VERSION_WITH_HOT);
    let index = if has_hot || blob_type < HOT_INDEX { blob_type } else { blob_type.saturating_add(1) };
    POOL_NAMES.get(index).copied().unwrap_or(OTHER_POOL_NAME)
}

/// Returns the parts in use of the blocks in `start..end`; adjacent ones are joined.
fn used_ranges(
    view: &View<'_>,
    start: u64,
    end: u64,
    shift: u32,
    deadline: Instant,
) -> Option<Vec<AddressRange>> {
    let length_in_header = view.offset(&["HeapBlock::Header::_length"])?;
    let used_after_length = view.offset(&["HeapBlock::Header::_used"])?.checked_sub(length_in_header)?;
    let length_in_block = view.offset(&["HeapBlock::_header"])?.checked_add(length_in_header)?;
    // The length has 64 bits up to JDK 21, 32 bits in later ones.
    let length_mask = if used_after_length == 8 { u64::MAX } else { u64::from(u32::MAX) };
    let mut pages = PageCache::new(view.memory);
    let mut ranges: Vec<AddressRange> = Vec::new();
    let (mut at, mut blocks) = (start, 0);
    while at < end {
        let is_late = blocks % BLOCKS_AT_ONCE == 0 && Instant::now() >= deadline;
        if is_late || blocks >= MAX_BLOCKS {
            return None;
        }
        blocks += 1;
        let header = pages.array::<16>(at.checked_add(length_in_block)?)?;
        let length_in_segments = (word_at(&header, 0)? & length_mask).max(1);
        let is_used = *header.get(usize::try_from(used_after_length).ok()?)? != 0;
        let bytes = length_in_segments.checked_mul(1 << shift)?;
        let block_end = at.checked_add(bytes).filter(|&block_end| block_end <= end)?;
        if ranges.len() >= MAX_RANGES {
            return None;
        }
        match ranges.last_mut() {
            Some(range) if is_used && range.end == at => range.end = block_end,
            _ if is_used => ranges.push(AddressRange::new(at, block_end)),
            _ => {}
        }
        at = block_end;
    }
    Some(ranges)
}

/// Returns the memory pools, with the names of their beans.
pub fn pools(segments: &[Segment]) -> Vec<Pool> {
    let pool = |segment: &Segment| Pool::new(segment.name, segment.used_bytes(), segment.range.len());
    segments.iter().map(pool).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fabricated::{EqualWords, OwnAddresses};
    use crate::jvm::structs::VmStructs;

    #[test]
    fn blocks_are_bounded_and_in_time() {
        let fields =
            [("HeapBlock::Header::_length", 0), ("HeapBlock::Header::_used", 4), ("HeapBlock::_header", 0)];
        let structs = VmStructs::of_offsets(&fields, &[]);
        // Free blocks, each one segment of eight bytes.
        let memory = EqualWords::new(1);
        let view = View { memory: &memory, structs: &structs };
        let far = Instant::now() + Duration::from_secs(600);
        let read =
            |blocks: usize, deadline| used_ranges(&view, 0x1000, 0x1000 + 8 * blocks as u64, 3, deadline);
        assert_eq!(read(MAX_BLOCKS, far), Some(Vec::new()));
        assert_eq!(read(MAX_BLOCKS + 1, far), None, "there are no more blocks than are read");
        assert_eq!(read(1, Instant::now()), None, "the time is over");
    }

    #[test]
    fn ranges_are_no_larger_than_a_claim() {
        let read = |bytes: u64| {
            let fields = [("VirtualSpace::_low", 0), ("VirtualSpace::_high", bytes)];
            let structs = VmStructs::of_offsets(&fields, &[]);
            committed_range(&View { memory: &OwnAddresses, structs: &structs }, 0x1000)
        };
        assert_eq!(read(1 << 40), Some(AddressRange::sized(0x1000, 1 << 40)));
        assert_eq!(read((1 << 40) + 1), None);
    }
}

//! Reads many small pieces of the target's memory at once.
//!
//! A million objects are a million reads of 16 bytes, each as expensive as a page. Ranges close
//! together are read in one piece, scattered ranges many per call: at worst, each range is a short
//! read of its own. For chains, where each address is known only after the previous read,
//! [`PageCache`] keeps the pages read last.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::memory::{Memory, PAIR_BYTES, WordPair, pair_at};
use strandline_process::range::AddressRange;

pub use strandline_process::page_cache::PageCache;

/// Limit on bytes read in one piece.
const MAX_PIECE_BYTES: u64 = 256 << 10;
/// Largest gap between ranges read in one piece: one of Perl's arenas (4080 bytes) may be between.
const MAX_GAP_BYTES: u64 = 4608;
/// Fewer ranges than this are read individually, many per call.
const MIN_RANGES_IN_PIECE: usize = 4;

/// Memory that counts the bytes read from it.
pub struct CountingMemory<'a> {
    memory: &'a dyn Memory,
    bytes: AtomicU64,
}

impl<'a> CountingMemory<'a> {
    /// Counts the bytes read from `memory`.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, bytes: AtomicU64::new(0) }
    }

    /// Bytes read.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Memory for CountingMemory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let read_bytes = self.memory.read_some(address, buffer);
        self.bytes.fetch_add(read_bytes as u64, Ordering::Relaxed);
        read_bytes
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        let pairs = self.memory.read_pairs(addresses);
        let read_bytes = PAIR_BYTES * pairs.iter().flatten().count();
        self.bytes.fetch_add(read_bytes as u64, Ordering::Relaxed);
        pairs
    }
}

/// Reads pairs of words, and short strings, in batches.
pub struct Batch<'a> {
    memory: &'a dyn Memory,
    /// Indices of the ranges, in address order.
    order: Vec<u32>,
    /// The bytes read last.
    piece: Vec<u8>,
    /// Indices of the ranges that no piece contains.
    scattered_indices: Vec<u32>,
}

impl<'a> Batch<'a> {
    /// A batch reader of `memory`.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, order: Vec::new(), piece: Vec::new(), scattered_indices: Vec::new() }
    }

    /// Reads the two words at each of `addresses` into `results`; `None` where they cannot be read.
    pub fn pairs(&mut self, addresses: &[u64], results: &mut Vec<Option<WordPair>>) {
        results.clear();
        results.resize(addresses.len(), None);
        let range_of = |index: u32| {
            AddressRange::sized(addresses.get(index as usize).copied().unwrap_or(0), PAIR_BYTES as u64)
        };
        self.read_pieces(addresses.len(), &range_of, &mut |index, bytes| {
            if let Some(result) = results.get_mut(index as usize) {
                *result = pair_at(bytes, 0);
            }
        });
        let scattered = self.scattered_indices.iter().filter_map(|&index| addresses.get(index as usize));
        let scattered_addresses: Vec<u64> = scattered.copied().collect();
        if scattered_addresses.is_empty() {
            return;
        }
        let pairs = self.memory.read_pairs(&scattered_addresses);
        for (&index, pair) in self.scattered_indices.iter().zip(pairs) {
            if let Some(result) = results.get_mut(index as usize) {
                *result = pair;
            }
        }
    }

    /// Calls `visit` with the index and the bytes of each of `ranges` that can be read; of a range
    /// of more than [`MAX_PIECE_BYTES`], with only its first ones.
    pub fn bytes(&mut self, ranges: &[AddressRange], visit: &mut dyn FnMut(usize, &[u8])) {
        let range_of = |index: u32| ranges.get(index as usize).copied().unwrap_or_default();
        self.read_pieces(ranges.len(), &range_of, &mut |index, bytes| visit(index as usize, bytes));
        for index in std::mem::take(&mut self.scattered_indices) {
            let range = range_of(index);
            let memory = self.memory;
            let piece = self.piece_of(range.len());
            if memory.read(range.start, piece).is_ok() {
                visit(index as usize, piece);
            }
        }
    }

    /// Reads the ranges that are close together; leaves the indices of the others in
    /// `scattered_indices`.
    fn read_pieces(
        &mut self,
        count: usize,
        range_of: &dyn Fn(u32) -> AddressRange,
        visit: &mut dyn FnMut(u32, &[u8]),
    ) {
        self.scattered_indices.clear();
        self.order.clear();
        // Callers pass fewer ranges: `u32::MAX` would take 32 GiB of addresses.
        self.order.extend(0..u32::try_from(count).unwrap_or(u32::MAX));
        self.order.sort_by_key(|&index| range_of(index).start);
        let order = std::mem::take(&mut self.order);
        let mut remaining = order.as_slice();
        while let Some(&first) = remaining.first() {
            let start = range_of(first).start;
            let mut end = start;
            let mut ranges_in_piece = 0;
            for &index in remaining {
                let range = range_of(index);
                if range.end.saturating_sub(start) > MAX_PIECE_BYTES
                    || range.start.saturating_sub(end) > MAX_GAP_BYTES
                {
                    break;
                }
                end = end.max(range.end);
                ranges_in_piece += 1;
            }
            let (indices, later_indices) = remaining.split_at(ranges_in_piece.max(1));
            remaining = later_indices;
            if indices.len() < MIN_RANGES_IN_PIECE {
                self.scattered_indices.extend_from_slice(indices);
            } else {
                self.read_piece(indices, start, end, range_of, visit);
            }
        }
        self.order = order;
    }

    /// Returns the buffer for a piece, up to [`MAX_PIECE_BYTES`]. It may hold the rest of the
    /// previous piece: clearing it would cost time.
    fn piece_of(&mut self, bytes: u64) -> &mut [u8] {
        let length = bytes.min(MAX_PIECE_BYTES) as usize;
        if self.piece.len() < length {
            self.piece.resize(length, 0);
        }
        self.piece.get_mut(..length).unwrap_or_default()
    }

    /// Reads `start..end`, which contains the ranges with these indices.
    fn read_piece(
        &mut self,
        indices: &[u32],
        start: u64,
        end: u64,
        range_of: &dyn Fn(u32) -> AddressRange,
        visit: &mut dyn FnMut(u32, &[u8]),
    ) {
        let memory = self.memory;
        let read_bytes = memory.read_some(start, self.piece_of(end - start));
        for &index in indices {
            let range = range_of(index);
            let begin = usize::try_from(range.start.saturating_sub(start)).unwrap_or(usize::MAX);
            let end = begin.saturating_add(usize::try_from(range.len()).unwrap_or(usize::MAX));
            match self.piece.get(begin..end).filter(|_| end <= read_bytes) {
                Some(bytes) => visit(index, bytes),
                // The read ended before it, at a page that is not resident.
                None => self.scattered_indices.push(index),
            }
        }
    }
}

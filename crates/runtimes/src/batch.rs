//! Reads many small pieces of the target's memory at once.
//!
//! A million bodies are a million reads of 16 bytes, each as expensive as a page. Places close
//! together are read in one piece, scattered places many per call. The worst order costs at most
//! one short read per place. For chains, where each address is known only after the previous read,
//! [`PageCache`] keeps the pages read last.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::memory::{Memory, WordPair, word_at};
use strandline_process::range::AddressRange;

pub use strandline_process::page_cache::PageCache;

/// Limit on bytes read in one piece.
const MAX_PIECE_BYTES: u64 = 256 << 10;
/// Largest gap between places read in one piece: an arena may be between.
const MAX_GAP_BYTES: u64 = 4608;
/// Fewer places than this are read individually, many per call.
const MIN_IN_PIECE: usize = 4;

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
        let got = self.memory.read_some(address, buffer);
        self.bytes.fetch_add(got as u64, Ordering::Relaxed);
        got
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        self.bytes.fetch_add(16 * addresses.len() as u64, Ordering::Relaxed);
        self.memory.read_pairs(addresses)
    }
}

/// Reads pairs of words, and short strings, in batches.
pub struct Batch<'a> {
    memory: &'a dyn Memory,
    order: Vec<u32>,
    piece: Vec<u8>,
    scattered: Vec<u32>,
}

impl<'a> Batch<'a> {
    /// A batch reader of `memory`.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, order: Vec::new(), piece: Vec::new(), scattered: Vec::new() }
    }

    /// Reads the two words at each of `addresses` into `pairs`; `None` where they cannot be read.
    pub fn pairs(&mut self, addresses: &[u64], pairs: &mut Vec<Option<WordPair>>) {
        pairs.clear();
        pairs.resize(addresses.len(), None);
        let wanted =
            |index: u32| AddressRange::sized(addresses.get(index as usize).copied().unwrap_or(0), 16);
        self.each(addresses.len(), &wanted, &mut |index, bytes| {
            if let Some(slot) = pairs.get_mut(index as usize) {
                *slot = word_at(bytes, 0).zip(word_at(bytes, 8));
            }
        });
        let lone: Vec<u64> =
            self.scattered.iter().filter_map(|&n| addresses.get(n as usize)).copied().collect();
        if lone.is_empty() {
            return;
        }
        for (&index, pair) in self.scattered.iter().zip(self.memory.read_pairs(&lone)) {
            if let Some(slot) = pairs.get_mut(index as usize) {
                *slot = pair;
            }
        }
    }

    /// Calls `show` with the bytes at each of `places`, of at most [`MAX_PIECE_BYTES`], that can be
    /// read.
    pub fn bytes(&mut self, places: &[AddressRange], show: &mut dyn FnMut(usize, &[u8])) {
        let wanted = |index: u32| places.get(index as usize).copied().unwrap_or_default();
        self.each(places.len(), &wanted, &mut |index, bytes| show(index as usize, bytes));
        for index in std::mem::take(&mut self.scattered) {
            let place = wanted(index);
            let Ok(length) = usize::try_from(place.len().min(MAX_PIECE_BYTES)) else { continue };
            if self.piece.len() < length {
                self.piece.resize(length, 0);
            }
            let Some(piece) = self.piece.get_mut(..length) else { continue };
            if self.memory.read(place.start, piece).is_ok() {
                show(index as usize, piece);
            }
        }
    }

    /// Reads places that are close together; leaves the others in `scattered`.
    fn each(&mut self, count: usize, wanted: &dyn Fn(u32) -> AddressRange, show: &mut dyn FnMut(u32, &[u8])) {
        self.scattered.clear();
        self.order.clear();
        self.order.extend(0..u32::try_from(count).unwrap_or(u32::MAX));
        self.order.sort_by_key(|&index| wanted(index).start);
        let order = std::mem::take(&mut self.order);
        let mut rest = order.as_slice();
        while let Some(&first) = rest.first() {
            let start = wanted(first).start;
            let mut end = start;
            let mut taken = 0;
            for &index in rest {
                let place = wanted(index);
                if place.end.saturating_sub(start) > MAX_PIECE_BYTES
                    || place.start.saturating_sub(end) > MAX_GAP_BYTES
                {
                    break;
                }
                end = end.max(place.end);
                taken += 1;
            }
            let (piece, behind) = rest.split_at(taken.max(1));
            rest = behind;
            if piece.len() < MIN_IN_PIECE {
                self.scattered.extend_from_slice(piece);
            } else {
                self.read_piece(piece, start, end, wanted, show);
            }
        }
        self.order = order;
    }

    fn read_piece(
        &mut self,
        indices: &[u32],
        start: u64,
        end: u64,
        wanted: &dyn Fn(u32) -> AddressRange,
        show: &mut dyn FnMut(u32, &[u8]),
    ) {
        let length = usize::try_from(end - start).unwrap_or(0);
        // The rest of the previous piece may stay in the buffer: clearing it would cost time.
        if self.piece.len() < length {
            self.piece.resize(length, 0);
        }
        let Some(piece) = self.piece.get_mut(..length) else { return };
        let got = self.memory.read_some(start, piece);
        for &index in indices {
            let place = wanted(index);
            let at = usize::try_from(place.start.saturating_sub(start)).unwrap_or(usize::MAX);
            let until = at.saturating_add(usize::try_from(place.len()).unwrap_or(usize::MAX));
            match self.piece.get(at..until).filter(|_| until <= got) {
                Some(bytes) => show(index, bytes),
                // Behind a page that is not resident.
                None => self.scattered.push(index),
            }
        }
    }
}

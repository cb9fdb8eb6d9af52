//! Finds all-zero pages in memory that no allocator's reader walked.
//!
//! The target runs meanwhile, because reading all these pages takes too long for a stop. A page
//! counts only if it was resident at the stop and is still resident afterwards: a page that the
//! program released in between would read as zeros too.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use strandline_claims::range::{PAGE_BYTES, is_all_zero};
use strandline_process::memory::Memory;
use strandline_process::pages;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::work::on_threads;

/// Bytes that one thread reads at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Maximum number of short reads of a piece, each of which leaves out one page. After these, the
/// rest is left out too: the program has unmapped it or ended, and each page would cost a call.
const MAX_SHORT_READS: u32 = 8;

/// The all-zero pages that were found.
#[derive(Clone, Debug, Default)]
pub struct Zeros {
    /// All-zero pages.
    pub runs: RangeSet,
    /// Bytes of target memory read.
    pub bytes_read: u64,
}

/// Searches the page-aligned `runs` with `threads` threads. A page that cannot be read does not
/// count. `progress` is called with the number of bytes done.
pub fn find(
    memory: &dyn Memory,
    runs: &[AddressRange],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Zeros {
    let pieces: Vec<AddressRange> = runs
        .iter()
        .flat_map(|run| {
            let starts = (run.start..run.end).step_by(PIECE_BYTES as usize);
            starts.map(move |at| AddressRange::sized(at, PIECE_BYTES).intersection(*run))
        })
        .collect();
    let next_piece = AtomicUsize::new(0);
    let bytes_read = AtomicU64::new(0);
    let found: Mutex<Vec<AddressRange>> = Mutex::default();
    let search_piece = |buffer: &mut Vec<u8>| {
        let Some(&piece) = pieces.get(next_piece.fetch_add(1, Ordering::Relaxed)) else { return false };
        let mut zeros = RangeSet::default();
        let (mut start, mut short_reads) = (piece.start, 0);
        while start < piece.end && short_reads < MAX_SHORT_READS {
            let unread = AddressRange::new(start, piece.end);
            buffer.resize(unread.len() as usize, 0);
            let read_bytes = memory.read_some(start, buffer);
            bytes_read.fetch_add(read_bytes as u64, Ordering::Relaxed);
            short_reads += u32::from(read_bytes < buffer.len());
            let contents = buffer[..read_bytes].chunks_exact(PAGE_BYTES as usize).zip(unread.pages());
            let zero_pages = contents.filter(|(page, _)| is_all_zero(page));
            zeros.extend(zero_pages.map(|(_, at)| AddressRange::sized(at, PAGE_BYTES)));
            // After a short read, goes on behind the page that could not be read.
            let read_pages = read_bytes as u64 / PAGE_BYTES;
            start = start.saturating_add((read_pages + 1) * PAGE_BYTES);
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(zeros);
        progress(piece.len());
        true
    };
    on_threads(threads.min(pieces.len()), || {
        let mut buffer = Vec::new();
        while search_piece(&mut buffer) {}
    });
    let runs = found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
    Zeros { runs, bytes_read: bytes_read.into_inner() }
}

/// Returns those of `runs` that are still entirely resident.
pub fn still_resident(pagemap: &File, runs: RangeSet) -> RangeSet {
    let ranges: Vec<_> = runs.iter().map(|run| run.start..run.end).collect();
    // What cannot be read does not count as resident.
    let resident_bytes = |ranges: &[Range<u64>]| pages::anonymous_bytes_in(pagemap, ranges).unwrap_or(0);
    if resident_bytes(&ranges) == runs.bytes() {
        return runs;
    }
    let is_resident = |run: &AddressRange| {
        let range: Range<u64> = (*run).into();
        resident_bytes(std::slice::from_ref(&range)) == run.len()
    };
    runs.into_iter().filter(is_resident).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four pages of zeros of which the second cannot be read.
    struct Holed;

    impl Memory for Holed {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let readable_end = if address < PAGE_BYTES { PAGE_BYTES } else { 4 * PAGE_BYTES };
            let is_hole = (PAGE_BYTES..2 * PAGE_BYTES).contains(&address);
            let bytes = if is_hole { 0 } else { buffer.len().min((readable_end - address) as usize) };
            buffer[..bytes].fill(0);
            bytes
        }
    }

    /// Memory that was unmapped, and how often it was read.
    #[derive(Default)]
    struct Gone(AtomicUsize);

    impl Memory for Gone {
        fn read_some(&self, _: u64, _: &mut [u8]) -> usize {
            self.0.fetch_add(1, Ordering::Relaxed);
            0
        }
    }

    #[test]
    fn unmapped_memory_is_not_read_page_by_page() {
        let gone = Gone::default();
        let zeros = find(&gone, &[AddressRange::new(0, 2 * PIECE_BYTES)], 1, &|_| {});
        assert_eq!((zeros.runs, zeros.bytes_read), (RangeSet::default(), 0));
        assert_eq!(gone.0.into_inner(), 2 * MAX_SHORT_READS as usize);
    }

    #[test]
    fn pages_behind_an_unreadable_one_are_searched() {
        let zeros = find(&Holed, &[AddressRange::new(0, 4 * PAGE_BYTES)], 1, &|_| {});
        let expected = [(0, PAGE_BYTES), (2 * PAGE_BYTES, 4 * PAGE_BYTES)];
        assert_eq!(zeros.runs, expected.into_iter().collect());
        assert_eq!(zeros.bytes_read, 3 * PAGE_BYTES);
    }
}

//! The pages of one address range: which are resident, and which of those hold only zeros.
//!
//! Residency is known before the range is read; the zero bits are set while it is read, by several
//! threads at once.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::map::AddressSpace;

pub use strandline_process::pages::{PAGE_BYTES, page_of, page_up};

/// Longest range with page bits: 1 TiB, which takes 64 MiB of bits. No heap comes near it, and a
/// hostile mapping must not cause larger allocations.
pub const MAX_BYTES: u64 = 1 << 40;

/// Splits `start..end` into pieces of at most [`MAX_BYTES`].
pub fn pieces((start, end): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    (start..end).step_by(MAX_BYTES as usize).map(move |at| (at, end.min(at.saturating_add(MAX_BYTES))))
}

/// Residency and zero bits of the pages that `start..end` touches.
pub struct RangePages {
    start: u64,
    end: u64,
    runs: Vec<(u64, u64)>,
    resident: Vec<u64>,
    zero: Vec<AtomicU64>,
    /// Bytes of a cell, a power of two; 0 if no cells are kept.
    cell_bytes: u64,
    cell_borders: Vec<u64>,
}

impl RangePages {
    /// Takes the resident runs (page-aligned, sorted, without overlap) of `start..end`, which is
    /// widened to whole pages and cut at [`MAX_BYTES`].
    pub fn new(start: u64, end: u64, runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let start = page_of(start);
        let end = page_up(end).min(start.saturating_add(MAX_BYTES)).max(start);
        let words = ((end - start) / PAGE_BYTES).div_ceil(64) as usize;
        let mut pages = Self {
            start,
            end,
            runs: Vec::new(),
            resident: vec![0; words],
            zero: (0..words).map(|_| AtomicU64::new(0)).collect(),
            cell_bytes: 0,
            cell_borders: Vec::new(),
        };
        for (from, to) in runs {
            let (from, to) = (from.max(start), to.min(end));
            if from >= to {
                continue;
            }
            for page in (from..to).step_by(PAGE_BYTES as usize) {
                if let Some((word, bit)) = pages.place(page) {
                    pages.resident[word] |= bit;
                }
            }
            pages.runs.push((from, to));
        }
        pages
    }

    /// Also counts the range by cells: blocks of address space of `cell_bytes` (a power of two, at
    /// least a page) that end at each of `cuts` (page-aligned, ascending: where mappings start).
    pub fn with_cells(mut self, cell_bytes: u64, cuts: Vec<u64>) -> Self {
        self.cell_bytes = cell_bytes;
        self.cell_borders = cuts;
        self
    }

    /// Whether the range is also counted by cells.
    #[inline]
    pub fn has_cells(&self) -> bool {
        self.cell_bytes != 0
    }

    /// Start and end of the cell that contains `address`.
    pub fn cell_at(&self, address: u64) -> (u64, u64) {
        let start = address & self.cell_bytes.wrapping_neg();
        let end = start.saturating_add(self.cell_bytes);
        let next = self.cell_borders.partition_point(|&cut| cut <= address);
        let before = next.checked_sub(1).and_then(|index| self.cell_borders.get(index)).copied();
        let behind = self.cell_borders.get(next).copied();
        (start.max(before.unwrap_or(start)), end.min(behind.unwrap_or(end)))
    }

    /// The pages of `start..end` for a claim, with cells if a page map is wanted.
    pub fn for_claim(
        (start, end): (u64, u64),
        resident: &dyn Fn(u64, u64) -> Vec<(u64, u64)>,
        space: &AddressSpace,
        cell_bytes: Option<u64>,
    ) -> Self {
        // Whole pages, even if the range starts within one: pages are checked for zeros.
        let (start, end) = (page_of(start), page_up(end));
        let pages = Self::new(start, end, resident(start, end));
        let Some(cell_bytes) = cell_bytes else { return pages };
        let mappings = space.mappings();
        let first = mappings.partition_point(|mapping| mapping.start < start);
        let starts = mappings[first..].iter().map(|mapping| mapping.start);
        pages.with_cells(cell_bytes, starts.take_while(|&at| at < end).collect())
    }

    fn place(&self, page: u64) -> Option<(usize, u64)> {
        if page < self.start || page >= self.end {
            return None;
        }
        let index = (page - self.start) / PAGE_BYTES;
        Some(((index / 64) as usize, 1 << (index % 64)))
    }

    /// Whether the page that contains `address` is resident.
    #[inline]
    pub fn is_resident(&self, address: u64) -> bool {
        self.place(address).is_some_and(|(word, bit)| self.resident[word] & bit != 0)
    }

    /// Whether the page that contains `address` was read and held only zeros.
    #[inline]
    pub fn is_zero(&self, address: u64) -> bool {
        self.place(address).is_some_and(|(word, bit)| self.zero[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Notes that the page that contains `address` holds only zeros.
    pub fn set_zero(&self, address: u64) {
        if let Some((word, bit)) = self.place(address) {
            self.zero[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The resident runs, cut to `start..end`.
    pub fn runs_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.runs.partition_point(|&(_, to)| to <= start);
        self.runs[first..]
            .iter()
            .take_while(move |&&(from, _)| from < end)
            .map(move |&(from, to)| (from.max(start), to.min(end)))
    }

    /// The resident pages that hold only zeros, as runs.
    pub fn zero_runs(&self) -> Vec<(u64, u64)> {
        let mut zeros: Vec<(u64, u64)> = Vec::new();
        for (from, to) in self.runs_in(self.start, self.end) {
            for page in (from..to).step_by(PAGE_BYTES as usize).filter(|&page| self.is_zero(page)) {
                match zeros.last_mut() {
                    Some(last) if last.1 == page => last.1 += PAGE_BYTES,
                    _ => zeros.push((page, page + PAGE_BYTES)),
                }
            }
        }
        zeros
    }

    /// First byte of the first page.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// First byte past the last page.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Sorts ranges and merges those that touch or overlap.
pub fn merge(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for &(start, end) in ranges.iter() {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    *ranges = merged;
}

/// Whether `page` is all zeros. Most pages differ within their first bytes.
pub fn is_all_zero(page: &[u8]) -> bool {
    let (chunks, rest) = page.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, &byte| all | byte) == 0)
        && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_bits_agree() {
        let pages = RangePages::new(0x1_0800, 0x2_0000, [(0x1_0000, 0x1_2000), (0x1_8000, 0x3_0000)]);
        assert!(pages.is_resident(0x1_1fff) && !pages.is_resident(0x1_2000) && pages.is_resident(0x1_f000));
        assert!(!pages.is_resident(0x2_0000), "cut at the end");
        assert_eq!(
            pages.runs_in(0x1_1000, 0x1_9000).collect::<Vec<_>>(),
            [(0x1_1000, 0x1_2000), (0x1_8000, 0x1_9000)]
        );
        pages.set_zero(0x1_8123);
        pages.set_zero(0x1_9000);
        assert_eq!(pages.zero_runs(), [(0x1_8000, 0x1_a000)]);
    }

    #[test]
    fn a_giant_range_is_cut() {
        let pages = RangePages::new(0, u64::MAX, []);
        assert_eq!(pages.end(), MAX_BYTES);
    }

    #[test]
    fn ranges_are_merged() {
        let mut ranges = vec![(5, 9), (1, 4), (2, 3), (9, 12), (20, 21)];
        merge(&mut ranges);
        assert_eq!(ranges, [(1, 4), (5, 12), (20, 21)]);
    }

    #[test]
    fn zero_pages_are_zero() {
        let mut page = vec![0u8; 4096];
        assert!(is_all_zero(&page));
        page[4095] = 1;
        assert!(!is_all_zero(&page));
    }
}

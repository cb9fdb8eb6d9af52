//! The pages of one address range: which are resident, and which of those hold only zeros.
//!
//! Residency is known before the range is read; the zero bits are set while it is read, by several
//! threads at once.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::map::AddressSpace;
use strandline_process::range::AddressRange;

use crate::bits;

pub use strandline_process::pages::{PAGE_BYTES, page_of, page_up};

/// Longest range with page bits: 1 TiB, which takes 64 MiB of bits. Heaps are smaller, and a
/// hostile mapping must not cause larger allocations.
pub const MAX_BYTES: u64 = 1 << 40;

/// Splits a range into pieces of at most [`MAX_BYTES`].
pub fn pieces(range: impl Into<AddressRange>) -> impl Iterator<Item = AddressRange> {
    let range = range.into();
    let starts = (range.start..range.end).step_by(MAX_BYTES as usize);
    starts.map(move |at| AddressRange::sized(at, MAX_BYTES).intersection(range))
}

/// Residency and zero bits of the pages that a range touches.
pub struct RangePages {
    /// Whole pages.
    range: AddressRange,
    /// The resident pages as runs, in address order.
    runs: Vec<AddressRange>,
    /// The resident pages, one bit for each page of the range.
    resident: Vec<u64>,
    /// The pages that hold only zeros, in the same way.
    zero: Vec<AtomicU64>,
    /// Bytes of a cell, a power of two; `None` if no cells are counted.
    cell_bytes: Option<u64>,
    /// Addresses at which a cell ends early, ascending.
    cell_borders: Vec<u64>,
}

impl RangePages {
    /// Takes the resident runs (page-aligned, sorted, without overlap) of `range`, which is widened
    /// to whole pages and cut at [`MAX_BYTES`].
    pub fn new(
        range: impl Into<AddressRange>,
        runs: impl IntoIterator<Item = impl Into<AddressRange>>,
    ) -> Self {
        let range = range.into().widened_to_pages();
        let range = AddressRange::sized(range.start, range.len().min(MAX_BYTES));
        let words = (range.len() / PAGE_BYTES).div_ceil(64) as usize;
        let mut pages = Self {
            range,
            runs: Vec::new(),
            resident: vec![0; words],
            zero: (0..words).map(|_| AtomicU64::new(0)).collect(),
            cell_bytes: None,
            cell_borders: Vec::new(),
        };
        for run in runs {
            let run = run.into().intersection(range);
            for page in run.pages() {
                if let Some(index) = pages.page_index(page) {
                    bits::set(&mut pages.resident, index);
                }
            }
            if !run.is_empty() {
                pages.runs.push(run);
            }
        }
        pages
    }

    /// Also counts the range by cells: blocks of address space of `cell_bytes` (a power of two, at
    /// least a page). A cell ends early at each of `borders` (page-aligned, ascending), where a
    /// mapping starts.
    pub fn with_cells(mut self, cell_bytes: u64, borders: Vec<u64>) -> Self {
        self.cell_bytes = Some(cell_bytes);
        self.cell_borders = borders;
        self
    }

    /// Whether the range is also counted by cells.
    #[inline]
    pub fn has_cells(&self) -> bool {
        self.cell_bytes.is_some()
    }

    /// The cell that contains `address`; the whole range if no cells are counted.
    pub fn cell_at(&self, address: u64) -> AddressRange {
        let Some(cell_bytes) = self.cell_bytes else { return self.range };
        let cell = AddressRange::sized(address & cell_bytes.wrapping_neg(), cell_bytes);
        let next_index = self.cell_borders.partition_point(|&border| border <= address);
        let border_before = next_index.checked_sub(1).and_then(|index| self.cell_borders.get(index)).copied();
        let border_after = self.cell_borders.get(next_index).copied();
        cell.intersection(AddressRange::new(border_before.unwrap_or(0), border_after.unwrap_or(u64::MAX)))
    }

    /// The pages of `range` for a claim, with cells if `cell_bytes` is given.
    pub fn for_claim<Runs: IntoIterator<Item = impl Into<AddressRange>>>(
        range: AddressRange,
        resident: impl FnOnce(AddressRange) -> Runs,
        space: &AddressSpace,
        cell_bytes: Option<u64>,
    ) -> Self {
        // Whole pages, even if the range starts within one: pages are checked for zeros.
        let range = range.widened_to_pages();
        let pages = Self::new(range, resident(range));
        let Some(cell_bytes) = cell_bytes else { return pages };
        let mappings = space.mappings();
        let first = mappings.partition_point(|mapping| mapping.start < range.start);
        let starts = mappings[first..].iter().map(|mapping| mapping.start);
        pages.with_cells(cell_bytes, starts.take_while(|&at| at < range.end).collect())
    }

    /// The index of the page that contains `address`; `None` outside of the range.
    #[inline]
    fn page_index(&self, address: u64) -> Option<usize> {
        self.range.contains(address).then(|| ((address - self.range.start) / PAGE_BYTES) as usize)
    }

    /// Whether the page that contains `address` is resident.
    #[inline]
    pub fn is_resident(&self, address: u64) -> bool {
        self.page_index(address).is_some_and(|index| bits::has(&self.resident, index))
    }

    /// Whether the page that contains `address` was read and held only zeros.
    #[inline]
    pub fn is_zero(&self, address: u64) -> bool {
        self.page_index(address)
            .is_some_and(|index| self.zero[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 != 0)
    }

    /// Notes that the page that contains `address` holds only zeros.
    pub fn set_zero(&self, address: u64) {
        if let Some(index) = self.page_index(address) {
            self.zero[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
    }

    /// The resident runs, cut to `start..end`.
    pub fn runs_in(&self, start: u64, end: u64) -> impl Iterator<Item = AddressRange> + '_ {
        let first = self.runs.partition_point(|run| run.end <= start);
        let runs = self.runs[first..].iter().take_while(move |run| run.start < end);
        runs.map(move |run| run.intersection(AddressRange::new(start, end)))
    }

    /// The resident pages that hold only zeros, as runs.
    pub fn zero_runs(&self) -> Vec<AddressRange> {
        let mut zeros: Vec<AddressRange> = Vec::new();
        let pages = self.runs.iter().flat_map(|run| run.pages());
        for page in pages.filter(|&page| self.is_zero(page)) {
            match zeros.last_mut() {
                Some(last) if last.end == page => last.end += PAGE_BYTES,
                _ => zeros.push(AddressRange::sized(page, PAGE_BYTES)),
            }
        }
        zeros
    }

    /// End address (exclusive).
    pub fn end(&self) -> u64 {
        self.range.end
    }
}

/// Whether `page` is all zeros. It is checked in chunks, as most pages have another byte in the
/// first one.
pub fn is_all_zero(page: &[u8]) -> bool {
    let (chunks, remainder) = page.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, &byte| all | byte) == 0)
        && remainder.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_bits_agree() {
        let pages = RangePages::new((0x1_0800, 0x2_0000), [(0x1_0000, 0x1_2000), (0x1_8000, 0x3_0000)]);
        assert!(pages.is_resident(0x1_1fff) && !pages.is_resident(0x1_2000) && pages.is_resident(0x1_f000));
        assert!(!pages.is_resident(0x2_0000), "cut at the end");
        assert_eq!(
            pages.runs_in(0x1_1000, 0x1_9000).collect::<Vec<_>>(),
            [(0x1_1000, 0x1_2000), (0x1_8000, 0x1_9000)].map(AddressRange::from)
        );
        pages.set_zero(0x1_8123);
        pages.set_zero(0x1_9000);
        assert_eq!(pages.zero_runs(), [AddressRange::new(0x1_8000, 0x1_a000)]);
    }

    #[test]
    fn a_giant_range_is_cut() {
        let pages = RangePages::new((0, u64::MAX), [(0, 0); 0]);
        assert_eq!(pages.end(), MAX_BYTES);
    }

    #[test]
    fn zero_pages_are_zero() {
        let mut page = vec![0; PAGE_BYTES as usize];
        assert!(is_all_zero(&page));
        page[PAGE_BYTES as usize - 1] = 1;
        assert!(!is_all_zero(&page));
    }
}

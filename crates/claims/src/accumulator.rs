//! Adds up claims that arrive in address order, one page at a time.
//!
//! A heap of a hundred million chunks needs no list of them: a claim only changes the counters of
//! the current page, and a finished page is added to the sums. Free bytes are classified when their
//! page is finished: they are pinned if the page also holds live data.
//!
//! Several threads accumulate a range in [`AccumulatedPart`]s. Joining two adjacent parts finishes
//! the page that they share.

use std::num::NonZeroU64;

use crate::class::{CLASSES, FreeSlots};
pub use crate::class::{Class, Refinement, SLOTS, Slot};
use crate::range::{PAGE_BYTES, RangePages, page_of};
use strandline_process::range::AddressRange;

/// The address of a chunk; none is at 0.
type ChunkAddress = NonZeroU64;

/// Resident bytes by what they hold. All-zero pages are counted in `zero` only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidentBytes {
    /// By [`Class`]. `Free` is split into the next three fields and is 0 here.
    pub bytes: [u64; CLASSES],
    /// Free, on whole pages that the allocator's own call releases ([`Sums::releasable_bytes`]).
    pub releasable: u64,
    /// Free, on pages without live data, that this call does not release.
    pub kept: u64,
    /// Free, on pages with live data.
    pub pinned: u64,
    /// On all-zero pages.
    pub zero: u64,
}

impl ResidentBytes {
    /// Bytes of one class.
    pub fn of(&self, class: Class) -> u64 {
        self.bytes[class.index()]
    }

    /// Sum over all classes.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum::<u64>() + self.releasable + self.kept + self.pinned + self.zero
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.bytes.iter_mut().zip(other.bytes) {
            *mine += theirs;
        }
        crate::add_fields!(self, other: releasable, kept, pinned, zero);
    }

    /// Adds the bytes of a page; its free bytes count as pinned or kept.
    fn add_page(&mut self, page: &Page, is_zero: bool, has_live_data: bool) {
        if is_zero {
            self.zero += page.bytes.iter().map(|&bytes| u64::from(bytes)).sum::<u64>();
            return;
        }
        for (sum, (class, &bytes)) in self.bytes.iter_mut().zip(page.bytes.iter().enumerate()) {
            if class != Class::Free.index() {
                *sum += u64::from(bytes);
            }
        }
        let free = if has_live_data { &mut self.pinned } else { &mut self.kept };
        *free += u64::from(page.bytes[Class::Free.index()]);
    }
}

/// Resident bytes of one cell of the page map: see [`RangePages::with_cells`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellSums {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// Resident bytes in the cell.
    pub resident: ResidentBytes,
}

/// Up to this many cells the list of a part grows one at a time: a large heap has thousands of
/// parts, each with few cells.
const EXACT_GROWTH_CELLS: usize = 4;

/// What a run of whole pages holds.
#[derive(Clone, Copy)]
enum PageContent {
    Class(Class),
    /// Free bytes that the allocator's own call releases.
    Releasable,
}

/// Sums over an accumulated range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Resident bytes of the range.
    pub resident: ResidentBytes,
    /// The same by cell, in address order, without empty cells. Empty if no cells are kept.
    pub cells: Vec<CellSums>,
    /// Resident bytes that the allocator's own call releases (malloc_trim, a purge, a collection),
    /// all-zero pages included.
    pub releasable_bytes: u64,
    /// Live chunks on pages that hold pinned bytes.
    pub pinning_blocks: u64,
    /// Whether there was a page with pinned bytes.
    has_pinned_page: bool,
    /// The chunk that reaches into the first such page, if it was counted there.
    first_carried_chunk: Option<ChunkAddress>,
    /// The last chunk that [`Sums::pinning_blocks`] counts.
    last_counted_chunk: Option<ChunkAddress>,
}

impl Sums {
    /// Adds the sums of the range that follows.
    pub fn add(&mut self, other: &Self) {
        self.resident.add(&other.resident);
        for cell in &other.cells {
            self.cell(cell.start, || AddressRange::new(cell.start, cell.end)).add(&cell.resident);
        }
        self.releasable_bytes += other.releasable_bytes;
        self.pinning_blocks += other.pinning_blocks;
        // A chunk that crosses the border was counted on both sides.
        if other.first_carried_chunk.is_some() && other.first_carried_chunk == self.last_counted_chunk {
            self.pinning_blocks -= 1;
        }
        if other.has_pinned_page {
            self.note_pinned_page(other.first_carried_chunk);
        }
        self.last_counted_chunk = other.last_counted_chunk.or(self.last_counted_chunk);
    }

    /// Notes a page with pinned bytes, and the chunk that was counted there because it reaches into
    /// the page.
    fn note_pinned_page(&mut self, carried_chunk: Option<ChunkAddress>) {
        if !self.has_pinned_page {
            self.has_pinned_page = true;
            self.first_carried_chunk = carried_chunk;
        }
    }

    /// The cell that contains `address`; `bounds` is called only to create it. Pages come in
    /// address order except for the first of a part, so it is nearly always the last cell.
    #[inline]
    fn cell(&mut self, address: u64, bounds: impl FnOnce() -> AddressRange) -> &mut ResidentBytes {
        let index = match self.cells.last() {
            Some(last) if last.start <= address && address < last.end => self.cells.len() - 1,
            _ => self.find_cell(address, bounds),
        };
        &mut self.cells[index].resident
    }

    /// The index of the cell that contains `address`, which is created if it is missing.
    fn find_cell(&mut self, address: u64, bounds: impl FnOnce() -> AddressRange) -> usize {
        let index = self.cells.partition_point(|cell| cell.end <= address);
        if self.cells.get(index).is_none_or(|cell| address < cell.start) {
            let AddressRange { start, end } = bounds();
            if self.cells.len() < EXACT_GROWTH_CELLS {
                self.cells.reserve_exact(1);
            }
            self.cells.insert(index, CellSums { start, end, resident: ResidentBytes::default() });
        }
        index
    }

    /// Adds a page that no later claim touches.
    fn finish_page(&mut self, page: &Page, pages: &RangePages) {
        if !pages.is_resident(page.address) {
            return;
        }
        let (is_zero, has_live_data) = (pages.is_zero(page.address), page.has_live_data());
        self.resident.add_page(page, is_zero, has_live_data);
        if pages.has_cells() {
            self.cell(page.address, || pages.cell_at(page.address)).add_page(page, is_zero, has_live_data);
        }
        if is_zero || !has_live_data || page.bytes[Class::Free.index()] == 0 {
            return;
        }
        let new_chunk = page.carried_chunk.filter(|&chunk| Some(chunk) != self.last_counted_chunk);
        self.note_pinned_page(new_chunk);
        self.pinning_blocks += u64::from(page.chunk_count) + u64::from(new_chunk.is_some());
        let last_chunk = if page.chunk_count > 0 { page.last_chunk } else { page.carried_chunk };
        self.last_counted_chunk = last_chunk.or(self.last_counted_chunk);
    }

    /// Counts whole pages that all hold `content`.
    fn finish_whole_pages(&mut self, start: u64, end: u64, content: PageContent, pages: &RangePages) {
        for run in pages.runs_in(start, end) {
            let mut at = run.start;
            while at < run.end {
                let part_end = if pages.has_cells() { pages.cell_at(at).end.min(run.end) } else { run.end };
                let is_zero = |page: &u64| pages.is_zero(*page);
                let zero_pages = (at..part_end).step_by(PAGE_BYTES as usize).filter(is_zero).count();
                let zero_bytes = zero_pages as u64 * PAGE_BYTES;
                let add = |resident: &mut ResidentBytes| {
                    resident.zero += zero_bytes;
                    *(match content {
                        PageContent::Class(Class::Free) => &mut resident.kept,
                        PageContent::Class(class) => &mut resident.bytes[class.index()],
                        PageContent::Releasable => &mut resident.releasable,
                    }) += part_end - at - zero_bytes;
                };
                add(&mut self.resident);
                if pages.has_cells() {
                    add(self.cell(at, || pages.cell_at(at)));
                }
                at = part_end;
            }
        }
    }

    /// Counts whole free pages that the allocator's own call releases.
    fn finish_releasable(&mut self, start: u64, end: u64, pages: &RangePages) {
        self.finish_whole_pages(start, end, PageContent::Releasable, pages);
        self.releasable_bytes += pages.runs_in(start, end).map(AddressRange::len).sum::<u64>();
    }
}

/// The claims on one page.
#[derive(Clone, Debug, Default)]
struct Page {
    address: u64,
    /// Bytes by [`Class`].
    bytes: [u16; CLASSES],
    /// Bytes that another reader claims.
    nested_bytes: u16,
    /// Number of live chunks that start here.
    chunk_count: u16,
    /// The last of them.
    last_chunk: Option<ChunkAddress>,
    /// The live chunk that started on an earlier page and reaches into this one.
    carried_chunk: Option<ChunkAddress>,
}

impl Page {
    fn at(address: u64) -> Self {
        Self { address, ..Self::default() }
    }

    /// Whether free bytes on the page are pinned.
    fn has_live_data(&self) -> bool {
        let is_live = |class| class != Class::Free.index() && class != Class::Cached.index();
        self.nested_bytes > 0
            || self.bytes.iter().enumerate().any(|(class, &bytes)| bytes > 0 && is_live(class))
    }

    /// Adds the claims of the next part on the same page.
    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.bytes.iter_mut().zip(other.bytes) {
            *mine = mine.saturating_add(theirs);
        }
        crate::add_fields!(saturating self, other: nested_bytes, chunk_count);
        if other.chunk_count > 0 {
            self.last_chunk = other.last_chunk;
        }
        self.carried_chunk = self.carried_chunk.or(other.carried_chunk);
    }
}

/// An accumulated part of a range.
#[derive(Clone, Debug)]
pub struct AccumulatedPart {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// The page shared with the part before.
    head: Option<Page>,
    sums: Sums,
    /// The page shared with the next part.
    tail: Option<Page>,
}

impl AccumulatedPart {
    /// An empty part at `start`, for joining others to it.
    pub fn empty(start: u64) -> Self {
        Self { start, end: start, head: None, sums: Sums::default(), tail: None }
    }

    /// Joins the part that follows.
    ///
    /// # Errors
    /// [`OutOfOrder`] if it does not start at the end of this one: bytes would be counted twice or
    /// not at all.
    pub fn join(&mut self, next: Self, pages: &RangePages) -> Result<(), OutOfOrder> {
        if next.start != self.end {
            return Err(OutOfOrder { at: next.start, expected: self.end });
        }
        if next.end == next.start {
            return Ok(());
        }
        let within_one_page =
            next.head.is_some() && next.tail.is_none() && !next.end.is_multiple_of(PAGE_BYTES);
        let mut shared = self.tail.take();
        match (&mut shared, next.head) {
            (Some(mine), Some(theirs)) if mine.address == theirs.address => mine.add(&theirs),
            (Some(mine), theirs) => {
                self.sums.finish_page(mine, pages);
                shared = theirs;
            }
            (None, theirs) => shared = theirs,
        }
        if within_one_page {
            self.tail = shared;
        } else {
            if let Some(page) = shared {
                self.sums.finish_page(&page, pages);
            }
            self.tail = next.tail;
        }
        self.sums.add(&next.sums);
        self.end = next.end;
        Ok(())
    }

    /// Finishes the last pages and returns the sums.
    pub fn finish(mut self, pages: &RangePages) -> Sums {
        for page in [self.head.take(), self.tail.take()].into_iter().flatten() {
            self.sums.finish_page(&page, pages);
        }
        self.sums
    }
}

/// A claim starts before the end of the previous one, or leaves a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("claim at {at:#x} where {expected:#x} was next")]
pub struct OutOfOrder {
    /// Where the claim starts.
    pub at: u64,
    /// Where it should start.
    pub expected: u64,
}

/// Takes claims in address order and turns them into [`AccumulatedPart`]s.
pub struct Accumulator<'a> {
    pages: &'a RangePages,
    /// First byte of the current part.
    start: u64,
    /// First byte that is not claimed yet.
    cursor: u64,
    /// The page shared with the part before.
    head: Option<Page>,
    /// The page that the last claim ended on.
    current: Option<Page>,
    sums: Sums,
}

impl<'a> Accumulator<'a> {
    /// An accumulator whose first claim starts at `start`.
    pub fn new(start: u64, pages: &'a RangePages) -> Self {
        Self { pages, start, cursor: start, head: None, current: None, sums: Sums::default() }
    }

    /// Where the next claim must start.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Bytes of the current part, claimed or skipped.
    pub fn claimed_bytes(&self) -> u64 {
        self.cursor - self.start
    }

    /// Claims the bytes from the cursor to `end` as `class`.
    #[inline]
    pub fn claim_to(&mut self, end: u64, class: Class) {
        if let Some(bytes) = self.bytes_within_page(end)
            && let Some(page) = &mut self.current
        {
            page.bytes[class.index()] += bytes;
            self.cursor = end;
            return;
        }
        self.claim_over_pages(end, class);
    }

    /// Number of bytes from the cursor to `end` if all are on the current page. This is the fast
    /// path: most chunks are small.
    #[inline]
    fn bytes_within_page(&self, end: u64) -> Option<u16> {
        let page = self.current.as_ref()?;
        let is_within =
            page.address <= self.cursor && self.cursor <= end && end.wrapping_sub(page.address) <= PAGE_BYTES;
        is_within.then(|| (end - self.cursor) as u16)
    }

    /// Implements [`Accumulator::claim_to`] for any number of pages.
    fn claim_over_pages(&mut self, end: u64, class: Class) {
        let mut at = self.cursor;
        while at < end {
            let page = page_of(at);
            if at == page && end - at >= PAGE_BYTES {
                let whole_end = page_of(end);
                self.leave_page();
                self.sums.finish_whole_pages(at, whole_end, PageContent::Class(class), self.pages);
                at = whole_end;
                continue;
            }
            let part_end = end.min(page + PAGE_BYTES);
            self.page(page).bytes[class.index()] += (part_end - at) as u16;
            at = part_end;
        }
        self.cursor = self.cursor.max(end);
    }

    /// Claims a chunk in use up to `end`; its first `header_bytes` are the allocator's header.
    #[inline]
    pub fn claim_live(&mut self, end: u64, header_bytes: u64) {
        let start = self.cursor;
        if let Some(bytes) = self.bytes_within_page(end)
            && u64::from(bytes) >= header_bytes
            && let Some(page) = &mut self.current
        {
            page.chunk_count = page.chunk_count.saturating_add(1);
            page.last_chunk = ChunkAddress::new(start);
            page.bytes[Class::Header.index()] += header_bytes as u16;
            page.bytes[Class::Live.index()] += bytes - header_bytes as u16;
            self.cursor = end;
            return;
        }
        self.claim_used(end, header_bytes, |_| ());
    }

    /// Like [`Accumulator::claim_live`], for a chunk that a runtime's reader has refined. Bytes
    /// beyond the refinement stay `Live`.
    pub fn claim_refined(&mut self, end: u64, header_bytes: u64, refined: &Refinement) {
        self.claim_used(end, header_bytes, |accumulator| {
            let until = accumulator.cursor.saturating_add(refined.bytes).min(end);
            let Some(FreeSlots { class: free, bytes_on_pages }) = refined.free else {
                accumulator.claim_to(until, Class::Refined(refined.slot));
                return;
            };
            // An arena that is moved by a header may reach into a third page, which has none of its
            // own.
            let mut bytes_on_pages = bytes_on_pages.into_iter();
            // Free bytes that do not fit on their page, because of a header, move to the next page.
            let mut pending_free_bytes = 0;
            while accumulator.cursor < until {
                let page_end = (page_of(accumulator.cursor) + PAGE_BYTES).min(until);
                pending_free_bytes += u64::from(bytes_on_pages.next().unwrap_or(0));
                let free_bytes = pending_free_bytes.min(page_end - accumulator.cursor);
                pending_free_bytes -= free_bytes;
                accumulator.claim_to(page_end - free_bytes, Class::Refined(refined.slot));
                accumulator.claim_to(page_end, Class::Refined(free));
            }
        });
    }

    /// Like [`Accumulator::claim_live`], for a chunk that contains `nested` ranges claimed by other
    /// readers, in address order.
    pub fn claim_nesting(&mut self, end: u64, header_bytes: u64, nested: &[AddressRange]) {
        self.claim_used(end, header_bytes, |accumulator| {
            for range in nested {
                accumulator.claim_to(range.start.clamp(accumulator.cursor, end), Class::Live);
                accumulator.skip_to(range.end.clamp(accumulator.cursor, end));
            }
        });
    }

    /// Skips the bytes from the cursor to `end`, which another reader counts. For their page they
    /// are live data.
    pub fn skip_to(&mut self, end: u64) {
        let mut at = self.cursor;
        while at < end {
            let page = page_of(at);
            if at == page && end - at >= PAGE_BYTES {
                self.leave_page();
                at = page_of(end);
                continue;
            }
            let part_end = end.min(page + PAGE_BYTES);
            self.page(page).nested_bytes += (part_end - at) as u16;
            at = part_end;
        }
        self.cursor = self.cursor.max(end);
    }

    /// Claims a chunk in use up to `end`: its header, what `payload` claims, and the rest as live.
    #[inline]
    fn claim_used(&mut self, end: u64, header_bytes: u64, payload: impl FnOnce(&mut Self)) {
        let start = self.cursor;
        let first_page = page_of(start);
        let page = self.page(first_page);
        page.chunk_count = page.chunk_count.saturating_add(1);
        page.last_chunk = ChunkAddress::new(start);
        self.claim_to(start + header_bytes, Class::Header);
        payload(self);
        self.claim_to(end, Class::Live);
        let last_page = page_of(end);
        if last_page != first_page && end != last_page {
            self.page(last_page).carried_chunk = ChunkAddress::new(start);
        }
    }

    /// Claims a run of free bytes up to `end`. The allocator's own call releases the whole pages
    /// `releasable_start..releasable_end` (none if that is empty).
    pub fn claim_free(&mut self, end: u64, releasable_start: u64, releasable_end: u64) {
        if releasable_start >= releasable_end || releasable_start < self.cursor || releasable_end > end {
            self.claim_to(end, Class::Free);
            return;
        }
        self.claim_to(releasable_start, Class::Free);
        self.leave_page();
        self.sums.finish_releasable(releasable_start, releasable_end, self.pages);
        self.cursor = releasable_end;
        self.claim_to(end, Class::Free);
    }

    /// Makes the page at `address` the current one, and returns its counters.
    fn page(&mut self, address: u64) -> &mut Page {
        if self.current.as_ref().is_some_and(|page| page.address != address) {
            self.leave_page();
        }
        self.current.get_or_insert_with(|| Page::at(address))
    }

    /// Finishes the current page, or keeps it if the part before shares it.
    fn leave_page(&mut self) {
        let Some(page) = self.current.take() else { return };
        if page.address < self.start {
            self.head = Some(page);
        } else {
            self.sums.finish_page(&page, self.pages);
        }
    }

    /// Ends the part at the cursor and starts the next one there.
    pub fn cut(&mut self) -> AccumulatedPart {
        let end = self.cursor;
        let shares_last_page = !end.is_multiple_of(PAGE_BYTES);
        let is_tail = |page: &Page| page.address >= self.start && page.address == page_of(end);
        let has_tail = shares_last_page && self.current.as_ref().is_some_and(is_tail);
        let tail = if has_tail { self.current.take() } else { None };
        self.leave_page();
        let part = AccumulatedPart {
            start: self.start,
            end,
            head: self.head.take(),
            sums: std::mem::take(&mut self.sums),
            tail,
        };
        self.start = end;
        part
    }
}

#[cfg(test)]
#[path = "accumulator_tests.rs"]
mod tests;

//! Chunks with their own mapping: large blocks, returned to the kernel when freed.
//!
//! No structure lists them. A program may call madvise, mprotect, mlock or prctl for part of its
//! block (numpy requests huge pages within arrays of 4 MiB), which makes the kernel list that block
//! as several mappings; and it lists adjacent blocks as one. So the search goes through contiguous
//! private anonymous memory, regardless of mapping borders. Each block starts with the words (0,
//! size | IS_MMAPPED). If memalign moved the block, that header stays, and malloc uses a second one
//! with the distance to the start of the mapping: after a realloc only that one is right. The
//! alignment tells where it is, unless mremap has moved the mapping: then each page of the chunk
//! is read, if what was found without that differs from malloc's counts. malloc counts the blocks
//! and their bytes: the search ends when both are reached, and a difference is a caveat.

use super::layout;
use super::mapped_header::{HeaderWords, aligned_block, aligned_leads, block_at, first_bytes, moved_leads};
use super::parameters::Parameters;
use super::segments::RegionTotals;
use strandline_claims::allocator::{Context, MappedBlock, RangeClaim, Reading};
use strandline_claims::caveat::Caveat;
use strandline_claims::units::{counted, thousands};
use strandline_process::map::Mapping;
use strandline_process::pages::{PAGE_BYTES, page_up};
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// Number of pages whose first words are read with one call.
const BATCH_PAGES: usize = 512;
/// Maximum pages checked: 8 GiB, some 0.3 s of a target's time.
const MAX_PAGES: u64 = 2 << 20;
/// Maximum pages of chunks that are checked for headers of memalign, besides these.
const MAX_PAGES_OF_CHUNKS: u64 = MAX_PAGES / 2;
/// Maximum difference of malloc's unreliable count of bytes that calls of mremap explain.
const MAX_DRIFT_BYTES: u64 = 1 << 20;
/// Cost of a page that cannot be read, in readable pages.
const UNREADABLE_PAGE_COST: u64 = 64;

/// Code of the caveat if other chunks were found than malloc counts, or if its counts were not.
pub const CHUNKS_DIFFER: &str = "mmapped_chunks_differ";

/// Whether `address` is in one of the `runs`, which are in address order.
fn is_resident(runs: &[AddressRange], address: u64) -> bool {
    !overlapping(runs, AddressRange::sized(address, 1)).is_empty()
}

/// Result of a search.
#[derive(Default)]
struct SearchResult {
    /// Blocks, in the order found.
    blocks: Vec<MappedBlock>,
    /// Bytes of these blocks, resident or not.
    bytes: u64,
    /// Bytes read by the search.
    bytes_read: u64,
}

/// Contiguous private anonymous memory, of one mapping or of several.
#[derive(Default)]
struct Area {
    /// One past the last byte.
    end: u64,
    /// Its resident runs, in address order.
    runs: Vec<AddressRange>,
    /// The first resident page of each of its mappings, in address order.
    first_pages: Vec<u64>,
}

impl Area {
    /// Extends the area to `end` by a mapping, or part of one, whose resident runs are `runs`.
    fn extend(&mut self, end: u64, runs: Vec<AddressRange>) {
        self.end = end;
        self.first_pages.extend(runs.first().map(|run| run.start));
        for run in runs {
            match self.runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => self.runs.push(run),
            }
        }
    }

    fn resident_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len()).sum()
    }
}

/// A search for the chunks that malloc counts.
struct Search<'a> {
    context: &'a Context<'a>,
    /// Memory that other readers have claimed, in address order.
    claimed: &'a [AddressRange],
    /// Number of chunks to find.
    count: u64,
    /// Bytes of these chunks, by malloc's counters.
    counted_bytes: u64,
    /// Bytes of these chunks, if that figure is reliable.
    bytes: Option<u64>,
    /// Whether each page of a chunk is searched for the header that memalign wrote.
    searches_all_leads: bool,
    /// The cost at which the search ends.
    max_pages: u64,
    /// Cost so far, in readable pages.
    cost_pages: u64,
    result: SearchResult,
}

impl Search<'_> {
    /// Searches `areas`, which exclude the claimed memory; if chunks are missing, those that
    /// `areas_with_claimed` returns, which include it.
    ///
    /// Most chunks are at the start of a mapping or adjacent to each other: these are tried first,
    /// then with all their pages for headers of memalign, and all pages only if chunks are still
    /// missing.
    fn run(mut self, mut areas: Vec<Area>, areas_with_claimed: impl FnOnce() -> Vec<Area>) -> SearchResult {
        self.search_starts(&areas);
        if !self.is_done() && !self.claimed.is_empty() {
            areas = areas_with_claimed();
            self.restart();
            self.search_starts(&areas);
        }
        if self.may_have_moved_chunks() {
            self.search_moved(&areas);
        }
        if !self.is_done() {
            self.restart();
            areas.iter().for_each(|area| self.search_all_pages(&area.runs, area.end));
        }
        self.result
    }

    /// Discards the chunks found so far.
    fn restart(&mut self) {
        self.result = SearchResult { bytes_read: self.result.bytes_read, ..SearchResult::default() };
    }

    /// Tries the start of each mapping, and the end of each chunk found.
    fn search_starts(&mut self, areas: &[Area]) {
        for area in areas {
            let mut end = 0;
            for &first_page in &area.first_pages {
                // A mapping may start within a chunk.
                if first_page >= end {
                    end = self.take_adjacent(first_page, area.end, &area.runs);
                }
            }
        }
    }

    /// Whether each range that other readers have claimed is inside the block or outside it.
    fn fits(&self, block: &MappedBlock) -> bool {
        let payload = AddressRange::new(block.pointer, block.usable_end);
        overlapping(self.claimed, (block.start, block.end)).iter().all(|range| payload.covers(*range))
    }

    fn is_done(&self) -> bool {
        self.result.blocks.len() as u64 == self.count
            && self.bytes.is_none_or(|bytes| self.result.bytes == bytes)
    }

    /// Searches all pages of the chunks for headers of memalign; keeps what was found before if the
    /// result does not agree with malloc's counts.
    fn search_moved(&mut self, areas: &[Area]) {
        let before = std::mem::take(&mut self.result);
        self.result.bytes_read = before.bytes_read;
        let (max_pages, cost_pages) = (self.max_pages, self.cost_pages);
        self.max_pages = cost_pages.saturating_add(MAX_PAGES_OF_CHUNKS);
        self.searches_all_leads = true;
        self.search_starts(areas);
        self.searches_all_leads = false;
        (self.max_pages, self.cost_pages) = (max_pages, cost_pages);
        if self.may_have_moved_chunks() {
            self.result = SearchResult { bytes_read: self.result.bytes_read, ..before };
        }
    }

    /// Whether the length of a chunk that was found may be wrong. An unreliable figure is off by 16
    /// bytes for each call of mremap.
    fn may_have_moved_chunks(&self) -> bool {
        !self.is_done() || self.counted_bytes.abs_diff(self.result.bytes) > MAX_DRIFT_BYTES
    }

    fn is_over_budget(&self) -> bool {
        self.cost_pages >= self.max_pages || self.context.deadline_passed()
    }

    /// Reads the words of a header at each of `addresses`.
    fn read_headers(&mut self, addresses: &[u64]) -> Vec<Option<HeaderWords>> {
        let headers = self.context.whole_memory.read_pairs(addresses);
        let unreadable_pages = headers.iter().filter(|header| header.is_none()).count() as u64;
        self.result.bytes_read += addresses.len() as u64 * layout::CHUNK_HEADER_BYTES;
        self.cost_pages += addresses.len() as u64 + unreadable_pages * UNREADABLE_PAGE_COST;
        headers.into_iter().map(|header| header.map(HeaderWords::from)).collect()
    }

    /// Takes the first chunk whose mapping starts at one of `pages`; returns its end.
    fn take_first(&mut self, pages: &[u64], limit: u64, runs: &[AddressRange]) -> Option<u64> {
        let headers = self.read_headers(pages);
        for (&page, header) in pages.iter().zip(headers) {
            let Some(header) = header else { continue };
            let aligned = self.aligned_chunk(header, page, limit, runs);
            let block = aligned.or_else(|| block_at(header, page, limit));
            if let Some(block) = block.filter(|block| self.fits(block)) {
                self.result.blocks.push(block);
                self.result.bytes += block.end - block.start;
                return Some(block.end);
            }
        }
        None
    }

    /// Returns the block in the mapping that starts at `page` with `header`, by the header that
    /// memalign wrote after it, if there is one. A header was written, so its page is in one of the
    /// resident `runs`; reading another page would make the kernel map one in the target.
    fn aligned_chunk(
        &mut self,
        header: HeaderWords,
        page: u64,
        limit: u64,
        runs: &[AddressRange],
    ) -> Option<MappedBlock> {
        let first_bytes = first_bytes(header)?.min(limit.checked_sub(page)?);
        let block = self.block_behind(aligned_leads(page, first_bytes), page, limit, runs);
        if block.is_some() || !self.searches_all_leads {
            return block;
        }
        self.block_behind(moved_leads(page, first_bytes, runs), page, limit, runs)
    }

    /// Returns the block in the mapping that starts at `page` by the first header at one of `leads`
    /// after it.
    fn block_behind(
        &mut self,
        leads: impl Iterator<Item = u64>,
        page: u64,
        limit: u64,
        runs: &[AddressRange],
    ) -> Option<MappedBlock> {
        let mut leads = leads.filter(|lead| is_resident(runs, page + lead));
        while !self.is_over_budget() {
            let batch: Vec<u64> = leads.by_ref().take(BATCH_PAGES).collect();
            if batch.is_empty() {
                break;
            }
            let addresses: Vec<u64> = batch.iter().map(|lead| page + lead).collect();
            let headers = self.read_headers(&addresses);
            let found = batch
                .iter()
                .zip(headers)
                .find_map(|(&lead, header)| aligned_block(lead, header?, page, limit));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Takes the adjacent chunks from `page` on; returns the end of the last one.
    fn take_adjacent(&mut self, page: u64, limit: u64, runs: &[AddressRange]) -> u64 {
        let mut end = page;
        while end < limit && is_resident(runs, end) && !self.is_done() && !self.is_over_budget() {
            match self.take_first(&[end], limit, runs) {
                Some(next) => end = next,
                None => break,
            }
        }
        end
    }

    /// Takes every chunk in the resident `runs`.
    fn search_all_pages(&mut self, runs: &[AddressRange], limit: u64) {
        let mut last_end = 0;
        for run in runs {
            let mut page = run.start.max(last_end);
            let mut batch = 1;
            while page < run.end && !self.is_done() && !self.is_over_budget() {
                let pages: Vec<u64> = (page..run.end).step_by(PAGE_BYTES as usize).take(batch).collect();
                match self.take_first(&pages, limit, runs) {
                    Some(end) => {
                        (last_end, page) = (end, end);
                        batch = 1;
                    }
                    None => {
                        page += pages.len() as u64 * PAGE_BYTES;
                        batch = BATCH_PAGES;
                    }
                }
            }
        }
    }
}

/// Returns the contiguous private anonymous memory outside `taken`, whatever its protection: a
/// block may have been protected since.
fn areas(context: &Context<'_>, taken: &RangeSet) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    let mut add = |start: u64, end: u64| {
        if start >= end {
            return;
        }
        let is_contiguous = areas.last().is_some_and(|area| area.end == start);
        if !is_contiguous {
            areas.push(Area::default());
        }
        if let Some(area) = areas.last_mut() {
            area.extend(end, context.resident_runs((start, end)));
        }
    };
    let may_hold = |mapping: &&Mapping| mapping.is_private_anonymous() && !mapping.name.starts_with("[stack");
    for mapping in context.space.mappings().iter().filter(may_hold) {
        let mut from = mapping.start;
        for &AddressRange { start, end } in taken.overlapping(mapping.range()) {
            add(from, start);
            from = from.max(page_up(end));
        }
        add(from, mapping.end);
    }
    areas
}

/// The chunks with their own mapping that all glibcs of a process count together: a chunk does not
/// show which glibc made it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MappedChunks {
    /// Number of chunks, by malloc's counters.
    count: u64,
    /// Bytes of chunks, by malloc's counters.
    bytes: u64,
    /// Number of chunks that the walks have met between pieces.
    walked_count: u64,
    /// Bytes of chunks that the walks have met between pieces.
    walked_bytes: u64,
    /// Whether `bytes` is unreliable: 2.43 counts 16 bytes too few for each chunk that was moved by
    /// mremap (malloc.c, mremap_chunk).
    has_unreliable_bytes: bool,
}

impl MappedChunks {
    /// Adds the counters of one glibc, and the chunks that its walk has already met.
    pub fn add(&mut self, parameters: Option<&Parameters>, walked: &[RegionTotals]) {
        let Some(parameters) = parameters else { return };
        self.count = self.count.saturating_add(parameters.n_mmaps);
        self.bytes = self.bytes.saturating_add(parameters.mmapped_bytes);
        // The walk of one libc also meets the chunks of others between its pieces.
        self.walked_count += walked.iter().map(|totals| totals.counts.mmapped_chunks).sum::<u64>();
        self.walked_bytes += walked.iter().map(|totals| totals.counts.mmapped_bytes).sum::<u64>();
        self.has_unreliable_bytes |= parameters.layout.mmapped_bytes_drift;
    }

    /// Searches private anonymous memory outside the arenas and `excluded`, and adds the chunks to
    /// the first of `readings`.
    pub fn find(mut self, context: &Context<'_>, excluded: &RangeSet, readings: &mut [Reading]) {
        self.count = self.count.saturating_sub(self.walked_count);
        self.bytes = self.bytes.saturating_sub(self.walked_bytes);
        if self.count == 0 {
            return;
        }
        let claims = readings.iter().flat_map(|reading| &reading.claims);
        let mut taken: RangeSet = claims.map(RangeClaim::range).collect();
        let Some(reading) = readings.first_mut() else { return };
        let taken_and_stacks = taken.iter().chain(context.stacks).copied().collect();
        taken.add(excluded.iter().copied());
        let mut areas_without_claimed = areas(context, &taken);
        // Small areas first: a huge one (another heap) is then mostly not needed.
        areas_without_claimed.sort_by_cached_key(Area::resident_bytes);
        let bytes = (!self.has_unreliable_bytes).then_some(self.bytes);
        let mut claimed = context.claimed_ranges.to_vec();
        claimed.sort_unstable();
        let search = Search {
            context,
            claimed: &claimed,
            count: self.count,
            counted_bytes: self.bytes,
            bytes,
            searches_all_leads: false,
            max_pages: MAX_PAGES,
            cost_pages: 0,
            result: SearchResult::default(),
        };
        let result = search.run(areas_without_claimed, || areas(context, &taken_and_stacks));
        reading.bytes_read += result.bytes_read;
        if result.blocks.len() as u64 != self.count || bytes.is_some_and(|bytes| result.bytes != bytes) {
            let text = format!(
                "malloc counts {} with {} bytes; strandline found {} with {} bytes",
                counted(self.count, "mmapped chunk"),
                thousands(self.bytes),
                thousands(result.blocks.len() as u64),
                thousands(result.bytes)
            );
            let bytes = Some(self.bytes.abs_diff(result.bytes));
            let is_late = context.deadline_passed();
            let (code, note) = if is_late {
                ("heap_too_slow", "; the deadline passed before the search ended")
            } else {
                (CHUNKS_DIFFER, "")
            };
            reading.caveats.push(Caveat::new(code, "glibc", bytes, format!("{text}{note}")));
        }
        reading.refined.add_mapped(context.refinements, &result.blocks);
        reading.allocator.live_blocks =
            reading.allocator.live_blocks.map(|count| count + result.blocks.len() as u64);
        let payload_bytes: u64 =
            result.blocks.iter().map(|block| block.usable_end.saturating_sub(block.pointer)).sum();
        reading.allocator.live_bytes = reading.allocator.live_bytes.map(|bytes| bytes + payload_bytes);
        reading.allocator.metadata_bytes =
            reading.allocator.metadata_bytes.map(|bytes| bytes + result.bytes - payload_bytes);
        reading.mapped_blocks = result.blocks;
    }
}

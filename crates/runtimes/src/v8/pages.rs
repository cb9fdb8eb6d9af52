//! Finds what looks like a page of V8's heap: a header at each aligned address.
//!
//! `heap` decides whether it is one, by the space that owns it.

use std::time::Instant;

use super::layout::{Layout, MAX_HEADER_BYTES, PAGE_ALIGNMENT, RECORD_BYTES};
use crate::batch::Batch;
use strandline_claims::range::{MAX_BYTES, PAGE_BYTES};
use strandline_claims::runtime::Context;
use strandline_claims::words::is_process_memory;
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::range::AddressRange;

/// A page by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// First byte for objects.
    pub area_start: u64,
    /// First byte past those for objects.
    pub area_end: u64,
    /// Address of its record, by which lists refer to it.
    pub record: u64,
    /// Bytes of objects, and of the allocation areas on the page.
    pub allocated_bytes: u64,
    /// Bytes that no object can use.
    pub wasted_bytes: u64,
    /// Address of its heap; 0 for read-only pages, which all heaps share.
    pub heap: u64,
    /// Address of its space; 0 for read-only pages and some pooled ones.
    pub owner: u64,
    /// Whether its flags mark it as given up by its space.
    pub is_pooled: bool,
}

impl Page {
    /// All of the page.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Bytes of the page.
    pub fn bytes(&self) -> u64 {
        self.range().len()
    }

    /// Bytes for objects.
    pub fn area_bytes(&self) -> u64 {
        self.area_end - self.area_start
    }

    /// Bytes before the first object.
    pub fn header_bytes(&self) -> u64 {
        self.area_start - self.start
    }
}

/// Returns everything that looks like a page, in address order; the resident bytes bound its
/// number. `None` if the deadline passed.
pub fn candidates(context: &Context<'_>, memory: &dyn Memory, layout: &Layout) -> Option<Vec<Page>> {
    let starts = possible_starts(context);
    let mut batch = Batch::new(memory);
    let mut headers: Vec<Header> = Vec::new();
    match layout.metadata {
        None => headers.extend(starts.iter().map(|&start| Header { start, record: start, flags: None })),
        Some(offset) => {
            let in_pages: Vec<AddressRange> =
                starts.iter().map(|&at| AddressRange::sized(at, offset as u64 + 8)).collect();
            batch.bytes(&in_pages, &mut |index, bytes| {
                let Some(&start) = starts.get(index) else { return };
                let record = word_at(bytes, offset).filter(|at| *at != 0 && at.is_multiple_of(8));
                let flags = half_word_at(bytes, layout.pooled.offset).filter(|_| layout.pooled.is_in_page);
                headers.extend(record.map(|record| Header { start, record, flags }));
            });
        }
    }
    let records: Vec<AddressRange> =
        headers.iter().map(|header| AddressRange::sized(header.record, RECORD_BYTES)).collect();
    let mut pages = Vec::new();
    batch.bytes(&records, &mut |index, bytes| {
        pages.extend(headers.get(index).and_then(|header| decode_page(layout, *header, bytes)));
    });
    let mut is_late = false;
    // Damaged headers may each state a page that crosses all mappings.
    pages.retain(|page| {
        is_late |= Instant::now() >= context.deadline;
        !is_late && is_process_memory(context.space, page.start, page.end)
    });
    pages.sort_unstable_by_key(|page| page.start);
    (!is_late).then_some(pages)
}

/// Returns the resident addresses at which pages may start.
fn possible_starts(context: &Context<'_>) -> Vec<u64> {
    let mappings = context.space.mappings().iter().filter(|mapping| {
        mapping.is_private_anonymous() && mapping.permissions.read && !mapping.name.starts_with("[stack")
    });
    let runs = mappings.flat_map(|mapping| context.resident_runs(mapping.range()));
    let aligned_addresses = |run: AddressRange| {
        let first = run.start.checked_next_multiple_of(PAGE_ALIGNMENT).unwrap_or(run.end);
        (first..run.end).step_by(PAGE_ALIGNMENT as usize)
    };
    runs.flat_map(aligned_addresses).collect()
}

/// What is known of a page before its record is read.
#[derive(Clone, Copy)]
struct Header {
    /// First byte of the page.
    start: u64,
    /// Address of its record.
    record: u64,
    /// Its flags; `None` if they are in its record.
    flags: Option<u32>,
}

/// Decodes the `bytes` of a record; `None` if its sizes do not agree.
fn decode_page(layout: &Layout, header: Header, bytes: &[u8]) -> Option<Page> {
    let Header { start, record, flags } = header;
    let fields = &layout.record;
    let word = |offset: usize| word_at(bytes, offset);
    let size = word(fields.size).filter(|size| (PAGE_BYTES..MAX_BYTES).contains(size))?;
    let end = start.checked_add(size).filter(|end| end.is_multiple_of(PAGE_BYTES))?;
    let (area_start, area_end) = (word(fields.area_start)?, word(fields.area_end)?);
    let is_area_within = start < area_start
        && area_start - start <= MAX_HEADER_BYTES
        && area_start <= area_end
        && area_end <= end;
    let (heap, owner) = (word(fields.heap)?, word(fields.owner)?);
    // A large object that was trimmed leaves the count of its page as it was
    // (`Heap::RightTrimArray`, `LargeObjectSpace::ShrinkPageToObjectSize`).
    let stated_bytes = word(fields.allocated).filter(|&bytes| bytes < MAX_BYTES)?;
    if !is_area_within || !heap.is_multiple_of(8) || !owner.is_multiple_of(8) {
        return None;
    }
    let flags = flags.or_else(|| half_word_at(bytes, layout.pooled.offset))?;
    Some(Page {
        start,
        end,
        area_start,
        area_end,
        record,
        allocated_bytes: stated_bytes.min(area_end - area_start),
        wasted_bytes: word(fields.wasted)?,
        heap,
        owner,
        is_pooled: flags & layout.pooled.bits == layout.pooled.bits,
    })
}

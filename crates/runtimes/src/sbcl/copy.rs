//! Copies the part of SBCL's memory that tracing needs, while the process is stopped.
//!
//! The copy has only pages that hold objects. Of these it takes resident anonymous memory now, and
//! the rest, of a mapped core, from the file once the target runs again. Of a large object without
//! pointers it has only the first page; the others are searched for pages of zeros. Several threads
//! copy; they stop at the deadline.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::heap::DynamicSpace;
use super::reserved_memory::ReservedMemory;
use super::spaces::{Space, used_end};
use super::store::{CopiedSpan, HeapCopy};
use super::threads::Region;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout};
use strandline_claims::range::{PAGE_BYTES, RangePages, is_all_zero, page_up};
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::namespaces;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::work::on_threads;

/// Maximum pages of the collector in a span.
const PAGES_AT_ONCE: usize = 32;
/// Spans that a thread copies before it takes others; each is read at once.
const SPANS_AT_ONCE: usize = 4;

/// What to copy.
pub struct CopyPlan {
    /// Dynamic space, then the others.
    areas: Vec<PlannedArea>,
    /// Addresses of pages of large objects without pointers, which are only searched for zeros.
    zero_scan_pages: Vec<u64>,
}

/// A space with pages to copy.
struct PlannedArea {
    range: AddressRange,
    /// Indexes of the collector's pages to copy, ascending.
    pages: Vec<usize>,
}

/// A part of a file behind memory that was not written to.
struct FilePart {
    file: File,
    /// Addresses that it backs.
    range: AddressRange,
    /// Offset in the file of the first of these addresses.
    offset: u64,
}

/// The files behind the areas.
#[derive(Default)]
struct OpenedFiles {
    parts: Vec<FilePart>,
    /// Number of mappings whose file could not be opened.
    unopened_files: u64,
}

/// How much of a part of the target's memory was read.
#[derive(Default)]
struct CopyCount {
    bytes_read: u64,
    /// Resident bytes that could not be read.
    missing_bytes: u64,
}

/// What was not read of the target's memory while it was copied.
pub struct CopyGaps {
    /// Resident bytes that could not be read.
    missing_bytes: u64,
    /// Bytes of large objects that were not searched for zero pages in time.
    pub unsearched_bytes: u64,
}

/// The copy, and what is still to be read from files.
pub struct CopiedHeap {
    /// The copied pages.
    pub store: HeapCopy,
    /// Bytes of target memory that were read.
    pub bytes_read: u64,
    /// The files to read from, in address order, without overlap.
    file_parts: Vec<FilePart>,
    /// Resident memory that was copied. The memory between its ranges is that of files.
    copied_runs: RangeSet,
    /// What was not read of the target's memory.
    pub gaps: CopyGaps,
    /// Number of mappings whose file could not be opened.
    pub unopened_files: u64,
}

impl CopyPlan {
    /// Plans the copy that tracing of `heap` and `spaces` needs.
    pub fn new(heap: &DynamicSpace, regions: &[Region], spaces: &[Space], layout: &Layout) -> Self {
        let mut pages_to_copy = Vec::new();
        let mut zero_scan_pages = Vec::new();
        for (index, page) in heap.pages.iter().enumerate() {
            let start = heap.address_of(index);
            if used_end(heap, regions, index) == start {
                continue;
            }
            let continues_object = page.is_large(layout) && page.scan_start != 0;
            if continues_object && page.content(layout) == layout.page_types.unboxed {
                zero_scan_pages.push(start);
            } else {
                pages_to_copy.push(index);
            }
        }
        let range = AddressRange::new(heap.start, heap.end());
        let mut areas = vec![PlannedArea { range, pages: pages_to_copy }];
        for space in spaces {
            let range = AddressRange::new(space.start & !(GC_PAGE_BYTES - 1), space.end);
            let pages = range.len().div_ceil(GC_PAGE_BYTES) as usize;
            areas.push(PlannedArea { range, pages: (0..pages).collect() });
        }
        Self { areas, zero_scan_pages }
    }

    /// Bytes of memory for the copy and for tracing it.
    pub fn bytes(&self) -> u64 {
        let copied_bytes = self.page_count() as u64 * GC_PAGE_BYTES;
        // Two bits for each 16 bytes. The list of pending objects cannot exceed a quarter of the
        // copy; in practice it takes about a tenth.
        copied_bytes + copied_bytes / 64 + copied_bytes / 10
    }

    fn page_count(&self) -> usize {
        self.areas.iter().map(|area| area.pages.len()).sum()
    }

    /// Makes the copy; `None` if there is too little memory, or the deadline passed. Notes the
    /// all-zero pages of dynamic space in `pages`.
    pub fn copy(
        &self,
        context: &Context<'_>,
        pages: &RangePages,
        reserved: &ReservedMemory,
    ) -> Option<CopiedHeap> {
        let mut store = HeapCopy::with_pages(self.page_count(), reserved)?;
        for area in &self.areas {
            store.add_area(area.range.start, area.range.end, &area.pages);
        }
        let runs: RangeSet = self.areas.iter().flat_map(|area| context.resident_runs(area.range)).collect();
        let bytes_read = AtomicU64::new(0);
        let copy_span = |address: u64, bytes: &mut [u8]| {
            let count = copy_pages(context, &runs, address, bytes, pages);
            bytes_read.fetch_add(count.bytes_read, Ordering::Relaxed);
            (context.progress)(count.bytes_read);
            count.missing_bytes
        };
        let gaps = self.copy_spans(context, &mut store.spans_mut(PAGES_AT_ONCE), &copy_span)?;
        let OpenedFiles { parts: file_parts, unopened_files } = self.open_files(context);
        let bytes_read = bytes_read.into_inner();
        Some(CopiedHeap { store, bytes_read, file_parts, copied_runs: runs, gaps, unopened_files })
    }

    /// Copies `spans` with all workers, then looks for zeros. `copy_span` copies one and returns
    /// the bytes that could not be read. `None` if not all were copied: the deadline passed, or a
    /// thread panicked.
    fn copy_spans(
        &self,
        context: &Context<'_>,
        spans: &mut [CopiedSpan<'_>],
        copy_span: &(impl Fn(u64, &mut [u8]) -> u64 + Sync),
    ) -> Option<CopyGaps> {
        let (span_count, copied_count) = (spans.len(), AtomicUsize::new(0));
        let searched_count = AtomicUsize::new(0);
        let missing_bytes = AtomicU64::new(0);
        let span_groups = Mutex::new(spans.chunks_mut(SPANS_AT_ONCE));
        let zero_scan_groups = Mutex::new(self.zero_scan_pages.chunks(PAGES_AT_ONCE));
        on_threads(context.workers, || {
            while let Some(group) = span_groups.lock().ok().and_then(|mut groups| groups.next()) {
                if Instant::now() > context.deadline {
                    return;
                }
                for CopiedSpan { address, bytes } in group {
                    missing_bytes.fetch_add(copy_span(*address, bytes), Ordering::Relaxed);
                    copied_count.fetch_add(1, Ordering::Relaxed);
                }
            }
            let mut scratch = ReadBuffer::new(GC_PAGE_BYTES as usize);
            while let Some(group) = zero_scan_groups.lock().ok().and_then(|mut groups| groups.next()) {
                if Instant::now() > context.deadline {
                    return;
                }
                for &address in group {
                    // What cannot be read here is not missing: tracing does not need it.
                    copy_span(address, &mut scratch);
                }
                searched_count.fetch_add(group.len(), Ordering::Relaxed);
            }
        });
        let unsearched_pages = self.zero_scan_pages.len().saturating_sub(searched_count.into_inner());
        (copied_count.into_inner() == span_count).then(|| CopyGaps {
            missing_bytes: missing_bytes.into_inner(),
            unsearched_bytes: unsearched_pages as u64 * GC_PAGE_BYTES,
        })
    }

    /// Opens the files behind the areas.
    fn open_files(&self, context: &Context<'_>) -> OpenedFiles {
        let mut opened = OpenedFiles::default();
        for mapping in context.space.mappings().iter().filter(|mapping| mapping.has_file()) {
            let range = mapping.range();
            if !self.areas.iter().any(|area| area.range.overlaps(range)) {
                continue;
            }
            match namespaces::open_mapped_file(context.process, mapping) {
                Ok(file) => opened.parts.push(FilePart { file, range, offset: mapping.offset }),
                Err(_) => opened.unopened_files += 1,
            }
        }
        opened
    }
}

/// Copies the resident part of pages of the collector, and notes in `pages` which pages are zero.
fn copy_pages(
    context: &Context<'_>,
    runs: &RangeSet,
    address: u64,
    bytes: &mut [u8],
    pages: &RangePages,
) -> CopyCount {
    let mut count = CopyCount::default();
    for run in runs.within(AddressRange::sized(address, bytes.len() as u64)) {
        let part = bytes.get_mut((run.start - address) as usize..(run.end - address) as usize);
        let Some(part) = part else { continue };
        let read_length = context.memory.read_some(run.start, part).min(part.len());
        count.bytes_read += read_length as u64;
        count.missing_bytes += (part.len() - read_length) as u64;
        // Only pages that were read: the others hold what was in the buffer before.
        let contents = part.get(..read_length).unwrap_or_default().chunks_exact(PAGE_BYTES as usize);
        for (page, content) in run.pages().zip(contents) {
            // A page of zeros in a mapped core does not read as zeros once it is released.
            if is_all_zero(content)
                && context.space.find(page).is_some_and(|mapping| mapping.is_private_anonymous())
            {
                pages.set_zero(page);
            }
        }
    }
    count
}

impl CopiedHeap {
    /// Reads from the mapped files the pages that were not resident anonymous memory. Returns the
    /// bytes that could not be read, from memory or from files.
    pub fn fill_from_files(&mut self) -> u64 {
        let mut missing_bytes = self.gaps.missing_bytes;
        let runs = std::mem::take(&mut self.copied_runs);
        for CopiedSpan { address, bytes } in self.store.pages_mut() {
            let page = AddressRange::sized(address, bytes.len() as u64);
            let first = self.file_parts.partition_point(|part| part.range.end <= page.start);
            let parts = self.file_parts.iter().skip(first);
            for part in parts.take_while(|part| part.range.start < page.end) {
                for gap in runs.gaps_in(part.range.intersection(page)) {
                    let target = bytes.get_mut((gap.start - address) as usize..(gap.end - address) as usize);
                    let Some(target) = target else { continue };
                    let offset = part.offset.saturating_add(gap.start - part.range.start);
                    missing_bytes += read_mapped(&part.file, target, offset);
                }
            }
        }
        self.file_parts.clear();
        missing_bytes
    }
}

/// Reads what a mapping of `file` shows at `offset`: a file may end within its last page, whose
/// rest is zeros. Returns the number of bytes that could not be read, which includes pages after
/// the end of the file.
fn read_mapped(file: &File, target: &mut [u8], offset: u64) -> u64 {
    let mut read_bytes = 0;
    while let Some(unread) = target.get_mut(read_bytes..).filter(|unread| !unread.is_empty()) {
        match file.read_at(unread, offset.saturating_add(read_bytes as u64)) {
            Ok(0) => {
                let end = offset.saturating_add(read_bytes as u64);
                return (unread.len() as u64).saturating_sub(page_up(end) - end);
            }
            Ok(count) => read_bytes += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return unread.len() as u64,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_after_the_end_of_a_file_are_missing() {
        let path = std::env::temp_dir().join(format!("strandline-copy-{}", std::process::id()));
        std::fs::write(&path, [1; 5000]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut bytes = [0; 3 * PAGE_BYTES as usize];
        assert_eq!(
            read_mapped(&file, &mut bytes[..2 * PAGE_BYTES as usize], 0),
            0,
            "the last page ends in zeros"
        );
        assert_eq!((bytes[4999], bytes[5000]), (1, 0));
        assert_eq!(read_mapped(&file, &mut bytes, 0), PAGE_BYTES);
        assert_eq!(read_mapped(&file, &mut bytes, PAGE_BYTES), 2 * PAGE_BYTES);
        assert_eq!(read_mapped(&file, &mut bytes, 2 * PAGE_BYTES), 3 * PAGE_BYTES);
        let folder = File::open(std::env::temp_dir()).unwrap();
        assert_eq!(read_mapped(&folder, &mut bytes, 0), 3 * PAGE_BYTES);
    }
}

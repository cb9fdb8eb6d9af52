//! Copies what is needed of SBCL's memory while it is stopped.
//!
//! Copies only pages that hold objects, and of these only resident anonymous memory: the rest of a
//! mapped core is read from the file once the target runs again. Of large objects without pointers
//! the first page is kept; the others are only read to find zeros. Several threads copy; they give
//! up when time is over.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::heap::DynamicSpace;
use super::room::ReservedMemory;
use super::spaces::{Space, used_end};
use super::store::HeapCopy;
use super::threads::Region;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout};
use strandline_claims::range::{PAGE_BYTES, RangePages, is_all_zero, page_up};
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::namespaces;

/// Pages of the collector per span.
const PAGES_AT_ONCE: usize = 32;
/// Spans that a thread takes at a time; each is read at once.
const SPANS_AT_ONCE: usize = 4;

/// What to copy.
pub struct CopyPlan {
    /// Dynamic space, then the others: first byte, first byte behind, the numbers of the pages to
    /// copy.
    areas: Vec<(u64, u64, Vec<usize>)>,
    /// Pages of large objects without pointers: only read to find zeros.
    zero_scan_pages: Vec<u64>,
}

/// A part of a file behind memory that was not written to.
struct FilePart {
    file: File,
    /// Addresses that it backs.
    start: u64,
    end: u64,
    /// Offset of `start` in the file.
    offset: u64,
}

/// The copy, and what is still to be read from files.
pub struct Copied {
    /// The copied pages.
    pub store: HeapCopy,
    /// Bytes of target memory that were read.
    pub bytes_read: u64,
    parts: Vec<FilePart>,
    /// Resident runs that were copied, in address order. The memory between them is that of files.
    runs: Vec<(u64, u64)>,
    /// Resident bytes that could not be read.
    missing: u64,
    /// Mappings whose file could not be opened.
    pub unopened: u64,
}

impl CopyPlan {
    /// Plans the copy that tracing of `heap` and `spaces` needs.
    pub fn new(heap: &DynamicSpace, regions: &[Region], spaces: &[Space], layout: &Layout) -> Self {
        let mut wanted = Vec::new();
        let mut zero_scan_pages = Vec::new();
        for (index, page) in heap.pages.iter().enumerate() {
            let start = heap.address_of(index);
            if used_end(heap, regions, index) == start {
                continue;
            }
            let goes_on = page.is_large(layout) && page.scan_start != 0;
            if goes_on && page.content(layout) == layout.page_types.unboxed {
                zero_scan_pages.push(start);
            } else {
                wanted.push(index);
            }
        }
        let mut areas = vec![(heap.start, heap.end(), wanted)];
        for space in spaces {
            let start = space.start & !(GC_PAGE_BYTES - 1);
            let pages = (space.end - start).div_ceil(GC_PAGE_BYTES) as usize;
            areas.push((start, space.end, (0..pages).collect()));
        }
        Self { areas, zero_scan_pages }
    }

    /// Memory for the copy and for tracing it.
    pub fn bytes(&self) -> u64 {
        let copied = self.pages() as u64 * GC_PAGE_BYTES;
        // Two bits for each 16 bytes. The list of work is bounded by a quarter of the copy, but
        // takes about a tenth.
        copied + copied / 64 + copied / 10
    }

    fn pages(&self) -> usize {
        self.areas.iter().map(|area| area.2.len()).sum()
    }

    /// Makes the copy; `None` if memory or time is too short. Notes the all-zero pages of dynamic
    /// space in `pages`.
    pub fn copy(&self, context: &Context<'_>, pages: &RangePages, room: &ReservedMemory) -> Option<Copied> {
        let mut store = HeapCopy::with_pages(self.pages(), room)?;
        let mut runs = Vec::new();
        for (start, end, wanted) in &self.areas {
            store.add_area(*start, *end, wanted);
            runs.extend((context.resident)(*start, *end));
        }
        runs.sort_unstable();
        let read = AtomicU64::new(0);
        let late = AtomicBool::new(false);
        let missing = AtomicU64::new(0);
        let mut targets = store.spans_mut(PAGES_AT_ONCE);
        let copy = |address: u64, bytes: &mut [u8]| {
            let (got, less) = copy_pages(context, &runs, address, bytes, pages);
            read.fetch_add(got, Ordering::Relaxed);
            (context.progress)(got);
            less
        };
        let work = Mutex::new(targets.chunks_mut(SPANS_AT_ONCE));
        let zeros = Mutex::new(self.zero_scan_pages.chunks(PAGES_AT_ONCE));
        std::thread::scope(|scope| {
            for _ in 0..context.workers.max(1) {
                scope.spawn(|| {
                    while let Some(chunk) = work.lock().ok().and_then(|mut work| work.next()) {
                        if Instant::now() > context.deadline {
                            late.store(true, Ordering::Relaxed);
                            return;
                        }
                        for (address, bytes) in chunk {
                            missing.fetch_add(copy(*address, bytes), Ordering::Relaxed);
                        }
                    }
                    let mut scratch = ReadBuffer::new(GC_PAGE_BYTES as usize);
                    while let Some(chunk) = zeros.lock().ok().and_then(|mut work| work.next()) {
                        if Instant::now() > context.deadline {
                            return;
                        }
                        for &address in chunk {
                            copy(address, &mut scratch);
                        }
                    }
                });
            }
        });
        drop(targets);
        if late.load(Ordering::Relaxed) {
            return None;
        }
        let (parts, unopened) = self.parts(context);
        let missing = missing.load(Ordering::Relaxed);
        Some(Copied { store, bytes_read: read.load(Ordering::Relaxed), parts, runs, missing, unopened })
    }

    /// The files behind the areas, and the number of mappings whose file could not be opened.
    fn parts(&self, context: &Context<'_>) -> (Vec<FilePart>, u64) {
        let mut parts = Vec::new();
        let mut unopened = 0;
        for mapping in context.space.mappings().iter().filter(|mapping| mapping.has_file()) {
            let touches = self.areas.iter().any(|area| mapping.start < area.1 && area.0 < mapping.end);
            if !touches {
                continue;
            }
            match namespaces::open_mapped_file(context.process, mapping) {
                Ok(file) => parts.push(FilePart {
                    file,
                    start: mapping.start,
                    end: mapping.end,
                    offset: mapping.offset,
                }),
                Err(_) => unopened += 1,
            }
        }
        (parts, unopened)
    }
}

/// Copies the resident part of pages of the collector. Returns the bytes read, and the bytes that
/// could not be read.
fn copy_pages(
    context: &Context<'_>,
    runs: &[(u64, u64)],
    address: u64,
    bytes: &mut [u8],
    pages: &RangePages,
) -> (u64, u64) {
    let end = address + bytes.len() as u64;
    let (mut read, mut missing) = (0, 0);
    for (from, to) in within(runs, address, end) {
        let Some(part) = bytes.get_mut((from - address) as usize..(to - address) as usize) else { continue };
        let got = context.memory.read_some(from, part);
        read += got as u64;
        missing += (part.len() - got.min(part.len())) as u64;
        for (page, content) in (from..to).step_by(PAGE_BYTES as usize).zip(part.chunks(PAGE_BYTES as usize)) {
            // A page of zeros in a mapped core does not read as zeros once it is released.
            if is_all_zero(content)
                && context.space.find(page).is_some_and(|mapping| mapping.is_private_anonymous())
            {
                pages.set_zero(page);
            }
        }
    }
    (read, missing)
}

/// The parts of `runs` that lie in `start..end`.
fn within(runs: &[(u64, u64)], start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let first = runs.partition_point(|run| run.1 <= start);
    runs.iter()
        .skip(first)
        .take_while(move |run| run.0 < end)
        .map(move |&(from, to)| (from.max(start), to.min(end)))
}

impl Copied {
    /// Reads from files what was not resident or not anonymous. Returns the bytes that could not be
    /// read, from memory or from files.
    pub fn fill(&mut self) -> u64 {
        let mut missing = self.missing;
        let runs = std::mem::take(&mut self.runs);
        for (address, bytes) in self.store.pages_mut() {
            let end = address + bytes.len() as u64;
            for part in self.parts.iter().filter(|part| part.start < end && address < part.end) {
                let (start, end) = (part.start.max(address), part.end.min(end));
                for (from, to) in between(&runs, start, end) {
                    let target = bytes.get_mut((from - address) as usize..(to - address) as usize);
                    let Some(target) = target else { continue };
                    missing += read_mapped(&part.file, target, part.offset + (from - part.start));
                }
            }
        }
        self.parts.clear();
        missing
    }
}

/// Reads what a mapping of `file` shows at `offset`: a file may end within its last page, whose
/// rest is zeros. Returns the number of bytes that could not be read, which includes pages behind
/// the end of the file.
fn read_mapped(file: &File, target: &mut [u8], offset: u64) -> u64 {
    let mut done = 0;
    while let Some(rest) = target.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(done as u64)) {
            Ok(0) => {
                let end = offset.saturating_add(done as u64);
                return (rest.len() as u64).saturating_sub(page_up(end) - end);
            }
            Ok(got) => done += got,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return rest.len() as u64,
        }
    }
    0
}

/// The parts of `start..end` that lie in none of `runs`.
fn between(runs: &[(u64, u64)], start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = start;
    for (from, to) in within(runs, start, end) {
        if at < from {
            gaps.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        gaps.push((at, end));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_behind_the_end_of_a_file_are_missing() {
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

    #[test]
    fn gaps_and_runs_make_up_a_range() {
        let runs = [(10, 20), (30, 40)];
        assert_eq!(within(&runs, 15, 35).collect::<Vec<_>>(), [(15, 20), (30, 35)]);
        assert_eq!(between(&runs, 0, 50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(between(&runs, 12, 18), []);
    }
}

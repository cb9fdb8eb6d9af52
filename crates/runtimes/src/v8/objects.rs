//! Walks the objects of V8's pages in address order, and counts them by type, dead ones that are
//! not collected yet included.
//!
//! Pages with code, and the read-only ones, are left out. Memory that cannot be walked is counted.

use std::time::Instant;

use super::instance_types::InstanceTypes;
use super::layout::{ObjectLayout, PAGE_ALIGNMENT};
use super::names::Constructors;
use super::page_index::{IndexedPage, PageIndex, WORD_BYTES};
use super::shapes::{Content, Shape, Shapes};
use super::tally::{self, Tally, Totals};
use crate::batch::PageCache;
use crate::bits::Bitmap;
use crate::work;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, word_at};

/// Maximum bytes of objects that are walked while the process is stopped, which takes about 25 ms.
pub const MAX_STOPPED_BYTES: u64 = 32 << 20;
/// Maximum bytes before an allocation area that may be an object without a hidden class yet.
const MAX_INCOMPLETE_BYTES: u64 = 1024;

/// What was counted.
#[derive(Default)]
pub struct Census {
    /// The objects.
    pub totals: Totals,
    /// Names of constructors.
    pub constructors: Constructors,
    /// Bytes of the objects by the number of their page.
    pub page_bytes: Vec<u64>,
    /// Bytes of pages that could not be walked.
    pub unread_bytes: u64,
}

/// An object that may be alive.
#[derive(Clone, Copy)]
pub struct LiveObject<'a> {
    /// Its address.
    pub address: u64,
    /// Its hidden class.
    pub shape: Shape,
    /// Its size in bytes.
    pub size: u64,
    /// Its bytes; the first ones of a large object.
    pub bytes: &'a [u8],
}

impl LiveObject<'_> {
    /// The pointer to the `SharedFunctionInfo` of a function; `None` for other objects.
    pub fn shared_function_info(&self, layout: &ObjectLayout) -> Option<u64> {
        word_at(self.bytes, layout.shared as usize).filter(|_| self.shape.content == Content::Function)
    }
}

/// Where objects are, and how they are read.
#[derive(Clone, Copy)]
pub struct Heap<'a> {
    /// The process.
    pub context: &'a Context<'a>,
    /// Its memory.
    pub memory: &'a dyn Memory,
    /// Offsets in objects.
    pub layout: &'a ObjectLayout,
    /// Numbers of V8's classes.
    pub types: &'a InstanceTypes,
    /// The pages with objects.
    pub index: &'a PageIndex,
}

impl<'a> Heap<'a> {
    /// An empty set of hidden classes, which reads the memory of this heap.
    pub fn shapes(&self) -> Shapes<'a> {
        Shapes::new(self.types, self.layout, PageCache::new(self.memory))
    }

    /// Whether the objects may be counted: a stopped process must not wait for long.
    pub fn has_time(&self) -> bool {
        let object_bytes: u64 = self.index.pages.iter().map(|indexed| indexed.page.allocated_bytes).sum();
        !self.context.is_stopped || object_bytes <= MAX_STOPPED_BYTES
    }

    /// Calls `visit` with the marked objects of a page, until it returns false. `None` if the
    /// deadline passed, or a page with a large object could not be read.
    pub fn each_live(
        &self,
        shapes: &mut Shapes<'_>,
        indexed: &IndexedPage,
        marks: &Bitmap,
        buffer: &mut ReadBuffer,
        visit: &mut dyn FnMut(&mut Shapes<'_>, LiveObject<'_>) -> bool,
    ) -> Option<()> {
        if Instant::now() >= self.context.deadline {
            return None;
        }
        let memory = self.memory;
        if indexed.is_large {
            let area_bytes = usize::try_from(indexed.page.area_bytes()).ok()?;
            buffer.resize(area_bytes.min(PAGE_ALIGNMENT as usize));
            memory.read(indexed.page.area_start, buffer).ok()?;
        } else {
            indexed.read(self.context, memory, buffer);
        }
        for run in &indexed.runs {
            let mut at = run.start;
            while at < run.end {
                // Objects are marked only on pages that `count` walked to their ends.
                let from = if indexed.is_large { 0 } else { indexed.offset_of(at) };
                let to = if indexed.is_large { buffer.len() } else { indexed.offset_of(run.end) };
                let Some(bytes) = buffer.get(from..to) else { break };
                let Some(head) = shapes.head(bytes).filter(|head| head.size >= WORD_BYTES) else { break };
                let object = bytes.get(..head.size.min(bytes.len() as u64) as usize).unwrap_or_default();
                let object = LiveObject { address: at, shape: head.shape, size: head.size, bytes: object };
                if marks.has(indexed.place_of(at)) && !visit(shapes, object) {
                    return Some(());
                }
                at = at.checked_add(head.size)?;
                if indexed.is_large {
                    break;
                }
            }
        }
        Some(())
    }
}

/// Counts the objects of all heaps, and sets a bit in `starts` for each.
pub fn count(heap: &Heap<'_>, starts: Option<&Bitmap>) -> Census {
    let new_walk = || Walk {
        heap: *heap,
        shapes: heap.shapes(),
        tally: Tally::default(),
        starts,
        buffer: ReadBuffer::new(PAGE_ALIGNMENT as usize),
        counted_pages: Vec::new(),
        unread_bytes: 0,
    };
    let walk_page = |walk: &mut Walk<'_>, number: usize| {
        if let Some(indexed) = heap.index.pages.get(number) {
            let bytes = walk.count_page(indexed);
            walk.counted_pages.push(CountedPage { number, bytes });
            (heap.context.progress)(indexed.page.bytes());
        }
    };
    let context = heap.context;
    let (mut walks, unread_pages) =
        work::run_jobs(context.workers, heap.index.pages.len(), context.deadline, new_walk, walk_page);
    let mut census = Census { unread_bytes: heap.index.unread_bytes, ..Census::default() };
    census.page_bytes = vec![0; heap.index.pages.len()];
    for walk in &mut walks {
        for &CountedPage { number, bytes } in &walk.counted_pages {
            if let Some(page_bytes) = census.page_bytes.get_mut(number) {
                *page_bytes = bytes;
            }
        }
        census.unread_bytes += walk.unread_bytes;
        census.constructors.add(&mut walk.shapes, heap.layout, &walk.tally.constructors);
    }
    let workers = walks.iter_mut().map(|walk| (&walk.tally, &mut walk.shapes));
    census.totals = tally::total(workers, heap.layout, &mut census.constructors);
    if unread_pages > 0 {
        let all_bytes: u64 = heap.index.pages.iter().map(|indexed| indexed.page.allocated_bytes).sum();
        census.unread_bytes = census.unread_bytes.max(all_bytes.saturating_sub(census.totals.bytes)).max(1);
    }
    census
}

/// A worker's walk.
struct Walk<'a> {
    heap: Heap<'a>,
    shapes: Shapes<'a>,
    tally: Tally,
    /// Gets a bit for each object.
    starts: Option<&'a Bitmap>,
    buffer: ReadBuffer,
    counted_pages: Vec<CountedPage>,
    /// Bytes of pages that could not be walked.
    unread_bytes: u64,
}

/// A page that was counted.
#[derive(Clone, Copy)]
struct CountedPage {
    /// Its number in the index.
    number: usize,
    /// Bytes of its objects.
    bytes: u64,
}

impl Walk<'_> {
    /// Notes that an object begins at a place.
    fn set_start(&self, place: u64) {
        if let Some(starts) = self.starts {
            starts.set(place);
        }
    }

    /// Counts the objects of a page; returns their bytes.
    fn count_page(&mut self, indexed: &IndexedPage) -> u64 {
        let mut buffer = std::mem::take(&mut self.buffer);
        let bytes_before = self.tally.bytes;
        if indexed.is_large {
            self.count_large(indexed, &mut buffer);
        } else {
            indexed.read(self.heap.context, self.heap.memory, &mut buffer);
            for run in &indexed.runs {
                let mut at = run.start;
                while at < run.end {
                    let rest =
                        buffer.get(indexed.offset_of(at)..indexed.offset_of(run.end)).unwrap_or_default();
                    let Some(size) = self.count_object(rest) else {
                        // The last object may have no hidden class yet.
                        let is_incomplete =
                            indexed.buffer_tops.contains(&run.end) && run.end - at <= MAX_INCOMPLETE_BYTES;
                        self.unread_bytes += if is_incomplete { 0 } else { run.end - at };
                        break;
                    };
                    self.set_start(indexed.place_of(at));
                    at += size;
                }
            }
        }
        self.buffer = buffer;
        self.tally.bytes - bytes_before
    }

    /// Counts the object at the start of `bytes`; returns its size, `None` if it is not understood.
    #[inline]
    fn count_object(&mut self, bytes: &[u8]) -> Option<u64> {
        let head = self.shapes.head(bytes)?;
        let is_sound =
            (WORD_BYTES..=bytes.len() as u64).contains(&head.size) && head.size.is_multiple_of(WORD_BYTES);
        if is_sound {
            self.tally.record(self.heap.layout, head, bytes);
        }
        is_sound.then_some(head.size)
    }

    /// Counts the only object of a page.
    fn count_large(&mut self, indexed: &IndexedPage, buffer: &mut ReadBuffer) {
        let page = &indexed.page;
        let bytes = indexed.read_head(self.heap.memory, buffer).unwrap_or_default();
        let head = self
            .shapes
            .head(bytes)
            .filter(|head| head.size <= page.area_bytes() && !head.shape.is_sized_by_scan());
        match head {
            Some(head) => {
                self.tally.record(self.heap.layout, head, bytes);
                self.set_start(indexed.first_place);
            }
            None => self.unread_bytes += page.allocated_bytes,
        }
    }
}

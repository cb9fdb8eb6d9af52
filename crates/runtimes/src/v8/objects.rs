//! Walks the objects of V8's pages in address order, and counts them by type, dead ones that are
//! not collected yet included.
//!
//! Pages with code, and the read-only ones, are left out. Memory that cannot be walked is counted.

use std::time::Instant;

use super::instance_types::InstanceTypes;
use super::layout::{ObjectLayout, PAGE_ALIGNMENT};
use super::names::Known;
use super::page_index::{IndexedPage, PageIndex};
use super::shapes::{Shape, Shapes};
use super::tally::{self, Tally, Totals};
use crate::batch::PageCache;
use crate::bits::Bitmap;
use crate::work;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;

/// Maximum bytes of objects that are walked while the process is stopped: some 25 ms.
pub const MAX_STOPPED_BYTES: u64 = 32 << 20;
/// Most bytes before the end of an allocation area that may be an object in the making.
const MAX_NEW_BYTES: u64 = 1024;

/// What was counted.
#[derive(Default)]
pub struct Census {
    /// The objects.
    pub totals: Totals,
    /// Names of constructors.
    pub known: Known,
    /// Bytes of the objects by the number of their page.
    pub page_bytes: Vec<u64>,
    /// Bytes of pages that could not be walked.
    pub unread_bytes: u64,
}

/// An object that lives, or may.
#[derive(Clone, Copy)]
pub struct LiveObject<'a> {
    /// Where it is.
    pub address: u64,
    /// Its hidden class.
    pub shape: Shape,
    /// Its size.
    pub size: u64,
    /// Its bytes, of a large one the first.
    pub bytes: &'a [u8],
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
    /// Instance types.
    pub types: &'a InstanceTypes,
    /// Pages.
    pub index: &'a PageIndex,
}

impl<'a> Heap<'a> {
    /// No hidden classes yet.
    pub fn shapes(&self) -> Shapes<'a> {
        Shapes::new(self.types, self.layout, PageCache::new(self.memory))
    }

    /// Whether there is time to count the objects.
    pub fn has_time(&self) -> bool {
        let walked: u64 = self.index.pages.iter().map(|indexed| indexed.page.allocated).sum();
        !self.context.is_stopped || walked <= MAX_STOPPED_BYTES
    }

    /// Passes the objects of a page that have a mark, until `take` returns false. `None` if the
    /// time was over, or the page could not be read.
    pub fn each_live(
        &self,
        shapes: &mut Shapes<'_>,
        indexed: &IndexedPage,
        marks: &Bitmap,
        buffer: &mut ReadBuffer,
        take: &mut dyn FnMut(&mut Shapes<'_>, LiveObject<'_>) -> bool,
    ) -> Option<()> {
        if Instant::now() >= self.context.deadline {
            return None;
        }
        let memory = self.memory;
        if indexed.is_large {
            let area = usize::try_from(indexed.page.area_end - indexed.page.area_start).ok()?;
            buffer.resize(area.min(PAGE_ALIGNMENT as usize));
            memory.read(indexed.page.area_start, buffer).ok()?;
        } else {
            indexed.read(self.context, memory, buffer);
        }
        for run in &indexed.runs {
            let mut at = run.start;
            while at < run.end {
                let from = if indexed.is_large { 0 } else { indexed.offset(at) };
                let to = if indexed.is_large { buffer.len() } else { indexed.offset(run.end) };
                let Some(bytes) = buffer.get(from..to) else { break };
                let Some(head) = shapes.head(bytes).filter(|head| head.size >= 8) else { break };
                let object = bytes.get(..head.size.min(bytes.len() as u64) as usize).unwrap_or_default();
                let object = LiveObject { address: at, shape: head.shape, size: head.size, bytes: object };
                if marks.has(indexed.place(at)) && !take(shapes, object) {
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
    let state = || Walk {
        heap: *heap,
        shapes: heap.shapes(),
        tally: Tally::default(),
        starts,
        buffer: ReadBuffer::new(PAGE_ALIGNMENT as usize),
        page_bytes: Vec::new(),
        unread_bytes: 0,
    };
    let job = |walk: &mut Walk<'_>, number: usize| {
        if let Some(indexed) = heap.index.pages.get(number) {
            let bytes = walk.page(indexed);
            walk.page_bytes.push((number, bytes));
            (heap.context.progress)(indexed.page.bytes());
        }
    };
    let context = heap.context;
    let (mut walks, left) =
        work::run_jobs(context.workers, heap.index.pages.len(), context.deadline, state, job);
    let mut census = Census { unread_bytes: heap.index.unread_bytes, ..Census::default() };
    census.page_bytes = vec![0; heap.index.pages.len()];
    for walk in &mut walks {
        for &(number, bytes) in &walk.page_bytes {
            census.page_bytes.get_mut(number).into_iter().for_each(|page| *page = bytes);
        }
        census.unread_bytes += walk.unread_bytes;
        walk.tally.add_names(&mut walk.shapes, heap.layout, &mut census.known);
    }
    let workers = walks.iter_mut().map(|walk| (&walk.tally, &mut walk.shapes));
    census.totals = tally::total(workers, heap.layout, &mut census.known);
    if left > 0 {
        let all: u64 = heap.index.pages.iter().map(|indexed| indexed.page.allocated).sum();
        census.unread_bytes = census.unread_bytes.max(all.saturating_sub(census.totals.bytes)).max(1);
    }
    census
}

/// A worker's walk.
struct Walk<'a> {
    heap: Heap<'a>,
    shapes: Shapes<'a>,
    tally: Tally,
    starts: Option<&'a Bitmap>,
    buffer: ReadBuffer,
    /// The number of each page, and the bytes of its objects.
    page_bytes: Vec<(usize, u64)>,
    unread_bytes: u64,
}

impl Walk<'_> {
    /// Counts the objects of a page; returns their bytes.
    fn page(&mut self, indexed: &IndexedPage) -> u64 {
        let mut buffer = std::mem::take(&mut self.buffer);
        let before = self.tally.bytes;
        if indexed.is_large {
            self.large(indexed, &mut buffer);
        } else {
            indexed.read(self.heap.context, self.heap.memory, &mut buffer);
            for run in &indexed.runs {
                let mut at = run.start;
                while at < run.end {
                    let rest = buffer.get(indexed.offset(at)..indexed.offset(run.end)).unwrap_or_default();
                    let Some(bytes) = self.object(rest) else {
                        // The last object may have no hidden class yet.
                        let is_new = indexed.tops.contains(&run.end) && run.end - at <= MAX_NEW_BYTES;
                        self.unread_bytes += if is_new { 0 } else { run.end - at };
                        break;
                    };
                    self.starts.into_iter().for_each(|starts| _ = starts.set(indexed.place(at)));
                    at += bytes;
                }
            }
        }
        self.buffer = buffer;
        self.tally.bytes - before
    }

    /// Counts the object at the start of `bytes`; returns its size.
    #[inline]
    fn object(&mut self, bytes: &[u8]) -> Option<u64> {
        let head = self.shapes.head(bytes)?;
        let is_within = (8..=bytes.len() as u64).contains(&head.size) && head.size.is_multiple_of(8);
        if is_within {
            self.tally.record(self.heap.layout, head, bytes);
        }
        is_within.then_some(head.size)
    }

    /// Counts the only object of a page.
    fn large(&mut self, indexed: &IndexedPage, buffer: &mut ReadBuffer) {
        let page = &indexed.page;
        let most = page.area_end - page.area_start;
        let bytes = indexed.read_head(self.heap.memory, buffer).unwrap_or_default();
        let head = self.shapes.head(bytes).filter(|head| head.size <= most && !head.shape.is_scanned());
        match head {
            Some(head) => {
                self.tally.record(self.heap.layout, head, bytes);
                self.starts.into_iter().for_each(|starts| _ = starts.set(indexed.first));
            }
            None => self.unread_bytes += page.allocated,
        }
    }
}

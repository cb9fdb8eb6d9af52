//! Determines which objects are alive, or may be: those that roots lead to.
//!
//! Goes over the pages with objects that are marked and not scanned until there are none, a page at
//! a time, first from the certain roots, then from the others (`roots`). Each word of a page has a
//! bit for each of these states. What is not marked is garbage. If anything cannot be read, there
//! is no result.

use std::time::Instant;

use super::layout::PAGE_ALIGNMENT;
use super::names::Constructors;
use super::objects::Heap;
use super::page_index::IndexedPage;
use super::references::{EPHEMERON_BYTES, FIRST_EPHEMERON, References, ephemeron_at};
use super::roots::{Root, Roots};
use super::shapes::{Shapes, TableEntry};
use super::tally::{self, Tally, Totals};
use super::views::Views;
use crate::bits::Bitmap;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// Limit on entries of tables whose keys are not marked; beyond it, there is no result.
const MAX_PAIRS: usize = 1 << 22;

/// V8's own classes of objects to which compiled code refers weakly, as it does to all objects of
/// the program: hidden classes, properties of global objects, and contexts.
const WEAK_IN_CODE: [&str; 4] = ["Map", "PropertyCell", "Context", "NativeContext"];

/// The objects to which roots lead.
pub struct Live {
    /// A bit for each of them.
    pub marks: Bitmap,
    /// A bit for each to which certain roots lead; `None` if no path was requested.
    pub certain: Option<Bitmap>,
    /// Counts of those to which certain roots lead.
    pub reachable: Totals,
    /// Counts of those to which only uncertain roots lead.
    pub uncertain: Totals,
    /// Bytes of all of them, by the number of their page.
    pub page_bytes: Vec<u64>,
    /// Bytes of those to which certain roots lead, by the number of their page.
    pub reachable_page_bytes: Vec<u64>,
    /// The views of ArrayBuffers among them.
    pub views: Views,
}

/// Traces the heaps. `starts` has a bit for each object, and is consumed. `None` if something
/// cannot be read, or not before the deadline.
pub fn live(
    heap: &Heap<'_>,
    roots: &Roots<'_>,
    starts: Bitmap,
    constructors: &mut Constructors,
) -> Option<Live> {
    let keeps_certain = heap.context.path_to.is_some();
    let mut trace = Trace {
        heap: *heap,
        shapes: heap.shapes(),
        tally: Tally::default(),
        marks: Bitmap::new(heap.index.places)?,
        unscanned: starts,
        dirty_pages: vec![false; heap.index.pages.len()],
        page_bytes: vec![0; heap.index.pages.len()],
        ephemerons: Vec::new(),
        pairs: Vec::new(),
        views: Views::default(),
        buffer: ReadBuffer::new(PAGE_ALIGNMENT as usize),
    };
    roots.each_certain(&mut |root, address| {
        trace.mark_unless_weak(root, address);
        true
    })?;
    let reachable = trace.scan_all(constructors)?;
    let reachable_page_bytes = trace.page_bytes.clone();
    let certain = if keeps_certain { Some(trace.marks.try_clone()?) } else { None };
    roots.each_uncertain(&mut |root, address| {
        trace.mark_unless_weak(root, address);
        true
    })?;
    let uncertain = trace.scan_all(constructors)?;
    let Trace { marks, page_bytes, views, .. } = trace;
    Some(Live { marks, certain, reachable, uncertain, page_bytes, reachable_page_bytes, views })
}

/// The state of a trace.
struct Trace<'a> {
    heap: Heap<'a>,
    shapes: Shapes<'a>,
    /// Counts of the objects scanned since the last totals.
    tally: Tally,
    /// Objects to which something leads.
    marks: Bitmap,
    /// Objects that were not scanned; at the end, the dead ones.
    unscanned: Bitmap,
    /// Pages in which objects were marked and not scanned.
    dirty_pages: Vec<bool>,
    /// Bytes of scanned objects, by the number of their page.
    page_bytes: Vec<u64>,
    /// Tables of ephemerons that were not read.
    ephemerons: Vec<AddressRange>,
    /// Keys that are not marked, and their values.
    pairs: Vec<TableEntry>,
    views: Views,
    buffer: ReadBuffer,
}

impl Trace<'_> {
    /// Marks the object at an address, if one begins there that was not scanned; returns whether it
    /// was unmarked before.
    #[inline]
    fn mark(&mut self, address: u64) -> bool {
        let Some(place) = self.heap.index.place_at(address) else { return false };
        let is_new = self.unscanned.has(place.number) && self.marks.set(place.number);
        if let Some(is_dirty) = self.dirty_pages.get_mut(place.page).filter(|_| is_new) {
            *is_dirty = true;
        }
        is_new
    }

    /// Marks the object at an address, unless the root refers weakly to it.
    fn mark_unless_weak(&mut self, root: Root, address: u64) {
        if !is_weak(&self.heap, &mut self.shapes, root, address) {
            self.mark(address);
        }
    }

    /// Scans all that was marked, and what that leads to; returns the counts of these objects.
    /// `None` at the deadline, or if something cannot be read.
    fn scan_all(&mut self, constructors: &mut Constructors) -> Option<Totals> {
        self.scan_dirty_pages()?;
        while self.mark_values()? {
            self.scan_dirty_pages()?;
        }
        let tally = std::mem::take(&mut self.tally);
        Some(tally::total(std::iter::once((&tally, &mut self.shapes)), self.heap.layout, constructors))
    }

    /// Scans until no page has marked objects that were not scanned.
    fn scan_dirty_pages(&mut self) -> Option<()> {
        let mut is_upward = true;
        while self.dirty_pages.contains(&true) {
            for step in 0..self.dirty_pages.len() {
                let number = if is_upward { step } else { self.dirty_pages.len() - 1 - step };
                if self.dirty_pages.get(number) == Some(&true) {
                    self.scan_page(number)?;
                }
            }
            is_upward = !is_upward;
        }
        Some(())
    }

    /// Scans the marked objects of a page. `None` at the deadline, or if one cannot be read.
    fn scan_page(&mut self, number: usize) -> Option<()> {
        if Instant::now() >= self.heap.context.deadline {
            return None;
        }
        let indexed = self.heap.index.pages.get(number)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = if indexed.is_large {
            self.unscanned.clear(indexed.first_place);
            self.set_clean(number);
            self.scan_large(number, indexed, &mut buffer)
        } else {
            indexed.read(self.heap.context, self.heap.memory, &mut buffer);
            self.scan_small(number, indexed, &buffer)
        };
        self.buffer = buffer;
        result
    }

    /// Notes that no object of a page waits to be scanned.
    fn set_clean(&mut self, number: usize) {
        if let Some(is_dirty) = self.dirty_pages.get_mut(number) {
            *is_dirty = false;
        }
    }

    /// Scans the marked objects of a page with many, those that the scan itself marks included.
    fn scan_small(&mut self, number: usize, indexed: &IndexedPage, buffer: &ReadBuffer) -> Option<()> {
        let places = indexed.page.area_bytes() / 8;
        let (first, last) = (indexed.first_place, indexed.first_place + places.saturating_sub(1));
        while self.dirty_pages.get(number) == Some(&true) {
            self.set_clean(number);
            for word in first / 64..=last / 64 {
                // The first and the last word have places of other pages, too.
                let from_first = u64::MAX << first.saturating_sub(word * 64).min(63);
                let mask = from_first & u64::MAX >> (word * 64 + 63).saturating_sub(last).min(63);
                loop {
                    let pending = self.marks.word(word) & self.unscanned.word(word) & mask;
                    if pending == 0 {
                        break;
                    }
                    let place = word * 64 + u64::from(pending.trailing_zeros());
                    self.unscanned.clear(place);
                    let size = self.scan_object(indexed, place, buffer)?;
                    self.add_page_bytes(number, size);
                }
            }
        }
        Some(())
    }

    /// Adds to the bytes of the scanned objects of a page.
    fn add_page_bytes(&mut self, number: usize, bytes: u64) {
        if let Some(sum) = self.page_bytes.get_mut(number) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Scans an object; returns its size.
    fn scan_object(&mut self, indexed: &IndexedPage, place: u64, buffer: &ReadBuffer) -> Option<u64> {
        let address = indexed.address_of(place);
        let run = indexed.runs.iter().find(|run| run.contains(address))?;
        let bytes = buffer.get(indexed.offset_of(address)..indexed.offset_of(run.end))?;
        let head = self.shapes.head(bytes)?;
        let bytes = bytes.get(..usize::try_from(head.size).ok()?)?;
        self.tally.record(self.heap.layout, head, bytes);
        self.views.add(&self.heap.layout.views, head.shape, bytes);
        if head.shape.references == References::Ephemerons {
            self.ephemerons.push(AddressRange::sized(address, head.size));
        }
        head.shape.references.each(0, bytes, &mut |_, target| _ = self.mark(target));
        Some(head.size)
    }

    /// Scans the only object of a page.
    fn scan_large(&mut self, number: usize, indexed: &IndexedPage, buffer: &mut ReadBuffer) -> Option<()> {
        let page = &indexed.page;
        let bytes = indexed.read_head(self.heap.memory, buffer)?;
        let head = self.shapes.head(bytes).filter(|head| head.size <= page.area_bytes())?;
        self.tally.record(self.heap.layout, head, bytes);
        self.add_page_bytes(number, head.size);
        if head.shape.references == References::Ephemerons {
            self.ephemerons.push(AddressRange::sized(page.area_start, head.size));
        }
        if head.shape.references == References::Class {
            return Some(());
        }
        let (memory, deadline) = (self.heap.memory, self.heap.context.deadline);
        each_part(memory, deadline, page.area_start, head.size, buffer, &mut |offset, bytes| {
            head.shape.references.each(offset, bytes, &mut |_, target| _ = self.mark(target));
        })
    }

    /// Marks the values of marked keys in tables of ephemerons; returns whether any was new. `None`
    /// at the deadline, or if a table cannot be read.
    fn mark_values(&mut self) -> Option<bool> {
        self.read_tables()?;
        let mut pairs = std::mem::take(&mut self.pairs);
        let mut has_marked = false;
        loop {
            let count = pairs.len();
            pairs.retain(|&TableEntry { key, value }| {
                // A key outside of the pages, as those of empty entries, is always alive.
                let is_live = self.heap.index.place_at(key).is_none_or(|place| self.marks.has(place.number));
                has_marked |= is_live && self.mark(value);
                !is_live
            });
            if pairs.len() == count {
                break;
            }
            // Values of live keys would count as garbage.
            if Instant::now() >= self.heap.context.deadline {
                return None;
            }
        }
        self.pairs = pairs;
        Some(has_marked)
    }

    /// Reads the keys and values in the tables that were found since the last time.
    fn read_tables(&mut self) -> Option<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(PAGE_ALIGNMENT as usize);
        for table in std::mem::take(&mut self.ephemerons) {
            let entry_bytes = table.len().saturating_sub(FIRST_EPHEMERON as u64);
            let first = table.start.checked_add(FIRST_EPHEMERON as u64)?;
            let pairs = &mut self.pairs;
            let (memory, deadline) = (self.heap.memory, self.heap.context.deadline);
            each_part(memory, deadline, first, entry_bytes, &mut buffer, &mut |_, bytes| {
                let offsets = (0..bytes.len()).step_by(EPHEMERON_BYTES);
                pairs.extend(offsets.filter_map(|at| ephemeron_at(bytes, at)));
            })?;
            if self.pairs.len() > MAX_PAIRS || Instant::now() >= self.heap.context.deadline {
                return None;
            }
        }
        self.buffer = buffer;
        Some(())
    }
}

/// Whether a root refers weakly to an object, as compiled code does: V8 discards the code when the
/// object dies (`Code::IsWeakObjectInOptimizedCode` in `src/objects/code-inl.h`).
pub fn is_weak(heap: &Heap<'_>, shapes: &mut Shapes<'_>, root: Root, address: u64) -> bool {
    if !matches!(root, Root::Code(_)) {
        return false;
    }
    let number = heap.index.place_at(address).and_then(|_| shapes.type_at(address));
    number.is_some_and(|number| {
        let types = shapes.types();
        types.is_object(number) || types.name(number).is_some_and(|name| WEAK_IN_CODE.contains(&name))
    })
}

/// Reads a large object in parts, and calls `visit` with the offset and the bytes of each. `None`
/// if one cannot be read, or at the deadline.
pub fn each_part(
    memory: &dyn Memory,
    deadline: Instant,
    address: u64,
    bytes: u64,
    buffer: &mut ReadBuffer,
    visit: &mut dyn FnMut(usize, &[u8]),
) -> Option<()> {
    let mut offset = 0;
    while offset < bytes {
        // An object may be as large as all of memory.
        if Instant::now() >= deadline {
            return None;
        }
        let length = usize::try_from(bytes - offset).ok()?.min(buffer.len());
        let part = buffer.get_mut(..length)?;
        memory.read(address + offset, part).ok()?;
        visit(usize::try_from(offset).ok()?, part);
        offset += length as u64;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Memory that is zero everywhere.
    struct Zeros;

    impl Memory for Zeros {
        fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
            buffer.fill(0);
            buffer.len()
        }
    }

    #[test]
    fn a_large_object_is_read_until_the_deadline() {
        let mut buffer = ReadBuffer::new(64);
        let mut read = |deadline| {
            let mut parts = Vec::new();
            let visit = &mut |offset: usize, bytes: &[u8]| parts.push((offset, bytes.len()));
            let result = each_part(&Zeros, deadline, 1 << 20, 80, &mut buffer, visit);
            (result.is_some(), parts)
        };
        assert_eq!(read(Instant::now() + Duration::from_secs(3600)), (true, vec![(0, 64), (64, 16)]));
        assert_eq!(read(Instant::now()), (false, Vec::new()));
    }
}

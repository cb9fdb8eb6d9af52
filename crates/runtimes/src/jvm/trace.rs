//! Determines which objects are live: everything reachable from a root, as a full collection would
//! find it.
//!
//! The trace goes over the heap from one end to the other and back, a block at a time, and scans
//! objects that are marked and not yet scanned. Each place where an object may begin has a bit for
//! each of these states. So the trace reads memory in large pieces, and takes a thirty-second of
//! the heap's size for itself. Weak references retain nothing, soft and final ones do; classes are
//! not unloaded. A word that only looks like a reference retains its object, so the result may
//! exceed what is live. It falls short only if at this instant the only reference to an object is
//! in a vector register or a register of a thread asleep in the kernel, or points into the object.
//! If anything cannot be read, there is no result.

use std::rc::Rc;
use std::time::Instant;

use strandline_claims::facts::TypeFacts;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

use super::heap::{Area, AreaKind, Heap};
use super::klasses::{Classes, HEAD_BYTES, Headers, types_by_name};
use super::objects::ObjectStarts;
use super::roots::Roots;
use super::shapes::{OopFormat, OopRun, Shapes, StaticFields};
use super::view::View;
use crate::bits::{Bitmap, HeapIndex};

/// Places per block, the unit in which the heap is scanned.
const PLACES_PER_BLOCK: u64 = 8192;
/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Bytes of references scanned at once.
const MAX_RUN_BYTES: u64 = 64 << 10;
/// Objects between two checks of the deadline.
const OBJECTS_AT_ONCE: u32 = 256;

/// Result of a trace: live and dead objects.
pub struct Live {
    /// One bit for each live object.
    pub marks: Bitmap,
    /// One bit for each dead object.
    pub dead: Bitmap,
    /// Numbering of the bits.
    pub places: HeapIndex,
    /// Bytes of live objects.
    pub bytes: u64,
    /// Bytes of live objects, by the number of the area of the heap.
    pub area_bytes: Vec<u64>,
    /// The certainly live part. Other objects are reachable only from words that may be references.
    pub certain: CertainBytes,
    /// Live objects by class, most bytes first.
    pub types: Vec<TypeFacts>,
}

/// Bytes of certainly live objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertainBytes {
    /// Bytes in all areas.
    pub bytes: u64,
    /// Bytes by the number of the area of the heap.
    pub area_bytes: Vec<u64>,
}

/// An object of a traced heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedObject {
    /// Address of its first byte.
    pub start: u64,
    /// Whether no root leads to it.
    pub is_dead: bool,
}

impl Live {
    /// Returns the objects that begin in a range.
    pub fn objects(&self, start: u64, end: u64) -> impl Iterator<Item = TracedObject> + '_ {
        let count = end.saturating_sub(start) / self.places.granule_bytes();
        let first = self.places.place_at(start);
        let range = first.map_or(0..0, |first| first..first.saturating_add(count));
        let first = range.start;
        let words = first / 64..range.end.div_ceil(64);
        let places = words.flat_map(move |word| {
            let mut bits = self.marks.word(word) | self.dead.word(word);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        });
        let places = places.filter(move |place| range.contains(place));
        places.map(move |place| TracedObject {
            start: start + (place - first) * self.places.granule_bytes(),
            is_dead: self.dead.has(place),
        })
    }
}

/// Traces the heap; `None` if something cannot be read, or not in time. `weak_class` is the class
/// of weak references, `data` the static data of the JVM.
pub fn trace(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    starts: ObjectStarts,
    weak_class: Option<u64>,
    data: AddressRange,
) -> Option<Live> {
    let ObjectStarts { places, bits: starts } = starts;
    let headers = Headers::read(view)?;
    let oops = OopFormat::read(view)?;
    let marks = Bitmap::new(places.count())?;
    let dirty_blocks = vec![false; usize::try_from(places.count().div_ceil(PLACES_PER_BLOCK)).ok()?];
    let roots = Roots::new(context, *view, heap, oops, data)?;
    let mut trace = Trace {
        view: *view,
        classes: Classes::new(*view, headers),
        shapes: Shapes::new(*view, oops, weak_class),
        oops,
        marking: Marking { places: &places, marks, unscanned: starts, dirty_blocks },
        window: Window {
            memory: view.memory,
            bytes: ReadBuffer::new(WINDOW_BYTES),
            start: 0,
            read_bytes: 0,
            block: AddressRange::default(),
        },
        bytes: 0,
        areas: AreaBytes { areas: &heap.areas, last_index: 0, bytes: vec![0; heap.areas.len()] },
        deadline: context.deadline,
        objects: 0,
    };
    roots.each_certain(&mut |word| trace.marking.mark(word));
    // Objects from the class data archive are never collected.
    for area in heap.areas.iter().filter(|area| area.kind == AreaKind::Archive) {
        for (count, address) in (area.start..area.top).step_by(places.granule_bytes() as usize).enumerate() {
            if count.is_multiple_of(PLACES_PER_BLOCK as usize) {
                trace.check_deadline()?;
            }
            trace.marking.mark(address);
        }
    }
    trace.run()?;
    let certain = CertainBytes { bytes: trace.bytes, area_bytes: trace.areas.bytes.clone() };
    roots.each_uncertain(&mut |word| trace.marking.mark(word))?;
    trace.run()?;
    let types = types_by_name(std::iter::once(&trace.classes));
    let Marking { marks, unscanned: dead, .. } = trace.marking;
    let (bytes, area_bytes) = (trace.bytes, trace.areas.bytes);
    Some(Live { marks, dead, places, bytes, area_bytes, certain, types })
}

/// Which objects are marked, and which of them are scanned.
struct Marking<'a> {
    places: &'a HeapIndex,
    /// Objects that a root or a scanned object refers to.
    marks: Bitmap,
    /// Objects not yet scanned; at the end, the dead ones.
    unscanned: Bitmap,
    /// Blocks in which objects were marked since the last pass.
    dirty_blocks: Vec<bool>,
}

impl Marking<'_> {
    /// Marks the object at an address, if an unscanned one begins there. Null references are
    /// frequent, so they are not looked up.
    #[inline]
    fn mark(&mut self, address: u64) {
        if address != 0
            && let Some(place) = self.places.place_at(address)
            && self.unscanned.has(place)
            && self.marks.set(place)
            && let Some(is_dirty) = self.dirty_blocks.get_mut((place / PLACES_PER_BLOCK) as usize)
        {
            *is_dirty = true;
        }
    }

    /// Returns a bit for each of 64 places whose object is marked and unscanned; `index` is the
    /// number of the first place divided by 64.
    fn pending(&self, index: u64) -> u64 {
        self.marks.word(index) & self.unscanned.word(index)
    }
}

/// The state of a trace.
struct Trace<'a> {
    view: View<'a>,
    classes: Classes<'a>,
    shapes: Shapes<'a>,
    oops: OopFormat,
    marking: Marking<'a>,
    window: Window<'a>,
    /// Bytes of the objects scanned.
    bytes: u64,
    areas: AreaBytes<'a>,
    deadline: Instant,
    /// Number of objects scanned.
    objects: u32,
}

impl Trace<'_> {
    /// Repeats passes over the heap until no block has marked objects to scan. `None` if something
    /// cannot be read, which may hold references, or at the deadline.
    fn run(&mut self) -> Option<()> {
        let blocks = self.marking.dirty_blocks.len();
        let mut is_forward = true;
        while self.marking.dirty_blocks.contains(&true) {
            for step in 0..blocks {
                let block = if is_forward { step } else { blocks - 1 - step };
                if self.marking.dirty_blocks[block] {
                    self.check_deadline()?;
                    self.scan_block(block)?;
                }
            }
            is_forward = !is_forward;
        }
        Some(())
    }

    /// `None` if the deadline has passed.
    fn check_deadline(&self) -> Option<()> {
        (Instant::now() < self.deadline).then_some(())
    }

    /// Scans all marked objects in a block, those that the scan itself marks included. `None` if
    /// one of them cannot be scanned.
    fn scan_block(&mut self, block: usize) -> Option<()> {
        const BITMAP_WORDS: u64 = PLACES_PER_BLOCK / 64;
        let first = block as u64 * PLACES_PER_BLOCK;
        // The block may go on in another part of the heap, far away: that is read on demand.
        self.window.block = self.marking.places.range_of(first, PLACES_PER_BLOCK).unwrap_or_default();
        // A linked list may run up or down.
        let mut is_upward = true;
        loop {
            self.marking.dirty_blocks[block] = false;
            for step in 0..BITMAP_WORDS {
                let word = first / 64 + if is_upward { step } else { BITMAP_WORDS - 1 - step };
                let mut pending = self.marking.pending(word);
                while pending != 0 {
                    let place = word * 64 + u64::from(pending.trailing_zeros());
                    self.marking.unscanned.clear(place);
                    self.scan_object(place)?;
                    pending = self.marking.pending(word);
                }
            }
            if !self.marking.dirty_blocks[block] {
                return Some(());
            }
            is_upward = !is_upward;
        }
    }

    /// Scans an object: marks everything that it refers to. `None` if not all of it could be read,
    /// or not in time.
    fn scan_object(&mut self, place: u64) -> Option<()> {
        self.objects = self.objects.wrapping_add(1);
        if self.objects.is_multiple_of(OBJECTS_AT_ONCE) {
            self.check_deadline()?;
        }
        let AddressRange { start: address, end } = self.marking.places.range_to_part_end(place)?;
        let mut head = [0; HEAD_BYTES];
        let head_bytes = usize::try_from(end - address).ok()?.min(HEAD_BYTES);
        let bytes = self.window.bytes_at(address, head_bytes)?;
        head.get_mut(..head_bytes)?.copy_from_slice(bytes);
        let class = self.classes.class_of(&head)?;
        let size = self.classes.size(class, address, &head).filter(|&size| size <= end - address)?;
        self.classes.count(class, size);
        self.bytes += size;
        self.areas.add(address, size);
        let shape = Rc::clone(self.shapes.map_of(&self.classes, class)?);
        let object = AddressRange::sized(address, size);
        for &OopRun { offset, count } in &shape.runs {
            self.mark_references(object, offset, count)?;
        }
        if let Some(elements) = shape.elements {
            self.mark_references(object, elements, self.classes.array_length(&head))?;
        }
        if let Some(StaticFields { count_at, first }) = shape.statics {
            let count = u64::from(self.view.half_word(address.checked_add(count_at)?)?);
            self.mark_references(object, first, count)?;
        }
        if let Some(first) = shape.frames {
            self.mark_words(address.checked_add(first)?, address + size)?;
        }
        Some(())
    }

    /// Marks the objects that words may refer to, as references of either size.
    fn mark_words(&mut self, start: u64, end: u64) -> Option<()> {
        let wide = OopFormat { bytes: 8, base: 0, shift: 0 };
        for oops in [self.oops, wide] {
            self.mark_references_as(oops, start, end.checked_sub(start)? / oops.bytes)?;
        }
        Some(())
    }

    /// Marks the objects that `count` references at an offset of an object refer to; `None` if they
    /// reach beyond its end.
    fn mark_references(&mut self, object: AddressRange, offset: u64, count: u64) -> Option<()> {
        offset.checked_add(count.checked_mul(self.oops.bytes)?).filter(|&end| end <= object.len())?;
        self.mark_references_as(self.oops, object.start + offset, count)
    }

    /// Marks the objects that `count` references of this format at `at` refer to.
    fn mark_references_as(&mut self, oops: OopFormat, at: u64, count: u64) -> Option<()> {
        let (mut at, end) = (at, at.checked_add(count.checked_mul(oops.bytes)?)?);
        while at < end {
            let bytes = (end - at).min(MAX_RUN_BYTES);
            let window = self.window.bytes_at(at, bytes as usize)?;
            let marking = &mut self.marking;
            match oops.bytes {
                4 => {
                    let narrow = window.as_chunks::<4>().0.iter();
                    narrow.for_each(|narrow| marking.mark(oops.wide(u32::from_le_bytes(*narrow))));
                }
                _ => {
                    window.as_chunks::<8>().0.iter().for_each(|word| marking.mark(u64::from_le_bytes(*word)))
                }
            }
            at += bytes;
            if bytes == MAX_RUN_BYTES {
                self.check_deadline()?;
            }
        }
        Some(())
    }
}

/// Bytes of live objects, by area.
struct AreaBytes<'a> {
    areas: &'a [Area],
    /// Index of the area of the last object, which usually contains the next one too.
    last_index: usize,
    bytes: Vec<u64>,
}

impl AreaBytes<'_> {
    /// Adds an object to the bytes of its area.
    fn add(&mut self, address: u64, size: u64) {
        if !self.areas.get(self.last_index).is_some_and(|area| (area.start..area.end).contains(&address)) {
            self.last_index = self.areas.partition_point(|area| area.end <= address);
        }
        if let Some(bytes) = self.bytes.get_mut(self.last_index) {
            *bytes += size;
        }
    }
}

/// Memory read last.
struct Window<'a> {
    memory: &'a dyn Memory,
    bytes: ReadBuffer,
    /// Address of the first byte.
    start: u64,
    /// Number of bytes that could be read.
    read_bytes: usize,
    /// The current block, which is read at once; other memory is read only on demand.
    block: AddressRange,
}

impl Window<'_> {
    /// Returns the `bytes` bytes at an address, at most a quarter of the window; `None` if they
    /// cannot be read.
    fn bytes_at(&mut self, address: u64, bytes: usize) -> Option<&[u8]> {
        let block = self.block;
        if !self.has(address, bytes) && block.contains(address) {
            // A block of widely aligned objects is larger than the window.
            let half_window = WINDOW_BYTES as u64 / 2;
            let start = block.start + (address - block.start) / half_window * half_window;
            self.read(start, (block.end - start).saturating_add(HEAD_BYTES as u64));
        }
        if !self.has(address, bytes) {
            self.read(address, bytes as u64);
        }
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(offset..offset + bytes).filter(|_| offset + bytes <= self.read_bytes)
    }

    /// Whether the window has these bytes.
    fn has(&self, address: u64, bytes: usize) -> bool {
        let end = address.checked_sub(self.start).and_then(|offset| offset.checked_add(bytes as u64));
        end.is_some_and(|end| end <= self.read_bytes as u64)
    }

    /// Moves the window to an address, and reads as many of `bytes` as fit into it.
    fn read(&mut self, start: u64, bytes: u64) {
        let length = usize::try_from(bytes).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES);
        (self.start, self.read_bytes) = (start, self.memory.read_some(start, &mut self.bytes[..length]));
    }
}

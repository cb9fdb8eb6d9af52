//! Walks the objects of areas without gaps, and counts them by class.
//!
//! Dead objects are included, as in `jcmd PID GC.class_histogram -all`.

use std::time::Instant;

use strandline_claims::facts::TypeFacts;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;

use super::heap::{Area, AreaKind};
use super::klasses::{Classes, HEAD_BYTES, Headers, types_by_name};
use super::threads::Tlab;
use super::view::View;
use crate::bits::{Bitmap, HeapIndex};
use crate::work;

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Limit on direct buffers of one worker.
const MAX_DIRECT_BUFFERS: usize = 1 << 20;
/// Lowest two bits of the mark word of an object that has moved (`markWord::marked_value`).
const MARKED: u8 = 3;
/// Objects between two checks of the deadline.
const OBJECTS_AT_ONCE: u32 = 1024;

/// Result of a census.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Objects by class, most bytes first.
    pub types: Vec<TypeFacts>,
    /// Bytes of areas that could not be parsed as objects and are not counted.
    pub unread_bytes: u64,
    /// Address of the class of weak references, if it has objects.
    pub weak_class: Option<u64>,
    /// The direct buffers that are not freed.
    pub direct_buffers: Vec<DirectBuffer>,
    /// Whether direct buffers are missing: those beyond the limit, or those that cannot be read.
    pub has_left_out_buffers: bool,
    /// Whether an object has moved: a concurrent collection is under way.
    pub has_moved: bool,
}

/// A direct buffer (java.nio).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectBuffer {
    /// Address of its memory.
    pub address: u64,
    /// Bytes of its memory.
    pub bytes: u64,
}

/// Where objects begin.
pub struct ObjectStarts {
    /// Numbers of the places where an object may begin.
    pub places: HeapIndex,
    /// A bit for each place, set if an object begins there.
    pub bits: Bitmap,
}

/// Counts the objects of all areas, and sets a bit in `starts` for each. `None` if the format of
/// their headers cannot be read.
pub fn count(
    context: &Context<'_>,
    view: &View<'_>,
    areas: &[Area],
    buffers: &[Tlab],
    starts: Option<&ObjectStarts>,
) -> Option<Census> {
    let headers = Headers::read(view)?;
    let areas: Vec<&Area> =
        areas.iter().filter(|area| area.kind != AreaKind::Free && area.start < area.top).collect();
    let new_walk = || Walk::new(view, headers, buffers, starts, context.deadline);
    let walk_area = |walk: &mut Walk<'_>, index: usize| {
        walk.unread_bytes += walk.count_area(areas[index]);
        (context.progress)(areas[index].top - areas[index].start);
    };
    let (walks, unread_areas) =
        work::run_jobs(context.workers, areas.len(), context.deadline, new_walk, walk_area);
    let mut census = Census {
        types: types_by_name(walks.iter().map(|walk| &walk.classes)),
        unread_bytes: walks.iter().map(|walk| walk.unread_bytes).sum(),
        has_moved: walks.iter().any(|walk| walk.has_moved),
        direct_buffers: walks.iter().flat_map(|walk| walk.direct_buffers.iter().copied()).collect(),
        has_left_out_buffers: walks.iter().any(|walk| walk.has_left_out_buffers),
        weak_class: walks.iter().find_map(|walk| walk.classes.find_name("java.lang.ref.WeakReference")),
    };
    if unread_areas > 0 {
        let counted_bytes: u64 = census.types.iter().map(|facts| facts.bytes).sum();
        let all_bytes: u64 = areas.iter().map(|area| area.top - area.start).sum();
        census.unread_bytes = census.unread_bytes.max(all_bytes.saturating_sub(counted_bytes));
    }
    Some(census)
}

/// A worker's walk.
struct Walk<'a> {
    view: View<'a>,
    classes: Classes<'a>,
    buffers: &'a [Tlab],
    starts: Option<&'a ObjectStarts>,
    direct_buffers: Vec<DirectBuffer>,
    has_left_out_buffers: bool,
    /// Bytes that were not understood as objects.
    unread_bytes: u64,
    has_moved: bool,
    deadline: Instant,
    /// Memory read last.
    window: ReadBuffer,
    /// Address of the first byte of the window.
    window_start: u64,
    /// Bytes of the window that could be read.
    window_bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(
        view: &View<'a>,
        headers: Headers,
        buffers: &'a [Tlab],
        starts: Option<&'a ObjectStarts>,
        deadline: Instant,
    ) -> Self {
        Self {
            view: *view,
            classes: Classes::new(*view, headers),
            buffers,
            starts,
            direct_buffers: Vec::new(),
            has_left_out_buffers: false,
            unread_bytes: 0,
            has_moved: false,
            deadline,
            window: ReadBuffer::new(WINDOW_BYTES),
            window_start: 0,
            window_bytes: 0,
        }
    }

    /// Counts the objects of an area. Returns the number of bytes that were not understood.
    fn count_area(&mut self, area: &Area) -> u64 {
        let mut unread_bytes = 0;
        let mut at = area.start;
        let mut steps = 0_u32;
        let mut next_buffer = self.buffers.partition_point(|buffer| buffer.end <= at);
        while at < area.top {
            while self.buffers.get(next_buffer).is_some_and(|buffer| buffer.end <= at) {
                next_buffer += 1;
            }
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(OBJECTS_AT_ONCE) && Instant::now() >= self.deadline {
                return unread_bytes + (area.top - at);
            }
            let buffer = self.buffers.get(next_buffer).copied();
            if let Some(buffer) = buffer.filter(|buffer| buffer.top <= at) {
                at = buffer.end;
                continue;
            }
            let size = self.count_object(at, area.top);
            match size.and_then(|size| at.checked_add(size)).filter(|&end| end <= area.top) {
                Some(end) => at = end,
                None => {
                    let next = next_object(at, buffer, area.top);
                    unread_bytes += next - at;
                    at = next;
                }
            }
        }
        unread_bytes
    }

    /// Counts the object at `at`, in an area whose objects end at `end`. Returns its bytes; `None`
    /// if it was not understood.
    fn count_object(&mut self, at: u64, end: u64) -> Option<u64> {
        let head = self.head(at, end)?;
        let class = self.classes.class_of(&head)?;
        let bytes = self.classes.size(class, at, &head).filter(|&bytes| bytes <= end - at)?;
        self.classes.count(class, bytes);
        if self.classes.is_deallocator(class) {
            self.add_direct_buffer(at);
        }
        // The other bits of a mark word with this value are the new address.
        self.has_moved |= head[0] & MARKED == MARKED;
        if let Some(starts) = self.starts
            && let Some(place) = starts.places.place_at(at)
        {
            starts.bits.set(place);
        }
        Some(bytes)
    }

    /// Adds the direct buffer that the object at `at` frees, unless it is freed already.
    fn add_direct_buffer(&mut self, at: u64) {
        let first = at.saturating_add(self.classes.headers().first_long_offset());
        match self.view.word(first).zip(self.view.word(first.saturating_add(8))) {
            // `address` and `size`; the address is 0 once the buffer is freed.
            Some((0, _) | (_, 0)) => {}
            Some((address, bytes)) if self.direct_buffers.len() < MAX_DIRECT_BUFFERS => {
                self.direct_buffers.push(DirectBuffer { address, bytes });
            }
            _ => self.has_left_out_buffers = true,
        }
    }

    /// Returns the first bytes of the object at `at`; `end` is that of the area's objects.
    fn head(&mut self, at: u64, end: u64) -> Option<[u8; HEAD_BYTES]> {
        let offset = at.checked_sub(self.window_start).and_then(|offset| usize::try_from(offset).ok());
        let offset = match offset.filter(|offset| offset + HEAD_BYTES <= self.window_bytes) {
            Some(offset) => offset,
            None => {
                let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(WINDOW_BYTES);
                self.window_start = at;
                self.window_bytes = self.view.memory.read_some(at, self.window.get_mut(..length)?);
                0
            }
        };
        let mut head = [0; HEAD_BYTES];
        // The last object may be shorter: eight bytes, if its class is in the mark word.
        let bytes = self.window.get(offset..self.window_bytes.min(offset + HEAD_BYTES))?;
        if bytes.len() < 8 {
            return None;
        }
        head.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(head)
    }
}

/// Returns where to go on after bytes that are no object; `buffer` is the next allocation buffer. A
/// thread may have been stopped after it reserved memory and before it wrote the object's header:
/// in its buffer that memory is the end of the used part, elsewhere it ends at the next buffer.
fn next_object(at: u64, buffer: Option<Tlab>, top: u64) -> u64 {
    let next = buffer.map_or(top, |buffer| if buffer.start > at { buffer.start } else { buffer.top });
    next.max(at.saturating_add(8)).min(top)
}

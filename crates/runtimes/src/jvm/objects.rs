//! Walks the objects of areas without gaps, and counts them by class.
//!
//! Dead objects are included, as in `jcmd PID GC.class_histogram -all`.

use std::time::Instant;

use strandline_claims::facts::TypeFacts;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;

use super::heap::{Area, Kind};
use super::klasses::{Classes, HEAD_BYTES, Headers, types};
use super::threads::Tlab;
use super::view::View;
use crate::bits::{Bitmap, HeapIndex};
use crate::work;

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Limit on direct buffers of one worker.
const MAX_DIRECT: usize = 1 << 20;
/// Objects between two checks of the deadline.
const OBJECTS_PER_DEADLINE_CHECK: u32 = 1024;

/// Result of a census.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Objects by class, most bytes first.
    pub types: Vec<TypeFacts>,
    /// Bytes of areas that could not be parsed as objects and are not counted.
    pub unread_bytes: u64,
    /// Address of the class of weak references, if it has objects.
    pub weak: Option<u64>,
    /// Direct buffers.
    pub direct: Vec<DirectBuffer>,
    /// Whether an object has moved: a concurrent collection is under way.
    pub has_moved: bool,
}

/// A direct buffer (java.nio).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectBuffer {
    /// Address of its memory.
    pub address: u64,
    /// Size.
    pub bytes: u64,
}

/// Counts the objects of all areas, and sets a bit in `starts` for each.
pub fn count(
    context: &Context<'_>,
    view: &View<'_>,
    areas: &[Area],
    buffers: &[Tlab],
    starts: Option<(&HeapIndex, &Bitmap)>,
) -> Option<Census> {
    let headers = Headers::read(view)?;
    let areas: Vec<&Area> =
        areas.iter().filter(|area| area.kind != Kind::Free && area.start < area.top).collect();
    let state = || (Walk::new(view, headers, buffers, starts, context.deadline), 0);
    let job = |(walk, unread): &mut (Walk<'_>, u64), index: usize| {
        *unread += walk.area(areas[index]);
        (context.progress)(areas[index].top - areas[index].start);
    };
    let (walks, left) = work::run_jobs(context.workers, areas.len(), context.deadline, state, job);
    let mut census = Census {
        types: types(walks.iter().map(|(walk, _)| &walk.classes)),
        unread_bytes: walks.iter().map(|(_, unread)| unread).sum(),
        has_moved: walks.iter().any(|(walk, _)| walk.has_moved),
        direct: walks.iter().flat_map(|(walk, _)| walk.direct.iter().copied()).collect(),
        weak: walks.iter().find_map(|(walk, _)| walk.classes.find_name("java.lang.ref.WeakReference")),
    };
    if left > 0 {
        let done: u64 = census.types.iter().map(|one| one.bytes).sum();
        let all: u64 = areas.iter().map(|area| area.top - area.start).sum();
        census.unread_bytes = census.unread_bytes.max(all.saturating_sub(done));
    }
    Some(census)
}

/// A worker's walk.
struct Walk<'a> {
    view: View<'a>,
    classes: Classes<'a>,
    buffers: &'a [Tlab],
    starts: Option<(&'a HeapIndex, &'a Bitmap)>,
    direct: Vec<DirectBuffer>,
    window: ReadBuffer,
    deadline: Instant,
    has_moved: bool,
    /// Start of the window, and bytes read of it.
    at: u64,
    got: usize,
}

impl<'a> Walk<'a> {
    fn new(
        view: &View<'a>,
        headers: Headers,
        buffers: &'a [Tlab],
        starts: Option<(&'a HeapIndex, &'a Bitmap)>,
        deadline: Instant,
    ) -> Self {
        Self {
            view: *view,
            classes: Classes::new(*view, headers),
            buffers,
            starts,
            deadline,
            has_moved: false,
            direct: Vec::new(),
            window: ReadBuffer::new(WINDOW_BYTES),
            at: 0,
            got: 0,
        }
    }

    /// Walks the objects of an area. Returns the number of bytes that are not understood.
    fn area(&mut self, area: &Area) -> u64 {
        let mut unread = 0;
        let mut at = area.start;
        let mut steps = 0_u32;
        let mut next = self.buffers.partition_point(|buffer| buffer.end <= at);
        while at < area.top {
            while self.buffers.get(next).is_some_and(|buffer| buffer.end <= at) {
                next += 1;
            }
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(OBJECTS_PER_DEADLINE_CHECK) && Instant::now() >= self.deadline {
                return unread + (area.top - at);
            }
            let buffer = self.buffers.get(next).copied();
            if let Some(buffer) = buffer.filter(|buffer| buffer.top <= at) {
                at = buffer.end;
                continue;
            }
            let size = self.object(at, area.top);
            match size.and_then(|size| at.checked_add(size)).filter(|&end| end <= area.top) {
                Some(end) => at = end,
                None => {
                    let to = resume(at, buffer, area.top);
                    unread += to - at;
                    at = to;
                }
            }
        }
        unread
    }

    /// Counts the object at `at`. Returns its size.
    fn object(&mut self, at: u64, end: u64) -> Option<u64> {
        let head = self.head(at, end)?;
        let class = self.classes.class_of(&head)?;
        let bytes = self.classes.size(class, at, &head).filter(|&bytes| bytes <= end - at)?;
        self.classes.count(class, bytes);
        if self.classes.is_deallocator(class) && self.direct.len() < MAX_DIRECT {
            // `address` and `size`; the address is 0 once the buffer is freed.
            let first = at.checked_add(self.classes.headers().first_long())?;
            let buffer = self.view.word(first).zip(self.view.word(first.checked_add(8)?));
            let buffer = buffer.filter(|&(address, bytes)| address != 0 && bytes > 0);
            self.direct.extend(buffer.map(|(address, bytes)| DirectBuffer { address, bytes }));
        }
        // `markWord::marked_value`: the other bits are the new address.
        self.has_moved |= head[0] & 3 == 3;
        if let Some((places, starts)) = self.starts
            && let Some(place) = places.index_of(at)
        {
            starts.set(place);
        }
        Some(bytes)
    }

    /// Returns the first bytes of the object at `at`.
    fn head(&mut self, at: u64, end: u64) -> Option<[u8; HEAD_BYTES]> {
        let skip = at.checked_sub(self.at).and_then(|skip| usize::try_from(skip).ok());
        let skip = match skip.filter(|skip| skip + HEAD_BYTES <= self.got) {
            Some(skip) => skip,
            None => {
                let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(WINDOW_BYTES);
                self.at = at;
                self.got = self.view.memory.read_some(at, self.window.get_mut(..most)?);
                0
            }
        };
        let mut head = [0; HEAD_BYTES];
        // The last object may be shorter: eight bytes, if its class is in the mark word.
        let have = self.window.get(skip..self.got.min(skip + HEAD_BYTES)).filter(|have| have.len() >= 8)?;
        head.get_mut(..have.len())?.copy_from_slice(have);
        Some(head)
    }
}

/// Returns where to continue after bytes that are no object. A thread may have been stopped between
/// reserving memory and writing the object's header: in its buffer that is at the end of the used
/// part, else it is between buffers.
fn resume(at: u64, buffer: Option<Tlab>, top: u64) -> u64 {
    let to = buffer.map_or(top, |buffer| if buffer.start > at { buffer.start } else { buffer.top });
    to.max(at.saturating_add(8)).min(top)
}

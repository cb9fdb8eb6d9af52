//! A long path to one object, searched from the global objects on.
//!
//! The search backwards in `path` visits all objects for each step, which takes too long for the
//! last node of a linked list. This one visits each object once, in order of its distance, and
//! notes from which object it was reached.

use std::collections::HashSet;
use std::time::Instant;

use super::layout::PAGE_ALIGNMENT;
use super::path::{NoPath, Search};
use super::references::References;
use super::roots::Roots;
use super::shapes::Shapes;
use super::trace::{self, each_part};
use crate::bits::Bitmap;
use strandline_process::buffer::ReadBuffer;

/// Maximum objects that are reached: each takes 8 bytes.
const MAX_REACHED: usize = 1 << 24;
/// Objects between two checks of the deadline.
const OBJECTS_AT_ONCE: usize = 1 << 12;
/// Bytes of an object that are read first.
const FIRST_BYTES: usize = 64;
/// Bytes that are read first of an object whose end is where the next one begins.
const FIRST_SCANNED_BYTES: usize = 4096;
/// [`ReachedObject::holder`] of an object that was reached from a root: an `Option` would take four
/// more bytes for each of millions of objects.
const NO_HOLDER: u32 = u32::MAX;

/// An object that was reached.
#[derive(Clone, Copy)]
struct ReachedObject {
    /// The number of its place.
    place: u32,
    /// The number of the object that holds it; [`NO_HOLDER`] if a root does.
    holder: u32,
}

/// A search from roots to one object.
struct Forward<'a> {
    search: &'a Search<'a>,
    /// The objects that were reached, in order; their index is their number.
    reached: Vec<ReachedObject>,
    /// A bit for each place, set if its object was reached.
    is_reached: Bitmap,
    /// The place of the object that is searched for.
    wanted_place: u64,
    /// Its number, or why it was not reached.
    wanted_number: Result<u32, NoPath>,
    buffer: ReadBuffer,
}

/// The objects on a path.
pub struct Chain {
    /// Their addresses, from the first on.
    pub objects: Vec<u64>,
    /// Whether it begins at one of the anchors; if not, at an object that a root refers to.
    pub begins_at_anchor: bool,
}

/// Returns the objects on a path to `sample` from one of `anchors`, or else from a root.
///
/// # Errors
/// Why there is no path.
pub fn chain(
    search: &Search<'_>,
    shapes: &mut Shapes<'_>,
    anchors: &HashSet<u64>,
    sample: u64,
) -> Result<Chain, NoPath> {
    let index = search.heap.index;
    let wanted_place = index.place_at(sample).ok_or(NoPath::NoRoot)?.number;
    if index.places >= u64::from(NO_HOLDER) {
        return Err(NoPath::TooFar);
    }
    let is_reached = Bitmap::new(index.places).ok_or(NoPath::TooFar)?;
    let buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
    let wanted_number = Err(NoPath::NoRoot);
    let mut forward =
        Forward { search, reached: Vec::new(), is_reached, wanted_place, wanted_number, buffer };
    for address in anchors {
        forward.reach(*address, NO_HOLDER);
    }
    forward.visit_from(shapes, 0)?;
    let reached_from_anchors = forward.reached.len();
    // What an uncertain root reaches may be reached by a stale word only.
    for each_root in [Roots::each_certain, Roots::each_uncertain] {
        if forward.wanted_number.is_ok() {
            break;
        }
        let next = forward.reached.len();
        each_root(search.roots, &mut |root, address| {
            if !trace::is_weak(&search.heap, shapes, root, address) {
                forward.reach(address, NO_HOLDER);
            }
            forward.wanted_number.is_err()
        })
        .ok_or(NoPath::Incomplete)?;
        forward.visit_from(shapes, next)?;
    }
    let mut number = forward.wanted_number?;
    let mut objects = Vec::new();
    let mut first = number;
    while let Some(reached) = forward.reached.get(number as usize) {
        objects.push(index.address_of(u64::from(reached.place)).ok_or(NoPath::NoRoot)?);
        (first, number) = (number, reached.holder);
    }
    objects.reverse();
    Ok(Chain { objects, begins_at_anchor: (first as usize) < reached_from_anchors })
}

impl Forward<'_> {
    /// Adds the object at an address, if it lives and was not reached before.
    fn reach(&mut self, address: u64, holder: u32) {
        let Some(place) = self.search.heap.index.place_at(address) else { return };
        let place = place.number;
        if !self.search.live.marks.has(place) || !self.is_reached.set(place) {
            return;
        }
        if place == self.wanted_place {
            self.wanted_number = Ok(self.reached.len() as u32);
        }
        // The number of places is below 32 bits (`chain`).
        self.reached.push(ReachedObject { place: place as u32, holder });
    }

    /// Visits the objects from the number `next` on, until the one that is searched for is reached.
    fn visit_from(&mut self, shapes: &mut Shapes<'_>, mut next: usize) -> Result<(), NoPath> {
        while self.wanted_number.is_err()
            && let Some(reached) = self.reached.get(next).copied()
        {
            if next.is_multiple_of(OBJECTS_AT_ONCE) && Instant::now() >= self.search.heap.context.deadline {
                return Err(NoPath::Incomplete);
            }
            if self.reached.len() > MAX_REACHED {
                return Err(NoPath::TooFar);
            }
            if self.visit(shapes, u64::from(reached.place), next as u32).is_none() {
                self.wanted_number = self.wanted_number.or(Err(NoPath::Incomplete));
            }
            next += 1;
        }
        Ok(())
    }

    /// Reaches what an object refers to. `None` if it cannot be read.
    fn visit(&mut self, shapes: &mut Shapes<'_>, place: u64, number: u32) -> Option<()> {
        let search = self.search;
        let address = search.heap.index.address_of(place)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut reach = |_, target| self.reach(target, number);
        let result = references(search, shapes, address, &mut buffer, &mut reach);
        self.buffer = buffer;
        result
    }
}

/// Calls `visit` with the offset and the target of each reference of the object at an address.
/// `None` if it cannot be read.
pub fn references(
    search: &Search<'_>,
    shapes: &mut Shapes<'_>,
    address: u64,
    buffer: &mut ReadBuffer,
    visit: &mut dyn FnMut(usize, u64),
) -> Option<()> {
    let shape = shapes.of_object(address)?;
    if shape.references == References::Class {
        visit(0, Shapes::object_at(shape.map)?);
        return Some(());
    }
    let (memory, deadline) = (search.heap.memory, search.heap.context.deadline);
    let place = search.heap.index.place_at(address)?;
    let max_bytes = search.heap.index.pages.get(place.page)?.page.area_end.checked_sub(address)?;
    let first_bytes = if shape.is_sized_by_scan() { FIRST_SCANNED_BYTES } else { FIRST_BYTES };
    let first_bytes = first_bytes.min(usize::try_from(max_bytes).ok()?);
    buffer.resize(first_bytes);
    // The page after a short object may not be resident.
    let first_bytes = memory.read_some(address, buffer);
    let bytes = buffer.get(..first_bytes)?;
    let size = shapes.head(bytes)?.size.min(max_bytes);
    search.each_reference(shape, 0, bytes.get(..first_bytes.min(usize::try_from(size).ok()?))?, visit);
    if size <= first_bytes as u64 {
        return Some(());
    }
    let unread_offset = shape.references.start_of_unread(first_bytes as u64);
    buffer.resize(PAGE_ALIGNMENT as usize);
    let (start, bytes) = (address + unread_offset, size - unread_offset);
    each_part(memory, deadline, start, bytes, buffer, &mut |offset, bytes| {
        search.each_reference(shape, unread_offset as usize + offset, bytes, visit);
    })
}

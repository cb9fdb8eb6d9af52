//! Walks all spans in address order, through the page map.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::SpanState;
use super::locate::{Heap, read_span};
use crate::radix::{self, UnclaimedMemory, Walk};
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_claims::range::page_of;
use strandline_process::range::{AddressRange, RangeSet};

/// Maximum number of pointers that are kept; with more, thread caches may be missed.
const MAX_OUTSIDE_POINTERS: usize = 1 << 16;

/// A span.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The first free object, if it is divided into objects.
    pub first_free_object: u64,
    /// Number of objects that are not in its free list.
    pub allocated_objects: u16,
    /// Its size class; `None` if it is not divided into objects.
    pub class: Option<u8>,
    /// Its state.
    pub state: SpanState,
}

impl Span {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// A list of spans of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpanList {
    /// The class.
    pub class: u8,
    /// Address of its head.
    pub head: u64,
}

/// All spans of one heap.
#[derive(Default)]
pub struct Spans {
    /// The spans, in address order, without overlap.
    pub all: Vec<Span>,
    /// Outcome of the walk.
    pub walk: Walk,
    /// Number of spans per class.
    pub spans_per_class: BTreeMap<u8, u64>,
    /// Lists of spans, whose heads are in static data.
    pub lists: BTreeSet<SpanList>,
    /// Pages where span structures begin; a structure may extend into the next page.
    pub structure_pages: BTreeSet<u64>,
    /// Pointers in static data to memory outside all spans: to tcmalloc's own structures or their
    /// ends.
    pub outside_pointers: OutsidePointers,
}

/// Distinct pointers to memory outside all spans.
#[derive(Default)]
pub struct OutsidePointers {
    /// The addresses that they point to.
    pub targets: BTreeSet<u64>,
    /// Address of the first pointer that was left out, after [`MAX_OUTSIDE_POINTERS`] others.
    pub first_left_out: Option<u64>,
}

/// Walks the spans of `heap` outside `taken` (claimed by others).
pub fn walk(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Spans {
    let page_shift = heap.map_layout.page_shift;
    let mut spans = Spans::default();
    let mut unclaimed = UnclaimedMemory::new(context, taken);
    let mut last_structure_page = None;
    let walk = radix::walk(context, &heap.leaves, heap.map_layout, &mut |cache, page, entry| {
        let fields = read_span(cache, entry)?;
        let range = fields.range(page_shift)?;
        let AddressRange { start, end } = range;
        if start != page || !unclaimed.contains(range) {
            return None;
        }
        if let Some(class) = fields.class.filter(|_| fields.state == SpanState::InUse) {
            // A span of objects has the number of pages that its class defines.
            if heap.classes.get(class)?.span_pages != fields.pages {
                return None;
            }
            *spans.spans_per_class.entry(class).or_default() += 1;
            if heap.data.contains(fields.previous_span) {
                spans.lists.insert(SpanList { class, head: fields.previous_span });
            }
        }
        let structure_page = page_of(entry);
        if last_structure_page.replace(structure_page) != Some(structure_page) {
            spans.structure_pages.insert(structure_page);
        }
        (context.progress)(end - start);
        spans.all.push(Span {
            start,
            end,
            first_free_object: fields.first_free_object,
            allocated_objects: fields.allocated_objects,
            class: fields.class,
            state: fields.state,
        });
        Some(end)
    });
    spans.walk = walk;
    spans.outside_pointers = outside_pointers(context, heap, &spans);
    spans
}

/// Collects the pointers in static data to memory outside all spans.
fn outside_pointers(context: &Context<'_>, heap: &Heap, spans: &Spans) -> OutsidePointers {
    let mut pointers = OutsidePointers::default();
    each_word(context, heap.data, &mut |at, word| {
        let is_outside = !spans.contains(word) && context.space.find(word).is_some_and(is_mapped_memory);
        !is_outside || pointers.add(at, word)
    });
    pointers
}

impl OutsidePointers {
    /// Adds the pointer at `at`. Returns whether there was room for it.
    fn add(&mut self, at: u64, target: u64) -> bool {
        let has_room = self.targets.len() < MAX_OUTSIDE_POINTERS || self.targets.contains(&target);
        if has_room {
            self.targets.insert(target);
        } else {
            self.first_left_out = Some(at);
        }
        has_room
    }
}

impl Spans {
    /// Whether a span contains `address`.
    pub fn contains(&self, address: u64) -> bool {
        let next = self.all.partition_point(|span| span.end <= address);
        self.all.get(next).is_some_and(|span| span.start <= address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_pointer_beyond_the_limit_is_noted() {
        let mut pointers = OutsidePointers::default();
        let limit = MAX_OUTSIDE_POINTERS as u64;
        assert!((0..limit).all(|index| pointers.add(8 * index, index)));
        assert!(pointers.add(8 * limit, 0), "the target is in the set already");
        assert_eq!(pointers.first_left_out, None);
        assert!(!pointers.add(8 * limit + 8, limit));
        assert_eq!((pointers.targets.len() as u64, pointers.first_left_out), (limit, Some(8 * limit + 8)));
    }
}

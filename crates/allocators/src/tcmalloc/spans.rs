//! Goes over all spans in address order: what the page map says of each page that tcmalloc has.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::Location;
use super::locate::{Heap, read_span};
use crate::radix::{self, Free, Walk};
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_claims::range::page_of;

/// Words of static data that are kept.
const MAX_BESIDE: usize = 1 << 16;

/// A span.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// The first free object of one that is cut into objects.
    pub objects: u64,
    /// Objects that are not in its list.
    pub taken: u16,
    /// Its size class, 0 for none.
    pub class: u8,
    /// Where it is.
    pub location: Location,
}

/// All of them.
#[derive(Default)]
pub struct Spans {
    /// In address order, without overlap.
    pub all: Vec<Span>,
    /// What became of the walk over them.
    pub walk: Walk,
    /// How many spans each class has.
    pub of_class: BTreeMap<u8, u64>,
    /// Where in tcmalloc's static data lists of a class begin.
    pub lists: BTreeSet<(u8, u64)>,
    /// The pages that hold structures of spans.
    pub structures: BTreeSet<u64>,
    /// Where tcmalloc's static data leads to beside them: its own structures, and where these end.
    pub beside: BTreeSet<u64>,
}

/// Goes over the spans of `heap`, where `taken` (in address order) is claimed by others.
pub fn walk(context: &Context<'_>, heap: &Heap, taken: &[(u64, u64)]) -> Spans {
    let shift = heap.shape.page_shift;
    let mut spans = Spans::default();
    let mut free = Free::new(context, taken);
    let mut last = 0;
    let walk = radix::walk(context, &heap.leaves, heap.shape, &mut |cache, page, entry| {
        let words = read_span(cache, entry)?;
        let (start, end) = words.range(shift)?;
        if start != page || !free.contains(start, end) {
            return None;
        }
        let class = usize::from(words.class);
        if words.location == Location::InUse && class > 0 {
            // Each span of objects has as many pages as its class says.
            if heap.classes.pages.get(class) != Some(&words.pages) {
                return None;
            }
            *spans.of_class.entry(words.class).or_default() += 1;
            if (heap.data.0..heap.data.1).contains(&words.previous) {
                spans.lists.insert((words.class, words.previous));
            }
        }
        if page_of(entry) != last {
            last = page_of(entry);
            spans.structures.insert(last);
        }
        (context.progress)(end - start);
        let (objects, taken) = (words.objects, words.taken);
        spans.all.push(Span { start, end, objects, taken, class: words.class, location: words.location });
        Some(end)
    });
    spans.walk = walk;
    let mut beside = BTreeSet::new();
    each_word(context, heap.data.0, heap.data.1, &mut |_, word| {
        if !spans.contain(word) && context.space.find(word).is_some_and(is_mapped_memory) {
            beside.insert(word);
        }
        beside.len() < MAX_BESIDE
    });
    spans.beside = beside;
    spans
}

impl Spans {
    /// Whether one of them has `address`.
    pub fn contain(&self, address: u64) -> bool {
        let next = self.all.partition_point(|span| span.end <= address);
        self.all.get(next).is_some_and(|span| span.start <= address)
    }
}

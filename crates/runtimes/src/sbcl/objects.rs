//! Objects in SBCL's memory: their kind and size by their first words, and their start addresses.

use super::heap::DynamicSpace;
use super::spaces::{Space, SpaceKind, used_end};
use super::store::{HeapCopy, UNIT_BYTES};
use super::threads::Region;
use crate::sbcl::layout::{
    GC_PAGE_BYTES, Layout, OBJECT_TYPES, ObjectKind, SINGLE_FLOAT, UNBOUND_MARKER, is_pointer,
};

/// Kinds and names of objects by the lowest byte of their first word.
pub struct Kinds {
    by_byte: [Option<ObjectKind>; 256],
    names: [&'static str; 256],
    /// See [`Layout::has_sizes_of_2_2`].
    has_sizes_of_2_2: bool,
    /// Bit number of an array's rank in its header.
    rank_shift: u32,
}

impl Kinds {
    /// Returns the kinds of a layout. A first word without a widetag of an object is that of a cons
    /// if it is a fixnum, a pointer or an immediate (`widetag_lowtag` in late-objdef.lisp);
    /// otherwise it is not that of an object.
    pub fn new(layout: &Layout) -> Self {
        let mut kinds = Self {
            by_byte: [None; 256],
            names: ["cons"; 256],
            has_sizes_of_2_2: layout.has_sizes_of_2_2,
            // An array's rank is in the header byte that does not hold a vector's flags.
            rank_shift: 24 - layout.vector_flags_shift,
        };
        for (byte, kind) in (0..=u8::MAX).zip(kinds.by_byte.iter_mut()) {
            let is_immediate = matches!(byte, SINGLE_FLOAT | UNBOUND_MARKER) || byte == layout.character;
            let is_fixnum = byte & 1 == 0;
            if is_fixnum || is_pointer(byte.into()) || is_immediate {
                *kind = Some(ObjectKind::Cons);
            }
        }
        for object_type in &OBJECT_TYPES {
            let byte = usize::from(object_type.widetags[layout.widetag_index]);
            kinds.by_byte[byte] = Some(object_type.kind);
            kinds.names[byte] = object_type.name;
        }
        kinds
    }

    /// The kind of an object by its first word; `None` if that is not of an object.
    #[inline]
    pub fn kind_of(&self, header: u64) -> Option<ObjectKind> {
        self.by_byte[usize::from(header as u8)]
    }

    /// The name of an object that is not an instance, by its first word.
    pub fn name(&self, header: u64) -> &'static str {
        self.names[usize::from(header as u8)]
    }

    /// The size in words of an object, by its first two words; always even, never 0. `None` if they
    /// are not those of an object.
    #[inline]
    pub fn words(&self, header: u64, second_word: u64) -> Option<u64> {
        let payload = header >> 8;
        let words = match self.kind_of(header)? {
            ObjectKind::Cons => 2,
            ObjectKind::Boxed => 1 + ((payload & 0x7f_ffff) | 1),
            ObjectKind::Closure | ObjectKind::FunInstance => 1 + ((payload & 0x7fff) | 1),
            ObjectKind::Instance => 1 + (instance_slots(header) | 1),
            ObjectKind::Symbol => 1 + if self.has_sizes_of_2_2 { 5 } else { (payload & 0xff) | 1 },
            ObjectKind::Fdefn => 4,
            ObjectKind::Code => header >> 32,
            ObjectKind::SimpleFun => return None,
            ObjectKind::SimpleVector => vector_words(second_word, 64, 0)?,
            ObjectKind::Vector { element_bits, extra_elements } => {
                vector_words(second_word, u64::from(element_bits), u64::from(extra_elements))?
            }
            ObjectKind::Unboxed => 1 + ((payload & 0xff) | 1),
            // Bit 63 of the header is not part of the length (fullcgc's mark in 2.1).
            ObjectKind::Bignum => 1 + (((header << 1) >> 9 & 0x7f_ffff) | 1),
            // `array_header_nwords`: seven words and the dimensions; a rank of 1 is stored as 0, 0
            // as 255.
            ObjectKind::Array => (7 + (((header >> self.rank_shift) + 1) & 0xff)).next_multiple_of(2),
            ObjectKind::WeakPointer if self.has_sizes_of_2_2 && payload & 0xff == 0 => {
                vector_words(second_word, 64, 0)?
            }
            ObjectKind::WeakPointer if self.has_sizes_of_2_2 => 2,
            ObjectKind::WeakPointer => 4,
            ObjectKind::Filler if self.has_sizes_of_2_2 => header >> 32,
            ObjectKind::Filler => 1 + (payload | 1),
        };
        (words > 0 && words % 2 == 0).then_some(words)
    }
}

/// Slots of an instance: `instance_length` (lispobj.h), one more if it was hashed and then moved.
#[inline]
pub fn instance_slots(header: u64) -> u64 {
    ((header >> 10) & 0x3fff) + ((header >> 10) & (header >> 9) & 1)
}

/// Words of a vector: two, and its elements of `element_bits`, rounded up to an even number.
/// `length` is a fixnum, twice the number of elements without the `extra_elements`; `None` if it is
/// not one, or too large.
#[inline]
fn vector_words(length: u64, element_bits: u64, extra_elements: u64) -> Option<u64> {
    if length & 1 != 0 || length >> 62 != 0 {
        return None;
    }
    let elements = (length >> 1).checked_add(extra_elements)?;
    Some((2 + elements.checked_mul(element_bits)?.div_ceil(64)).next_multiple_of(2))
}

/// A run of pages on which objects follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte: an object starts here.
    pub start: u64,
    /// End address of the last object (exclusive).
    pub end: u64,
    /// Index of its first page.
    pub page: usize,
}

/// The runs of dynamic space, in address order.
pub fn runs(heap: &DynamicSpace, regions: &[Region]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut generation = u8::MAX;
    for (index, page) in heap.pages.iter().enumerate() {
        let start = heap.address_of(index);
        let end = used_end(heap, regions, index);
        if end == start {
            continue;
        }
        match runs.last_mut() {
            // No object is in two generations.
            Some(run) if run.end == start && page.scan_start != 0 && page.generation == generation => {
                run.end = end;
            }
            _ => runs.push(Run { start, end, page: index }),
        }
        generation = page.generation;
    }
    runs
}

/// An object that a walk finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its first byte.
    pub address: u64,
    /// Its size in words.
    pub words: u64,
    /// Its first word.
    pub header: u64,
}

/// Visits the objects of a run in order. Returns the address where the walk ended: before the run's
/// end if no object is there. In a valid run that is at most one object still being allocated.
pub fn walk(store: &HeapCopy, kinds: &Kinds, run: Run, mut visit: impl FnMut(Object)) -> u64 {
    let mut at = run.start;
    while at < run.end {
        let Some(unit) = store.unit(at) else { return at };
        let header = store.word_on_page(unit, 0);
        let Some(words) = kinds.words(header, store.word_on_page(unit, 1)) else { return at };
        let next = words.checked_mul(8).and_then(|bytes| at.checked_add(bytes));
        let Some(next) = next.filter(|&next| next <= run.end) else { return at };
        visit(Object { address: at, words, header });
        at = next;
    }
    at
}

/// Records where an object starts, unless it is a filler. Pages share no word of bits, so threads
/// may record the objects of several runs at once.
pub fn record_start(store: &HeapCopy, kinds: &Kinds, object: Object) {
    if kinds.kind_of(object.header) != Some(ObjectKind::Filler)
        && let Some(unit) = store.unit(object.address)
    {
        store.set_start(unit);
    }
}

/// Whether a space may contain objects of a kind.
fn may_contain(space: SpaceKind, kind: ObjectKind) -> bool {
    match space {
        SpaceKind::Text => {
            matches!(kind, ObjectKind::Code | ObjectKind::FunInstance | ObjectKind::Filler)
        }
        SpaceKind::Fixed => matches!(
            kind,
            ObjectKind::Symbol | ObjectKind::Fdefn | ObjectKind::Instance | ObjectKind::FunInstance
        ),
        SpaceKind::Static | SpaceKind::Permanent | SpaceKind::ReadOnly => kind != ObjectKind::Cons,
    }
}

/// Visits the objects of a space that has holes, which are skipped unit by unit.
pub fn walk_space(store: &HeapCopy, kinds: &Kinds, space: &Space, mut visit: impl FnMut(Object)) {
    let mut at = space.start.next_multiple_of(UNIT_BYTES);
    while at < space.end {
        let Some(unit) = store.unit(at) else {
            at = (at | (GC_PAGE_BYTES - 1)).saturating_add(1);
            continue;
        };
        let header = store.word_on_page(unit, 0);
        let may_be_object = kinds.kind_of(header).is_some_and(|kind| may_contain(space.kind, kind));
        let words = kinds.words(header, store.word_on_page(unit, 1));
        let words = words.filter(|words| may_be_object && words.saturating_mul(8) <= space.end - at);
        if let Some(words) = words {
            visit(Object { address: at, words, header });
        }
        at += words.map_or(UNIT_BYTES, |words| words * 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sbcl::layout::{LAYOUTS, Release, layout_of};

    #[test]
    fn sizes_are_those_of_objects_seen_in_real_sbcls() {
        let kinds = Kinds::new(layout_of(Release(2, 2, 9)).unwrap());
        // Words of a real 2.2.9: a structure of two slots, its layout, a simple vector of three, a
        // symbol, code.
        assert_eq!(kinds.words(0x502c_e003_0000_0839, 2), Some(4));
        assert_eq!(kinds.words(0x5010_10e3_0000_3039, 0), Some(14));
        assert_eq!(kinds.words(0x89, 6), Some(6));
        assert_eq!(kinds.words(0x52d, 0), Some(6));
        assert_eq!(kinds.words(0x22_4000_0035, 0x58), Some(0x22));
        assert_eq!(kinds.words(0x2_0000_006d, 0), Some(2));
        assert_eq!(kinds.words(0xe1, 14), Some(4), "7 characters and a zero");
        assert_eq!(kinds.words(0xe1, 16), Some(4), "8 characters and a zero take two words");
        assert_eq!(kinds.words(0x10_0000_0007, 0), Some(2), "a cons of a cons");
        assert_eq!(kinds.words(0x41, 0), None, "a function without its code");
        let kinds = Kinds::new(layout_of(Release(2, 1, 1)).unwrap());
        assert_eq!(kinds.words(0x503c_5003_0000_0859, 2), Some(4));
        assert_eq!(kinds.words(0x85, 6), Some(6));
        assert_eq!(kinds.words(0x36d, 0), Some(4), "a filler of three more words");
    }

    #[test]
    fn no_word_is_an_object_of_no_size() {
        for layout in &LAYOUTS {
            let kinds = Kinds::new(layout);
            for byte in 0..=255u64 {
                for payload in [0, 1, 0xff, 0x7fff, 0xff_ffff, u64::MAX >> 8] {
                    for second_word in [0, 2, u64::MAX, u64::MAX - 1, 1 << 61] {
                        let words = kinds.words(byte | payload << 8, second_word);
                        assert!(words.is_none_or(|words| words > 0 && words % 2 == 0));
                    }
                }
            }
        }
    }
}

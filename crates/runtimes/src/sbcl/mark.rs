//! Marks the objects that are reachable from the roots, as a full collection would; all others are
//! dead.
//!
//! Every word of an object that has pointers counts as a pointer if it has a pointer's lowtag and
//! an object starts where it points to. SBCL itself knows an instance's raw slots by its layout;
//! here a raw word that happens to look like a pointer to an object's start keeps that object. Weak
//! pointers and weak vectors keep nothing; weak hash tables keep what `scan_weak_hashtable`
//! (gc-common.c) would: in a table weak on keys, the value of each pair whose key is live. Each
//! unit enters the list of pending ones once, which bounds the list by the number of objects.

use super::heap::DynamicSpace;
use super::objects::{Kinds, instance_slots};
use super::store::{HeapCopy, UnitIndex};
use crate::sbcl::layout::{
    FUN_LOWTAG, FUN_RAW_OFFSET, HASH_TABLE_FLAGS, HASH_TABLE_FLAGS_RAW, HASH_TABLE_WEAKNESS_SHIFT,
    INSTANCE_LOWTAG, LIST_LOWTAG, LOWTAG_MASK, Layout, OTHER_LOWTAG, ObjectKind, Release, VECTOR_HASHING,
    VECTOR_WEAK, is_pointer,
};

/// Limit on the units (of 16 bytes) by which the start of code may precede an address in it.
const MAX_CODE_UNITS: u32 = (16 << 20) / 16;
/// Flag of a weak hash table (hash-table.lisp, `hash-table-weak-flag`).
const TABLE_IS_WEAK: u64 = 8;
/// Largest flags of a hash table.
const MAX_TABLE_FLAGS: u64 = 0xff;
/// Bytes from the start of code that represents a closure to its entry.
const TRAMPOLINE_BYTES: u64 = 32;
/// Rounds over the weak tables after which they keep all pairs.
const MAX_WEAK_ROUNDS: u32 = 100;

/// What a weak hash table keeps of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weakness {
    /// The pair if key and value are both live.
    KeyAndValue,
    /// The pair if the key is live.
    Key,
    /// The pair if the value is live.
    Value,
    /// The pair if key or value is live.
    KeyOrValue,
}

impl Weakness {
    /// The weakness in a table's flags.
    fn of_flags(flags: u64) -> Self {
        match flags >> HASH_TABLE_WEAKNESS_SHIFT & 3 {
            0 => Self::KeyAndValue,
            1 => Self::Key,
            2 => Self::Value,
            _ => Self::KeyOrValue,
        }
    }

    /// Whether the table keeps a pair.
    fn keeps(self, is_key_live: bool, is_value_live: bool) -> bool {
        match self {
            // A pair that is live needs no table to keep it.
            Self::KeyAndValue => false,
            Self::Key => is_key_live,
            Self::Value => is_value_live,
            Self::KeyOrValue => is_key_live || is_value_live,
        }
    }
}

/// A weak hash table that is reachable.
#[derive(Clone, Copy, Debug)]
struct WeakTable {
    /// The vector of its pairs.
    vector: UnitIndex,
    /// Length of that vector in words.
    words: u64,
    weakness: Weakness,
}

/// What first reached an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Another object.
    Object(UnitIndex),
    /// The root of this number.
    Root(usize),
}

/// What conservative roots pin.
pub struct PinnedSet {
    /// By page of the collector: whether a pinned object is on it.
    pages: Vec<bool>,
    /// The objects, ascending.
    pub objects: Vec<UnitIndex>,
}

impl PinnedSet {
    /// Whether a pinned object is on the page of this index.
    pub fn has_page(&self, index: usize) -> bool {
        self.pages.get(index) == Some(&true)
    }
}

/// Marks objects of a [`HeapCopy`].
pub struct Tracer<'a> {
    store: &'a HeapCopy,
    kinds: &'a Kinds,
    layout: &'static Layout,
    heap: &'a DynamicSpace,
    release: Release,
    /// Marked objects that are not scanned yet.
    pending: Vec<UnitIndex>,
    /// The weak tables reached.
    weak_tables: Vec<WeakTable>,
    /// The objects in dynamic space that conservative roots pin; some several times.
    pinned_objects: Vec<UnitIndex>,
    /// What first reached each unit, if that is recorded: an object's unit, or a root's number
    /// counted down from the largest unit.
    parents: Vec<UnitIndex>,
    /// The object or root that is being scanned, as in `parents`.
    source: UnitIndex,
}

impl<'a> Tracer<'a> {
    /// Creates a tracer; nothing is marked yet.
    pub fn new(
        store: &'a HeapCopy,
        kinds: &'a Kinds,
        layout: &'static Layout,
        heap: &'a DynamicSpace,
        release: Release,
    ) -> Self {
        Self {
            store,
            kinds,
            layout,
            heap,
            release,
            pending: Vec::new(),
            weak_tables: Vec::new(),
            pinned_objects: Vec::new(),
            parents: Vec::new(),
            source: 0,
        }
    }

    /// Marks what `word` points to, if it is a pointer to an object.
    #[inline]
    pub fn visit(&mut self, word: u64) {
        if !is_pointer(word) {
            return;
        }
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return };
        if self.store.mark(unit) {
            self.reach(unit);
        } else if word & LOWTAG_MASK == FUN_LOWTAG && !self.store.is_start(unit) {
            self.visit_function(word & !LOWTAG_MASK, unit);
        }
    }

    /// Notes an object that was just marked.
    #[inline]
    fn reach(&mut self, unit: UnitIndex) {
        self.pending.push(unit);
        if let Some(parent) = self.parents.get_mut(unit as usize) {
            *parent = self.source;
        }
    }

    /// Marks the object at `unit`, unless it was marked before.
    fn mark(&mut self, unit: UnitIndex) {
        if self.store.mark(unit) {
            self.reach(unit);
        }
    }

    /// The kind of the object at `unit`.
    fn kind_at(&self, unit: UnitIndex) -> Option<ObjectKind> {
        self.kinds.kind_of(self.store.word_on_page(unit, 0))
    }

    /// Records what reached each object, nearest to the roots first. Takes four bytes for each 16
    /// of the copy.
    pub fn record_parents(&mut self) {
        self.parents = vec![0; self.store.unit_count()];
    }

    /// Attributes everything visited from now on to the root of this number.
    pub fn enter_root(&mut self, number: usize) {
        // Each of at most 65,536 threads has a few roots, and a few belong to none: their numbers,
        // counted down, stay above those of units.
        self.source = UnitIndex::MAX - number as UnitIndex;
    }

    /// What reached an object, if that was recorded; `root_count` is the number of roots.
    pub fn parent(&self, unit: UnitIndex, root_count: usize) -> Option<Parent> {
        let parent = *self.parents.get(unit as usize)?;
        let number = (UnitIndex::MAX - parent) as usize;
        Some(if number < root_count { Parent::Root(number) } else { Parent::Object(parent) })
    }

    /// Marks the code that a function is in.
    fn visit_function(&mut self, address: u64, unit: UnitIndex) {
        let header = self.store.word_on_page(unit, 0);
        if self.kinds.kind_of(header) != Some(ObjectKind::SimpleFun) {
            return;
        }
        self.visit_object(code_of_function(address, header));
    }

    /// Visits a word that may be the raw address that a closure, a funcallable instance or an fdefn
    /// jumps to.
    fn visit_raw(&mut self, word: u64) {
        if is_pointer(word) {
            self.visit(word);
        } else if word & LOWTAG_MASK == 0 && word != 0 {
            let address = word.wrapping_sub(FUN_RAW_OFFSET + FUN_LOWTAG);
            if let Some(unit) = self.store.unit(address) {
                if self.kind_at(unit) == Some(ObjectKind::SimpleFun) {
                    self.visit_function(address, unit);
                } else {
                    self.visit_trampoline(word);
                }
            }
        }
    }

    /// Visits a raw address that is not a function's: of a funcallable instance's own code, or up
    /// to 2.3.10 of code that represents a closure (`make-simplifying-trampoline` in
    /// x86-64-vm.lisp) and has no other reference.
    fn visit_trampoline(&mut self, word: u64) {
        for (distance, kind) in
            [(FUN_RAW_OFFSET + FUN_LOWTAG, ObjectKind::FunInstance), (TRAMPOLINE_BYTES, ObjectKind::Code)]
        {
            let Some(unit) = self.store.unit(word.wrapping_sub(distance)) else { continue };
            if self.store.is_start(unit) && self.kind_at(unit) == Some(kind) {
                return self.mark(unit);
            }
        }
    }

    /// Visits a word of a stack or a register (`conservative_root_p`): it must point into code, or
    /// have the tag of an object that starts at its target.
    pub fn visit_ambiguous(&mut self, word: u64) {
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return };
        let page = self.heap.page_of(word);
        let may_be_in_code = page.is_none_or(|page| page.content(self.layout) == self.layout.page_types.code);
        if may_be_in_code && let Some(start) = self.store.start_before(unit, MAX_CODE_UNITS) {
            let header = self.store.word_on_page(start, 0);
            let words = self.kinds.words(header, self.store.word_on_page(start, 1));
            let is_code = self.kinds.kind_of(header) == Some(ObjectKind::Code);
            if is_code && words.is_some_and(|words| u64::from(unit - start) * 2 < words) {
                self.pin(start);
                return;
            }
        }
        let kind = self.kind_at(unit);
        let has_tag_of_kind = match (word & LOWTAG_MASK, kind) {
            (LIST_LOWTAG, Some(ObjectKind::Cons)) | (INSTANCE_LOWTAG, Some(ObjectKind::Instance)) => true,
            (FUN_LOWTAG, Some(kind)) => matches!(kind, ObjectKind::Closure | ObjectKind::FunInstance),
            (OTHER_LOWTAG, Some(kind)) => !matches!(
                kind,
                ObjectKind::Cons
                    | ObjectKind::Instance
                    | ObjectKind::Closure
                    | ObjectKind::FunInstance
                    | ObjectKind::SimpleFun
                    | ObjectKind::Filler
            ),
            _ => false,
        };
        if has_tag_of_kind && self.store.is_start(unit) {
            self.pin(unit);
        }
    }

    /// Visits a word of memory that could not be read as objects: whatever it may point to is live.
    pub fn visit_unread(&mut self, word: u64) {
        self.visit_ambiguous(word);
        self.visit_raw(word);
        // A header's upper half may point to a layout.
        self.visit(word >> 32);
    }

    /// Marks an object that must not move.
    fn pin(&mut self, unit: UnitIndex) {
        let was_just_pinned = self.pinned_objects.last() == Some(&unit);
        if !was_just_pinned && self.heap.page_of(self.store.address(unit)).is_some() {
            self.pinned_objects.push(unit);
        }
        self.mark(unit);
    }

    /// Marks the object at an address.
    pub fn visit_object(&mut self, address: u64) {
        if let Some(unit) = self.store.unit(address) {
            self.mark(unit);
        }
    }

    /// Marks everything that is reachable from what was visited.
    pub fn run(&mut self) {
        for round in 0.. {
            if self.parents.is_empty() {
                while let Some(unit) = self.pending.pop() {
                    self.scan(unit);
                }
            }
            while !self.pending.is_empty() {
                // One step away from the roots at a time, so that paths are short.
                for unit in std::mem::take(&mut self.pending) {
                    self.source = unit;
                    self.scan(unit);
                }
            }
            // A chain of tables may take a round each. Only a hostile heap has longer chains: it
            // keeps all pairs.
            let keeps_all_pairs = round >= MAX_WEAK_ROUNDS;
            if !self.visit_weak_tables(keeps_all_pairs) {
                return;
            }
        }
    }

    /// Visits what an object points to.
    fn scan(&mut self, unit: UnitIndex) {
        let (header, second_word) = (self.store.word_on_page(unit, 0), self.store.word_on_page(unit, 1));
        let Some(kind) = self.kinds.kind_of(header) else { return };
        match kind {
            ObjectKind::Cons => {
                self.visit(header);
                self.visit(second_word);
                return;
            }
            ObjectKind::Vector { .. }
            | ObjectKind::Unboxed
            | ObjectKind::Bignum
            | ObjectKind::Filler
            | ObjectKind::WeakPointer
            | ObjectKind::SimpleFun => {
                return;
            }
            _ => {}
        }
        let address = self.store.address(unit);
        // A walk found each marked object, so it has a size.
        let words = self.kinds.words(header, second_word).unwrap_or(0);
        let store = self.store;
        match kind {
            ObjectKind::Instance => {
                self.visit(header >> 32);
                // A lock-free list links its nodes without a tag.
                if second_word & LOWTAG_MASK == 0 && second_word != 0 {
                    self.visit(second_word | INSTANCE_LOWTAG);
                }
                let end = 1 + instance_slots(header);
                store.each_word(address, 1, end, |_, word| self.visit(word));
            }
            ObjectKind::FunInstance => {
                self.visit(header >> 32);
                store.each_word(address, 1, words, |_, word| self.visit_raw(word));
            }
            ObjectKind::Closure | ObjectKind::Fdefn => {
                store.each_word(address, 1, words, |_, word| self.visit_raw(word))
            }
            ObjectKind::Symbol => {
                let name = self.layout.symbol_name;
                let masked = |index, word| if index == name.word as u64 { word & name.mask } else { word };
                store.each_word(address, 1, words, |index, word| self.visit(masked(index, word)));
            }
            ObjectKind::Code => {
                let boxed_words = ((second_word & 0xffff_ffff) / 8).min(words);
                store.each_word(address, 2, boxed_words, |_, word| self.visit(word));
            }
            ObjectKind::SimpleVector => self.scan_vector(unit, header, words.min(2 + second_word / 2)),
            _ => store.each_word(address, 1, words, |_, word| self.visit(word)),
        }
    }

    /// Visits the elements of a vector; notes it if it has the pairs of a weak table.
    fn scan_vector(&mut self, unit: UnitIndex, header: u64, words: u64) {
        let address = self.store.address(unit);
        let flags = header >> self.layout.vector_flags_shift;
        if flags & VECTOR_WEAK == 0 {
            self.store.each_word(address, 2, words, |_, word| self.visit(word));
            return;
        }
        if flags & VECTOR_HASHING == 0 {
            return;
        }
        // The last element of a weak table's vector of pairs is the table.
        let table = self.store.word(address + words.saturating_sub(1) * 8);
        if let Some(table) = table {
            self.visit(table);
        }
        match table.and_then(|table| self.weakness(table)) {
            Some(weakness) => self.weak_tables.push(WeakTable { vector: unit, words, weakness }),
            // A table that is not flagged as weak, or was not copied, keeps all pairs.
            None => self.store.each_word(address, 2, words, |_, word| self.visit(word)),
        }
    }

    /// The weakness of a hash table; `None` if it is not weak, or no hash table.
    fn weakness(&self, table: u64) -> Option<Weakness> {
        if table & LOWTAG_MASK != INSTANCE_LOWTAG {
            return None;
        }
        let flags = (table & !LOWTAG_MASK).checked_add(HASH_TABLE_FLAGS as u64 * 8)?;
        let flags = self.store.word(flags)?;
        let flags = if self.release >= HASH_TABLE_FLAGS_RAW { flags } else { flags / 2 };
        (flags <= MAX_TABLE_FLAGS && flags & TABLE_IS_WEAK != 0).then(|| Weakness::of_flags(flags))
    }

    /// Visits the pairs that weak tables keep, by the objects marked so far. Returns whether any
    /// object was reached.
    fn visit_weak_tables(&mut self, keeps_all_pairs: bool) -> bool {
        let tables = std::mem::take(&mut self.weak_tables);
        for table in &tables {
            let mut key = None;
            let mut pairs = Vec::new();
            // The first pair of words is the table's own, the last element is the table.
            let address = self.store.address(table.vector);
            self.store.each_word(address, 4, table.words.saturating_sub(1), |index, word| {
                match (index % 2, key.take()) {
                    (0, _) => key = Some(word),
                    (_, Some(key)) => pairs.push((key, word)),
                    _ => {}
                }
            });
            self.source = table.vector;
            for (key, value) in pairs {
                let (is_key_live, is_value_live) = (self.is_live(key), self.is_live(value));
                let is_kept = keeps_all_pairs || table.weakness.keeps(is_key_live, is_value_live);
                if is_kept && !(is_key_live && is_value_live) {
                    self.visit(key);
                    self.visit(value);
                }
            }
        }
        self.weak_tables.extend(tables);
        !self.pending.is_empty()
    }

    /// Whether a word is not a pointer into the copy, or points to a marked object.
    fn is_live(&self, word: u64) -> bool {
        if !is_pointer(word) {
            return true;
        }
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return true };
        if self.store.is_start(unit) || word & LOWTAG_MASK != FUN_LOWTAG {
            return self.store.is_marked(unit);
        }
        let header = self.store.word_on_page(unit, 0);
        let code = code_of_function(word & !LOWTAG_MASK, header);
        self.store.unit(code).is_none_or(|unit| self.store.is_marked(unit))
    }

    /// Returns what conservative roots pin, each object once.
    pub fn into_pinned(mut self) -> PinnedSet {
        self.pinned_objects.sort_unstable();
        self.pinned_objects.dedup();
        let mut pages = vec![false; self.heap.pages.len()];
        // Each object once: millions of words may point to one of thousands of pages.
        for &unit in &self.pinned_objects {
            let address = self.store.address(unit);
            let (header, second_word) = (self.store.word_on_page(unit, 0), self.store.word_on_page(unit, 1));
            let bytes = self.kinds.words(header, second_word).unwrap_or(2).saturating_mul(8);
            let Some(first) = self.heap.index_of(address) else { continue };
            let end = address.saturating_add(bytes);
            let last = self.heap.index_of(end.saturating_sub(1)).unwrap_or(first);
            if let Some(on_pages) = pages.get_mut(first..=last) {
                on_pages.fill(true);
            }
        }
        PinnedSet { pages, objects: self.pinned_objects }
    }
}

/// The address of the code that a function is in. The function's header counts the words from the
/// start of the code.
fn code_of_function(function: u64, header: u64) -> u64 {
    function.wrapping_sub(((header >> 8) & 0xff_ffff) * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sbcl::layout::layout_of;

    #[test]
    fn a_pointer_to_the_end_of_the_address_space_is_no_weak_table() {
        let release = Release(2, 2, 9);
        let layout = layout_of(release).unwrap();
        let (store, kinds, heap) = (HeapCopy::default(), Kinds::new(layout), DynamicSpace::default());
        let tracer = Tracer::new(&store, &kinds, layout, &heap, release);
        assert_eq!(tracer.weakness(!LOWTAG_MASK | INSTANCE_LOWTAG), None);
    }
}

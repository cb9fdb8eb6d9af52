//! Marks the objects that are reachable from the roots, as a full collection would; all others are
//! dead.
//!
//! Every word of an object that has pointers counts as a pointer if it has a pointer's lowtag and
//! an object starts where it points to. SBCL itself knows an instance's raw slots by its layout;
//! here a raw word that happens to look like a pointer to an object's start keeps that object. Weak
//! pointers and weak vectors keep nothing; weak hash tables keep what `scan_weak_hashtable`
//! (gc-common.c) would: in a table weak on keys, the value of each pair whose key is live. Each
//! unit enters the list of work once, which bounds the list by the number of objects.

use super::heap::DynamicSpace;
use super::objects::{Kinds, instance_slots};
use super::store::{HeapCopy, UnitIndex};
use crate::sbcl::layout::{
    FUN_LOWTAG, FUN_RAW_OFFSET, HASH_TABLE_FLAGS, HASH_TABLE_FLAGS_RAW, INSTANCE_LOWTAG, LIST_LOWTAG,
    LOWTAG_MASK, Layout, OTHER_LOWTAG, ObjectKind, Release, VECTOR_HASHING, VECTOR_WEAK,
};

/// Maximum size of code, in units of 16 bytes: its start is searched this far back.
const MAX_CODE_UNITS: u32 = (16 << 20) / 16;
/// Flag of a weak hash table (hash-table.lisp, `hash-table-weak-flag`).
const TABLE_IS_WEAK: u64 = 8;

/// Size of the header of code that represents a closure: its instructions follow.
const TRAMPOLINE_BYTES: u64 = 32;
const MAX_WEAK_ROUNDS: u32 = 100;

/// A weak hash table that is reachable.
#[derive(Clone, Copy, Debug)]
struct WeakTable {
    /// Address of the vector of its pairs.
    pairs: u64,
    /// Length of that vector in words.
    words: u64,
    /// 0 keeps a pair if key and value are both live, 1 if the key is, 2 if the value is, 3 if
    /// either is.
    weakness: u64,
}

/// Marks objects of a [`HeapCopy`].
pub struct Tracer<'a> {
    store: &'a HeapCopy,
    kinds: &'a Kinds,
    layout: &'static Layout,
    heap: &'a DynamicSpace,
    release: Release,
    work: Vec<UnitIndex>,
    weak: Vec<WeakTable>,
    /// The objects in dynamic space that conservative roots pin; some several times.
    pins: Vec<UnitIndex>,
    /// What first reached each unit, if that is recorded: an object's unit, or a root's number
    /// counted down from the largest unit.
    parents: Vec<UnitIndex>,
    /// The object or root that is being scanned.
    from: UnitIndex,
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
            work: Vec::new(),
            weak: Vec::new(),
            pins: Vec::new(),
            parents: Vec::new(),
            from: 0,
        }
    }

    /// Marks what `word` points to, if it is a pointer to an object.
    #[inline]
    pub fn visit(&mut self, word: u64) {
        if word & 3 != 3 {
            return;
        }
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return };
        if self.store.mark(unit) {
            self.reach(unit);
        } else if word & LOWTAG_MASK == FUN_LOWTAG && !self.store.is_start(unit) {
            self.visit_function(word & !LOWTAG_MASK, unit);
        }
    }

    #[inline]
    fn reach(&mut self, unit: UnitIndex) {
        self.work.push(unit);
        if let Some(parent) = self.parents.get_mut(unit as usize) {
            *parent = self.from;
        }
    }

    /// Records what reached each object, nearest to the roots first. Takes four bytes for each 16
    /// of the copy.
    pub fn record_parents(&mut self) {
        self.parents = vec![0; self.store.unit_count()];
    }

    /// Attributes everything visited from now on to the root of this number.
    pub fn enter_root(&mut self, number: usize) {
        self.from = UnitIndex::MAX - u32::try_from(number).unwrap_or(0);
    }

    /// What reached an object: the unit of another, or the number of a root as `Err`.
    pub fn parent(&self, unit: UnitIndex, roots: usize) -> Option<Result<UnitIndex, usize>> {
        let parent = *self.parents.get(unit as usize)?;
        let number = (UnitIndex::MAX - parent) as usize;
        Some(if number < roots { Err(number) } else { Ok(parent) })
    }

    /// Marks the code that a function is in. The function's header counts the words from the start
    /// of the code.
    fn visit_function(&mut self, address: u64, unit: UnitIndex) {
        let header = self.store.word_on_page(unit, 0);
        if self.kinds.of(header) != Some(ObjectKind::SimpleFun) {
            return;
        }
        let code = address.wrapping_sub(((header >> 8) & 0xff_ffff) * 8);
        if let Some(unit) = self.store.unit(code)
            && self.store.mark(unit)
        {
            self.reach(unit);
        }
    }

    /// Visits a word that may be the raw address that a closure, a funcallable instance or an fdefn
    /// jumps to.
    fn visit_raw(&mut self, word: u64) {
        if word & 3 == 3 {
            self.visit(word);
        } else if word & LOWTAG_MASK == 0 && word != 0 {
            let address = word.wrapping_sub(FUN_RAW_OFFSET + FUN_LOWTAG);
            if let Some(unit) = self.store.unit(address) {
                if self.kinds.of(self.store.word_on_page(unit, 0)) == Some(ObjectKind::SimpleFun) {
                    self.visit_function(address, unit);
                } else {
                    self.visit_trampoline(word);
                }
            }
        }
    }

    /// Visits a raw address that is not a function's: of a funcallable instance's own code, or of
    /// code that represents a closure (`make-simplifying-trampoline` in x86-64-vm.lisp) and has no
    /// other reference.
    fn visit_trampoline(&mut self, word: u64) {
        for (before, kind) in
            [(FUN_RAW_OFFSET + FUN_LOWTAG, ObjectKind::FunInstance), (TRAMPOLINE_BYTES, ObjectKind::Code)]
        {
            let Some(unit) = self.store.unit(word.wrapping_sub(before)) else { continue };
            let is_start =
                self.store.is_start(unit) && self.kinds.of(self.store.word_on_page(unit, 0)) == Some(kind);
            if is_start {
                if self.store.mark(unit) {
                    self.reach(unit);
                }
                return;
            }
        }
    }

    /// Visits a word of a stack or a register (`conservative_root_p`): it must point into code, or
    /// have the tag of an object that starts at its target.
    pub fn visit_ambiguous(&mut self, word: u64) {
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return };
        let page = self.heap.page_of(word).map(|(_, page)| page);
        let in_code = page.is_none_or(|page| page.content(self.layout) == self.layout.page_types.code);
        if in_code && let Some(start) = self.store.start_before(unit, MAX_CODE_UNITS) {
            let header = self.store.word_on_page(start, 0);
            let words = self.kinds.words(header, self.store.word_on_page(start, 1)).unwrap_or(0);
            let is_code = self.kinds.of(header) == Some(ObjectKind::Code);
            if is_code && u64::from(unit - start) * 2 < words {
                self.pin(start);
                return;
            }
        }
        let kind = self.kinds.of(self.store.word_on_page(unit, 0));
        let fits = match (word & LOWTAG_MASK, kind) {
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
        if fits && self.store.is_start(unit) {
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

    fn pin(&mut self, unit: UnitIndex) {
        let is_known = self.pins.last() == Some(&unit);
        if !is_known && self.heap.page_of(self.store.address(unit)).is_some() {
            self.pins.push(unit);
        }
        if self.store.mark(unit) {
            self.reach(unit);
        }
    }

    /// Marks an object that is itself a root.
    pub fn visit_object(&mut self, address: u64) {
        if let Some(unit) = self.store.unit(address)
            && self.store.mark(unit)
        {
            self.reach(unit);
        }
    }

    /// Marks everything that is reachable from what was visited.
    pub fn run(&mut self) {
        for round in 0.. {
            if self.parents.is_empty() {
                while let Some(unit) = self.work.pop() {
                    self.scan(unit);
                }
            }
            while !self.work.is_empty() {
                // Goes one step from the roots at a time, so that paths are short.
                for unit in std::mem::take(&mut self.work) {
                    self.from = unit;
                    self.scan(unit);
                }
            }
            // A chain of tables may take a round each. A heap with longer chains is made to take
            // long, and keeps all pairs.
            let as_strong = round >= MAX_WEAK_ROUNDS;
            if !self.visit_weak_tables(as_strong) {
                return;
            }
        }
    }

    /// Visits what an object points to.
    fn scan(&mut self, unit: UnitIndex) {
        let (header, second) = (self.store.word_on_page(unit, 0), self.store.word_on_page(unit, 1));
        let Some(kind) = self.kinds.of(header) else { return };
        match kind {
            ObjectKind::Cons => {
                self.visit(header);
                self.visit(second);
                return;
            }
            ObjectKind::Vector(..)
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
        let words = self.kinds.words(header, second).unwrap_or(0);
        let store = self.store;
        match kind {
            ObjectKind::Instance => {
                self.visit(header >> 32);
                // A lock-free list links its nodes without a tag.
                if second & LOWTAG_MASK == 0 && second != 0 {
                    self.visit(second | INSTANCE_LOWTAG);
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
                let boxed = ((second & 0xffff_ffff) / 8).min(words);
                store.each_word(address, 2, boxed, |_, word| self.visit(word));
            }
            ObjectKind::SimpleVector => self.scan_vector(address, header, words.min(2 + second / 2)),
            _ => store.each_word(address, 1, words, |_, word| self.visit(word)),
        }
    }

    fn scan_vector(&mut self, address: u64, header: u64, words: u64) {
        let flags = header >> self.layout.vector_flags_shift;
        if flags & VECTOR_WEAK == 0 {
            self.store.each_word(address, 2, words, |_, word| self.visit(word));
            return;
        }
        if flags & VECTOR_HASHING == 0 {
            return;
        }
        // The last element of a weak table's vector of pairs is the table.
        let table = self.store.word(address + words.saturating_sub(1) * 8).unwrap_or(0);
        self.visit(table);
        match self.weakness(table) {
            Some(weakness) => self.weak.push(WeakTable { pairs: address, words, weakness }),
            // A table that is not flagged as weak keeps all pairs.
            None => self.store.each_word(address, 2, words, |_, word| self.visit(word)),
        }
    }

    /// The weakness of a hash table; `None` if it is not weak, or no hash table.
    fn weakness(&self, table: u64) -> Option<u64> {
        if table & LOWTAG_MASK != INSTANCE_LOWTAG {
            return None;
        }
        let flags = (table & !LOWTAG_MASK).checked_add(HASH_TABLE_FLAGS as u64 * 8)?;
        let flags = self.store.word(flags)?;
        let flags = if self.release >= HASH_TABLE_FLAGS_RAW { flags } else { flags / 2 };
        (flags <= 0xff && flags & TABLE_IS_WEAK != 0).then_some(flags >> 6 & 3)
    }

    /// Visits what weak tables keep, given what is live so far. Returns whether anything new was
    /// reached.
    fn visit_weak_tables(&mut self, as_strong: bool) -> bool {
        let tables = std::mem::take(&mut self.weak);
        for table in &tables {
            let mut key = None;
            let mut pairs = Vec::new();
            // The first pair of words is the table's own, the last element is the table.
            self.store.each_word(table.pairs, 4, table.words.saturating_sub(1), |index, word| {
                match (index % 2, key.take()) {
                    (0, _) => key = Some(word),
                    (_, Some(key)) => pairs.push((key, word)),
                    _ => {}
                }
            });
            self.from = self.store.unit(table.pairs).unwrap_or(0);
            for (key, value) in pairs {
                let (key_lives, value_lives) = (self.is_live(key), self.is_live(value));
                let keeps = match table.weakness {
                    1 => key_lives,
                    2 => value_lives,
                    3 => key_lives || value_lives,
                    _ => false,
                } || as_strong;
                if keeps && !(key_lives && value_lives) {
                    self.visit(key);
                    self.visit(value);
                }
            }
        }
        self.weak.extend(tables);
        !self.work.is_empty()
    }

    /// Whether a word is not a pointer into the copy, or points to a marked object.
    fn is_live(&self, word: u64) -> bool {
        if word & 3 != 3 {
            return true;
        }
        let Some(unit) = self.store.unit(word & !LOWTAG_MASK) else { return true };
        if self.store.is_start(unit) || word & LOWTAG_MASK != FUN_LOWTAG {
            return self.store.is_marked(unit);
        }
        let header = self.store.word_on_page(unit, 0);
        let code = (word & !LOWTAG_MASK).wrapping_sub(((header >> 8) & 0xff_ffff) * 8);
        self.store.unit(code).is_none_or(|unit| self.store.is_marked(unit))
    }

    /// Returns what conservative roots pin: a flag for each page of the collector, and the objects,
    /// ascending, each once.
    pub fn into_pinned(mut self) -> (Vec<bool>, Vec<UnitIndex>) {
        self.pins.sort_unstable();
        self.pins.dedup();
        let mut pinned = vec![false; self.heap.pages.len()];
        // Each object once: millions of words may point to one of thousands of pages.
        for &unit in &self.pins {
            let address = self.store.address(unit);
            let (header, second) = (self.store.word_on_page(unit, 0), self.store.word_on_page(unit, 1));
            let bytes = self.kinds.words(header, second).unwrap_or(2).saturating_mul(8);
            let Some((first, _)) = self.heap.page_of(address) else { continue };
            let end = address.saturating_add(bytes);
            let last = self.heap.page_of(end.saturating_sub(1)).map_or(first, |(last, _)| last);
            if let Some(pages) = pinned.get_mut(first..=last) {
                pages.fill(true);
            }
        }
        (pinned, self.pins)
    }
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

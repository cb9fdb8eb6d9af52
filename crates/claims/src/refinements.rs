//! Finer claims inside an allocator's blocks: a runtime's objects, and other allocators' memory.
//!
//! A runtime's reader claims a block by the pointer that its allocator returned. The claim alone is
//! not trusted: the allocator's reader looks it up for each block that it holds in use itself, and
//! only then does it count. If the two disagree (a damaged or hostile pointer, an allocator that is
//! not read), the claim matches nothing. So any runtime can refine any allocator, and several can
//! refine the same one.
//!
//! A heap of millions of strings costs two bytes for each 32-byte granule of heap that it spans: a
//! `Mark`. Claims of 1 KiB or more, of whole blocks, of arenas, and of the second of two blocks in
//! one granule are in a hash table in addition. Blocks that are not aligned to 16 bytes (small
//! blocks of some allocators) are not refined.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use strandline_holders::Builder;
use strandline_process::range::AddressRange;

use crate::class::{FreeSlots, MappedBlock, Refinement, SLOTS, Slot};
use crate::palette::SlotTable;
use crate::rows::RowRef;

/// A claim of more bytes than this is also listed individually (see [`Matches::large_blocks`]).
pub const LARGE_BYTES: u64 = 4096;
/// Number of bits of a mark for the length. The bit of [`granule_half`] is above them.
const LENGTH_BITS: u32 = 10;
/// Position of the slot plus 1 in a mark.
const SLOT_SHIFT: u32 = LENGTH_BITS + 1;
/// Length in a mark whose claim is in the table.
const IN_TABLE: u16 = 0;
/// Claims of at least this length, of whole blocks, and of arenas are in the table.
const SHORTEST_TABLED_BYTES: u64 = 1 << LENGTH_BITS;
/// Bytes of address space under one leaf.
const LEAF_BYTES: u64 = 64 << 10;
/// Bytes of address space under one mark.
const GRANULE_BYTES: u64 = 32;
/// Alignment of blocks that can be claimed.
const ALIGNMENT: u64 = 16;
/// A claim is rejected if the block can hold more than twice its length plus this: the block is
/// something else.
const MAX_SLACK_BYTES: u64 = 4096;
/// Number of marks in a leaf.
const MARKS: usize = (LEAF_BYTES / GRANULE_BYTES) as usize;
/// Maximum entries of the table for each leaf: at about 50 bytes each, an eighth of the leaf's
/// bytes.
const MAX_TABLE_ENTRIES_PER_LEAF: usize = (LEAF_BYTES / (8 * 50)) as usize;

/// The marks of a leaf, allocated on first use.
type Leaf = OnceLock<Box<[AtomicU16; MARKS]>>;

/// A claim on a block, before the size of the block is known.
#[derive(Clone, Copy)]
struct Claim {
    slot: Slot,
    /// Number of claimed bytes; `None` for the whole block.
    bytes: Option<NonZeroU64>,
    /// The free slots in it, if it is an arena of the runtime.
    free: Option<FreeSlots>,
}

impl Claim {
    /// Its length in a mark; [`IN_TABLE`] if it belongs in the table.
    fn mark_length(&self) -> u16 {
        let short = self.bytes.filter(|bytes| self.free.is_none() && bytes.get() < SHORTEST_TABLED_BYTES);
        short.map_or(IN_TABLE, |bytes| bytes.get() as u16)
    }
}

/// The claim on a block that starts in a granule, in 16 bits; 0 for no claim.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(u16);

impl Mark {
    const NONE: Self = Self(0);

    /// The mark of a claim on the block at `pointer`; `length` is [`IN_TABLE`] if the table has it.
    fn new(pointer: u64, slot: Slot, length: u16) -> Self {
        Self((slot.index() as u16 + 1) << SLOT_SHIFT | granule_half(pointer) << LENGTH_BITS | length)
    }

    /// Whether the claimed block starts in the same half of the granule as `pointer`.
    fn is_in_half_of(self, pointer: u64) -> bool {
        self.0 >> LENGTH_BITS & 1 == granule_half(pointer)
    }

    /// The claim; `None` if the table has it.
    fn claim(self) -> Option<Claim> {
        let length = self.0 & ((1 << LENGTH_BITS) - 1);
        let slot = Slot::new((self.0 >> SLOT_SHIFT).checked_sub(1)? as u8)?;
        let bytes = NonZeroU64::new(length.into()).filter(|_| length != IN_TABLE)?;
        Some(Claim { slot, bytes: Some(bytes), free: None })
    }
}

/// All claims inside the blocks of a process. Several threads may claim at the same time.
#[derive(Default)]
pub struct Refinements {
    /// Leaf numbers in ascending order, only of leaves with resident private memory. Pointers
    /// elsewhere are refused, so that what strandline allocates is in proportion to what the target
    /// has resident: a leaf takes a page, and its part of the table at most two.
    leaf_numbers: Vec<u64>,
    /// The leaf of each number.
    leaves: Vec<Leaf>,
    /// Leaf number minus index of the last search, as a hint: most of a heap is contiguous.
    index_hint: AtomicU64,
    /// Claims by pointer.
    tabled: Mutex<HashMap<u64, Claim>>,
    /// Maximum number of claims in the table, in proportion to resident memory.
    max_table_entries: usize,
    /// See [`Refinements::palette`].
    palette: Mutex<SlotTable>,
    /// Other allocators' memory within blocks: ranges in address order, without overlap.
    nested: Vec<AddressRange>,
}

impl Refinements {
    /// No claims yet. `runs` are the resident private writable parts of memory, in address order.
    pub fn new(runs: impl IntoIterator<Item = impl Into<AddressRange>>) -> Self {
        let mut leaf_numbers: Vec<u64> = Vec::new();
        for run in runs {
            let run = run.into();
            let last_leaf = run.end.saturating_sub(1) / LEAF_BYTES;
            let first_leaf =
                (run.start / LEAF_BYTES).max(leaf_numbers.last().map_or(0, |&number| number + 1));
            leaf_numbers.extend(first_leaf..=last_leaf);
        }
        let leaves: Vec<Leaf> = leaf_numbers.iter().map(|_| OnceLock::new()).collect();
        let max_table_entries = leaves.len() * MAX_TABLE_ENTRIES_PER_LEAF;
        Self { leaf_numbers, leaves, max_table_entries, ..Self::default() }
    }

    /// The slot for claiming blocks of a row, shared by all runtimes of the process. `None` if all
    /// slots are taken.
    pub fn slot(&self, row: RowRef, holder: Option<&str>) -> Option<Slot> {
        locked(&self.palette).add(row, holder)
    }

    /// The row and holder of each slot.
    pub fn palette(&self) -> SlotTable {
        locked(&self.palette).clone()
    }

    /// Claims the first `bytes` of the block at `pointer`, as an allocator returned it. False if
    /// refused: no bytes, not aligned, not resident, already claimed, or the table is full.
    pub fn claim(&self, pointer: u64, bytes: u64, slot: Slot) -> bool {
        NonZeroU64::new(bytes)
            .is_some_and(|bytes| self.insert(pointer, Claim { slot, bytes: Some(bytes), free: None }))
    }

    /// Claims the whole block at `pointer`, whatever its size. False if refused, for the reasons of
    /// [`Refinements::claim`].
    pub fn claim_whole(&self, pointer: u64, slot: Slot) -> bool {
        self.insert(pointer, Claim { slot, bytes: None, free: None })
    }

    /// Like [`Refinements::claim`], for an arena of the runtime with free slots.
    pub fn claim_arena(&self, pointer: u64, bytes: u64, slot: Slot, free: FreeSlots) -> bool {
        NonZeroU64::new(bytes)
            .is_some_and(|bytes| self.insert(pointer, Claim { slot, bytes: Some(bytes), free: Some(free) }))
    }

    /// Stores a claim on the block at `pointer`; false if it is refused.
    fn insert(&self, pointer: u64, claim: Claim) -> bool {
        if !pointer.is_multiple_of(ALIGNMENT) {
            return false;
        }
        let Some(leaf) = self.leaf(pointer / LEAF_BYTES) else { return false };
        let marks = leaf.get_or_init(|| Box::new([const { AtomicU16::new(0) }; MARKS]));
        let Some(stored) = marks.get(mark_index(pointer)) else { return false };
        let length = claim.mark_length();
        let mark = Mark::new(pointer, claim.slot, length);
        match stored.compare_exchange(Mark::NONE.0, mark.0, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) if length != IN_TABLE => return true,
            Ok(_) => {}
            // Already claimed; the second of two blocks in one granule goes into the table.
            Err(existing) if Mark(existing).is_in_half_of(pointer) => return false,
            Err(_) => {}
        }
        let mut tabled = locked(&self.tabled);
        if tabled.contains_key(&pointer) || tabled.len() >= self.max_table_entries {
            return false;
        }
        tabled.insert(pointer, claim);
        true
    }

    /// Whether the block at `pointer` is claimed.
    pub fn is_claimed(&self, pointer: u64) -> bool {
        self.finder().claim(pointer).is_some()
    }

    /// The leaf with this number; `None` if nothing is resident there.
    fn leaf(&self, number: u64) -> Option<&Leaf> {
        let hinted_index = usize::try_from(number.wrapping_sub(self.index_hint.load(Ordering::Relaxed)))
            .ok()
            .filter(|&index| self.leaf_numbers.get(index) == Some(&number));
        let index = match hinted_index {
            Some(index) => index,
            None => {
                let index = self.leaf_numbers.binary_search(&number).ok()?;
                self.index_hint.store(number.wrapping_sub(index as u64), Ordering::Relaxed);
                index
            }
        };
        self.leaves.get(index)
    }

    /// Adds `ranges` claimed by other readers: if one is within a block in use, the block's
    /// allocator excludes it. If ranges overlap, the one that starts first stays, or with the
    /// same start the longer: the pool's claim excludes memory within the pool.
    pub fn nest(&mut self, ranges: impl IntoIterator<Item = impl Into<AddressRange>>) {
        self.nested.extend(ranges.into_iter().map(Into::into).filter(|range| !range.is_empty()));
        self.nested.sort_unstable_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
        let mut end = 0;
        self.nested.retain(|range| {
            let is_apart = range.start >= end;
            if is_apart {
                end = range.end;
            }
            is_apart
        });
    }

    /// Whether there are neither claims nor nested ranges.
    pub fn is_empty(&self) -> bool {
        self.nested.is_empty() && self.leaves.iter().all(|leaf| leaf.get().is_none())
    }

    /// Looks up claims for blocks in address order.
    pub fn finder(&self) -> Finder<'_> {
        Finder { refinements: self, leaf_number: None, marks: None, nested: &self.nested }
    }
}

/// Locks a mutex. A thread that panicked with the lock has left complete entries.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Index in its leaf of the mark for a block.
fn mark_index(pointer: u64) -> usize {
    (pointer % LEAF_BYTES / GRANULE_BYTES) as usize
}

/// Which half of its granule a block starts in: 0 or 1.
fn granule_half(pointer: u64) -> u16 {
    (pointer / ALIGNMENT % 2) as u16
}

/// See [`Refinements::finder`].
pub struct Finder<'a> {
    refinements: &'a Refinements,
    /// The leaf of the last lookup; `None` before the first.
    leaf_number: Option<u64>,
    /// Its marks; `None` if nothing is claimed there.
    marks: Option<&'a [AtomicU16; MARKS]>,
    /// The nested ranges after those of the last lookup.
    nested: &'a [AddressRange],
}

impl<'a> Finder<'a> {
    /// The claim on the block in use at `pointer`, which can hold `usable` bytes. `None` if nothing
    /// is claimed there, or if the block cannot hold the claimed bytes or is much larger.
    #[inline]
    pub fn find(&mut self, pointer: u64, usable: u64) -> Option<Refinement> {
        let claim = self.claim(pointer)?;
        let bytes = claim.bytes.map_or(usable, NonZeroU64::get);
        let fits = bytes <= usable && usable <= bytes.saturating_mul(2).saturating_add(MAX_SLACK_BYTES);
        fits.then_some(Refinement { slot: claim.slot, bytes, free: claim.free })
    }

    /// The claim on the block at `pointer`, whatever the block can hold.
    #[inline]
    fn claim(&mut self, pointer: u64) -> Option<Claim> {
        let leaf_number = pointer / LEAF_BYTES;
        if self.leaf_number != Some(leaf_number) {
            self.leaf_number = Some(leaf_number);
            self.marks = self.refinements.leaf(leaf_number).and_then(OnceLock::get).map(|leaf| &**leaf);
        }
        let mark = Mark(self.marks?.get(mark_index(pointer))?.load(Ordering::Relaxed));
        if mark == Mark::NONE || !pointer.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let short = mark.claim().filter(|_| mark.is_in_half_of(pointer));
        short.or_else(|| locked(&self.refinements.tabled).get(&pointer).copied())
    }

    /// The nested ranges within `start..end`, the payload of a block in use, in address order.
    #[inline]
    pub fn nested(&mut self, start: u64, end: u64) -> &'a [AddressRange] {
        match self.nested.first() {
            Some(first) if first.start < end => self.find_nested(start, end),
            _ => &[],
        }
    }

    /// Implements [`Finder::nested`] where there may be such ranges.
    fn find_nested(&mut self, start: u64, end: u64) -> &'a [AddressRange] {
        let first_index = self.nested.partition_point(|range| range.start < start);
        let end_index = self.nested.partition_point(|range| range.start < end);
        let mut within = self.nested.get(first_index..end_index).unwrap_or_default();
        self.nested = self.nested.get(end_index..).unwrap_or_default();
        // A range that extends past the end is not within the block.
        while let Some((last, others)) = within.split_last()
            && last.end > end
        {
            within = others;
        }
        within
    }
}

/// The claims that an allocator's reader matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// Matched claims by slot.
    pub by_slot: [MatchedSlot; SLOTS],
    /// Blocks with a claim of more than [`LARGE_BYTES`], in no order.
    pub large_blocks: Vec<LargeMatch>,
    /// Nested ranges found within blocks in use, in no order.
    pub nested: Vec<AddressRange>,
    /// All blocks in use, if wanted, without those that hold nested ranges.
    pub blocks: Option<Builder>,
}

/// A block with a large claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeMatch {
    /// The pointer that the allocator returned.
    pub pointer: u64,
    /// Claimed bytes.
    pub bytes: u64,
}

/// Matched blocks of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedSlot {
    /// Number of blocks.
    pub blocks: u64,
    /// Claimed bytes, resident or not.
    pub bytes: u64,
}

impl Matches {
    /// No matches yet; `keeps_blocks` if all blocks in use are wanted.
    pub fn new(keeps_blocks: bool) -> Self {
        Self { blocks: keeps_blocks.then(Builder::default), ..Self::default() }
    }

    /// Keeps a block in use, with the bytes that the program may use.
    #[inline]
    pub fn push_block(&mut self, pointer: u64, usable: u64) {
        if let Some(blocks) = &mut self.blocks {
            blocks.push(pointer, usable);
        }
    }

    /// Counts a matched claim at `pointer`.
    #[inline]
    pub fn count(&mut self, pointer: u64, refined: &Refinement) {
        if let Some(sum) = self.by_slot.get_mut(refined.slot.index()) {
            sum.blocks += 1;
            sum.bytes += refined.bytes;
        }
        if refined.bytes > LARGE_BYTES {
            self.large_blocks.push(LargeMatch { pointer, bytes: refined.bytes });
        }
    }

    /// Adds the matches of another walk, which may hold many blocks.
    pub fn add(&mut self, other: Self) {
        for (mine, theirs) in self.by_slot.iter_mut().zip(other.by_slot) {
            mine.blocks += theirs.blocks;
            mine.bytes += theirs.bytes;
        }
        self.large_blocks.extend(other.large_blocks);
        self.nested.extend(other.nested);
        if let Some(theirs) = other.blocks {
            self.blocks.get_or_insert_default().append(theirs);
        }
    }

    /// Keeps blocks with their own mappings, and matches the claims on them.
    pub fn add_mapped(&mut self, claims: Option<&Refinements>, blocks: &[MappedBlock]) {
        let mut blocks: Vec<&MappedBlock> = blocks.iter().collect();
        blocks.sort_unstable_by_key(|block| block.start);
        let mut finder = claims.map(Refinements::finder);
        for block in blocks {
            let usable = block.usable_end.saturating_sub(block.pointer);
            if let Some(finder) = &mut finder {
                let nested = finder.nested(block.pointer, block.usable_end);
                if !nested.is_empty() {
                    self.nested.extend_from_slice(nested);
                    continue;
                }
                if let Some(refined) = finder.find(block.pointer, usable) {
                    self.count(block.pointer, &refined);
                }
            }
            self.push_block(block.pointer, usable);
        }
    }

    /// Number of blocks in the given slots.
    pub fn count_of(&self, slots: impl IntoIterator<Item = Slot>) -> u64 {
        slots.into_iter().filter_map(|slot| self.by_slot.get(slot.index())).map(|sum| sum.blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::SlotEntry;

    fn slot(index: u8) -> Slot {
        Slot::new(index).unwrap()
    }

    #[test]
    fn a_claim_is_found_at_its_block_and_nowhere_else() {
        let claims = Refinements::new([(0x10_0000, 0x20_0000), (0x40_0000, 0x40_1000)]);
        assert!(claims.is_empty());
        assert!(claims.claim(0x10_0010, 20, slot(2)));
        assert!(!claims.claim(0x10_0010, 20, slot(3)), "taken");
        assert!(!claims.claim(0x10_0018, 20, slot(3)), "not aligned");
        assert!(!claims.claim(0x30_0010, 20, slot(3)), "not resident");
        assert!(!claims.claim(0, 20, slot(1)) && !claims.claim(!15, 20, slot(1)));
        assert!(!claims.is_empty());
        assert!(claims.is_claimed(0x10_0010) && !claims.is_claimed(0x10_0020));
        let mut finder = claims.finder();
        assert_eq!(finder.find(0x10_0010, 24), Some(Refinement { slot: slot(2), bytes: 20, free: None }));
        assert_eq!(finder.find(0x10_0010, 400).map(|refined| refined.bytes), Some(20), "much larger");
        assert_eq!(finder.find(0x10_0010, 4200), None, "a block of something else");
        assert_eq!(finder.find(0x10_0010, 16), None, "more than the block holds");
        assert_eq!(finder.find(0x10_0018, 24), None);
        assert_eq!(finder.find(0x10_0020, 24), None, "the next one");
        assert_eq!(finder.find(0x30_0010, 24), None);
    }

    #[test]
    fn long_ones_and_arenas_are_exact() {
        let claims = Refinements::new([(0x10_0000, 0x200_0000)]);
        assert!(claims.claim(0x10_0010, 800_002, slot(5)));
        assert!(claims.claim(0x20_0010, 1023, slot(23)) && claims.claim(0x20_1010, 1024, slot(23)));
        let free = FreeSlots { class: slot(7), bytes_on_pages: [96, 24] };
        assert!(claims.claim_arena(0x1ff_0010, 4080, slot(1), free));
        let mut finder = claims.finder();
        assert_eq!(finder.find(0x10_0010, 802_800).map(|refined| refined.bytes), Some(800_002));
        assert_eq!(finder.find(0x10_0010, 8000), None, "more than the block holds");
        for (pointer, bytes) in [(0x20_0010, 1023), (0x20_1010, 1024)] {
            assert_eq!(finder.find(pointer, 2064), Some(Refinement { slot: slot(23), bytes, free: None }));
        }
        let arena = finder.find(0x1ff_0010, 4088).unwrap();
        assert_eq!((arena.bytes, arena.free), (4080, Some(free)));
        let mut matched = Matches::default();
        matched.count(0x10_0010, &Refinement { slot: slot(5), bytes: 800_002, free: None });
        matched.count(0x1ff_0010, &arena);
        assert_eq!(matched.large_blocks, [LargeMatch { pointer: 0x10_0010, bytes: 800_002 }]);
        assert_eq!((matched.count_of([slot(5), slot(1)]), matched.count_of([slot(2)])), (2, 0));
    }

    #[test]
    fn memory_of_others_is_found_in_the_block_that_holds_all_of_it() {
        let mut claims = Refinements::default();
        claims.nest([(0x3000, 0x4000), (0x1000, 0x2000), (0x1800, 0x3800), (0x9000, 0x9000)]);
        claims.nest([(0x7000, 0x9000), (0x4000, 0x5000)]);
        assert!(!claims.is_empty());
        let mut finder = claims.finder();
        assert_eq!(finder.nested(0, 0x1000), []);
        assert_eq!(finder.nested(0x1010, 0x2500), [], "it starts before the block");
        assert_eq!(
            finder.nested(0x2ff0, 0x5010),
            [(0x3000, 0x4000), (0x4000, 0x5000)].map(AddressRange::from)
        );
        assert_eq!(finder.nested(0x6000, 0x8000), [], "it ends behind the block");
        assert_eq!(finder.nested(0x8000, 0xf000), []);
    }

    /// Some allocators have adjacent blocks of 16 bytes.
    #[test]
    fn two_blocks_may_start_in_the_same_32_bytes() {
        let claims = Refinements::new([(0x10_0000, 0x20_0000)]);
        assert!(claims.claim(0x10_0010, 16, slot(1)) && claims.claim(0x10_0000, 12, slot(2)));
        assert!(!claims.claim(0x10_0000, 12, slot(2)) && !claims.claim(0x10_0010, 16, slot(1)), "taken");
        let mut finder = claims.finder();
        let found = [0x10_0000, 0x10_0010, 0x10_0020].map(|pointer| finder.find(pointer, 16));
        assert_eq!(found[0], Some(Refinement { slot: slot(2), bytes: 12, free: None }));
        assert_eq!(found[1], Some(Refinement { slot: slot(1), bytes: 16, free: None }));
        assert_eq!(found[2], None);
    }

    /// Memory that a hostile program makes us allocate is bounded by what it has resident, for any
    /// number of claims.
    #[test]
    fn the_table_is_bounded() {
        let claims = Refinements::new([(0x10_0000, 0x11_0000)]);
        let kept = (0..0x1000u64).filter(|n| claims.claim(0x10_0000 + n * 16, 5000, slot(1))).count();
        assert_eq!(kept, MAX_TABLE_ENTRIES_PER_LEAF);
    }

    #[test]
    fn nested_ranges_are_merged_into_the_outermost() {
        let mut claims = Refinements::default();
        claims.nest([(0x1000, 0x2000), (0x1000, 0x9000), (0x1000, 0x9000), (0x3000, 0x4000)]);
        assert_eq!(claims.finder().nested(0, 0x10000), [AddressRange::new(0x1000, 0x9000)]);
    }

    #[test]
    fn mapped_blocks_with_nested_ranges_are_not_kept() {
        let mut claims = Refinements::new([(0x10_0000, 0x20_0000)]);
        claims.nest([(0x11_0000, 0x12_0000)]);
        assert!(claims.claim(0x14_0010, 0x8000, slot(2)));
        let block = |start: u64| {
            let end = start + 0x3_0000;
            MappedBlock { start, pointer: start + 16, usable_end: end, end }
        };
        let mut matched = Matches::new(true);
        matched.add_mapped(Some(&claims), &[block(0x14_0000), block(0x10_0000)]);
        assert_eq!(matched.nested, [AddressRange::new(0x11_0000, 0x12_0000)]);
        assert_eq!(matched.count_of([slot(2)]), 0, "much larger than the claim");
        let blocks = matched.blocks.unwrap().finish().unwrap();
        assert_eq!((blocks.len(), blocks.bytes(0)), (1, 0x3_0000 - 16));
        let mut all = Matches::new(true);
        all.add_mapped(None, &[block(0x14_0000), block(0x10_0000)]);
        assert_eq!(all.blocks.unwrap().finish().unwrap().len(), 2);
    }

    #[test]
    fn runtimes_share_the_slots() {
        let claims = Refinements::default();
        let (one, other) = (&crate::rows::ZERO, &crate::rows::FILE);
        let first = claims.slot(one, None).unwrap();
        assert_eq!(claims.slot(one, None), Some(first));
        let second = claims.slot(other, Some("who")).unwrap();
        assert_ne!(first, second);
        let entry = SlotEntry { row: other, holder: Some("who".to_owned()) };
        assert_eq!(claims.palette().get(second), Some(&entry));
        let taken = (0..SLOTS * 2).filter_map(|n| claims.slot(other, Some(&n.to_string()))).count();
        assert_eq!(taken, SLOTS - 2);
    }

    #[test]
    fn threads_claim_at_once() {
        let claims = Refinements::new([(0, 0x100_0000)]);
        let count: usize = std::thread::scope(|scope| {
            let all = |_| (0..0x8000u64).filter(|n| claims.claim(n * 32 + 16, 8, slot(0))).count();
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || all(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(count, 0x8000, "each but once");
    }
}

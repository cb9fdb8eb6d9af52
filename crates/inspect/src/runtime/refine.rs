//! What language runtimes say of chunks that malloc holds in use: finer claims inside its own.
//!
//! A runtime's reader claims chunks by the pointers that malloc returned. Nothing is believed of them: an
//! allocator's walk asks at each chunk that it holds in use itself, and only there a claim counts. Where
//! the two disagree (a damaged or hostile pointer, another allocator) a claim matches nothing.
//!
//! A heap of millions of strings costs a byte for each 32 bytes of heap that it spans, the size of malloc's
//! smallest chunk. The byte has the slot, which half of the 32 bytes the chunk starts in, and
//! the length modulo 16: with the chunk's own size, that is the length. Long chunks and arenas stand in a
//! table besides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::layout::glibc::CHUNK_HEADER_BYTES;
use crate::ledger::accumulator::{Refined, Slot};

/// Slots from 0 to this may be claimed for chunks; others are for parts of arenas.
pub const CHUNK_SLOTS: usize = 7;
/// A claim of more bytes than this is kept exactly, and matched by itself (see [`Matched::large`]).
pub const LARGE_BYTES: u64 = 4096;
/// Arenas are of about a page: no shorter chunk stands in the table.
const SHORTEST_TABLED_BYTES: u64 = 2048;
const LEAF_BYTES: u64 = 64 << 10;
const GRANULE_BYTES: u64 = 32;
const MARKS: usize = (LEAF_BYTES / GRANULE_BYTES) as usize;

type Leaf = OnceLock<Box<[AtomicU8; MARKS]>>;

/// All claims of a process's runtimes inside its allocators' chunks. Readers' threads may claim at once.
#[derive(Default)]
pub struct Refinements {
    /// The numbers of the leaves, in order: those that hold resident private memory. A pointer elsewhere is
    /// refused, so that pointers cannot make us allocate more than a part of the target's resident bytes.
    numbers: Vec<u64>,
    leaves: Vec<Leaf>,
    /// By how much a leaf's number was last above its place: most of a heap is in one piece.
    ahead: AtomicU64,
    large: Mutex<HashMap<u64, Large>>,
}

#[derive(Clone, Copy)]
struct Large {
    bytes: u64,
    free: Option<(Slot, [u16; 2])>,
}

impl Refinements {
    /// No claims, over memory whose resident private writable parts are `runs`, in address order.
    pub fn new(runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut numbers: Vec<u64> = Vec::new();
        for (start, end) in runs {
            let last = end.saturating_sub(1) / LEAF_BYTES;
            let first = (start / LEAF_BYTES).max(numbers.last().map_or(0, |&number| number + 1));
            numbers.extend(first..=last);
        }
        let leaves = numbers.iter().map(|_| OnceLock::new()).collect();
        Self { numbers, leaves, ahead: AtomicU64::new(0), large: Mutex::default() }
    }

    /// Claims the first `bytes` of the chunk that malloc returned `pointer` for. False where it is refused: not
    /// aligned, not resident, of a slot that no chunk may have, or claimed already.
    pub fn claim(&self, pointer: u64, bytes: u64, slot: Slot) -> bool {
        self.put(pointer, bytes, slot, None)
    }

    /// Claims an arena of the runtime's own: `free_on_pages` are the bytes of its free places on the first and
    /// the second page that it touches, which are `free`'s.
    pub fn claim_arena(
        &self,
        pointer: u64,
        bytes: u64,
        slot: Slot,
        free: Slot,
        free_on_pages: [u16; 2],
    ) -> bool {
        self.put(pointer, bytes, slot, Some((free, free_on_pages)))
    }

    fn put(&self, pointer: u64, bytes: u64, slot: Slot, free: Option<(Slot, [u16; 2])>) -> bool {
        if pointer < CHUNK_HEADER_BYTES
            || !pointer.is_multiple_of(16)
            || bytes == 0
            || slot.index() >= CHUNK_SLOTS
        {
            return false;
        }
        let chunk = pointer - CHUNK_HEADER_BYTES;
        let Some(leaf) = self.leaf(chunk / LEAF_BYTES) else { return false };
        let marks = leaf.get_or_init(|| Box::new([const { AtomicU8::new(0) }; MARKS]));
        let Some(mark) = marks.get(place(chunk)) else { return false };
        let wanted = (slot.index() as u8 + 1) << 5 | half(chunk) << 4 | (bytes % 16) as u8;
        if mark.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        if (bytes > LARGE_BYTES || free.is_some())
            && let Ok(mut large) = self.large.lock()
        {
            large.insert(chunk, Large { bytes, free });
        }
        true
    }

    fn leaf(&self, number: u64) -> Option<&Leaf> {
        let likely = usize::try_from(number.wrapping_sub(self.ahead.load(Ordering::Relaxed))).ok();
        let likely = likely.filter(|&index| self.numbers.get(index) == Some(&number));
        let index = match likely {
            Some(index) => index,
            None => {
                let index = self.numbers.binary_search(&number).ok()?;
                self.ahead.store(number.wrapping_sub(index as u64), Ordering::Relaxed);
                index
            }
        };
        self.leaves.get(index)
    }

    /// Whether nothing was claimed.
    pub fn is_empty(&self) -> bool {
        self.leaves.iter().all(|leaf| leaf.get().is_none())
    }

    /// Finds what is claimed of chunks that are asked for in address order.
    pub fn finder(&self) -> Finder<'_> {
        Finder { refinements: self, number: u64::MAX, marks: None }
    }
}

fn place(chunk: u64) -> usize {
    (chunk % LEAF_BYTES / GRANULE_BYTES) as usize
}

/// Chunks are 32 bytes or more: two never start in the same 32.
fn half(chunk: u64) -> u8 {
    (chunk / 16 % 2) as u8
}

/// See [`Refinements::finder`].
pub struct Finder<'a> {
    refinements: &'a Refinements,
    number: u64,
    marks: Option<&'a [AtomicU8; MARKS]>,
}

impl Finder<'_> {
    /// What a runtime says of the chunk at `chunk` (its header, not its pointer), which can hold `usable` bytes.
    /// Nothing where it says that there is more in it than it can hold.
    #[inline]
    pub fn find(&mut self, chunk: u64, usable: u64) -> Option<Refined> {
        let number = chunk / LEAF_BYTES;
        if number != self.number {
            self.number = number;
            self.marks = self.refinements.leaf(number).and_then(OnceLock::get).map(|leaf| &**leaf);
        }
        let mark = self.marks?.get(place(chunk))?.load(Ordering::Relaxed);
        if mark == 0 || (mark >> 4) & 1 != half(chunk) {
            return None;
        }
        let slot = Slot::new((mark >> 5) - 1)?;
        let known = (usable >= SHORTEST_TABLED_BYTES).then(|| self.large(chunk)).flatten();
        let (bytes, free) = match known {
            Some(known) => (known.bytes, known.free),
            // A short claim of a long chunk is of something else.
            None if usable > LARGE_BYTES + GRANULE_BYTES => return None,
            None => (usable.checked_sub(usable.wrapping_sub(u64::from(mark)) % 16)?, None),
        };
        (bytes <= usable).then_some(Refined { slot, bytes, free })
    }

    fn large(&self, chunk: u64) -> Option<Large> {
        self.refinements.large.lock().ok()?.get(&chunk).copied()
    }
}

/// What an allocator's walk matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// By slot.
    pub by_slot: [MatchedSlot; CHUNK_SLOTS],
    /// The pointers of the chunks with more than [`LARGE_BYTES`], in no order.
    pub large: Vec<u64>,
}

/// Chunks of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedSlot {
    /// How many.
    pub chunks: u64,
    /// Their bytes, resident or not, as the runtime says.
    pub bytes: u64,
}

impl Matched {
    /// Counts a match at `chunk`.
    #[inline]
    pub fn count(&mut self, chunk: u64, refined: &Refined) {
        if let Some(sum) = self.by_slot.get_mut(refined.slot.index()) {
            sum.chunks += 1;
            sum.bytes += refined.bytes;
        }
        if refined.bytes > LARGE_BYTES {
            self.large.push(chunk + CHUNK_HEADER_BYTES);
        }
    }

    /// Adds another walk's matches.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.by_slot.iter_mut().zip(other.by_slot) {
            mine.chunks += theirs.chunks;
            mine.bytes += theirs.bytes;
        }
        self.large.extend_from_slice(&other.large);
    }

    /// Adds the claims on chunks that are mappings of their own: start and end of each.
    pub fn add_mapped(&mut self, claims: &Refinements, mapped: impl Iterator<Item = (u64, u64)>) {
        let mut finder = claims.finder();
        for (start, end) in mapped {
            let usable = end.saturating_sub(start).saturating_sub(CHUNK_HEADER_BYTES);
            if let Some(refined) = finder.find(start, usable) {
                self.count(start, &refined);
            }
        }
    }

    /// All chunks.
    pub fn chunks(&self) -> u64 {
        self.by_slot.iter().map(|slot| slot.chunks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u8) -> Slot {
        Slot::new(index).unwrap()
    }

    #[test]
    fn a_claim_is_found_at_its_chunk_and_nowhere_else() {
        let claims = Refinements::new([(0x10_0000, 0x20_0000), (0x40_0000, 0x40_1000)]);
        assert!(claims.is_empty());
        assert!(claims.claim(0x10_0010, 20, slot(2)));
        assert!(!claims.claim(0x10_0010, 20, slot(3)), "taken");
        assert!(!claims.claim(0x10_0018, 20, slot(3)), "not aligned");
        assert!(!claims.claim(0x30_0010, 20, slot(3)), "not resident");
        assert!(!claims.claim(0x10_0050, 20, slot(7)), "no chunk's slot");
        assert!(!claims.claim(0, 20, slot(1)) && !claims.claim(!15, 20, slot(1)));
        assert!(!claims.is_empty());
        let mut finder = claims.finder();
        assert_eq!(finder.find(0x10_0000, 24), Some(Refined { slot: slot(2), bytes: 20, free: None }));
        assert_eq!(finder.find(0x10_0000, 40).map(|refined| refined.bytes), Some(36), "modulo 16");
        assert_eq!(finder.find(0x10_0010, 24), None, "the other half");
        assert_eq!(finder.find(0x30_0000, 24), None);
    }

    #[test]
    fn long_ones_and_arenas_are_exact() {
        let claims = Refinements::new([(0x10_0000, 0x200_0000)]);
        assert!(claims.claim(0x10_0010, 800_002, slot(5)));
        assert!(claims.claim_arena(0x1ff_0010, 4080, slot(1), slot(7), [96, 24]));
        let mut finder = claims.finder();
        assert_eq!(finder.find(0x10_0000, 802_800).map(|refined| refined.bytes), Some(800_002));
        assert_eq!(finder.find(0x10_0000, 8000), None, "more than the chunk holds");
        let arena = finder.find(0x1ff_0000, 4088).unwrap();
        assert_eq!((arena.bytes, arena.free), (4080, Some((slot(7), [96, 24]))));
        let mut matched = Matched::default();
        matched.count(0x10_0000, &Refined { slot: slot(5), bytes: 800_002, free: None });
        matched.count(0x1ff_0000, &arena);
        assert_eq!((matched.large.as_slice(), matched.chunks()), ([0x10_0010].as_slice(), 2));
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

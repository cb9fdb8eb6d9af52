//! Finds the chunks in fastbins without following the lists through the target's memory.
//!
//! A fastbin can hold millions of chunks in random order, and following it from outside takes a
//! system call per step. The walk passes every chunk anyway: it treats each small chunk whose link
//! points into the arena (or ends the list) as a member, and records chunk and link as a
//! [`Candidate`]. The candidates include every true member, and sometimes a chunk in use that still
//! holds an old link.
//!
//! Exactly one link or head points to each member. So if the candidates are exactly what the links
//! and heads point to, which two sums of hashes show, each candidate is on a list or on a closed
//! ring of candidates. glibc makes no rings, because its lists are LIFO; a ring written by the
//! program makes its chunks count as free. If not, the lists are followed from candidate to
//! candidate here, and the parts of the walk with a false member are walked again.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::layout;
use super::lists::LinkEncoding;
use strandline_claims::bits;
use strandline_process::range::AddressRange;

/// A chunk and the target of its link, as numbers: 16-byte units of the arena's ranges laid end to
/// end, from 1 on. A link of 0 ends the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the chunk.
    number: u32,
    /// Number of the chunk that its link points to.
    next_number: u32,
}

/// Minimum number of candidates for which a walk asks for memory at once; near the end of the
/// budget it gets fewer.
const MIN_RESERVED: usize = 256;

/// Bound on the candidates for which all walks together reserve memory: the target's heap may be
/// full of chunks that look like members.
#[derive(Debug, Default)]
pub struct CandidateBudget {
    remaining: AtomicUsize,
    is_used_up: AtomicBool,
}

impl CandidateBudget {
    /// A budget of `bytes` of memory. It counts each candidate twice: a growing list is in its old
    /// and its new place for a moment, and `follow_lists` copies all candidates.
    pub fn new(bytes: u64) -> Self {
        let candidate_bytes = 2 * size_of::<Candidate>() as u64;
        let remaining = usize::try_from(bytes / candidate_bytes).unwrap_or(usize::MAX);
        Self { remaining: AtomicUsize::new(remaining), is_used_up: AtomicBool::new(false) }
    }

    /// Reserves memory in `candidates` for at least one more; false once the budget is used up.
    /// What counts is the memory that they reserve, hence not `push` alone, which would double it.
    pub fn grow(&self, candidates: &mut Vec<Candidate>) -> bool {
        if candidates.len() < candidates.capacity() {
            return true;
        }
        let additional = self.take((candidates.capacity() / 2).max(MIN_RESERVED));
        candidates.reserve_exact(additional);
        additional > 0
    }

    /// Gives back the memory that `candidates` do not need.
    pub fn give_back(&self, candidates: &mut Vec<Candidate>) {
        let capacity_before = candidates.capacity();
        candidates.shrink_to_fit();
        self.remaining.fetch_add(capacity_before.saturating_sub(candidates.capacity()), Ordering::Relaxed);
    }

    /// Takes up to `wanted` candidates from the budget. Returns their number; 0 once it is used up.
    fn take(&self, wanted: usize) -> usize {
        let decrement = |remaining: usize| (remaining > 0).then(|| remaining.saturating_sub(wanted));
        match self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement) {
            Ok(remaining) => remaining.min(wanted),
            Err(_) => {
                self.is_used_up.store(true, Ordering::Relaxed);
                0
            }
        }
    }

    /// Whether the budget was too small for some candidates.
    pub fn is_used_up(&self) -> bool {
        self.is_used_up.load(Ordering::Relaxed)
    }
}

/// What links may point to in one arena.
#[derive(Clone, Debug, Default)]
pub struct LinkTargets {
    ranges: Vec<NumberedRange>,
    /// From the start of the first range to the end of the last one.
    span: Range<u64>,
    /// The first chunk of each fastbin, by size; 0 for an empty one.
    heads: Vec<u64>,
}

/// A range of an arena, in units of 16 bytes that are numbered.
#[derive(Clone, Copy, Debug, Default)]
struct NumberedRange {
    start: u64,
    end: u64,
    /// The number of its first unit.
    first_number: u32,
}

impl LinkTargets {
    /// The targets in an arena with these ranges (sorted) and these first chunks of fastbins, 0 for
    /// an empty one; `None` with more than 64 GiB of ranges, which have too many units to number.
    pub fn new(ranges: &[AddressRange], heads: &[u64]) -> Option<Self> {
        let (start, end) =
            (ranges.first().map_or(0, |range| range.start), ranges.last().map_or(0, |range| range.end));
        let mut targets =
            Self { ranges: Vec::with_capacity(ranges.len()), span: start & !15..end, heads: heads.to_vec() };
        let mut number = 1u32;
        for &AddressRange { start, end } in ranges {
            let start = start & !15;
            targets.ranges.push(NumberedRange { start, end, first_number: number });
            let count = u32::try_from((end - start).div_ceil(16)).ok();
            number = number.checked_add(count?)?;
        }
        Some(targets)
    }

    /// Whether chunks of `bytes` may be in a fastbin.
    #[inline]
    pub fn may_hold(&self, bytes: u64) -> bool {
        let above_min = bytes.checked_sub(layout::MIN_CHUNK_BYTES);
        let head = above_min.and_then(|above| self.heads.get((above / layout::ALIGNMENT) as usize));
        head.is_some_and(|&head| head != 0)
    }

    /// Returns the number of the unit at `address`: 0 for the end of a list, `None` outside the
    /// arena.
    #[inline]
    fn number(&self, address: u64) -> Option<u32> {
        if address == 0 {
            return Some(0);
        }
        // Most words that are looked up are contents of chunks in use, and point nowhere.
        if !address.is_multiple_of(16) || !self.span.contains(&address) {
            return None;
        }
        self.number_within(address)
    }

    fn number_within(&self, address: u64) -> Option<u32> {
        let index = self.ranges.partition_point(|range| range.end <= address);
        let range = self.ranges.get(index).filter(|range| range.start <= address)?;
        Some(range.first_number + ((address - range.start) / 16) as u32)
    }

    /// Returns the chunk at `address` with the link word `link` (its `fd`), if it may be a member.
    #[inline]
    pub fn candidate(&self, address: u64, link: u64, links: LinkEncoding) -> Option<Candidate> {
        let next_number = self.number(links.decode(link, address + layout::CHUNK_FORWARD))?;
        Some(Candidate { number: self.number(address)?, next_number })
    }

    /// Returns the address of a candidate, which is in one of the ranges.
    pub fn address(&self, candidate: Candidate) -> u64 {
        let index = self.ranges.partition_point(|range| range.first_number <= candidate.number);
        let range = self.ranges.get(index.saturating_sub(1)).copied().unwrap_or_default();
        range.start + u64::from(candidate.number.saturating_sub(range.first_number)) * 16
    }
}

/// Hashes a number to 64 bits (the finisher of splitmix64), so that equal sums mean equal sets, but
/// for chance.
fn hash(number: u32) -> u64 {
    let mut mixed = u64::from(number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Which candidates are members.
#[derive(Debug, PartialEq, Eq)]
pub enum Membership {
    /// All are members.
    AllMembers,
    /// Only candidates whose bit is set are members.
    Members {
        /// One bit per candidate, in the order given.
        members: Vec<u64>,
        /// Heads of the lists that did not end properly: damaged, or mid-update.
        broken_lists: Vec<u64>,
    },
}

/// Decides which candidates are members. `slices` together are the arena's candidates in address
/// order.
pub fn separate_members(targets: &LinkTargets, slices: &[&[Candidate]]) -> Membership {
    let lists: Vec<u64> = targets.heads.iter().copied().filter(|&head| head != 0).collect();
    let mut balance = (lists.len() as u64).wrapping_mul(hash(0));
    for candidate in slices.iter().copied().flatten() {
        balance = balance.wrapping_add(hash(candidate.number)).wrapping_sub(hash(candidate.next_number));
    }
    for &head in &lists {
        balance = balance.wrapping_sub(hash(targets.number(head).unwrap_or(u32::MAX)));
    }
    if balance == 0 { Membership::AllMembers } else { follow_lists(targets, slices, &lists) }
}

/// Units per entry of the index: 64 KiB of heap.
const UNITS_PER_ENTRY: u32 = 4096;

/// Follows every list from candidate to candidate.
fn follow_lists(targets: &LinkTargets, slices: &[&[Candidate]], heads: &[u64]) -> Membership {
    let candidates: Vec<Candidate> = slices.concat();
    let last_number = candidates.last().map_or(0, |candidate| candidate.number);
    // The position of the first candidate of each entry.
    let mut index: Vec<u32> = Vec::with_capacity((last_number / UNITS_PER_ENTRY) as usize + 2);
    for (position, candidate) in candidates.iter().enumerate() {
        while index.len() as u32 <= candidate.number / UNITS_PER_ENTRY {
            index.push(position as u32);
        }
    }
    index.push(candidates.len() as u32);
    let find = |number: u32| {
        let entry = (number / UNITS_PER_ENTRY) as usize;
        let (from, to) = (*index.get(entry)? as usize, *index.get(entry + 1)? as usize);
        let offset =
            candidates.get(from..to)?.binary_search_by_key(&number, |candidate| candidate.number).ok()?;
        Some(from + offset)
    };
    let mut members = vec![0u64; candidates.len().div_ceil(64)];
    let mut broken_lists = Vec::new();
    for &head in heads {
        let mut number = targets.number(head).unwrap_or(u32::MAX);
        while number != 0 {
            let position = find(number).filter(|&position| !bits::has(&members, position));
            let Some(position) = position else {
                broken_lists.push(head);
                break;
            };
            bits::set(&mut members, position);
            number = candidates[position].next_number;
        }
    }
    Membership::Members { members, broken_lists }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x5555_0000_0000;

    fn targets(heads: &[u64]) -> LinkTargets {
        LinkTargets::new(&[(0x1000, 0x1028), (BASE, BASE + 0x100_0000)].map(AddressRange::from), heads)
            .unwrap()
    }

    fn linked(targets: &LinkTargets, chain: &[u64]) -> Vec<Candidate> {
        let protect = |to: u64, from: u64| to ^ ((from + 16) >> 12);
        let mut candidates: Vec<_> = (0..chain.len())
            .map(|i| {
                let next = chain.get(i + 1).copied().unwrap_or(0);
                targets.candidate(chain[i], protect(next, chain[i]), LinkEncoding::Protected).unwrap()
            })
            .collect();
        candidates.sort_by_key(|candidate| candidate.number);
        candidates
    }

    #[test]
    fn complete_lists_balance() {
        let chain: Vec<u64> = (0..5000).map(|n| BASE + (n * 7919 % 0xf000) * 0x100).collect();
        let targets = targets(&[0, chain[0]]);
        let candidates = linked(&targets, &chain);
        let (front, back) = candidates.split_at(1234);
        assert_eq!(separate_members(&targets, &[front, back]), Membership::AllMembers);
        assert!(targets.may_hold(48) && !targets.may_hold(32) && !targets.may_hold(64));
        assert!(!targets.may_hold(16), "no chunk is that small");
    }

    #[test]
    fn a_chunk_in_use_with_an_old_link_is_no_member() {
        let chain: Vec<u64> = (1..100).map(|n| BASE + n * 0x20040).collect();
        let targets = targets(&[chain[0]]);
        let mut candidates = linked(&targets, &chain);
        let in_use = Candidate { number: candidates[50].number + 5, next_number: candidates[7].number };
        candidates.insert(51, in_use);
        let Membership::Members { members, broken_lists } = separate_members(&targets, &[&candidates]) else {
            panic!("balanced")
        };
        assert!(broken_lists.is_empty());
        assert_eq!(targets.address(candidates[0]), *chain.iter().min().unwrap());
        let members: Vec<usize> = (0..candidates.len()).filter(|&i| bits::has(&members, i)).collect();
        assert_eq!(members.len(), 99);
        assert!(!members.contains(&51));
    }

    #[test]
    fn budget_for_candidates_ends() {
        let budget = CandidateBudget::new(300 * 16);
        assert_eq!((budget.take(256), budget.take(256), budget.is_used_up()), (256, 44, false));
        assert_eq!((budget.take(256), budget.is_used_up()), (0, true));
    }

    #[test]
    fn budget_for_candidates_counts_reserved_memory() {
        let budget = CandidateBudget::new(2000 * 16);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        while budget.grow(&mut first) && first.len() < 900 {
            first.push(Candidate { number: 1, next_number: 0 });
        }
        let reserved = first.capacity();
        assert!(reserved > 900, "growth is reserved in steps");
        budget.give_back(&mut first);
        assert_eq!(first.len(), 900);
        while budget.grow(&mut second) {
            second.push(Candidate { number: 1, next_number: 0 });
        }
        assert!(budget.is_used_up());
        assert_eq!(first.capacity() + second.capacity(), 2000, "the bound holds, and all of it is used");
        assert_eq!(second.len(), second.capacity());
    }

    #[test]
    fn cycles_and_dangling_links_end() {
        let chain = [BASE + 0x100, BASE + 0x200, BASE + 0x300];
        let targets = targets(&[chain[0]]);
        let mut candidates = linked(&targets, &chain);
        candidates[2].next_number = candidates[0].number;
        assert!(matches!(
            separate_members(&targets, &[&candidates]),
            Membership::Members { broken_lists, .. } if broken_lists == [chain[0]]
        ));
        candidates[2].next_number = candidates[2].number + 1;
        assert!(matches!(
            separate_members(&targets, &[&candidates]),
            Membership::Members { broken_lists, .. } if broken_lists == [chain[0]]
        ));
    }

    #[test]
    fn an_arena_too_wide_for_numbers_has_no_targets() {
        let ranges = [(0x1000, 0x2000), (1 << 40, 2 << 40)].map(AddressRange::from);
        assert!(LinkTargets::new(&ranges, &[0x1000]).is_none());
    }
}

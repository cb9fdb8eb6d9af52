//! Sets of roots: for each block that no single root retains, the roots that reach it.
//!
//! A block that several roots reach is a *member*. The search, one root after another, has numbered
//! each block in the tree of the first root that reaches it. A block in an earlier tree that a
//! later tree refers to is an *entry*; members are the entries and everything that they reach. A
//! strongly connected component of members, a *ring*, has one set. So rings are found first (Tarjan
//! 1972), and sets are then propagated from each ring to those that it leads to, in topological
//! order.
//!
//! Members form whole subtrees of the search. Their numbers are in the order in which the search
//! entered them, and with the parents they say when it left each. So the walk of the search is
//! repeated without a stack, forwards to find rings and backwards to propagate sets.
//!
//! A set holds its lowest [`MAX_ROOTS`] roots, and whether there are more: sets that differ only
//! beyond those are merged.

use std::collections::HashMap;

use strandline_sys::own_memory::prefetch;

use crate::arrays::{NONE, PREFETCH_DISTANCE, Refused, array, push, reserved};
use crate::blocks::Blocks;
use crate::held::Sum;
use crate::marks::{BlockSet, RankedSet};
use crate::reach::{Search, vertices_of};

/// Maximum number of roots that a set lists.
pub const MAX_ROOTS: usize = 32;
/// Maximum number of sets, so that an index fits 16 bits; blocks of further ones share one set
/// without roots.
const MAX_SETS: usize = 60_000;
/// Maximum number of cached unions.
const MAX_UNIONS: usize = 1 << 17;
/// Maximum number of pairs of a set and a root for which direct references are counted: the counts
/// only order the roots of a set.
const MAX_PAIRS: usize = 1 << 18;
/// Least number of elements by which a queue grows.
const MIN_GROWTH: usize = 1 << 12;

/// Blocks that the same roots reach, and none of them alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedSet {
    /// The roots, in descending order of the references into the set from the root or from what it
    /// alone retains. Empty for the blocks of all sets beyond the maximum.
    pub roots: Vec<u32>,
    /// Whether further roots reach the blocks.
    pub has_more: bool,
    /// The blocks.
    pub sum: Sum,
}

/// Blocks that several roots reach, by set, largest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sharing {
    pub members: RankedSet,
    /// Index in `sets` of the set of each member, by rank.
    set_of_member: Vec<u16>,
    pub sets: Vec<SharedSet>,
}

impl Sharing {
    /// Index in `sets` of the set of the block with this number; `None` if it is no member.
    pub fn set(&self, number: u32) -> Option<u16> {
        self.set_of_member.get(self.members.rank(number)? as usize).copied()
    }
}

/// Finds the set of each block that several roots reach. `entries` come from the search;
/// `first_unreachable` is the first number that no root reaches.
pub(crate) fn find(
    search: &mut Search,
    blocks: &Blocks,
    entries: &BlockSet,
    first_unreachable: u32,
) -> Result<Sharing, Refused> {
    if entries.iter().next().is_none() {
        return Ok(Sharing::default());
    }
    let vertices = vertices_of(&search.numbers)?;
    let members = RankedSet::new(find_members(search, &vertices, entries)?)?;
    let count = members.count() as usize;
    let (firsts, complete_rings) = (array(count, 0)?, BlockSet::new(members.count())?);
    let mut walk = Walk {
        search,
        vertices,
        members,
        firsts,
        complete_rings,
        set_of_ring: Vec::new(),
        sets: SetTable::new(),
    };
    walk.find_rings()?;
    walk.set_of_ring = array(count, EMPTY)?;
    walk.add_direct_roots(first_unreachable)?;
    walk.propagate_all()?;
    walk.finish(blocks, first_unreachable)
}

/// The entries and everything that they reach, breadth first, so that accesses can be prefetched.
fn find_members(search: &mut Search, vertices: &[u32], entries: &BlockSet) -> Result<BlockSet, Refused> {
    let Search { edges, deadline_check, .. } = search;
    let mut members = entries.clone();
    let mut queue: Vec<u32> = Vec::new();
    entries.iter().try_for_each(|entry| push(&mut queue, entry, MIN_GROWTH))?;
    let mut next = 0;
    while let Some(&number) = queue.get(next) {
        deadline_check.step()?;
        if let Some(&upcoming) = queue.get(next + 2 * PREFETCH_DISTANCE) {
            prefetch(vertices, upcoming as usize);
        }
        if let Some(&upcoming) = queue.get(next + PREFETCH_DISTANCE) {
            edges.references.prefetch(vertices[upcoming as usize]);
        }
        next += 1;
        for &mut target in edges.targets_mut(vertices[number as usize]) {
            if target != NONE && members.set(target) {
                push(&mut queue, target, MIN_GROWTH)?;
            }
        }
    }
    Ok(members)
}

/// The member [`PREFETCH_DISTANCE`] steps ahead.
fn ahead(member: Option<u32>, step: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    (0..PREFETCH_DISTANCE).try_fold(member?, |at, _| step(at))
}

/// The walk of the search, repeated over the members.
struct Walk<'a> {
    search: &'a mut Search,
    /// The vertex of each number.
    vertices: Vec<u32>,
    members: RankedSet,
    /// For each member, by rank, a member of its ring that the walk entered earlier, or itself.
    firsts: Vec<u32>,
    /// First members of complete rings, by rank.
    complete_rings: BlockSet,
    /// The set of each ring, at the rank of its first member.
    set_of_ring: Vec<u32>,
    sets: SetTable,
}

impl Walk<'_> {
    /// The first known member of the ring of a member. Shortens the path on the way (path halving),
    /// hence `&mut`.
    #[inline]
    fn find_first(firsts: &mut [u32], mut rank: u32) -> u32 {
        loop {
            let up = firsts[rank as usize];
            let next = firsts[up as usize];
            if next == up {
                return up;
            }
            firsts[rank as usize] = next;
            rank = next;
        }
    }

    /// The parent of a number in the search if it is a member, else [`NONE`].
    fn parent(&self, number: u32) -> u32 {
        let parent = self.search.parents[number as usize];
        if self.members.has(parent) { parent } else { NONE }
    }

    /// Finds rings: a member is the first of its ring if, when the walk leaves it, it leads to no
    /// incomplete ring with an earlier first member.
    fn find_rings(&mut self) -> Result<(), Refused> {
        (0..).zip(&mut self.firsts).for_each(|(rank, first)| *first = rank);
        let mut next = self.members.first();
        let mut upcoming = ahead(next, |at| self.members.after(at));
        while let Some(number) = next {
            next = self.members.after(number);
            upcoming = upcoming.and_then(|upcoming| {
                self.prefetch_references(upcoming);
                self.members.after(upcoming)
            });
            let stop = next.map_or(NONE, |next| self.parent(next));
            let mut at = number;
            while at != stop && at != NONE {
                self.search.deadline_check.step()?;
                self.leave(at);
                at = self.parent(at);
            }
        }
        Ok(())
    }

    /// Prefetches the references of a member.
    #[inline]
    fn prefetch_references(&self, number: u32) {
        self.search.edges.references.prefetch(self.vertices[number as usize]);
    }

    /// Sets the first member of a ring when the walk leaves the member `number`.
    fn leave(&mut self, number: u32) {
        let Self { search, vertices, members, firsts, complete_rings, .. } = self;
        let Some(rank) = members.rank(number) else { return };
        let mut least = rank;
        for &mut target in search.edges.targets_mut(vertices[number as usize]) {
            if let Some(target) = members.rank(target) {
                let first = Self::find_first(firsts, target);
                if first < least && !complete_rings.has(first) {
                    least = first;
                }
            }
        }
        firsts[rank as usize] = least;
        if least == rank {
            complete_rings.set(rank);
        }
    }

    /// Calls `visit` for each reference into a member from a root or from what that root alone
    /// retains, with the root and the member.
    fn each_entry(
        &mut self,
        first_unreachable: u32,
        mut visit: impl FnMut(&mut Self, u32, u32),
    ) -> Result<(), Refused> {
        let root_count = self.search.edges.roots.len() as u32;
        let block_count = self.search.edges.references.block_count();
        // Each root's number, where its tree of the search begins.
        let mut tree_starts: Vec<u32> = reserved(root_count as usize)?;
        tree_starts.extend_from_slice(
            self.search
                .numbers
                .get(block_count as usize..(block_count + root_count) as usize)
                .unwrap_or_default(),
        );
        let mut entered: Vec<u32> = Vec::new();
        for vertex in 0..block_count + root_count {
            self.search.deadline_check.step()?;
            let number = self.search.numbers[vertex as usize];
            if number >= first_unreachable || self.members.has(number) {
                continue;
            }
            for &mut target in self.search.edges.targets_mut(vertex) {
                if self.members.has(target) {
                    push(&mut entered, target, MIN_GROWTH)?;
                }
            }
            if !entered.is_empty() {
                let root = tree_starts.partition_point(|&start| start <= number).saturating_sub(1) as u32;
                entered.drain(..).for_each(|target| visit(self, root, target));
            }
        }
        Ok(())
    }

    /// Gives each ring the roots that reach it without passing another member.
    fn add_direct_roots(&mut self, first_unreachable: u32) -> Result<(), Refused> {
        self.each_entry(first_unreachable, |walk, root, target| {
            let Some(rank) = walk.members.rank(target) else { return };
            let first = Self::find_first(&mut walk.firsts, rank);
            let set = &mut walk.set_of_ring[first as usize];
            *set = walk.sets.with_root(*set, root);
        })
    }

    /// Propagates sets in reverse postorder: no member comes before one that leads to it, except
    /// within rings.
    fn propagate_all(&mut self) -> Result<(), Refused> {
        let mut number_after = None;
        let mut cursor = self.members.last();
        let mut upcoming = ahead(cursor, |at| self.members.before(at));
        while let Some(number) = cursor {
            cursor = self.members.before(number);
            upcoming = upcoming.and_then(|upcoming| {
                self.prefetch_references(upcoming);
                self.members.before(upcoming)
            });
            let stop = number_after.map_or(NONE, |after| self.parent(after));
            number_after = Some(number);
            // Reverses the path on the way up, and restores it on the way down.
            let (mut at, mut previous) = (number, NONE);
            while at != stop && self.members.has(at) {
                let up = std::mem::replace(&mut self.search.parents[at as usize], previous);
                (at, previous) = (up, at);
            }
            while previous != NONE {
                self.search.deadline_check.step()?;
                let below = std::mem::replace(&mut self.search.parents[previous as usize], at);
                self.propagate(previous);
                (at, previous) = (previous, below);
            }
        }
        Ok(())
    }

    /// Adds the set of a member's ring to those of the rings that it refers to.
    fn propagate(&mut self, number: u32) {
        let Self { search, vertices, members, firsts, set_of_ring, sets, .. } = self;
        let Some(rank) = members.rank(number) else { return };
        let first = Self::find_first(firsts, rank);
        let own_set = set_of_ring[first as usize];
        for &mut target in search.edges.targets_mut(vertices[number as usize]) {
            let Some(target) = members.rank(target) else { continue };
            let target = Self::find_first(firsts, target) as usize;
            if set_of_ring[target] != own_set && target != first as usize {
                set_of_ring[target] = sets.union(set_of_ring[target], own_set);
            }
        }
    }

    /// Sums up the blocks of each set, and sorts the sets.
    fn finish(mut self, blocks: &Blocks, first_unreachable: u32) -> Result<Sharing, Refused> {
        let set_count = self.sets.list.len();
        // From here on each member has the set of its ring, which is in the list.
        for rank in 0..self.members.count() {
            self.search.deadline_check.step()?;
            let set = self.set_of_ring[Self::find_first(&mut self.firsts, rank) as usize];
            self.set_of_ring[rank as usize] = if (set as usize) < set_count { set } else { OVERFLOW };
        }
        self.firsts = Vec::new();
        let sums = self.sums_of_sets(blocks)?;
        let counts = self.count_direct_references(first_unreachable)?;
        let mut order: Vec<u32> =
            (0..sums.len() as u32).filter(|&set| sums[set as usize].blocks > 0).collect();
        order.sort_by_key(|&set| (std::cmp::Reverse(sums[set as usize].bytes), set));
        let mut positions = array(sums.len(), 0_u16)?;
        (0..).zip(&order).for_each(|(position, &set)| positions[set as usize] = position);
        let mut set_of_member: Vec<u16> = reserved(self.set_of_ring.len())?;
        set_of_member.extend(self.set_of_ring.iter().map(|&set| positions[set as usize]));
        let sets = self.ranked_sets(&order, &sums, &counts);
        Ok(Sharing { members: self.members, set_of_member, sets })
    }

    /// The sum of the blocks of each set.
    fn sums_of_sets(&mut self, blocks: &Blocks) -> Result<Vec<Sum>, Refused> {
        let mut sums = array(self.sets.list.len(), Sum::default())?;
        for (number, &set) in self.members.iter().zip(&self.set_of_ring) {
            self.search.deadline_check.step()?;
            let bytes = blocks.bytes(self.vertices[number as usize]);
            sums[set as usize] += Sum { bytes, blocks: 1 };
        }
        Ok(sums)
    }

    /// The sets in this order, each with its roots by the number of their direct references.
    fn ranked_sets(&self, order: &[u32], sums: &[Sum], counts: &DirectCounts) -> Vec<SharedSet> {
        let shared_set = |&set: &u32| {
            let RootSet { mut roots, has_more } = self.sets.list[set as usize].clone();
            let count = |root: u32| counts.get(&(set, root)).copied().unwrap_or(0);
            roots.sort_by_key(|&root| (std::cmp::Reverse(count(root)), root));
            SharedSet { roots, has_more, sum: sums[set as usize] }
        };
        order.iter().map(shared_set).collect()
    }

    /// Number of references into each set from a root, or from what that root alone retains.
    fn count_direct_references(&mut self, first_unreachable: u32) -> Result<DirectCounts, Refused> {
        let mut counts = DirectCounts::new();
        self.each_entry(first_unreachable, |walk, root, target| {
            let set = walk.members.rank(target).and_then(|rank| walk.set_of_ring.get(rank as usize)).copied();
            if let Some(set) = set
                && (counts.len() < MAX_PAIRS || counts.contains_key(&(set, root)))
            {
                *counts.entry((set, root)).or_default() += 1;
            }
        })?;
        Ok(counts)
    }
}

/// Number of direct references into a set from a root, by set and root.
type DirectCounts = HashMap<(u32, u32), u32>;

/// The set without roots.
const EMPTY: u32 = 0;
/// The set of blocks whose own set is beyond the maximum.
const OVERFLOW: u32 = 1;
/// A set of a single root is this flag plus its number. It is not in the list: no block has such a
/// set in the end, and there may be one for each root.
const SINGLE: u32 = 1 << 31;

/// A set of roots.
#[derive(Clone, PartialEq, Eq, Hash)]
struct RootSet {
    /// The lowest roots, in order.
    roots: Vec<u32>,
    /// Whether there are more than those.
    has_more: bool,
}

/// Sets of roots, without duplicates.
struct SetTable {
    list: Vec<RootSet>,
    /// Index in `list` of each set.
    indices: HashMap<RootSet, u32>,
    /// Cached unions of two sets.
    unions: HashMap<(u32, u32), u32>,
}

impl SetTable {
    fn new() -> Self {
        let empty = RootSet { roots: Vec::new(), has_more: false };
        // Distinct from all others: no roots listed, but more of them.
        let overflow = RootSet { has_more: true, ..empty.clone() };
        Self {
            list: vec![empty.clone(), overflow.clone()],
            indices: HashMap::from([(empty, EMPTY), (overflow, OVERFLOW)]),
            unions: HashMap::new(),
        }
    }

    /// The number of a set, which is added if missing.
    fn add(&mut self, set: RootSet) -> u32 {
        if let Some(&index) = self.indices.get(&set) {
            return index;
        }
        if self.list.len() >= MAX_SETS {
            return OVERFLOW;
        }
        let index = self.list.len() as u32;
        self.list.push(set.clone());
        self.indices.insert(set, index);
        index
    }

    /// Adds the roots of a set to `union`.
    fn add_roots(&self, set: u32, union: &mut RootSet) {
        match self.list.get(set as usize) {
            Some(RootSet { roots, has_more }) => {
                union.roots.extend(roots);
                union.has_more |= has_more;
            }
            None => union.roots.push(set & !SINGLE),
        }
    }

    /// The set with one more root.
    fn with_root(&mut self, set: u32, root: u32) -> u32 {
        self.union(set, if root < SINGLE { SINGLE | root } else { OVERFLOW })
    }

    /// The set of the roots of two sets.
    fn union(&mut self, first: u32, second: u32) -> u32 {
        if first == second || second == EMPTY {
            return first;
        }
        if first == EMPTY {
            return second;
        }
        if first == OVERFLOW || second == OVERFLOW {
            return OVERFLOW;
        }
        let key = (first.min(second), first.max(second));
        if let Some(&union) = self.unions.get(&key) {
            return union;
        }
        let mut union = RootSet { roots: Vec::new(), has_more: false };
        self.add_roots(first, &mut union);
        self.add_roots(second, &mut union);
        union.roots.sort_unstable();
        union.roots.dedup();
        union.has_more |= union.roots.len() > MAX_ROOTS;
        union.roots.truncate(MAX_ROOTS);
        let union = self.add(union);
        if self.unions.len() >= MAX_UNIONS {
            self.unions.clear();
        }
        self.unions.insert(key, union);
        union
    }
}

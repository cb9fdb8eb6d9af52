//! Which roots reach what no single one retains: for each such block the set of roots that reach it.
//!
//! A block that several roots reach is a *member*. The search from one root after the other has numbered each block in the tree of the
//! first root that reaches it, and what leads back from a later tree into an earlier one is an *entry*: members are the entries and all
//! that these reach. Rings of members have one set each, so rings are found first (strongly connected components, Tarjan 1972), and sets
//! are then passed on from each ring to those it leads to, in the order in which none comes before those that lead to it.
//!
//! Members are whole subtrees of the search, and their numbers say when each was entered and left: the walk of that search is gone
//! over again without a stack, forwards to find rings and backwards to pass sets on.
//!
//! A set has the lowest [`MAX_ROOTS`] roots that are in it, and says whether there are more: sets that differ beyond are one.

use std::collections::HashMap;

use strandline_sys::host::prefetch;

use crate::arrays::{AHEAD, NONE, Refused, array};
use crate::blocks::Blocks;
use crate::held::Sum;
use crate::marks::{Marks, Ranked};
use crate::reach::{Search, vertices_of};

/// The most roots that a set lists.
pub const MAX_ROOTS: usize = 32;
/// The most sets that are made; blocks of further ones share one set without roots.
const MAX_SETS: usize = 60_000;
/// Unions that are remembered, and pairs of a set and a root for which direct references are counted.
const MAX_UNIONS: usize = 1 << 17;
const MAX_PAIRS: usize = 1 << 18;

/// Blocks that the same roots reach, none of them alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedSet {
    /// These roots: first those with most references into the set from themselves or from what they alone retain. Empty for the
    /// blocks of all sets that are not told apart.
    pub roots: Vec<u32>,
    /// Whether further roots reach them too.
    pub has_more: bool,
    /// The blocks.
    pub sum: Sum,
}

/// What several roots reach, by set, largest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sharing {
    pub members: Ranked,
    /// The set of each member, a place in `sets`.
    of: Vec<u16>,
    pub sets: Vec<SharedSet>,
}

impl Sharing {
    /// The place of the set of a number.
    pub fn set(&self, number: u32) -> Option<u16> {
        self.of.get(self.members.rank(number)? as usize).copied()
    }
}

/// Finds the set of each block that several roots reach, where the search has noted `entries` and `lost` is the first number that no
/// root reaches.
pub(crate) fn find(
    search: &mut Search,
    blocks: &Blocks,
    entries: &Marks,
    lost: u32,
) -> Result<Sharing, Refused> {
    if entries.iter().next().is_none() {
        return Ok(Sharing::default());
    }
    let vertices = vertices_of(&search.numbers)?;
    let members = Ranked::new(members(search, &vertices, entries)?)?;
    let count = members.count() as usize;
    let (firsts, done) = (array(count, 0)?, Marks::new(members.count())?);
    let mut walk = Walk { search, vertices, members, firsts, done, of: Vec::new(), sets: Sets::new() };
    walk.rings()?;
    walk.of = array(count, EMPTY)?;
    walk.begin(lost)?;
    walk.pass_on()?;
    walk.tell(blocks, lost)
}

/// The entries, and all that they reach: nearest first, so that it is known ahead what is needed.
fn members(search: &mut Search, vertices: &[u32], entries: &Marks) -> Result<Marks, Refused> {
    let Search { edges, clock, .. } = search;
    let mut members = entries.clone();
    let mut queue: Vec<u32> = Vec::new();
    let push = |queue: &mut Vec<u32>, number: u32| {
        if queue.len() == queue.capacity() {
            let more = queue.len().max(1 << 12);
            queue.try_reserve_exact(more).map_err(|_| Refused::NoMemory(more as u64 * 4))?;
        }
        queue.push(number);
        Ok(())
    };
    entries.iter().try_for_each(|entry| push(&mut queue, entry))?;
    let mut next = 0;
    while let Some(&number) = queue.get(next) {
        clock.step()?;
        if let Some(&soon) = queue.get(next + 2 * AHEAD) {
            prefetch(vertices, soon as usize);
        }
        if let Some(&soon) = queue.get(next + AHEAD) {
            edges.references.prefetch(vertices[soon as usize]);
        }
        next += 1;
        for &mut target in edges.of(vertices[number as usize]) {
            if target != NONE && members.set(target) {
                push(&mut queue, target)?;
            }
        }
    }
    Ok(members)
}

struct Walk<'a> {
    search: &'a mut Search,
    vertices: Vec<u32>,
    members: Ranked,
    /// For each member another one of its ring that was entered before, or itself, by ranks.
    firsts: Vec<u32>,
    /// Firsts of rings that are complete.
    done: Marks,
    /// The set of each ring, at its first.
    of: Vec<u32>,
    sets: Sets,
}

impl Walk<'_> {
    /// The first known of the ring of a member.
    #[inline]
    fn first(firsts: &mut [u32], mut rank: u32) -> u32 {
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

    /// The member above a number in the search, or [`NONE`].
    fn above(&self, number: u32) -> u32 {
        let above = self.search.parents[number as usize];
        if self.members.has(above) { above } else { NONE }
    }

    /// Finds rings: a member that leads to no incomplete ring of one entered before is the first of its own when it is left.
    fn rings(&mut self) -> Result<(), Refused> {
        (0..).zip(&mut self.firsts).for_each(|(rank, first)| *first = rank);
        let mut next = self.members.first();
        let mut soon = (0..AHEAD).try_fold(next, |at, _| Some(self.members.after(at?))).flatten();
        while let Some(number) = next {
            next = self.members.after(number);
            soon = soon.and_then(|soon| {
                self.ask_for(soon);
                self.members.after(soon)
            });
            let stop = next.map_or(NONE, |next| self.above(next));
            let mut at = number;
            while at != stop && at != NONE {
                self.search.clock.step()?;
                self.leave(at);
                at = self.above(at);
            }
        }
        Ok(())
    }

    /// Asks for what a member refers to, ahead of time.
    #[inline]
    fn ask_for(&self, number: u32) {
        self.search.edges.references.prefetch(self.vertices[number as usize]);
    }

    fn leave(&mut self, number: u32) {
        let Self { search, vertices, members, firsts, done, .. } = self;
        let Some(rank) = members.rank(number) else { return };
        let mut least = rank;
        for &mut target in search.edges.of(vertices[number as usize]) {
            if let Some(target) = members.rank(target) {
                let first = Self::first(firsts, target);
                if first < least && !done.has(first) {
                    least = first;
                }
            }
        }
        firsts[rank as usize] = least;
        if least == rank {
            done.set(rank);
        }
    }

    /// Calls `visit` with each reference from what a single root retains, or from a root, into a member: the root, and the member.
    fn each_entry(&mut self, lost: u32, mut visit: impl FnMut(&mut Self, u32, u32)) -> Result<(), Refused> {
        let roots = self.search.edges.roots.len() as u32;
        let blocks = self.search.edges.references.blocks();
        let mut trees: Vec<u32> = array(0, 0)?;
        trees.extend_from_slice(
            self.search.numbers.get(blocks as usize..(blocks + roots) as usize).unwrap_or_default(),
        );
        let mut found: Vec<u32> = Vec::new();
        for vertex in 0..blocks + roots {
            self.search.clock.step()?;
            let number = self.search.numbers[vertex as usize];
            if number >= lost || self.members.has(number) {
                continue;
            }
            let targets = self.search.edges.of(vertex).iter().copied();
            found.extend(targets.filter(|&target| self.members.has(target)));
            if !found.is_empty() {
                let root = trees.partition_point(|&tree| tree <= number).saturating_sub(1) as u32;
                found.drain(..).for_each(|target| visit(self, root, target));
            }
        }
        Ok(())
    }

    /// Gives rings the roots that reach them by no other member.
    fn begin(&mut self, lost: u32) -> Result<(), Refused> {
        self.each_entry(lost, |walk, root, target| {
            let Some(rank) = walk.members.rank(target) else { return };
            let first = Self::first(&mut walk.firsts, rank);
            let of = &mut walk.of[first as usize];
            *of = walk.sets.with(*of, root);
        })
    }

    /// Passes sets on: the walk backwards, in which no member comes before one that leads to it, but within rings.
    fn pass_on(&mut self) -> Result<(), Refused> {
        let mut next = None;
        let mut last = self.members.last();
        let mut soon = (0..AHEAD).try_fold(last, |at, _| Some(self.members.before(at?))).flatten();
        while let Some(number) = last {
            last = self.members.before(number);
            soon = soon.and_then(|soon| {
                self.ask_for(soon);
                self.members.before(soon)
            });
            let stop = next.map_or(NONE, |next| self.above(next));
            next = Some(number);
            // The way up is turned round, and then gone down again.
            let (mut at, mut behind) = (number, NONE);
            while at != stop && self.members.has(at) {
                let up = std::mem::replace(&mut self.search.parents[at as usize], behind);
                (at, behind) = (up, at);
            }
            while behind != NONE {
                self.search.clock.step()?;
                let below = std::mem::replace(&mut self.search.parents[behind as usize], at);
                self.push(behind);
                (at, behind) = (behind, below);
            }
        }
        Ok(())
    }

    fn push(&mut self, number: u32) {
        let Self { search, vertices, members, firsts, of, sets, .. } = self;
        let Some(rank) = members.rank(number) else { return };
        let first = Self::first(firsts, rank);
        let own = of[first as usize];
        for &mut target in search.edges.of(vertices[number as usize]) {
            let Some(target) = members.rank(target) else { continue };
            let target = Self::first(firsts, target) as usize;
            if of[target] != own && target != first as usize {
                of[target] = sets.union(of[target], own);
            }
        }
    }

    /// Adds up, and puts the sets in order.
    fn tell(mut self, blocks: &Blocks, lost: u32) -> Result<Sharing, Refused> {
        for rank in 0..self.members.count() {
            let first = Self::first(&mut self.firsts, rank);
            self.of[rank as usize] = self.of[first as usize];
        }
        self.firsts = Vec::new();
        let mut sums: Vec<Sum> = array(self.sets.all.len(), Sum::default())?;
        for (number, &of) in self.members.iter().zip(&self.of) {
            let bytes = blocks.bytes(self.vertices[number as usize]);
            if let Some(sum) = sums.get_mut(of as usize) {
                *sum += Sum { bytes, blocks: 1 };
            }
        }
        let pairs = self.direct(lost)?;
        let mut order: Vec<u32> = (0..sums.len() as u32).filter(|&of| sums[of as usize].blocks > 0).collect();
        order.sort_by_key(|&of| (std::cmp::Reverse(sums[of as usize].bytes), of));
        let mut places = array(sums.len(), 0_u16)?;
        (0..).zip(&order).for_each(|(place, &of)| places[of as usize] = place);
        let mut of: Vec<u16> = array(0, 0)?;
        of.try_reserve_exact(self.of.len()).map_err(|_| Refused::NoMemory(self.of.len() as u64 * 2))?;
        of.extend(self.of.iter().map(|&of| places.get(of as usize).copied().unwrap_or_default()));
        let set = |&of: &u32| {
            let (mut roots, has_more) = self.sets.all[of as usize].clone();
            roots
                .sort_by_key(|&root| (std::cmp::Reverse(pairs.get(&(of, root)).copied().unwrap_or(0)), root));
            SharedSet { roots, has_more, sum: sums[of as usize] }
        };
        let sets = order.iter().map(set).collect();
        Ok(Sharing { members: self.members, of, sets })
    }

    /// How many references lead into each set from a root, or from what it alone retains.
    fn direct(&mut self, lost: u32) -> Result<HashMap<(u32, u32), u32>, Refused> {
        let mut pairs: HashMap<(u32, u32), u32> = HashMap::new();
        self.each_entry(lost, |walk, root, target| {
            let of = walk.members.rank(target).and_then(|rank| walk.of.get(rank as usize)).copied();
            if let Some(of) = of
                && (pairs.len() < MAX_PAIRS || pairs.contains_key(&(of, root)))
            {
                *pairs.entry((of, root)).or_default() += 1;
            }
        })?;
        Ok(pairs)
    }
}

/// The set without roots, and that of what has a set which is not told apart.
const EMPTY: u32 = 0;
const OTHER: u32 = 1;
/// The set of one root alone is this and its number: no block has it in the end, and there may be as many as roots.
const SINGLE: u32 = 1 << 31;

/// Sets of roots, each once.
struct Sets {
    /// The lowest roots in order, and whether there are more.
    all: Vec<(Vec<u32>, bool)>,
    known: HashMap<(Vec<u32>, bool), u32>,
    unions: HashMap<(u32, u32), u32>,
}

impl Sets {
    fn new() -> Self {
        let empty = (Vec::new(), false);
        // No other set has no roots, and more.
        let other = (Vec::new(), true);
        Self {
            all: vec![empty.clone(), other.clone()],
            known: HashMap::from([(empty, EMPTY), (other, OTHER)]),
            unions: HashMap::new(),
        }
    }

    fn add(&mut self, set: (Vec<u32>, bool)) -> u32 {
        if let Some(&known) = self.known.get(&set) {
            return known;
        }
        if self.all.len() >= MAX_SETS {
            return OTHER;
        }
        let number = self.all.len() as u32;
        self.all.push(set.clone());
        self.known.insert(set, number);
        number
    }

    /// The roots of a set, of which `single` is one that is alone, and whether there are more.
    fn roots<'a>(&'a self, of: u32, single: &'a u32) -> (&'a [u32], bool) {
        match self.all.get(of as usize) {
            Some((roots, has_more)) => (roots, *has_more),
            None => (std::slice::from_ref(single), false),
        }
    }

    fn with(&mut self, of: u32, root: u32) -> u32 {
        self.union(of, if root < SINGLE { SINGLE | root } else { OTHER })
    }

    fn union(&mut self, one: u32, other: u32) -> u32 {
        if one == other || other == EMPTY {
            return one;
        }
        if one == EMPTY {
            return other;
        }
        if one == OTHER || other == OTHER {
            return OTHER;
        }
        let key = (one.min(other), one.max(other));
        if let Some(&known) = self.unions.get(&key) {
            return known;
        }
        let singles = [one, other].map(|of| of & !SINGLE);
        let (first, first_has_more) = self.roots(one, &singles[0]);
        let (second, second_has_more) = self.roots(other, &singles[1]);
        let mut roots: Vec<u32> = first.iter().chain(second).copied().collect();
        roots.sort_unstable();
        roots.dedup();
        let has_more = first_has_more || second_has_more || roots.len() > MAX_ROOTS;
        roots.truncate(MAX_ROOTS);
        let union = self.add((roots, has_more));
        if self.unions.len() >= MAX_UNIONS {
            self.unions.clear();
        }
        self.unions.insert(key, union);
        union
    }
}

//! Numbers what roots reach, depth first; and among what they do not, finds what else would have to be freed first.
//!
//! Above all roots stands one vertex, number 0. Each root is a vertex, then come the blocks in the order in which they are found;
//! and then, as one more root, what is lost. A vertex has a higher number than the one it was found from, so numbers tell ancestors
//! from descendants, and what follows works on arrays in their order.
//!
//! Of lost blocks those are heads that no other lost block leads to, and of a ring that nothing else leads to its lowest, as
//! valgrind's memcheck has them ("definitely lost"; all others "indirectly"). Two passes over them find the heads without a search
//! for rings: the first begins at each block that it has not come by, in order of addresses; in each ring that is led to from nowhere
//! it must so have begun once. The second begins at the same, last first: what it comes by from another is no head.

use std::ops::Range;
use std::time::Instant;

use strandline_sys::host::prefetch;

use crate::arrays::{AHEAD, Clock, NONE, Refused, array};
use crate::blocks::Blocks;
use crate::dominators;
use crate::held::Held;
use crate::marks::Marks;
use crate::paths::{self, Ways};
use crate::references::References;
use crate::roots::Roots;
use crate::sharing;

/// What refers to what. Vertices are blocks, then roots, by their numbers; then what is lost, then what is above all.
pub(crate) struct Edges {
    pub references: References,
    pub roots: Roots,
}

impl Edges {
    /// What a vertex refers to: of blocks that were not reached numbers of blocks, of others numbers in the order of the search, or
    /// [`NONE`].
    #[inline]
    pub fn of(&mut self, vertex: u32) -> &mut [u32] {
        match vertex.checked_sub(self.references.blocks()) {
            None => self.references.of_mut(vertex),
            Some(root) => self.roots.of(root as usize),
        }
    }

    /// Leaves those out of which `keep` says so, given the vertex and what it refers to.
    pub fn retain(&mut self, mut keep: impl FnMut(u32, u32) -> bool) {
        let blocks = self.references.blocks();
        for root in 0..self.roots.len() {
            for target in self.roots.of(root).iter_mut().filter(|target| **target != NONE) {
                if !keep(blocks + root as u32, *target) {
                    *target = NONE;
                }
            }
        }
        self.references.retain(keep);
    }
}

/// What was found, depth first. All arrays but the first are by number.
pub(crate) struct Search {
    /// The number of each vertex.
    pub numbers: Vec<u32>,
    /// From which each was found. Behind the last is room, which passes over what is not reached use.
    pub parents: Vec<u32>,
    /// Vertices that have more to look at, and where.
    stack: Vec<[u32; 2]>,
    pub edges: Edges,
    next: u32,
    pub clock: Clock,
    /// Numbers in the tree of one root that a later one's leads to.
    entries: Marks,
}

/// What is reached, and from where. [`Graph::held`] tells the rest.
pub struct Graph {
    blocks: Blocks,
    search: Search,
    /// From which each number is reached in the fewest steps.
    nearest: Option<Vec<u32>>,
    /// Number of the vertex that stands for what is lost.
    lost: u32,
    heads: Option<Marks>,
}

impl Graph {
    /// Looks for what roots reach. References must be those of these blocks; roots' numbers that are of no block count as nothing.
    pub fn new(
        blocks: Blocks,
        references: References,
        mut roots: Roots,
        ways: Ways,
        deadline: Instant,
    ) -> Result<Self, Refused> {
        let count = blocks.len();
        if references.blocks() != count {
            return Err(Refused::Strangers(references.blocks(), count));
        }
        roots.blocks.iter_mut().filter(|block| **block >= count).for_each(|block| *block = NONE);
        let vertices = u64::from(count) + roots.len() as u64 + 2;
        let most = u64::from(NONE - 1);
        let most_edges = roots.blocks.len() as u64 + references.count();
        if vertices > most || most_edges > most {
            return Err(Refused::TooMany(vertices.max(most_edges)));
        }
        let root_count = roots.len() as u32;
        let (named, classes) = (roots.named(), roots.classes());
        let edges = Edges { references, roots };
        let mut search = Search::new(edges, vertices as usize, Clock::new(deadline))?;
        let (lost, top) = (count + root_count, count + root_count + 1);
        search.add(top, 0);
        let mut floor = search.stop(named > 0);
        for (index, root) in (count..lost).enumerate() {
            if index == named {
                search.stop_no_more();
            }
            if classes.binary_search(&index).is_ok() {
                floor = search.next;
            }
            let entries = floor..search.next;
            search.descend(root, 0, entries)?;
        }
        if named >= root_count as usize {
            search.stop_no_more();
        }
        let heads = search.heads(count)?;
        let lost = search.add(lost, 0);
        for head in heads.iter().flat_map(Marks::iter) {
            search.descend(head, lost, lost..lost)?;
        }
        search.stack = Vec::new();
        let nearest = match ways {
            Ways::None => None,
            Ways::Shortest => Some(paths::nearest(&mut search, lost)?),
        };
        Ok(Self { blocks, search, nearest, lost, heads })
    }

    /// Finds what holds what.
    pub fn held(self, deadline: Instant) -> Result<Held, Refused> {
        let Self { blocks, mut search, nearest, lost, heads } = self;
        let roots = search.edges.roots.len() as u32;
        search.clock = Clock::new(deadline);
        let entries = std::mem::take(&mut search.entries);
        let sharing = sharing::find(&mut search, &blocks, &entries, lost)?;
        drop(entries);
        let Search { numbers, parents, edges, .. } = search;
        let mut clock = Clock::new(deadline);
        let holders = dominators::dominators(&numbers, parents, edges, &mut clock)?;
        let vertices = vertices_of(&numbers)?;
        let numbers = nearest.is_some().then_some(numbers);
        Held::new(blocks, (numbers, vertices), (holders, nearest), (heads, sharing), (roots, lost))
    }
}

/// Numbers of blocks that named roots stop at, before and after they came by: no block has those of what is above all and of the first
/// root.
const STOP: u32 = 0;
const STOPPED: u32 = 1;

/// The vertex of each number.
pub(crate) fn vertices_of(numbers: &[u32]) -> Result<Vec<u32>, Refused> {
    let mut vertices = array(numbers.len(), NONE)?;
    for (vertex, &number) in (0..).zip(numbers) {
        vertices[number as usize] = vertex;
    }
    Ok(vertices)
}

impl Search {
    /// Makes what is numbered from now on stop at stops, where there are such; from which number on edges count.
    fn stop(&mut self, are_some: bool) -> u32 {
        let Self { numbers, edges, .. } = self;
        for stop in edges.roots.stops().filter(|_| are_some) {
            if let Some(number) = numbers.get_mut(*stop as usize) {
                *number = STOP;
            }
        }
        if are_some { STOPPED + 1 } else { 0 }
    }

    /// Lets stops be reached: those that were come by are led to by the root that has them, the others by it no more.
    fn stop_no_more(&mut self) {
        let Self { numbers, edges, .. } = self;
        for stop in edges.roots.stops() {
            match numbers.get_mut(*stop as usize) {
                Some(&mut STOPPED) => {}
                number => {
                    number.into_iter().for_each(|number| *number = NONE);
                    *stop = NONE;
                }
            }
        }
        for stop in edges.roots.stops() {
            numbers.get_mut(*stop as usize).into_iter().for_each(|number| *number = NONE);
        }
    }

    fn new(edges: Edges, vertices: usize, clock: Clock) -> Result<Self, Refused> {
        Ok(Self {
            numbers: array(vertices, NONE)?,
            parents: array(vertices, 0)?,
            stack: Vec::new(),
            edges,
            next: 0,
            clock,
            entries: Marks::new(vertices as u32)?,
        })
    }

    /// Gives a vertex the next number.
    #[inline]
    fn add(&mut self, vertex: u32, parent: u32) -> u32 {
        let number = self.next;
        self.numbers[vertex as usize] = number;
        self.parents[number as usize] = parent;
        self.next += 1;
        number
    }

    /// Numbers what a vertex reaches, and replaces visited entries by numbers. What has a lower number than
    /// `earlier` counts as not referred to; what has one of these is in the tree of an earlier root. In a vertex is looked on to the second that is not numbered: one that has no second need not be come back to, and
    /// most have none.
    fn descend(&mut self, vertex: u32, parent: u32, earlier: Range<u32>) -> Result<(), Refused> {
        let mut at = self.add(vertex, parent);
        let (mut vertex, mut cursor) = (vertex, 0);
        loop {
            let (mut child, mut left) = (None, None);
            let targets = self.edges.of(vertex);
            let soon = targets.get(cursor + AHEAD).copied();
            for (index, edge) in targets.iter_mut().enumerate().skip(cursor) {
                // NONE has no number.
                let Some(&known) = self.numbers.get(*edge as usize) else { continue };
                if known != NONE {
                    if known == STOP {
                        self.numbers[*edge as usize] = STOPPED;
                    }
                    if earlier.contains(&known) {
                        self.entries.set(known);
                    }
                    *edge = if known < earlier.start { NONE } else { known };
                } else if child.is_none() {
                    // Numbered at once, so that it is known should it come again.
                    self.numbers[*edge as usize] = self.next;
                    child = Some(std::mem::replace(edge, self.next));
                } else {
                    left = Some(index);
                    break;
                }
            }
            if let Some(index) = left {
                if self.stack.len() == self.stack.capacity() {
                    let more = self.stack.len().max(1 << 16);
                    self.stack.try_reserve_exact(more).map_err(|_| Refused::NoMemory(more as u64 * 8))?;
                }
                self.stack.push([vertex, index as u32]);
                if let Some(soon) = soon {
                    prefetch(&self.numbers, soon as usize);
                    self.edges.references.prefetch(soon);
                }
            }
            if let Some(child) = child {
                self.clock.step()?;
                at = self.add(child, at);
                (vertex, cursor) = (child, 0);
            } else if let Some([above, index]) = self.stack.pop() {
                (vertex, cursor) = (above, index as usize);
                at = self.numbers[vertex as usize];
            } else {
                return Ok(());
            }
        }
    }

    /// The heads of what was not reached; `None` where all was.
    fn heads(&mut self, count: u32) -> Result<Option<Marks>, Refused> {
        // One of what is numbered, and one of what is not, is no block and no root.
        if self.next as usize + 1 == self.numbers.len() {
            return Ok(None);
        }
        let (mut heads, mut seen) = (Marks::new(count)?, Marks::new(count)?);
        for block in 0..count {
            if self.numbers[block as usize] == NONE && seen.set(block) {
                heads.set(block);
                self.flood(block, &mut seen)?;
            }
        }
        seen.clear_all();
        let mut no_heads = Marks::new(count)?;
        for block in heads.iter().rev() {
            if seen.set(block) {
                self.flood(block, &mut seen)?;
            } else {
                no_heads.set(block);
            }
        }
        no_heads.iter().for_each(|block| heads.clear(block));
        Ok(Some(heads))
    }

    /// Marks what a block that is not reached leads to.
    fn flood(&mut self, block: u32, seen: &mut Marks) -> Result<(), Refused> {
        let Self { numbers, parents, edges, clock, next, .. } = self;
        // Each is put there once, and there is a place for each that has no number.
        let stack = parents.get_mut(*next as usize..).unwrap_or_default();
        stack[0] = block;
        let mut depth = 1;
        while depth > 0 {
            clock.step()?;
            depth -= 1;
            for &mut target in edges.of(stack[depth]) {
                if numbers[target as usize] == NONE && seen.set(target) {
                    stack[depth] = target;
                    depth += 1;
                }
            }
        }
        Ok(())
    }
}

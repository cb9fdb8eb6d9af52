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

use std::time::Instant;

use crate::arrays::{Clock, NONE, Refused, array};
use crate::blocks::Blocks;
use crate::dominators;
use crate::held::Held;
use crate::marks::Marks;
use crate::paths::{self, Ways};
use crate::references::References;
use crate::roots::Roots;

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
}

/// What was found, depth first. All arrays but the first are by number.
pub(crate) struct Search {
    /// The number of each vertex.
    pub numbers: Vec<u32>,
    /// The vertex of each number. Behind the last is room, which passes over what is not reached use.
    pub vertices: Vec<u32>,
    /// From which each was found.
    pub parents: Vec<u32>,
    /// Room for what is by number and does not last.
    pub scratch: Vec<u32>,
    pub edges: Edges,
    next: u32,
    pub clock: Clock,
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
        let mut search = Search::new(Edges { references, roots }, vertices as usize, Clock::new(deadline))?;
        let (lost, top) = (count + root_count, count + root_count + 1);
        search.add(top, 0);
        for root in count..lost {
            search.descend(root, 0, 0)?;
        }
        let heads = search.heads(count)?;
        let lost = search.add(lost, 0);
        for head in heads.iter().flat_map(Marks::iter) {
            search.descend(head, lost, lost)?;
        }
        let nearest = match ways {
            Ways::None => None,
            Ways::Shortest => Some(paths::nearest(&mut search, lost)?),
        };
        Ok(Self { blocks, search, nearest, lost, heads })
    }

    /// Finds what holds what.
    pub fn held(self, deadline: Instant) -> Result<Held, Refused> {
        let Self { blocks, search, nearest, lost, heads } = self;
        let roots = search.edges.roots.len() as u32;
        let Search { numbers, vertices, parents, scratch, edges, .. } = search;
        let mut clock = Clock::new(deadline);
        let tree = dominators::Order { numbers: &numbers, parents, scratch };
        let holders = dominators::dominators(tree, edges, &mut clock)?;
        Held::new(blocks, (numbers, vertices), (holders, nearest), heads, (roots, lost))
    }
}

impl Search {
    fn new(edges: Edges, vertices: usize, clock: Clock) -> Result<Self, Refused> {
        Ok(Self {
            numbers: array(vertices, NONE)?,
            vertices: array(vertices, NONE)?,
            parents: array(vertices, 0)?,
            scratch: array(vertices, 0)?,
            edges,
            next: 0,
            clock,
        })
    }

    /// Gives a vertex the next number.
    #[inline]
    fn add(&mut self, vertex: u32, parent: u32) -> u32 {
        let number = self.next;
        self.numbers[vertex as usize] = number;
        self.vertices[number as usize] = vertex;
        self.parents[number as usize] = parent;
        self.next += 1;
        number
    }

    /// Numbers what a vertex reaches, and turns what was looked at into numbers. What has a lower number than `floor` counts as not
    /// referred to. Where it goes on in each vertex that it comes back to stands in the scratch, by depth.
    fn descend(&mut self, vertex: u32, parent: u32, floor: u32) -> Result<(), Refused> {
        let mut at = self.add(vertex, parent);
        let (mut vertex, mut cursor, mut depth) = (vertex, 0, 0);
        loop {
            let mut child = NONE;
            for edge in self.edges.of(vertex).get_mut(cursor..).unwrap_or_default() {
                cursor += 1;
                let known = match self.numbers.get(*edge as usize) {
                    Some(&known) => known,
                    // It is NONE: no block.
                    None => continue,
                };
                if known == NONE {
                    child = std::mem::replace(edge, self.next);
                    break;
                }
                *edge = if known < floor { NONE } else { known };
            }
            if child != NONE {
                self.clock.step()?;
                self.scratch[depth] = cursor as u32;
                depth += 1;
                at = self.add(child, at);
                (vertex, cursor) = (child, 0);
            } else if depth > 0 {
                depth -= 1;
                cursor = self.scratch[depth] as usize;
                at = self.parents[at as usize];
                vertex = self.vertices[at as usize];
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
        let Self { numbers, vertices, edges, clock, next, .. } = self;
        // Each is put there once, and there is a place for each that has no number.
        let stack = vertices.get_mut(*next as usize..).unwrap_or_default();
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

//! Numbers what roots reach, depth first, and finds the heads of what they do not reach.
//!
//! One vertex is above all roots and has number 0. Each root is a vertex, followed by the blocks in
//! the order in which they are found; last, as one more root, comes the vertex above unreachable
//! blocks. A vertex has a higher number than the one it was found from, so numbers distinguish
//! ancestors from descendants, and later steps process arrays in number order.
//!
//! Heads are the unreachable blocks that no other unreachable block leads to, and of each cycle
//! that nothing else leads to the lowest block. valgrind's memcheck defines "definitely lost" in
//! this way; all others are "indirectly lost" (memcheck/mc_leakcheck.c). Two passes find the heads
//! without searching for cycles. The first starts at each block that it has not visited yet, in
//! address order: in each cycle without references from outside it must have started once. The
//! second starts at the same blocks, last first: a start that it visits from another one is not a
//! head.

use std::ops::Range;
use std::time::Instant;

use strandline_sys::own_memory::prefetch;

use crate::arrays::{DeadlineCheck, NONE, PREFETCH_DISTANCE, Refused, array, push};
use crate::blocks::Blocks;
use crate::dominators;
use crate::held::{DominatorTree, Sums};
use crate::marks::BlockSet;
use crate::references::References;
use crate::roots::Roots;
use crate::sharing;

/// References between vertices. Vertices are blocks, then roots, by their numbers; then the vertex
/// above unreachable blocks, then the one above all roots.
pub(crate) struct Edges {
    pub references: References,
    pub roots: Roots,
}

impl Edges {
    /// Targets of a vertex: for unreached blocks, numbers of blocks; for others, numbers in search
    /// order, or [`NONE`].
    #[inline]
    pub fn targets_mut(&mut self, vertex: u32) -> &mut [u32] {
        match vertex.checked_sub(self.references.block_count()) {
            None => self.references.targets_mut(vertex),
            Some(root) => self.roots.targets_mut(root as usize),
        }
    }

    /// Removes the references for which `keep(vertex, target)` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(u32, u32) -> bool) {
        let block_count = self.references.block_count();
        for root in 0..self.roots.len() {
            for target in self.roots.targets_mut(root).iter_mut().filter(|target| **target != NONE) {
                if !keep(block_count + root as u32, *target) {
                    *target = NONE;
                }
            }
        }
        self.references.retain(keep);
    }
}

/// Result of the depth-first search. All arrays except `numbers` are by number.
pub(crate) struct Search {
    /// The number of each vertex.
    pub numbers: Vec<u32>,
    /// For each number, the number from which it was found. The unused part at the end serves as a
    /// stack for passes over unreached blocks.
    pub parents: Vec<u32>,
    /// Vertices with references still to follow.
    stack: Vec<Unfinished>,
    pub edges: Edges,
    /// The number that the next vertex gets.
    next_number: u32,
    pub deadline_check: DeadlineCheck,
    /// Numbers in the tree of one root to which the tree of a later root leads.
    entries: BlockSet,
}

/// A vertex with references still to follow.
struct Unfinished {
    vertex: u32,
    /// Index of the first such reference among its targets.
    next_index: u32,
}

/// Least number of vertices by which the stack grows.
const MIN_GROWTH: usize = 1 << 16;

/// What is reached, and from where. [`Reachability::held`] computes the dominators.
pub struct Reachability {
    blocks: Blocks,
    search: Search,
    /// Number of the vertex above unreachable blocks.
    unreachable_number: u32,
    heads: Option<BlockSet>,
}

impl Reachability {
    /// Finds what roots reach. Numbers in `roots` that are no blocks are ignored.
    ///
    /// # Errors
    /// [`Refused::BlocksDiffer`] if `references` are not those of `blocks`; all others of
    /// [`Refused`].
    pub fn new(
        blocks: Blocks,
        references: References,
        mut roots: Roots,
        deadline: Instant,
    ) -> Result<Self, Refused> {
        let block_count = blocks.len();
        if references.block_count() != block_count {
            let count_read = references.block_count();
            return Err(Refused::BlocksDiffer { count_read, count: block_count });
        }
        roots.blocks.iter_mut().filter(|block| **block >= block_count).for_each(|block| *block = NONE);
        let vertex_count = u64::from(block_count) + roots.len() as u64 + 2;
        let max_count = u64::from(NONE - 1);
        let edge_count = roots.blocks.len() as u64 + references.count();
        if vertex_count > max_count || edge_count > max_count {
            return Err(Refused::TooMany { count: vertex_count.max(edge_count), max_count });
        }
        let root_count = roots.len() as u32;
        let (named_count, class_starts) = (roots.named_count(), roots.class_starts());
        let edges = Edges { references, roots };
        let mut search = Search::new(edges, vertex_count as usize, DeadlineCheck::new(deadline))?;
        let (unreachable_vertex, top_vertex) = (block_count + root_count, block_count + root_count + 1);
        search.add(top_vertex, 0);
        let mut class_start = search.set_stops(named_count > 0);
        for (index, root) in (block_count..unreachable_vertex).enumerate() {
            if index == named_count {
                search.clear_stops();
            }
            if class_starts.binary_search(&index).is_ok() {
                class_start = search.next_number;
            }
            let earlier = class_start..search.next_number;
            search.descend(root, 0, earlier)?;
        }
        if named_count >= root_count as usize {
            search.clear_stops();
        }
        let heads = search.heads(block_count)?;
        let unreachable_number = search.add(unreachable_vertex, 0);
        for head in heads.iter().flat_map(BlockSet::iter) {
            search.descend(head, unreachable_number, unreachable_number..unreachable_number)?;
        }
        search.stack = Vec::new();
        Ok(Self { blocks, search, unreachable_number, heads })
    }

    /// Finds dominators, and the sets of roots that share blocks.
    ///
    /// # Errors
    /// [`Refused::NoMemory`], or [`Refused::DeadlinePassed`] after `deadline`.
    pub fn held(self, deadline: Instant) -> Result<DominatorTree, Refused> {
        let Self { blocks, mut search, unreachable_number, heads } = self;
        let root_count = search.edges.roots.len() as u32;
        search.deadline_check = DeadlineCheck::new(deadline);
        let entries = std::mem::take(&mut search.entries);
        let sharing = sharing::find(&mut search, &blocks, &entries, unreachable_number)?;
        drop(entries);
        let Search { numbers, parents, edges, .. } = search;
        let mut deadline_check = DeadlineCheck::new(deadline);
        let holders = dominators::dominators(&numbers, parents, edges, &mut deadline_check)?;
        let vertices = vertices_of(&numbers)?;
        drop(numbers);
        let sums = Sums::default();
        DominatorTree { blocks, vertices, holders, heads, sharing, unreachable_number, sums }
            .with_sums(root_count)
    }
}

/// Temporary number of a block at which paths from named roots stop, until a path meets it. No
/// block has this number: it is that of the top vertex.
const UNMET_STOP: u32 = 0;
/// Temporary number of such a block once a path has met it: that of the first root.
const MET_STOP: u32 = 1;

/// The vertex of each number.
pub(crate) fn vertices_of(numbers: &[u32]) -> Result<Vec<u32>, Refused> {
    let mut vertices = array(numbers.len(), NONE)?;
    for (vertex, &number) in (0..).zip(numbers) {
        vertices[number as usize] = vertex;
    }
    Ok(vertices)
}

impl Search {
    /// Makes the search stop at stop blocks from now on, if `has_stops`. Returns the lowest number
    /// to which references count.
    fn set_stops(&mut self, has_stops: bool) -> u32 {
        let Self { numbers, edges, .. } = self;
        for stop in edges.roots.stops_mut().filter(|_| has_stops) {
            if let Some(number) = numbers.get_mut(*stop as usize) {
                *number = UNMET_STOP;
            }
        }
        if has_stops { MET_STOP + 1 } else { 0 }
    }

    /// Makes stop blocks reachable again. Their root keeps its references to those that were met,
    /// and loses the others.
    fn clear_stops(&mut self) {
        let Self { numbers, edges, .. } = self;
        for stop in edges.roots.stops_mut() {
            match numbers.get_mut(*stop as usize) {
                Some(&mut MET_STOP) => {}
                number => {
                    number.into_iter().for_each(|number| *number = NONE);
                    *stop = NONE;
                }
            }
        }
        for stop in edges.roots.stops_mut() {
            numbers.get_mut(*stop as usize).into_iter().for_each(|number| *number = NONE);
        }
    }

    /// A search that has not begun, over this number of vertices.
    fn new(edges: Edges, vertices: usize, deadline_check: DeadlineCheck) -> Result<Self, Refused> {
        Ok(Self {
            numbers: array(vertices, NONE)?,
            parents: array(vertices, 0)?,
            stack: Vec::new(),
            edges,
            next_number: 0,
            deadline_check,
            entries: BlockSet::new(vertices as u32)?,
        })
    }

    /// Gives a vertex the next number.
    #[inline]
    fn add(&mut self, vertex: u32, parent: u32) -> u32 {
        let number = self.next_number;
        self.numbers[vertex as usize] = number;
        self.parents[number as usize] = parent;
        self.next_number += 1;
        number
    }

    /// Numbers what a vertex reaches, and replaces visited targets by their numbers. A target with
    /// a number below `earlier` counts as not referenced; one within `earlier` is in the tree of an
    /// earlier root. Stops at the second unnumbered child; only vertices with one are pushed, and
    /// most have none.
    fn descend(&mut self, vertex: u32, parent: u32, earlier: Range<u32>) -> Result<(), Refused> {
        let mut number = self.add(vertex, parent);
        let (mut vertex, mut cursor) = (vertex, 0);
        loop {
            let (mut child, mut next_index) = (None, None);
            let targets = self.edges.targets_mut(vertex);
            let upcoming = targets.get(cursor + PREFETCH_DISTANCE).copied();
            for (index, edge) in targets.iter_mut().enumerate().skip(cursor) {
                // NONE is past the end of `numbers`.
                let Some(&target_number) = self.numbers.get(*edge as usize) else { continue };
                if target_number != NONE {
                    if target_number == UNMET_STOP {
                        self.numbers[*edge as usize] = MET_STOP;
                    }
                    if earlier.contains(&target_number) {
                        self.entries.set(target_number);
                    }
                    *edge = if target_number < earlier.start { NONE } else { target_number };
                } else if child.is_none() {
                    // Numbered at once, so that it is recognised if it comes again.
                    self.numbers[*edge as usize] = self.next_number;
                    child = Some(std::mem::replace(edge, self.next_number));
                } else {
                    next_index = Some(index);
                    break;
                }
            }
            if let Some(index) = next_index {
                push(&mut self.stack, Unfinished { vertex, next_index: index as u32 }, MIN_GROWTH)?;
                if let Some(block) = upcoming {
                    prefetch(&self.numbers, block as usize);
                    self.edges.references.prefetch(block);
                }
            }
            if let Some(child) = child {
                self.deadline_check.step()?;
                number = self.add(child, number);
                (vertex, cursor) = (child, 0);
            } else if let Some(unfinished) = self.stack.pop() {
                (vertex, cursor) = (unfinished.vertex, unfinished.next_index as usize);
                number = self.numbers[vertex as usize];
            } else {
                return Ok(());
            }
        }
    }

    /// The heads of unreachable blocks; `None` if nothing is unreachable.
    fn heads(&mut self, block_count: u32) -> Result<Option<BlockSet>, Refused> {
        // Only the vertex above unreachable blocks has no number yet.
        if self.next_number as usize + 1 == self.numbers.len() {
            return Ok(None);
        }
        let (mut heads, mut visited) = (BlockSet::new(block_count)?, BlockSet::new(block_count)?);
        for block in 0..block_count {
            if self.numbers[block as usize] == NONE && visited.set(block) {
                heads.set(block);
                self.mark_reachable(block, &mut visited)?;
            }
        }
        visited.clear_all();
        let mut non_heads = BlockSet::new(block_count)?;
        for block in heads.iter().rev() {
            if visited.set(block) {
                self.mark_reachable(block, &mut visited)?;
            } else {
                non_heads.set(block);
            }
        }
        non_heads.iter().for_each(|block| heads.clear(block));
        Ok(Some(heads))
    }

    /// Marks everything that an unreached block leads to.
    fn mark_reachable(&mut self, block: u32, visited: &mut BlockSet) -> Result<(), Refused> {
        let Self { numbers, parents, edges, deadline_check, next_number, .. } = self;
        // Each block is pushed at most once, and there is room for each that has no number.
        let stack = parents.get_mut(*next_number as usize..).unwrap_or_default();
        stack[0] = block;
        let mut depth = 1;
        while depth > 0 {
            deadline_check.step()?;
            depth -= 1;
            for &mut target in edges.targets_mut(stack[depth]) {
                if numbers[target as usize] == NONE && visited.set(target) {
                    stack[depth] = target;
                    depth += 1;
                }
            }
        }
        Ok(())
    }
}

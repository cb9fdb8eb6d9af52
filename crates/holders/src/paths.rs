//! Paths from a root to a block: shortest paths, and chains of dominators.

use crate::arrays::{NONE, Refused, array};
use crate::held::{DominatorTree, Holder};
use crate::reach::{Search, vertices_of};

/// Which paths from roots are kept, besides dominators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepPaths {
    /// No paths.
    #[default]
    None,
    /// A shortest path to each block, at 4 bytes per block and one more pass.
    Shortest,
}

/// How a block is reached, or by what it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Start of the path: a root; several roots, in a chain of dominators; or nothing, before a
    /// head of lost blocks.
    pub from: Holder,
    /// The blocks in between, then the block itself. Of a long path only the first and the last.
    pub blocks: Vec<u32>,
    /// If blocks were left out: the index in `blocks` where they would be, and their number.
    pub left_out: Option<(usize, u32)>,
}

/// For each number the previous one on a shortest path from a root, or from a head of lost blocks.
pub(crate) fn nearest(search: &mut Search, lost: u32) -> Result<Vec<u32>, Refused> {
    let Search { numbers, parents, edges, clock, .. } = search;
    let vertices = vertices_of(numbers)?;
    let mut nearest = array(vertices.len(), NONE)?;
    let mut queue = array(vertices.len(), 0)?;
    let mut length = 0;
    let mut next = 0;
    for top in [0, lost] {
        nearest[top as usize] = 0;
        // The two top vertices have only tree edges. Heads are numbered after `lost`.
        let below = (top + 1) as usize..if top == lost { vertices.len() } else { lost as usize };
        for number in below.filter(|&number| parents[number] == top) {
            nearest[number] = top;
            queue[length] = number as u32;
            length += 1;
        }
        while next < length {
            let number = queue[next];
            next += 1;
            clock.step()?;
            for &mut target in edges.of(vertices[number as usize]) {
                if let Some(from) = nearest.get_mut(target as usize).filter(|from| **from == NONE) {
                    *from = number;
                    queue[length] = target;
                    length += 1;
                }
            }
        }
    }
    Ok(nearest)
}

impl DominatorTree {
    /// A shortest path to a block, with at most `most` of its blocks; `None` if paths were not
    /// kept, or if there is no such block.
    pub fn path(&self, block: u32, most: usize) -> Option<Path> {
        self.walk_up(block, self.nearest.as_ref()?, most)
    }

    /// The blocks that all paths to a block pass through, the one next to the root first, at most
    /// `most` of them; `None` if there is no such block.
    pub fn dominators(&self, block: u32, most: usize) -> Option<Path> {
        self.walk_up(block, &self.holders, most)
    }

    /// The path up from a block in one of the trees. Each step leads to a lower place in an order,
    /// so it ends.
    fn walk_up(&self, block: u32, tree: &[u32], most: usize) -> Option<Path> {
        let first = self.number(block)?;
        let ups = || {
            let up = |&at: &u32| tree.get(at as usize).copied();
            std::iter::successors(Some(first), up)
        };
        let is_block = |&at: &u32| matches!(self.holder_of(at), Holder::Block(_));
        let length = ups().take_while(is_block).count();
        let from = self.holder_of(ups().find(|at| !is_block(at))?);
        let most = most.max(2);
        let skipped = if length > most { most / 2..most / 2 + length - most } else { length..length };
        let kept = ups().take(length).enumerate().filter(|(index, _)| !skipped.contains(index));
        let mut blocks: Vec<u32> =
            kept.filter_map(|(_, at)| self.vertices.get(at as usize).copied()).collect();
        blocks.reverse();
        let left_out = (!skipped.is_empty()).then(|| (blocks.len() - most / 2, skipped.len() as u32));
        Some(Path { from, blocks, left_out })
    }
}

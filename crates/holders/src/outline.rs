//! An outline of the dominator tree: blocks of one kind below the same node form one node.
//!
//! A block whose holder is of the same kind, as in a list, belongs to the node of its holder.

use std::collections::HashMap;

use strandline_sys::host::prefetch;

use crate::arrays::{NONE, PREFETCH_DISTANCE, Refused, array};
use crate::held::{DominatorTree, Holder, Sum};

/// Maximum number of nodes other than those of roots. Blocks that would need more count for the
/// node above.
const MAX_NODES: usize = 1 << 18;
/// Maximum depth of nodes. Blocks further down count for the last node.
const MAX_DEPTH: u32 = 64;

/// Blocks of one kind below the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The parent node; for a root, several roots, or lost blocks, the node itself.
    pub parent: u32,
    /// Kind of the blocks; for a root, a value that no block has.
    pub kind: u32,
    /// The blocks themselves.
    pub own: Sum,
    /// How many of the blocks are held by another block of this node.
    pub chained: u32,
    /// The blocks and everything that they hold.
    pub retained: Sum,
    depth: u32,
    /// The child node used last: the next block mostly belongs to it as well.
    last: u32,
}

/// All nodes, parents before children.
#[derive(Clone, Debug)]
pub struct Outline {
    nodes: Vec<Node>,
    first_block_node: usize,
}

impl Outline {
    /// The node of what several roots hold.
    pub const SEVERAL: u32 = 0;
    /// The node of lost blocks.
    pub const LOST: u32 = 1;

    /// The node of a root.
    pub fn root_node(root: u32) -> u32 {
        root.saturating_add(2)
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes of blocks, with their numbers.
    pub fn block_nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().enumerate().skip(self.first_block_node).map(|(number, node)| (number as u32, node))
    }
}

impl DominatorTree {
    /// Computes the outline from the kind of each block. Takes 4 bytes per block meanwhile.
    pub fn outline(&self, kinds: &[u16]) -> Result<Outline, Refused> {
        let first_of_blocks = self.root_count() as usize + 2;
        let node = |above: u32, kind: u32, depth: u32| {
            let (own, retained) = (Sum::default(), Sum::default());
            Node { parent: above, kind, own, chained: 0, retained, depth, last: NONE }
        };
        let mut nodes: Vec<Node> = array(0, node(0, NONE, 0))?;
        nodes.extend((0..first_of_blocks as u32).map(|number| node(number, NONE, 0)));
        let mut below: HashMap<(u32, u32), u32> = HashMap::new();
        let mut of_numbers: Vec<u32> = array(self.vertices.len(), Outline::LOST)?;
        // A holder has a lower number than what it holds.
        for number in 0..self.vertices.len() {
            if let (Some(&vertex), Some(&holder)) =
                (self.vertices.get(number + PREFETCH_DISTANCE), self.holders.get(number + PREFETCH_DISTANCE))
            {
                prefetch(kinds, vertex as usize);
                self.blocks().prefetch(vertex);
                prefetch(&of_numbers, holder as usize);
            }
            of_numbers[number] = match self.holder_of(number as u32) {
                Holder::Roots => Outline::SEVERAL,
                Holder::Nothing => Outline::LOST,
                Holder::Root(root) => Outline::root_node(root),
                Holder::Block(block) => {
                    let above = of_numbers[self.holders[number] as usize];
                    let kind = kinds.get(block as usize).copied().map_or(0, u32::from);
                    let (from, is_full) = (nodes[above as usize], nodes.len() >= MAX_NODES + first_of_blocks);
                    let mut at = above;
                    if from.kind == kind {
                        nodes[at as usize].chained += 1;
                    } else if nodes.get(from.last as usize).is_some_and(|last| last.kind == kind) {
                        at = from.last;
                    } else if let Some(&known) = below.get(&(above, kind)) {
                        at = known;
                    } else if !is_full && from.depth < MAX_DEPTH {
                        at = nodes.len() as u32;
                        nodes.push(node(above, kind, from.depth + 1));
                        below.insert((above, kind), at);
                    }
                    if at != above {
                        nodes[above as usize].last = at;
                    }
                    let own = &mut nodes[at as usize].own;
                    own.bytes += self.blocks().bytes(block);
                    own.blocks += 1;
                    at
                }
            };
        }
        for number in (0..nodes.len()).rev() {
            let node = &mut nodes[number];
            node.retained.bytes += node.own.bytes;
            node.retained.blocks += node.own.blocks;
            let (above, retained) = (node.parent as usize, node.retained);
            if above != number {
                nodes[above].retained.bytes += retained.bytes;
                nodes[above].retained.blocks += retained.blocks;
            }
        }
        Ok(Outline { nodes, first_block_node: first_of_blocks })
    }
}

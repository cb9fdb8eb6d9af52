//! The tree of who holds whom in outline: blocks of one kind that hang from the same are one node of it.
//!
//! A block that hangs from one of its own kind, as those of a list do, is of that one's node.

use std::collections::HashMap;

use strandline_sys::host::prefetch;

use crate::arrays::{AHEAD, NONE, Refused, array};
use crate::held::{By, Held, Sum};

/// Nodes at most, beside those of roots. What would need more counts for the node above it.
const MAX_NODES: usize = 1 << 18;
/// Below so many kinds all counts for the last of them.
const MAX_DEPTH: u32 = 64;

/// Blocks of one kind that hang from the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node that they hang from; of one of a root, of several, or of what is lost, its own.
    pub above: u32,
    /// Their kind; what the caller never has for a root's.
    pub kind: u32,
    /// The blocks themselves.
    pub own: Sum,
    /// How many of them hang from another one of them.
    pub chained: u32,
    /// They, and all that hangs from them.
    pub retained: Sum,
    depth: u32,
    /// The node below that was met last: the next block mostly is of it too.
    last: u32,
}

/// All nodes; those above come before those below.
#[derive(Clone, Debug)]
pub struct Outline {
    nodes: Vec<Node>,
    first_of_blocks: usize,
}

impl Outline {
    /// The node of what several roots hold.
    pub const SEVERAL: u32 = 0;
    /// The node of what is lost.
    pub const LOST: u32 = 1;

    /// The node of a root.
    pub fn of_root(root: u32) -> u32 {
        root.saturating_add(2)
    }

    /// All of them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Those of blocks, with their numbers.
    pub fn of_blocks(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().enumerate().skip(self.first_of_blocks).map(|(number, node)| (number as u32, node))
    }
}

impl Held {
    /// The outline, where `kinds` has the kind of each block: 4 bytes for each while it is made.
    pub fn outline(&self, kinds: &[u16]) -> Result<Outline, Refused> {
        let first_of_blocks = self.root_count() as usize + 2;
        let node = |above: u32, kind: u32, depth: u32| {
            let (own, retained) = (Sum::default(), Sum::default());
            Node { above, kind, own, chained: 0, retained, depth, last: NONE }
        };
        let mut nodes: Vec<Node> = array(0, node(0, NONE, 0))?;
        nodes.extend((0..first_of_blocks as u32).map(|number| node(number, NONE, 0)));
        let mut below: HashMap<(u32, u32), u32> = HashMap::new();
        let mut of_numbers: Vec<u32> = array(self.vertices.len(), Outline::LOST)?;
        // A holder has a lower number than what it holds.
        for number in 0..self.vertices.len() {
            if let (Some(&vertex), Some(&holder)) =
                (self.vertices.get(number + AHEAD), self.holders.get(number + AHEAD))
            {
                prefetch(kinds, vertex as usize);
                self.blocks().prefetch(vertex);
                prefetch(&of_numbers, holder as usize);
            }
            of_numbers[number] = match self.by(number as u32) {
                By::Roots => Outline::SEVERAL,
                By::Nothing => Outline::LOST,
                By::Root(root) => Outline::of_root(root),
                By::Block(block) => {
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
            let (above, retained) = (node.above as usize, node.retained);
            if above != number {
                nodes[above].retained.bytes += retained.bytes;
                nodes[above].retained.blocks += retained.blocks;
            }
        }
        Ok(Outline { nodes, first_of_blocks })
    }
}

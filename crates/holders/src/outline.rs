//! An outline of the dominator tree: blocks of one kind below the same node form one node.
//!
//! A block whose holder is of the same kind, as in a list, belongs to the node of its holder. So
//! does a block whose own node would be one too many or too deep.

use std::collections::HashMap;

use strandline_sys::own_memory::prefetch;

use crate::arrays::{NONE, PREFETCH_DISTANCE, Refused, array, reserved};
use crate::held::{DominatorTree, Holder, Sum};

/// Maximum number of nodes of blocks.
const MAX_NODES: usize = 1 << 18;
/// Maximum depth of nodes.
const MAX_DEPTH: u32 = 64;

/// Blocks of one kind below the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The parent node; for a root, several roots, or unreachable blocks, the node itself.
    pub parent: u32,
    /// Kind of the blocks; for a root, a value that no block has.
    pub kind: u32,
    /// The blocks themselves.
    pub own_sum: Sum,
    /// Number of these blocks that another block of this node holds.
    pub chained_blocks: u32,
    /// The blocks and everything that they hold.
    pub retained: Sum,
    depth: u32,
    /// The child node used last: the next block mostly belongs to it as well.
    last_child: u32,
}

impl Node {
    fn new(parent: u32, kind: u32, depth: u32) -> Self {
        let (own_sum, retained) = (Sum::default(), Sum::default());
        Self { parent, kind, own_sum, chained_blocks: 0, retained, depth, last_child: NONE }
    }
}

/// All nodes, parents before children.
#[derive(Clone, Debug)]
pub struct Outline {
    nodes: Vec<Node>,
    /// Index of the first node that is of blocks.
    first_block_node: usize,
}

impl Outline {
    /// The node of what several roots hold.
    pub const SEVERAL: u32 = 0;
    /// The node of unreachable blocks.
    pub const UNREACHABLE: u32 = 1;
    /// The node of the first root; those of the other roots follow.
    const FIRST_ROOT: u32 = 2;

    /// The node of a root.
    pub fn root_node(root: u32) -> u32 {
        root.saturating_add(Self::FIRST_ROOT)
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
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn outline(&self, kinds: &[u16]) -> Result<Outline, Refused> {
        let mut builder = OutlineBuilder::new(Outline::root_node(self.root_count()) as usize)?;
        let mut nodes: Vec<u32> = array(self.vertices.len(), Outline::UNREACHABLE)?;
        // A holder has a lower number than what it holds.
        for number in 0..self.vertices.len() {
            if let (Some(&vertex), Some(&holder)) =
                (self.vertices.get(number + PREFETCH_DISTANCE), self.holders.get(number + PREFETCH_DISTANCE))
            {
                prefetch(kinds, vertex as usize);
                self.blocks().prefetch(vertex);
                prefetch(&nodes, holder as usize);
            }
            nodes[number] = match self.holder_of(number as u32) {
                Holder::Roots => Outline::SEVERAL,
                Holder::Nothing => Outline::UNREACHABLE,
                Holder::Root(root) => Outline::root_node(root),
                Holder::Block(block) => {
                    let kind = kinds.get(block as usize).copied().map_or(0, u32::from);
                    let node = builder.node_below(nodes[self.holders[number] as usize], kind);
                    builder.nodes[node as usize].own_sum +=
                        Sum { bytes: self.blocks().bytes(block), blocks: 1 };
                    node
                }
            };
        }
        Ok(builder.finish())
    }
}

/// Makes the nodes of an [`Outline`].
struct OutlineBuilder {
    nodes: Vec<Node>,
    first_block_node: usize,
    /// The child of each node for each kind of blocks.
    children: HashMap<(u32, u32), u32>,
}

impl OutlineBuilder {
    fn new(first_block_node: usize) -> Result<Self, Refused> {
        let mut nodes: Vec<Node> = reserved(first_block_node)?;
        nodes.extend((0..first_block_node as u32).map(|number| Node::new(number, NONE, 0)));
        Ok(Self { nodes, first_block_node, children: HashMap::new() })
    }

    /// The node of a block of this kind whose holder belongs to the node `parent`.
    #[inline]
    fn node_below(&mut self, parent: u32, kind: u32) -> u32 {
        let Node { kind: parent_kind, depth, last_child, .. } = self.nodes[parent as usize];
        if parent_kind == kind {
            self.nodes[parent as usize].chained_blocks += 1;
            return parent;
        }
        let is_full = self.nodes.len() >= MAX_NODES + self.first_block_node;
        let node = if self.nodes.get(last_child as usize).is_some_and(|child| child.kind == kind) {
            last_child
        } else if let Some(&child) = self.children.get(&(parent, kind)) {
            child
        } else if !is_full && depth < MAX_DEPTH {
            let node = self.nodes.len() as u32;
            self.nodes.push(Node::new(parent, kind, depth + 1));
            self.children.insert((parent, kind), node);
            node
        } else {
            return parent;
        };
        self.nodes[parent as usize].last_child = node;
        node
    }

    /// Adds up what each node retains.
    fn finish(self) -> Outline {
        let Self { mut nodes, first_block_node, .. } = self;
        for number in (0..nodes.len()).rev() {
            let node = &mut nodes[number];
            node.retained += node.own_sum;
            let (parent, retained) = (node.parent as usize, node.retained);
            if parent != number {
                nodes[parent].retained += retained;
            }
        }
        Outline { nodes, first_block_node }
    }
}

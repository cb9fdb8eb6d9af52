//! Lists what each root holds: the largest nodes of the outline of the dominator tree.

use std::cmp::Reverse;

use strandline_holders::{Node, Outline};

use super::facts::Holding;
use super::types::Types;

/// Nodes that retain less than all live bytes divided by this are not listed.
const MIN_FRACTION_DIVISOR: u64 = 2000;
/// Maximum number of nodes listed below a node, largest first.
const MAX_CHILDREN: usize = 20;
/// Maximum depth of nodes.
const MAX_DEPTH: usize = 12;

/// The outline, with names.
pub struct Tree<'a> {
    outline: &'a Outline,
    types: &'a Types,
    /// By parent, largest first.
    listed: Vec<ListedNode>,
}

/// Index of a node in the outline, and of its parent.
struct ListedNode {
    parent: u32,
    node: u32,
}

impl<'a> Tree<'a> {
    /// Lists an outline of blocks of `live_bytes` in total.
    pub fn new(outline: &'a Outline, types: &'a Types, live_bytes: u64) -> Self {
        let min_bytes = (live_bytes / MIN_FRACTION_DIVISOR).max(1);
        let large = outline.block_nodes().filter(|(_, node)| node.retained.bytes >= min_bytes);
        let mut listed: Vec<ListedNode> =
            large.map(|(index, node)| ListedNode { parent: node.parent, node: index }).collect();
        let bytes = |index: u32| outline.nodes().get(index as usize).map_or(0, |node| node.retained.bytes);
        listed.sort_by_key(|entry| (entry.parent, Reverse(bytes(entry.node))));
        Self { outline, types, listed }
    }

    /// Returns the nodes below a node.
    pub fn below(&self, node: u32) -> Vec<Holding> {
        self.below_at(node, 0)
    }

    fn below_at(&self, parent: u32, depth: usize) -> Vec<Holding> {
        let first = self.listed.partition_point(|entry| entry.parent < parent);
        let children = self.listed.iter().skip(first).take_while(|entry| entry.parent == parent);
        let children = children.take(if depth < MAX_DEPTH { MAX_CHILDREN } else { 0 });
        let holding = |entry: &ListedNode| {
            let node = self.outline.nodes().get(entry.node as usize)?;
            Some(Holding { holds: self.below_at(entry.node, depth + 1), ..self.holding(node) })
        };
        children.filter_map(holding).collect()
    }

    fn holding(&self, node: &Node) -> Holding {
        Holding {
            name: self.types.name(node.kind).to_owned(),
            instances: u64::from(node.own_sum.blocks),
            bytes: node.own_sum.bytes,
            chained: u64::from(node.chained_blocks),
            retained_bytes: node.retained.bytes,
            retained_blocks: u64::from(node.retained.blocks),
            holds: Vec::new(),
        }
    }
}

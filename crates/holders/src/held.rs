//! The result: the holder of each block, and what each holds alone.

use strandline_sys::own_memory::prefetch;

use crate::arrays::{PREFETCH_DISTANCE, Refused, array};
use crate::blocks::Blocks;
use crate::marks::BlockSet;
use crate::sharing::{SharedSet, Sharing};

/// Bytes and number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
    }
}

impl std::ops::Sub for Sum {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

/// Blocks that no root reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreachable {
    /// Heads: no unreachable block leads to them, except those that they lead to themselves.
    pub definite: Sum,
    /// Blocks reached only from heads.
    pub indirect: Sum,
}

/// The holder of a block: its nearest dominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A block.
    Block(u32),
    /// A root.
    Root(u32),
    /// Several roots, but none alone.
    Roots,
    /// No root: for heads of unreachable blocks, and for blocks that several heads lead to.
    Nothing,
}

/// The holders of all blocks.
#[derive(Debug)]
pub struct DominatorTree {
    pub(crate) blocks: Blocks,
    /// Vertex of each number.
    pub(crate) vertices: Vec<u32>,
    /// Dominator of each number.
    pub(crate) holders: Vec<u32>,
    /// The heads of unreachable blocks; `None` if nothing is unreachable.
    pub(crate) heads: Option<BlockSet>,
    pub(crate) sharing: Sharing,
    /// Number of the vertex above all unreachable blocks.
    pub(crate) unreachable_number: u32,
    pub(crate) sums: Sums,
}

/// Sums over the blocks of a [`DominatorTree`].
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// What each root alone retains.
    roots: Vec<Sum>,
    /// What several roots reach, but none alone.
    shared: Sum,
    /// What no root reaches, heads included.
    unreachable: Sum,
    /// The heads alone.
    heads: Sum,
}

impl DominatorTree {
    /// Adds the sums over the blocks.
    pub(crate) fn with_sums(mut self, root_count: u32) -> Result<Self, Refused> {
        self.sums.roots = array(root_count as usize, Sum::default())?;
        for head in self.heads.iter().flat_map(BlockSet::iter) {
            self.sums.heads += Sum { bytes: self.blocks.bytes(head), blocks: 1 };
        }
        let sole_roots = self.sole_roots_by_number()?;
        for (number, (&vertex, root)) in self.vertices.iter().zip(sole_roots).enumerate() {
            if let Some(&vertex) = self.vertices.get(number + PREFETCH_DISTANCE) {
                self.blocks.prefetch(vertex);
            }
            if vertex >= self.blocks.len() {
                continue;
            }
            let sum = match root {
                SEVERAL => &mut self.sums.shared,
                root => self.sums.roots.get_mut(root as usize).unwrap_or(&mut self.sums.unreachable),
            };
            *sum += Sum { bytes: self.blocks.bytes(vertex), blocks: 1 };
        }
        Ok(self)
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Number of roots.
    pub fn root_count(&self) -> u32 {
        self.sums.roots.len() as u32
    }

    /// Blocks that roots reach.
    pub fn reached(&self) -> Sum {
        let mut sum = self.sums.shared;
        self.sums.roots.iter().for_each(|&root| sum += root);
        sum
    }

    /// What a root alone holds: no other root of its class, or of an earlier class, leads there.
    pub fn retained_by_root(&self, root: u32) -> Sum {
        self.sums.roots.get(root as usize).copied().unwrap_or_default()
    }

    /// Blocks that several roots reach and no single root holds.
    pub fn shared(&self) -> Sum {
        self.sums.shared
    }

    /// The blocks that several roots reach, by set of roots, largest first.
    pub fn shared_sets(&self) -> &[SharedSet] {
        &self.sharing.sets
    }

    /// The blocks that several roots reach, each with the index of its set in
    /// [`DominatorTree::shared_sets`].
    pub fn each_shared(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        let set = |number| Some((*self.vertices.get(number as usize)?, self.sharing.set(number)?.into()));
        self.sharing.members.iter().filter_map(set)
    }

    /// Blocks that no root reaches.
    pub fn unreachable(&self) -> Unreachable {
        Unreachable { definite: self.sums.heads, indirect: self.sums.unreachable - self.sums.heads }
    }

    /// Whether no root reaches a block. Scans all blocks.
    pub fn is_unreachable(&self, block: u32) -> bool {
        self.number(block).is_some_and(|number| number > self.unreachable_number)
    }

    /// The heads of unreachable blocks, in order. Each retains what would be freed with it, but not
    /// blocks that other heads lead to as well.
    pub fn heads(&self) -> impl Iterator<Item = u32> + '_ {
        self.heads.iter().flat_map(BlockSet::iter)
    }

    /// What a block alone holds, itself included. Scans all blocks ([`DominatorTree::outline`]
    /// computes it for all kinds at once).
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn retained(&self, block: u32) -> Result<Sum, Refused> {
        let mut sum = Sum::default();
        let Some(top) = self.number(block) else { return Ok(sum) };
        let mut is_below = BlockSet::new(self.vertices.len() as u32)?;
        // A holder has a lower number than what it holds.
        for number in top..self.vertices.len() as u32 {
            if number == top || is_below.has(self.holders[number as usize]) {
                is_below.set(number);
                sum += Sum { bytes: self.blocks.bytes(self.vertices[number as usize]), blocks: 1 };
            }
        }
        Ok(sum)
    }

    /// The holder of a block; [`Holder::Nothing`] if there is no such block. Scans all blocks.
    pub fn dominator(&self, block: u32) -> Holder {
        let holder = self.number(block).and_then(|number| self.holders.get(number as usize));
        holder.map_or(Holder::Nothing, |&holder| self.holder_of(holder))
    }

    /// The number of a block in the search. Scans all blocks.
    fn number(&self, block: u32) -> Option<u32> {
        let number = self.vertices.iter().position(|&vertex| vertex == block)?;
        (block < self.blocks.len()).then_some(number as u32)
    }

    /// The block or root with a number, as a holder of others.
    pub(crate) fn holder_of(&self, number: u32) -> Holder {
        let vertex = self.vertices.get(number as usize).copied().unwrap_or(0);
        match vertex.checked_sub(self.blocks.len()) {
            None => Holder::Block(vertex),
            Some(root) if root < self.root_count() => Holder::Root(root),
            Some(_) if number == self.unreachable_number => Holder::Nothing,
            Some(_) => Holder::Roots,
        }
    }
}

/// Stands for several roots in [`DominatorTree::sole_roots`].
pub const SEVERAL: u32 = u32::MAX - 1;
/// Stands for no root in [`DominatorTree::sole_roots`].
pub const NO_ROOT: u32 = u32::MAX;

impl DominatorTree {
    /// For each block the root that alone holds it, [`SEVERAL`] or [`NO_ROOT`]. Takes 8 bytes per
    /// block meanwhile, and 4 in the result.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn sole_roots(&self) -> Result<Vec<u32>, Refused> {
        let mut roots = array(self.blocks.len() as usize, NO_ROOT)?;
        for (&vertex, root_of_number) in self.vertices.iter().zip(self.sole_roots_by_number()?) {
            if let Some(root) = roots.get_mut(vertex as usize) {
                *root = root_of_number;
            }
        }
        Ok(roots)
    }

    /// For each number, the root that alone holds its vertex.
    fn sole_roots_by_number(&self) -> Result<Vec<u32>, Refused> {
        let mut roots = array(self.vertices.len(), NO_ROOT)?;
        // A holder has a lower number than what it holds.
        for number in 0..self.vertices.len() {
            if let Some(&holder) = self.holders.get(number + PREFETCH_DISTANCE) {
                prefetch(&roots, holder as usize);
            }
            roots[number] = match self.holder_of(number as u32) {
                Holder::Root(root) => root,
                Holder::Roots => SEVERAL,
                Holder::Nothing => NO_ROOT,
                Holder::Block(_) => roots[self.holders[number] as usize],
            };
        }
        Ok(roots)
    }
}

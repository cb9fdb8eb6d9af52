//! What was found: who holds each block, and what each holds alone.

use crate::arrays::{Refused, array};
use crate::blocks::Blocks;
use crate::marks::Marks;

/// Bytes and how many blocks have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u32,
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

/// What no root reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Heads: nothing that is lost leads to them, but what they lead to themselves.
    pub definite: Sum,
    /// What is reached from heads only.
    pub indirect: Sum,
}

/// Who holds a block: the nearest that every way to it leads through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A block.
    Block(u32),
    /// A root.
    Root(u32),
    /// Several roots, none alone.
    Roots,
    /// No root: heads of what is lost, and what several of them lead to.
    Nothing,
}

/// Who holds what.
#[derive(Debug)]
pub struct Held {
    blocks: Blocks,
    numbers: Vec<u32>,
    pub(crate) vertices: Vec<u32>,
    /// The dominator of each number.
    pub(crate) holders: Vec<u32>,
    pub(crate) nearest: Option<Vec<u32>>,
    heads: Option<Marks>,
    /// Bytes and blocks that each number retains.
    bytes: Vec<u64>,
    counts: Vec<u32>,
    roots: u32,
    /// Number of the vertex that stands for what is lost.
    lost: u32,
    definite: Sum,
}

impl Held {
    pub(crate) fn new(
        blocks: Blocks,
        (numbers, vertices): (Vec<u32>, Vec<u32>),
        (holders, nearest): (Vec<u32>, Option<Vec<u32>>),
        heads: Option<Marks>,
        (roots, lost): (u32, u32),
    ) -> Result<Self, Refused> {
        let (mut bytes, mut counts) = (array(vertices.len(), 0)?, array(vertices.len(), 0)?);
        // A holder has a lower number than what it holds.
        for number in (1..vertices.len()).rev() {
            let block = vertices[number];
            if block < blocks.len() {
                bytes[number] += blocks.bytes(block);
                counts[number] += 1;
            }
            let holder = holders[number] as usize;
            bytes[holder] += bytes[number];
            counts[holder] += counts[number];
        }
        let mut definite = Sum::default();
        for head in heads.iter().flat_map(Marks::iter) {
            definite.bytes += blocks.bytes(head);
            definite.blocks += 1;
        }
        Ok(Self { blocks, numbers, vertices, holders, nearest, heads, bytes, counts, roots, lost, definite })
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// How many roots there are.
    pub fn root_count(&self) -> u32 {
        self.roots
    }

    /// What roots reach.
    pub fn reached(&self) -> Sum {
        self.sum(0) - self.sum(self.lost)
    }

    /// What a root alone holds: it would be lost without this root, and is not without any other.
    pub fn root(&self, root: u32) -> Sum {
        let vertex = self.blocks.len().checked_add(root).filter(|_| root < self.roots);
        vertex.map_or_else(Sum::default, |vertex| self.sum(self.numbers[vertex as usize]))
    }

    /// What several roots reach, each by a way of its own.
    pub fn shared(&self) -> Sum {
        let alone = (0..self.roots).map(|root| self.root(root));
        alone.fold(self.reached(), |sum, alone| sum - alone)
    }

    /// What no root reaches.
    pub fn lost(&self) -> Lost {
        Lost { definite: self.definite, indirect: self.sum(self.lost) - self.definite }
    }

    /// Whether no root reaches a block.
    pub fn is_lost(&self, block: u32) -> bool {
        self.number(block).is_some_and(|number| number > self.lost)
    }

    /// The heads of what is lost, in order. What each retains would go with it; what several lead to is in none.
    pub fn heads(&self) -> impl Iterator<Item = u32> + '_ {
        self.heads.iter().flat_map(Marks::iter)
    }

    /// What a block alone holds, with the block itself.
    pub fn retained(&self, block: u32) -> Sum {
        self.number(block).map_or_else(Sum::default, |number| self.sum(number))
    }

    /// Who holds a block; nothing, where it is no block.
    pub fn dominator(&self, block: u32) -> By {
        let holder = self.number(block).and_then(|number| self.holders.get(number as usize));
        holder.map_or(By::Nothing, |&holder| self.by(holder))
    }

    /// The number of a block in the search.
    pub(crate) fn number(&self, block: u32) -> Option<u32> {
        self.numbers.get(block as usize).copied().filter(|_| block < self.blocks.len())
    }

    /// What has a number.
    pub(crate) fn by(&self, number: u32) -> By {
        let vertex = self.vertices.get(number as usize).copied().unwrap_or(0);
        match vertex.checked_sub(self.blocks.len()) {
            None => By::Block(vertex),
            Some(root) if root < self.roots => By::Root(root),
            Some(_) if number == self.lost => By::Nothing,
            Some(_) => By::Roots,
        }
    }

    fn sum(&self, number: u32) -> Sum {
        let bytes = self.bytes.get(number as usize).copied().unwrap_or(0);
        Sum { bytes, blocks: self.counts.get(number as usize).copied().unwrap_or(0) }
    }
}

/// Stands for several roots in [`Held::tops`].
pub const SEVERAL: u32 = u32::MAX - 1;
/// Stands for no root in [`Held::tops`].
pub const NO_ROOT: u32 = u32::MAX;

impl Held {
    /// For each block the root that holds it alone, [`SEVERAL`] or [`NO_ROOT`]: 8 bytes a block while it is made, 4 in the end.
    pub fn tops(&self) -> Result<Vec<u32>, Refused> {
        let mut of_numbers = array(self.vertices.len(), NO_ROOT)?;
        // A holder has a lower number than what it holds.
        for number in 0..self.vertices.len() {
            of_numbers[number] = match self.by(number as u32) {
                By::Root(root) => root,
                By::Roots => SEVERAL,
                By::Nothing => NO_ROOT,
                By::Block(_) => of_numbers[self.holders[number] as usize],
            };
        }
        let mut tops = array(self.blocks.len() as usize, NO_ROOT)?;
        for (block, top) in tops.iter_mut().enumerate() {
            *top = of_numbers.get(self.numbers[block] as usize).copied().unwrap_or(NO_ROOT);
        }
        Ok(tops)
    }
}

//! From where blocks are reached.

/// Roots: what is outside of all blocks and refers to some, a stack, a register, a variable. Each is a number, in the order of adding;
/// the caller keeps their names.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// Where the blocks of each end.
    ends: Vec<usize>,
    pub(crate) blocks: Vec<u32>,
    passing: Option<usize>,
}

impl Roots {
    /// Adds one that refers to some blocks; returns its number. 8 bytes for each and 4 for each block it refers to.
    pub fn add(&mut self, blocks: impl IntoIterator<Item = u32>) -> u32 {
        self.blocks.extend(blocks);
        self.ends.push(self.blocks.len());
        self.ends.len() as u32 - 1
    }

    /// Says that those that are added from now on pass by (stacks, registers): they hold only what no other root reaches. What they lead to
    /// besides is as if they did not.
    pub fn rest_is_passing(&mut self) {
        self.passing.get_or_insert(self.ends.len());
    }

    /// The first of these.
    pub(crate) fn first_passing(&self) -> usize {
        self.passing.unwrap_or(usize::MAX)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What one refers to.
    pub(crate) fn of(&mut self, root: usize) -> &mut [u32] {
        let from = root.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let to = self.ends.get(root).copied().unwrap_or(from);
        self.blocks.get_mut(from..to).unwrap_or_default()
    }
}

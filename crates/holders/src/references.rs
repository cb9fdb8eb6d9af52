//! What blocks refer to: for each the numbers of those that words in it lead into.
//!
//! Words that lead into their own block are left out, and so are those that say the same as the one before.

use strandline_process::memory::Memory;

use crate::arrays::{Refused, array, reserved};
use crate::blocks::Blocks;
use crate::marks::Marks;
use crate::scan::{Heads, Limits, Outcome, Progress, Run, scan};

/// What blocks refer to: all targets one behind another.
#[derive(Debug)]
pub struct References {
    /// Where the targets of each end.
    ends: Vec<u32>,
    targets: Vec<u32>,
    outcome: Outcome,
}

impl References {
    /// Reads every block once, but those in `plain`, which are known to refer to nothing. `heads` and
    /// `progress` are told from several threads.
    /// What could not be read, or not within the limits, is in the [`Outcome`]: it is for the caller to say.
    pub fn read(
        memory: &dyn Memory,
        blocks: &Blocks,
        plain: Option<&Marks>,
        heads: Option<&dyn Heads>,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, Refused> {
        let (runs, outcome) = scan(memory, (blocks, plain), heads, limits, progress);
        let (ends, targets) = joined(runs, blocks.len())?;
        Ok(Self { ends, targets, outcome })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.targets.len() as u64
    }

    /// Of how many blocks.
    pub fn blocks(&self) -> u32 {
        self.ends.len() as u32
    }

    /// What was read, and what not.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What a block refers to, in the order of its words.
    pub fn of(&self, block: u32) -> &[u32] {
        let (from, to) = self.range(block);
        self.targets.get(from..to).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, block: u32) -> &mut [u32] {
        let (from, to) = self.range(block);
        self.targets.get_mut(from..to).unwrap_or_default()
    }

    #[inline]
    fn range(&self, block: u32) -> (usize, usize) {
        let end = |block: usize| self.ends.get(block).copied().unwrap_or(0) as usize;
        ((block as usize).checked_sub(1).map_or(0, end), end(block as usize))
    }
}

/// Runs in order, put together; each is freed as soon as it was copied. What is in none refers to nothing.
fn joined(runs: Vec<Run>, blocks: u32) -> Result<(Vec<u32>, Vec<u32>), Refused> {
    let count: usize = runs.iter().map(|run| run.targets.len()).sum();
    let mut ends = array(blocks as usize, 0)?;
    let mut targets = reserved(count)?;
    let mut next = 0;
    for run in runs {
        let before = targets.len() as u32;
        // Of a block in parts all but the first part go on where its end is already.
        let first = run.first as usize;
        ends.get_mut(next..first).unwrap_or_default().fill(before);
        next = first + run.ends.len();
        for (to, end) in ends.get_mut(first..next).unwrap_or_default().iter_mut().zip(&run.ends) {
            *to = before + end;
        }
        targets.extend_from_slice(&run.targets);
    }
    ends.get_mut(next..).unwrap_or_default().fill(targets.len() as u32);
    Ok((ends, targets))
}

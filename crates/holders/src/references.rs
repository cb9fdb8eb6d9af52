//! What blocks refer to: for each the numbers of those that words in it lead into.
//!
//! They stand together for runs of blocks, as each was read by one worker. So nothing is copied, and a run is freed as soon as it was
//! turned round. Words that lead into their own block are left out, and so are those that say the same as the one before.

use crate::blocks::Blocks;
use crate::marks::Marks;
use crate::scan::{Limits, Outcome, Progress, scan};
use strandline_process::memory::Memory;

/// Blocks of an entry of the table that leads to runs.
const JUMP_SHIFT: u32 = 10;

/// Blocks that stand one behind another, and what they refer to.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// The first of them.
    pub first: u32,
    /// Where the targets of each end.
    pub ends: Box<[u32]>,
    pub targets: Box<[u32]>,
}

impl Run {
    /// Targets of its `index`th block; none, where it has none or was not read.
    #[inline]
    fn range(&self, index: usize) -> (usize, usize) {
        let end = |index| self.ends.get(index).copied().unwrap_or(0) as usize;
        (index.checked_sub(1).map_or(0, end), end(index))
    }

    /// Each of its blocks with its targets.
    pub fn blocks(&mut self) -> impl Iterator<Item = (u32, &mut [u32])> {
        let mut rest: &mut [u32] = &mut self.targets;
        let mut before = 0;
        (self.first..).zip(&self.ends).map(move |(block, &end)| {
            let (targets, behind) = std::mem::take(&mut rest).split_at_mut((end - before) as usize);
            rest = behind;
            before = end;
            (block, targets)
        })
    }
}

/// What blocks refer to.
#[derive(Debug)]
pub struct References {
    pub(crate) runs: Vec<Run>,
    /// First blocks of runs.
    firsts: Vec<u32>,
    /// The run of the first of so many blocks.
    jumps: Vec<u32>,
    blocks: u32,
    count: u64,
    outcome: Outcome,
}

impl References {
    /// Reads every block once, but those in `plain`, which are known to refer to nothing. `progress` is told from several threads.
    /// What could not be read, or not within the limits, is in the [`Outcome`]: it is for the caller to say.
    pub fn read(
        memory: &dyn Memory,
        blocks: &Blocks,
        plain: Option<&Marks>,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Self {
        let (runs, outcome) = scan(memory, (blocks, plain), limits, progress);
        let firsts: Vec<u32> = runs.iter().map(|run| run.first).collect();
        let mut jumps = Vec::new();
        let mut run = 0;
        for block in (0..blocks.len()).step_by(1 << JUMP_SHIFT) {
            while firsts.get(run + 1).is_some_and(|&first| first <= block) {
                run += 1;
            }
            jumps.push(run as u32);
        }
        let count = runs.iter().map(|run| run.targets.len() as u64).sum();
        Self { runs, firsts, jumps, blocks: blocks.len(), count, outcome }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Of how many blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// What was read, and what not.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What a block refers to, in the order of its words.
    pub fn of(&self, block: u32) -> &[u32] {
        let Some(run) = self.runs.get(self.run(block)).filter(|run| run.first <= block) else { return &[] };
        let (from, to) = run.range((block - run.first) as usize);
        run.targets.get(from..to).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, block: u32) -> &mut [u32] {
        let run = self.run(block);
        let Some(run) = self.runs.get_mut(run).filter(|run| run.first <= block) else {
            return Default::default();
        };
        let (from, to) = run.range((block - run.first) as usize);
        run.targets.get_mut(from..to).unwrap_or_default()
    }

    /// The run of a block.
    #[inline]
    fn run(&self, block: u32) -> usize {
        let jump = (block >> JUMP_SHIFT) as usize;
        let from = self.jumps.get(jump).map_or(0, |&run| run as usize);
        let to = self.jumps.get(jump + 1).map_or(self.runs.len(), |&run| run as usize + 1);
        let firsts = self.firsts.get(from + 1..to).unwrap_or_default();
        from + firsts.partition_point(|&first| first <= block)
    }
}

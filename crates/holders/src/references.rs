//! References between blocks: for each block the numbers of the blocks that its words point into.
//!
//! Words that point into their own block are left out, and so are words with the same target as the
//! word before. Most blocks refer to few others: sixty blocks share a cache line that holds where
//! the targets of the first begin and how many each has. Blocks with too many targets for that, and
//! blocks that were read in parts, are kept separately.

use std::ops::Range;

use strandline_process::memory::Memory;
use strandline_sys::own_memory::prefetch;

use crate::arrays::{Refused, reserved};
use crate::blocks::Blocks;
use crate::scan::{KnownBlocks, Limits, Outcome, Progress, Run, ScanResult, TypeWordSink, scan};

/// Number of blocks in a group: an index of four bytes and their counts fill a cache line.
const BLOCKS_PER_GROUP: u32 = 60;
/// Count of a block whose targets are in [`References::large_targets`].
const LARGE: u8 = u8::MAX;

/// Consecutive blocks, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group {
    /// Index in [`References::targets`] of the first target of the first block.
    first_target: u32,
    /// Number of targets of each block, or [`LARGE`], which counts as 0.
    counts: [u8; BLOCKS_PER_GROUP as usize],
}

/// Where the targets of a block are.
struct TargetRange {
    /// Index range of the targets.
    range: Range<usize>,
    /// Whether they are in [`References::large_targets`].
    is_large: bool,
}

/// A block with too many targets for a group, or that was read in parts.
#[derive(Clone, Copy, Debug)]
struct LargeBlock {
    block: u32,
    /// Index of its first target in [`References::large_targets`].
    first_target: u32,
    /// Number of its targets.
    count: u32,
}

/// References between blocks, all targets one after another.
#[derive(Debug)]
pub struct References {
    groups: Vec<Group>,
    /// Targets of the blocks in groups, in block order.
    targets: Vec<u32>,
    /// In block order.
    large_blocks: Vec<LargeBlock>,
    /// Targets of the large blocks.
    large_targets: Vec<u32>,
    /// Number of blocks, with targets or without.
    block_count: u32,
    /// What was read and what was not.
    outcome: Outcome,
}

impl References {
    /// Reads every block once, except those known to refer to nothing. `type_words` and `progress`
    /// are called from several threads. What could not be read, or not within the limits, is in the
    /// [`Outcome`] for the caller to report.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn read(
        memory: &dyn Memory,
        blocks: &Blocks,
        known: KnownBlocks<'_>,
        type_words: Option<&dyn TypeWordSink>,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, Refused> {
        let ScanResult { runs, outcome } = scan(memory, blocks, known, type_words, limits, progress);
        join_runs(runs, blocks.len(), outcome)
    }

    /// Number of references.
    pub fn count(&self) -> u64 {
        (self.targets.len() + self.large_targets.len()) as u64
    }

    /// Number of blocks.
    pub fn block_count(&self) -> u32 {
        self.block_count
    }

    /// What was read and what was not.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Targets of a block, in the order of its words.
    pub fn targets(&self, block: u32) -> &[u32] {
        let TargetRange { range, is_large } = self.range(block);
        let targets = if is_large { &self.large_targets } else { &self.targets };
        targets.get(range).unwrap_or_default()
    }

    /// Targets of a block, to be replaced.
    #[inline]
    pub(crate) fn targets_mut(&mut self, block: u32) -> &mut [u32] {
        let TargetRange { range, is_large } = self.range(block);
        let targets = if is_large { &mut self.large_targets } else { &mut self.targets };
        targets.get_mut(range).unwrap_or_default()
    }

    /// Prefetches the group of a block.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        prefetch(&self.groups, (block / BLOCKS_PER_GROUP) as usize);
    }

    /// Where the targets of a block are.
    #[inline]
    fn range(&self, block: u32) -> TargetRange {
        let Some(group) = self.groups.get((block / BLOCKS_PER_GROUP) as usize) else {
            return TargetRange { range: 0..0, is_large: false };
        };
        let index = (block % BLOCKS_PER_GROUP) as usize;
        let small_count = |&count: &u8| if count == LARGE { 0 } else { u32::from(count) };
        let count = group.counts[index];
        if count == LARGE {
            return TargetRange { range: self.large_range(block), is_large: true };
        }
        let first =
            (group.first_target + group.counts[..index].iter().map(small_count).sum::<u32>()) as usize;
        TargetRange { range: first..first + usize::from(count), is_large: false }
    }

    /// Index range of the targets of a large block.
    #[cold]
    fn large_range(&self, block: u32) -> Range<usize> {
        let index = self.large_blocks.binary_search_by_key(&block, |large| large.block);
        let large = index.ok().and_then(|index| self.large_blocks.get(index));
        large.map_or(0..0, |large| large.first_target as usize..(large.first_target + large.count) as usize)
    }

    /// Removes the references for which `keep(block, target)` is false, and frees their memory.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32, u32) -> bool) {
        let mut kept = 0;
        for (number, group) in (0..).zip(&mut self.groups) {
            let mut old_first = group.first_target as usize;
            group.first_target = kept as u32;
            if group.counts == [0; BLOCKS_PER_GROUP as usize] {
                continue;
            }
            for (block, count) in (number * BLOCKS_PER_GROUP..).zip(&mut group.counts) {
                let old_count = if *count == LARGE { continue } else { usize::from(*count) };
                let kept_before = kept;
                for index in old_first..old_first + old_count {
                    let target = self.targets[index];
                    self.targets[kept] = target;
                    kept += usize::from(keep(block, target));
                }
                *count = (kept - kept_before) as u8;
                old_first += old_count;
            }
        }
        shorten(&mut self.targets, kept);
        kept = 0;
        for large in &mut self.large_blocks {
            let old_range = large.first_target as usize..(large.first_target + large.count) as usize;
            large.first_target = kept as u32;
            for index in old_range {
                let target = self.large_targets[index];
                self.large_targets[kept] = target;
                kept += usize::from(keep(large.block, target));
            }
            large.count = kept as u32 - large.first_target;
        }
        shorten(&mut self.large_targets, kept);
    }
}

/// Shortens an array to `len` and frees the memory after it.
fn shorten<T>(array: &mut Vec<T>, len: usize) {
    array.truncate(len);
    array.shrink_to_fit();
}

/// Joins runs in order; each is freed once it is copied. Blocks in no run refer to nothing.
fn join_runs(runs: Vec<Run>, block_count: u32, outcome: Outcome) -> Result<References, Refused> {
    let is_large = |run: &Run, count: u32| run.is_part || count >= u32::from(LARGE);
    let (mut small_count, mut large_count) = (0, 0);
    for run in &runs {
        for count in run.counts() {
            let sum = if is_large(run, count) { &mut large_count } else { &mut small_count };
            *sum += count as usize;
        }
    }
    let empty = Group { first_target: 0, counts: [0; BLOCKS_PER_GROUP as usize] };
    let mut groups = crate::arrays::array(block_count.div_ceil(BLOCKS_PER_GROUP) as usize, empty)?;
    let (mut targets, mut large_targets) = (reserved(small_count)?, reserved(large_count)?);
    let mut large_blocks: Vec<LargeBlock> = Vec::new();
    // Number of groups whose `first_target` is set.
    let mut begun_groups = 0;
    for run in runs {
        let mut first = 0;
        for (block, count) in (run.first..).zip(run.counts()) {
            let number = (block / BLOCKS_PER_GROUP) as usize;
            for group in groups.get_mut(begun_groups..=number).unwrap_or_default() {
                group.first_target = targets.len() as u32;
            }
            begun_groups = begun_groups.max(number + 1);
            let block_targets = run.targets.get(first..first + count as usize).unwrap_or_default();
            first += count as usize;
            let Some(group) = groups.get_mut(number) else { continue };
            let stored_count = &mut group.counts[(block % BLOCKS_PER_GROUP) as usize];
            if !is_large(&run, count) {
                *stored_count = count as u8;
                targets.extend_from_slice(block_targets);
                continue;
            }
            *stored_count = LARGE;
            large_targets.extend_from_slice(block_targets);
            match large_blocks.last_mut().filter(|last| last.block == block) {
                Some(last) => last.count += count,
                None => large_blocks.push(LargeBlock {
                    block,
                    first_target: large_targets.len() as u32 - count,
                    count,
                }),
            }
        }
    }
    for group in groups.get_mut(begun_groups..).unwrap_or_default() {
        group.first_target = targets.len() as u32;
    }
    Ok(References { groups, targets, large_blocks, large_targets, block_count, outcome })
}

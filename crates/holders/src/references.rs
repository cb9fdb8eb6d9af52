//! References between blocks: for each block the numbers of the blocks that its words point into.
//!
//! Words that point into their own block are left out, and so are words with the same target as the
//! one before. Most blocks refer to few others: sixty share a cache line that holds where the
//! targets of the first one begin and how many each has. Blocks with too many targets for that, and
//! blocks that were read in parts, are kept separately.

use strandline_process::memory::Memory;
use strandline_sys::host::prefetch;

use crate::arrays::{Refused, reserved};
use crate::blocks::Blocks;
use crate::scan::{Known, Limits, Outcome, Progress, Run, TypeWordSink, scan};

/// Blocks in a group.
const TOGETHER: u32 = 60;
/// Count of a block whose targets are in `apart`.
const LARGE: u8 = u8::MAX;

/// Consecutive blocks, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group {
    /// Index of the first target of the first block.
    first: u32,
    /// Number of targets of each block, or [`LARGE`], which counts as 0.
    counts: [u8; TOGETHER as usize],
}

/// Targets of a block with many.
#[derive(Clone, Copy, Debug)]
struct Apart {
    block: u32,
    /// Index of the first target.
    first: u32,
    count: u32,
}

/// References between blocks, all targets one after another.
#[derive(Debug)]
pub struct References {
    groups: Vec<Group>,
    targets: Vec<u32>,
    large_blocks: Vec<Apart>,
    large_targets: Vec<u32>,
    blocks: u32,
    outcome: Outcome,
}

impl References {
    /// Reads every block once, except those known to refer to nothing. `heads` and `progress` are
    /// called from several threads. What could not be read, or not within the limits, is in the
    /// [`Outcome`] for the caller to report.
    pub fn read(
        memory: &dyn Memory,
        blocks: &Blocks,
        known: Known<'_>,
        heads: Option<&dyn TypeWordSink>,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, Refused> {
        let (runs, outcome) = scan(memory, blocks, known, heads, limits, progress);
        join_runs(runs, blocks.len(), outcome)
    }

    /// Number of references.
    pub fn count(&self) -> u64 {
        (self.targets.len() + self.large_targets.len()) as u64
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// What was read and what was not.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Targets of a block, in the order of its words.
    pub fn of(&self, block: u32) -> &[u32] {
        let (from, to, is_apart) = self.range(block);
        let targets = if is_apart { &self.large_targets } else { &self.targets };
        targets.get(from..to).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn targets_mut(&mut self, block: u32) -> &mut [u32] {
        let (from, to, is_apart) = self.range(block);
        let targets = if is_apart { &mut self.large_targets } else { &mut self.targets };
        targets.get_mut(from..to).unwrap_or_default()
    }

    /// Prefetches the group of a block.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        prefetch(&self.groups, (block / TOGETHER) as usize);
    }

    /// Index range of the targets of a block, and whether they are in `of_apart`.
    #[inline]
    fn range(&self, block: u32) -> (usize, usize, bool) {
        let Some(group) = self.groups.get((block / TOGETHER) as usize) else { return (0, 0, false) };
        let place = (block % TOGETHER) as usize;
        let many = |&count: &u8| if count == LARGE { 0 } else { u32::from(count) };
        let count = group.counts[place];
        if count == LARGE {
            return self.range_apart(block);
        }
        let from = group.first + group.counts[..place].iter().map(many).sum::<u32>();
        (from as usize, from as usize + usize::from(count), false)
    }

    #[cold]
    fn range_apart(&self, block: u32) -> (usize, usize, bool) {
        let found = self.large_blocks.binary_search_by_key(&block, |apart| apart.block);
        let range = found.ok().and_then(|index| self.large_blocks.get(index));
        range.map_or((0, 0, true), |of| (of.first as usize, (of.first + of.count) as usize, true))
    }

    /// Removes the references for which `keep(block, target)` is false, and frees their memory.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32, u32) -> bool) {
        let mut next = 0;
        for (number, group) in (0..).zip(&mut self.groups) {
            let mut from = group.first as usize;
            group.first = next as u32;
            if group.counts == [0; TOGETHER as usize] {
                continue;
            }
            for (block, count) in (number * TOGETHER..).zip(&mut group.counts) {
                let had = if *count == LARGE { continue } else { usize::from(*count) };
                let before = next;
                for index in from..from + had {
                    let target = self.targets[index];
                    self.targets[next] = target;
                    next += usize::from(keep(block, target));
                }
                *count = (next - before) as u8;
                from += had;
            }
        }
        shorten(&mut self.targets, next);
        next = 0;
        for of in &mut self.large_blocks {
            let had = of.first as usize..(of.first + of.count) as usize;
            of.first = next as u32;
            for index in had {
                let target = self.large_targets[index];
                self.large_targets[next] = target;
                next += usize::from(keep(of.block, target));
            }
            of.count = next as u32 - of.first;
        }
        shorten(&mut self.large_targets, next);
    }
}

/// Shortens an array to `len` and frees the rest.
fn shorten<T>(array: &mut Vec<T>, len: usize) {
    array.truncate(len);
    array.shrink_to_fit();
}

/// Joins runs in order; each is freed once it is copied. Blocks in no run refer to nothing.
fn join_runs(runs: Vec<Run>, blocks: u32, outcome: Outcome) -> Result<References, Refused> {
    let is_apart = |run: &Run, count: u32| run.is_part || count >= u32::from(LARGE);
    let (mut few, mut many) = (0, 0);
    for run in &runs {
        run.counts()
            .for_each(|count| *if is_apart(run, count) { &mut many } else { &mut few } += count as usize);
    }
    let empty = Group { first: 0, counts: [0; TOGETHER as usize] };
    let mut groups = crate::arrays::array(blocks.div_ceil(TOGETHER) as usize, empty)?;
    let (mut targets, mut of_apart) = (reserved(few)?, reserved(many)?);
    let mut apart: Vec<Apart> = Vec::new();
    // Number of groups whose first index is known.
    let mut known = 0;
    for run in runs {
        let mut from = 0;
        for (block, count) in (run.first..).zip(run.counts()) {
            let group = (block / TOGETHER) as usize;
            for of in groups.get_mut(known..=group).unwrap_or_default() {
                of.first = targets.len() as u32;
            }
            known = known.max(group + 1);
            let of = run.targets.get(from..from + count as usize).unwrap_or_default();
            from += count as usize;
            let Some(stored) =
                groups.get_mut(group).map(|group| &mut group.counts[(block % TOGETHER) as usize])
            else {
                continue;
            };
            if !is_apart(&run, count) {
                *stored = count as u8;
                targets.extend_from_slice(of);
                continue;
            }
            *stored = LARGE;
            of_apart.extend_from_slice(of);
            match apart.last_mut().filter(|last| last.block == block) {
                Some(last) => last.count += count,
                None => apart.push(Apart { block, first: of_apart.len() as u32 - count, count }),
            }
        }
    }
    for of in groups.get_mut(known..).unwrap_or_default() {
        of.first = targets.len() as u32;
    }
    Ok(References { groups, targets, large_blocks: apart, large_targets: of_apart, blocks, outcome })
}

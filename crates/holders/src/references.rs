//! What blocks refer to: for each the numbers of those that words in it lead into.
//!
//! Words that lead into their own block are left out, and so are those that say the same as the one before. Most blocks refer to few
//! others: sixty share a line of the cache that says where the first one's targets begin and how many each has. What has too many for
//! that, and what was read in parts, is kept apart.

use strandline_process::memory::Memory;
use strandline_sys::host::prefetch;

use crate::arrays::{Refused, reserved};
use crate::blocks::Blocks;
use crate::scan::{Heads, Known, Limits, Outcome, Progress, Run, scan};

/// Blocks of a group.
const TOGETHER: u32 = 60;
/// Stands for a number of targets that says nothing: the block is one of `apart`.
const APART: u8 = u8::MAX;

/// Blocks side by side, in a line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group {
    /// Where the targets of the first begin.
    first: u32,
    /// How many each has, or [`APART`], which counts as none.
    counts: [u8; TOGETHER as usize],
}

/// The targets of a block that has many.
#[derive(Clone, Copy, Debug)]
struct Apart {
    block: u32,
    /// Where they are.
    first: u32,
    count: u32,
}

/// What blocks refer to: all targets one behind another.
#[derive(Debug)]
pub struct References {
    groups: Vec<Group>,
    targets: Vec<u32>,
    apart: Vec<Apart>,
    of_apart: Vec<u32>,
    blocks: u32,
    outcome: Outcome,
}

impl References {
    /// Reads every block once, but those that are known to refer to nothing. `heads` and
    /// `progress` are told from several threads.
    /// What could not be read, or not within the limits, is in the [`Outcome`]: it is for the caller to say.
    pub fn read(
        memory: &dyn Memory,
        blocks: &Blocks,
        known: Known<'_>,
        heads: Option<&dyn Heads>,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, Refused> {
        let (runs, outcome) = scan(memory, (blocks, known), heads, limits, progress);
        joined(runs, blocks.len(), outcome)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        (self.targets.len() + self.of_apart.len()) as u64
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
        let (from, to, is_apart) = self.range(block);
        let targets = if is_apart { &self.of_apart } else { &self.targets };
        targets.get(from..to).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, block: u32) -> &mut [u32] {
        let (from, to, is_apart) = self.range(block);
        let targets = if is_apart { &mut self.of_apart } else { &mut self.targets };
        targets.get_mut(from..to).unwrap_or_default()
    }

    /// Asks for where they are, ahead of time.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        prefetch(&self.groups, (block / TOGETHER) as usize);
    }

    /// Where the targets of a block are, and whether among those that are apart.
    #[inline]
    fn range(&self, block: u32) -> (usize, usize, bool) {
        let Some(group) = self.groups.get((block / TOGETHER) as usize) else { return (0, 0, false) };
        let place = (block % TOGETHER) as usize;
        let many = |&count: &u8| if count == APART { 0 } else { u32::from(count) };
        let count = group.counts[place];
        if count == APART {
            return self.range_apart(block);
        }
        let from = group.first + group.counts[..place].iter().map(many).sum::<u32>();
        (from as usize, from as usize + usize::from(count), false)
    }

    #[cold]
    fn range_apart(&self, block: u32) -> (usize, usize, bool) {
        let found = self.apart.binary_search_by_key(&block, |apart| apart.block);
        let range = found.ok().and_then(|index| self.apart.get(index));
        range.map_or((0, 0, true), |of| (of.first as usize, (of.first + of.count) as usize, true))
    }

    /// Leaves those out of which `keep` says so, given the block and its target, and gives their memory back.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32, u32) -> bool) {
        let mut next = 0;
        for (number, group) in (0..).zip(&mut self.groups) {
            let mut from = group.first as usize;
            group.first = next as u32;
            if group.counts == [0; TOGETHER as usize] {
                continue;
            }
            for (block, count) in (number * TOGETHER..).zip(&mut group.counts) {
                let had = if *count == APART { continue } else { usize::from(*count) };
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
        for of in &mut self.apart {
            let had = of.first as usize..(of.first + of.count) as usize;
            of.first = next as u32;
            for index in had {
                let target = self.of_apart[index];
                self.of_apart[next] = target;
                next += usize::from(keep(of.block, target));
            }
            of.count = next as u32 - of.first;
        }
        shorten(&mut self.of_apart, next);
    }
}

/// Takes what is behind `len` off, and gives its memory back.
fn shorten<T>(array: &mut Vec<T>, len: usize) {
    array.truncate(len);
    array.shrink_to_fit();
}

/// Runs in order, put together; each is freed as soon as it was copied. What is in none refers to nothing.
fn joined(runs: Vec<Run>, blocks: u32, outcome: Outcome) -> Result<References, Refused> {
    let is_apart = |run: &Run, count: u32| run.is_part || count >= u32::from(APART);
    let (mut few, mut many) = (0, 0);
    for run in &runs {
        run.counts()
            .for_each(|count| *if is_apart(run, count) { &mut many } else { &mut few } += count as usize);
    }
    let empty = Group { first: 0, counts: [0; TOGETHER as usize] };
    let mut groups = crate::arrays::array(blocks.div_ceil(TOGETHER) as usize, empty)?;
    let (mut targets, mut of_apart) = (reserved(few)?, reserved(many)?);
    let mut apart: Vec<Apart> = Vec::new();
    // The group whose beginning is known.
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
            *stored = APART;
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
    Ok(References { groups, targets, apart, of_apart, blocks, outcome })
}

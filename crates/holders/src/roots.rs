//! Roots, from which blocks are reached.
//!
//! Roots may belong to several classes, one after another. What an earlier class reaches counts as
//! not referenced by later ones: a variable alone holds its value, although tables of its runtime
//! refer to it too.

use std::ops::Range;

/// Roots: what refers to blocks from outside of all blocks, such as a stack, a register, a
/// variable. Roots are numbered in the order of adding; the caller keeps their names.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// Index in `blocks` of the end of each root's targets.
    ends: Vec<usize>,
    /// The targets of all roots, one root after another.
    pub(crate) blocks: Vec<u32>,
    named_count: usize,
    /// The first root of each class except the first class.
    class_starts: Vec<usize>,
    /// Which of `blocks` stop paths from named roots.
    stops: Vec<Range<usize>>,
}

impl Roots {
    /// Adds a root that refers to some blocks, and returns its number. Takes 8 bytes per root and 4
    /// per block that it refers to.
    pub fn add(&mut self, blocks: impl IntoIterator<Item = u32>) -> u32 {
        self.blocks.extend(blocks);
        self.ends.push(self.blocks.len());
        self.ends.len() as u32 - 1
    }

    /// Makes the roots added so far a class of named roots, which hold what they lead to, up to
    /// stop blocks.
    pub fn end_named_class(&mut self) {
        self.named_count = self.ends.len();
        self.begin_class();
    }

    /// Like [`Roots::add`], for a root that is not named. Paths from named roots stop at `stops`;
    /// those that are met, and what they lead to, are reached from this root instead.
    pub fn add_with_stops(
        &mut self,
        blocks: impl IntoIterator<Item = u32>,
        stops: impl IntoIterator<Item = u32>,
    ) -> u32 {
        self.blocks.extend(blocks);
        let first = self.blocks.len();
        let mut stops: Vec<u32> = stops.into_iter().collect();
        stops.sort_unstable();
        stops.dedup();
        if !stops.is_empty() {
            self.stops.push(first..first + stops.len());
        }
        self.add(stops)
    }

    /// Begins a class: roots added from now on hold only what earlier ones do not reach. Their
    /// other references are ignored.
    pub fn begin_class(&mut self) {
        self.class_starts.push(self.ends.len());
    }

    /// Number of named roots.
    pub(crate) fn named_count(&self) -> usize {
        self.named_count
    }

    /// The first root of each class except the first class.
    pub(crate) fn class_starts(&self) -> Vec<usize> {
        self.class_starts.clone()
    }

    /// The blocks at which paths from named roots stop.
    pub(crate) fn stops_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        let Self { blocks, stops, .. } = self;
        let mut remaining = blocks.as_mut_slice();
        let mut remaining_start = 0;
        stops.iter().flat_map(move |range| {
            let (_, after_gap) = std::mem::take(&mut remaining).split_at_mut(range.start - remaining_start);
            let (stop_blocks, after_stops) = after_gap.split_at_mut(range.len());
            (remaining, remaining_start) = (after_stops, range.end);
            stop_blocks
        })
    }

    /// Number of roots.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no roots.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Targets of a root.
    pub(crate) fn targets_mut(&mut self, root: usize) -> &mut [u32] {
        let start = root.checked_sub(1).and_then(|previous| self.ends.get(previous)).copied().unwrap_or(0);
        let end = self.ends.get(root).copied().unwrap_or(start);
        self.blocks.get_mut(start..end).unwrap_or_default()
    }
}

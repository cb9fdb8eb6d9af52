//! From where blocks are reached.
//!
//! Roots may be of several classes, one behind another. What an earlier class reaches counts as not led to by the next: a variable has
//! its value for itself, although the tables of its runtime lead there too.

use std::ops::Range;

/// Roots: what is outside of all blocks and refers to some, a stack, a register, a variable. Each is a number, in the order of adding;
/// the caller keeps their names.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// Where the blocks of each end.
    ends: Vec<usize>,
    pub(crate) blocks: Vec<u32>,
    named: usize,
    /// The first of each class but the first one.
    classes: Vec<usize>,
    /// Which of `blocks` named roots stop at.
    stops: Vec<Range<usize>>,
}

impl Roots {
    /// Adds one that refers to some blocks; returns its number. 8 bytes for each and 4 for each block it refers to.
    pub fn add(&mut self, blocks: impl IntoIterator<Item = u32>) -> u32 {
        self.blocks.extend(blocks);
        self.ends.push(self.blocks.len());
        self.ends.len() as u32 - 1
    }

    /// Says that those that were added so far are a class, and named: what they lead to is theirs, up to what they stop at.
    pub fn all_are_named(&mut self) {
        self.named = self.ends.len();
        self.begin_class();
    }

    /// The same as [`Roots::add`], of one that is not named. From it, and not from named ones, are reached those of `stops` that
    /// named ones come by, and what these lead to.
    pub fn add_with_stops(
        &mut self,
        blocks: impl IntoIterator<Item = u32>,
        stops: impl IntoIterator<Item = u32>,
    ) -> u32 {
        self.blocks.extend(blocks);
        let from = self.blocks.len();
        let mut stops: Vec<u32> = stops.into_iter().collect();
        stops.sort_unstable();
        stops.dedup();
        if !stops.is_empty() {
            self.stops.push(from..from + stops.len());
        }
        self.add(stops)
    }

    /// Says that those that are added from now on hold only what those before do not reach. What they lead to besides is as if they did
    /// not.
    pub fn begin_class(&mut self) {
        self.classes.push(self.ends.len());
    }

    /// How many are named.
    pub(crate) fn named(&self) -> usize {
        self.named
    }

    /// The first of each class but the first one.
    pub(crate) fn classes(&self) -> Vec<usize> {
        self.classes.clone()
    }

    /// What named roots stop at.
    pub(crate) fn stops(&mut self) -> impl Iterator<Item = &mut u32> {
        let Self { blocks, stops, .. } = self;
        let mut rest = blocks.as_mut_slice();
        let mut at = 0;
        stops.iter().flat_map(move |range| {
            let (_, behind) = std::mem::take(&mut rest).split_at_mut(range.start - at);
            let (these, behind) = behind.split_at_mut(range.len());
            (rest, at) = (behind, range.end);
            these
        })
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

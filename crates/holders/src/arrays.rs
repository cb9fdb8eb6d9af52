//! Arrays whose allocation can fail without an abort, and a cheap deadline check.

use std::time::Instant;

/// Stands for no block and no vertex.
pub const NONE: u32 = u32::MAX;
/// Arrays of at least this many bytes request huge pages (madvise).
const HUGE_BYTES: usize = 8 << 20;
/// How many steps ahead data at random addresses is prefetched.
pub const PREFETCH_DISTANCE: usize = 24;
/// Steps between two checks of the deadline.
const STEPS_PER_CHECK: u32 = 1 << 16;

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// More blocks, roots or references than can be followed.
    #[error("{count} blocks, roots or references are more than the {max_count} that can be followed")]
    TooMany {
        /// Their number.
        count: u64,
        /// The maximum.
        max_count: u64,
    },
    /// An array of this many bytes could not be allocated.
    #[error("no memory for an array of {0} bytes: free memory, or allow more")]
    NoMemory(u64),
    /// The deadline passed.
    #[error("the time limit was reached: allow more time")]
    DeadlinePassed,
    /// The references were read for another set of blocks.
    #[error("the references are those of {count_read} blocks, and there are {count}")]
    BlocksDiffer {
        /// Number of blocks whose references were read.
        count_read: u32,
        /// Number of blocks in the set.
        count: u32,
    },
}

/// An array of `len` times one value; fails if memory is short.
pub fn array<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Refused> {
    let mut values = reserved(len)?;
    values.resize(len, value);
    Ok(values)
}

/// Reserves room for `len` elements; fails if memory is short. Large arrays request huge pages:
/// they are accessed at random, and huge pages avoid TLB misses.
pub fn reserved<T>(len: usize) -> Result<Vec<T>, Refused> {
    let mut empty = Vec::new();
    empty.try_reserve_exact(len).map_err(|_| Refused::NoMemory((len * size_of::<T>()) as u64))?;
    if len * size_of::<T>() >= HUGE_BYTES {
        strandline_sys::own_memory::prefer_huge_pages(empty.spare_capacity_mut());
    }
    Ok(empty)
}

/// Adds an element to a list, which grows by at least `min_growth` elements; fails if memory is
/// short.
pub fn push<T>(list: &mut Vec<T>, element: T, min_growth: usize) -> Result<(), Refused> {
    if list.len() == list.capacity() {
        let additional = list.len().max(min_growth);
        let bytes = (additional * size_of::<T>()) as u64;
        list.try_reserve_exact(additional).map_err(|_| Refused::NoMemory(bytes))?;
    }
    list.push(element);
    Ok(())
}

/// A deadline check that is cheap enough for each step.
pub struct DeadlineCheck {
    deadline: Instant,
    steps_left: u32,
}

impl DeadlineCheck {
    /// The first step checks the deadline, then one in every [`STEPS_PER_CHECK`].
    pub fn new(deadline: Instant) -> Self {
        Self { deadline, steps_left: 0 }
    }

    /// Counts a step; fails after the deadline.
    #[inline]
    pub fn step(&mut self) -> Result<(), Refused> {
        if self.steps_left == 0 {
            self.steps_left = STEPS_PER_CHECK;
            if Instant::now() >= self.deadline {
                return Err(Refused::DeadlinePassed);
            }
        }
        self.steps_left -= 1;
        Ok(())
    }
}

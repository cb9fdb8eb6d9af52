//! Arrays that are refused rather than die for, and a look at the clock now and then.

use std::time::Instant;

/// Number of nothing: no block, no vertex.
pub const NONE: u32 = u32::MAX;
/// Arrays from this on are wanted in huge pages.
const HUGE_BYTES: usize = 8 << 20;
/// What is needed so many steps later is asked for ahead of time where it lies anywhere.
pub const AHEAD: usize = 24;
/// Steps between two looks at the clock.
const STEPS: u32 = 1 << 16;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// More than numbers of 32 bits tell apart.
    #[error("{0} blocks and roots: at most {most}; look at fewer arenas", most = NONE - 1)]
    TooMany(u64),
    /// There is no memory for an array.
    #[error("no memory for an array of {0} bytes: look at fewer arenas, or where more memory is free")]
    NoMemory(u64),
    /// The time was over before the end.
    #[error("not done in time: allow more")]
    Late,
    /// References were read for other blocks.
    #[error("the references are those of {0} blocks, and there are {1}")]
    Strangers(u32, u32),
}

/// An array of one value; refused where there is no memory for it.
pub fn array<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Refused> {
    let mut array = reserved(len)?;
    array.resize(len, value);
    Ok(array)
}

/// Room for so many; refused where there is no memory for it. They are looked at in any order: of huge pages the processor knows where
/// all are.
pub fn reserved<T>(len: usize) -> Result<Vec<T>, Refused> {
    let mut array = Vec::new();
    array.try_reserve_exact(len).map_err(|_| Refused::NoMemory((len * size_of::<T>()) as u64))?;
    if len * size_of::<T>() >= HUGE_BYTES {
        strandline_sys::host::prefer_huge_pages(array.spare_capacity_mut());
    }
    Ok(array)
}

/// A deadline that costs nothing to ask about at each step.
pub struct Clock {
    deadline: Instant,
    left: u32,
}

impl Clock {
    /// Asks at once, then now and then.
    pub fn new(deadline: Instant) -> Self {
        Self { deadline, left: 0 }
    }

    /// One step more; refused once the time is over.
    #[inline]
    pub fn step(&mut self) -> Result<(), Refused> {
        if self.left == 0 {
            self.left = STEPS;
            if Instant::now() >= self.deadline {
                return Err(Refused::Late);
            }
        }
        self.left -= 1;
        Ok(())
    }
}

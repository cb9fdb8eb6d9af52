//! SBCL: its generations, and what in them is dead.

pub mod facts;
pub mod locate;

use super::{Busy, Context, Reading};

/// What was copied of the target, to be traced once it runs again.
pub struct Pending {}

impl Pending {
    /// Tells live objects from dead ones, and claims both in `reading`.
    pub fn finish(
        self,
        _reading: &mut Reading,
        _workers: usize,
        _progress: &(dyn Fn(&str, u64, u64) + Sync),
    ) {
    }
}

/// Reads one SBCL.
///
/// # Errors
/// [`Busy`] where it stands in the middle of its own collection.
pub fn read(_context: &Context<'_>, _program: &locate::Program) -> Result<Reading, Busy> {
    Ok(Reading::default())
}

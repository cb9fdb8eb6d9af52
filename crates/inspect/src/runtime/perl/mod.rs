//! Perl: heads and bodies of values, buffers of strings, and what its pads keep.

pub mod facts;
pub mod locate;

use super::refine::{Matched, Refinements};
use super::{Context, Reading};

/// Reads all interpreters of the programs found.
pub fn read(_context: &Context<'_>, _programs: &[locate::Program], _refinements: &Refinements) -> Reading {
    Reading::default()
}

/// Takes note of what malloc's walk matched of the refinements.
pub fn take_matched(_reading: &mut Reading, _matched: &Matched) {}

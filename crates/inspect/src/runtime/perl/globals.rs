//! Which global variables values are: the scalar of a glob.
//!
//! A glob points to its variables, and not the other way round: one more pass over all heads, made only where
//! a name is wanted.

use std::collections::HashMap;

use super::batch::Batch;
use super::census::{self, ARENAS_PER_JOB};
use super::objects::{Shape, Type};
use super::roots::Kept;
use super::spaces::HeadArena;
use super::work;
use crate::layout::perl::{Release, flags};
use crate::memory::Memory;
use std::time::Instant;

/// Fills in the globs of those in `kept` that are globals' scalars, as their names.
pub fn name(
    memory: &dyn Memory,
    arenas: &[HeadArena],
    release: &Release,
    until: (usize, Instant),
    kept: &mut [Kept],
) {
    if kept.is_empty() {
        return;
    }
    let wanted: HashMap<u64, usize> =
        kept.iter().enumerate().map(|(index, kept)| (kept.head, index)).collect();
    let new = || (Batch::new(memory), Vec::new(), Vec::new(), Vec::new());
    let jobs = arenas.len().div_ceil(ARENAS_PER_JOB);
    let (states, _) = work::share(until.0, jobs, until.1, new, |(batch, found, buffer, heads), job| {
        for arena in arenas.iter().skip(job * ARENAS_PER_JOB).take(ARENAS_PER_JOB) {
            census::heads(memory, arena, buffer, heads);
            let globs: Vec<_> = heads
                .iter()
                .filter(|head| head.has(flags::GLOB) && head.kind(release) == Some(Type::PvGv))
                .filter(|head| head.shape(Type::PvGv) == Shape::Plain && head.u != 0)
                .collect();
            // `gp_sv` is the first field of `struct gp` (gv.h).
            let contents: Vec<u64> = globs.iter().map(|glob| glob.u).collect();
            let mut pairs = Vec::new();
            batch.pairs(&contents, &mut pairs);
            let scalars = globs.iter().zip(pairs).filter_map(|(glob, pair)| Some((pair?.0, glob.address)));
            found.extend(scalars.filter_map(|(scalar, glob)| Some((*wanted.get(&scalar)?, glob))));
        }
    });
    let mut found: Vec<(usize, u64)> = states.into_iter().flat_map(|state| state.1).collect();
    // Of aliases, the same one each time.
    found.sort_unstable();
    for (index, glob) in found {
        if let Some(kept) = kept.get_mut(index).filter(|kept| kept.name == 0) {
            kept.name = glob;
        }
    }
}

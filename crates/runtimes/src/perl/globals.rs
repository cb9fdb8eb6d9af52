//! Which values without a value are global variables: the scalar of a glob.
//!
//! A buffer of a value that has none may be memory that code in C holds (`newSV(bytes)`), of which nobody outside can
//! say that it is out of use. Of a variable it can be said: pads hold the lexicals, globs the globals.

use std::collections::HashMap;

use super::roots::{Kept, LARGE_BYTES};
use super::sums::{Survey, Whose};
use crate::batch::Batch;
use strandline_claims::class::Slot;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::Memory;

/// How many globs are read at a time.
const GLOBS_AT_A_TIME: usize = 4096;

/// Of the values without a value in `survey`, claims the buffers of those that are scalars of globs, and counts
/// them; returns the large ones. `compiled` are the globs that code refers to, sorted: those are named.
pub fn keep(
    memory: &dyn Memory,
    survey: &mut Survey,
    compiled: &[u64],
    (refinements, slot): (&Refinements, Slot),
) -> Vec<Kept> {
    let mut others = std::mem::take(&mut survey.others);
    let globs = std::mem::take(&mut survey.globs);
    if others.is_empty() {
        return others;
    }
    let wanted: HashMap<u64, usize> =
        others.iter().enumerate().map(|(index, other)| (other.head, index)).collect();
    let mut found: Vec<(usize, u64)> = Vec::new();
    let mut batch = Batch::new(memory);
    let mut pairs = Vec::new();
    for globs in globs.chunks(GLOBS_AT_A_TIME) {
        // `gp_sv` is the first field of `struct gp` (gv.h).
        let contents: Vec<u64> = globs.iter().map(|glob| glob.0).collect();
        batch.pairs(&contents, &mut pairs);
        let scalars = globs.iter().zip(&pairs).filter_map(|(glob, pair)| Some(((*pair)?.0, glob.1)));
        found.extend(scalars.filter_map(|(scalar, glob)| Some((*wanted.get(&scalar)?, glob))));
    }
    // Of aliases, the same one each time.
    found.sort_unstable();
    let mut is_global = vec![false; others.len()];
    for (index, glob) in found {
        if let Some(flag) = is_global.get_mut(index) {
            *flag = true;
        }
        let named = compiled.binary_search(&glob).is_ok();
        if let Some(other) = others.get_mut(index).filter(|other| named && other.name == 0) {
            other.name = glob;
        }
    }
    let mut flags = is_global.into_iter();
    others.retain(|_| flags.next().unwrap_or(false));
    for other in &others {
        survey.retain(Whose::Other, other.bytes, slot);
        refinements.claim(other.pointer, other.bytes, slot);
    }
    others.retain(|other| other.bytes > LARGE_BYTES);
    others
}

//! Finds the undefined values that are global variables: scalars of globs.
//!
//! The buffer of an undefined value may be memory that C code holds (`newSV(bytes)`), and whether
//! it is in use cannot be seen from outside. For a variable it can: pads hold the lexicals, globs
//! the globals.

use std::collections::HashMap;

use super::roots::{KeptBuffer, LARGE_BYTES};
use super::sums::{RetainedBy, SurveySums};
use crate::batch::Batch;
use strandline_claims::class::Slot;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::Memory;

const GLOBS_AT_A_TIME: usize = 4096;

/// Claims the buffers of undefined values in `survey` that are scalars of globs, and counts them;
/// returns the large ones. `compiled_globs` are those that code refers to, sorted; only their
/// scalars are named.
pub fn claim_globals(
    memory: &dyn Memory,
    survey: &mut SurveySums,
    compiled_globs: &[u64],
    refinements: &Refinements,
    slot: Slot,
) -> Vec<KeptBuffer> {
    let mut undefined_values = std::mem::take(&mut survey.undefined_values);
    let globs = std::mem::take(&mut survey.globs);
    if undefined_values.is_empty() {
        return undefined_values;
    }
    let index_by_head: HashMap<u64, usize> =
        undefined_values.iter().enumerate().map(|(index, value)| (value.head, index)).collect();
    // Indices of values, and a glob of each.
    let mut scalars_of_globs: Vec<(usize, u64)> = Vec::new();
    let mut batch = Batch::new(memory);
    let mut pairs = Vec::new();
    for globs in globs.chunks(GLOBS_AT_A_TIME) {
        // `gp_sv` is the first field of `struct gp` (gv.h).
        let contents: Vec<u64> = globs.iter().map(|glob| glob.contents).collect();
        batch.pairs(&contents, &mut pairs);
        let scalars = globs.iter().zip(&pairs).filter_map(|(glob, pair)| Some(((*pair)?.0, glob.head)));
        scalars_of_globs
            .extend(scalars.filter_map(|(scalar, glob)| Some((*index_by_head.get(&scalar)?, glob))));
    }
    // Sorted, so that of several aliases always the same one is used.
    scalars_of_globs.sort_unstable();
    let mut is_global = vec![false; undefined_values.len()];
    for (index, glob) in scalars_of_globs {
        if let Some(flag) = is_global.get_mut(index) {
            *flag = true;
        }
        let is_compiled = compiled_globs.binary_search(&glob).is_ok();
        if let Some(value) = undefined_values.get_mut(index).filter(|value| is_compiled && value.name == 0) {
            value.name = glob;
        }
    }
    let mut is_global_flags = is_global.into_iter();
    undefined_values.retain(|_| is_global_flags.next().unwrap_or(false));
    for value in &undefined_values {
        survey.add_retained(RetainedBy::Global, value.bytes);
        refinements.claim(value.pointer, value.bytes, slot);
    }
    undefined_values.retain(|value| value.bytes > LARGE_BYTES);
    undefined_values
}

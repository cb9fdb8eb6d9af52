//! Finds the undefined values that are global variables: scalars of globs.
//!
//! The buffer of an undefined value may be memory that C code holds (`newSV(bytes)`), and whether
//! it is in use cannot be seen from outside. For a variable it can: pads hold the lexicals, globs
//! the globals.

use std::collections::{BTreeMap, HashMap};

use super::roots::{LARGE_BYTES, RetainedBuffer};
use super::sums::{RetainedBy, SurveySums};
use crate::batch::Batch;
use strandline_claims::class::Slot;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::Memory;

/// Globs whose contents are read in one batch.
const GLOBS_AT_A_TIME: usize = 4096;

/// An undefined value that is the scalar of a glob.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScalarOfGlob {
    /// Index of the value in the list of undefined values.
    value_index: usize,
    /// Address of the glob's head.
    glob: u64,
}

/// Claims the buffers of undefined values in `survey` that are scalars of globs, and counts them;
/// returns the large ones. `compiled_globs` are those that code refers to, sorted; only their
/// scalars are named.
pub fn claim_globals(
    memory: &dyn Memory,
    survey: &mut SurveySums,
    compiled_globs: &[u64],
    refinements: &Refinements,
    slot: Slot,
) -> Vec<RetainedBuffer> {
    let undefined_values = std::mem::take(&mut survey.undefined_values);
    let globs = std::mem::take(&mut survey.globs);
    if undefined_values.is_empty() {
        return undefined_values;
    }
    let index_by_head: HashMap<u64, usize> =
        undefined_values.iter().enumerate().map(|(index, value)| (value.head, index)).collect();
    let mut scalars_of_globs: Vec<ScalarOfGlob> = Vec::new();
    let mut batch = Batch::new(memory);
    let mut pairs = Vec::new();
    for globs in globs.chunks(GLOBS_AT_A_TIME) {
        // `gp_sv` is the first field of `struct gp` (gv.h).
        let contents: Vec<u64> = globs.iter().map(|glob| glob.contents).collect();
        batch.pairs(&contents, &mut pairs);
        for (glob, pair) in globs.iter().zip(&pairs) {
            let Some((scalar, _)) = pair else {
                survey.unread_values += 1;
                continue;
            };
            if let Some(&value_index) = index_by_head.get(scalar) {
                scalars_of_globs.push(ScalarOfGlob { value_index, glob: glob.head });
            }
        }
    }
    // Sorted, so that of several aliases always the same one is used.
    scalars_of_globs.sort_unstable();
    let mut globals: BTreeMap<usize, RetainedBuffer> = BTreeMap::new();
    for ScalarOfGlob { value_index, glob } in scalars_of_globs {
        let Some(value) = undefined_values.get(value_index) else { continue };
        let global = globals.entry(value_index).or_insert(*value);
        if global.name.is_none() && compiled_globs.binary_search(&glob).is_ok() {
            global.name = Some(glob);
        }
    }
    for value in globals.values() {
        survey.add_retained(RetainedBy::Global, value.bytes);
        refinements.claim(value.pointer, value.bytes, slot);
    }
    globals.into_values().filter(|value| value.bytes > LARGE_BYTES).collect()
}

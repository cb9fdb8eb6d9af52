//! Pages and documents of the verbs, in the form of `strandline_report`.

use crate::statistics::Estimate;
use strandline_report::units::UNKNOWN;

pub mod compare;
pub mod squeeze;
pub mod trial;
mod trial_caveats;

/// The median of an estimate in the form of `format`, or that it is unknown.
fn median_text(estimate: Option<&Estimate>, format: impl Fn(f64) -> String) -> String {
    estimate.map_or_else(|| UNKNOWN.to_owned(), |estimate| format(estimate.median))
}

//! What a verb found, as a page of `strandline_report`.

pub mod compare;
pub mod squeeze;
pub mod trial;
mod trial_caveats;

//! Pages and documents of the verbs, in the form of `strandline_report`.

pub mod compare;
pub mod squeeze;
pub mod trial;
mod trial_caveats;

//! What studies found, as pages of `strandline_report`.

pub mod readme;
pub mod studies;
pub mod study;

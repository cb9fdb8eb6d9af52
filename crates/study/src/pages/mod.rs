//! Pages of studies, in the form of `strandline_report`.

pub mod readme;
pub mod studies;
pub mod study;

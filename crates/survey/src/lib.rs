//! Which processes there are, and what the kernel counts for each and for their control groups, for
//! callers that read many of them repeatedly. It reads a few small files in /proc; it stops no
//! process and reads no process's memory.
//!
//! Data flows one way: `select` (which processes) → `figures` (what the kernel counts) → `survey`
//! (all of them at one moment).

#![forbid(unsafe_code)]

pub mod figures;
pub mod select;
pub mod survey;

pub use select::Selection;
pub use survey::{Survey, Surveyor, raise_file_limit};

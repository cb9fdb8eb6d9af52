//! Which processes there are, and what the kernel counts for each and for their control groups, for
//! callers that look at many at once, repeatedly. It reads a few small files in /proc; it stops no
//! process and reads no process's memory.
//!
//! Data flows one way: `select` (which processes) → `figures` (what the kernel counts) → `picture`
//! (all of them at one moment).

#![forbid(unsafe_code)]

pub mod figures;
pub mod picture;
pub mod select;

pub use picture::{Survey, Surveyor};
pub use select::Selection;

//! Which processes there are, and what the kernel counts of each and of their control groups: for who looks at many at once,
//! again and again. It reads a few small files of /proc; it stops no process and reads no process's memory.
//!
//! Data flows one way: `select` (which processes) → `figures` (what the kernel counts) → `picture` (all of them at one moment).

#![forbid(unsafe_code)]

pub mod figures;
pub mod picture;
pub mod select;

pub use picture::{Painter, Picture};
pub use select::Selection;

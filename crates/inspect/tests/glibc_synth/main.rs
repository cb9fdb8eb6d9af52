//! The glibc reader against fabricated heaps: sound ones, whose every figure is known by
//! construction, damaged ones, and ones built as traps.
//!
//! Nothing here looks at a process. Effort is measured in target memory read, never in time.

mod adapter;
mod damaged;
mod large;
mod sound;
mod traps;

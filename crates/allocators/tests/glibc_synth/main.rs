//! The glibc reader against fabricated heaps: sound ones, whose every figure is known by
//! construction, damaged ones, and ones built as traps.
//!
//! Nothing here looks at a process. Effort is measured in target memory read, never in time.

#[cfg(test)]
mod adapter;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod large;
#[cfg(test)]
mod sound;
#[cfg(test)]
mod traps;

//! The SBCL reader against fabricated heaps: valid ones, whose live objects are known by
//! construction, and damaged ones.
//!
//! No test reads an SBCL. Effort is measured in target memory read, never in time.

#[cfg(test)]
mod adapter;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod sound;

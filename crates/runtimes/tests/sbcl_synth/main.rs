//! The SBCL reader against fabricated heaps: sound ones, of which it is known by construction what lives, and damaged
//! ones.
//!
//! Nothing here looks at an SBCL. Effort is measured in target memory read, never in time.

#[cfg(test)]
mod adapter;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod sound;

//! The glibc reader on fabricated heaps: valid ones, with all figures known by construction,
//! damaged ones, and traps.
//!
//! No process is read. Effort is measured in bytes read, never in time.

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

//! Accounts for every resident byte of a Linux process.
//!
//! [`explain::explain`] stops a process for a moment, reads its address space and its heaps, and
//! returns a [`facts::Explanation`]: rows that add up to the kernel's RSS to the byte, what each
//! remedy is predicted to give back, and a caveat for whatever could not be read.
//! [`remedy::reclaim()`] applies a remedy and returns predicted beside actual.
//!
//! The crate prints nothing and contains no `unsafe`.
//!
//! Data flows one way: target → address-space map → page states → allocator walkers and runtime readers →
//! ledger → verdict and remedies.

#![forbid(unsafe_code)]

pub mod environment;
pub mod explain;
pub mod facts;
pub mod ledger;
pub mod readers;
pub mod recognise;
pub mod remedy;
pub mod verdict;

pub use strandline_claims::Caveat;
pub use strandline_process::Error;

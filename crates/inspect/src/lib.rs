//! Accounts for every resident byte of a Linux process: the library that others use. It holds the one table of readers
//! ([`readers`]), adds up what they claim, judges it and applies remedies; it must not read an allocator's or a runtime's
//! structures itself, nor print.
//!
//! [`explain::explain`] stops a process for a moment, reads its address space and its heaps, and
//! returns a [`facts::Explanation`]: rows that add up to the kernel's RSS to the byte, what each
//! remedy is predicted to give back, and a caveat for whatever could not be read.
//! [`holders::holders()`] says who holds what is live of it.
//! [`remedy::reclaim()`] applies a remedy and returns predicted beside actual.
//!
//! Data flows one way: target → address-space map → page states → allocators' blocks → runtimes' objects → ledger →
//! verdict and remedies.

#![forbid(unsafe_code)]

pub mod environment;
pub mod explain;
pub mod facts;
pub mod holders;
pub mod ledger;
pub mod readers;
pub mod recognise;
pub mod remedy;
pub mod verdict;

pub use strandline_claims::Caveat;
pub use strandline_process::Error;

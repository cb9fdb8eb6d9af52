//! Accounts for every resident byte of a Linux process. This is the library that the other crates
//! use: it contains the table of all readers ([`readers`]), adds up their claims, draws a verdict
//! and applies remedies. It must not read structures of an allocator or a runtime itself, nor
//! print.
//!
//! [`explain::explain`] stops a process for a moment, reads its address space and its heaps, and
//! returns a [`facts::Explanation`]: rows that add up to the kernel's RSS to the byte, what each
//! remedy is predicted to release, and a caveat for everything that could not be read.
//! [`inspection::inspect()`] also finds the roots that hold its live memory. [`remedy::reclaim()`]
//! applies a remedy and returns the predicted and the actual effect.
//!
//! Data flows one way: target → address-space map → page states → allocators' blocks → runtimes'
//! objects → ledger → verdict and remedies.

#![forbid(unsafe_code)]

mod account;
mod capture;
pub mod environment;
pub mod explain;
pub mod facts;
pub mod group;
pub mod holders;
pub mod inspection;
pub mod ledger;
pub mod readers;
pub mod recognise;
pub mod remedy;
pub mod verdict;

pub use strandline_claims::Caveat;
pub use strandline_claims::units::counted;
pub use strandline_process::Error;

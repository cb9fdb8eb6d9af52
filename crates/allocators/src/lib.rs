//! Readers of allocators: they classify each byte of a heap.
//!
//! Each allocator has a folder of the same shape: `mod.rs` has its reader and its entry in the
//! table of readers, `rows.rs` its rows, `layout.rs` its structures by version, as data; the other
//! files read. [`named`] has the allocators that are recognised but not read yet. How to add one:
//! `CONTRIBUTING.md`.
//!
//! A reader must not depend on another reader or on a runtime: everything finer than a block
//! arrives as a claim ([`strandline_claims::refinements`]).

#![forbid(unsafe_code)]

mod blocks;
pub mod glibc;
pub mod google_tcmalloc;
pub mod jemalloc;
pub mod mimalloc;
pub mod musl;
pub mod named;
mod parallel;
mod radix;
mod rows;
mod scan;
pub mod tcmalloc;

//! Readers of allocators: what each byte of a heap is.
//!
//! A folder an allocator, all of the same shape: `mod.rs` has its line of the table and its reader, `rows.rs` its rows,
//! `layout.rs` where its structures stand, by version, as data; the other files read. [`named`] are those that are
//! recognised and not read yet. How to add one: `CONTRIBUTING.md`.
//!
//! A reader must not know another, or any runtime: what is finer within a block comes as a claim
//! ([`strandline_claims::refinements`]).

#![forbid(unsafe_code)]

pub mod blocks;
pub mod glibc;
pub mod google_tcmalloc;
pub mod jemalloc;
pub mod mimalloc;
pub mod musl;
pub mod named;
pub mod page_cache;
pub mod parallel;
pub mod radix;
pub mod scan;
pub mod tcmalloc;

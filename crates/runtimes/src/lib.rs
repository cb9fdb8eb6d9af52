//! Readers of language runtimes: which value, buffer or dead object holds a byte.
//!
//! A folder a runtime, all of the same shape: `mod.rs` has its line of the table and its reader, `rows.rs` its rows,
//! `layout.rs` where its structures stand, by version, as data, `locate.rs` finds it in the mapped files, `facts.rs` is
//! what it tells as data; the other files read. [`named`] are those that are recognised and not read yet. How to add
//! one: `docs/adding-a-runtime.md`.
//!
//! A reader must not know another, or any allocator: what it knows of blocks it claims by their pointers
//! ([`strandline_claims::refinements`]).

#![forbid(unsafe_code)]

mod batch;
pub mod cpython;
#[cfg(test)]
mod fabricated;
pub mod go;
pub mod jvm;
pub mod named;
pub mod perl;
pub mod sbcl;
mod work;

//! Readers of language runtimes: which value, buffer or dead object holds a byte.
//!
//! Each runtime has a folder with the same files: `mod.rs` has its entry in the table and its
//! reader, `rows.rs` its rows, `layout.rs` the offsets of its structures by version, `locate.rs`
//! finds it in the mapped files, `facts.rs` defines its facts as data and `figures.rs` fills them
//! in, `findings.rs`, `remedies.rs` and `section.rs` put them into words; the other files read
//! memory.
//! [`named`] lists the runtimes that are recognised but not read yet. How to add a runtime:
//! `docs/adding-a-runtime.md`.
//!
//! A reader must not depend on another reader or on an allocator: it claims blocks by their
//! pointers ([`strandline_claims::refinements`]).

#![forbid(unsafe_code)]

mod batch;
mod bits;
pub mod cpython;
#[cfg(test)]
mod fabricated;
pub mod go;
pub mod jvm;
pub mod named;
pub mod perl;
mod programs;
pub mod sbcl;
pub mod v8;

use strandline_process::work;

/// Appends an item to a list of fewer than `max_length` items; false if the list is full.
fn push_within<T>(list: &mut Vec<T>, max_length: usize, item: T) -> bool {
    let has_room = list.len() < max_length;
    if has_room {
        list.push(item);
    }
    has_room
}

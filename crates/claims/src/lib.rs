//! The interface between readers and the ledger: claims on bytes, the rows they count for, figures.
//!
//! A reader of an allocator ([`allocator::Reader`]) or of a language runtime ([`runtime::Reader`])
//! gets a context of one frozen state and returns a reading, which classifies bytes. Layers refine
//! each other: a mapping holds an allocator's blocks, a block holds a runtime's objects
//! ([`refinements`]) or another allocator's memory ([`refinements::Refinements::nest`]). A finer
//! claim counts only if the layer below holds the block in use.
//!
//! This crate counts bytes page by page, never across ranges: only the ledger adds up. It knows no
//! particular allocator or runtime. Readers depend on this crate, and neither on each other nor on
//! the ledger.

#![forbid(unsafe_code)]

pub mod accumulator;
pub mod allocator;
pub mod bits;
pub mod caveat;
pub mod class;
pub mod doubts;
pub mod facts;
pub mod finding;
pub mod palette;
pub mod places;
pub mod range;
pub mod reader;
pub mod refinements;
pub mod remedy;
pub mod rows;
pub mod runtime;
pub mod section;
pub mod units;
pub mod window;
pub mod words;

pub use caveat::Caveat;

/// Adds fields of one value to those of another: `add_fields!(self, other: count, bytes)`. After
/// the word `saturating`, a sum stays at the largest number instead of overflowing.
#[macro_export]
macro_rules! add_fields {
    (saturating $sum:ident, $more:ident: $($field:ident),+) => {
        $($sum.$field = $sum.$field.saturating_add($more.$field);)+
    };
    ($sum:ident, $more:ident: $($field:ident),+) => { $($sum.$field += $more.$field;)+ };
}

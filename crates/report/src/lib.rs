//! Turns facts into output for people and scripts: text, pages, charts, JSON. This crate must not
//! inspect a process, run anything, or judge its input.
//!
//! `model` turns facts into text that is safe to show, `terminal` and the other views lay that text
//! out, `json` writes documents. Every string from a target goes through `text::clean`, and nothing
//! here determines an exit status.

#![forbid(unsafe_code)]

mod bars;
mod brief;
pub mod checks;
pub mod group;
pub mod group_reclamation;
pub mod holders;
pub mod json;
pub mod model;
pub mod pages;
pub mod paint;
pub mod readers;
pub mod reclamation;
mod runtimes;
mod table;
pub mod template;
pub mod terminal;
pub mod text;
pub mod timeline;
pub mod tree;
pub mod units;

pub use brief::NextCommand;

#[cfg(any(test, feature = "fabricated"))]
pub mod fabricated;
#[cfg(test)]
mod golden;

//! Turns facts into what a person or a script reads: text, pages, charts, JSON. It must not look at a process, run
//! anything, or judge what it is given.
//!
//! `model` turns facts into text that is safe to show, `terminal` and its neighbours lay that text
//! out, `json` writes documents. Every string of a target goes through
//! `text::clean`, and nothing decides an exit status.

#![forbid(unsafe_code)]

pub mod bars;
pub mod checks;
pub mod holders;
pub mod json;
pub mod model;
pub mod pages;
pub mod paint;
pub mod readers;
pub mod reclamation;
pub mod runtimes;
pub mod table;
pub mod terminal;
pub mod text;
pub mod timeline;
pub mod tree;
pub mod units;

#[cfg(any(test, feature = "fabricated"))]
pub mod fabricated;
#[cfg(test)]
mod golden;

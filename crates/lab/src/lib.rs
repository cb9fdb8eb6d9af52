//! The lab: commands are run again and again under what is to be compared, and what comes of it is judged.
//!
//! One engine for `compare`, `try`, `squeeze` and `study`. A verb makes [`cell::Subject`]s; rounds of them, in an
//! order drawn by a seed, are run by an [`executor::Executor`]; each run is a [`cell::Outcome`], kept in a journal
//! so that a lab that was killed goes on where it was; [`statistics`] judges the figures, and [`pages`] shows
//! them. It must not print, and must not look into a process by itself: the recorder does, and what it
//! recorded is read here.

#![forbid(unsafe_code)]

pub mod cell;
pub mod command_line;
pub mod compare;
mod counters;
pub mod elsewhere;
pub mod engine;
mod engine_elsewhere;
pub mod executor;
pub mod figures;
pub mod identity;
pub mod interrupt;
pub mod journal;
mod launcher;
pub mod local;
pub mod nodes;
pub mod own;
pub mod pages;
mod protocol;
pub mod slurm;
pub mod squeeze;
pub mod statistics;
mod sweep;
pub mod tail;
pub mod trial;

pub use figures::is_in_path;
pub use launcher::serve as serve_launcher;

/// Why instructions and cycles cannot be counted here; `None` where they can.
pub fn why_no_counters() -> Option<String> {
    counters::why_none()
}

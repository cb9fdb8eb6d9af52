//! The lab: runs commands repeatedly under compared conditions and evaluates the outcomes.
//!
//! `compare`, `try`, `squeeze` and `study` share one engine. A verb makes [`cell::Subject`]s; an
//! [`executor::Executor`] runs rounds of them in an order drawn from a seed; each run gives a
//! [`cell::Outcome`], stored in a journal so that a killed lab can resume; [`statistics`] evaluates
//! the figures, and [`pages`] presents them. This crate must not print, and must not read processes
//! itself: the recorder does, and the lab reads its recordings. An error that is a `String` is one
//! line, and names the path of a file or folder at fault.

#![forbid(unsafe_code)]

mod atomic_file;
pub mod cell;
pub mod command_line;
pub mod compare;
mod counters;
pub mod engine;
pub mod executable;
pub mod executor;
pub mod figures;
mod identity;
pub mod interrupt;
pub mod journal;
mod json_lines;
mod launcher;
mod local;
pub mod nodes;
pub mod pages;
pub mod path_error;
mod protocol;
mod remote;
mod remote_engine;
pub mod setup;
pub mod slurm;
pub mod squeeze;
pub mod statistics;
mod sweep;
mod tail;
pub mod trial;
pub mod user;

pub use counters::unavailability as why_no_counters;
pub use figures::is_in_path;
pub use launcher::serve as serve_launcher;
pub use remote::TaskCounts;

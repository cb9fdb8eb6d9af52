//! `try`: runs a command repeatedly under settings that may reduce its memory.
//!
//! The settings are data ([`catalogue`]); one run without settings decides which of them apply to a
//! command ([`applies`]); the results are ranked ([`rank`]), and the best setting is formatted for
//! the places that start programs (`paste`). The engine makes the runs; servers are wrapped
//! ([`server`]), each run gives an [`observation`], and [`tries`] evaluates them.

pub mod applies;
pub mod catalogue;
mod listening;
pub mod observation;
pub(crate) mod paste;
pub mod program;
pub mod rank;
pub mod server;
mod setting;
mod settled;
pub mod tries;

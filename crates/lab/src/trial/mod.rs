//! `try`: a command is run again under settings that may make it keep less memory.
//!
//! What there is to try is data ([`catalogue`]); which of it applies to a command is decided from one run without any
//! of it ([`applies`]); the figures are ranked ([`rank`]), and the best setting is written out for where programs are
//! started from ([`paste`]). Runs are the engine's; a server's are wrapped ([`server`]), each comes to an [`observation`], and
//! [`tries`] judges them.

pub mod applies;
pub mod catalogue;
mod listening;
pub mod observation;
pub mod paste;
pub mod program;
pub mod rank;
pub mod server;
pub mod setting;
mod settled;
pub mod tries;
pub mod words;

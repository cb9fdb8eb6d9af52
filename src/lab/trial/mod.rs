//! `try`: a command is run again under settings that may make it keep less memory.
//!
//! What there is to try is data ([`catalogue`]); which of it applies to a command is decided from one run without any
//! of it ([`applies`]); the figures are ranked ([`rank`]), and the best setting is written out for where programs are
//! started from ([`paste`]). Nothing in here starts a process.

pub mod applies;
pub mod catalogue;
pub mod paste;
pub mod program;
pub mod rank;
pub mod setting;

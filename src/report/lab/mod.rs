//! What the lab found, for people: tables for a terminal, Markdown for an issue or a mailing list, one HTML page.
//!
//! A verb's room turns what it found into a [`page::Page`], whose parts the writers here lay out: every verb looks
//! the same in every format. Nothing in here runs or judges anything.

mod cleaned;
pub mod html;
pub mod markdown;
pub mod page;
pub mod plot;
pub mod terminal;

#[cfg(test)]
mod fabricated;
#[cfg(test)]
mod golden;

//! Results of the lab for people: tables for a terminal, Markdown for an issue or a mailing list,
//! one HTML page.
//!
//! The report module of each command builds a [`page::Page`], which the writers here lay out, so
//! that all commands have the same layout in every format. Nothing here runs or judges anything.

pub mod book;
pub mod cleaned;
pub mod html;
pub mod markdown;
pub mod names;
pub mod page;
pub mod pictures;
pub mod plot;
pub mod terminal;

#[cfg(test)]
mod fabricated;
#[cfg(test)]
mod golden;

use strandline_inspect::environment::Environment;

use crate::units::maybe_bytes;

/// Describes the machine for a page.
pub fn surroundings(machine: &Environment) -> Vec<(String, String)> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| crate::units::UNKNOWN.to_owned());
    let cpus = machine.cpus.map_or_else(|| known(&None), |cpus| cpus.to_string());
    [
        ("strandline", crate::json::VERSION.to_owned()),
        ("kernel", known(&machine.kernel)),
        ("machine", machine.machine.clone()),
        ("processor", known(&machine.processor)),
        ("processors", cpus),
        ("memory", maybe_bytes(machine.memory_bytes)),
        ("transparent huge pages", known(&machine.thp)),
        ("C library", known(&machine.libc)),
        ("time", machine.time_utc.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

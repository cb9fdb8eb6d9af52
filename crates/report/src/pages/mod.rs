//! Results of the lab for people: tables for a terminal, Markdown for an issue or a mailing list,
//! one HTML page.
//!
//! The report module of each command builds a [`page::Page`] of tables and plots ([`plot`], with
//! the settings' names by [`names`]). It is cleaned ([`cleaned`]) and laid out by [`terminal`],
//! [`markdown`], [`html`], or as several pages by [`book`]; [`pictures`] writes its plots as files.

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

use self::page::Fact;
use crate::units::{UNKNOWN, maybe_bytes};

/// Describes the machine for a page.
pub fn environment_facts(machine: &Environment) -> Vec<Fact> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    [
        ("strandline", crate::json::VERSION.to_owned()),
        ("kernel", or_unknown(machine.kernel.clone())),
        ("machine", machine.machine.clone()),
        ("processor", or_unknown(machine.processor.clone())),
        ("processors", or_unknown(machine.cpus.map(|count| count.to_string()))),
        ("memory", maybe_bytes(machine.memory_bytes)),
        ("transparent huge pages", or_unknown(machine.thp.clone())),
        ("C library", or_unknown(machine.libc.clone())),
        ("time", machine.time_utc.clone()),
    ]
    .map(|(name, value)| Fact::new(name, value))
    .to_vec()
}

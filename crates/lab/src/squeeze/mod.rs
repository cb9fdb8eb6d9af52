//! `squeeze`: the smallest limit on memory under which a command still succeeds.
//!
//! [`search`] looks for the edge with as few runs as it can, [`failure`] says how a run below it fails, [`slowdown`]
//! what the command costs close above it; [`runner`] has the runs made. Nothing in here prints.

pub mod failure;
pub mod findings;
pub mod runner;
pub mod search;
pub mod slowdown;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::cell::Figures;
use failure::Failure;
use strandline_recorder::Limits;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The address space of each process, `RLIMIT_AS`.
    AddressSpace,
    /// The private writable mappings of each process, `RLIMIT_DATA`.
    Data,
    /// The memory of all processes together, by a control group.
    Cgroup,
}

impl Kind {
    /// The name of this kind, as flags and documents have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressSpace => "address_space",
            Self::Data => "data",
            Self::Cgroup => "cgroup",
        }
    }

    /// A limit of this kind of so many bytes.
    pub fn limits(self, bytes: u64) -> Limits {
        match self {
            Self::AddressSpace => Limits { address_space: Some(bytes), ..Limits::default() },
            Self::Data => Limits { data: Some(bytes), ..Limits::default() },
            Self::Cgroup => Limits { memory: Some(bytes), ..Limits::default() },
        }
    }
}

/// One run and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tried {
    /// The limit it ran under; `None` where it ran without.
    pub limit_bytes: Option<u64>,
    /// How it failed; `None` where it succeeded.
    pub failure: Option<Failure>,
    /// What was counted of it.
    pub figures: Figures,
    /// The most of what is to be limited that it was seen to hold, where that is known.
    pub peak_bytes: Option<u64>,
    /// Whether it was watched closely: its time is not that of the others then.
    #[serde(skip)]
    pub is_recorded: bool,
}

impl Tried {
    /// Whether it succeeded.
    pub fn is_success(&self) -> bool {
        self.failure.is_none()
    }
}

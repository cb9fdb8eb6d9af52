//! `squeeze`: the smallest memory limit under which a command still succeeds.
//!
//! [`search`] finds the edge with as few runs as it can, `failure` describes how a run below it
//! fails, `slowdown` measures the cost just above it; [`runner`] makes the runs. This module must
//! not print.

mod failure;
pub(crate) mod findings;
pub mod runner;
pub mod search;
pub(crate) mod slowdown;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::cell::Figures;
use failure::Failure;
pub use findings::{SqueezeOptions, squeeze};
use strandline_recorder::Limits;

/// The limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The address space of each process, `RLIMIT_AS`.
    AddressSpace,
    /// The private writable mappings of each process, `RLIMIT_DATA`.
    Data,
    /// The memory of all processes together, limited by a control group.
    Cgroup,
}

impl LimitKind {
    /// Name in flags and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressSpace => "address_space",
            Self::Data => "data",
            Self::Cgroup => "cgroup",
        }
    }

    /// A limit of `bytes` on this resource.
    pub fn limits(self, bytes: u64) -> Limits {
        match self {
            Self::AddressSpace => Limits { address_space_bytes: Some(bytes), ..Limits::default() },
            Self::Data => Limits { data_bytes: Some(bytes), ..Limits::default() },
            Self::Cgroup => Limits { memory_bytes: Some(bytes), ..Limits::default() },
        }
    }
}

/// One run and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LimitedRun {
    /// The limit; `None` without one.
    pub limit_bytes: Option<u64>,
    /// How it failed; `None` if it succeeded.
    pub failure: Option<Failure>,
    /// What was measured.
    pub figures: Figures,
    /// Peak of the limited resource, if known.
    pub peak_bytes: Option<u64>,
    /// Whether it repeats a run that timed out and does not count.
    pub repeats_timeout: bool,
    /// Whether it was recorded; its time is then not comparable with that of other runs.
    #[serde(skip)]
    pub is_recorded: bool,
    /// Processes that it left running and that were ended afterwards.
    #[serde(skip)]
    pub leftover_processes: u32,
    /// Why memory may have moved to swap at the limit; `None` if it could not.
    #[serde(skip)]
    pub swap_problem: Option<String>,
}

impl LimitedRun {
    /// Whether it succeeded.
    pub fn is_success(&self) -> bool {
        self.failure.is_none()
    }
}

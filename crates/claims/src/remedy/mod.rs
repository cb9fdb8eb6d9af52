//! Remedies: their static descriptions, the requests to readers that apply them, and the results.

mod applied;
mod notification;
mod refusal;

use std::time::Duration;

pub use applied::{Applied, Footprint};
pub use notification::{Notification, NotifyCall, Owner, Word};
pub use refusal::Refusal;

use crate::facts::{Remedy, Runtime};

/// A remedy in the table of readers. The bytes that it is predicted to release are in a [`Remedy`]
/// of the reading.
#[derive(Debug)]
pub struct Spec {
    /// Its name in every document: `malloc_trim`.
    pub id: &'static str,
    /// What it does, in one line of a help text.
    pub help: &'static str,
    /// What it releases.
    pub effect: Effect,
    /// How `reclaim` applies it.
    pub action: Action,
}

/// What a remedy releases. A remedy of a runtime has any of these; one of an allocator has its own
/// [`Effect::FreePages`] or [`Effect::NextStart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Free pages of the allocator with this name: a runtime names the allocator that it uses. Two
    /// remedies for the same allocator release the same pages.
    FreePages(&'static str),
    /// Objects, and the memory that the runtime then releases.
    Objects,
    /// Nothing in this process: it takes effect at the next start.
    NextStart,
}

/// How `reclaim` applies a remedy.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// By the allocator's own function in a thread of the process ([`crate::allocator::CallPlan`]).
    Call,
    /// By a function of the runtime in an idle thread of the process ([`Notification`]); the effect
    /// is by how much these rows fall.
    Notify(&'static [&'static str]),
    /// By this function of the reader.
    Apply(fn(&Request<'_>) -> Answer),
    /// Never from outside: this function explains why, and how the program can do it.
    Advice(fn(&Request<'_>) -> Answer),
    /// Not at all: a setting, or another allocator, for the next start.
    NextStart,
}

/// A request to a reader to apply a remedy.
pub struct Request<'a> {
    /// The remedy in the table of readers.
    pub spec: &'a Spec,
    /// The process.
    pub pid: i32,
    /// The runtime, as it was read just before; `None` if it is not in the process.
    pub runtime: Option<&'a Runtime>,
    /// The remedy, as predicted just before; `None` if the reading does not offer it.
    pub remedy: Option<&'a Remedy>,
    /// Whether to make the checks only.
    pub is_dry_run: bool,
    /// How long to count minor faults afterwards.
    pub watch: Duration,
}

/// Result of a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It was applied.
    Applied(Applied),
    /// It can be applied: the answer to a dry run.
    Possible,
    /// There is nothing to release, for this reason.
    Nothing(String),
    /// It was not applied, for this reason; the process was not touched.
    Refused(String),
}

impl From<Result<Applied, String>> for Answer {
    fn from(result: Result<Applied, String>) -> Self {
        result.map_or_else(Self::Refused, Self::Applied)
    }
}

impl Spec {
    /// Whether `reclaim` can apply it.
    pub const fn is_applied(&self) -> bool {
        matches!(self.action, Action::Call | Action::Notify(_) | Action::Apply(_))
    }

    /// A call of a function of the allocator with this name, made by `reclaim`.
    pub const fn call(id: &'static str, allocator: &'static str, help: &'static str) -> Self {
        Self { id, help, effect: Effect::FreePages(allocator), action: Action::Call }
    }

    /// A remedy that only the program itself can apply.
    pub const fn advice(id: &'static str, effect: Effect, help: &'static str) -> Self {
        Self { id, help, effect, action: Action::Advice(refuse_with_advice) }
    }

    /// A setting, or another allocator, for the next start.
    pub const fn next_start(id: &'static str, help: &'static str) -> Self {
        Self { id, help, effect: Effect::NextStart, action: Action::NextStart }
    }
}

/// Refuses, and explains how the program can do it.
fn refuse_with_advice(request: &Request<'_>) -> Answer {
    Answer::Refused(match request.remedy {
        Some(remedy) => format!("it is advice only; do it in the program: {}", remedy.how),
        None => format!(
            "it is advice only ({}), and nothing that it would release is known in this process",
            request.spec.help
        ),
    })
}

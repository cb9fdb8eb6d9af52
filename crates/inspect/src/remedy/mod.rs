//! STUB, to be replaced: just enough of `reclaim` for the command line to be built against.

use std::time::Duration;

use crate::error::Result;
use crate::explain::{Options, explain};
use crate::facts::{Outcome, Reclamation};

/// How to give memory back.
#[derive(Clone, Debug, Default)]
pub struct ReclaimOptions {
    /// Which remedy; `None` for the best one.
    pub remedy: Option<String>,
    /// Predict only.
    pub dry_run: bool,
    /// How long to wait for a safe moment.
    pub wait: Duration,
    /// Whether a way may be taken that can lose a write of the target.
    pub allow_lost_write_risk: bool,
}

/// Applies a remedy and says what it was predicted to give back and what it did.
pub fn reclaim(pid: i32, options: &ReclaimOptions) -> Result<Reclamation> {
    let before = explain(pid, &Options::default())?;
    Ok(Reclamation {
        remedy: options.remedy.clone().unwrap_or_else(|| "malloc_trim".to_owned()),
        outcome: Outcome::Refused,
        reason: Some("this build applies no remedy yet".to_owned()),
        dry_run: options.dry_run,
        rss_before_bytes: Some(before.kernel.rss_bytes),
        before: Some(before),
        ..Reclamation::default()
    })
}

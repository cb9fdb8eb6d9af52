//! Findings about SBCL: dead objects and free pages, or objects that were not traced.

use super::rows::{ALLOCATED, DEAD, FREE};
use strandline_claims::facts::State;
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let mut findings = vec![dead_objects(view)];
    let (untraced, unattributed) = (view.row_bytes(ALLOCATED.id), view.state_bytes(State::Unattributed));
    if untraced > unattributed / 2 {
        findings.push(Finding {
            class: "unattributed",
            bytes: unattributed,
            headline: format!(
                "{} is SBCL objects that were not traced: live or dead is not known",
                view.of_rss(untraced)
            ),
        });
    }
    findings
}

fn dead_objects(view: &LedgerView<'_>) -> Finding {
    let (dead, free) = (view.row_bytes(DEAD.id), view.row_bytes(FREE.id));
    let mut headline = format!("{} is free or dead in SBCL's heap", view.of_rss(dead + free));
    if let Some(largest) = view.rows_of(DEAD.id).max_by_key(|row| row.bytes) {
        headline += &format!(
            ": {} of unreachable objects ({} of them in {})",
            bytes(dead),
            bytes(largest.bytes),
            largest.holder
        );
    }
    if free > 0 {
        headline += if dead > 0 { " and" } else { ":" };
        headline += &format!(" {} of free pages", bytes(free));
    }
    headline += &view.released_by("sbcl_full_gc", "(gc :full t) releases");
    Finding { class: "dead_objects", bytes: dead + free, headline }
}

//! The study `pooled-pages` in both forms, with the oldest and the newest Node.js found.

use crate::support::studied::forms;
use crate::support::{Outcome, here, nodes, runs_long_studies, skipped};

/// Layout, and bytes that a call releases: independent of the machine's load.
const HOLD: &[&str] = &["nearly-nothing-is-used", "ledger-explains"];

/// The same of versions with a pool.
const HOLD_WITH_POOL: &[&str] = &[
    "recent-versions-keep-most",
    "pool-since-12",
    "what-is-kept-holds-nothing",
    "pressure-foretold",
    "small-young-generation-still-pools",
    "optimize-for-size-may-still-pool",
];

/// The same of versions without one.
const HOLD_WITHOUT_POOL: &[&str] = &["older-versions-release-most", "no-pool-before"];

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    let nodes = nodes::all(here!());
    let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else {
        skipped(here!(), "no Node.js (apt-get install nodejs)");
        return Ok(());
    };
    let paths = if nodes.len() == 1 { first.path.clone() } else { format!("{},{}", first.path, last.path) };
    for studied in forms("pooled-pages", &["--axis", &format!("node={paths}")])? {
        studied.assert("holds", HOLD);
        studied.assert(if last.has_pool() { "holds" } else { "not_run" }, HOLD_WITH_POOL);
        studied.assert(if first.has_pool() { "not_run" } else { "holds" }, HOLD_WITHOUT_POOL);
        studied.assert_no_others(&[HOLD, HOLD_WITH_POOL, HOLD_WITHOUT_POOL]);
    }
    Ok(())
}

//! The study `pooled-pages` in its short form, with the oldest and the newest Node.js found.

use crate::support::studied::short;
use crate::support::{Outcome, here, nodes, skipped};

/// Layout, and bytes that a call releases: independent of the machine's load.
const HOLD: &[&str] = &[
    "nearly-nothing-is-used",
    "recent-node-keeps-half",
    "older-node-gives-back",
    "pool-since-12",
    "what-is-kept-holds-nothing",
    "pressure-foretold",
    "small-young-generation-still-pools",
    "optimize-for-size-still-pools",
    "ledger-explains",
];

#[test]
fn its_claims() -> Outcome {
    let nodes = nodes::all(here!());
    let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else {
        skipped(here!(), "no Node.js (apt-get install nodejs)");
        return Ok(());
    };
    let paths = if nodes.len() == 1 { first.path.clone() } else { format!("{},{}", first.path, last.path) };
    let studied = short("pooled-pages", &["--axis", &format!("node={paths}")])?;
    studied.assert("holds", HOLD);
    studied.assert_no_others(&[HOLD]);
    Ok(())
}

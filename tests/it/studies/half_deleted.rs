//! The study `half-deleted`, in both forms.

use crate::support::studied::{Studied, forms};
use crate::support::{Outcome, gos, here, pythons, runs_long_studies, skipped};

/// Layout, and bytes that a call gives back: independent of the machine's load.
const HOLD: &[&str] = &[
    "nothing-goes-by-itself",
    "cpython-keeps-arenas",
    "go-keeps-spans",
    "oldest-half-goes",
    "go-foretold",
    "malloc-trim-foretold",
    "ledger-explains",
    "cpython-malloc-gives-back",
];

/// The same for Node.js.
const NODE_HOLD: &[&str] = &[
    "node-nothing-by-itself",
    "node-gc-collects-all",
    "node-buffers-are-halved",
    "node-gc-keeps",
    "node-buffers-oldest-trim",
    "node-buffers-alternate-pinned",
    "node-ledger-explains",
];

/// Only for versions with a pool.
const NODE_EITHER: &[&str] = &["node-either-half-alike", "node-pressure-foretold"];

/// Without this tool no claim about Node.js can be judged.
const NODE_TOOLS: &[&str] = &["node"];

/// The same for the JVM, with each collector that its build has.
const JVM_HOLD: &[&str] = &[
    "jvm-nothing-by-itself",
    "jvm-stop-the-world-keeps",
    "jvm-z-waits",
    "jvm-z-lean-gives-back",
    "jvm-g1-lean-gives-back",
    "jvm-pins-nothing",
    "jvm-dead-is-dead",
    "jvm-collected-is-idle-or-gone",
];

/// Hold for some 20 MB; their notes describe the additional effects in large heaps.
const JVM_HOLD_OF_LITTLE: &[&str] =
    &["jvm-shenandoah-gives-back", "jvm-either-half-alike", "jvm-ledger-explains"];

/// May hold or fail: they depend on stale references, the version of ZGC, or the sizes that the
/// generations reached.
const JVM_EITHER: &[&str] = &[
    "jvm-g1-gives-back",
    "jvm-dead-foretold",
    "jvm-gc-foretold",
    "jvm-z-rss-counts-twice",
    "jvm-serial-lean-goes-by-steps",
];

/// Without these tools no claim about the JVM can be judged.
const JVM_TOOLS: &[&str] = &["java", "javac"];

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    if gos::version("go").is_none() || pythons::minor("python3").is_none() {
        skipped(here!(), "no go, or no python3 (apt-get install golang-go python3)");
        return Ok(());
    }
    for studied in forms("half-deleted", &[])? {
        check_verdicts(here!(), &studied)?;
    }
    Ok(())
}

/// Asserts the verdicts of one form.
fn check_verdicts(test: &str, studied: &Studied) -> Outcome {
    studied.assert("holds", HOLD);
    studied.assert("holds", &studied.judged(test, NODE_HOLD, NODE_TOOLS)?);
    // A JDK, or one of its collectors, may be missing.
    studied.assert("holds", &studied.judged(test, JVM_HOLD, JVM_TOOLS)?);
    if !studied.is_full {
        studied.assert("holds", &studied.judged(test, JVM_HOLD_OF_LITTLE, JVM_TOOLS)?);
    }
    studied.assert_no_others(&[HOLD, NODE_HOLD, NODE_EITHER, JVM_HOLD, JVM_HOLD_OF_LITTLE, JVM_EITHER]);
    Ok(())
}

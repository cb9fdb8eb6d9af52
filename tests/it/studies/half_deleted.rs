//! The study `half-deleted` in its short form.

use crate::support::studied::short;
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
    "node-either-half-alike",
    "node-pressure-foretold",
    "node-buffers-oldest-trim",
    "node-buffers-alternate-pinned",
    "node-ledger-explains",
];

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

/// May hold or fail: they depend on stale references, the version of ZGC, the size of the heap (the
/// notes name the effects in large ones), or the sizes that the generations reached.
const JVM_EITHER: &[&str] = &[
    "jvm-shenandoah-gives-back",
    "jvm-either-half-alike",
    "jvm-ledger-explains",
    "jvm-g1-gives-back",
    "jvm-dead-foretold",
    "jvm-gc-foretold",
    "jvm-z-rss-counts-twice",
    "jvm-serial-lean-goes-by-steps",
];

/// Without these tools no claim about the JVM can be judged.
const JVM_TOOLS: &[&str] = &["java", "javac"];

#[test]
fn its_claims() -> Outcome {
    if gos::version("go").is_none() || pythons::minor("python3").is_none() {
        skipped(here!(), "no go, or no python3 (apt-get install golang-go python3)");
        return Ok(());
    }
    // The JVM under eight collectors takes most of a minute, even in the short form.
    let with_jvm = runs_long_studies(&format!("{}, the JVM", here!()));
    let subjects: &[&str] = if with_jvm { &[] } else { &["--axis", "subject=cpython,go,node"] };
    let studied = short("half-deleted", subjects)?;
    studied.assert("holds", HOLD);
    studied.assert("holds", &studied.judged(here!(), NODE_HOLD, NODE_TOOLS)?);
    // A JDK, or one of its collectors, may be missing.
    if with_jvm {
        studied.assert("holds", &studied.judged(here!(), JVM_HOLD, JVM_TOOLS)?);
    }
    studied.assert_no_others(&[HOLD, NODE_HOLD, JVM_HOLD, JVM_EITHER]);
    Ok(())
}

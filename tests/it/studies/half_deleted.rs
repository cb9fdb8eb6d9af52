//! The study `half-deleted` in its short form.

use crate::support::studied::{Studied, short};
use crate::support::{Outcome, full, gos, here, pythons, skipped};

/// What lies where, and what a call gives back: no load of the machine changes it.
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

/// The same of the JVM, under each collector that its build has.
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

/// What holds of some 20 MB; their notes say what large heaps have besides.
const JVM_HOLD_OF_LITTLE: &[&str] =
    &["jvm-shenandoah-gives-back", "jvm-either-half-alike", "jvm-ledger-explains"];

/// Either may come of them: what looks like a reference, which ZGC it is, how large the generations became by themselves.
const JVM_EITHER: &[&str] = &[
    "jvm-g1-gives-back",
    "jvm-dead-foretold",
    "jvm-gc-foretold",
    "jvm-z-rss-counts-twice",
    "jvm-serial-lean-goes-by-steps",
];

/// Those of `ids` that were judged: a JDK may be missing, or one of its collectors.
fn judged<'a>(studied: &Studied, ids: &[&'a str]) -> Vec<&'a str> {
    let lacks = |id: &&str| match studied.verdicts.get(*id) {
        Some((verdict, reason)) if verdict == "not_run" && reason.contains("install") => {
            skipped(&format!("half_deleted: {id}"), reason);
            true
        }
        _ => false,
    };
    ids.iter().copied().filter(|id| !lacks(id)).collect()
}

#[test]
fn its_claims() -> Outcome {
    if gos::version("go").is_none() || pythons::minor("python3").is_none() {
        skipped(here!(), "no go, or no python3 (apt-get install golang-go python3)");
        return Ok(());
    }
    let studied = short("half-deleted", &[])?;
    studied.assert("holds", HOLD);
    studied.assert("holds", &judged(&studied, JVM_HOLD));
    if !full() {
        studied.assert("holds", &judged(&studied, JVM_HOLD_OF_LITTLE));
    }
    studied.assert_no_others(&[HOLD, JVM_HOLD, JVM_HOLD_OF_LITTLE, JVM_EITHER]);
    Ok(())
}

//! The study `who-holds` in its short form.

use crate::support::studied::short;
use crate::support::{Outcome, here, skipped};

/// Counted by the server itself: independent of the machine's load.
const HOLD: &[&str] = &[
    "leaks-are-found",
    "heads-are-told",
    "leaks-have-a-type",
    "the-cache-is-held",
    "the-small-objects-are-held",
    "kept-pages-go-back",
    "small-objects-keep-much",
    "sizes-apart-keep-little",
    "growth-is-told",
];

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    let test = here!();
    if std::process::Command::new("g++").arg("--version").output().is_err() {
        skipped(test, "no g++ here (apt-get install g++)");
        return Ok(());
    }
    let studied = short("who-holds", &[])?;
    studied.assert("holds", HOLD);
    if std::process::Command::new("valgrind").arg("--version").output().is_ok() {
        studied.assert("holds", &["as-memcheck"]);
    } else {
        skipped(test, "as-memcheck: no valgrind here (make deps)");
    }
    Ok(())
}

//! The study `half-deleted` in its short form.

use super::short;
use crate::support::{Outcome, gos, pythons, skipped};

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

#[test]
fn its_claims() -> Outcome {
    if gos::version("go").is_none() || pythons::minor("python3").is_none() {
        skipped("half_deleted::its_claims", "no go, or no python3 (apt-get install golang-go python3)");
        return Ok(());
    }
    let studied = short("half-deleted", &[])?;
    studied.assert("holds", HOLD);
    studied.assert_no_others(&[HOLD]);
    Ok(())
}

//! Perl on another malloc: its figures are complete, and its blocks are refined as with glibc.

use std::path::Path;

use crate::support::perl::{PerlLedger, command, number, start_command};
use crate::support::{Outcome, here, perls, skipped, strandline};

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

#[test]
fn under_jemalloc_the_figures_hold_and_its_blocks_are_refined() -> Outcome {
    let name = here!();
    let Some(perl) = perls::all(name).into_iter().next() else { return Ok(()) };
    if !Path::new(JEMALLOC).exists() {
        skipped(name, &format!("no {JEMALLOC} (apt install libjemalloc2)"));
        return Ok(());
    }
    let mut command = command(&perl, "functions");
    command.env("LD_PRELOAD", JEMALLOC);
    let mut subject = start_command(command)?;
    let theirs = crate::support::perl::own_figures(&mut subject)?;
    let seen = PerlLedger::of(subject.pid())?;
    let main = seen.main()?;
    assert_eq!(number(main, "heads.live")?, number(&theirs, "live_heads")?);
    let lexicals = number(main, "retained.lexicals.bytes")? - number(main, "retained.containers.bytes")?;
    assert_eq!(lexicals, number(&theirs, "retained_lexicals_bytes")?);
    assert!(!seen.rows("perl.pad.retained").is_empty(), "its blocks are jemalloc's, and are refined");
    let codes = strandline::caveats(&seen.document);
    assert!(codes.is_empty(), "{codes:?}");
    Ok(())
}

#[test]
fn without_runtimes_nothing_is_refined() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let subject = crate::support::perl::start(&perl, "functions")?;
    let document = strandline::json(&["explain", "--json", "--no-runtimes", &subject.pid_text()])?;
    crate::support::invariants::check(&document)?;
    let ids = crate::support::perl::list(&document["rows"]).iter().filter_map(|row| row["id"].as_str());
    let refined: Vec<&str> = ids.filter(|id| id.starts_with("perl.")).collect();
    assert!(refined.is_empty(), "{refined:?}");
    // Rows also add up to RSS with runtimes; both documents are checked for this.
    assert!(!PerlLedger::of(subject.pid())?.rows("perl.pad.retained").is_empty());
    Ok(())
}

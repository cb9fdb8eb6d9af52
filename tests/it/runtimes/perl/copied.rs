//! A Perl is read from a copy of its memory if there is room for one, else while it is stopped; the
//! results are the same.

use std::process::Command;

use serde_json::Value;

use crate::support::perl::{folder, list, start_command};
use crate::support::{Outcome, Result, here, perls, strandline};

/// Explains `pid` with at most `most_kib` of address space, if given.
fn explained(pid: &str, most_kib: Option<u64>) -> Result<Value> {
    let limit = most_kib.map_or(String::new(), |kib| format!("ulimit -v {kib} && "));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}exec \"$0\" explain --json --snapshot=never --quiet-for=0 \"$1\"")]);
    command.args([env!("CARGO_BIN_EXE_strandline"), pid]);
    let run = strandline::run_command(command)?;
    match run.status {
        Some(0) => run.document(),
        _ => Err(run.summary().into()),
    }
}

/// Rows and totals without file pages, which the kernel may reclaim at any time.
fn without_files(document: &Value) -> (Vec<&Value>, Value) {
    let rows = list(&document["rows"]).iter().filter(|row| row["state"] != "evictable").collect();
    let mut totals = document["totals"].clone();
    if let Some(totals) = totals.as_object_mut() {
        totals.remove("evictable");
    }
    (rows, totals)
}

#[test]
fn a_copy_has_the_same_figures_as_a_stop() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let mut command = Command::new(perl);
    command.arg(folder().join("hash.pl")).arg("300000");
    let subject = start_command(command)?;
    let copied = strandline::complete(|| explained(&subject.pid_text(), None))?;
    let anonymous = copied["kernel"]["anonymous_bytes"].as_u64().ok_or("no anonymous_bytes")?;
    let peak = |document: &Value| document["cost"]["peak_rss_bytes"].as_u64().unwrap_or(0);
    assert!(peak(&copied) > anonymous, "{} bytes of {anonymous}: the perl was not copied", peak(&copied));

    // An address space of 1.25 times the process is too small for a copy, the notes about its
    // values (a sixteenth of it) and strandline's own memory, which includes a malloc arena for
    // each thread.
    let in_stop =
        strandline::complete(|| explained(&subject.pid_text(), Some((anonymous + anonymous / 4) / 1024)))?;
    assert!(peak(&in_stop) < anonymous, "{} bytes of {anonymous}: the perl was copied", peak(&in_stop));
    assert!(list(&copied["runtimes"]).iter().any(|runtime| runtime["perl"].is_object()), "its Perl is read");
    assert_eq!(without_files(&copied), without_files(&in_stop));
    for part in ["allocators", "runtimes", "caveats"] {
        assert_eq!(copied[part], in_stop[part], "{part}");
    }
    Ok(())
}

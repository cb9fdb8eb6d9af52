//! `--max-stop`: a process is released at the limit; memory that was not read is unattributed, and
//! rows still add up.

#![cfg(test)]

use serde_json::Value;

use crate::support::strandline::{caveats, json, kept_bytes, kept_rows, row};
use crate::support::{Libc, Outcome, Result, Subject, invariants, strandline};

fn heap() -> Result<Subject> {
    // A quarter of a GiB in 300,000 chunks: no machine reads that in a millisecond.
    let subject = Subject::start_with(&Libc::system(), "big_heap", &["0.25", "300", "random", "40"], &[])?;
    subject.at_rest()?;
    Ok(subject)
}

/// Explains a process that has to be stopped while it is read.
fn explained(subject: &Subject, most: &[&str]) -> Result<Value> {
    let pid = subject.pid_text();
    let flags = ["explain", "--json", "--quiet-for", "0", "--snapshot=never", &pid];
    let document = json(&[&flags, most].concat())?;
    invariants::check(&document)?;
    Ok(document)
}

#[test]
fn memory_not_read_in_time_is_unattributed() -> Outcome {
    let subject = heap()?;
    let whole = explained(&subject, &[])?;
    let cut = explained(&subject, &["--max-stop", "1ms"])?;
    assert_eq!(kept_bytes(&cut), kept_bytes(&whole));
    assert_eq!(row(&whole, "glibc.unread"), 0);
    let unread = row(&cut, "glibc.unread");
    assert!(unread > 100 << 20, "{unread} bytes of glibc.unread");
    let late: Vec<&Value> = cut["caveats"]
        .as_array()
        .ok_or("no caveats")?
        .iter()
        .filter(|caveat| caveat["code"] == "heap_too_slow")
        .collect();
    assert!(late.iter().any(|caveat| caveat["bytes"].as_u64() >= Some(unread)), "{late:?}");
    assert!(cut["totals"]["unattributed"].as_u64() >= Some(unread));
    // Nothing is predicted for memory that was not read.
    let predicted = |document: &Value| strandline::predicted(document, "malloc_trim").unwrap_or(0);
    assert!(predicted(&cut) <= predicted(&whole), "{} of {}", predicted(&cut), predicted(&whole));
    // With enough time, the result is the same as without a limit.
    let slow = explained(&subject, &["--max-stop", "5m"])?;
    assert_eq!((kept_rows(&slow), &slow["caveats"]), (kept_rows(&whole), &whole["caveats"]));
    Ok(())
}

#[test]
fn a_perl_that_is_not_read_in_time_adds_up() -> Outcome {
    let script = "my %h; $h{$_} = [$_] for 1 .. 200_000; $| = 1; print \"{}\\n\"; <STDIN>";
    let mut command = std::process::Command::new("perl");
    command.args(["-e", script]);
    let subject = Subject::start_command(command)?;
    for most in ["1ms", "5ms", "20ms", "80ms", "5m"] {
        let document = explained(&subject, &["--max-stop", most])?;
        let runtimes = document["runtimes"].as_array().ok_or("no runtimes")?;
        let perl = runtimes.iter().find(|one| one["name"] == "perl").ok_or("no perl")?;
        let is_late = caveats(&document).iter().any(|code| code == "perl_late");
        // No machine reads 600,000 values in a millisecond.
        match most {
            "1ms" => assert!(is_late && perl["read"] == false, "{}", document["caveats"]),
            "5m" => assert!(!is_late && perl["read"] == true, "{}", document["caveats"]),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn a_partially_read_heap_is_not_trimmed() -> Outcome {
    let subject = heap()?;
    let pid = subject.pid_text();
    let run = strandline::run(&["reclaim", "--quiet-for=0", "--snapshot=never", "--max-stop", "1ms", &pid])?;
    run.complains(3, &["in the time for which a process may be stopped", "--max-stop"])?;
    let run = strandline::run(&[
        "reclaim",
        "--dry-run",
        "--quiet-for=0",
        "--snapshot=never",
        "--max-stop",
        "1ms",
        "--json",
        &pid,
    ])?;
    run.complains(3, &["would not be called", "--max-stop"])?;
    let dry = run.document()?;
    assert!(caveats(&dry["before"]).iter().any(|code| code == "heap_too_slow"), "{dry}");
    Ok(())
}

#[test]
fn holders_keep_to_the_limit_or_are_refused() -> Outcome {
    let subject = heap()?;
    let pid = subject.pid_text();
    for verb in [&["holders"][..], &["explain", "--holders"]] {
        let refused = strandline::run(&[verb, &["--max-stop", "1ms", &pid]].concat())?;
        refused.complains(3, &["may stop the process for", "--max-stop"])?;
        let excluded = strandline::run(&[verb, &["--max-stop=5m", "--snapshot=never", &pid]].concat())?;
        excluded.complains(2, &["--max-stop", "snapshot"])?;
        json(&[verb, &["--json", "--max-stop", "5m", &pid]].concat())?;
    }
    Ok(())
}

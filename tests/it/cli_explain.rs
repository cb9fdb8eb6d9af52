//! `explain PID`: the ledger adds up, documents are documents, conditions decide the exit status.

use std::process::Command;

use crate::cli_support::{Folder, Subject, assert_harmless, strandline, strandline_with};

/// The sum of the numbers in `values`.
fn sum<'a>(values: impl Iterator<Item = &'a serde_json::Value>) -> u64 {
    values.map(|value| value.as_u64().unwrap()).sum()
}

#[test]
fn rows_and_totals_add_up_to_rss() {
    for subject in [Subject::idle(), Subject::fragmented(8)] {
        let run = strandline(&["explain", "--json", &subject.pid()]);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""));
        let document = run.document();
        let rss = document["kernel"]["rss_bytes"].as_u64().unwrap();
        assert!(rss > 100_000);
        assert_eq!(sum(document["rows"].as_array().unwrap().iter().map(|row| &row["bytes"])), rss);
        assert_eq!(sum(document["totals"].as_object().unwrap().values()), rss);
    }
}

#[test]
fn the_document_opens_as_promised() {
    let subject = Subject::idle();
    let run = strandline(&["explain", "--json", &subject.pid()]);
    assert!(run.stdout.starts_with("{\n  \"schema\": \"strandline/explain/1\",\n  \"version\":"));
    let document = run.document();
    for field in ["kernel", "machine", "cpus", "memory_bytes", "page_bytes", "thp", "libc", "time_utc"] {
        assert!(document["environment"].get(field).is_some(), "environment.{field}");
    }
    for field in [
        "target",
        "kernel",
        "rows",
        "totals",
        "allocators",
        "runtimes",
        "remedies",
        "verdict",
        "caveats",
        "cost",
    ] {
        assert!(document.get(field).is_some(), "{field}");
    }
    assert_eq!(document["target"]["pid"].to_string(), subject.pid());
}

#[test]
fn the_view_fits_80_columns_and_has_no_colour_off_a_terminal() {
    let subject = Subject::fragmented(8);
    let run = strandline(&["explain", "--rows", "all", &subject.pid()]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains("RSS ") && run.stdout.contains("held by"));
    assert_harmless(&run.stdout);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80), "{}", run.stdout);
}

#[test]
fn colour_is_decided_by_flag_then_environment() {
    let subject = Subject::idle();
    let coloured = |flag: &str, environment: &[(&str, &str)]| {
        strandline_with(&["explain", "--color", flag, &subject.pid()], environment).stdout.contains('\x1b')
    };
    assert!(coloured("always", &[]));
    assert!(coloured("always", &[("NO_COLOR", "1")]), "a flag outweighs the environment");
    assert!(!coloured("never", &[]));
    assert!(!coloured("auto", &[]), "standard output is no terminal here");
}

#[test]
fn conditions_decide_the_exit_status() {
    let subject = Subject::idle();
    let pid = subject.pid();
    let status = |conditions: &[&str]| {
        let mut arguments = vec!["explain", "--json", &pid];
        arguments.extend(conditions.iter().flat_map(|condition| ["--fail-if", condition]));
        let run = strandline(&arguments);
        assert_eq!(run.document()["schema"], "strandline/explain/1", "the document is printed all the same");
        run.status
    };
    assert_eq!(status(&["rss > 1KiB"]), 1);
    assert_eq!(status(&["rss > 1024GiB"]), 0);
    assert_eq!(status(&["rss > 1024GiB", "rss <= 100%"]), 1);
    assert_eq!(status(&["stranded > 100%"]), 0);
}

#[test]
fn rows_are_as_many_as_asked_for() {
    let subject = Subject::fragmented(8);
    let document = strandline(&["explain", "--json", &subject.pid()]).document();
    let largest = document["rows"][0]["id"].as_str().unwrap().to_owned();
    let one = strandline(&["explain", "--rows", "1", &subject.pid()]).stdout;
    assert!(one.contains(&largest) && one.contains("smaller row"), "{one}");
    let all = strandline(&["explain", "--rows", "all", &subject.pid()]).stdout;
    assert!(!all.contains("smaller row"), "{all}");
}

#[test]
fn a_process_that_is_not_there_is_status_3() {
    // Above any pid_max.
    let run = strandline(&["explain", "--json", "2147483647"]);
    run.complains(3, "2147483647");
    assert_eq!(run.stdout, "", "no half document");
}

#[test]
fn a_hostile_name_reaches_no_terminal() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("hostile");
    let name = std::ffi::OsStr::from_bytes(b"sh\x1b[2J\x1b]0;owned\x07\xc2\x9b31m\n\xff");
    let path = folder.0.join(name);
    std::fs::copy("/bin/sh", &path).unwrap();
    let subject = Subject::start(Command::new(&path).args(["-c", "echo ready; read end"]));
    let view = strandline(&["explain", "--rows", "all", &subject.pid()]);
    assert_eq!(view.status, 0, "{view:?}");
    assert_harmless(&view.stdout);
    assert!(view.stdout.contains("owned\\u{7}\\u{9b}31m"), "{}", view.stdout);
    let document = strandline(&["explain", "--json", &subject.pid()]);
    assert_harmless(&document.stdout);
    let executable = document.document()["target"]["executable"].as_str().unwrap().to_owned();
    assert!(executable.contains("\x1b[2J"), "the value itself is kept: {executable:?}");
}

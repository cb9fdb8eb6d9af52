//! `explain PID`: the ledger adds up, documents are valid, conditions decide the exit status.

#![cfg(test)]

use std::process::Command;

use crate::support::{Folder, Subject, check_no_control_characters, copy_program, invariants, strandline};

#[test]
fn rows_and_totals_add_up_to_rss() {
    for subject in [Subject::idle().unwrap(), Subject::demo(8).unwrap()] {
        let run = strandline::run(&["explain", "--json", &subject.pid_text()]).unwrap();
        assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
        let document = run.document().unwrap();
        assert!(document["kernel"]["rss_bytes"].as_u64().unwrap() > 100_000);
        invariants::check(&document).unwrap();
    }
}

#[test]
fn a_document_begins_with_schema_and_version() {
    let subject = Subject::idle().unwrap();
    let run = strandline::run(&["explain", "--json", &subject.pid_text()]).unwrap();
    assert!(run.stdout.starts_with("{\n  \"schema\": \"strandline/explain/1\",\n  \"version\":"));
    let document = run.document().unwrap();
    invariants::check(&document).unwrap();
    assert_eq!(document["target"]["pid"].to_string(), subject.pid_text());
}

#[test]
fn the_view_fits_80_columns_and_has_no_colour_off_a_terminal() {
    let subject = Subject::demo(8).unwrap();
    let run = strandline::run(&["explain", "--rows", "all", &subject.pid_text()]).unwrap();
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    assert!(run.stdout.contains("RSS ") && run.stdout.contains("what it is"));
    check_no_control_characters(&run.stdout).unwrap();
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80), "{}", run.stdout);
}

#[test]
fn colour_is_decided_by_flag_then_environment() {
    let subject = Subject::idle().unwrap();
    let coloured = |flag: &str, environment: &[(&str, &str)]| {
        strandline::run_with(&["explain", "--color", flag, &subject.pid_text()], environment)
            .unwrap()
            .stdout
            .contains('\x1b')
    };
    assert!(coloured("always", &[]));
    assert!(coloured("always", &[("NO_COLOR", "1")]), "a flag outweighs the environment");
    assert!(!coloured("never", &[]));
    assert!(!coloured("auto", &[]), "standard output is no terminal here");
}

#[test]
fn conditions_decide_the_exit_status() {
    let subject = Subject::idle().unwrap();
    let pid = subject.pid_text();
    let status = |conditions: &[&str]| {
        let mut arguments = vec!["explain", "--json", &pid];
        arguments.extend(conditions.iter().flat_map(|condition| ["--fail-if", condition]));
        let run = strandline::run(&arguments).unwrap();
        assert_eq!(
            run.document().unwrap()["schema"],
            "strandline/explain/1",
            "the document is printed all the same"
        );
        run.status
    };
    assert_eq!(status(&["rss > 1KiB"]), Some(1));
    assert_eq!(status(&["rss > 1024GiB"]), Some(0));
    assert_eq!(status(&["rss > 1024GiB", "rss <= 100%"]), Some(1));
    assert_eq!(status(&["stranded > 100%"]), Some(0));
}

#[test]
fn the_requested_number_of_rows_is_shown() {
    // The heap is larger than the code: the kernel may drop pages of code between the two reads.
    let subject = Subject::demo(48).unwrap();
    subject.at_rest().unwrap();
    let document = strandline::run(&["explain", "--json", &subject.pid_text()]).unwrap().document().unwrap();
    let largest = document["rows"][0]["id"].as_str().unwrap().to_owned();
    let one = strandline::run(&["explain", "--rows", "1", &subject.pid_text()]).unwrap().stdout;
    assert!(one.contains(&largest) && one.contains("smaller row"), "{one}");
    let all = strandline::run(&["explain", "--rows", "all", &subject.pid_text()]).unwrap().stdout;
    assert!(!all.contains("smaller row"), "{all}");
}

#[test]
fn a_missing_process_is_status_3() {
    // Above any pid_max.
    let run = strandline::run(&["explain", "--json", "2147483647"]).unwrap();
    run.complains(3, &["2147483647"]).unwrap();
    assert_eq!(run.stdout, "", "no half document");
}

#[test]
fn a_process_is_shown_by_its_own_name() {
    let folder = Folder::new("own-name").unwrap();
    let link = folder.0.join("tide-server");
    std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
    let mut command = Command::new(&link);
    command.args(["-c", "echo ready; read end"]);
    let subject = Subject::start_command(command).unwrap();
    let view = strandline::run(&["explain", &subject.pid_text()]).unwrap();
    assert!(view.stdout.starts_with(&format!("tide-server, pid {}", subject.pid_text())), "{}", view.stdout);
    let view = strandline::run(&["explain", "-v", &subject.pid_text()]).unwrap();
    let title = view.stdout.lines().find(|line| line.starts_with("process ")).unwrap_or_default();
    assert!(title.contains("· tide-server (/") && title.contains("sh)"), "{title}");
}

#[test]
fn control_characters_of_a_name_reach_no_terminal() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("hostile").unwrap();
    let name = std::ffi::OsStr::from_bytes(b"sh\x1b[2J\x1b]0;owned\x07\xc2\x9b31m\n\xff");
    let path = folder.0.join(name);
    copy_program("/bin/sh", &path).unwrap();
    let mut command = Command::new(&path);
    command.args(["-c", "echo ready; read end"]);
    let subject = Subject::start_command(command).unwrap();
    let view = strandline::run(&["explain", "--rows", "all", &subject.pid_text()]).unwrap();
    assert_eq!(view.status, Some(0), "{view:?}");
    check_no_control_characters(&view.stdout).unwrap();
    assert!(view.stdout.contains("owned\\u{7}\\u{9b}31m"), "{}", view.stdout);
    let document = strandline::run(&["explain", "--json", &subject.pid_text()]).unwrap();
    check_no_control_characters(&document.stdout).unwrap();
    let executable = document.document().unwrap()["target"]["executable"].as_str().unwrap().to_owned();
    assert!(executable.contains("\x1b[2J"), "the value itself is kept: {executable:?}");
}

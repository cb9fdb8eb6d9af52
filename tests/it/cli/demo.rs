//! `demo`: it runs to its end and leaves nothing behind.

#![cfg(test)]

use crate::support::{Subject, strandline};

#[test]
fn the_demo_predicts_and_releases_the_same_bytes() {
    let run = strandline::run(&["demo", "--mebibytes", "48", "--json"]).unwrap();
    let document = run.document().unwrap();
    assert_eq!(document["schema"], "strandline/demo/1");
    assert_eq!(document["memory_unchanged"], true, "first do no harm");
    let pid = document["before"]["target"]["pid"].as_i64().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} still runs");
    let rss = |moment: &str| document[moment]["kernel"]["rss_bytes"].as_u64().unwrap();
    assert!(rss("before") > (48 + 64) << 20);
    let given = &document["reclaim"];
    assert_eq!((run.status, given["outcome"].as_str()), (Some(0), Some("done")));
    assert_eq!(given["predicted_bytes"], given["actual_bytes"]);
    assert!(rss("after") < rss("before") - (30 << 20));
}

#[test]
fn the_demo_runs_in_steps() {
    let run = strandline::run(&["demo", "--mebibytes", "16"]).unwrap();
    for step in
        ["1. A process", "2. Where its memory is", "3. Giving it back", "4. What is left", "5. No harm done"]
    {
        assert!(run.stdout.contains(step), "{step}: {run:?}");
    }
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80), "{}", run.stdout);
}

#[test]
fn the_demo_process_ends_with_its_input() {
    let arguments = ["demo-child", "--heap-mebibytes", "4", "--zero-mebibytes", "1"];
    let subject = Subject::start_command(strandline::command(&arguments)).unwrap();
    assert!(subject.finish().unwrap().success(), "the process found its memory changed");
}

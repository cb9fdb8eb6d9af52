//! `explain --tree PID`: all descendants, shared pages once.

#![cfg(test)]

use crate::support::recording::children;
use crate::support::waiting::until_true;
use crate::support::{Subject, strandline};

/// A shell with two children, one of them with its own child. All end with the shell.
fn family() -> Subject {
    let subject = Subject::shell(
        "sleep 1000 & one=$!; sh -c 'sleep 1000 & inner=$!; echo ready; trap \"kill $inner\" EXIT; read end' ; kill $one",
    )
    .unwrap();
    // A child is a copy of its shell until it starts its own program.
    until_true("the tree of processes to sleep", || is_complete(subject.pid())).unwrap();
    subject
}

/// Whether all sleeps are asleep and both shells wait, for a child and for input.
fn is_complete(shell: i32) -> bool {
    let is_in = |pid: i32, name: &str, calls: &[&str]| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        comm.trim_end() == name && calls.iter().any(|number| call.starts_with(number))
    };
    // nanosleep and clock_nanosleep; wait4; read of standard input.
    let sleeps = |pid: i32| is_in(pid, "sleep", &["35 ", "230 "]);
    let [one, inner_shell] = children(shell)[..] else { return false };
    let [inner] = children(inner_shell)[..] else { return false };
    let shells_wait = is_in(shell, "sh", &["61 "]) && is_in(inner_shell, "sh", &["0 0x0 "]);
    shells_wait && sleeps(one) && sleeps(inner)
}

#[test]
fn descendants_are_found_and_added_up() {
    let subject = family();
    let run = strandline::run(&["explain", "--tree", "--json", &subject.pid_text()]).unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    let document = run.document().unwrap();
    assert_eq!(document["schema"], "strandline/explain-tree/1");
    let processes = document["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 4, "{document:#}");
    assert_eq!(processes[0]["target"]["pid"].to_string(), subject.pid_text());
    assert_eq!(processes[0]["depth"], 0);
    assert_eq!(processes.iter().filter(|process| process["depth"] == 2).count(), 1);
    let sum = |field: &str| -> u64 {
        processes.iter().map(|process| process["kernel"][field].as_u64().unwrap()).sum()
    };
    assert_eq!(document["total_pss_bytes"], sum("pss_bytes"));
    assert_eq!(document["total_rss_bytes"], sum("rss_bytes"));
    assert!(sum("pss_bytes") < sum("rss_bytes"), "they share libc");
    let states = |totals: &serde_json::Value| -> u64 {
        totals.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
    };
    assert_eq!(states(&document["totals"]), sum("pss_bytes"), "states are parts of what the tree holds");
    for process in processes {
        assert_eq!(states(&process["proportional"]), process["kernel"]["pss_bytes"].as_u64().unwrap());
        assert_eq!(states(&process["totals"]), process["kernel"]["rss_bytes"].as_u64().unwrap());
    }
    // File pages that four processes share cannot be evicted four times.
    let evictable = document["totals"]["evictable"].as_u64().unwrap();
    assert!(evictable * 2 < processes.iter().map(|one| one["totals"]["evictable"].as_u64().unwrap()).sum());
    let conditions = format!("evictable > {}", evictable * 2);
    let run = strandline::run(&["explain", "--tree", "--fail-if", &conditions, &subject.pid_text()]).unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    subject.finish().unwrap();
}

#[test]
fn the_tree_has_a_line_for_each_process_and_the_sum() {
    let subject = family();
    let run =
        strandline::run(&["explain", "--tree", "--fail-if", "pss > 1KiB", &subject.pid_text()]).unwrap();
    assert_eq!(run.status, Some(1), "{run:?}");
    assert!(run.stdout.starts_with("4 processes hold "), "{}", run.stdout);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80), "{}", run.stdout);
    subject.finish().unwrap();
    strandline::run(&["explain", "--tree", "2147483647"]).unwrap().complains(3, &["2147483647"]).unwrap();
}

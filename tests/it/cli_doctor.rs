//! `doctor`: every check has an answer.

#![cfg(test)]

use crate::support::strandline;

#[test]
fn every_check_has_an_answer() {
    let run = strandline::run(&["doctor", "--json"]).unwrap();
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    let document = run.document().unwrap();
    assert_eq!(document["schema"], "strandline/doctor/1");
    let checks = document["checks"].as_array().unwrap();
    for id in [
        "kernel",
        "pagemap_scan",
        "ptrace",
        "ptrace_scope",
        "process_vm_readv",
        "process_events",
        "memory_limit",
        "cgroup",
        "swap",
        "gdb",
    ] {
        let check = checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no check {id}"));
        assert!(["ok", "limited", "missing"].contains(&check["status"].as_str().unwrap()));
        assert!(!check["found"].as_str().unwrap().is_empty());
        assert_eq!(check["fix"].is_null(), check["status"] == "ok", "{check}");
    }
    let view = strandline::run(&["doctor"]).unwrap();
    assert_eq!(view.status, Some(0));
    assert!(view.stdout.lines().all(|line| line.chars().count() <= 80), "{}", view.stdout);
}

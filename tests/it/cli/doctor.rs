//! `doctor`: every check has an answer.

#![cfg(test)]

use crate::support::strandline;

#[test]
fn readers_are_listed_with_their_rows() {
    let document = strandline::run(&["doctor", "--readers", "--json"]).unwrap().document().unwrap();
    assert_eq!(document["schema"], "strandline/doctor/1");
    let readers = document["readers"].as_array().unwrap();
    let of = |name: &str| readers.iter().find(|reader| reader["name"] == name).unwrap();
    assert_eq!((&of("glibc")["read"], &of("glibc")["kind"]), (&true.into(), &"allocator".into()));
    assert!(of("glibc")["rows"].as_array().unwrap().contains(&"glibc.free.trim".into()));
    assert!(of("perl")["remedies"].as_array().unwrap().contains(&"perl_undef".into()));
    assert_eq!(
        (&of("cpython")["kind"], &of("cpython")["told_by"][0]),
        (&"runtime".into(), &"file libpython*.so*".into())
    );
    let view = strandline::run(&["doctor", "--readers"]).unwrap();
    assert_eq!((view.status, view.stderr.as_str()), (Some(0), ""));
    assert!(view.stdout.contains("named only") && view.stdout.contains("SBCL (sbcl)"), "{}", view.stdout);
    assert!(view.stdout.lines().all(|line| line.chars().count() <= 80), "{}", view.stdout);
}

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
        "rights",
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
    // Only the command with setcap may exceed 80 columns: doctor does not wrap commands.
    let fits = |line: &str| line.chars().count() <= 80 || line.contains("&& setcap ");
    assert!(view.stdout.lines().all(fits), "{}", view.stdout);
}

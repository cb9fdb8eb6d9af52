//! Help, mistakes, manual pages and completions.

#![cfg(test)]

use crate::support::{Folder, strandline};

const VERBS: [&str; 16] = [
    "explain",
    "reclaim",
    "run",
    "record",
    "mark",
    "report",
    "compare",
    "try",
    "squeeze",
    "study",
    "export",
    "top",
    "demo",
    "doctor",
    "completions",
    "man",
];

#[test]
fn every_verb_has_help_with_examples() {
    let all = strandline::run(&["--help"]).unwrap();
    assert_eq!((all.status, all.stderr.as_str()), (Some(0), ""));
    for verb in VERBS {
        assert!(all.stdout.contains(verb), "{verb} is not in --help");
        let help = strandline::run(&[verb, "--help"]).unwrap();
        assert_eq!(help.status, Some(0), "{verb}");
        assert!(help.stdout.contains("Examples:\n  strandline"), "{verb}");
    }
    assert!(!all.stdout.contains("demo-child") && !all.stdout.contains("lab-launcher"), "hidden");
    assert!(strandline::run(&["--version"]).unwrap().stdout.starts_with("strandline "));
}

#[test]
fn without_a_verb_help_is_a_usage_error() {
    let run = strandline::run(&[]).unwrap();
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("strandline explain PID"));
}

#[test]
fn mistakes_are_one_line_and_status_2() {
    for (arguments, what) in [
        (&["explain"][..], "<PID>"),
        (&["explain", "abc"], "a process id is a whole number"),
        (&["explain", "-5"], "-5"),
        (&["explain", "0"], "a process id is a whole number"),
        (&["explain", "/proc/self/exe"], "core files cannot be read yet"),
        (&["explain", "--rows", "some", "1"], "use `all` or a number"),
        (&["explain", "--fail-if", "stranded = 5", "1"], "a single = compares nothing"),
        (&["explain", "--fail-if", "row.glib.live > 5", "1"], "no row is called 'glib.live'"),
        (&["explain", "--fail-if", "rss > 5 parsecs", "1"], "'parsecs' is not a unit"),
        (&["explian", "1"], "explain"),
        (&["reclaim", "--remedy", "magic", "1"], "malloc_trim"),
        (&["reclaim", "--wait", "-1", "1"], "-1"),
        (&["reclaim", "--wait", "never", "1"], "number of seconds"),
        (&["demo", "--mebibytes", "0"], "1..=4096"),
        (&["compare", "--repeat", "0", "true", "true"], "--repeat"),
        (&["compare", "--case", "x", "true", "true"], "use NAME=WORDS"),
        (&["compare", "--until", "0", "true", "true"], "percentage"),
        (&["compare", "--record", "true", "true"], "--dir"),
        (&["try", "--ready", "80", "--", "true"], "port="),
        (&["squeeze", "--kind", "swap", "--", "true"], "address_space"),
        (&["top", "--sort", "size"], "growth"),
        (&["top", "--tree", "--groups"], "--groups"),
        (&["export"], "--all"),
        (&["export", "--all", "--listen", "0.0.0.0:0"], "--allow-remote"),
        (&["export", "--all", "--listen", "9100"], "127.0.0.1:9756"),
        (&["export", "--all", "--stop-budget", "20ms"], "20ms/min"),
        (&["export", "--all", "--cpu-budget", "0"], "1%"),
        (&["--color", "sometimes", "doctor"], "always"),
        (&["completions", "cmd.exe"], "bash"),
        (&["completions", "--json", "bash"], "leave it out"),
        (&["reclaim", "--allow-lost-write-risk", "1"], "--remedy zero_pages"),
    ] {
        let run = strandline::run(arguments).unwrap();
        run.complains(2, &[what]).unwrap();
        assert_eq!(run.stdout, "", "{arguments:?}");
    }
}

#[test]
fn manual_pages_are_written_for_every_verb() {
    let folder = Folder::new("man").unwrap();
    let inner = folder.0.join("man1");
    let run = strandline::run(&["man", inner.to_str().unwrap()]).unwrap();
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    for verb in VERBS {
        let page = std::fs::read_to_string(inner.join(format!("strandline-{verb}.1"))).unwrap();
        assert!(page.contains(".TH"), "{verb}");
    }
    let main = std::fs::read_to_string(inner.join("strandline.1")).unwrap();
    assert!(main.contains("Exit status"));
    strandline::run(&["man", "/proc/self/nowhere"]).unwrap().complains(3, &["/proc/self/nowhere"]).unwrap();
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let run = strandline::run(&["completions", shell]).unwrap();
        assert_eq!(run.status, Some(0));
        assert!(run.stdout.contains("reclaim") && run.stdout.contains("fail-if"), "{shell}");
    }
}

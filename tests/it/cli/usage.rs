//! Help, usage errors, manual pages and completions.

#![cfg(test)]

use crate::support::{Folder, Outcome, Subject, strandline};

const VERBS: [&str; 17] = [
    "explain",
    "reclaim",
    "holders",
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
fn without_a_verb_three_commands_to_start_with_are_shown() {
    let run = strandline::run(&[]).unwrap();
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""));
    let commands = run.stderr.lines().filter(|line| line.starts_with("  strandline "));
    assert_eq!((commands.count(), run.stderr.lines().count()), (3, 5), "{}", run.stderr);
    assert!(run.stderr.contains("strandline explain PID"));
}

#[test]
fn wrong_arguments_are_usage_errors() -> Outcome {
    for verb in ["export", "top"] {
        strandline::run(&[verb, "--name", "("])?
            .complains(2, &["--name", &format!("strandline {verb} --help")])?;
    }
    let run = strandline::run(&["--json"])?;
    run.complains(2, &["explain", "strandline --help"])?;
    let hidden = ["demo-child", "lab-launcher", "lab-round", "reference"];
    match hidden.iter().find(|verb| run.stderr.contains(**verb)) {
        Some(verb) => Err(format!("{verb} is hidden: {}", run.stderr).into()),
        None => Ok(()),
    }
}

#[test]
fn a_process_id_without_a_subcommand_is_explained() -> Outcome {
    let subject = Subject::idle()?;
    let document = strandline::json(&["--json", &subject.pid_text()])?;
    assert_eq!(document["schema"], "strandline/explain/1");
    assert_eq!(document["target"]["pid"], subject.pid());
    strandline::run(&["4194305"])?.complains(3, &["no process 4194305"])
}

#[test]
fn a_cluster_without_a_folder_is_a_usage_error() -> Outcome {
    for verb in [&["compare", "true", "true"][..], &["try", "--", "true"], &["study", "x"]] {
        let words = [&verb[..1], &["--on", "slurm"], &verb[1..]].concat();
        strandline::run(&words)?.complains(2, &["--dir ~/strandline-lab"])?;
    }
    Ok(())
}

/// Options at the beginning of lines of a help text.
fn options(help: &str) -> Vec<&str> {
    let starts = help.lines().map(str::trim_start).filter_map(|line| match line.split_once(", --") {
        Some((short, _)) if short.len() == 2 => line.get(4..),
        _ => line.starts_with("--").then_some(line),
    });
    let ends = |c: char| !c.is_ascii_lowercase() && c != '-';
    starts.map(|line| &line[..line.find(ends).unwrap_or(line.len())]).collect()
}

#[test]
fn the_reference_is_up_to_date() -> Outcome {
    let kept = include_str!("../../../docs/cli.md");
    let made = strandline::run(&["reference"])?.stdout;
    assert!(made == kept, "write docs/cli.md anew: `strandline reference > docs/cli.md`");
    // The generator must not omit a verb or an option.
    for verb in VERBS {
        let section = kept.split("\n## ").find(|section| section.starts_with(&format!("{verb}\n")));
        let section = section.ok_or_else(|| format!("docs/cli.md has no section {verb}"))?;
        let help = strandline::run(&[verb, "--help"])?.stdout;
        let options = options(&help);
        assert!(options.contains(&"--json"), "{verb}: {options:?}");
        for option in options.into_iter().filter(|option| !["--json", "--color", "--help"].contains(option)) {
            let found = ["`", "["].iter().any(|end| section.contains(&format!("{option}{end}")));
            assert!(
                found || section.contains(&format!("{option} ")),
                "{verb}: {option} is not in docs/cli.md"
            );
        }
    }
    Ok(())
}

#[test]
fn usage_errors_are_one_line_and_status_2() {
    for (arguments, what) in [
        (&["explain"][..], "strandline explain needs the id of a process"),
        (&["explain", "abc"], "a process id is a whole number"),
        (&["explain", "-5"], "-5"),
        (&["explain", "1", "2"], "takes one PID"),
        (&["1", "2"], "strandline explain takes one PID"),
        (&["explain", "0"], "a process id is a whole number"),
        (&["explain", "/proc/self/exe"], "core files, are not read"),
        (&["explain", "--rows", "some", "1"], "use `all` or a number"),
        (&["explain", "--tree", "--rows", "all", "1"], "'--tree' cannot be used with '--rows"),
        (&["explain", "--fail-if", "stranded = 5", "1"], "a single = compares nothing"),
        (&["explain", "--fail-if", "row.glib.live > 5", "1"], "no row is called 'glib.live'"),
        (&["explain", "--fail-if", "rss > 5 parsecs", "1"], "'parsecs' is not a unit"),
        (&["explian", "1"], "explain"),
        (&["reclaim", "--remedy", "magic", "1"], "malloc_trim"),
        (&["reclaim", "--wait", "-1", "1"], "-1"),
        (&["reclaim", "--wait", "never", "1"], "is not a time"),
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
        assert!(page.contains(&format!("\"strandline {}\"", env!("CARGO_PKG_VERSION"))), "{verb}: {page}");
        assert!(
            page.contains(".SH EXAMPLES\n.nf\n  strandline") && !page.contains("EXTRA"),
            "{verb}: {page}"
        );
        check_no_fill(&page).unwrap();
    }
    let main = std::fs::read_to_string(inner.join("strandline.1")).unwrap();
    for section in
        [".SH \"EXIT STATUS\"\n0 done", ".SH EXAMPLES\n.nf\n  strandline demo", "strandline/GUIDE.md\n"]
    {
        assert!(main.contains(section), "{section} is not in {main}");
    }
    check_no_fill(&main).unwrap();
    strandline::run(&["man", "/proc/self/nowhere"]).unwrap().complains(3, &["/proc/self/nowhere"]).unwrap();
}

/// Checks that a manual page has its indented lines, and only these, between `.nf` and `.fi`.
fn check_no_fill(page: &str) -> Outcome {
    let mut is_filled = true;
    for line in page.lines() {
        match line {
            ".nf" | ".fi" if is_filled == (line == ".nf") => is_filled = !is_filled,
            _ if line.starts_with(' ') != is_filled => {}
            _ => return Err(format!("{line:?} in {page}").into()),
        }
    }
    if is_filled { Ok(()) } else { Err(format!("no .fi in {page}").into()) }
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let run = strandline::run(&["completions", shell]).unwrap();
        assert_eq!(run.status, Some(0));
        assert!(run.stdout.contains("reclaim") && run.stdout.contains("fail-if"), "{shell}");
        for hidden in ["reference", "demo-child", "lab-launcher", "lab-round"] {
            // Help texts contain the word `reference`; bash's script has no help texts.
            let offer = match shell {
                "zsh" => format!("'{hidden}:"),
                "fish" => format!("-a \"{hidden}\""),
                _ => hidden.to_owned(),
            };
            assert!(!run.stdout.contains(&offer), "{shell}: {hidden}");
        }
    }
}

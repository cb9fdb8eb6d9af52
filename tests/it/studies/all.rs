//! `study --all`, and the files that a study writes besides its output: the single page, plots, its
//! README.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::browser::browser;
use crate::support::lab::Lab;
use crate::support::recording::{Ended, Started, finish, list, signal, until};
use crate::support::{Outcome, Result, here, strandline};

/// A lab with studies in a folder that `STRANDLINE_STUDIES` names. The studies of strandline, which
/// take minutes, are hidden by empty studies of the same names.
struct Place {
    lab: Lab,
    /// Number of studies that hide others.
    hidden: u64,
}

impl Place {
    fn new(studies: &[(&str, &str)]) -> Result<Self> {
        let lab = Lab::new()?;
        let listed = lab.document(&["study"])?;
        let nothing =
            "title = \"Nothing\"\n[settings]\nrepeats = 1\n[[subject]]\nname = \"a\"\ncommand = \"true\"\n";
        let mut hidden = 0;
        for known in list(&listed, "studies") {
            let name = known["name"].as_str().ok_or("a study without a name")?;
            put(&lab.folder.0.join("own").join(name), nothing)?;
            hidden += 1;
        }
        for (name, text) in studies {
            put(&lab.folder.0.join("own").join(name), text)?;
        }
        Ok(Self { lab, hidden })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(&[&["study"], arguments].concat());
        command.env("STRANDLINE_STUDIES", self.lab.folder.0.join("own"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Returns exit status and document, whatever the status.
    fn document(&self, arguments: &[&str]) -> Result<(i32, Value)> {
        let ended = self.run(&[&["--json"], arguments].concat())?;
        let document = serde_json::from_slice(&ended.stdout);
        Ok((ended.how(), document.map_err(|error| format!("{error}: {}", ended.complaint()))?))
    }
}

fn put(folder: &Path, text: &str) -> Outcome {
    fs::create_dir_all(folder)?;
    Ok(fs::write(folder.join("study.toml"), text)?)
}

/// A study whose claims hold, with an axis, a table and two plots of the same title.
const GOOD: &str = r#"
title = "What is kept"
about = "It keeps what it is given."
[provenance]
author = "Somebody <b>"
[settings]
repeats = 2
[axes]
size = [100, 200]
[[subject]]
name = "keeps"
command = ["echo", '{"kept": {size}}']
[measure]
json = ["kept"]
[[claim]]
id = "keeps"
text = "it keeps what it is given"
holds = 'values("size").all(s, near(median("kept", {"size": s}), s, 0))'
published = 100
[[table]]
title = "Kept, by size"
rows = "size"
columns = ["kept"]
[[plot]]
title = "Kept [of both]"
x = "size"
y = "kept"
[[plot]]
title = "Kept [of both]"
x = "size"
y = "kept"
kind = "bars"
"#;
/// A study with one claim that fails, and one that cannot be judged.
const WRONG: &str = r#"
title = "What is lost"
[settings]
repeats = 2
[[subject]]
name = "keeps"
command = ["echo", '{"kept": 7}']
[[subject]]
name = "missing"
command = "no-such-tool-here"
needs = [{ tool = "no-such-tool-here", install = "apt install no-such-package" }]
[measure]
json = ["kept"]
[[claim]]
id = "nothing"
text = "it keeps nothing"
holds = 'median("kept", {"subject": "keeps"}) < 1'
note = "it keeps seven"
[[claim]]
id = "missing"
text = "the other keeps nothing"
holds = 'median("kept", {"subject": "missing"}) < 1'
"#;
const BROKEN: &str = "title = 3\n";

fn study<'d>(document: &'d Value, name: &str) -> &'d Value {
    list(document, "studies").iter().find(|study| study["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn all_studies_run_despite_a_broken_one() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG), ("broken", BROKEN)])?;
    let (status, document) = place.document(&["--all"])?;
    assert_eq!((status, &document["schema"]), (3, &Value::from("strandline/studies-run/1")));
    let totals = &document["totals"];
    let counts = ["studies", "could_not_be_run", "claims", "holds", "fails", "not_run"]
        .map(|name| totals[name].as_u64().unwrap_or(99));
    assert_eq!(counts, [place.hidden + 3, 1, 3, 1, 1, 1], "{totals}");
    assert!(
        study(&document, "broken")["could_not_be_run"]
            .as_str()
            .is_some_and(|why| why.contains("study.toml:1"))
    );
    assert_eq!(study(&document, "good")["claims"][0]["verdict"], "holds");
    assert_eq!(study(&document, "good")["title"], "What is kept");
    let claim = &study(&document, "wrong")["claims"][1];
    assert!(
        claim["reason"].as_str().is_some_and(|why| why.contains("apt install no-such-package")),
        "{claim}"
    );

    let shown = place.run(&["--all"])?;
    assert_eq!(shown.how(), 3);
    let text = shown.text().split_whitespace().collect::<Vec<_>>().join(" ");
    let totals = format!(
        "{} studies, 3 claims: 1 holds, 1 fails, 1 not run; 1 study could not be run",
        place.hidden + 3
    );
    assert!(text.ends_with(&totals), "{text}");
    for words in ["study good: What is kept", "nothing fails", "It could not be run."] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(shown.complaint().contains("study broken: "), "{}", shown.complaint());
    Ok(())
}

#[test]
fn the_exit_status_shows_whether_a_claim_fails() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG)])?;
    assert_eq!(place.run(&["--all"])?.how(), 0);
    assert_eq!(place.run(&["--all", "--fail-if-claims-fail"])?.how(), 1);
    put(&place.lab.folder.0.join("own/wrong"), GOOD)?;
    assert_eq!(place.run(&["--all", "--fail-if-claims-fail"])?.how(), 0);
    // Options that are duplicated or have nothing to act on are refused.
    for words in [&["--all", "good"][..], &["--report"], &["--plots", "p"], &["--readme"]] {
        let ended = place.run(words)?;
        assert_eq!(ended.how(), 2, "{words:?}: {}", ended.complaint());
    }
    Ok(())
}

#[test]
fn an_axis_option_applies_to_studies_with_that_axis() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG)])?;
    let words = ["--all", "--axis", "size=300", "--axis", "subject=keeps", "--repeat", "1", "--dir", "kept"];
    let (status, document) = place.document(&words)?;
    assert_eq!(status, 0);
    let axes = |name: &str| -> Vec<String> {
        list(study(&document, name), "cells").iter().map(|cell| cell["axes"].to_string()).collect()
    };
    assert_eq!(axes("good"), [r#"{"size":"300"}"#]);
    assert_eq!(axes("wrong").len(), 1, "{:?}", axes("wrong"));
    for name in ["good", "wrong"] {
        assert!(place.lab.folder.0.join("kept").join(name).join("journal.jsonl").is_file(), "{name}");
    }
    for wrong in ["colour=red", "subject=unknown"] {
        let ended = place.run(&["--all", "--axis", wrong])?;
        assert_eq!(ended.how(), 3);
        assert!(ended.complaint().contains("no study has that"), "{}", ended.complaint());
    }
    Ok(())
}

#[test]
fn a_relative_folder_can_hold_recordings() -> Outcome {
    let text = "title = \"Recorded\"\n[settings]\nrepeats = 1\n[[subject]]\nname = \"a\"\n\
                command = \"sleep 0.05\"\n[measure]\nrows = [\"rss\"]\nat = [\"exit\"]\n";
    let place = Place::new(&[("recorded", text)])?;
    let (status, document) = place.document(&["recorded", "--dir", "kept"])?;
    assert_eq!((status, &document["cells"][0]["not_run"]), (0, &Value::Null), "{}", document["cells"]);
    assert!(place.lab.folder.0.join("kept/journal.jsonl").is_file());
    Ok(())
}

/// A study of 20 runs that each append a line to a file. Runs of the second study wait, from the
/// fourth on, for the file `runs.go`, so that the study does not end before it is interrupted.
fn counting(name: &str) -> String {
    let wait = "test $(grep -c second $RUNS) -lt 4 || until test -e $RUNS.go; do sleep 0.01; done";
    format!(
        "title = \"Counts\"\n[settings]\nrepeats = 20\n[[subject]]\nname = \"counts\"\n\
         command = \"sh -c 'echo {name} >> $RUNS; {wait}'\"\n"
    )
}

#[test]
fn an_interrupted_study_resumes() -> Outcome {
    let (first, second) = (counting("first"), counting("second"));
    for number in [2, 15] {
        let place = Place::new(&[("a-first", &first), ("b-second", &second)])?;
        let command = || {
            let mut command = place.command(&["--all", "--json"]);
            command.env("RUNS", place.lab.folder.0.join("runs"));
            command
        };
        let count = |name: &str| place.lab.text("runs").lines().filter(|line| *line == name).count();
        let mut started = Started::new(command())?;
        until("runs of the second", || Ok((count("second") >= 4).then_some(())))?;
        signal(started.pid(), number);
        let status = until("the end of strandline", || Ok(started.child.try_wait()?))?;
        assert_eq!(status.signal(), Some(number));
        assert!(count("second") < 20, "it was over before");
        std::fs::write(place.lab.folder.0.join("runs.go"), "")?;
        let ended = finish(command(), b"")?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        assert_eq!(count("first"), 20, "what was done is not done again");
        assert!((20..=21).contains(&count("second")), "{}", count("second"));
        let document: Value = serde_json::from_slice(&ended.stdout)?;
        assert_eq!(
            study(&document, "a-first")["cells"][0]["metrics"]["wall_seconds"]["samples"]
                .as_array()
                .map(Vec::len),
            Some(20)
        );
        // The study is complete now: the next run begins anew.
        assert_eq!(finish(command(), b"")?.how(), 0);
        assert_eq!(count("first"), 40);
    }
    Ok(())
}

/// All texts between `begin` and the next quotation mark.
fn all_after<'t>(text: &'t str, begin: &str) -> BTreeSet<&'t str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn the_report_is_one_self_contained_page() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG), ("broken", BROKEN)])?;
    let ended = place.run(&["--all", "--report"])?;
    assert_eq!(ended.how(), 3, "{}", ended.complaint());
    let page = place.lab.text("strandline-studies.html");
    for words in [
        "Somebody &lt;b&gt;",
        "It keeps what it is given.",
        "it keeps seven",
        "Kept, by size",
        "could not be run",
        "<svg ",
    ] {
        assert!(page.contains(words), "{words}");
    }
    for outside in [" src=", "href=\"http", "url(", "@import", " style=", "<script", "<link rel=\"style"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("Measured on</h2>").count(), 1);
    let ids = all_after(&page, " id=\"");
    for link in all_after(&page, "href=\"#") {
        assert!(ids.contains(link), "#{link} leads nowhere");
    }
    for id in [
        "good",
        "good-claims",
        "good-claim-keeps",
        "good-table-kept-by-size",
        "good-plot-kept-of-both-2",
        "wrong",
    ] {
        assert!(ids.contains(id), "{id}: {ids:?}");
    }
    // For one study, at the given path.
    assert_eq!(place.run(&["good", "--report=one.html"])?.how(), 0);
    assert!(place.lab.text("one.html").contains("id=\"good-claims\""));
    let Some(program) = browser(here!()) else { return Ok(()) };
    let file = place.lab.path("strandline-studies.html");
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/book.py"))
        .arg(program)
        .arg(file);
    if let Some(folder) = std::env::var_os("STRANDLINE_PICTURES") {
        command.arg(folder);
    }
    let run = strandline::run_command(command)?;
    assert_eq!(run.status, Some(0), "{}{}", run.stdout, run.stderr);
    Ok(())
}

#[test]
fn a_report_overwrites_only_reports() -> Outcome {
    let place = Place::new(&[("good", GOOD)])?;
    fs::write(place.lab.path("mine.html"), "<!doctype html><p>mine")?;
    fs::create_dir(place.lab.path("folder"))?;
    for file in ["mine.html", "folder", "no/such/folder.html"] {
        let ended = place.run(&["good", "--dir", "lab", "--report", file])?;
        assert_eq!(ended.how(), 3, "{file}");
        assert!(ended.complaint().contains(file), "{}", ended.complaint());
        assert!(!place.lab.folder.0.join("lab").exists(), "it is refused before anything is run");
    }
    assert_eq!(place.lab.text("mine.html"), "<!doctype html><p>mine");
    for _ in 0..2 {
        assert_eq!(place.run(&["good", "--report", "again.html"])?.how(), 0);
    }
    // A page of another verb is not a report, nor is the ordinary page of a study.
    assert_eq!(place.run(&["good", "--format", "html", "-o", "plain.html"])?.how(), 0);
    assert_eq!(place.run(&["good", "--report", "plain.html"])?.how(), 3);
    Ok(())
}

#[test]
fn plots_are_files_that_markdown_refers_to() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG)])?;
    fs::create_dir(place.lab.path("text"))?;
    let words = ["good", "--plots", "my plots", "--format", "markdown", "-o", "text/good.md"];
    assert_eq!(place.run(&words)?.how(), 0);
    let text = place.lab.text("text/good.md");
    for name in ["good-kept-of-both.svg", "good-kept-of-both-2.svg"] {
        assert!(text.contains(&format!("![Kept (of both)](../my%20plots/{name})")), "{text}");
        let picture = fs::read_to_string(place.lab.folder.0.join("my plots").join(name))?;
        assert!(picture.starts_with("<svg xmlns=") && picture.trim_end().ends_with("</svg>"), "{picture}");
    }
    let shown = place.run(&["--all", "--plots", "p", "--format", "markdown"])?.text();
    assert!(shown.contains("](p/good-kept-of-both.svg)"), "{shown}");
    for words in ["# studies", "## study good: What is kept", "### Claims", "Measured on:"] {
        assert!(shown.contains(&format!("\n{words}")) || shown.starts_with(words), "{words}: {shown}");
    }
    Ok(())
}

#[test]
fn results_are_written_between_the_markers_of_a_readme() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG)])?;
    let readme = place.lab.folder.0.join("own/good/README.md");
    fs::write(&readme, "# Kept\n\n<!-- results -->\noutdated\n<!-- end of results -->\n\nThe end.\n")?;
    let words = ["--all", "--readme", "--dir", "kept"];
    let ended = place.run(&words)?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(ended.complaint().contains("own/wrong/README.md"), "{}", ended.complaint());
    let text = fs::read_to_string(&readme)?;
    for words in [
        "**1 of 1 claim holds",
        "Kept, by size",
        "](plots/good-kept-of-both.svg)",
        "\n\nThe end.\n",
        "# Kept\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("outdated") && text.matches("![").count() == 1, "{text}");
    let pictures = fs::read_dir(place.lab.folder.0.join("own/good/plots"))?.count();
    assert_eq!(pictures, 1);
    // Written again, parts that were not measured anew stay the same, and a study with results
    // keeps its identity.
    assert_eq!(place.run(&words)?.how(), 0);
    assert_eq!(fs::read_to_string(&readme)?, text);
    Ok(())
}

#[test]
fn the_list_shows_the_size_of_studies() -> Outcome {
    let place = Place::new(&[("good", GOOD), ("wrong", WRONG), ("broken", BROKEN)])?;
    let (_, document) = place.document(&[])?;
    let good = study(&document, "good");
    assert_eq!(
        (good["cells"].as_u64(), good["claims"].as_u64(), &good["ready"]),
        (Some(2), Some(1), &Value::from(true))
    );
    assert_eq!(study(&document, "broken")["claims"], Value::Null);
    let text = place.run(&[])?.text();
    let line = text.lines().find(|line| line.starts_with("good ")).unwrap_or_default();
    assert!(line.contains("What is kept") && line.trim_end().ends_with("met"), "{text}");
    assert!(text.contains("wrong: no-such-tool-here is not here (apt install no-such-package)"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    Ok(())
}

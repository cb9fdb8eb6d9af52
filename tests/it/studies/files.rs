//! Files that a study writes and keeps, the choice among several studies of one name, and the point
//! at which a run resumes.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use serde_json::Value;

use crate::support::lab::Lab;
use crate::support::recording::{finish, list};
use crate::support::{Outcome, Result, write_script};

/// A short study with a plot, and a claim that always fails.
const SMALL: &str = r#"
title = "Small"
[settings]
repeats = 1
[axes]
size = [1, 2]
[[subject]]
name = "keeps"
command = ["echo", '{"kept": {size}}']
[measure]
json = ["kept"]
[[claim]]
id = "none"
text = "it keeps nothing"
holds = 'values("size").all(s, median("kept", {"size": s}) < 1)'
note = "it keeps what it is given"
[[plot]]
title = "Kept"
x = "size"
y = "kept"
"#;

fn put(lab: &Lab, folder: &str, text: &str) -> Outcome {
    let folder = lab.folder.0.join(folder);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join("study.toml"), text)?)
}

/// Hides the studies of strandline, which take minutes, by empty studies of the same names.
fn hide(lab: &Lab) -> Outcome {
    let nothing =
        "title = \"Nothing\"\n[settings]\nrepeats = 1\n[[subject]]\nname = \"a\"\ncommand = \"true\"\n";
    for known in list(&lab.document(&["study"])?, "studies") {
        put(lab, &format!("studies/{}", known["name"].as_str().unwrap_or_default()), nothing)?;
    }
    Ok(())
}

fn small() -> Result<Lab> {
    let lab = Lab::new()?;
    put(&lab, "studies/small", SMALL)?;
    Ok(lab)
}

#[test]
fn a_readme_keeps_its_mode_and_link_and_narrowed_runs_do_not_write_it() -> Outcome {
    let lab = small()?;
    let place = "# Small\n<!-- results -->\n<!-- end of results -->\n";
    fs::write(lab.path("elsewhere.md"), place)?;
    fs::set_permissions(lab.path("elsewhere.md"), fs::Permissions::from_mode(0o640))?;
    let readme = lab.folder.0.join("studies/small/README.md");
    symlink(lab.path("elsewhere.md"), &readme)?;
    for words in [["--repeat", "1"], ["--axis", "size=1"]] {
        let ended = lab.run(&[&["study", "small", "--readme", "--dir", "lab"], &words[..]].concat())?;
        assert_eq!(ended.how(), 3, "{words:?}");
        assert!(!lab.folder.0.join("lab").exists(), "{words:?} is refused before any run");
    }
    assert_eq!(lab.text("elsewhere.md"), place);
    assert_eq!(lab.run(&["study", "small", "--readme"])?.how(), 0);
    let text = lab.text("elsewhere.md");
    for words in
        ["**0 of 1 claim holds, 1 fails", "none: it keeps nothing", "- **none** (fails): it keeps what it is"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("contradict it"), "{text}");
    assert!(fs::symlink_metadata(&readme)?.is_symlink());
    assert_eq!(fs::metadata(&readme)?.permissions().mode() & 0o777, 0o640);
    Ok(())
}

#[test]
fn a_report_shows_whether_the_run_was_narrowed() -> Outcome {
    let lab = small()?;
    for (words, form) in
        [(&[][..], "full"), (&["--axis", "size=1"], "narrowed"), (&["--repeat", "2"], "narrowed")]
    {
        assert_eq!(lab.run(&[&["study", "small", "--report=r.html"], words].concat())?.how(), 0);
        let page = lab.text("r.html");
        assert!(page.contains(&format!("<dt>form of the studies</dt><dd>{form}")), "{form}");
    }
    let page = lab.text("r.html");
    for words in [
        "id=\"small-claim-none\"",
        "<p>it keeps nothing</p>",
        "<p class=\"remark\">it keeps what it is given",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    Ok(())
}

#[test]
fn a_plot_overwrites_only_plots_and_links() -> Outcome {
    let lab = small()?;
    fs::create_dir(lab.path("p"))?;
    let (mine, plot) = (lab.path("mine.svg"), lab.path("p/small-kept.svg"));
    fs::write(&mine, "<svg mine/>")?;
    fs::write(&plot, "<svg mine/>")?;
    // The result is shown anyway.
    let words = ["study", "small", "--plots", "p", "--report=r.html"];
    let ended = lab.run(&words)?;
    assert_eq!(ended.how(), 3);
    assert!(ended.complaint().contains("small-kept.svg"), "{}", ended.complaint());
    assert!(ended.text().contains("it keeps nothing"), "{}", ended.text());
    assert!(lab.text("r.html").contains("it keeps nothing"), "the rest is written");
    assert_eq!(lab.text("p/small-kept.svg"), "<svg mine/>");
    fs::remove_file(&plot)?;
    symlink(&mine, &plot)?;
    for _ in 0..2 {
        let ended = lab.run(&words)?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        assert!(fs::symlink_metadata(&plot)?.is_file());
        assert!(lab.text("p/small-kept.svg").contains("a plot by strandline"));
    }
    assert_eq!(lab.text("mine.svg"), "<svg mine/>");
    Ok(())
}

#[test]
fn an_unwritable_output_is_reported_before_any_run() -> Outcome {
    let lab = small()?;
    for file in ["no/such.md", "studies"] {
        let ended = lab.run(&["study", "small", "--dir", "lab", "-o", file])?;
        assert_eq!(ended.how(), 3, "{file}");
        assert!(
            ended.complaint().contains(file) && !lab.folder.0.join("lab").exists(),
            "{}",
            ended.complaint()
        );
    }
    Ok(())
}

#[test]
fn all_runs_the_listed_studies() -> Outcome {
    let lab = Lab::new()?;
    hide(&lab)?;
    put(&lab, "studies/small", SMALL)?;
    put(&lab, "small", "title = \"Another\"\n[[subject]]\nname = \"a\"\ncommand = \"true\"\n")?;
    put(&lab, "studies/x.toml", SMALL)?;
    let document = lab.document(&["study", "--all"])?;
    assert_eq!(document["totals"]["could_not_be_run"], 0, "{document}");
    for name in ["small", "x.toml"] {
        let one = list(&document, "studies").iter().find(|one| one["name"] == name).cloned();
        assert_eq!(one.unwrap_or_default()["title"], "Small", "{name}");
    }
    Ok(())
}

#[test]
fn all_runs_are_confirmed_together() -> Outcome {
    let lab = Lab::new()?;
    hide(&lab)?;
    for name in ["a", "b"] {
        let text =
            "title = \"Many\"\n[settings]\nrepeats = 6000\n[[subject]]\nname = \"a\"\ncommand = \"true\"\n";
        put(&lab, &format!("studies/{name}"), text)?;
    }
    let ended = lab.run(&["study", "--all"])?;
    assert_eq!(ended.how(), 3, "{}", ended.complaint());
    assert!(ended.complaint().contains("studies: that is 1"), "{}", ended.complaint());
    assert!(ended.complaint().contains("--yes"), "{}", ended.complaint());
    Ok(())
}

#[test]
fn a_lab_resumes_with_additional_runs() -> Outcome {
    let lab = Lab::new()?;
    let flag = lab.path("flag");
    put(
        &lab,
        "studies/needs",
        &format!(
            "title = \"Needs\"\n[settings]\nrepeats = 2\n[[subject]]\nname = \"one\"\n\
             command = [\"sh\", \"-c\", 'echo one >> \"$RUNS\"']\n[[subject]]\nname = \"other\"\n\
             command = [\"sh\", \"-c\", 'echo other >> \"$RUNS\"']\nneeds = [{{ file = \"{flag}\" }}]\n"
        ),
    )?;
    let run = || -> Result<Value> {
        let mut command = lab.command(&["--json", "study", "needs", "--dir", "lab"]);
        command.env("RUNS", lab.path("runs"));
        let ended = finish(command, b"")?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        Ok(serde_json::from_slice(&ended.stdout)?)
    };
    let missing = |document: &Value| -> usize {
        list(document, "cells").iter().filter(|cell| !cell["not_run"].is_null()).count()
    };
    assert_eq!(missing(&run()?), 1);
    fs::write(&flag, "")?;
    assert_eq!(missing(&run()?), 0);
    let count = |name: &str| lab.text("runs").lines().filter(|line| *line == name).count();
    assert_eq!((count("one"), count("other")), (2, 2), "what was run is not run again");
    fs::remove_file(&flag)?;
    assert_eq!(missing(&run()?), 1);
    Ok(())
}

#[test]
fn a_cache_behind_a_link_hides_no_study() -> Outcome {
    let lab = Lab::new()?;
    fs::create_dir(lab.path("real"))?;
    symlink(lab.path("real"), lab.path("cache"))?;
    let ended = lab.run(&["study", "freed-or-not", "--short", "--repeat", "1"])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(!ended.complaint().contains("is taken"), "{}", ended.complaint());
    Ok(())
}

#[test]
fn a_trial_of_the_script_keeps_the_results() -> Outcome {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/studies"))?;
    // The unchanged script, in a separate tree, with programs that only record their arguments.
    let lab = Lab::new()?;
    for folder in ["scripts", "bin", "target/release", "studies/one"] {
        fs::create_dir_all(lab.folder.0.join(folder))?;
    }
    let program = "#!/bin/sh\necho \"$*\" >> called\nwhile [ $# -gt 0 ]; do [ \"$1\" != -o ] || out=$2; shift; done\n\
                   echo '# studies' > \"$out\"\n";
    for (file, text) in [
        ("scripts/studies", script.as_str()),
        ("bin/cargo", "#!/bin/sh\n"),
        ("target/release/strandline", program),
    ] {
        write_script(lab.path(file), text)?;
    }
    fs::write(lab.path("studies/RESULTS.md"), "before\n")?;
    let run = |flags: &[&str]| -> Outcome {
        let mut command = Command::new(lab.path("scripts/studies"));
        let path = std::env::var("PATH")?;
        command.args(flags).current_dir(&lab.folder.0).env("PATH", format!("{}:{path}", lab.path("bin")));
        let ended = finish(command, b"")?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        Ok(())
    };
    run(&["--short"])?;
    run(&["--axis", "size=1"])?;
    assert_eq!(lab.text("studies/RESULTS.md"), "before\n");
    assert!(lab.text(".cache/studies-trial/RESULTS.md").contains("## studies"));
    assert!(!lab.text("called").contains("--readme"), "{}", lab.text("called"));
    run(&["--fresh"])?;
    assert!(lab.text("studies/RESULTS.md").contains("## studies"));
    assert!(lab.text("called").contains("--readme"), "{}", lab.text("called"));
    Ok(())
}

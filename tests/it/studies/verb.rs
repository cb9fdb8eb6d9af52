//! `study` from outside: finding, refusing, running and judging studies.

#![cfg(test)]

use std::fs;

use serde_json::Value;

use crate::support::lab::Lab;
use crate::support::recording::list;
use crate::support::{Outcome, Result};

/// Writes a study of `text` to the lab's folder.
fn study(lab: &Lab, name: &str, text: &str) -> Result<()> {
    let folder = lab.folder.0.join("studies").join(name);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join("study.toml"), text)?)
}

fn claim<'d>(document: &'d Value, id: &str) -> &'d Value {
    let found =
        document["claims"].as_array().and_then(|claims| claims.iter().find(|claim| claim["id"] == id));
    found.unwrap_or(&Value::Null)
}

const MIXED: &str = r#"
title = "Of all kinds"
[settings]
repeats = 3
[axes]
size = [100, 20000]
[[subject]]
name = "own"
command = "{build}/own {size}"
build = "cp {dir}/own.sh {build}/own"
[[subject]]
name = "failing"
command = "sh -c 'echo out of luck >&2; exit 4'"
axes = []
[[subject]]
name = "killed"
command = "sh -c 'kill -9 $$'"
may_fail = true
axes = []
[[subject]]
name = "missing"
command = "no-such-tool-here"
needs = [{ tool = "no-such-tool-here", install = "apt install no-such-package" }]
axes = []
[[subject]]
name = "unbuilt"
command = "{build}/none"
build = "sh -c 'echo cannot be built >&2; exit 1'"
axes = []
[measure]
json = ["kept"]
[[claim]]
id = "holds"
text = "it keeps what it is given"
holds = 'values("size").all(s, near(median("kept", {"size": s, "subject": "own"}), s, 0))'
[[claim]]
id = "fails"
text = "it keeps nothing"
holds = 'median("kept", {"subject": "own"}) < 1000'
published = 7
[[claim]]
id = "killed"
text = "it is killed"
holds = 'median("signal", {"subject": "killed"}) == 9'
[[claim]]
id = "missing"
text = "m"
holds = 'median("wall_seconds", {"subject": "missing"}) < 9'
[[claim]]
id = "failing"
text = "f"
holds = 'median("wall_seconds", {"subject": "failing"}) < 9'
[[claim]]
id = "unbuilt"
text = "u"
holds = 'median("wall_seconds", {"subject": "unbuilt"}) < 9'
[[table]]
title = "What is kept"
rows = "size"
columns = ["kept"]
where = { subject = "own" }
published = { 100 = { kept = 99 } }
"#;

fn mixed(lab: &Lab) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    study(lab, "mixed", MIXED)?;
    let script = lab.folder.0.join("studies/mixed/own.sh");
    fs::write(
        &script,
        "#!/bin/sh\necho run >> \"$COUNT\"\necho '{\"kept\": 1}'\necho \"{\\\"kept\\\": $1}\"\n",
    )?;
    Ok(fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?)
}

#[test]
fn claims_hold_fail_or_were_not_run_with_a_reason() -> Outcome {
    let lab = Lab::new()?;
    mixed(&lab)?;
    let count = lab.folder.0.join("count");
    let mut command = lab.command(&["study", "mixed", "--json", "--fail-if-claims-fail"]);
    let output = command.env("COUNT", &count).output()?;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(document["schema"], "strandline/study/1");
    assert_eq!(fs::read_to_string(&count)?.lines().count(), 6);
    let holds = claim(&document, "holds");
    assert_eq!((&holds["verdict"], &holds["reason"]), (&Value::from("holds"), &Value::Null));
    assert_eq!(holds["measured"][1]["value"], 20000.0);
    let fails = claim(&document, "fails");
    assert_eq!((fails["verdict"].as_str(), fails["published"].as_f64()), (Some("fails"), Some(7.0)));
    assert_eq!(fails["reason"], "not for 1 of 2: size=20000");
    assert_eq!(claim(&document, "killed")["verdict"], "holds");
    for (id, words) in [
        ("missing", "no-such-tool-here is not here (apt install no-such-package)"),
        ("failing", "exit status 4; its standard error ends with: out of luck"),
        ("unbuilt", "its standard error ends with: cannot be built"),
    ] {
        let claim = claim(&document, id);
        assert_eq!(claim["verdict"], "not_run", "{claim}");
        assert!(claim["reason"].as_str().is_some_and(|reason| reason.contains(words)), "{claim}");
    }
    let cells = list(&document, "cells");
    assert_eq!(cells.len(), 6);
    let own = cells.iter().find(|cell| cell["axes"]["size"] == "100").cloned().unwrap_or_default();
    assert_eq!(own["metrics"]["kept"]["samples"], serde_json::json!([100, 100, 100]));
    Ok(())
}

#[test]
fn an_axis_takes_other_values_and_the_table_shows_what_was_published() -> Outcome {
    let lab = Lab::new()?;
    mixed(&lab)?;
    let words = ["study", "mixed", "--axis", "size=100,7", "--axis", "subject=own", "--repeat", "1"];
    let output = lab.command(&words).env("COUNT", "/dev/null").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("2 cells, each run 1 time"), "{text}");
    let row = text.lines().find(|line| line.starts_with("100 ")).unwrap_or_default();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["100", "100", "99"], "{text}");
    assert!(text.lines().any(|line| line.starts_with("7 ")), "{text}");
    let wrong = lab.run(&["study", "mixed", "--axis", "sise=1"])?;
    assert_eq!(wrong.how(), 2);
    assert!(wrong.complaint().contains("no such axis; it has size and subject"), "{}", wrong.complaint());
    let wrong = lab.run(&["study", "mixed", "--axis", "subject=zzz"])?;
    assert_eq!(wrong.how(), 2, "{}", wrong.complaint());
    assert!(wrong.complaint().contains("no such subject; it has own"), "{}", wrong.complaint());
    Ok(())
}

#[test]
fn check_reports_every_error_with_its_line() -> Outcome {
    let lab = Lab::new()?;
    let claims = "[[claim]]\nid = \"a\"\ntext = \"a\"\nholds = '1 < 2'\n[[claim]]\nid = \"b\"\ntext = \"b\"\n\
                  holds = 'median(\"wall_seconds\", {\"size\": 1}) >= 0'\n";
    study(
        &lab,
        "bad",
        &format!(
            "title = \"x\"\ncolour = 1\n[[subject]]\nname = \"s\"\ncommand = \"true {{size}}\"\n{claims}"
        ),
    )?;
    let run = lab.run(&["study", "check", "bad"])?;
    assert_eq!(run.how(), 3);
    let complaint = run.complaint();
    let lines: Vec<&str> = complaint.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("strandline: studies/bad/study.toml:")), "{lines:#?}");
    assert!(lines.first().is_some_and(|line| line.contains(":2:1: study: there is no key `colour` here")));
    study(
        &lab,
        "worse",
        &format!(
            "title = \"x\"\n[axes]\nsize = [1]\n[[subject]]\nname = \"s\"\ncommand = \"true\"\n{claims}"
        ),
    )?;
    let run = lab.run(&["study", "check", "worse"])?;
    assert!(
        run.complaint().contains("study.toml:10:9: [[claim]] a: it reads nothing that is measured"),
        "{}",
        run.complaint()
    );
    assert!(
        run.complaint().contains("study.toml:14:9: [[claim]] b: it holds whatever is measured"),
        "{}",
        run.complaint()
    );
    Ok(())
}

#[test]
fn a_new_study_passes_its_check_and_runs() -> Outcome {
    let lab = Lab::new()?;
    assert_eq!(lab.run(&["study", "new", "mine"])?.how(), 0);
    assert_eq!(lab.run(&["study", "check", "mine"])?.how(), 0);
    let document = lab.document(&["study", "mine", "--short"])?;
    assert_eq!(claim(&document, "grows-in-step")["verdict"], "holds");
    let again = lab.run(&["study", "new", "mine"])?;
    assert!(again.how() == 3 && again.complaint().contains("already exists"), "{}", again.complaint());
    Ok(())
}

#[test]
fn a_bundled_study_runs_in_any_folder() -> Outcome {
    let lab = Lab::new()?;
    let document = lab.document(&["study", "freed-or-not", "--repeat", "2"])?;
    for id in ["large-blocks-go", "small-blocks-stay"] {
        assert_eq!(claim(&document, id)["verdict"], "holds", "{}", claim(&document, id));
    }
    let listed = lab.run(&["study"])?;
    assert!(listed.text().contains("freed-or-not"), "{}", listed.text());
    Ok(())
}

#[test]
fn many_runs_need_confirmation() -> Outcome {
    let lab = Lab::new()?;
    let values: Vec<String> = (0..60).map(|value| value.to_string()).collect();
    let axes = format!("a = [{0}]\nb = [{0}]\n", values.join(","));
    study(
        &lab,
        "vast",
        &format!("title = \"x\"\n[axes]\n{axes}[[subject]]\nname = \"s\"\ncommand = \"sleep 0.1\"\n"),
    )?;
    let run = lab.run(&["study", "vast"])?;
    assert_eq!(run.how(), 3);
    for words in ["18,000 runs, about", "--yes"] {
        assert!(run.complaint().contains(words), "{}", run.complaint());
    }
    Ok(())
}

const APART: &str = r#"
title = "Built apart, and one that hides another"
[settings]
repeats = 2
[axes]
kind = [1, 2]
allocator = ["glibc", { name = "other", preload = "libno-such-allocator.so.7" }]
[[subject]]
name = "own"
build = "sh -c 'echo {\\\"kept\\\": {kind}} > {build}/out'"
command = "cat {build}/out"
[measure]
json = ["kept"]
[[claim]]
id = "apart"
text = "each reads what was built for it"
holds = 'values("kind").all(k, median("kept", {"kind": k, "allocator": "glibc"}) == k)'
[[claim]]
id = "other"
text = "the other allocator needs as much memory at most"
holds = 'median("high_water_bytes", {"allocator": "other"}) < 1e12'
"#;

#[test]
fn builds_are_separate_and_studies_and_allocators_are_not_confused() -> Outcome {
    let lab = Lab::new()?;
    study(&lab, "freed-or-not", APART)?;
    let output = lab.command(&["study", "freed-or-not", "--json"]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("not the one that came with strandline"), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout)?;
    assert!(document["folder"].as_str().is_some_and(|folder| folder.ends_with("studies/freed-or-not")));
    assert_eq!(claim(&document, "apart")["verdict"], "holds", "{}", claim(&document, "apart"));
    let other = claim(&document, "other");
    assert_eq!(other["verdict"], "not_run");
    let reason = other["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("libno-such-allocator.so.7 is not here"), "{reason}");
    Ok(())
}

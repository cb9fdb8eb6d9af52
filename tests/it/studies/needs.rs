//! Requirements and inputs of a study's cells, from outside: probes, memory, variables; omitted
//! cells; errors in expressions.

#![cfg(test)]

use std::fs;

use serde_json::{Value, json};

use crate::support::lab::Lab;
use crate::support::recording::list;
use crate::support::{Outcome, Result};

/// Writes a study of `text` to the lab's folder.
fn study(lab: &Lab, name: &str, text: &str) -> Result<()> {
    let folder = lab.folder.0.join("studies").join(name);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join("study.toml"), text)?)
}

/// The reason why the cell with this choice on the axis was not run.
fn not_run(document: &Value, axis: &str, choice: &str) -> Value {
    let cells = list(document, "cells");
    cells
        .iter()
        .find(|cell| cell["axes"][axis] == choice)
        .map_or(json!("no cell"), |cell| cell["not_run"].clone())
}

const NEEDS: &str = r#"
title = "What is needed"
[settings]
repeats = 1
[axes]
way = [1, 2]
[[subject]]
name = "plain"
command = "true {way}"
needs = [{ probe = "sh -c 'echo {way} >> $0; echo unseen' {dir}/probed", name = "way {way}" }, { memory = "1MiB" }]
[[subject]]
name = "without"
command = "true"
axes = []
needs = { probe = "sh -c 'echo unseen >&2; exit 3'", name = "numpy", install = "apt install python3-numpy" }
[[subject]]
name = "unnamed"
command = "true"
axes = []
needs = { probe = ["no-such-probe-here", "x"], name = "a module" }
[[subject]]
name = "large"
command = "true"
axes = []
needs = [{ memory = "900000GiB" }]
[[subject]]
name = "built"
command = "true"
axes = []
build = "touch {build}/there"
needs = { probe = "test -e {build}/there", name = "what was built" }
[[claim]]
id = "without"
text = "w"
holds = 'median("wall_seconds", {"subject": "without"}) < 9'
"#;

#[test]
fn probes_run_once_per_phase_and_memory_is_checked() -> Outcome {
    let lab = Lab::new()?;
    study(&lab, "needs", NEEDS)?;
    let probed = || fs::read_to_string(lab.folder.0.join("studies/needs/probed")).unwrap_or_default();
    let listed = lab.run(&["--json", "study"])?;
    let document: Value = serde_json::from_slice(&listed.stdout)?;
    let found =
        list(&document, "studies").iter().find(|study| study["name"] == "needs").unwrap_or(&Value::Null);
    let text = found["needs"].as_str().unwrap_or_default();
    assert!(text.ends_with("not checked: way 1, way 2, numpy, a module, what was built"), "{text}");
    assert_eq!(probed(), "", "a list runs nothing");
    let document = lab.document(&["study", "needs", "--repeat", "2"])?;
    assert_eq!(probed(), "1\n2\n");
    for (subject, why) in [
        ("plain", Value::Null),
        ("without", json!("numpy is missing: apt install python3-numpy")),
        ("built", Value::Null),
    ] {
        assert_eq!(not_run(&document, "subject", subject), why, "{subject}");
    }
    let unnamed = not_run(&document, "subject", "unnamed");
    let unnamed = unnamed.as_str().unwrap_or_default();
    assert!(unnamed.starts_with("a module is missing: no-such-probe-here x: "), "{unnamed}");
    let large = not_run(&document, "subject", "large");
    let large = large.as_str().unwrap_or_default();
    assert!(
        large.starts_with("needs 879 TiB of available memory; ") && large.ends_with("iB is available"),
        "{large}"
    );
    let claim = &list(&document, "claims")[0];
    assert_eq!(claim["verdict"], "not_run");
    assert!(!document.to_string().contains("unseen"), "what probes write is kept out");
    Ok(())
}

#[test]
fn errors_in_needs_name_the_cause() -> Outcome {
    let lab = Lab::new()?;
    for (needs, words) in [
        ("{ probe = 'true' }", "`probe` is a command, and `name` is what it checks for"),
        ("{ probe = 'true {seize}', name = 'x' }", "{seize} is not an axis"),
        ("{ memory = 'much' }", "`memory` is a size"),
        (
            "{ memory = 1, tool = 'cc' }",
            "exactly one of `tool`, `library`, `file`, `probe` and `memory` is needed",
        ),
        ("{ install = 'x' }", "exactly one of `tool`, `library`, `file`, `probe` and `memory` is needed"),
        ("{ tool = 'cc', name = 'x' }", "`name` is for a `probe`"),
    ] {
        let text = format!("title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\nneeds = {needs}\n");
        study(&lab, "one", &text)?;
        let run = lab.run(&["study", "check", "one"])?;
        assert!(run.how() == 3 && run.complaint().contains(words), "{needs}: {}", run.complaint());
    }
    Ok(())
}

const CHOICES: &str = r#"
title = "What programs hear of"
[settings]
repeats = 1
environment = { STRANDLINE_AXIS_FREE = "own" }
[axes]
opt_level = [{ name = "zero", value = "O0" }, { name = "two", value = "O2" }]
size = [1, 2]
free = ["a"]
[[subject]]
name = "script"
build = "sh -c 'echo $STRANDLINE_AXIS_OPT_LEVEL $(env | grep -c AXIS_SIZE) > $STRANDLINE_STUDY_BUILD/choices'"
command = "sh {dir}/print.sh"
[measure]
json = ["size", "build", "dir"]
texts = ["built", "level", "free"]
[[exclude]]
where = { size = 2, opt_level = "two" }
why = "too long"
[[claim]]
id = "choices"
text = "the script gets the cell's choices"
holds = 'values("size").all(s, median("size", {"size": s, "opt_level": "zero"}) == s)'
"#;

#[test]
fn programs_and_builds_get_folders_and_choices_in_variables() -> Outcome {
    let lab = Lab::new()?;
    study(&lab, "choices", CHOICES)?;
    fs::write(
        lab.folder.0.join("studies/choices/print.sh"),
        "test -f \"$STRANDLINE_STUDY_DIR/study.toml\" && dir=1\n\
         test \"$STRANDLINE_STUDY_BUILD\" = \"$PWD\" && build=1\n\
         echo \"{\\\"size\\\": $STRANDLINE_AXIS_SIZE, \\\"dir\\\": $dir, \\\"build\\\": $build, \\\"built\\\": \\\"$(cat choices)\\\", \
         \\\"level\\\": \\\"$STRANDLINE_AXIS_OPT_LEVEL\\\", \\\"free\\\": \\\"$STRANDLINE_AXIS_FREE\\\"}\"\n",
    )?;
    let document = lab.document(&["study", "choices"])?;
    assert_eq!(list(&document, "claims")[0]["verdict"], "holds", "{document:#}");
    let cells = list(&document, "cells");
    assert_eq!(cells.len(), 4, "the document has the excluded cells too");
    for cell in cells {
        let level = if cell["axes"]["opt_level"] == "zero" { "O0" } else { "O2" };
        if level == "O2" && cell["axes"]["size"] == "2" {
            assert_eq!(cell["not_run"], "left out: too long");
            assert_eq!(cell["metrics"]["size"], Value::Null);
            continue;
        }
        // A build does not get an axis that it does not name: all choices of that axis share the
        // build.
        let texts = json!({ "built": format!("{level} 0"), "level": level, "free": "own" });
        assert_eq!(cell["texts"], texts, "{cell:#}");
        assert_eq!(
            (&cell["metrics"]["dir"]["median"], &cell["metrics"]["build"]["median"]),
            (&json!(1), &json!(1))
        );
    }
    Ok(())
}

#[test]
fn an_error_in_an_expression_has_its_place_in_the_file() -> Outcome {
    let lab = Lab::new()?;
    let text = "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\n\
        [metrics]\nhalf = 'metric(\"wall_seconds\") 2'\n\
        [[claim]]\nid = 'a'\ntext = 'a'\nholds = \"median(\\\"cycles\\\") > 1 and true\"\n\
        [[claim]]\nid = 'b'\ntext = 'b'\nholds = '''\n  median(\"cycles\") > 1 &&\n    median(\"cycles\" < 9'''\n";
    study(&lab, "wrong", text)?;
    let first = lab.run(&["study", "check", "wrong"])?.complaint();
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines.len(), 1, "{first}");
    assert!(first.contains("study.toml:6:32: [metrics] half: `2` is not allowed here"), "{first}");
    study(&lab, "wrong", &text.replace(") 2'", ") / 2'"))?;
    let complaint = lab.run(&["study", "check", "wrong"])?.complaint();
    let lines: Vec<&str> = complaint.lines().collect();
    let wanted = [
        "strandline: studies/wrong/study.toml:10:33: [[claim]] a: `and` is not allowed here; write &&",
        "strandline: studies/wrong/study.toml:16:24: [[claim]] b: `)` is missing at its end",
    ];
    assert_eq!(lines, wanted);
    Ok(())
}

//! `holders` of language runtimes: what variables hold is told by their names, and what is lost stays lost.

#![cfg(test)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, Result, Subject, for_any, here, pythons, strandline};

/// Blocks of malloc's that a subject loses; of these a word may be left on a stack or elsewhere.
const LOST: u64 = 300;
const MOST_LEFT: u64 = 3;

fn root<'a>(document: &'a Value, name: &str) -> Option<&'a Value> {
    document["roots"].as_array()?.iter().find(|root| root["kind"] == "runtime" && root["name"] == name)
}

fn retained(document: &Value, name: &str) -> u64 {
    root(document, name).and_then(|root| root["retained_bytes"].as_u64()).unwrap_or(0)
}

/// Whether variables hold what the subject says, within 5 %, what two have is shared, and as much is lost as it lost.
fn agrees(subject: &Subject, document: &Value, runtime: &str, sharing: &[&str]) -> Outcome {
    let told = subject.ready.as_object().ok_or("it did not say what it has")?;
    let names: Vec<&str> = told.keys().map(String::as_str).filter(|name| *name != "shared").collect();
    retain(subject, document, runtime, &names)?;
    let wanted = subject.number("shared")?;
    let shared = document["shared"]["bytes"].as_u64().unwrap_or(0);
    if shared < wanted || sharing.iter().any(|name| retained(document, name) > wanted / 20) {
        return Err(format!("{wanted} B are shared, {shared} found").into());
    }
    loses(document)
}

/// Whether some of them do.
fn retain(subject: &Subject, document: &Value, runtime: &str, names: &[&str]) -> Outcome {
    for name in names {
        let (wanted, found) = (subject.number(name)?, retained(document, name));
        if found.abs_diff(wanted) > wanted / 20 {
            return Err(format!("{name} has {wanted} B, and retains {found}").into());
        }
        if root(document, name).is_none_or(|root| root["module"] != runtime) {
            return Err(format!("{name} is of no {runtime}").into());
        }
    }
    Ok(())
}

fn loses(document: &Value) -> Outcome {
    let lost = document["unreachable"]["blocks"].as_u64().ok_or("it is not told what is lost")?;
    if !(LOST - MOST_LEFT..=LOST + MOST_LEFT).contains(&lost) {
        return Err(format!("{lost} blocks are lost, not {LOST}").into());
    }
    Ok(())
}

fn look(command: Command) -> Result<(Subject, Value)> {
    let subject = Subject::start_command(command)?;
    let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
    Ok((subject, document))
}

fn python(python: &str) -> Result<Command> {
    let mut command = Command::new(python);
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/python/variables/main.py");
    command.arg(program).arg(LOST.to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
    for name in ["PYTHONMALLOC", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "GLIBC_TUNABLES"] {
        command.env_remove(name);
    }
    Ok(command)
}

#[test]
fn variables_of_python_hold_what_they_have() -> Outcome {
    let test = here!();
    let all = pythons::all(test).into_iter().chain(pythons::free_threaded(test));
    for_any(all, |path| {
        let (subject, document) = look(python(path)?)?;
        agrees(&subject, &document, "cpython", &["app.shared", "__main__.other", "app.callbacks"])
    })
}

/// Without arenas: in malloc's blocks words are left behind past the end of objects, by which another variable may lead to the same
/// (docs/accounting.md). What one has is then not its own, but nothing is lost by it.
#[test]
fn variables_of_python_hold_it_in_other_blocks_too() -> Outcome {
    let test = here!();
    for_any(pythons::all(test), |path| {
        let mut command = python(path)?;
        command.env("PYTHONMALLOC", "malloc");
        let (subject, document) = look(command)?;
        let wanted = subject.number("app.cache")?;
        let shared = document["shared"]["bytes"].as_u64().unwrap_or(0);
        if shared < wanted / 20 * 19 {
            retain(&subject, &document, "cpython", &["app.cache"])?;
        }
        loses(&document)
    })
}

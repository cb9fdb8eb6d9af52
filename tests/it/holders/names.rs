//! `holders` of language runtimes: retained memory is reported by the names of variables, and lost
//! blocks are reported as lost.

#![cfg(test)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, Result, Subject, for_any, here, pythons, strandline};

/// malloc blocks that a subject leaks, in a thread's arena.
const LOST: u64 = 300;
/// Leaked blocks to which registers and stacks may still point.
const MAX_LEFT: u64 = 3;

fn root<'a>(document: &'a Value, name: &str) -> Option<&'a Value> {
    document["roots"].as_array()?.iter().find(|root| root["kind"] == "runtime" && root["name"] == name)
}

fn retained(document: &Value, name: &str) -> u64 {
    root(document, name).and_then(|root| root["retained_bytes"].as_u64()).unwrap_or(0)
}

/// Whether variables retain the bytes that the subject printed, within 5 %, the bytes of two
/// variables are shared, and the blocks that it leaked are unreachable.
fn check_report(subject: &Subject, document: &Value, runtime: &str, sharing: &[&str]) -> Outcome {
    let printed = subject.ready.as_object().ok_or("the subject printed no figures")?;
    let names: Vec<&str> = printed.keys().map(String::as_str).filter(|name| *name != "shared").collect();
    check_retained(subject, document, runtime, &names)?;
    let wanted = subject.number("shared")?;
    let shared = document["shared_total"]["bytes"].as_u64().unwrap_or(0);
    if shared < wanted || sharing.iter().any(|name| retained(document, name) > wanted / 20) {
        return Err(format!("{wanted} B are shared, {shared} found").into());
    }
    check_leaks(document)
}

/// Whether the variables `names` retain what the subject printed, within 5 %.
fn check_retained(subject: &Subject, document: &Value, runtime: &str, names: &[&str]) -> Outcome {
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

/// Bytes and blocks retained together by exactly these roots.
fn retained_together(document: &Value, wanted: &[&str]) -> Option<(u64, u64)> {
    let is_of = |set: &&Value| {
        let mut names: Vec<&str> =
            set["roots"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names == wanted && set["has_more"] == false
    };
    let set = document["shared"].as_array()?.iter().find(is_of)?;
    Some((set["retained_bytes"].as_u64()?, set["retained_blocks"].as_u64()?))
}

/// Whether the sets of roots are in order and add up to the total that several roots hold.
fn check_sums(document: &Value) -> Outcome {
    let sets = document["shared"].as_array().ok_or("no sets of roots")?;
    let bytes: Vec<u64> = sets.iter().filter_map(|set| set["retained_bytes"].as_u64()).collect();
    let other = document["other_shared"]["bytes"].as_u64().ok_or("no other sets")?;
    let all = document["shared_total"]["bytes"].as_u64();
    if !bytes.is_sorted_by(|one, next| one >= next) || Some(bytes.iter().sum::<u64>() + other) != all {
        return Err(format!("{bytes:?} and {other} are not {all:?}").into());
    }
    Ok(())
}

fn check_leaks(document: &Value) -> Outcome {
    let lost = document["unreachable"]["blocks"].as_u64().ok_or("the leaked blocks are missing")?;
    if !(LOST - MAX_LEFT..=LOST + MAX_LEFT).contains(&lost) {
        return Err(format!("{lost} blocks are lost, not {LOST}").into());
    }
    Ok(())
}

fn start_and_read(command: Command) -> Result<(Subject, Value)> {
    let subject = Subject::start_command(command)?;
    let pid = subject.pid_text();
    let document = strandline::complete(|| strandline::json(&["holders", "--json", &pid]))?;
    Ok((subject, document))
}

fn python(python: &str) -> Result<Command> {
    let mut command = subject(python, "variables")?;
    command.arg(LOST.to_string());
    Ok(command)
}

/// One of the programs in `tests/subjects/python`.
fn subject(python: &str, name: &str) -> Result<Command> {
    let mut command = Command::new(python);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/python").join(name);
    command.arg(folder.join("main.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    for name in ["PYTHONMALLOC", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "GLIBC_TUNABLES"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// The number of objects of a type in a tree of what is held.
fn count_of(holds: &Value, name: &str) -> u64 {
    let own = |entry: &Value| if entry["name"] == name { entry["instances"].as_u64() } else { None };
    let entries = holds.as_array().into_iter().flatten();
    entries.map(|entry| own(entry).unwrap_or(0) + count_of(&entry["holds"], name)).sum()
}

/// Whether a variable holds `count` objects of a type, but for two that others hold as well.
fn check_type(document: &Value, name: &str, of: &str, count: u64) -> Outcome {
    let holds = &root(document, name).ok_or("no root")?["holds"];
    let found = count_of(holds, of);
    if (count - 2..=count).contains(&found) {
        Ok(())
    } else {
        Err(format!("{name} holds {found} {of}, not {count}: {holds}").into())
    }
}

#[test]
fn variables_of_python_retain_their_values() -> Outcome {
    let test = here!();
    let all = pythons::all(test).into_iter().chain(pythons::free_threaded(test));
    for_any(all, |path| {
        let (subject, document) = start_and_read(python(path)?)?;
        check_report(&subject, &document, "cpython", &["app.shared", "__main__.other", "app.callbacks"])?;
        check_type(&document, "app.cache", "bytes", 20_000)?;
        check_type(&document, "__main__.sessions", "app.Session", 1_500)
    })
}

/// Neither of two variables with the same value retains it; the report names both.
#[test]
fn variables_of_python_with_one_value_are_named_together() -> Outcome {
    let test = here!();
    let all = pythons::all(test).into_iter().chain(pythons::free_threaded(test));
    for_any(all, |path| {
        let (subject, document) = start_and_read(subject(path, "shared")?)?;
        check_sums(&document)?;
        let wanted = subject.number("bytes")?;
        let found = retained_together(&document, &["__main__.again", "__main__.pages"]);
        let is_right = |(bytes, blocks): (u64, u64)| bytes.abs_diff(wanted) <= wanted / 50 && blocks >= 100;
        if !found.is_some_and(is_right) {
            return Err(format!("{wanted} B of two variables: {found:?} of {}", document["shared"]).into());
        }
        let first = &document["shared"][0];
        if first["types"][0]["bytes"].as_u64().is_none_or(|bytes| bytes < wanted / 20 * 19) {
            return Err(format!("the retained bytes are missing: {first}").into());
        }
        let text = strandline::run(&["holders", &subject.pid_text()])?.stdout;
        let is_named = |line: &str| line.contains("__main__.") && line.contains(" and __main__.");
        if !text.lines().take(12).any(is_named) {
            return Err(format!("the first lines name no two variables: {text}").into());
        }
        Ok(())
    })
}

/// ctypes returns pointers as ints, whose digits have 30 bits each.
#[test]
fn addresses_in_ints_of_python_hold_blocks() -> Outcome {
    let test = here!();
    let all = pythons::all(test).into_iter().chain(pythons::free_threaded(test));
    for_any(all, |path| {
        let mut command = subject(path, "pointers")?;
        command.arg(LOST.to_string());
        let (_subject, document) = start_and_read(command)?;
        check_leaks(&document)
    })
}

/// CPython releases an arena with its last object. A variable that keeps one object in each of many
/// arenas pins them all; one that fills its arenas pins at most its last one.
#[test]
fn variables_of_python_pin_arenas() -> Outcome {
    const ARENA_BYTES: u64 = 1 << 20;
    for_any(pythons::all(here!()), |path| {
        let (subject, document) = start_and_read(subject(path, "pins")?)?;
        let explained = strandline::explain(subject.pid())?;
        let free = ["cpython.free.kept", "cpython.free.pinned"].map(|id| strandline::row(&explained, id));
        let free: u64 = free.iter().sum();
        let pins = |name: &str| root(&document, name).and_then(|root| root["pins_bytes"].as_u64());
        let (kept, full) = (pins("__main__.kept").ok_or("no kept")?, pins("__main__.full").ok_or("no full")?);
        if kept < free / 4 * 3 || kept > free + 2 * ARENA_BYTES || full > ARENA_BYTES {
            return Err(format!("{free} B are free, {kept} pinned by kept, {full} by full").into());
        }
        let first = &document["keepers"][0];
        let of_first = first["root"].as_u64().and_then(|root| document["roots"].get(root as usize));
        if first["name"] != "__main__.Slotted" || of_first.is_none_or(|root| root["name"] != "__main__.kept")
        {
            return Err(format!("{first}").into());
        }
        Ok(())
    })
}

/// Without arenas malloc blocks keep stale words past the end of objects, through which another
/// variable may reach the same objects (docs/accounting.md). These then count as shared, but no
/// object as unreachable.
#[test]
fn variables_of_python_retain_their_values_without_arenas() -> Outcome {
    let test = here!();
    for_any(pythons::all(test), |path| {
        let mut command = python(path)?;
        command.env("PYTHONMALLOC", "malloc");
        let (subject, document) = start_and_read(command)?;
        let wanted = subject.number("app.cache")?;
        let shared = document["shared_total"]["bytes"].as_u64().unwrap_or(0);
        if shared < wanted / 20 * 19 {
            check_retained(&subject, &document, "cpython", &["app.cache"])?;
        }
        check_leaks(&document)
    })
}

//! V8's objects, counted by type from a snapshot and from a stopped process; and the snapshot, for
//! which strandline must share memory that V8 withholds from children.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ledger::start;
use crate::support::nodes;
use crate::support::waiting::{is_traced, until, until_free, until_true};
use crate::support::{Outcome, Result, Subject, for_any, here, repetitions, strandline, subject};

fn v8(document: &Value) -> Result<&Value> {
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    Ok(all.iter().find(|runtime| runtime["name"] == "v8").ok_or("no v8")?)
}

/// The number of objects of each type in a list.
fn numbers(types: &Value) -> Result<BTreeMap<String, u64>> {
    let one = |of: &Value| -> Result<_> {
        Ok((of["name"].as_str().ok_or("no name")?.to_owned(), subject::number(of, "instances")?))
    };
    types.as_array().ok_or("no types")?.iter().map(one).collect()
}

fn explain(subject: &Subject, arguments: &[&str]) -> Result<Value> {
    let pid = subject.pid_text();
    strandline::complete(|| strandline::json(&[&["explain", &pid, "--json"], arguments].concat()))
}

/// Every eighth of 20,000 Buffers of 1,000 bytes lives: all slabs stay, and seven eighths of their
/// bytes are in no Buffer.
#[test]
fn unused_parts_of_slabs_are_counted() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"ug" {
            subject.ask(command)?;
        }
        // V8 frees the lists of what a collection found dead beside the program.
        let unviewed = until("the list of ArrayBuffers to be complete", || {
            let document = explain(&subject, &["--snapshot=always"])?;
            let is_whole = !strandline::caveats(&document).iter().any(|code| code == "v8_buffers_unread");
            Ok(is_whole.then(|| v8(&document).map(|v8| v8["v8"]["unviewed_buffer_bytes"].clone())))
        })??;
        // A slab has 8 KiB, 64 from Node.js 24 on, and less than one Buffer at its end.
        let unviewed = unviewed.as_u64().ok_or("not known")?;
        let is_right = (17_400_000..18_600_000).contains(&unviewed);
        if is_right { Ok(()) } else { Err(format!("{unviewed} bytes").into()) }
    })
}

/// Counts of objects of classes, also derived ones, and of functions are exact, whether they are
/// read from a snapshot or not; V8's own structures do not count as objects of a program.
#[test]
fn objects_are_counted_by_class() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"kg" {
            subject.ask(command)?;
        }
        let option_sets: [&[&str]; 3] = [&["--snapshot=always"], &["--snapshot=never", "--quiet-for=0"], &[]];
        for options in option_sets {
            subject.at_rest()?;
            let document = explain(&subject, options)?;
            let caveats = strandline::caveats(&document);
            let types = numbers(&v8(&document)?["types"]);
            let types = types.map_err(|error| format!("{options:?}: {error}; {caveats:?}"))?;
            let number = |name: &str| types.get(name).copied().unwrap_or(0);
            let found = ["Parcel", "Crate", "Shelf", "function lid", "function Crate"].map(&number);
            // Node.js itself has some of these.
            let others = ["Map", "Float32Array", "(bigint)"].map(number);
            let is_right = found == [60_000, 1234, 555, 2000, 1]
                && others.iter().all(|number| (777..1000).contains(number));
            if !is_right || !caveats.is_empty() {
                return Err(format!("{options:?}: {found:?}, {others:?}; {caveats:?}").into());
            }
        }
        Ok(())
    })
}

/// Of more than 1,000 types, the last entry has the objects of those that are not listed.
#[test]
fn objects_of_types_that_are_not_listed_are_counted() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        subject.ask(b'y')?;
        subject.at_rest()?;
        let document = explain(&subject, &["--snapshot=always"])?;
        let v8 = v8(&document)?;
        let types = v8["types"].as_array().ok_or("no types")?;
        let listed: u64 = types.iter().filter_map(|kind| kind["instances"].as_u64()).sum();
        let last = types.last().map(|kind| &kind["name"]);
        let is_right = types.len() == 1001
            && last.is_some_and(|name| name == "objects of other types")
            && v8["v8"]["objects"] == listed;
        if is_right {
            Ok(())
        } else {
            Err(format!("{} types, {listed} objects, {last:?}", types.len()).into())
        }
    })
}

/// Objects that were dropped and not collected are distinguished from live ones; handles, and stale
/// words outside of the heap, are distinguished from globals and stacks.
#[test]
fn reachable_objects_are_separated_from_garbage() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"kgd" {
            subject.ask(command)?;
        }
        subject.at_rest()?;
        let document = explain(&subject, &["--snapshot=always"])?;
        let v8 = v8(&document)?;
        let lists = [&v8["types"], &v8["v8"]["reachable"]["types"], &v8["v8"]["uncertain"]["types"]];
        let [all, reachable, uncertain] = lists.map(numbers);
        let (all, reachable, uncertain) = (all?, reachable?, uncertain?);
        let of = |name: &str| {
            [&all, &reachable, &uncertain].map(|numbers| numbers.get(name).copied().unwrap_or(0))
        };
        let found = ["Parcel", "Crate", "Shelf", "function lid"].map(of);
        println!("Node.js {}: {found:?}", node.major);
        let [parcels, kept @ ..] = found;
        let is_right = kept == [[1234, 1234, 0], [555, 555, 0], [2000, 2000, 0]]
            && parcels[..2] == [60_000, 0]
            && parcels[2] <= 60_000;
        // Each has 40 bytes at least.
        let dead = strandline::row(&document, "v8.dead");
        let is_right = is_right && dead >= (60_000 - parcels[2]) * 40;
        if is_right { Ok(()) } else { Err(format!("all, reachable, uncertain: {found:?}").into()) }
    })
}

/// A document with a path to an object of the type `name`. On a busy machine strandline may lack
/// the time to search for it.
fn with_path(subject: &Subject, name: &str) -> Result<Value> {
    until("a search that is complete", || {
        let document = explain(subject, &["--path-to", name])?;
        let is_late = v8(&document)?["v8"]["no_path"].as_str().is_some_and(|why| why.contains("no time"));
        Ok((!is_late).then_some(document))
    })
}

/// The path to an object names the variables and elements that hold it, and no data.
#[test]
fn a_path_names_the_variables_that_hold_an_object() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        subject.ask(b'k')?;
        for (name, last) in [("Crate", "system / FixedArray"), ("function lid", "system / FixedArray")] {
            subject.at_rest()?;
            let document = with_path(&subject, name)?;
            let path = &v8(&document)?["v8"]["path"];
            let steps = path["steps"].as_array().ok_or_else(|| format!("no path to {name}"))?;
            let types: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
            let slots: Vec<&str> = steps.iter().filter_map(|step| step["slot"].as_str()).collect();
            println!("Node.js {}: {types:?}, {slots:?}", node.major);
            // A constant array in a function's scope.
            let is_right = path["root"] == "V8's contexts"
                && types.ends_with(&[last, name])
                && slots.contains(&".kinds")
                && slots.last().is_some_and(|slot| slot.starts_with('['));
            if !is_right {
                return Err(path.to_string().into());
            }
        }
        let document = with_path(&subject, "Account")?.to_string();
        if document.contains("user_of") || !document.contains("(a property)") {
            return Err(format!("a key is shown: {document}").into());
        }
        let run = strandline::run(&["explain", &subject.pid_text(), "--path-to", "Nothing"])?;
        if run.stderr.contains("no live object of the type Nothing") {
            Ok(())
        } else {
            Err(run.stderr.into())
        }
    })
}

/// Whether each mapping is withheld from children, by its range.
fn kept_from_children(pid: i32) -> Result<BTreeMap<String, bool>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut all = BTreeMap::new();
    let mut range = String::new();
    for line in text.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) => _ = all.insert(range.clone(), flags.split_whitespace().any(|flag| flag == "dc")),
            None => {
                let first = line.split_whitespace().next().unwrap_or_default();
                if first.contains('-') {
                    first.clone_into(&mut range);
                }
            }
        }
    }
    Ok(all)
}

/// For a snapshot strandline shares V8's heap with one child; afterwards V8's mappings are withheld
/// from children as before.
#[test]
fn a_snapshot_leaves_mappings_as_they_were() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"wcg" {
            subject.ask(command)?;
        }
        until("a snapshot of mappings that stayed", || {
            subject.at_rest()?;
            let before = kept_from_children(subject.pid())?;
            let document = explain(&subject, &["--snapshot=always"])?;
            let after = kept_from_children(subject.pid())?;
            // V8 itself maps and unmaps.
            if !before.keys().eq(after.keys()) {
                return Ok(None);
            }
            if before != after || before.values().filter(|is_kept| **is_kept).count() < 20 {
                return Err(format!("{before:?}, then {after:?}").into());
            }
            assert_eq!(document["target"]["kind"], "photograph");
            Ok(Some(()))
        })?;
        subject.ask(b't').map(drop)
    })
}

/// Kills or stops strandline at instants spread over a run with a snapshot, while all threads of
/// the program work: the program is released, its data stay correct, and it ends normally.
#[test]
fn kills_in_a_snapshot_do_no_harm() -> Outcome {
    let nodes = nodes::all(here!());
    let kills = repetitions(6, 300).div_ceil(nodes.len().max(1) as u64);
    for_any(nodes, |node| {
        let mut subject = start(&node.path, &[], &["load"])?;
        subject.ask(b'w')?;
        let pid = subject.pid_text();
        let arguments = ["explain", &pid, "--json", "--snapshot=always"];
        let whole = take(&arguments)?;
        let mut while_traced = 0;
        for turn in 0..kills {
            let before = kept_from_children(subject.pid())?;
            let mut run =
                strandline::command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            // Multiples of the golden ratio give fractions that never repeat. Two of three kills
            // hit the run soon after it has begun to stop the process.
            let share = (turn as f64 * 0.618_033_988_75).fract();
            let mut delay = whole.mul_f64(share);
            if turn % 3 > 0 {
                let is_held = || is_traced(subject.pid()) || run.try_wait().is_ok_and(|end| end.is_some());
                until_true("the stop", is_held)?;
                delay = Duration::from_millis(20).mul_f64(share);
            }
            let since = Instant::now();
            until_true("the instant of the kill", || since.elapsed() >= delay)?;
            while_traced += u64::from(is_traced(subject.pid()));
            if turn % 2 == 1 {
                // The watchdog releases the process.
                let stopped = nix::unistd::Pid::from_raw(run.id() as i32);
                nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGSTOP)?;
                subject.ask(b't')?;
            }
            run.kill()?;
            run.wait()?;
            until_free(subject.pid())?;
            subject.ask(b't')?;
            // The program's own thread withholds the memory from children again.
            until("mappings as before", || {
                let now = kept_from_children(subject.pid())?;
                let is_same =
                    |(range, is_kept): (&String, &bool)| now.get(range).is_none_or(|now| now == is_kept);
                Ok(before.iter().all(is_same).then_some(()))
            })?;
        }
        println!("Node.js {}: {kills} kills, {while_traced} while it traced a thread", node.major);
        take(&arguments)?;
        subject.ask(b't')?;
        let end = subject.finish()?;
        if end.success() { Ok(()) } else { Err(end.to_string().into()) }
    })
}

/// Takes a snapshot; returns how long that run took.
fn take(arguments: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    let run = strandline::run(arguments)?;
    if run.status == Some(0) { Ok(began.elapsed()) } else { Err(run.summary().into()) }
}

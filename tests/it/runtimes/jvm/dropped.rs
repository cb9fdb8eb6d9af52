//! Objects that a program dropped are dead, objects that it holds are live, and uncertainty is
//! reported (`Dropped.java`).

use std::path::Path;

use serde_json::Value;

use crate::support::jdks::{self, Jdk};
use crate::support::jvm::{OLDEST, Seen, classes, command_of, explain_jvm_with, reclaim, started};
use crate::support::waiting::until;
use crate::support::{Outcome, Result, Subject, for_any, here, some_of, strandline, subject};

/// Largest error of a prediction, in per cent.
const MAX_PERCENT: u64 = 1;

/// Other live memory of a JVM.
const OWN_BYTES: u64 = 8 << 20;
/// Count and size of the arrays: larger than a region each, or more small ones.
const LARGE: [&str; 2] = ["200", "1000000"];
const SMALL: [&str; 2] = ["2000", "100000"];
const ARRAY_BYTES: u64 = 200_000_000;
/// With these options G1 does not collect beside the program: its heap is large from the start and
/// may shrink, and no occupancy starts a marking.
const G1_AT_REST: [&str; 4] = [
    "-XX:InitialHeapSize=512m",
    "-XX:MinHeapSize=8m",
    "-XX:InitiatingHeapOccupancyPercent=100",
    "-XX:-G1UseAdaptiveIHOP",
];
/// First version in which HotSpot's own references are read.
const FIRST_PRECISE: u32 = 17;

/// A program, and how it runs.
#[derive(Clone, Debug)]
struct Case {
    jdk: Jdk,
    options: &'static [&'static str],
    /// Whether the program has collected first, and the holder of the arrays.
    how: [&'static str; 2],
    arrays: [&'static str; 2],
}

impl Case {
    fn start(&self, classes: &Path) -> Result<Subject> {
        let class = ["Dropped", self.how[0], self.how[1], self.arrays[0], self.arrays[1]];
        let more: &[&str] = if self.is_g1() { &G1_AT_REST } else { &[] };
        started(command_of(&self.jdk, classes, &[&["-Xmx512m"], self.options, more].concat(), &class))
    }

    fn is_g1(&self) -> bool {
        self.options.contains(&"-XX:+UseG1GC")
    }
}

fn cases(test: &str, all: &[(&'static [&'static str], [&'static str; 2], [&'static str; 2])]) -> Vec<Case> {
    let jdks = jdks::all(test).into_iter().filter(|jdk| jdk.major >= OLDEST.max(FIRST_PRECISE));
    let of = |jdk: Jdk| {
        all.iter().map(move |&(options, how, arrays)| Case { jdk: jdk.clone(), options, how, arrays })
    };
    jdks.flat_map(of).collect()
}

fn remedy(document: &Value) -> Result<Value> {
    let all = document["remedies"].as_array().ok_or("no remedies")?;
    Ok(all.iter().find(|remedy| remedy["id"] == "jvm_gc").ok_or("no jvm_gc")?.clone())
}

/// Explains the process with its objects traced; `None` without a snapshot, which tracing needs and
/// a busy machine may prevent: a caveat must give the reason.
fn explain_traced(subject: &Subject) -> Result<Option<Seen>> {
    let seen = explain_jvm_with(subject, &["--snapshot=try"])?;
    let is_traced = !seen.jvm["jvm"]["live_bytes"].is_null();
    if !is_traced && strandline::caveats(&seen.document).is_empty() {
        return Err("not traced, and no caveat has the reason".into());
    }
    Ok(Some(seen).filter(|_| is_traced))
}

/// Repeats [`explain_traced`] until the process waits for its input, where every frame is known.
fn when_it_reads(subject: &Subject) -> Result<Seen> {
    until("a read of a waiting thread", || {
        let Some(seen) = explain_traced(subject)? else { return Ok(None) };
        let of = |key: &str| seen.jvm["jvm"][key].as_u64().ok_or("no figure");
        let (live, least) = (of("live_bytes")?, of("live_at_least_bytes")?);
        Ok((live.saturating_sub(least) <= live / 100).then_some(seen))
    })
}

#[test]
fn dropped_objects_are_dead() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let (g1, serial, parallel) = (&["-XX:+UseG1GC"], &["-XX:+UseSerialGC"], &["-XX:+UseParallelGC"]);
    let all: [(&[&str], [&str; 2], [&str; 2]); 9] = [
        (g1, ["collected", "main"], LARGE),
        (g1, ["collected", "method"], LARGE),
        (g1, ["-", "main"], SMALL),
        (g1, ["collected", "method"], SMALL),
        (&["-XX:+UseG1GC", "-Xint"], ["collected", "main"], LARGE),
        (serial, ["collected", "method"], LARGE),
        (&["-XX:+UseSerialGC", "-Xint"], ["collected", "method"], LARGE),
        (parallel, ["-", "main"], LARGE),
        (parallel, ["collected", "method"], SMALL),
    ];
    for_any(some_of(cases(test, &all), 4), |case| {
        let subject = case.start(&classes)?;
        let seen = when_it_reads(&subject)?;
        let live = seen.jvm["jvm"]["live_bytes"].as_u64().ok_or("not traced")?;
        let least = seen.jvm["jvm"]["live_at_least_bytes"].as_u64().ok_or("no bound")?;
        let dead = strandline::row(&seen.document, "jvm.dead");
        let garbage = seen.jvm["used_bytes"].as_u64().ok_or("no use")?.saturating_sub(live);
        // The program allocates nothing from then on, so the JVM did not collect by itself.
        let dead_is_complete = garbage >= ARRAY_BYTES && dead + OWN_BYTES * 2 >= garbage;
        if live > OWN_BYTES || least > live || !dead_is_complete {
            return Err(format!("{live} B live, at least {least}, {dead} dead of {garbage}").into());
        }
        // How far the other collectors shrink their heaps cannot be predicted.
        if !case.is_g1() {
            let gc = remedy(&seen.document)?;
            let is_null_for_a_reason = gc["predicted_bytes"].is_null() && gc["unknown_because"].is_string();
            return if is_null_for_a_reason { Ok(()) } else { Err(gc.to_string().into()) };
        }
        // From JDK 27 on G1 shrinks according to its load, and not at once.
        if case.jdk.major >= 27 {
            return Ok(());
        }
        let (_, document) = reclaim(&subject, "jvm_gc")?;
        let actual = subject::number(&document, "actual_bytes")?;
        // If the threads of a collection can leave regions partly full, the remedy has a reason
        // instead of a prediction.
        let is_right = match document["predicted_bytes"].as_u64() {
            Some(predicted) => predicted.abs_diff(actual) <= actual / 100 * MAX_PERCENT,
            None => document["reason"].as_str().is_some_and(|reason| reason.contains(" to ")),
        };
        if actual < ARRAY_BYTES / 2 || !is_right {
            return Err(format!("{document:#}").into());
        }
        Ok(())
    })
}

#[test]
fn objects_held_by_a_variable_are_live() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let all: [(&[&str], [&str; 2], [&str; 2]); 3] = [
        (&["-XX:+UseG1GC"], ["collected", "held"], LARGE),
        (&["-XX:+UseSerialGC", "-Xint"], ["-", "held"], SMALL),
        (&["-XX:+UseParallelGC", "-Xcomp"], ["-", "held"], SMALL),
    ];
    for_any(cases(test, &all), |case| {
        let subject = case.start(&classes)?;
        let seen = when_it_reads(&subject)?;
        let of = |key: &str| seen.jvm["jvm"][key].as_u64().ok_or("not traced");
        let (live, least) = (of("live_bytes")?, of("live_at_least_bytes")?);
        if least < ARRAY_BYTES || live > ARRAY_BYTES + OWN_BYTES {
            return Err(format!("{live} B live, at least {least}").into());
        }
        Ok(())
    })
}

/// In the frame of a running thread it is unknown which words are references: objects held only by
/// them may be live or dead.
#[test]
fn objects_held_by_a_running_frame_may_be_live() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let all: [(&[&str], [&str; 2], [&str; 2]); 1] = [(&["-XX:+UseG1GC", "-Xint"], ["-", "running"], LARGE)];
    for_any(cases(test, &all), |case| {
        let subject = case.start(&classes)?;
        until("a read of a running frame", || {
            let Some(seen) = explain_traced(&subject)? else { return Ok(None) };
            let of = |key: &str| seen.jvm["jvm"][key].as_u64().ok_or("not traced");
            let (live, least) = (of("live_bytes")?, of("live_at_least_bytes")?);
            if live < ARRAY_BYTES || least > live {
                return Err(format!("{live} B live, at least {least}").into());
            }
            // At a safepoint all references are known.
            if least >= ARRAY_BYTES {
                return Ok(None);
            }
            let gc = remedy(&seen.document)?;
            if !gc["predicted_bytes"].is_null() {
                return Err(format!("{live} B live, at least {least}: {gc}").into());
            }
            let text = strandline::run(&["explain", "-v", &subject.pid_text()])?.stdout;
            Ok(text.contains("objects, at most").then_some(()))
        })
    })
}

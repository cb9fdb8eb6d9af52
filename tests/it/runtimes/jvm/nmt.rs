//! Figures beside those of the JVM's own count of what it has of the kernel and of malloc (`-XX:NativeMemoryTracking`).
//!
//! Left out is what has no figure of its own here: Symbol, Internal, Arena Chunk, Compiler and the like are malloc's blocks, on
//! `glibc.live`; GC is the card table, of which `jvm.collector` has what is resident, and tables that are not described; of stacks
//! the count takes for committed what `mincore` finds; the class data archive is a mapped file.

use std::collections::BTreeMap;
use std::process::Command;

use super::figures::cases;
use crate::support::jvm::{DIRECT_MIB, Seen, classes, fill, look, start, until_asleep};
use crate::support::jvm_histogram::has_jcmd;
use crate::support::waiting::until;
use crate::support::{Outcome, Result, Subject, for_any, here, strandline, subject};

/// Stacks are of one size, whoever runs on them, and no thread comes or goes by itself.
const OPTIONS: [&str; 7] = [
    "-XX:-UseDynamicNumberOfCompilerThreads",
    "-XX:-UseDynamicNumberOfGCThreads",
    "-XX:NativeMemoryTracking=summary",
    "-Xms32m",
    "-Xss1m",
    "-XX:VMThreadStackSize=1024",
    "-XX:CompilerThreadStackSize=1024",
];
const STACK_BYTES: u64 = 1 << 20;
/// What malloc's blocks begin with where they are counted (`MallocHeader`).
const HEADER_BYTES: u64 = 16;

/// By what is compared, a figure.
type Figures = BTreeMap<&'static str, u64>;

/// What stands behind `key` in a line.
fn figure(line: &str, key: &str) -> Option<u64> {
    let digits = line.split_once(key)?.1;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// What the JVM has counted.
fn counted(pid: i32) -> Result<Figures> {
    let output =
        Command::new("jcmd").args([&pid.to_string(), "VM.native_memory", "summary", "scale=1"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut figures = Figures::new();
    let (mut category, mut is_class_space) = ("", false);
    for line in text.lines() {
        if let Some((name, _)) = line.strip_prefix('-').and_then(|line| line.split_once(" (reserved=")) {
            category = name.trim();
        }
        let key = match category {
            "Java Heap" => "heap",
            // Up to JDK 15 all of it is counted as classes.
            "Class" | "Metaspace" => "metaspace",
            "Code" => "code",
            _ => "",
        };
        if let Some(committed) = line.contains("(mmap:").then(|| figure(line, "committed=")).flatten() {
            *figures.entry(key).or_default() += committed;
        }
        match category {
            "Thread" => {
                figures
                    .extend(figure(line, "(thread #").or(figure(line, "(threads #")).map(|n| ("threads", n)));
                figures.extend(figure(line, "(stack: reserved=").map(|bytes| ("stacks", bytes)));
            }
            "Other" => figures.extend(figure(line, "(malloc=").map(|bytes| ("direct", bytes))),
            "Class" if is_class_space => {
                figures.extend(figure(line, "committed=").map(|bytes| ("class space", bytes)));
            }
            _ => {}
        }
        is_class_space = line.contains("Class space:");
    }
    figures.remove("");
    if figures.len() == 7 { Ok(figures) } else { Err(format!("{figures:?} of {text}").into()) }
}

/// What was found of the same.
fn found(seen: &Seen) -> Result<Figures> {
    let pools = seen.pools()?;
    let committed = |is: &dyn Fn(&str) -> bool| -> u64 {
        pools.iter().filter(|(name, _)| is(name)).map(|(_, pool)| pool[1]).sum()
    };
    let kinds = seen.jvm["jvm"]["kinds"].as_array().ok_or("no kinds")?;
    let areas: u64 = kinds.iter().filter_map(|kind| kind["bytes"].as_u64()).sum();
    let threads = subject::number(&seen.document["target"], "threads")? - 1;
    Ok(Figures::from([
        // The pools leave out one survivor space; of ZGC there is nothing else.
        ("heap", if areas == 0 { subject::number(&seen.jvm, "committed_bytes")? } else { areas }),
        ("metaspace", committed(&|name| name == "Metaspace")),
        ("class space", committed(&|name| name == "Compressed Class Space")),
        // The pools leave out the maps of what is in the code heaps, a byte for each segment, which are all resident.
        (
            "code",
            committed(&|name| name.starts_with("Code")) + strandline::row(&seen.document, "jvm.metadata"),
        ),
        // The first thread is not the JVM's: it waits for the one that runs `main`.
        ("threads", threads),
        ("stacks", threads * STACK_BYTES),
        ("direct", strandline::row(&seen.document, "jvm.direct").saturating_sub(DIRECT_MIB * HEADER_BYTES)),
    ]))
}

/// All that was found was counted before or after: what changed meanwhile has to lie between, and only where it does not it is
/// looked at again (code is compiled, and metaspace is given back by a collection). What did not change has to be equal at once.
fn agrees(subject: &Subject) -> Outcome {
    // Whoever asks first has it start a thread.
    let mut before = counted(subject.pid())?;
    until("figures of the JVM that stand still", || {
        until_asleep(subject.pid())?;
        let seen = look(subject)?;
        let (mut found, after) = (found(&seen)?, counted(subject.pid())?);
        if seen.jvm["own"]["collector"] == "Z" {
            // Without its objects buffers are not known.
            found.insert("direct", DIRECT_MIB << 20);
        }
        let is_between = |(key, figure): (&&str, &u64)| {
            let (before, after) = (before[key], after[key]);
            (before.min(after)..=before.max(after)).contains(figure)
        };
        let others = found.iter().filter(|entry| !is_between(*entry)).map(|(key, _)| *key);
        let (moved, wrong): (Vec<&str>, Vec<&str>) = others.partition(|key| before[key] != after[key]);
        if !wrong.is_empty() {
            return Err(format!("{wrong:?}: {found:?} found, {before:?} to {after:?} counted").into());
        }
        before = after;
        Ok(moved.is_empty().then_some(()))
    })
}

#[test]
fn what_is_committed_is_what_the_jvm_counts() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    if !has_jcmd(test) {
        return Ok(());
    }
    for_any(cases(test), |(jdk, collector)| {
        let mut subject = start(jdk, &classes, &[&OPTIONS, collector.options].concat())?;
        fill(&mut subject)?;
        agrees(&subject)
    })
}

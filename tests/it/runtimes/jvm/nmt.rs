//! Figures compared with the JVM's own count of its memory from the kernel and from malloc
//! (`-XX:NativeMemoryTracking`).
//!
//! The test omits categories for which strandline has no figure: Symbol, Internal, Arena Chunk,
//! Compiler and others are malloc blocks, on `glibc.live`; GC has the card table, whose resident
//! part is on `jvm.collector`, and tables that HotSpot does not describe; for stacks the JVM counts
//! the pages that `mincore` finds; the class data archive is a mapped file.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::jvm::{DIRECT_MIB, Seen, classes, explain_jvm, fill, start, until_asleep};
use crate::support::jvm_collectors::cases;
use crate::support::jvm_histogram::has_jcmd;
use crate::support::waiting::until;
use crate::support::{Outcome, Result, Subject, for_any, here, some_of, strandline, subject};

/// All stacks have the same size, and no thread starts or ends by itself.
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
/// Size of the header of counted malloc blocks (`MallocHeader`).
const HEADER_BYTES: u64 = 16;

/// Figures by the name they are compared under.
type Figures = BTreeMap<&'static str, u64>;

/// Returns the number after `key` in a line.
fn figure(line: &str, key: &str) -> Option<u64> {
    let digits = line.split_once(key)?.1;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Figures counted by the JVM.
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
            // Up to JDK 15 all metaspace is counted as classes.
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

/// The same figures as found by strandline.
fn found(seen: &Seen) -> Result<Figures> {
    let pools = seen.pools()?;
    let committed = |is: &dyn Fn(&str) -> bool| -> u64 {
        pools.iter().filter(|(name, _)| is(name)).map(|(_, pool)| pool[1]).sum()
    };
    let kinds = seen.jvm["jvm"]["kinds"].as_array().ok_or("no kinds")?;
    let areas: u64 = kinds.iter().filter_map(|kind| kind["bytes"].as_u64()).sum();
    let threads = subject::number(&seen.document["target"], "threads")? - 1;
    Ok(Figures::from([
        // The pools omit one survivor space; ZGC has no kinds, and its heap is the committed bytes.
        ("heap", if areas == 0 { subject::number(&seen.jvm, "committed_bytes")? } else { areas }),
        ("metaspace", committed(&|name| name == "Metaspace")),
        ("class space", committed(&|name| name == "Compressed Class Space")),
        // The pools omit the segment maps of the code heaps, a byte for each segment, all resident.
        (
            "code",
            committed(&|name| name.starts_with("Code")) + strandline::row(&seen.document, "jvm.metadata"),
        ),
        // The first thread is not a JVM thread: it waits for the thread that runs `main`.
        ("threads", threads),
        ("stacks", threads * STACK_BYTES),
        ("direct", strandline::row(&seen.document, "jvm.direct").saturating_sub(DIRECT_MIB * HEADER_BYTES)),
    ]))
}

/// Every figure found must lie between the JVM's counts before and after, or the comparison is
/// repeated, because the JVM compiles code and collections return metaspace. A figure that did not
/// change must be equal at once.
fn check_figures(subject: &Subject) -> Outcome {
    // The first request makes the JVM start a thread.
    let mut before = counted(subject.pid())?;
    until("constant figures of the JVM", || {
        until_asleep(subject.pid())?;
        let seen = explain_jvm(subject)?;
        let (mut found, after) = (found(&seen)?, counted(subject.pid())?);
        if seen.jvm["own"]["collector"] == "Z" {
            // Buffers are known only through objects, which are not read for ZGC.
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
fn committed_memory_equals_the_jvms_count() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    if !has_jcmd(test) {
        return Ok(());
    }
    for_any(some_of(cases(test), 2), |(jdk, collector)| {
        let mut subject = start(jdk, &classes, &[&OPTIONS, collector.options].concat())?;
        fill(&mut subject)?;
        check_figures(&subject)
    })
}

//! V8 read from outside, compared with its own statistics (`tests/subjects/node`): with each
//! Node.js found, stripped, with flags that change its heap, and with workers.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::nodes::{self, Node};
use crate::support::waiting::until;
use crate::support::{
    Folder, Outcome, Result, Subject, copy_program, for_any, here, repetitions, skipped, strandline, subject,
};

pub fn start(node: &str, flags: &[&str], arguments: &[&str]) -> Result<Subject> {
    Subject::start_command(command(node, flags, arguments))
}

pub fn command(node: &str, flags: &[&str], arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/node/oracle.js");
    let mut command = Command::new(node);
    command.arg("--expose-gc").args(flags).arg(script).args(arguments);
    for name in ["NODE_OPTIONS", "LD_PRELOAD", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    command
}

fn explain_v8(subject: &Subject) -> Result<(Value, Value)> {
    let document = strandline::explain(subject.pid())?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let v8 = all.iter().find(|runtime| runtime["name"] == "v8").cloned();
    let v8 = v8.ok_or_else(|| format!("no v8: {:?}", strandline::caveats(&document)))?;
    if v8["read"] != true {
        return Err(format!("not read: {:?}", strandline::caveats(&document)).into());
    }
    Ok((document, v8))
}

fn sum(spaces: &Value, field: &str) -> u64 {
    spaces.as_array().into_iter().flatten().filter_map(|space| space[field].as_u64()).sum()
}

/// Compares the spaces of one read with V8's statistics before and after it. Memory in use may grow
/// in between, because the statistics themselves allocate; `None` if a collection ran in between.
fn compare(before: &Value, found: &Value, after: &Value) -> Result<Option<()>> {
    let (before, after) = (&before["spaces"], &after["spaces"]);
    for (old, new) in before.as_array().into_iter().flatten().zip(after.as_array().into_iter().flatten()) {
        let name = &old["space_name"];
        let is_moved = old["space_size"] != new["space_size"]
            || old["space_used_size"].as_u64() > new["space_used_size"].as_u64();
        if is_moved {
            return Ok(None);
        }
        let own = found.as_array().and_then(|all| all.iter().find(|space| space["space_name"] == *name));
        let own = own.ok_or_else(|| format!("no {name}"))?;
        let used = own["space_used_size"].as_u64();
        let is_within = old["space_used_size"].as_u64() <= used && used <= new["space_used_size"].as_u64();
        if own["space_size"] != old["space_size"] || !is_within {
            return Err(format!("V8 reports {old}, then {new}; strandline reports {own}").into());
        }
    }
    Ok(Some(()))
}

/// Explains the process until V8's statistics before and after the read are of the same state: no
/// collection ran in between, and no compiler thread returned the rest of its allocation area. Then
/// committed bytes must equal V8's, and used bytes must lie between both values.
fn figures_agree(subject: &mut Subject) -> Result<Value> {
    let mut last = String::new();
    let agreed = until("statistics of one state", || {
        subject.at_rest()?;
        let before = subject.ask(b's')?;
        subject.at_rest()?;
        let (document, v8) = explain_v8(subject)?;
        let after = subject.ask(b's')?;
        match compare(&before, &v8["own"]["spaces"], &after) {
            Ok(Some(())) => {}
            Ok(None) => return Ok(None),
            Err(error) => {
                last = error.to_string();
                return Ok(None);
            }
        }
        let committed = sum(&before["spaces"], "space_size");
        if v8["committed_bytes"] != committed || v8["v8"]["isolates"] != before["isolates"] {
            return Err(format!(
                "{} committed; V8 reports {before}; strandline reports {}",
                v8["committed_bytes"], v8["v8"]
            )
            .into());
        }
        Ok(Some(document))
    });
    agreed.map_err(|error| format!("{error}; {last}").into())
}

/// Fails if there is a caveat, or more than 2 % of RSS is not explained.
fn check_explained(document: &Value) -> Outcome {
    let caveats = strandline::caveats(document);
    let unattributed = strandline::row(document, "anonymous");
    let rss = subject::number(&document["kernel"], "rss_bytes")?;
    if !caveats.is_empty() {
        return Err(format!("caveats: {caveats:?}").into());
    }
    if unattributed * 50 > rss {
        Err(format!("{unattributed} of {rss} bytes are not explained").into())
    } else {
        Ok(())
    }
}

/// The program with each set of flags that changes how it uses its heap.
const FLAGS: [&[&str]; 5] =
    [&[], &["--jitless"], &["--single-threaded"], &["--max-semi-space-size=1"], &["--optimize-for-size"]];

#[test]
fn spaces_equal_v8s_statistics() -> Outcome {
    let nodes = nodes::all(here!());
    let cases = nodes.iter().flat_map(|node| FLAGS.map(|flags| (node, flags)));
    for_any(cases, |(node, flags)| {
        let mut subject = start(&node.path, flags, &[])?;
        // One set in every state; the others where pages are in every list.
        let commands: &[u8] = if flags.is_empty() { b"sgcdg" } else { b"cg" };
        for &command in commands {
            subject.ask(command)?;
            let document = figures_agree(&mut subject)
                .map_err(|error| format!("after {:?}: {error}", char::from(command)))?;
            check_explained(&document)?;
        }
        Ok(())
    })
}

#[test]
fn stripped_programs_are_read() -> Outcome {
    if Command::new("strip").arg("--version").output().is_err() {
        skipped(here!(), "no strip (apt-get install binutils)");
        return Ok(());
    }
    for_any(nodes::all(here!()), |node| {
        let folder = Folder::new("v8-stripped")?;
        let program = folder.0.join("server");
        let path = Command::new(&node.path).args(["-p", "process.execPath"]).output()?.stdout;
        copy_program(String::from_utf8(path)?.trim(), &program)?;
        if !Command::new("strip").arg("--strip-all").arg(&program).status()?.success() {
            return Err("strip failed".into());
        }
        let mut subject = start(&program.display().to_string(), &[], &[])?;
        subject.ask(b'g')?;
        check_explained(&figures_agree(&mut subject)?)
    })
}

/// Bytes of ArrayBuffers equal `process.memoryUsage()`, and a WebAssembly memory has its initial
/// size.
#[test]
fn memory_outside_the_heap_equals_nodes_count() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        let before = subject::number(&subject.ask(b'a')?, "array_buffers")?;
        // Threads of V8 may still free what a collection found dead: then the lists do not add up.
        subject.at_rest()?;
        let (document, v8) = explain_v8(&subject)?;
        let after = subject::number(&subject.ask(b's')?, "array_buffers")?;
        let buffers = subject::number(&v8["v8"]["buffers"], "bytes")?;
        let strings = subject::number(&v8["v8"]["external_strings"], "bytes")?;
        // A collection may have run in between. From 24 on Node.js counts its own slab, of 64 KiB.
        let own = if node.major >= 24 { 65 << 10 } else { 1 << 10 };
        let is_counted = buffers + own >= before.min(after) && buffers <= before.max(after) + own;
        let of = |row: &str| strandline::row(&document, row);
        let rows = [of("v8.buffer"), of("v8.external_string"), of("v8.buffer.mapped")];
        let figures = format!(
            "Node.js {}: {before}..{after} and {buffers} in ArrayBuffers, strings {strings}, rows {rows:?}",
            node.major
        );
        println!("{figures}");
        // Some characters are in malloc blocks; others are in the program's file and are not
        // counted.
        let [stores, characters, mapped] = rows;
        let has_rows = stores >= 41 << 20
            && stores <= buffers + (1 << 20)
            && characters >= 12 << 20
            && characters <= strings + (1 << 20);
        if is_counted && has_rows && mapped == 100 << 16 { Ok(()) } else { Err(figures.into()) }
    })
}

#[test]
fn isolates_of_workers_are_summed() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"wwcgew" {
            subject.ask(command)?;
            check_explained(&figures_agree(&mut subject)?)
                .map_err(|error| format!("after {:?}: {error}", char::from(command)))?;
        }
        Ok(())
    })
}

/// Pages of a worker that has ended stay in the pool of the process.
#[test]
fn pages_of_ended_workers_are_pooled() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        subject.ask(b'w')?;
        let pooled = |document: &Value| strandline::row(document, "v8.pool");
        let before = pooled(&figures_agree(&mut subject)?);
        subject.ask(b'e')?;
        let document = figures_agree(&mut subject)?;
        check_explained(&document)?;
        let grown = pooled(&document).saturating_sub(before);
        // Up to Node.js 22 each isolate has its own pool, which ends with it.
        let is_right = if node.major >= 24 { grown > 4 << 20 } else { grown == 0 };
        if is_right { Ok(()) } else { Err(format!("{grown} bytes more in the pool").into()) }
    })
}

/// A last-resort collection releases the pool and what the young generation does not use.
#[test]
fn pooled_pages_are_released_as_predicted() -> Outcome {
    // Other memory that the collection frees and allocates.
    const OTHER_BYTES: u64 = 4 << 20;
    let nodes = nodes::all(here!()).into_iter().filter(Node::has_pool);
    for_any(nodes, |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"ccdg" {
            subject.ask(command)?;
        }
        let document = figures_agree(&mut subject)?;
        let kept = strandline::row(&document, "v8.pool") + strandline::row(&document, "v8.young.idle");
        let verdict = &document["verdict"];
        if kept < 40 << 20 || verdict["class"] != "idle_heap_pages" {
            return Err(format!("{kept} bytes kept: {verdict}").into());
        }
        subject.ask(b'l')?;
        let after = figures_agree(&mut subject)?;
        let anonymous = |document: &Value| subject::number(&document["kernel"], "anonymous_bytes");
        let released = anonymous(&document)?.saturating_sub(anonymous(&after)?);
        if released.abs_diff(kept) > OTHER_BYTES {
            return Err(format!("{kept} bytes kept, {released} released: {verdict}").into());
        }
        Ok(())
    })
}

/// strandline skips a heap within a collection: the rows of every document add up, and at least one
/// document has V8's figures.
#[test]
fn rows_of_a_program_that_always_collects_add_up() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, &[], &["storm"])?;
        let mut done = 0;
        let wanted = repetitions(3, 60);
        until("a read between two collections", || {
            let document = strandline::explain(subject.pid())?;
            done += 1;
            let all = document["runtimes"].as_array().ok_or("no runtimes")?;
            let is_read = all.iter().any(|runtime| runtime["name"] == "v8" && runtime["read"] == true);
            let is_busy = strandline::caveats(&document).iter().any(|code| code == "runtime_busy");
            if !is_read && !is_busy {
                return Err(format!("not read: {:?}", strandline::caveats(&document)).into());
            }
            Ok((is_read && done >= wanted).then_some(()))
        })
    })
}

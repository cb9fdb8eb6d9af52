//! `reclaim --remedy v8_memory_pressure` on each Node.js found: V8 releases at least what the
//! ledger predicts, and the process answers afterwards, even after strandline was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

use super::ledger::{command, start};
use crate::support::nodes;
use crate::support::waiting::{is_traced, until, until_free, until_true};
use crate::support::{Folder, Outcome, Result, Subject, for_any, here, repetitions, strandline, subject};

const REMEDY: [&str; 5] = ["reclaim", "--json", "--remedy", "v8_memory_pressure", "--quiet-for=0s"];

/// How long to wait for a thread that waits for events, unless `more` sets it: longer than a busy
/// machine needs.
const WAIT: &str = "--wait=600";

fn reclaim(subject: &Subject, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let pid = subject.pid_text();
    let wait = (!more.iter().any(|word| word.starts_with("--wait"))).then_some(WAIT);
    let arguments: Vec<&str> = REMEDY.iter().chain(more).copied().chain(wait).chain([pid.as_str()]).collect();
    let run = strandline::run(&arguments)?;
    let document = run.document()?;
    Ok((run.status, document))
}

/// Whether its timers run, and its data is unchanged.
fn check_answers(subject: &mut Subject) -> Outcome {
    let before = subject::number(&subject.ask(b's')?, "checks")?;
    let after = subject::number(&subject.ask(b't')?, "checks")?;
    if after > before { Ok(()) } else { Err(format!("{before} checks, then {after}").into()) }
}

/// Bytes on the rows of V8's heap: not those in malloc's blocks.
fn of_v8(document: &Value) -> u64 {
    let in_blocks = ["v8.buffer", "v8.buffer.shared", "v8.external_string", "v8.metadata"];
    let rows = document["rows"].as_array().into_iter().flatten();
    let own = rows
        .filter(|row| row["id"].as_str().is_some_and(|id| id.starts_with("v8.") && !in_blocks.contains(&id)));
    own.filter_map(|row| row["bytes"].as_u64()).sum()
}

fn idle_bytes(document: &Value) -> u64 {
    strandline::row(document, "v8.pool") + strandline::row(document, "v8.young.idle")
}

/// A program past its peak: most of its pages hold no object.
fn past_its_peak(node: &str, flags: &[&str]) -> Result<Subject> {
    let mut subject = start(node, flags, &[])?;
    for command in *b"ccdg" {
        subject.ask(command)?;
    }
    Ok(subject)
}

/// The remedy in a document.
fn remedy(document: &Value) -> Option<&Value> {
    let remedies = document["remedies"].as_array().into_iter().flatten();
    remedies.into_iter().find(|remedy| remedy["id"] == "v8_memory_pressure")
}

/// Without a trace of objects the ledger predicts a lower bound, with one the released bytes.
#[test]
fn v8_releases_at_least_the_pages_without_objects() -> Outcome {
    let flags: [&[&str]; 2] = [&[], &["--jitless"]];
    let nodes = nodes::all(here!());
    for_any(nodes.iter().flat_map(|node| flags.map(|flags| (node, flags))), |(node, flags)| {
        let mut subject = past_its_peak(&node.path, flags)?;
        // More than 32 MiB of objects are not traced while a process waits.
        let pid = subject.pid_text();
        let untraced = ["explain", "--json", "--quiet-for=0s", "--snapshot=never", pid.as_str()];
        let offered = strandline::run(&untraced)?.document()?;
        let bound = remedy(&offered).ok_or("not offered")?;
        let least = bound["predicted_least_bytes"].as_u64().or(bound["predicted_bytes"].as_u64());
        let least = least.ok_or("no lower bound")?;
        // A dry run finds the same thread.
        let (status, dry) = reclaim(&subject, &["--dry-run"])?;
        if status != Some(0) || dry["outcome"] != "done" || !dry["after"].is_null() {
            return Err(format!("dry run {status:?}: {dry}").into());
        }
        let (status, document) = reclaim(&subject, &[])?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(format!("{status:?}, {}, {}", document["outcome"], document["reason"]).into());
        }
        check_answers(&mut subject)?;
        let kept = idle_bytes(&offered).saturating_sub(least);
        let fall = of_v8(&document["before"]).saturating_sub(of_v8(&document["after"]));
        let rss = subject::number(&document, "rss_before_bytes")?
            .saturating_sub(subject::number(&document, "rss_after_bytes")?);
        let figures = format!(
            "at least {least} (pool and idle young generation but {kept}), V8's rows fell by {fall}, RSS by {rss}, called for {}, stopped {}",
            document["call_seconds"], document["stopped_seconds"]
        );
        println!("Node.js {} {flags:?}: {figures}", node.major);
        // What the bound leaves out: the initial young generation, young objects, a page a space.
        if least < 16 << 20 || kept > 8 << 20 || fall < least || rss < least {
            return Err(figures.into());
        }
        check_prediction(&document, fall, 0)
    })
}

/// Whether V8's rows fell by the prediction, `task_released` bytes of `fall` not counted. If only
/// stale words refer to some objects, which may then be garbage, the prediction has bounds.
fn check_prediction(document: &Value, fall: u64, task_released: u64) -> Outcome {
    let before = &document["before"];
    let stated = remedy(before).ok_or("not offered")?;
    let figures = format!("{stated}: fell by {fall}");
    let is_right = match document["predicted_bytes"].as_u64() {
        // The initial young generation may be resident or not.
        Some(predicted) => predicted.abs_diff(fall - task_released) <= fall / 20 + (1 << 20),
        None => document["predicted_least_bytes"].as_u64().is_some_and(|least| least <= fall),
    };
    let is_actual = document["actual_bytes"].as_u64() == Some(fall);
    if is_right && is_actual { Ok(()) } else { Err(figures.into()) }
}

/// The prediction includes objects that died since the last collection.
#[test]
fn garbage_is_predicted() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        // The second command drops the objects that the first left in the old space.
        for command in *b"kcd" {
            subject.ask(command)?;
        }
        subject.at_rest()?;
        let (status, document) = reclaim(&subject, &[])?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(format!("{status:?}, {}, {}", document["outcome"], document["reason"]).into());
        }
        check_answers(&mut subject)?;
        let fall = of_v8(&document["before"]).saturating_sub(of_v8(&document["after"]));
        let dead = strandline::row(&document["before"], "v8.dead");
        println!(
            "Node.js {}: {dead} dead, {} predicted, fell by {fall}",
            node.major, document["predicted_bytes"]
        );
        if dead == 0 {
            return Err("no objects were traced".into());
        }
        check_prediction(&document, fall, 0)
    })
}

#[test]
fn heaps_of_workers_are_released_too() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"wwccdg" {
            subject.ask(command)?;
        }
        let (status, document) = reclaim(&subject, &[])?;
        let isolates = |document: &Value| {
            let all = document["runtimes"].as_array().into_iter().flatten();
            all.filter_map(|runtime| runtime["v8"]["isolates"].as_u64()).sum::<u64>()
        };
        let (before, after) = (&document["before"], &document["after"]);
        if status != Some(0) || isolates(before) != 3 || isolates(after) != 3 {
            return Err(document["reason"].to_string().into());
        }
        if idle_bytes(after) * 4 > idle_bytes(before) {
            return Err(format!("{} of {} are still idle", idle_bytes(after), idle_bytes(before)).into());
        }
        check_answers(&mut subject)
    })
}

/// From Node.js 24 on, V8 keeps the pooled pages of ended isolates, and the prediction excludes them.
/// A task of V8 releases them eight seconds later (`PagePool::ReleaseOnTearDown`,
/// src/heap/page-pool.cc), which may be during the remedy: then no page stays in the pool.
#[test]
fn pages_of_ended_workers_are_not_predicted() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = start(&node.path, &[], &[])?;
        for command in *b"wwcdeeg" {
            subject.ask(command)?;
        }
        let (status, document) = reclaim(&subject, &[])?;
        let fall = of_v8(&document["before"]).saturating_sub(of_v8(&document["after"]));
        let [pool, pool_after] =
            ["before", "after"].map(|moment| strandline::row(&document[moment], "v8.pool"));
        println!(
            "Node.js {}: {} predicted, {pool} pooled, {pool_after} afterwards, fell by {fall}",
            node.major, document["predicted_bytes"]
        );
        // If few pages are idle, the remedy is not offered.
        if remedy(&document["before"]).is_some() {
            if status != Some(0) {
                return Err(document["reason"].to_string().into());
            }
            let predicted = document["predicted_bytes"].as_u64();
            let excess = predicted.map_or(0, |predicted| fall.saturating_sub(predicted));
            let task_released = if node.major >= 24 && pool_after == 0 { excess.min(pool) } else { 0 };
            check_prediction(&document, fall, task_released)?;
        }
        check_answers(&mut subject)
    })
}

/// Where little can be released, the remedy is not offered: a request for it gets the reason.
#[test]
fn a_missing_prediction_has_a_reason() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, &[], &[])?;
        let (_, dry) = reclaim(&subject, &["--dry-run"])?;
        if dry["predicted_bytes"].is_null() && !dry["reason"].is_string() {
            return Err(format!("no reason: {dry}").into());
        }
        Ok(())
    })
}

/// While strandline waits for a blocked worker, the timers of other threads run.
#[test]
fn a_blocked_worker_delays_no_timer() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let mut subject = past_its_peak(&node.path, &[])?;
        subject.ask(b'x')?;
        let pid = subject.pid_text();
        let arguments: Vec<&str> = REMEDY.iter().copied().chain([WAIT, &pid]).collect();
        let mut run = strandline::command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // strandline reads the process first, and then waits.
        for is_wanted in [true, false] {
            until("the read of the process", || Ok((is_traced(subject.pid()) == is_wanted).then_some(())))?;
        }
        let timers = (0..5).map(|_| subject.ask(b'i')).collect::<Result<Vec<_>>>();
        let is_waiting = run.try_wait()?.is_none();
        run.kill()?;
        run.wait()?;
        timers?;
        if is_waiting {
            check_answers(&mut subject)
        } else {
            Err("strandline did not wait for the worker".into())
        }
    })
}

/// Copies a program, with another name for one of its symbols.
fn without_symbol(node: &str, folder: &Folder, symbol: &str) -> Result<PathBuf> {
    const RENAME: &str = r#"LC_ALL=C sed "s/\x00$1\x00/\x00X${1#?}\x00/g" "$2" > "$3" && chmod 755 "$3""#;
    let path = Command::new(node).args(["-p", "process.execPath"]).output()?.stdout;
    let copy = folder.0.join(symbol);
    let mut shell = Command::new("sh");
    shell.args(["-c", RENAME, "sh", symbol, String::from_utf8(path)?.trim()]).arg(&copy);
    let status = shell.status()?;
    if status.success() { Ok(copy) } else { Err(format!("{shell:?}: {status}").into()) }
}

/// strandline calls nothing if it does not find the function, or the one in which helper threads
/// wait.
#[test]
fn nothing_is_called_if_a_function_is_missing() -> Outcome {
    let folder = Folder::new("v8-reclaim")?;
    let function = "_ZN2v87Isolate26MemoryPressureNotificationENS_19MemoryPressureLevelE";
    let cases = [(function, "does not export"), ("uv_cond_wait", "helper thread")];
    // One version in a short run: each copy has 100 MB.
    let some = nodes::all(here!()).into_iter().take(repetitions(1, 5) as usize);
    for_any(some.flat_map(|node| cases.map(|case| (node.clone(), case))), |(node, (symbol, words))| {
        let program = without_symbol(&node.path, &folder, symbol)?;
        let mut subject = past_its_peak(&program.display().to_string(), &[])?;
        for more in [&[][..], &["--dry-run"]] {
            let (status, document) = reclaim(&subject, more)?;
            let reason = document["reason"].as_str().unwrap_or_default();
            if status != Some(3) || document["outcome"] != "refused" || !reason.contains(words) {
                return Err(document["reason"].to_string().into());
            }
        }
        check_answers(&mut subject)
    })
}

/// A subject past its peak with a named pipe to wait for.
fn with_pipe(node: &str, pipe: &Path) -> Result<Subject> {
    mkfifo(pipe, Mode::S_IRWXU)?;
    let mut subject = start(node, &[], &["idle", &pipe.display().to_string()])?;
    for command in *b"ccdg" {
        subject.ask(command)?;
    }
    Ok(subject)
}

/// Waits until the main thread sleeps in a system call.
fn until_in_call(subject: &Subject, numbers: &[&str]) -> Outcome {
    let main = format!("/proc/{}/syscall", subject.pid());
    until("the main thread to block", || {
        let call = fs::read_to_string(&main)?;
        Ok(numbers.iter().any(|number| call.split(' ').next() == Some(number)).then_some(()))
    })
}

/// Outside of its event loop, the thread of an isolate may be in a lock.
#[test]
fn nothing_is_called_for_a_blocked_thread() -> Outcome {
    let folder = Folder::new("v8-blocked")?;
    for_any(nodes::all(here!()), |node| {
        let pipe = folder.0.join(node.major.to_string());
        let mut subject = with_pipe(&node.path, &pipe)?;
        subject.send(b'b')?;
        until_in_call(&subject, &["257"])?;
        let (status, document) = reclaim(&subject, &["--wait=0.1"])?;
        if status != Some(3) || !document["reason"].as_str().is_some_and(|it| it.contains("event loop")) {
            return Err(format!("{status:?}: {}", document["reason"]).into());
        }
        drop(fs::OpenOptions::new().write(true).open(&pipe)?);
        subject.answer()?;
        check_answers(&mut subject)
    })
}

/// The thread of an isolate that waits in another event loop (`spawnSync`) collects when it is back
/// in its own.
#[test]
fn a_blocked_thread_collects_later() -> Outcome {
    let folder = Folder::new("v8-nested")?;
    for_any(nodes::all(here!()), |node| {
        let pipe = folder.0.join(node.major.to_string());
        let mut subject = with_pipe(&node.path, &pipe)?;
        subject.send(b'n')?;
        let children = format!("/proc/{0}/task/{0}/children", subject.pid());
        until("the child", || Ok((!fs::read_to_string(&children)?.is_empty()).then_some(())))?;
        until_in_call(&subject, &["232", "281"])?;
        let (status, document) = reclaim(&subject, &[])?;
        let has_caveat = strandline::caveats(&document).iter().any(|code| code == "not_collected_yet");
        if status != Some(0) || !has_caveat || subject::number(&document, "actual_bytes")? > 1 << 20 {
            return Err(format!("{status:?}: {} {}", document["reason"], document["caveats"]).into());
        }
        // A second request would do nothing.
        let (status, document) = reclaim(&subject, &["--wait=0.1"])?;
        if status != Some(3) || !document["reason"].as_str().is_some_and(|it| it.contains("earlier request"))
        {
            return Err(format!("{status:?}: {}", document["reason"]).into());
        }
        drop(fs::OpenOptions::new().write(true).open(&pipe)?);
        subject.answer()?;
        until("V8 to release the memory", || {
            Ok((idle_bytes(&strandline::explain(subject.pid())?) < 8 << 20).then_some(()))
        })?;
        check_answers(&mut subject)
    })
}

/// At the end of a program its isolate is still there, but not Node's platform. A thread of an
/// addon waits in libuv's function, but not in libuv's or Node's loop.
#[test]
fn nothing_is_called_while_a_program_exits() -> Outcome {
    let folder = Folder::new("v8-end")?;
    let library = folder.0.join("preloaded.so");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library);
    cc.args(["node/helper_thread.c", "stay_at_exit.c"]).current_dir(sources);
    assert!(cc.status()?.success(), "{cc:?}");
    for_any(nodes::all(here!()), |node| {
        let mut command = command(&node.path, &[], &[]);
        command.env("LD_PRELOAD", &library);
        let mut subject = Subject::start_command(command)?;
        for command in *b"ccdg" {
            subject.ask(command)?;
        }
        // The thread of the addon, the first after the main one, is not chosen.
        let (status, document) = reclaim(&subject, &[])?;
        if status != Some(0) {
            return Err(document["reason"].to_string().into());
        }
        check_answers(&mut subject)?;
        assert_eq!(subject.ask(b'q')?, "ready");
        for more in [&["--wait=0.5"][..], &["--wait=0.5", "--dry-run"]] {
            let (status, document) = reclaim(&subject, more)?;
            if status != Some(3) || document["outcome"] != "refused" {
                return Err(format!("{more:?}: {status:?}, {}", document["reason"]).into());
            }
        }
        let end = subject.finish()?;
        if end.success() { Ok(()) } else { Err(end.to_string().into()) }
    })
}

#[test]
fn without_v8_nothing_is_called() -> Outcome {
    let subject = Subject::idle()?;
    let (status, document) = reclaim(&subject, &[])?;
    assert_eq!((status, document["outcome"].as_str()), (Some(3), Some("refused")), "{document}");
    assert!(document["reason"].as_str().is_some_and(|reason| reason.contains("V8")), "{document}");
    Ok(())
}

/// Waits until strandline has stopped the process to read it, and stops it again for the call.
fn until_called(subject: &Subject, run: &mut Child) -> Outcome {
    for is_wanted in [true, false, true] {
        until("the call", || {
            Ok((is_traced(subject.pid()) == is_wanted || run.try_wait()?.is_some()).then_some(()))
        })?;
    }
    Ok(())
}

/// Kills strandline while all threads of the program work, and isolates begin and end: at instants
/// spread over a run, and soon after it has stopped a thread for the call.
#[test]
fn kills_at_any_instant_do_no_harm() -> Outcome {
    let nodes = nodes::all(here!());
    let kills = repetitions(4, 300).div_ceil(nodes.len().max(1) as u64);
    for_any(nodes, |node| {
        let mut subject = start(&node.path, &[], &["load"])?;
        subject.ask(b'w')?;
        let began = Instant::now();
        // On a busy machine the thread of an isolate seldom waits for events.
        let (_, document) = reclaim(&subject, &[])?;
        if document["outcome"] != "done" {
            return Err(document["reason"].to_string().into());
        }
        let whole = began.elapsed();
        let pid = subject.pid_text();
        let mut while_traced = 0;
        for turn in 0..kills {
            let arguments: Vec<&str> = REMEDY.iter().copied().chain([pid.as_str()]).collect();
            let mut run =
                strandline::command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            subject.send(if turn % 2 == 0 { b'e' } else { b'w' })?;
            // Parts that never repeat: multiples of the golden ratio.
            let share = (turn as f64 * 0.618_033_988_75).fract();
            let delay = if turn % 3 == 0 {
                whole.mul_f64(share)
            } else {
                until_called(&subject, &mut run)?;
                Duration::from_millis(4).mul_f64(share)
            };
            let since = Instant::now();
            until_true("the instant of the kill", || since.elapsed() >= delay)?;
            while_traced += u64::from(is_traced(subject.pid()));
            run.kill()?;
            run.wait()?;
            until_free(subject.pid())?;
            subject.answer()?;
            check_answers(&mut subject)?;
        }
        println!("Node.js {}: {kills} kills, {while_traced} while it traced a thread", node.major);
        // It still answers, and ends as it should.
        let (status, _) = reclaim(&subject, &[])?;
        check_answers(&mut subject)?;
        let end = subject.finish()?;
        if status == Some(0) && end.success() { Ok(()) } else { Err(format!("{status:?}, {end:?}").into()) }
    })
}

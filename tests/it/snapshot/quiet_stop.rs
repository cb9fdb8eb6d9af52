//! A stop has no effect on the process: no EINTR, no changed result, no process left stopped or
//! traced, whatever it does meanwhile.

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::support::waiting::{self, until, until_true};
use crate::support::{Outcome, Result, Subject, invariants, repetitions, strandline, subject};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

fn explain(pid: i32) -> Result<Value> {
    let document = strandline::json(&["explain", "--json", "--quiet-for", "0", &pid.to_string()])?;
    invariants::check(&document)?;
    Ok(document)
}

/// State letter and tracer of a process.
fn state(pid: i32) -> Result<(char, i32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    Ok((field("State:").chars().next().ok_or("no state")?, field("TracerPid:").parse()?))
}

#[test]
fn blocking_calls_see_no_interruption() -> Outcome {
    let mut subject = Subject::start("eintr_watch", &[])?;
    for _ in 0..repetitions(15, 100) {
        explain(subject.pid())?;
    }
    let returns_before = subject::number(&subject.ask(b'c')?, "returns")?;
    let report = until("the timed calls to continue", || {
        let report = subject.ask(b'c')?;
        Ok((subject::number(&report, "returns")? > returns_before).then_some(report))
    })?;
    assert_eq!(report["total"], 0, "{report}");
    assert_eq!(state(subject.pid())?.1, 0, "not traced any more");
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_stopped_process_stays_stopped() -> Outcome {
    let mut subject = Subject::start("fragmented", &["20000"])?;
    let pid = subject.pid();
    strandline_sys::signal::send(pid, SIGSTOP)?;
    // A released thread runs within the kernel for a moment, until it is back in the group stop.
    let is_stopped = || state(pid).is_ok_and(|state| state == ('T', 0));
    until_true("the stop", is_stopped)?;
    for _ in 0..5 {
        explain(pid)?;
        until_true("the stop again", is_stopped)?;
    }
    strandline_sys::signal::send(pid, SIGCONT)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    Ok(())
}

/// Waits until the count `name` of a subject grows, and checks that nothing was wrong.
fn count_grows(subject: &mut Subject, name: &str) -> Outcome {
    let before = subject::number(&subject.ask(b'c')?, name)?;
    let after = until("the count to grow", || {
        let now = subject.ask(b'c')?;
        Ok((subject::number(&now, name)? > before).then_some(now))
    })?;
    assert_eq!(after["wrong"], 0, "{after}");
    Ok(())
}

/// Explains a changing process repeatedly; strandline must report if it has ended or was replaced.
/// Returns the number of documents.
fn explain_often(subject: &Subject, times: u64) -> Result<u64> {
    let mut documents = 0;
    for _ in 0..times {
        let run = strandline::run(&["explain", "--json", "--quiet-for", "0", &subject.pid_text()])?;
        match run.status {
            Some(0) => {
                invariants::check(&serde_json::from_str(&run.stdout)?)?;
                documents += 1;
            }
            Some(3) if run.stderr.lines().count() == 1 && !run.stderr.contains("panicked") => {}
            _ => return Err(run.summary().into()),
        }
    }
    Ok(documents)
}

#[test]
fn a_forking_process_is_read_and_continues() -> Outcome {
    let mut subject = Subject::start("forker", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(explain_often(&subject, times)?, times);
    let report = subject.ask(b'c')?;
    assert_eq!(report["wrong"], 0, "{report}");
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_executes_itself_is_read_each_time() -> Outcome {
    let subject = Subject::start("execer", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(explain_often(&subject, times)?, times, "the program that runs at the stop is read");
    assert_eq!(state(subject.pid())?.1, 0);
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_spawns_threads_is_read_each_time() -> Outcome {
    let mut subject = Subject::start("thread_spawner", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(explain_often(&subject, times)?, times);
    count_grows(&mut subject, "ended")?;
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_tight_malloc_loop_is_explained_and_reclaimed() -> Outcome {
    let mut subject = Subject::start("malloc_loop", &["8"])?;
    let times = repetitions(4, 30);
    assert_eq!(explain_often(&subject, times)?, times);
    let document = strandline::json(&["reclaim", "--json", "--wait", "600", &subject.pid_text()])?;
    assert_ne!(document["outcome"], "refused", "{}", document["reason"]);
    count_grows(&mut subject, "rounds")?;
    assert_eq!(state(subject.pid())?.1, 0);
    assert!(subject.finish()?.success());
    Ok(())
}

/// Waits until process `pid` is stopped for reading, or the read has ended. Sleeps between polls:
/// the kernel wakes a sleeping thread at once, even beside busy ones, while a spinning thread may
/// just have been preempted.
fn until_stopped<T>(pid: i32, explainer: &JoinHandle<T>) {
    while !explainer.is_finished() && waiting::state(pid, pid) != Some('t') {
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_process_that_ends_during_a_read_is_reported() -> Outcome {
    let (mut round, mut lost) = (0, 0);
    // The number of kills during a read depends on the machine: at least one must hit.
    while round < repetitions(10, 60) || lost == 0 {
        round += 1;
        let subject = Subject::start("fragmented", &["60000"])?;
        let (pid, pid_text) = (subject.pid(), subject.pid_text());
        let explainer = std::thread::spawn(move || {
            strandline::run(&["explain", "--json", "--quiet-for", "0", &pid_text])
                .map_err(|error| error.to_string())
        });
        until_stopped(pid, &explainer);
        // A killed process ends while it is read. A process that was sent `q` ends once it is
        // released.
        let is_killed = round % 2 == 1;
        if is_killed {
            strandline_sys::signal::send(pid, SIGKILL)?;
        }
        subject.finish()?;
        let run = explainer.join().map_err(|_| "the thread failed")??;
        match run.status {
            Some(0) => invariants::check(&serde_json::from_str(&run.stdout)?)?,
            Some(3) if is_killed => {
                run.complains(3, &[&pid.to_string()])?;
                lost += 1;
            }
            _ => return Err(run.summary().into()),
        }
    }
    Ok(())
}

/// Proportional private bytes of a process (Pss_Anon): shared pages are split among the processes
/// that share them.
fn share_bytes(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).ok_or("no Pss_Anon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// A forked child shares the pages of its parent until one of them writes. A read that faults for
/// writing would copy them.
#[test]
fn reading_keeps_shared_pages_shared() -> Outcome {
    let subject = Subject::start("forked", &["40"])?;
    let child = i32::try_from(subject.number("child")?)?;
    for pid in [child, subject.pid()] {
        for how in [&["--snapshot=never"][..], &["--snapshot"], &["--no-runtimes", "--rows", "all"]] {
            let before = share_bytes(child)?;
            let pid = pid.to_string();
            strandline::json(&[&["explain", "--json", "--quiet-for", "0", &pid], how].concat())?;
            let after = share_bytes(child)?;
            // Copies of all would add 40 MiB; the process itself writes only a few pages meanwhile.
            assert!(after < before + (1 << 20), "{pid} {how:?}: {before} bytes before, {after} after");
        }
    }
    for remedy in [&["malloc_trim"][..], &["zero_pages", "--allow-lost-write-risk"]] {
        let before = share_bytes(child)?;
        let child_text = child.to_string();
        let words = [&["reclaim", "--json", &child_text, "--remedy"], remedy].concat();
        let run = strandline::run(&words)?;
        let after = share_bytes(child)?;
        assert_eq!(run.status, Some(0), "{remedy:?}: {}", run.summary());
        // The released pages were shared; they must not return as copies.
        assert!(after < before + (1 << 20), "{remedy:?}: {before} bytes before, {after} after");
    }
    Ok(())
}

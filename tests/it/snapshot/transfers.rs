//! Reading a target does not cut its transfers short: threads that sleep in one are not stopped. A
//! transfer that was cut short anyway is reported.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::waiting::{self, until, until_true};
use crate::support::{
    Outcome, Result, Subject, for_each, here, invariants, repetitions, skipped, strandline, subject,
};

const BYTES: u64 = 1 << 20;
const CALLS: [&str; 6] = ["write", "writev", "send", "sendmsg", "sendfile", "recv"];

fn explain(subject: &Subject, arguments: &[&str]) -> Result<Value> {
    let pid = subject.pid_text();
    strandline::json(&[&["explain", "--json"][..], arguments, &[&pid]].concat())
}

fn short_transfers(document: &Value) -> usize {
    let caveats = document["caveats"].as_array().map_or(&[][..], Vec::as_slice);
    caveats.iter().filter(|caveat| caveat["code"] == "short_transfer").count()
}

/// Explains a process with all threads asleep in transfers, except one working thread if `busy`,
/// and lets the transfers finish.
fn check_transfers(busy: bool, runs: &[&[&str]]) -> Outcome {
    let mut subject = Subject::start("transfers", if busy { &["busy"] } else { &[] })?;
    for arguments in runs {
        let document = explain(&subject, arguments)?;
        let stopped = document["cost"]["stopped_seconds"].as_f64();
        assert_eq!(stopped == Some(0.0), !busy, "{arguments:?}: stopped for {stopped:?}");
        assert_eq!(document["target"]["threads"], CALLS.len() + 1 + usize::from(busy));
        assert_eq!(short_transfers(&document), 0, "{arguments:?}: {}", document["caveats"]);
        // The stacks of threads that were not stopped are reported too.
        let stacks =
            document["rows"].as_array().ok_or("no rows")?.iter().find(|row| row["id"] == "program.stack");
        assert!(stacks.is_some_and(|row| row["bytes"].as_u64() > Some(0)), "{}", document["rows"]);
    }
    let returned = subject.ask(b'd')?;
    for call in CALLS {
        assert_eq!(subject::number(&returned, call)?, BYTES, "{call} was cut short: {returned}");
    }
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_sleeps_is_not_stopped() -> Outcome {
    check_transfers(false, &[&[], &["--snapshot=never"], &["--snapshot=try"], &["--max-stop", "1ms"]])
}

#[test]
fn threads_asleep_in_a_transfer_are_not_stopped() -> Outcome {
    check_transfers(true, &[&[], &["--snapshot=never"], &["--snapshot=always"], &["--quiet-for", "0s"]])
}

#[test]
fn a_transfer_that_was_cut_short_has_a_caveat() -> Outcome {
    let mut subject = Subject::start("transfers", &["producer"])?;
    let (mut documents, mut with_caveat) = (0, 0);
    // A stop cuts a write short if the writer is awake within it.
    until("a write that was cut short", || {
        let document = explain(&subject, &["--quiet-for", "0s"])?;
        documents += 1;
        with_caveat += short_transfers(&document) as u64;
        let counts = subject.ask(b'c')?;
        let shorts = subject::number(&counts, "shorts")?;
        assert!(shorts <= with_caveat, "{shorts} writes were short, {with_caveat} were reported");
        Ok((documents >= repetitions(10, 200) && shorts > 0).then_some(()))
    })?;
    assert!(subject.finish()?.success());
    Ok(())
}

/// strandline repeats calls that wait for a FUSE server which answers an interrupted request with
/// EINTR. A thread that waits for a server which ignores interrupts cannot be stopped, and its
/// transfer is not cut short either.
#[test]
fn interrupted_calls_to_a_fuse_server_are_repeated() -> Outcome {
    for_each([&[][..], &["deaf"]], |arguments| {
        let mut subject = Subject::start("fuse", arguments)?;
        if subject.ready["missing"] != 0 {
            skipped(here!(), "no FUSE file system can be mounted here");
            return Ok(());
        }
        let pid = subject.pid_text();
        for options in [&["--quiet-for", "0s"][..], &["--snapshot=try"]] {
            let run = strandline::run(&[&["explain", "--json"][..], options, &[&pid]].concat())?;
            assert!(matches!(run.status, Some(0 | 3)), "{}", run.summary());
        }
        let returned = subject.ask(b'd')?;
        for call in ["read", "pread", "readv", "preadv", "write", "pwrite", "stat", "open"] {
            assert_eq!(subject::number(&returned, call)?, 4096, "{call}: {returned}");
        }
        let interrupted = subject::number(&returned, "interrupted")?;
        // By default threads asleep in writes are not stopped; the six others are.
        assert!(interrupted >= if arguments.is_empty() { 6 } else { 1 }, "{returned}");
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// A program that does nothing, with its arguments.
#[derive(Debug)]
struct Idle {
    program: &'static str,
    arguments: &'static [&'static str],
    /// The calls in which its threads may sleep, and the number of threads that do.
    last: (&'static [&'static str], usize),
}

impl Idle {
    /// Whether process `pid` has started and is idle: enough threads sleep in these calls, and all
    /// others wait for them.
    fn is_idle(&self, pid: i32) -> bool {
        let call = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
        let calls: Vec<String> =
            waiting::threads(pid).into_iter().map(|tid| call(tid).unwrap_or_default()).collect();
        let is_last = |call: &&String| self.last.0.iter().any(|last| call.starts_with(last));
        calls.iter().filter(is_last).count() >= self.last.1
            && calls.iter().all(|call| call.starts_with(|c: char| c.is_ascii_digit()))
    }
}

const THREADS: &str = "import threading, time
for i in range(9): threading.Thread(target=time.sleep, args=(1000,)).start()";

#[test]
fn idle_programs_are_not_stopped() -> Outcome {
    // clock_nanosleep, nanosleep; read of standard input; select, pselect6, poll.
    const SLEEP: &[&str] = &["230 ", "35 "];
    const READ: &[&str] = &["0 0x0 "];
    const SELECT: &[&str] = &["23 ", "270 ", "7 "];
    let idle = |program, arguments, last| Idle { program, arguments, last };
    let programs = [
        idle("sleep", &["1000"], (SLEEP, 1)),
        idle("cat", &[], (READ, 1)),
        idle("bash", &["-c", "read line"], (READ, 1)),
        idle("perl", &["-e", "sleep 1000"], (SLEEP, 1)),
        idle("python3", &["-c", THREADS], (SLEEP, 9)),
        idle("sbcl", &["--noinform", "--eval", "(sleep 1000)"], (SLEEP, 1)),
        idle("guile", &["-c", "(sleep 1000)"], (SELECT, 1)),
    ];
    for_each(programs, |idle| {
        let mut command = Command::new(idle.program);
        let started = command.args(idle.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let Ok(mut child) = started else {
            skipped(&format!("{} with {}", here!(), idle.program), "it is not installed");
            return Ok(());
        };
        let pid = child.id().cast_signed();
        let explained = until_true("the program to become idle", || idle.is_idle(pid))
            .and_then(|()| strandline::json(&["explain", "--json", &pid.to_string()]));
        child.kill()?;
        child.wait()?;
        let document = explained?;
        let stopped = document["cost"]["stopped_seconds"].as_f64();
        if stopped != Some(0.0) {
            return Err(format!("stopped for {stopped:?} seconds").into());
        }
        invariants::check(&document)
    })
}

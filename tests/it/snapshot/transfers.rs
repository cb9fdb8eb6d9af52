//! Reading a target does not cut its transfers short: threads that sleep in one are not stopped. A
//! transfer that was cut short anyway is reported.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::waiting::{self, until};
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
fn looked_at(busy: bool, looks: &[&[&str]]) -> Outcome {
    let mut subject = Subject::start("transfers", if busy { &["busy"] } else { &[] })?;
    for arguments in looks {
        let document = explain(&subject, arguments)?;
        let stopped = document["cost"]["stopped_seconds"].as_f64();
        assert_eq!(stopped == Some(0.0), !busy, "{arguments:?}: stopped for {stopped:?}");
        assert_eq!(document["target"]["threads"], CALLS.len() + 1 + usize::from(busy));
        assert_eq!(short_transfers(&document), 0, "{arguments:?}: {}", document["caveats"]);
        // The stacks of threads that were not stopped are known too.
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
    looked_at(false, &[&[], &["--snapshot=never"], &["--snapshot=try"], &["--max-stop", "1ms"]])
}

#[test]
fn threads_that_sleep_in_a_transfer_are_left_asleep() -> Outcome {
    looked_at(true, &[&[], &["--snapshot=never"], &["--snapshot=always"], &["--quiet-for", "0s"]])
}

#[test]
fn a_transfer_that_was_cut_short_is_said() -> Outcome {
    let mut subject = Subject::start("transfers", &["producer"])?;
    let mut said = 0;
    for _ in 0..repetitions(10, 200) {
        let document = explain(&subject, &["--quiet-for", "0s"])?;
        said += short_transfers(&document) as u64;
        let counts = subject.ask(b'c')?;
        let shorts = subject::number(&counts, "shorts")?;
        assert!(shorts <= said, "{shorts} writes were short, {said} were said");
    }
    assert!(subject.finish()?.success());
    Ok(())
}

/// Whether all threads of a process sleep in a system call.
fn sleeps(pid: i32) -> bool {
    let call = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    waiting::threads(pid).into_iter().all(|tid| call(tid).starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn idle_programs_are_not_stopped() -> Outcome {
    let programs: [(&str, &[&str]); 7] = [
        ("sleep", &["1000"]),
        ("cat", &[]),
        ("bash", &["-c", "read line"]),
        ("perl", &["-e", "sleep 1000"]),
        (
            "python3",
            &[
                "-c",
                "import threading, time\nfor i in range(9): threading.Thread(target=time.sleep, args=(1000,)).start()",
            ],
        ),
        ("sbcl", &["--noinform", "--eval", "(sleep 1000)"]),
        ("guile", &["-c", "(sleep 1000)"]),
    ];
    for_each(programs, |(program, arguments)| {
        let mut command = Command::new(program);
        let started = command.args(*arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let Ok(mut child) = started else {
            skipped(&format!("{} with {program}", here!()), "it is not here");
            return Ok(());
        };
        let pid = child.id().cast_signed();
        // The program first has to start up; how long it then sleeps differs.
        let looked = until("a look without a stop", || {
            if !sleeps(pid) {
                return Ok(None);
            }
            let document = strandline::json(&["explain", "--json", &pid.to_string()])?;
            Ok((document["cost"]["stopped_seconds"] == 0.0).then_some(document))
        });
        child.kill()?;
        child.wait()?;
        invariants::hold(&looked?)
    })
}

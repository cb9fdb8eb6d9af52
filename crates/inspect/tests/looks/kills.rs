//! A process that ends while it is inspected: its parent gets its status, and nothing is left of
//! it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strandline_inspect::explain::{Options, explain};
use strandline_inspect::inspection;
use strandline_process::procfs::Process;
use strandline_process::target::hold::on_own_thread;
use strandline_process::target::stop::{Stopped, Transfers};
use strandline_sys::ptrace::{self, Event};

use crate::subject::{PATIENCE, Subject, ending, state, until};

fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_child_killed_during_a_read_leaves_its_status_to_its_waiter() {
    for threads in ["0", "4"] {
        let mut subject = Subject::start(ending(), &["hold", threads]);
        let pid = subject.pid();
        let killed = AtomicBool::new(false);
        let progress = |_: &str, _: u64, _: u64| {
            if !killed.swap(true, Ordering::SeqCst) {
                kill(pid);
            }
        };
        // The result depends on how far the inspection got.
        let _ = inspection::inspect(
            pid,
            &Options { progress: Some(&progress), quiet_for: Duration::ZERO, ..Options::default() },
        );
        assert!(killed.into_inner(), "the heap was read");
        assert_eq!(subject.child.wait().unwrap().signal(), Some(9));
        assert_eq!(state(&pid.to_string()), None);
    }
}

#[test]
fn a_stranger_that_is_killed_while_it_is_stopped_leaves_its_status_to_its_parent() {
    let script = "\"$0\" hold 2 & echo $!; wait $!; echo ended $?";
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .arg(ending())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || lines.next().unwrap_or_default();
    let (first_line, second_line) = (next(), next());
    let pid: i32 = if first_line.starts_with("ready") { &second_line } else { &first_line }.parse().unwrap();
    let process = Process::open(pid).unwrap();
    on_own_thread(Duration::from_secs(600), || {
        let stopped = Stopped::stop_within(&process, PATIENCE, Transfers::Stop).unwrap();
        assert_eq!(stopped.threads().count(), 3);
        kill(pid);
        until("it ends", || state(&pid.to_string()) == Some('Z'));
        // The end of this thread releases what is left; no wait does.
    })
    .unwrap();
    assert_eq!(next(), "ended 137");
    assert_eq!(state(&pid.to_string()), None, "no zombie");
    shell.wait().unwrap();
}

#[test]
fn a_thread_that_ends_while_it_is_traced_leaves_no_zombie() {
    let mut subject = Subject::start(ending(), &["one", "2"]);
    let pid = subject.pid();
    let tid: i32 = subject.words[0].parse().unwrap();
    let path = format!("{pid}/task/{tid}");
    on_own_thread(Duration::from_secs(600), || {
        ptrace::seize(tid, 0).unwrap();
        subject.go();
        assert_eq!(ptrace::wait(tid).unwrap(), Event::Exited { status: Some(0), signal: None });
        assert_eq!(state(&path), Some('Z'), "its tracer keeps it");
    })
    .unwrap();
    until("the zombie goes with its tracer", || state(&path).is_none());
    assert!(
        explain(pid, &Options { quiet_for: Duration::ZERO, ..Options::default() }).is_ok(),
        "the others live on"
    );
}

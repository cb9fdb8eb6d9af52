//! The ledger of an ending process, held at PTRACE_EVENT_EXIT by a thread of this one.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use strandline_inspect::Error;
use strandline_inspect::explain::{Ending, Options, at_exit};
use strandline_inspect::facts::{Explanation, RemedyKind};
use strandline_process::target::hold::on_own_thread;
use strandline_sys::ptrace::{self, Event};

use crate::subject::{Subject, ending, state, until};

/// `PTRACE_O_TRACEEXIT`.
const TRACE_EXIT: i32 = 1 << 6;
/// `PTRACE_EVENT_EXIT`.
const AT_EXIT: Event = Event::Other(6);

/// Makes the subject end with `end`, and explains it at its exit.
fn look(
    ending_kind: &str,
    threads: u64,
    end: impl FnOnce(&mut Subject) + Send,
) -> (Result<Explanation, Error>, ExitStatus) {
    look_with(ending_kind, threads, end, &|_| {})
}

/// Like `look`; calls `meanwhile` with the process's id while its heap is read.
fn look_with(
    ending_kind: &str,
    threads: u64,
    end: impl FnOnce(&mut Subject) + Send,
    meanwhile: &(dyn Fn(i32) + Sync),
) -> (Result<Explanation, Error>, ExitStatus) {
    let mut subject = Subject::start(ending(), &[ending_kind, &threads.to_string()]);
    let pid = subject.pid();
    let others: Vec<String> = subject.words.iter().map(|tid| format!("{pid}/task/{tid}")).collect();
    let result = on_own_thread(Duration::from_secs(600), || {
        ptrace::seize(pid, TRACE_EXIT).unwrap();
        end(&mut subject);
        loop {
            match ptrace::wait(pid).unwrap() {
                AT_EXIT => break,
                Event::Signal(signal) => ptrace::resume(pid, signal).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        // `at_exit` waits for them for a second, which may be short on a busy machine.
        let ended = |other: &String| matches!(state(other), None | Some('Z' | 'X'));
        until("the others end too", || ending_kind == "leader" || others.iter().all(ended));
        let registers = [(pid, ptrace::registers(pid).unwrap())];
        let ending = Ending { registers: &registers, other_threads: threads };
        let progress = |_: &str, _: u64, _: u64| meanwhile(pid);
        let result = at_exit(pid, &ending, &Options { progress: Some(&progress), ..Options::default() });
        // It may have been killed meanwhile.
        let _ = ptrace::detach(pid, 0);
        result
    })
    .unwrap();
    if matches!(result, Err(Error::LeaderEnded { .. })) {
        subject.child.kill().unwrap();
    }
    (result, subject.child.wait().unwrap())
}

/// The bytes of a row.
fn row(explanation: &Explanation, id: &str) -> u64 {
    explanation.rows.iter().find(|row| row.id == id).map_or(0, |row| row.bytes)
}

fn assert_has_heap(explanation: &Explanation, threads: u64) {
    let sum: u64 = explanation.rows.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, explanation.kernel.rss_bytes);
    assert_eq!(explanation.target.threads, threads + 1);
    // Seven eighths of 64 MiB are live, the rest is free in runs of a million bytes.
    let live = row(explanation, "glibc.live");
    assert!((56_000_000..62_000_000).contains(&live), "{live}");
    let free = row(explanation, "glibc.free.trim");
    assert!((8_000_000..9_500_000).contains(&free), "{free}");
    assert!(row(explanation, "program.stack") > 0, "the main thread's stack pointer is known");
    assert!(explanation.remedies.iter().all(|remedy| remedy.kind != RemedyKind::Call));
    let has_gone_threads = explanation.caveats.iter().any(|caveat| caveat.code == "threads_gone");
    assert_eq!(has_gone_threads, threads > 0);
    let other_caveat = explanation.caveats.iter().find(|caveat| caveat.code != "threads_gone");
    assert!(other_caveat.is_none(), "{other_caveat:?}");
}

#[test]
fn every_way_to_end_shows_the_heap_and_keeps_its_status() {
    for threads in [0, 3] {
        for (ending_kind, expected) in [("exit", 7 << 8), ("abort", 6), ("segv", 11)] {
            let (result, status) = look(ending_kind, threads, Subject::go);
            assert_has_heap(&result.unwrap(), threads);
            let core_flag = 0x80;
            assert_eq!(status.into_raw() & !core_flag, expected, "{ending_kind}");
        }
    }
}

#[test]
fn a_second_thread_ends_the_process() {
    let (result, status) = look("thread", 3, Subject::go);
    assert_has_heap(&result.unwrap(), 3);
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_kill_from_outside() {
    for threads in [0, 3] {
        let (result, status) = look("hold", threads, |subject| subject.child.kill().unwrap());
        assert_has_heap(&result.unwrap(), threads);
        assert_eq!(status.signal(), Some(9));
    }
}

#[test]
fn a_kill_during_the_read_yields_no_partial_ledger() {
    let kill = |pid: i32| {
        Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    };
    let (result, status) = look_with("exit", 0, Subject::go, &kill);
    match result {
        Ok(explanation) => assert_has_heap(&explanation, 0),
        Err(error) => assert!(matches!(error, Error::Ended { .. }), "{error}"),
    }
    assert_eq!(status.code(), Some(7));
}

#[test]
fn the_end_of_the_leader_is_not_the_end_of_the_process() {
    let (result, _) = look("leader", 2, Subject::go);
    assert!(matches!(result, Err(Error::LeaderEnded { .. })), "{result:?}");
}

#[test]
fn processes_not_held_by_this_tracer_are_refused() {
    let subject = Subject::start(ending(), &["hold"]);
    let ending = Ending { registers: &[], other_threads: 0 };
    let pid = subject.pid();
    assert!(matches!(at_exit(pid, &ending, &Options::default()), Err(Error::DidNotStop { .. })));
    on_own_thread(Duration::from_secs(600), || {
        ptrace::seize(pid, 0).unwrap();
        let running = at_exit(pid, &ending, &Options::default());
        assert!(matches!(running, Err(Error::DidNotStop { .. })), "{running:?}");
    })
    .unwrap();
}

//! Signals to the target while it is stopped, and while its tracer dies: none may be lost. A dying
//! tracer is a thread that ends without releasing its tracees, which is the same for the kernel.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use strandline_process::target::hold::on_own_thread;
use strandline_process::target::stop::{Stopped, Transfers};
use strandline_sys::ptrace::{self, Event};
use strandline_sys::signal;

use crate::subject::{PATIENCE, Subject, until};
use strandline_synth::scaled;

/// SIGRTMIN, as the C library counts it.
const SIGRTMIN: i32 = 34;

fn is_pending(subject: &Subject) -> bool {
    let fields = ["SigPnd:", "ShdPnd:"];
    fields.iter().any(|field| subject.status_field(subject.pid(), field) != "0000000000000000")
}

/// Waits until no signal is pending for the subject, and returns how many it counted.
fn counted(subject: Subject) -> u64 {
    let pid = subject.pid();
    until("every signal is taken", || !is_pending(&subject));
    subject.settle(pid);
    let (output, _) = subject.finish();
    output.trim().parse().unwrap()
}

#[test]
fn a_signal_that_was_reported_and_not_delivered_outlives_the_tracer() {
    let subject = Subject::start("reclaim_target", &["count"]);
    let pid = subject.pid();
    for _ in 0..50 {
        let event = on_own_thread(Duration::from_secs(600), || {
            ptrace::seize(pid, 0).unwrap();
            signal::send(pid, SIGRTMIN).unwrap();
            ptrace::wait(pid).unwrap()
        });
        assert_eq!(event, Some(Event::Signal(SIGRTMIN)));
        subject.assert_untouched();
    }
    assert_eq!(counted(subject), 50);
}

/// Sets the flag when dropped, also if the test fails: else the scope would wait for its thread.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_signal_is_lost_to_a_tracer_that_dies_with_all_threads_stopped() {
    let subject = Subject::start("reclaim_target", &["count"]);
    let (pid, process) = (subject.pid(), subject.process());
    let (done, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // A full queue drops signals silently: never send many at once.
                for _ in 0..100 {
                    signal::send(pid, SIGRTMIN).unwrap();
                }
                sent.fetch_add(100, Ordering::Relaxed);
                while !done.load(Ordering::Relaxed) && is_pending(&subject) {
                    std::thread::yield_now();
                }
            }
        });
        let _end = SetAtEnd(&done);
        let mut turns = 0;
        // The sender may run late on a busy machine: at least some batches must coincide with the
        // stops.
        while turns < scaled(300, 3000) || sent.load(Ordering::Relaxed) <= 300 {
            turns += 1;
            // Forgotten, it releases no thread: the end of the tracer thread does.
            let stopped = on_own_thread(PATIENCE, || {
                Stopped::stop_within(&process, PATIENCE, Transfers::Stop).map(std::mem::forget)
            });
            stopped.unwrap().unwrap();
            subject.assert_untouched();
        }
    });
    assert_eq!(counted(subject), sent.load(Ordering::Relaxed));
}

/// A collector that stops all threads by a signal waits for a thread in a call, which waits for the
/// lock of a stopped thread: the signal has to be let through.
#[test]
fn a_collector_that_stops_the_world_is_answered_during_a_call() {
    answers_a_collector("a_collector_that_stops_the_world_is_answered_during_a_call", &[]);
}

/// The same if each system call of the thread is a stop, because its own restart state must last.
#[test]
fn a_collector_that_stops_the_world_is_answered_by_a_thread_in_a_timed_wait() {
    answers_a_collector(
        "a_collector_that_stops_the_world_is_answered_by_a_thread_in_a_timed_wait",
        &["poll"],
    );
}

fn answers_a_collector(test: &str, arguments: &[&str]) {
    let subject = Subject::start("collector_signals", arguments);
    if subject.is_missing {
        eprintln!("skipped: {test}: no libgc.so.1 here (scripts/deps installs guile)");
        return;
    }
    for _ in 0..scaled(50, 1000) {
        subject.trim(PATIENCE.as_secs(), Some(subject.pid())).unwrap();
    }
    subject.assert_untouched();
    let (output, status) = subject.finish();
    assert_eq!((status.code(), output.trim().ends_with(" 0")), (Some(0), true), "{output}");
}

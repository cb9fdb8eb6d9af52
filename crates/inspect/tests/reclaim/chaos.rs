//! The chaos test: a target that notices every disturbance, undisturbed calls in each of its
//! threads, and a reclaim that is killed at random instants.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::subject::{NamedThread, PATIENCE, Subject};
use strandline_synth::scaled;

/// Returns the lines of the target's output for the system calls that returned EINTR.
fn interrupted(output: &str) -> Vec<&str> {
    output.lines().filter(|line| line.starts_with("eintr ") && !line.ends_with(" 0")).collect()
}

#[test]
fn undisturbed_calls_go_unnoticed() {
    let subject = Subject::start("chaos_target", &[]);
    // Four or more calls in each of its threads, which do twelve kinds of work.
    for turn in 0..scaled(2, 80) * subject.threads.len() {
        let NamedThread { name, tid } = &subject.threads[turn % subject.threads.len()];
        let applied = subject
            .trim(PATIENCE.as_secs(), Some(*tid))
            .unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(applied.stops, 1);
    }
    subject.assert_untouched();
    let (output, status) = subject.finish();
    assert_eq!(status.code(), Some(0), "{output}");
    assert_eq!(interrupted(&output), [""; 0], "a system call saw an EINTR");
}

/// Returns a number below `below` from a small generator (xorshift64*).
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) % below
}

#[test]
fn a_target_survives_a_reclaim_killed_at_any_instant() {
    killed_at_any_instant(Subject::start("chaos_target", &[]), scaled(24, 800));
}

#[test]
fn a_target_under_a_filter_survives_a_killed_reclaim() {
    killed_at_any_instant(Subject::start_contained("chaos_target", &[]), scaled(12, 800));
}

fn killed_at_any_instant(subject: Subject, turns: usize) {
    let helper = example("reclaim_once");
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    let (mut state, mut turn, mut killed_inside) = (seed, 0, 0);
    let limit = Instant::now() + PATIENCE;
    // On a busy machine a reclaim may be over before this thread runs: at least one kill must come
    // in the middle.
    while turn < turns || killed_inside == 0 {
        assert!(turn < turns || Instant::now() < limit, "seed {seed}: no kill came in the middle");
        let tid = subject.threads[turn % subject.threads.len()].tid;
        let mut command = Command::new(&helper);
        command.arg("--thread").arg(tid.to_string()).arg(subject.pid().to_string()).arg("60");
        command.args(subject.locks.iter().map(|lock| format!("{lock:x}")));
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        // A quarter of the kills come once the thread is seized, a quarter soon after, and half at
        // any instant from the start. The kinds shift with each round, so that each thread gets all
        // of them.
        let kind = (turn + turn / subject.threads.len()) % 4;
        let delay_microseconds = match kind {
            0 => 0,
            1 => random(&mut state, 3_000),
            _ => random(&mut state, 30_000),
        };
        // Sleeps briefly rather than spins: a sleeping thread is woken at once, even next to busy
        // ones.
        while kind < 2
            && subject.status_field(tid, "TracerPid:") == "0"
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_micros(50));
        }
        std::thread::sleep(Duration::from_micros(delay_microseconds));
        let was_inside = subject.status_field(tid, "TracerPid:") != "0";
        child.kill().unwrap();
        turn += 1;
        killed_inside += usize::from(was_inside);
        child.wait().unwrap();
        subject.assert_untouched();
    }
    let (output, status) = subject.finish();
    assert_eq!(status.code(), Some(0), "seed {seed}: {output}");
}

/// Where kills came.
#[derive(Debug, Default)]
struct Kills {
    /// While the thread was in the call, running or waiting.
    in_call: usize,
    /// While the call waited for a lock.
    at_lock: usize,
}

/// Kills reclaims in the first thread of a subject until `wanted` kills came in the call and
/// `wanted_at_lock` while it waited for a lock, which a stopped thread may hold.
fn kill_in_call(subject: &Subject, wanted: usize, wanted_at_lock: usize) {
    let first = subject.pid();
    let own_mask = subject.status_field(first, "SigBlk:");
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    let (mut state, mut turn, mut kills) = (seed, 0, Kills::default());
    while kills.in_call < wanted || kills.at_lock < wanted_at_lock {
        assert!(turn < 500 * (wanted + wanted_at_lock), "seed {seed}: {kills:?} of {turn}");
        let mut command = Command::new(example("reclaim_once"));
        command.arg("--thread").arg(first.to_string()).arg(first.to_string()).arg("60");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let is_traced = || subject.status_field(first, "TracerPid:") != "0";
        while !is_traced() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(50));
        }
        if kills.at_lock < wanted_at_lock && (turn % 2 == 0 || kills.in_call >= wanted) {
            while is_traced() && !subject.waits_for_lock(first) {}
        } else {
            std::thread::sleep(Duration::from_micros(random(&mut state, 5_000)));
        }
        turn += 1;
        let was_at_lock = subject.waits_for_lock(first);
        let was_in_call = subject.status_field(first, "SigBlk:") != own_mask && is_traced();
        child.kill().unwrap();
        child.wait().unwrap();
        kills.at_lock += usize::from(was_in_call && was_at_lock);
        kills.in_call += usize::from(was_in_call);
        subject.assert_untouched();
    }
    eprintln!("{kills:?} of {turn}");
}

/// A collector that stops the world continues, also if strandline dies while a thread that it waits
/// for is in the call.
#[test]
fn a_collector_survives_a_reclaim_killed_at_any_instant() {
    for arguments in [&[][..], &["poll"]] {
        let mut subject = Subject::start("collector_signals", arguments);
        if subject.is_missing {
            eprintln!(
                "skipped: a_collector_survives_a_reclaim_killed_at_any_instant: no libgc.so.1 here (scripts/deps \
                 installs guile)"
            );
            return;
        }
        let first = subject.pid();
        kill_in_call(&subject, scaled(10, 1000), scaled(2, 200));
        // Collections continue: none waits for a thread that no longer answers.
        let before = count(&mut subject, first);
        crate::subject::until("the collector to run on", || count(&mut subject, first) > before + 10);
        let (output, status) = subject.finish();
        assert_eq!((status.code(), output.trim().ends_with(" 0")), (Some(0), true), "{output}");
    }
}

/// A handler that allocates waits until the call has ended, also if strandline dies in it.
#[test]
fn a_handler_that_allocates_waits_for_the_call() {
    let mut subject = Subject::start("allocating_handler", &[]);
    let first = subject.pid();
    for _ in 0..scaled(5, 500) {
        subject.trim(PATIENCE.as_secs(), Some(first)).unwrap();
    }
    kill_in_call(&subject, scaled(5, 1000), 0);
    let before = count(&mut subject, first);
    crate::subject::until("signals are handled", || count(&mut subject, first) > before + 10);
    assert_eq!(subject.finish().1.code(), Some(0));
}

/// What a subject has counted, once its first thread is back in its wait.
fn count(subject: &mut Subject, first: i32) -> u64 {
    subject.assert_state(first, 'S');
    let counts = subject.counts();
    assert_eq!(counts.wrong, 0, "{counts:?}");
    counts.counted
}

/// The program `name` of examples/, which cargo builds with the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is missing: run `cargo build --examples`", program.display());
    program
}

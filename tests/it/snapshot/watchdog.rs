//! strandline releases a target in time, even if strandline is stopped while it holds the target,
//! or killed by a signal that dumps core.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::support::waiting::{self, until, until_free, until_true};
use crate::support::{Outcome, Result, Subject, here, skipped, strandline};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGQUIT: i32 = 3;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;

/// A process with some hundred thousand chunks: strandline holds it long enough to be interrupted.
fn subject() -> Result<Subject> {
    Subject::start("big_heap", &["0.1", "400"])
}

fn explain(subject: &Subject) -> Command {
    let pid = subject.pid_text();
    let mut command = strandline::command(&["explain", "--quiet-for", "0s", "--snapshot=never", &pid]);
    // Own process group, with a parent in another group of the session: terminal signals stop it.
    command.process_group(0);
    command
}

/// Waits until a strandline holds process `pid`; false if strandline ended before the test saw
/// that.
fn is_held_by(child: &mut Child, pid: i32) -> Result<bool> {
    while !waiting::is_traced(pid) {
        if let Some(status) = child.try_wait()? {
            return if status.code() == Some(0) { Ok(false) } else { Err(status.to_string().into()) };
        }
    }
    Ok(true)
}

/// Sends a signal to a strandline that holds the subject at that moment.
fn while_held(subject: &Subject, signal: i32) -> Result<Child> {
    let pid = subject.pid();
    until("a signal to arrive while the process is held", || {
        let mut child = explain(subject).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if !is_held_by(&mut child, pid)? {
            return Ok(None);
        }
        strandline_sys::signal::send(child.id().cast_signed(), signal)?;
        // If the subject is still held now, strandline held it when the signal arrived.
        if waiting::is_traced(pid) {
            return Ok(Some(child));
        }
        let _ = child.kill();
        child.wait()?;
        Ok(None)
    })
}

#[test]
fn a_stopped_strandline_releases_the_process() -> Outcome {
    let mut subject = subject()?;
    let pid = subject.pid();
    until("the watchdog to end a strandline", || {
        let mut child = while_held(&subject, SIGSTOP)?;
        until_true("the process to be detached", || !waiting::is_traced(pid))?;
        // A strandline that released the subject before the signal arrived still runs.
        strandline_sys::signal::send(child.id().cast_signed(), SIGCONT).ok();
        let status = child.wait()?;
        assert!(status.signal() == Some(SIGKILL) || status.code() == Some(0), "{status}");
        Ok(status.signal())
    })?;
    until_free(pid)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    Ok(())
}

#[test]
fn a_strandline_stopped_by_the_terminal_releases_the_process_first() -> Outcome {
    let subject = subject()?;
    let mut child = while_held(&subject, SIGTSTP)?;
    let own = child.id().cast_signed();
    let mut has_stopped = false;
    let status = until("strandline to stop and to end", || {
        if waiting::state(own, own) == Some('T') {
            assert!(!waiting::is_traced(subject.pid()), "strandline holds a process while it is stopped");
            has_stopped = true;
            strandline_sys::signal::send(own, SIGCONT)?;
        }
        Ok(child.try_wait()?)
    })?;
    assert_eq!((status.code(), has_stopped), (Some(0), true), "{status}");
    Ok(())
}

#[test]
fn a_recorder_stopped_by_the_terminal_traces_no_process() -> Outcome {
    let mut subject = subject()?;
    let pid = subject.pid();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("stopped.strandline").display().to_string();
    let words = ["record", "-o", &file, "--ledger", "every=100ms,exit", &subject.pid_text()];
    let mut recorder = strandline::command(&words).process_group(0).stderr(Stdio::null()).spawn()?;
    let own = recorder.id().cast_signed();
    for _ in 0..5 {
        until_true("the recorder to watch the process", || waiting::is_traced(pid))?;
        strandline_sys::signal::send(own, SIGTSTP)?;
        until_true("the recorder to stop", || waiting::state(own, own) == Some('T'))?;
        assert!(!waiting::is_traced(pid), "the recorder traces a process while it is stopped");
        assert!(subject.ask(b'i')?["mallinfo"].is_object());
        strandline_sys::signal::send(own, SIGCONT)?;
    }
    until_true("the recorder to watch the process again", || waiting::is_traced(pid))?;
    strandline_sys::signal::send(own, SIGINT)?;
    assert_eq!(recorder.wait()?.code(), Some(0));
    until_free(pid)
}

/// Signals to a watched process and its end wait for the recorder.
#[test]
fn the_watchdog_ends_a_stopped_recorder_that_watches_a_process() -> Outcome {
    let mut subject = subject()?;
    let pid = subject.pid();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("stopped.strandline").display().to_string();
    let words = ["record", "-o", &file, "--ledger", "exit", &subject.pid_text()];
    let mut recorder = strandline::command(&words).process_group(0).stderr(Stdio::null()).spawn()?;
    until_true("the recorder to watch the process", || waiting::is_traced(pid))?;
    strandline_sys::signal::send(recorder.id().cast_signed(), SIGSTOP)?;
    let ended = until("the watchdog to end the recorder", || Ok(recorder.try_wait()?));
    if ended.is_err() {
        recorder.kill()?;
        recorder.wait()?;
    }
    assert_eq!(ended?.signal(), Some(SIGKILL));
    until_free(pid)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    Ok(())
}

#[test]
fn strandline_dumps_no_core() -> Outcome {
    let mut subject = subject()?;
    let folder = tempfile::tempdir()?;
    let shell = Command::new("sh")
        .args(["-c", "ulimit -S -c $(ulimit -H -c); kill -QUIT $$"])
        .current_dir(folder.path())
        .status()?;
    if !shell.core_dumped() {
        skipped(here!(), "this machine writes no core files");
        return Ok(());
    }
    let ended = until("a signal to arrive while the process is held", || {
        let pid = subject.pid_text();
        let program = env!("CARGO_BIN_EXE_strandline");
        let script = "ulimit -S -c $(ulimit -H -c); exec \"$@\"";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", program, "explain", "--quiet-for", "0s", "--snapshot=never", &pid])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()?;
        if is_held_by(&mut child, subject.pid())? {
            strandline_sys::signal::send(child.id().cast_signed(), SIGQUIT)?;
        }
        let status = child.wait()?;
        Ok((status.signal() == Some(SIGQUIT)).then_some(status))
    })?;
    assert!(!ended.core_dumped(), "{ended}");
    until_free(subject.pid())?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    // The recorded program may dump core.
    let limits = "test \"$(ulimit -S -c)\" = \"$(ulimit -H -c)\"";
    let script = "ulimit -S -c $(ulimit -H -c); exec \"$@\"";
    let file = folder.path().join("run.strandline").display().to_string();
    let program = env!("CARGO_BIN_EXE_strandline");
    let run = Command::new("sh")
        .args(["-c", script, "sh", program, "run", "-o", &file, "--", "sh", "-c", limits])
        .status()?;
    assert_eq!(run.code(), Some(0));
    Ok(())
}

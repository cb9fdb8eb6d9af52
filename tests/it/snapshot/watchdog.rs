//! A target is let go in time, also where strandline is stopped while it holds it, where nobody reads its terminal, and where it
//! is to write a core file.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::support::terminal::Terminal;
use crate::support::waiting::{self, until, until_free, until_true};
use crate::support::{Outcome, Result, Subject, strandline};

const SIGKILL: i32 = 9;
const SIGQUIT: i32 = 3;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;

/// A process that is held for long enough to be caught at it: some hundred thousand chunks.
fn subject() -> Result<Subject> {
    Subject::start("big_heap", &["0.1", "400"])
}

fn explain(subject: &Subject) -> Command {
    let pid = subject.pid_text();
    strandline::command(&["explain", "--quiet-for", "0s", "--photograph=never", &pid])
}

/// Waits until a strandline holds process `pid`; false where it ended before that was seen.
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
    until("a signal to land while it is held", || {
        let mut child = explain(subject).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if !is_held_by(&mut child, pid)? {
            return Ok(None);
        }
        strandline_sys::signal::send(child.id().cast_signed(), signal)?;
        // Whether it was in time is seen afterwards: it is stopped, or gone, and held the subject then.
        if waiting::is_traced(pid) {
            return Ok(Some(child));
        }
        let _ = child.kill();
        child.wait()?;
        Ok(None)
    })
}

#[test]
fn a_strandline_that_is_stopped_lets_go() -> Outcome {
    let mut subject = subject()?;
    let pid = subject.pid();
    let mut child = while_held(&subject, SIGSTOP)?;
    // It is ended, or had let go before the signal came to it.
    let own = child.id().cast_signed();
    until_true("it to be let go", || !waiting::is_traced(pid))?;
    strandline_sys::signal::send(own, SIGCONT).ok();
    let status = child.wait()?;
    assert!(status.signal() == Some(SIGKILL) || status.code() == Some(0), "{status}");
    until_free(pid)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    Ok(())
}

#[test]
fn one_that_a_terminal_stops_is_stopped_when_it_has_let_go() -> Outcome {
    let subject = subject()?;
    let mut child = while_held(&subject, SIGTSTP)?;
    until_free(subject.pid())?;
    let own = child.id().cast_signed();
    // The signal came, and comes into force: unless no one waits for it in its session (an orphaned group ignores it).
    let status = until("it to stop or to end", || {
        if waiting::state(own, own) == Some('T') {
            strandline_sys::signal::send(own, SIGCONT)?;
        }
        Ok(child.try_wait()?)
    })?;
    assert_eq!(status.code(), Some(0), "{status}");
    Ok(())
}

#[test]
fn a_terminal_that_takes_nothing_holds_nobody() -> Outcome {
    let mut subject = subject()?;
    let pid = subject.pid();
    let mut terminal = Terminal::start(explain(&subject))?;
    // Ctrl-S: the terminal takes nothing more.
    terminal.press("\x13")?;
    // Held for as long as it takes, and let go.
    is_held_by(&mut terminal.child, pid)?;
    until_free(pid)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    terminal.press("\x11")?;
    assert_eq!(terminal.end()?.code(), Some(0));
    Ok(())
}

#[test]
fn no_core_file_is_written_of_it() -> Outcome {
    let mut subject = subject()?;
    let folder = tempfile::tempdir()?;
    let ended = until("a signal to land while it is held", || {
        let pid = subject.pid_text();
        let program = env!("CARGO_BIN_EXE_strandline");
        let script = "ulimit -S -c $(ulimit -H -c); exec \"$@\"";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", program, "explain", "--quiet-for", "0s", "--photograph=never", &pid])
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
    // What it starts may.
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

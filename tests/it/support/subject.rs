//! Subjects: small C programs with known answers (`tests/subjects/`), compiled when first needed,
//! shells, and the demo's process; started, controlled by single bytes, and killed with their
//! children when a test is done with them.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde_json::Value;

use super::groups::Group;
use super::waiting::{PATIENCE, state, until, until_at_rest, until_true};
use super::{Libc, Outcome, Result, strandline};

/// A running subject, the leader of its own process group.
#[derive(Debug)]
pub struct Subject {
    child: Child,
    group: Group,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Its first output, printed in its known state: a document, or else a line of text.
    pub ready: Value,
}

/// Opens the standard error of this process again. Node.js sets `O_NONBLOCK` on an inherited pipe,
/// for all processes that share the open file; the test program would then fail to print its
/// results.
fn own_error_output() -> Stdio {
    let opened = OpenOptions::new().append(true).open("/proc/self/fd/2");
    // A socket cannot be opened.
    opened.map_or_else(|_| Stdio::inherit(), Stdio::from)
}

impl Subject {
    /// Starts `name` with the system's libc and waits until it is ready.
    pub fn start(name: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(&Libc::system(), name, arguments, &[])
    }

    /// Starts `name`, built with `libc`, with `variables` added to its environment.
    pub fn start_with(
        libc: &Libc,
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = Command::new(compile(name, libc)?);
        command.args(arguments).envs(variables.iter().copied());
        Self::start_command(command)
    }

    /// Starts a subject by a command that ends in running it, and waits until it is ready.
    pub fn start_command(command: Command) -> Result<Self> {
        Self::start_with_stderr(command, own_error_output())
    }

    /// Like [`Self::start_command`], with its standard error going to `stderr`.
    pub fn start_with_stderr(mut command: Command, stderr: Stdio) -> Result<Self> {
        let command = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
        let group = Group::of(child.id());
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("no pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut subject = Self { child, group, stdin, lines, ready: Value::Null };
        let line = subject.next_line().map_err(|error| format!("{command:?}: {error}"))?;
        subject.ready = serde_json::from_str(&line).unwrap_or(Value::String(line));
        Ok(subject)
    }

    /// Starts a shell that runs `script`, which must print a line when it is ready.
    pub fn shell(script: &str) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Self::start_command(command)
    }

    /// Starts an idle shell.
    pub fn idle() -> Result<Self> {
        Self::shell("echo ready; read end")
    }

    /// Starts the demo's process with a heap of `mebibytes`.
    pub fn demo(mebibytes: u32) -> Result<Self> {
        let size = mebibytes.to_string();
        let arguments = ["demo-child", "--heap-mebibytes", &size, "--zero-mebibytes", "4"];
        Self::start_command(strandline::command(&arguments))
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Its process id, as an argument.
    pub fn pid_text(&self) -> String {
        self.child.id().to_string()
    }

    /// Sends a command byte and returns the answer.
    pub fn ask(&mut self, command: u8) -> Result<Value> {
        self.send(command)?;
        self.answer()
    }

    /// Sends a command byte.
    pub fn send(&mut self, command: u8) -> Outcome {
        Ok(self.stdin.as_mut().ok_or("its input is closed")?.write_all(&[command])?)
    }

    /// Sends a line and returns the lines of the answer, up to the line `done`.
    pub fn order(&mut self, line: &str) -> Result<Vec<String>> {
        let stdin = self.stdin.as_mut().ok_or("its input is closed")?;
        stdin.write_all(format!("{line}\n").as_bytes())?;
        let mut lines = Vec::new();
        loop {
            match self.next_line()? {
                line if line == "done" => return Ok(lines),
                line => lines.push(line),
            }
        }
    }

    /// A number of the ready line.
    pub fn number(&self, key: &str) -> Result<u64> {
        number(&self.ready, key)
    }

    /// Ends the subject and returns its exit status.
    pub fn finish(mut self) -> Result<ExitStatus> {
        if let Some(mut stdin) = self.stdin.take() {
            // A subject that has ended has closed its end.
            let _ = stdin.write_all(b"q");
        }
        until("the end of the subject", || Ok((self.status() != WaitStatus::StillAlive).then_some(())))?;
        self.group.end();
        Ok(self.child.wait()?)
    }

    /// How it ended, or that it still runs. Does not reap it.
    fn status(&self) -> WaitStatus {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            match waitid(Id::Pid(Pid::from_raw(self.pid())), flags) {
                Err(Errno::EINTR) => {}
                status => return status.unwrap_or(WaitStatus::StillAlive),
            }
        }
    }

    /// Waits until it sleeps after its output ([`until_at_rest`]), so that two reads give the same
    /// figures.
    pub fn at_rest(&self) -> Outcome {
        until_at_rest(self.pid())
    }

    /// Waits for an answer.
    pub fn answer(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.next_line()?)?)
    }

    /// Waits for a line of output.
    fn next_line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(_) => Err(format!("the subject printed no line: {:?}", self.status()).into()),
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.group.end();
        // After `finish` there is nothing to wait for.
        let _ = self.child.wait();
    }
}

/// A number in a subject's report.
pub fn number(report: &Value, key: &str) -> Result<u64> {
    report[key].as_u64().ok_or_else(|| format!("no number {key} in {report}").into())
}

/// Returns the path of subject `name` built with `libc`, compiled if older than its source.
pub fn compile(name: &str, libc: &Libc) -> Result<PathBuf> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects");
    let source = sources.join(format!("{name}.c"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects").join(libc.label());
    let path = folder.join(name);
    let mut newest = change_time(&source)?;
    for header in ["subject.h", "filters.h", "give_up.h", "calls.h"] {
        newest = newest.max(change_time(&sources.join(header))?);
    }
    if change_time(&path).is_ok_and(|built| built >= newest) {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder)?;
    // Tests compile in parallel: each writes its own file, and renames it into place in one step.
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let partial = folder.join(format!("{name}.{}.{turn}", std::process::id()));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-z,now"]);
    cc.arg(&source).arg("-o").arg(&partial);
    if name == "bits32" {
        // No libc at all: a 32-bit one is rarely installed.
        cc.args(["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie"]);
    } else {
        libc.link(&mut cc);
        cc.arg("-ldl");
    }
    let output = cc.output().map_err(|error| format!("cc: {error}; install a C compiler (make deps)"))?;
    if !output.status.success() {
        return Err(format!("{cc:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    std::fs::rename(&partial, &path)?;
    Ok(path)
}

/// When a file was last changed.
fn change_time(path: &Path) -> Result<SystemTime> {
    let metadata = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(metadata.modified()?)
}

#[test]
fn children_of_a_subject_end_with_it() -> Outcome {
    let has_ended = |pid| matches!(state(pid, pid), None | Some('Z'));
    for is_finished in [false, true] {
        let subject = Subject::shell("sleep 1000 & echo $!; read end; exit 0")?;
        let child = i32::try_from(subject.ready.as_i64().ok_or("no process id")?)?;
        assert!(!has_ended(child));
        if is_finished {
            assert!(subject.finish()?.success());
        } else {
            drop(subject);
        }
        until_true("the end of the subject's child", || has_ended(child))?;
    }
    Ok(())
}

//! What the integration tests share: running strandline, and processes to run it on.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The executable under test.
pub const STRANDLINE: &str = env!("CARGO_BIN_EXE_strandline");

/// What one run of strandline came to.
#[derive(Debug)]
pub struct Run {
    /// Its exit status; -1 where a signal ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
}

impl Run {
    /// Its one JSON document.
    pub fn document(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it failed with `status` and one line that says `what`.
    pub fn complains(&self, status: i32, what: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.stderr.starts_with("strandline: "), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(what), "{what:?} is not in {self:?}");
    }
}

/// Runs strandline with `arguments`.
pub fn strandline(arguments: &[&str]) -> Run {
    strandline_with(arguments, &[])
}

/// Runs strandline with `arguments` and environment variables.
pub fn strandline_with(arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let output = Command::new(STRANDLINE)
        .args(arguments)
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Run {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A process to look at; killed, with its children that share its fate, when it is dropped.
#[derive(Debug)]
pub struct Subject {
    /// The process.
    pub child: Child,
}

impl Subject {
    /// Starts `command` with its standard input held open and waits for its first line of output.
    pub fn start(command: &mut Command) -> Self {
        let mut subject =
            Self { child: command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(subject.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{command:?} ended before it was ready");
        subject
    }

    /// A shell that runs `script`, which must print a line when it is ready.
    pub fn shell(script: &str) -> Self {
        Self::start(Command::new("sh").args(["-c", script]))
    }

    /// An idle shell.
    pub fn idle() -> Self {
        Self::shell("echo ready; read end")
    }

    /// The demo's process with a heap of `mebibytes`.
    pub fn fragmented(mebibytes: u32) -> Self {
        let size = mebibytes.to_string();
        Self::start(Command::new(STRANDLINE).args([
            "demo-child",
            "--heap-mebibytes",
            &size,
            "--zero-mebibytes",
            "4",
        ]))
    }

    /// Its process id, as an argument.
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Shells wait in `read`: the end of their input lets them end their children first.
        drop(self.child.stdin.take());
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A folder of a test's own, removed when it is dropped.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder for the test `name`.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strandline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Says that `test` cannot run here and why. `make test` prints these lines at its end.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    let Some(path) = std::env::var_os("STRANDLINE_SKIPS") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{test}: {reason}").unwrap();
}

/// Asserts that no terminal would obey anything in `text`, line ends left out.
pub fn assert_harmless(text: &str) {
    let bad: Vec<char> = text.chars().filter(|&c| c.is_control() && c != '\n').collect();
    assert!(bad.is_empty(), "{bad:?} in {text:?}");
}

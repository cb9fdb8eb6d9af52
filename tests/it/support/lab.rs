//! What the tests of the lab share: a lab with a cache of its own, and whether anything of it is left running.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::recording::{Ended, Started, finish, program};
use crate::support::{Folder, Libc, Result, subject};

/// The path of the subject that does what the lab is tested with.
pub fn subject() -> Result<String> {
    Ok(subject::compile("lab", &Libc::system())?.display().to_string())
}

/// A place where labs are run.
#[derive(Debug)]
pub struct Lab {
    /// Where commands run and tests keep what they need.
    pub folder: Folder,
    /// A time to sleep that no other test's processes have: they are found by it.
    pub token: String,
}

impl Lab {
    /// A place of its own.
    pub fn new() -> Result<Self> {
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let folder = Folder::new(&format!("lab-{turn}"))?;
        let token = format!("98{:03}.{}", turn % 1000, std::process::id());
        Ok(Self { folder, token })
    }

    /// `strandline ARGUMENTS` here.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(&self.folder.0).env("XDG_CACHE_HOME", self.cache());
        command
    }

    /// Where its labs keep what they go on from.
    pub fn cache(&self) -> PathBuf {
        self.folder.0.join("cache")
    }

    /// Runs that to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Starts that.
    pub fn start(&self, arguments: &[&str]) -> Result<Started> {
        Started::new(self.command(arguments))
    }

    /// Its document; it must end with 0.
    pub fn document(&self, arguments: &[&str]) -> Result<Value> {
        let ended = self.run(&[&["--json"], arguments].concat())?;
        if ended.how() != 0 {
            return Err(format!("{arguments:?} ended with {}: {}", ended.how(), ended.complaint()).into());
        }
        Ok(serde_json::from_slice(&ended.stdout)?)
    }

    /// A file of this place.
    pub fn path(&self, name: &str) -> String {
        self.folder.0.join(name).display().to_string()
    }

    /// Processes that have this place's token in their arguments, as `/proc/PID/cmdline` has them.
    pub fn left(&self) -> Vec<String> {
        processes().into_iter().filter(|line| line.contains(&self.token)).collect()
    }

    /// What a file of this place says; nothing where it is not there.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.0.join(name)).unwrap_or_default()
    }
}

/// The command lines of all processes that run.
fn processes() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let lines = entries.flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

/// Fails unless it ended with `status` and one line of complaint, the last, that says each of `words`.
pub fn complains(ended: &Ended, status: i32, words: &[&str]) -> crate::support::Outcome {
    let text = ended.complaint();
    let line = text.lines().last().unwrap_or_default();
    if ended.how() != status || text.lines().count() != 1 || !line.starts_with("strandline: ") {
        return Err(format!("expected status {status} and one line, got {}: {text:?}", ended.how()).into());
    }
    match words.iter().find(|word| !line.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("{line:?} does not say {word:?}").into()),
    }
}

//! Shared by the tests of the lab: a lab with its own cache, a check for processes left running,
//! and ports that only one test uses.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::support::recording::{Ended, Started, finish, program};
use crate::support::{Folder, Libc, Result, subject};

/// A timeout for one run that hangs. Every other run ends sooner, also on a slow and busy machine.
pub const HANG_GUARD: &str = "30s";

/// Path of the subject that the lab is tested with.
pub fn subject() -> Result<String> {
    Ok(subject::compile("lab", &Libc::system())?.display().to_string())
}

/// A folder in which labs are run.
#[derive(Debug)]
pub struct Lab {
    /// Folder in which commands run and tests keep their files.
    pub folder: Folder,
    /// A sleep duration that no other test's processes use: the lab's processes are found by it.
    pub token: String,
}

impl Lab {
    /// Creates a new folder.
    pub fn new() -> Result<Self> {
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let folder = Folder::new(&format!("lab-{turn}"))?;
        let token = format!("98{:03}.{}", turn % 1000, std::process::id());
        Ok(Self { folder, token })
    }

    /// `strandline ARGUMENTS` in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(&self.folder.0).env("XDG_CACHE_HOME", self.cache());
        command
    }

    /// Folder in which its labs keep their state.
    pub fn cache(&self) -> PathBuf {
        self.folder.0.join("cache")
    }

    /// Runs [`Self::command`] to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Starts [`Self::command`].
    pub fn start(&self, arguments: &[&str]) -> Result<Started> {
        Started::new(self.command(arguments))
    }

    /// Returns the JSON document of a run, which must exit with 0.
    pub fn document(&self, arguments: &[&str]) -> Result<Value> {
        let ended = self.run(&[&["--json"], arguments].concat())?;
        if ended.how() != 0 {
            return Err(format!("{arguments:?} ended with {}: {}", ended.how(), ended.complaint()).into());
        }
        Ok(serde_json::from_slice(&ended.stdout)?)
    }

    /// Path of a file in the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.0.join(name).display().to_string()
    }

    /// Command lines of the processes that have the token in their arguments.
    pub fn running(&self) -> Vec<String> {
        processes().into_iter().filter(|line| line.contains(&self.token)).collect()
    }

    /// Text of a file in the folder; empty without the file.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.0.join(name)).unwrap_or_default()
    }
}

/// A port for a program that takes its port as an argument. No other test uses it while this is
/// alive, and the kernel never assigns it to a socket that requests any port.
#[derive(Debug)]
pub struct Port {
    pub number: u16,
    /// Lock of a file for this number, shared by tests in all processes.
    _lock: Flock<File>,
}

/// The lowest port used: programs of this machine mostly use lower ones.
const MIN_PORT: u16 = 10_000;

impl Port {
    /// Reserves a port.
    pub fn reserve() -> Result<Self> {
        // Each search starts at another port: connections of a recently used port may still be
        // closing.
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = std::process::id().wrapping_mul(61).wrapping_add(TURN.fetch_add(1, Ordering::Relaxed));
        let user = strandline_sys::host::effective_user();
        let folder = std::env::temp_dir().join(format!("strandline-ports-{user}"));
        std::fs::create_dir_all(&folder)?;
        let mut numbers = unassigned_ports()?;
        let first = usize::try_from(turn)? % numbers.len().max(1);
        numbers.rotate_left(first);
        let used = used_ports();
        for number in numbers.into_iter().filter(|number| !used.contains(number)) {
            let path = folder.join(number.to_string());
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                return Ok(Self { number, _lock: lock });
            }
        }
        Err("no port is free".into())
    }
}

/// Ports that the kernel assigns to no socket that requests any.
fn unassigned_ports() -> Result<Vec<u16>> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (ends.next().ok_or("no range")??, ends.next().ok_or("no range")??);
    Ok((MIN_PORT..=u16::MAX).filter(|number| !(first..=last).contains(number)).collect())
}

/// Ports of this machine's TCP sockets.
fn used_ports() -> Vec<u16> {
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(std::fs::read_to_string);
    let lines = lists.iter().flatten().flat_map(|list| list.lines().skip(1));
    // SLOT OWN-ADDRESS:PORT …
    let port = |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok();
    lines.filter_map(port).collect()
}

/// Command lines of all running processes.
fn processes() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let lines = entries.flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

/// Fails unless it ended with `status` and a single line of complaint that contains each of
/// `words`.
pub fn complains(ended: &Ended, status: i32, words: &[&str]) -> crate::support::Outcome {
    let text = ended.complaint();
    let line = text.lines().last().unwrap_or_default();
    if ended.how() != status || text.lines().count() != 1 || !line.starts_with("strandline: ") {
        return Err(format!("expected status {status} and one line, got {}: {text:?}", ended.how()).into());
    }
    match words.iter().find(|word| !line.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("{line:?} does not contain {word:?}").into()),
    }
}

//! What the tests of the lab share: a lab with a cache of its own, and whether anything of it is left running; ports that only
//! one test uses.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{Flock, FlockArg};
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

/// A port for a program that takes its port as an argument. No other test uses it while this is alive, and the kernel gives it
/// to no socket that asks for any port.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Of a file that stands for the number, for tests of all processes.
    _lock: Flock<File>,
}

/// The least port that is taken: programs of this machine have most of theirs below.
const MIN_PORT: u16 = 10_000;

impl Port {
    /// Reserves one.
    pub fn reserve() -> Result<Self> {
        // Each begins to look elsewhere: a port that was just used has connections that wait for their end.
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = std::process::id().wrapping_mul(61).wrapping_add(TURN.fetch_add(1, Ordering::Relaxed));
        let user = strandline_sys::host::effective_user();
        let folder = std::env::temp_dir().join(format!("strandline-ports-{user}"));
        std::fs::create_dir_all(&folder)?;
        let mut numbers = not_given_out()?;
        let middle = usize::try_from(turn)? % numbers.len().max(1);
        numbers.rotate_left(middle);
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

/// The ports that the kernel gives to no socket that asks for any.
fn not_given_out() -> Result<Vec<u16>> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let (low, high) = (ends.next().ok_or("no range")??, ends.next().ok_or("no range")??);
    Ok((MIN_PORT..=u16::MAX).filter(|number| !(low..=high).contains(number)).collect())
}

/// The ports of this machine's TCP sockets.
fn used_ports() -> Vec<u16> {
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(std::fs::read_to_string);
    let lines = lists.iter().flatten().flat_map(|list| list.lines().skip(1));
    // SLOT OWN-ADDRESS:PORT …
    let port = |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok();
    lines.filter_map(port).collect()
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

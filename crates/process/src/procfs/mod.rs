//! The files of /proc/PID: opened through one handle, read up to a limit, parsed defensively.
//!
//! A [`Process`] holds the open directory, so that a reused process id leads to an error and never
//! to another process. The target chooses names, arguments and variables: they are kept as text,
//! truncated, and never followed as paths. This module must not keep any variable of the target's
//! environment that [`settings`] does not name.

mod activity;
mod auxv;
pub mod mounts;
pub mod settings;
pub mod stat;
pub mod status;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use activity::{BlockedCall, ThreadActivity};
pub use auxv::AuxiliaryVector;
pub use stat::Stat;
pub use status::{Status, UserIds};
pub use strandline_sys::signal::signal_bit;

use strandline_sys::capabilities::{CHECKPOINT_RESTORE, with_dac_capabilities};

use crate::error::{Error, Result};
use crate::map::AddressSpace;
use crate::rights::{Confinement, Rights};
use crate::smaps::{self, Counts};

/// Bytes of the kernel's unit `kB`.
const KIB_BYTES: u64 = 1024;
/// Maximum bytes read of a small text file of /proc (stat, auxv).
const MAX_TEXT_BYTES: u64 = 256 << 10;
/// Maximum bytes read of /proc/PID/status: it lists at most 65,536 groups of up to ten digits, and
/// signals and sizes behind them.
const MAX_STATUS_BYTES: u64 = 1 << 20;
/// Maximum bytes read of /proc/PID/maps: 65,530 mappings (the kernel's default limit) with names of
/// 4 KiB.
const MAX_MAPS_BYTES: u64 = 512 << 20;
/// Maximum bytes of the command line that are kept.
const MAX_COMMAND_BYTES: u64 = 64 << 10;
/// Maximum bytes read of /proc/PID/environ, which the target can move with `prctl`.
const MAX_ENVIRONMENT_BYTES: u64 = 8 << 20;
/// Maximum bytes read of /proc/PID/mountinfo: the lines of [`mounts::MAX_MOUNTS`].
pub(crate) const MAX_MOUNTS_BYTES: u64 = 64 << 20;
/// Maximum bytes read of a file of /proc/PID/fdinfo: flags and mount are on its first lines.
pub(crate) const MAX_INFO_BYTES: u64 = 4 << 10;
/// Maximum number of threads listed: the kernel's own limit for process ids (`PID_MAX_LIMIT`).
const MAX_TASKS: usize = 4 << 20;
/// Maximum number of characters kept of a command's name: the kernel's buffer has as many bytes
/// (fs/proc/array.c, proc_task_name).
const MAX_NAME_CHARACTERS: usize = 64;

/// The advice for processes that /proc hides; made once, because `top` opens thousands.
static HIDDEN_ADVICE: OnceLock<String> = OnceLock::new();

/// An open /proc/PID.
///
/// # Errors
/// Where a method names no others: [`Error::Ended`] if the process has ended, [`Error::Permission`]
/// if the kernel refuses the file, [`Error::Io`] if opening or reading it fails otherwise.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    directory: File,
}

impl Process {
    /// Opens /proc/PID.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if it does not exist, [`Error::Permission`] if /proc hides it,
    /// [`Error::Io`] for any other failure.
    pub fn open(pid: i32) -> Result<Self> {
        if pid <= 0 {
            return Err(Error::NoSuchProcess { pid });
        }
        match File::open(format!("/proc/{pid}")) {
            Ok(directory) => Ok(Self { pid, directory }),
            Err(source) if is_gone(&source) => Err(Error::NoSuchProcess { pid }),
            // A /proc mounted with hidepid=1 refuses the directory itself.
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                let cause = "/proc is mounted with hidepid, or a security module refuses";
                let detail = format!("/proc/{pid}: {source}: {cause}");
                let advice = || Rights::own().advice(&Rights::own().missing(true), "");
                let advice = HIDDEN_ADVICE.get_or_init(advice).clone();
                Err(Error::Permission { pid, detail, advice })
            }
            Err(source) => Err(Error::Io { pid, what: format!("opening /proc/{pid}"), source }),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The path of one of its files, through the open directory. For opening, not for display.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(name)
    }

    /// Opens one of its files for reading: `smaps`, `pagemap`, `task/17/status`.
    pub fn open_file(&self, name: &str) -> Result<File> {
        // These are the kernel's own files: no other party chooses a name on the path.
        with_dac_capabilities(|| File::open(self.path(name))).map_err(|source| self.error(name, source))
    }

    /// Reads at most `max_bytes` of one of its files.
    pub fn read_file(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let result = self.open_file(name)?.take(max_bytes).read_to_end(&mut text);
        result.map_err(|source| self.error(name, source))?;
        Ok(text)
    }

    /// The text of at most `max_bytes` of one of its files, with replacement characters for what is
    /// not UTF-8.
    pub fn read_text(&self, name: &str, max_bytes: u64) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.read_file(name, max_bytes)?).into_owned())
    }

    /// Whether an error of one of its files, or of a system call on it, means that it has ended. A
    /// file that this kernel or its root does not have is missing even though the process exists.
    pub fn means_ended(&self, error: &io::Error) -> bool {
        is_gone(error) && !(error.kind() == io::ErrorKind::NotFound && self.path("stat").exists())
    }

    /// Converts a failure to open or read one of its files into an error with advice.
    pub fn error(&self, name: &str, source: io::Error) -> Error {
        let pid = self.pid;
        if self.means_ended(&source) {
            return Error::Ended { pid };
        }
        if source.kind() == io::ErrorKind::PermissionDenied {
            return self.permission_error(name, &source);
        }
        Error::Io { pid, what: format!("reading /proc/{pid}/{name}"), source }
    }

    /// The error for one of its files that the kernel refuses to open: which rights are missing,
    /// unless the user id alone explains it, and advice.
    fn permission_error(&self, name: &str, source: &io::Error) -> Error {
        let rights = Rights::own();
        // The right to trace all processes does not include opening files that only another user
        // may read; those of a process that is not dumpable belong to root. The directory always
        // has the process's user.
        let user = self.directory.metadata().ok().map(|data| data.uid());
        let mut missing = rights.missing(rights.user != 0 || user != Some(0));
        if name.starts_with("map_files/") && !rights.has(CHECKPOINT_RESTORE) {
            missing.push(CHECKPOINT_RESTORE);
        }
        let lack = if missing.is_empty() {
            format!(": {}", Confinement::own().cause())
        } else if rights.is_more_than_not_root(&missing) {
            format!(", as {}", rights.describe_missing(&missing))
        } else {
            String::new()
        };
        let other_user = user.filter(|&user| user != rights.user && user != 0);
        let alternative = other_user.map(|user| format!(" or as user {user}")).unwrap_or_default();
        let pid = self.pid;
        let detail = format!("/proc/{pid}/{name}: {source}{lack}");
        Error::Permission { pid, detail, advice: rights.advice(&missing, &alternative) }
    }

    /// /proc/PID/status.
    pub fn status(&self) -> Result<Status> {
        Ok(Status::parse(&self.read_file("status", MAX_STATUS_BYTES)?))
    }

    /// /proc/PID/task/TID/status.
    pub fn task_status(&self, tid: i32) -> Result<Status> {
        Ok(Status::parse(&self.read_file(&format!("task/{tid}/status"), MAX_STATUS_BYTES)?))
    }

    /// /proc/PID/stat. Fails with [`Error::Io`] also if the text is malformed.
    pub fn stat(&self) -> Result<Stat> {
        self.parse_stat("stat")
    }

    /// /proc/PID/task/TID/stat.
    pub fn task_stat(&self, tid: i32) -> Result<Stat> {
        self.parse_stat(&format!("task/{tid}/stat"))
    }

    fn parse_stat(&self, name: &str) -> Result<Stat> {
        let text = self.read_file(name, MAX_TEXT_BYTES)?;
        Stat::parse(&text).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "not of the form of proc(5)");
            self.error(name, source)
        })
    }

    /// What thread `tid` is doing in the kernel; `None` if the kernel does not report it to this
    /// user.
    pub fn task_activity(&self, tid: i32) -> Option<ThreadActivity> {
        ThreadActivity::parse(&self.read_file(&format!("task/{tid}/syscall"), MAX_TEXT_BYTES).ok()?)
    }

    /// The text of /proc/PID/maps, for [`crate::map::AddressSpace::parse`].
    pub fn maps_text(&self) -> Result<Vec<u8>> {
        self.read_file("maps", MAX_MAPS_BYTES)
    }

    /// Its current mappings.
    pub fn address_space(&self) -> Result<AddressSpace> {
        Ok(AddressSpace::parse(&self.maps_text()?).0)
    }

    /// The kernel's totals over its mappings, from smaps_rollup; `None` if it cannot be read.
    pub fn smaps_rollup(&self) -> Option<Counts> {
        smaps::read_rollup(self.open_file("smaps_rollup").ok()?).ok()
    }

    /// The ids of its threads, ascending. The list may lack threads: see [`Process::lists_all`].
    pub fn tasks(&self) -> Result<Vec<i32>> {
        let entries = std::fs::read_dir(self.path("task")).map_err(|source| self.error("task", source))?;
        let mut tids: Vec<i32> = entries
            .take(MAX_TASKS)
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        tids.sort_unstable();
        Ok(tids)
    }

    /// Whether `tids` are all its threads, including ended ones that the kernel still counts. The
    /// kernel ends the list of [`Process::tasks`] early if a thread vanishes meanwhile.
    pub fn lists_all(&self, tids: &[i32]) -> bool {
        self.status().is_ok_and(|status| status.threads == Some(tids.len() as u64))
    }

    /// Its command line, truncated to 64 KiB, then with a last word `…`; empty for a zombie or a
    /// kernel thread. The target chooses the words, which may contain control characters: see
    /// [`printable`].
    pub fn command_line(&self) -> Result<Vec<String>> {
        let mut text = self.read_file("cmdline", MAX_COMMAND_BYTES + 1)?;
        let is_cut = text.len() as u64 > MAX_COMMAND_BYTES;
        text.truncate(MAX_COMMAND_BYTES as usize);
        let mut words = split_command(&text);
        words.extend(is_cut.then(|| "…".to_owned()));
        Ok(words)
    }

    /// The path of its executable as shown by the kernel; `None` if it has none or it is hidden.
    pub fn executable(&self) -> Option<String> {
        let link = std::fs::read_link(self.path("exe")).ok()?;
        Some(link.to_string_lossy().into_owned())
    }

    /// The devices of its tmpfs mounts, for [`mounts::is_shared_memory`].
    ///
    /// # Errors
    /// The process has ended, or its mountinfo may not be read.
    pub fn shared_memory_devices(&self) -> Result<mounts::Devices> {
        Ok(mounts::shared_memory_devices(&self.read_file("mountinfo", MAX_MOUNTS_BYTES)?))
    }

    /// The types of its file systems, by mount id.
    pub fn mount_types(&self) -> Result<std::collections::BTreeMap<u64, String>> {
        let mounts = mounts::parse(&self.read_file("mountinfo", MAX_MOUNTS_BYTES)?);
        Ok(mounts.into_iter().map(|mount| (mount.id, mount.kind)).collect())
    }

    /// Facts from its auxiliary vector; `None` if it cannot be read.
    pub fn start_facts(&self) -> Option<AuxiliaryVector> {
        AuxiliaryVector::parse(&self.read_file("auxv", MAX_TEXT_BYTES).ok()?)
    }

    /// The memory-related settings in its environment, by name. See [`settings`].
    pub fn settings(&self) -> Result<std::collections::BTreeMap<String, String>> {
        Ok(settings::parse(&self.read_file("environ", MAX_ENVIRONMENT_BYTES)?))
    }

    /// An assignment of `value` to the variable `name`, ready to paste, appended to the value in
    /// its environment if there is one that can be read. See [`settings::joined`].
    pub fn with_setting(&self, name: &str, value: &str, separator: char) -> String {
        let settings = self.settings().unwrap_or_default();
        settings::joined(name, settings.get(name).map(String::as_str), value, separator)
    }
}

/// Whether a process exists and has neither ended nor begun to; false if its files cannot be read.
pub fn is_alive(pid: i32) -> bool {
    Process::open(pid).and_then(|process| process.stat()).is_ok_and(|stat| stat.is_alive())
}

/// The ids of all processes that /proc lists.
///
/// # Errors
/// Fails if /proc cannot be listed.
pub fn all_pids() -> io::Result<impl Iterator<Item = i32>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// Whether an error from a file of /proc means that the process is gone.
fn is_gone(error: &io::Error) -> bool {
    /// From a file that was opened while the process existed.
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// Splits the text of /proc/PID/cmdline. A program that changed its title leaves trailing zeros or
/// spaces: empty arguments at the end are dropped.
pub fn split_command(text: &[u8]) -> Vec<String> {
    let mut words: Vec<String> = text
        .split(|&byte| byte == 0)
        .map(|word| String::from_utf8_lossy(word).trim_end().to_owned())
        .collect();
    while words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    words
}

/// Makes a name chosen by the target safe for a report: at most `max_characters`, with control
/// characters (including terminal escape sequences) replaced by `?`.
pub fn printable(name: &str, max_characters: usize) -> String {
    name.chars().take(max_characters).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The decimal number at the start of `text`, after blanks; `None` if it is absent or overflows.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// A size as printed in `/proc` (`      12 kB`), in bytes; `None` if it is not a number or
/// overflows.
pub fn kib(text: &str) -> Option<u64> {
    if !text.trim_end().ends_with("kB") {
        return None;
    }
    number(text)?.checked_mul(KIB_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_read_through_its_open_directory() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(pid).unwrap();
        let status = process.status().unwrap();
        assert_eq!(status.tgid, Some(pid));
        assert!(process.tasks().unwrap().contains(&pid));
        assert_eq!(status.parent, process.stat().unwrap().parent);
        assert!(!process.command_line().unwrap().is_empty());
        assert_eq!(process.executable().unwrap(), std::env::current_exe().unwrap().to_string_lossy());
        assert!(!process.maps_text().unwrap().is_empty());
        assert!(matches!(process.open_file("no_such_file"), Err(Error::Io { .. })), "it lives");
    }

    #[test]
    fn a_process_that_ended_is_an_error_and_never_its_successor() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::open(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(process.status(), Err(Error::Ended { .. })));
        assert!(matches!(Process::open(pid), Err(Error::NoSuchProcess { .. })));
        assert!(matches!(Process::open(-1), Err(Error::NoSuchProcess { .. })));
    }

    #[test]
    fn command_lines_lose_their_trailing_padding() {
        assert_eq!(split_command(b"a\0b c\0\0\0"), ["a", "b c"]);
        assert_eq!(split_command(b"nginx: worker      "), ["nginx: worker"]);
        assert!(split_command(b"").is_empty());
    }

    #[test]
    fn a_long_command_line_ends_in_a_sign_that_it_was_cut() {
        use std::io::Read;
        use std::process::Stdio;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo; read line", "sh"]).args(vec!["60"; 30_000]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // During execve() the file is empty: spawn() may return before the arguments are in place.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let words = Process::open(i32::try_from(child.id()).unwrap()).unwrap().command_line().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((words.len() < 30_000, words.last().map(String::as_str)), (true, Some("…")));
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2J\u{9b}b\n", 99), "a?[2J?b?");
        assert_eq!(printable("abc", 2), "ab");
    }

    #[test]
    fn overflowing_sizes_are_unknown() {
        assert_eq!(kib("   12 kB"), Some(12288));
        assert_eq!(kib("18446744073709551615 kB"), None);
        assert_eq!(kib("12"), None);
        assert_eq!(kib(" kB"), None);
    }
}

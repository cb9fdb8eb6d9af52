//! Shared by the tests of `run`, `record` and `report`: recorded commands, and the contents of
//! recordings.
//!
//! Every process started here leads its own process group, which is killed when the test is done
//! with it or when it takes too long.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::support::groups::Group;
pub use crate::support::waiting::until;
use crate::support::{Folder, Libc, Result, strandline, subject};

/// How a command ended, and its output.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    /// Its standard output.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Its standard error.
    pub fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Its exit status, or 1000 plus its signal.
    pub fn how(&self) -> i32 {
        self.status.code().or(self.status.signal().map(|signal| 1000 + signal)).unwrap_or(-1)
    }

    /// Lines of its output, each a JSON document.
    pub fn lines(&self) -> Result<Vec<Value>> {
        self.text().lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// A process in its own group, which is killed on drop.
#[derive(Debug)]
pub struct Started {
    pub child: Child,
    group: Group,
    readers: Option<[JoinHandle<Vec<u8>>; 2]>,
}

impl Started {
    /// Starts `command` and reads its output as it arrives. Its input is a pipe.
    pub fn new(mut command: Command) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let group = Group::of(child.id());
        let (stdout, stderr) = (child.stdout.take().ok_or("no pipe")?, child.stderr.take().ok_or("no pipe")?);
        let readers = Some([drain(stdout), drain(stderr)]);
        Ok(Self { child, group, readers })
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for its end, and then for the end of its output, which other processes may hold open;
    /// each wait has the same bound.
    pub fn finish(mut self) -> Result<Ended> {
        drop(self.child.stdin.take());
        let child = &mut self.child;
        let status = until("the end of the command", || Ok(child.try_wait()?))?;
        let mut readers = self.readers.take().ok_or("its output was already read")?;
        until("the end of its output", || Ok(readers.iter().all(JoinHandle::is_finished).then_some(())))?;
        let [stdout, stderr] =
            readers.each_mut().map(|reader| std::mem::replace(reader, std::thread::spawn(Vec::new)));
        let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
        Ok(Ended { status, stdout, stderr })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.group.end();
        drop(self.child.wait());
    }
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes read before an error are still worth showing.
        drop(from.read_to_end(&mut bytes));
        bytes
    })
}

/// Sends a signal to a process, or to the group of a negative number. A missing process is not an
/// error.
pub fn signal(pid: i32, number: i32) {
    use nix::sys::signal::{Signal, kill};
    if let Ok(signal) = Signal::try_from(number) {
        let _ = kill(nix::unistd::Pid::from_raw(pid), signal);
    }
}

/// Runs a command to its end with `input`.
pub fn finish(command: Command, input: &[u8]) -> Result<Ended> {
    let mut started = Started::new(command)?;
    if let Some(mut stdin) = started.child.stdin.take() {
        // A command that reads nothing has closed its input.
        drop(stdin.write_all(input));
    }
    started.finish()
}

/// A command with its arguments.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default());
    command
}

/// Path of the program under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_strandline")
}

/// Path of the subject that recordings are tested with.
pub fn recorded() -> Result<String> {
    Ok(subject::compile("recorded", &Libc::system())?.display().to_string())
}

/// A folder and a file for a recording.
#[derive(Debug)]
pub struct Place {
    /// Writable by all users.
    pub folder: Folder,
    /// File of the recording.
    pub file: PathBuf,
}

impl Place {
    /// Creates a new folder.
    pub fn new() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        static TURN: AtomicU32 = AtomicU32::new(0);
        let folder = Folder::new(&format!("record-{}", TURN.fetch_add(1, Ordering::Relaxed)))?;
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777))?;
        let file = folder.0.join("a.strandline");
        Ok(Self { folder, file })
    }

    /// `strandline run FLAGS -o FILE -- COMMAND`.
    pub fn command(&self, flags: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("run").args(flags).arg("-o").arg(&self.file).arg("--").args(words);
        command
    }

    /// Runs [`Self::command`] to its end.
    pub fn run(&self, flags: &[&str], words: &[&str]) -> Result<Ended> {
        finish(self.command(flags, words), b"")
    }

    /// The JSON report of the recording.
    pub fn report(&self) -> Result<Value> {
        report(&self.file)
    }

    /// Reports the growing recording until `read` returns a value.
    pub fn until_reported<T>(&self, what: &str, read: impl Fn(&Value) -> Result<Option<T>>) -> Result<T> {
        let (mut seen_bytes, mut last_error) = (0, String::new());
        let found = until(what, || {
            // A new frame makes the file longer: checking the size is cheaper than a report.
            let file_bytes = std::fs::metadata(&self.file).map_or(0, |data| data.len());
            if file_bytes == std::mem::replace(&mut seen_bytes, file_bytes) {
                return Ok(None);
            }
            match self.report() {
                Ok(report) => read(&report),
                // The recorder may be writing its first frame.
                Err(error) => {
                    last_error = error.to_string();
                    Ok(None)
                }
            }
        });
        found.map_err(|error| format!("{error}; {last_error}").into())
    }
}

/// The JSON report of a recording.
pub fn report(file: &Path) -> Result<Value> {
    strandline::json(&["report", "--format", "json", &file.display().to_string()])
}

/// Records a command that must exit with 0; returns its output and the report.
pub fn recording(flags: &[&str], words: &[&str]) -> Result<(Ended, Value)> {
    let place = Place::new()?;
    let ended = place.run(flags, words)?;
    if ended.how() != 0 {
        return Err(format!("{words:?} ended with {}: {}", ended.how(), ended.complaint()).into());
    }
    Ok((ended, place.report()?))
}

/// The list under `key`.
pub fn list<'a>(document: &'a Value, key: &str) -> &'a [Value] {
    document[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A column of samples.
pub fn column(document: &Value, name: &str) -> Result<Vec<f64>> {
    let values = document["samples"][name].as_array().ok_or_else(|| format!("no column {name}"))?;
    values.iter().map(|value| value.as_f64().ok_or_else(|| format!("{name}: {value}").into())).collect()
}

/// Names of marks, in their order.
pub fn mark_names(document: &Value) -> Vec<&str> {
    list(document, "marks").iter().filter_map(|mark| mark["name"].as_str()).collect()
}

/// The ledgers that were taken at this moment.
pub fn ledgers_of<'a>(document: &'a Value, moment: &str) -> Vec<&'a Value> {
    list(document, "ledgers").iter().filter(|ledger| ledger["moment"] == moment).collect()
}

/// Codes of the recording's caveats.
pub fn caveats(document: &Value) -> Vec<String> {
    strandline::caveats(document)
}

/// A number in a document.
pub fn number(document: &Value, key: &str) -> Result<u64> {
    subject::number(document, key)
}

/// Whether a program is installed; reports the test as skipped if not.
pub fn has(test: &str, tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()));
    if !found {
        crate::support::skipped(test, &format!("{tool} is not installed"));
    }
    found
}

/// Whether this process runs as root; reports the test as skipped if not.
pub fn is_root(test: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0);
    if !is_root {
        crate::support::skipped(test, "it needs root");
    }
    is_root
}

/// A line of /proc/PID/status.
pub fn status_line(pid: i32, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|line| line.trim().to_owned())
}

/// Live children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

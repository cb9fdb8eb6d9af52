//! Applies remedies of a Java virtual machine: sends it commands through its attach mechanism, as
//! `jcmd` does.
//!
//! If a JVM catches SIGQUIT and finds a file `.attach_pidN` in its folder for temporary files, one
//! of its threads listens on a socket beside the file and runs the commands it receives
//! (`os/linux/attachListener_linux.cpp`, later `os/posix/attachListener_posix.cpp`, both in
//! `src/hotspot`). strandline calls no function in the process and stops no thread. SIGQUIT would
//! end a process that does not catch it, and would make a JVM without the mechanism print a thread
//! dump: both are refused before the signal is sent.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strandline_claims::remedy::{Applied, Footprint, Refusal};
use strandline_process::pages;
use strandline_process::procfs::{Process, Status};
use strandline_sys::process::{self as sys, O_DIRECTORY, O_NOFOLLOW, SIGQUIT};

/// Limit on the time until the JVM listens. One of its threads has to run first.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);
/// Limit on the time until the JVM listens if the file exists already: the signal of the file's
/// creator may be on its way, and a second SIGQUIT to a listening JVM prints a thread dump.
const EXISTING_REQUEST_LIMIT: Duration = Duration::from_secs(3);
/// Wait between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// Limit on the time of a command: a collection of a large heap takes minutes if memory is swapped.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// Limit on bytes read of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Limit on the wait for RSS to settle. Memory may be released after the answer: threads of G1
/// and Shenandoah work in steps, those of G1 from 0.1 s after the collection on. The wait ends
/// earlier if RSS does not decrease in [`SETTLED_READS`] consecutive reads.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// Wait between two reads of RSS.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
/// Reads of RSS in a row without a decrease, after which it has settled.
const SETTLED_READS: u32 = 5;
/// Limit on digits shown of a status, which the process controls.
const MAX_STATUS_DIGITS: usize = 8;

/// A diagnostic command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Id of the remedy.
    pub remedy: &'static str,
    /// Name of the command, as `jcmd` takes it.
    pub name: &'static str,
}

/// A full collection.
pub const GC_RUN: Command = Command { remedy: "jvm_gc", name: "GC.run" };
/// `malloc_trim` by the JVM.
pub const TRIM_NATIVE_HEAP: Command = Command { remedy: "jvm_trim", name: "System.trim_native_heap" };

/// Makes the JVM of `process` run `command`. The bytes released are counted in the page tables of
/// `range`, the heap, because collecting takes memory elsewhere; without a range, they are the
/// decrease in RSS. They are unknown if neither can be read. Faults are watched for the time
/// `watch`.
///
/// # Errors
/// The reason, for a person, if strandline or the JVM refuses, or if the JVM does not answer.
pub fn apply(
    process: &Process,
    command: Command,
    range: Option<Range<u64>>,
    watch: Duration,
) -> Result<Applied, String> {
    let before = Footprint::of(process);
    let heap_before_bytes = range.as_ref().and_then(|range| resident_bytes(process, range));
    let began = Instant::now();
    let mut socket = connect(process).map_err(|refusal| refusal.to_string())?;
    let answer = send_command(&mut socket, command.name).map_err(|error| {
        format!("the JVM did not answer the request {}: {error}; it may still execute it", command.name)
    })?;
    let call_seconds = began.elapsed().as_secs_f64();
    check_answer(&answer, command)?;
    let after = wait_until_settled(process);
    let heap_after_bytes = range.as_ref().and_then(|range| resident_bytes(process, range));
    let heap = heap_before_bytes.zip(heap_after_bytes);
    let mut applied = Applied {
        actual_bytes: heap
            .or(before.zip(after).map(|(before, after)| (before.rss_bytes, after.rss_bytes)))
            .map(|(before, after)| before.saturating_sub(after)),
        // Nothing is computed from it after a request to a JVM.
        resident_before_bytes: heap_before_bytes.unwrap_or(0),
        before,
        after,
        call_seconds,
        ..Applied::default()
    };
    applied.watch_faults(process, watch);
    Ok(applied)
}

/// Counts the resident anonymous bytes of a range; `None` if they cannot be read.
fn resident_bytes(process: &Process, range: &Range<u64>) -> Option<u64> {
    let pagemap = process.open_file("pagemap").ok()?;
    let mut bytes = 0;
    let ranges = std::slice::from_ref(range);
    pages::each_anonymous_run(&pagemap, ranges, &mut |run| bytes += run.end - run.start).ok()?;
    Some(bytes)
}

/// Waits until RSS no longer decreases; returns the footprint.
fn wait_until_settled(process: &Process) -> Option<Footprint> {
    let until = Instant::now() + SETTLE_LIMIT;
    let (mut last, mut settled_reads) = (Footprint::of(process), 0);
    while settled_reads < SETTLED_READS && Instant::now() < until {
        std::thread::sleep(SETTLE_INTERVAL);
        let now = Footprint::of(process);
        // Growth comes from the running program and does not prolong the wait.
        let rss_bytes = |footprint: Option<Footprint>| footprint.map(|footprint| footprint.rss_bytes);
        settled_reads = if rss_bytes(now) < rss_bytes(last) { 0 } else { settled_reads + 1 };
        last = now;
    }
    last
}

/// Checks the status at the start of an answer, 0 for success. The text after it may contain
/// anything and is not reported.
fn check_answer(answer: &str, command: Command) -> Result<(), String> {
    let (status, text) = answer.split_once('\n').unwrap_or((answer, ""));
    match status.trim() {
        "0" if !text.contains("java.lang.IllegalArgumentException") => Ok(()),
        "0" => Err(format!("this JVM has no command {}", command.name)),
        status => {
            let digits: String =
                status.chars().filter(char::is_ascii_digit).take(MAX_STATUS_DIGITS).collect();
            Err(format!("the JVM refused {} with status {digits}", command.name))
        }
    }
}

/// Sends a command and reads the answer. Protocol version 1: the version, the command and three
/// arguments, each followed by a zero byte.
fn send_command(socket: &mut UnixStream, command: &str) -> io::Result<String> {
    socket.set_write_timeout(Some(LISTEN_LIMIT))?;
    socket.write_all(format!("1\0jcmd\0{command}\0\0\0").as_bytes())?;
    let until = Instant::now() + ANSWER_LIMIT;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() < MAX_ANSWER_BYTES {
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(remaining))?;
        match socket.read(&mut buffer)? {
            0 => break,
            length => answer.extend_from_slice(&buffer[..length]),
        }
    }
    if answer.is_empty() {
        return Err(io::Error::other("it closed the connection, as it does if it sees another user"));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The file `.attach_pidN`, which makes the JVM take SIGQUIT as a request to listen. Removed on
/// drop if it is still the same file.
struct RequestFile {
    path: PathBuf,
    inode: u64,
    /// Whether the file stays because it may still be needed.
    is_kept: bool,
    /// Whether another process created it.
    is_existing: bool,
}

impl Drop for RequestFile {
    fn drop(&mut self) {
        let is_same = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if is_same && !self.is_kept {
            // A file that cannot be removed does no harm: the JVM ignores it once it listens.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Connects to the JVM; requests that it listen if it does not yet.
fn connect(process: &Process) -> Result<UnixStream, Refusal> {
    let status = process.status()?;
    let pid = process.pid();
    let namespace_pid = status.namespace_pids.last().copied().unwrap_or(pid);
    let handle = sys::open_pidfd(pid).map_err(|e| Refusal::from_io(process, "opening it", e))?;
    // HotSpot always uses this folder, whatever the environment contains. No symbolic link in it is
    // followed: the folder may belong to the target.
    let folder = process.path("root").join("tmp");
    let opened = OpenOptions::new().read(true).custom_flags(O_DIRECTORY | O_NOFOLLOW).open(folder);
    let folder = opened.map_err(|e| Refusal::from_io(process, "opening its /tmp", e))?;
    let tmp = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let socket = tmp.join(format!(".java_pid{namespace_pid}"));
    let path = tmp.join(format!(".attach_pid{namespace_pid}"));
    if let Some(connected) = wait_for(process, &socket, &status, Duration::ZERO)? {
        // A listening JVM does not need the file: its creator was killed.
        if let Some(mut file) = existing_request(&path, &status) {
            file.is_kept = false;
        }
        return Ok(connected);
    }
    check_signal_is_safe(process, &status)?;
    let Requested { mut file, mut connected } = create_request(process, &path, &socket, &status)?;
    if connected.is_none() {
        // By now the process may be stopped or have called exec, or may listen at another process's
        // request: then it would take the signal as a request for a thread dump.
        check_signal_is_safe(process, &process.status()?)?;
        connected = wait_for(process, &socket, &status, Duration::ZERO)?;
    }
    if connected.is_none() {
        sys::signal(&handle, SIGQUIT).map_err(|e| Refusal::from_io(process, "sending SIGQUIT", e))?;
        // The JVM must find the file whenever it handles the signal, even ten minutes later. Once
        // the process has ended, the file is not needed.
        file.is_kept = true;
        connected = wait_for(process, &socket, &status, LISTEN_LIMIT)?;
    }
    // A process whose state is not known may still need it.
    file.is_kept = connected.is_none() && !sys::ends_within(&handle, Duration::ZERO).unwrap_or(false);
    let seconds = LISTEN_LIMIT.as_secs();
    let late = format!("did not listen within {seconds} s after the request (SIGQUIT)");
    connected.ok_or_else(|| refusal(process, &late))
}

/// A request to listen.
struct Requested {
    file: RequestFile,
    /// Connection to a JVM that listens already, at another process's request.
    connected: Option<UnixStream>,
}

/// Creates the file. If it exists already, first waits for the JVM to listen at its creator's
/// request.
fn create_request(
    process: &Process,
    path: &Path,
    socket: &Path,
    status: &Status,
) -> Result<Requested, Refusal> {
    let file = open_request(process, path, status)?;
    let connected =
        if file.is_existing { wait_for(process, socket, status, EXISTING_REQUEST_LIMIT)? } else { None };
    if !file.is_existing || connected.is_some() {
        return Ok(Requested { file, connected });
    }
    // A creator that gave up has removed the file.
    Ok(Requested { file: open_request(process, path, status)?, connected: None })
}

/// Connects once the JVM listens; `None` if it does not within `limit`. A JVM that listens but
/// accepts no connection is an error: another request to listen must not follow.
fn wait_for(
    process: &Process,
    socket: &Path,
    status: &Status,
    limit: Duration,
) -> Result<Option<UnixStream>, Refusal> {
    let since = Instant::now();
    loop {
        let is_full = match try_connect(socket, status) {
            Some(Ok(connected)) => return check_peer(process, connected).map(Some),
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(refusal(process, "does not own the socket at the path of its JVM"));
            }
            Some(Err(error)) => error.kind() == io::ErrorKind::WouldBlock,
            None => false,
        };
        match since.elapsed() {
            elapsed if elapsed >= limit && !is_full => return Ok(None),
            elapsed if elapsed >= LISTEN_LIMIT.max(limit) => {
                let seconds = LISTEN_LIMIT.max(limit).as_secs();
                let late = format!("listens, but accepts no connection within {seconds} s");
                return Err(refusal(process, &late));
            }
            _ => std::thread::sleep(CONNECT_INTERVAL),
        }
    }
}

/// Connects, without waiting, to a socket that must belong to the JVM's user or to root: any user
/// can create files in that folder.
fn try_connect(socket: &Path, status: &Status) -> Option<io::Result<UnixStream>> {
    let metadata = socket.symlink_metadata().ok()?;
    Some(match metadata.file_type().is_socket() && is_of_user_or_root(metadata.uid(), status) {
        true => sys::connect_now(socket),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    })
}

/// Whether a file's owner is root or the user as whom the process acts.
fn is_of_user_or_root(owner: u32, status: &Status) -> bool {
    owner == 0 || effective_user(status) == Some(owner)
}

/// The user whose rights a process has; `None` if it is not known.
fn effective_user(status: &Status) -> Option<u32> {
    status.user_ids.map(|ids| ids.effective)
}

/// Returns the connection if the process itself listens: any user can create a socket in that
/// folder.
fn check_peer(process: &Process, socket: UnixStream) -> Result<UnixStream, Refusal> {
    let peer =
        sys::peer(&socket).map_err(|e| Refusal::from_io(process, "reading the peer's credentials", e))?;
    if peer == process.pid() {
        Ok(socket)
    } else {
        Err(refusal(process, "does not own the socket at the path of its JVM"))
    }
}

/// Creates the file, owned by the JVM's user. An existing file serves as well.
fn open_request(process: &Process, path: &Path, status: &Status) -> Result<RequestFile, Refusal> {
    let failed = |e| Refusal::from_io(process, "requesting its JVM to listen", e);
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let text = "would not take SIGQUIT as a request: its file .attach_pidN in /tmp is another user's, or was removed";
            return existing_request(path, status).ok_or_else(|| refusal(process, text));
        }
        created => created.map_err(failed)?,
    };
    let inode = file.metadata().map_err(failed)?.ino();
    let request = RequestFile { path: path.to_owned(), inode, is_kept: false, is_existing: false };
    fchown(&file, effective_user(status), None).map_err(failed)?;
    Ok(request)
}

/// Returns the file if another process created it, which is attaching now or was killed; `None` if
/// the JVM would ignore it (`AttachListener::is_init_trigger`).
fn existing_request(path: &Path, status: &Status) -> Option<RequestFile> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    let is_accepted = metadata.is_file() && is_of_user_or_root(metadata.uid(), status);
    is_accepted.then(|| RequestFile {
        path: path.to_owned(),
        inode: metadata.ino(),
        is_kept: true,
        is_existing: true,
    })
}

/// Refuses a process that SIGQUIT would end, that is stopped, or that is in another user namespace.
fn check_signal_is_safe(process: &Process, status: &Status) -> Result<(), Refusal> {
    if status.caught_signals.is_none_or(|caught| caught >> (SIGQUIT - 1) & 1 == 0) {
        return Err(refusal(process, "does not catch SIGQUIT (-Xrs, or it is just starting)"));
    }
    if matches!(status.state, Some('T' | 't')) {
        return Err(Refusal::Stopped { pid: process.pid() });
    }
    let theirs = std::fs::read_link(process.path("ns/user"));
    let ours = std::fs::read_link("/proc/self/ns/user");
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) if theirs != ours => {
            let text =
                "is in another user namespace, where its JVM sees another user: run strandline within it";
            Err(refusal(process, text))
        }
        // If a link cannot be read, the namespace counts as the same one, as in most cases it is.
        _ => Ok(()),
    }
}

/// A refusal with the reason `what`, a clause about the process.
fn refusal(process: &Process, what: &str) -> Refusal {
    Refusal::Unsafe {
        pid: process.pid(),
        what: what.to_owned(),
        advice: "call System.gc() in the program, or request it by JMX",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_accepted_if_it_reports_success() {
        let (gc, trim) = (GC_RUN, TRIM_NATIVE_HEAP);
        assert!(check_answer("0\nCommand executed successfully\n", gc).is_ok());
        let unknown =
            check_answer("0\njava.lang.IllegalArgumentException: Unknown diagnostic command\n", trim);
        assert!(unknown.unwrap_err().contains("System.trim_native_heap"));
        assert!(check_answer("101\nno such command a password", gc).unwrap_err().ends_with("status 101"));
        assert!(check_answer("", gc).is_err());
    }
}

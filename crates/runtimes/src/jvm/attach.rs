//! Applies remedies of a Java virtual machine: sends it commands through its attach mechanism, as
//! `jcmd` does.
//!
//! If a JVM catches SIGQUIT and finds a file `.attach_pidN` in its folder for temporary files, one
//! of its threads listens on a socket beside the file and runs the commands it receives
//! (`src/hotspot/os/posix/attachListener_posix.cpp`). strandline calls no function in the process
//! and stops no thread. SIGQUIT would end a process that does not catch it, and would make a JVM
//! without the mechanism print a thread dump: both are refused before the signal is sent.

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
/// Wait for the JVM to listen if the file exists already: the signal of the file's creator may be
/// on its way, and a second SIGQUIT to a listening JVM prints a thread dump.
const FOUND_LIMIT: Duration = Duration::from_secs(3);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Limit on the time of a command: a collection of a large heap takes minutes if memory is swapped.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// Limit on bytes read of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// Limit on the wait for RSS to settle. Memory may be released after the answer: threads of G1
/// and Shenandoah work in steps, those of G1 from 0.1 s after the collection on. The wait ends
/// earlier if RSS does not decrease in [`SETTLED_LOOKS`] consecutive reads.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
const SETTLE_LOOKS: Duration = Duration::from_millis(100);
const SETTLED_LOOKS: u32 = 5;

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
/// decrease in RSS. They are unknown if neither can be read.
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
    let answer = ask(&mut socket, command.name).map_err(|error| {
        format!("the JVM did not answer the request {}: {error}; it may still execute it", command.name)
    })?;
    let call_seconds = began.elapsed().as_secs_f64();
    understood(&answer, command)?;
    let after = settled(process);
    let heap_after_bytes = range.as_ref().and_then(|range| resident_bytes(process, range));
    let heap = heap_before_bytes.zip(heap_after_bytes);
    let mut applied = Applied {
        actual_bytes: heap
            .or(before.zip(after).map(|(before, after)| (before.rss_bytes, after.rss_bytes)))
            .map(|(before, after)| before.saturating_sub(after)),
        resident_before_bytes: heap_before_bytes.unwrap_or(0),
        before,
        after,
        call_seconds,
        ..Applied::default()
    };
    applied.watch_faults(process, watch);
    Ok(applied)
}

fn resident_bytes(process: &Process, range: &Range<u64>) -> Option<u64> {
    let pagemap = process.open_file("pagemap").ok()?;
    let mut bytes = 0;
    let ranges = std::slice::from_ref(range);
    pages::each_anonymous_run(&pagemap, ranges, &mut |run| bytes += run.end - run.start).ok()?;
    Some(bytes)
}

/// Returns the footprint once RSS no longer decreases.
fn settled(process: &Process) -> Option<Footprint> {
    let until = Instant::now() + SETTLE_LIMIT;
    let (mut last, mut looks) = (Footprint::of(process), 0);
    while looks < SETTLED_LOOKS && Instant::now() < until {
        std::thread::sleep(SETTLE_LOOKS);
        let now = Footprint::of(process);
        // Growth comes from the running program and does not prolong the wait.
        looks = if now.map(|of| of.rss_bytes) < last.map(|of| of.rss_bytes) { 0 } else { looks + 1 };
        last = now;
    }
    last
}

/// Checks the status at the start of an answer, 0 for success. The text after it may contain
/// anything and is not reported.
fn understood(answer: &str, command: Command) -> Result<(), String> {
    let (status, text) = answer.split_once('\n').unwrap_or((answer, ""));
    match status.trim() {
        "0" if !text.contains("java.lang.IllegalArgumentException") => Ok(()),
        "0" => Err(format!("this JVM has no command {}", command.name)),
        status => {
            let digits: String = status.chars().filter(char::is_ascii_digit).take(8).collect();
            Err(format!("the JVM refused {} with status {digits}", command.name))
        }
    }
}

/// Sends a command and reads the answer. Protocol version 1: the version, the command and three
/// arguments, each followed by a zero byte.
fn ask(socket: &mut UnixStream, command: &str) -> io::Result<String> {
    socket.set_write_timeout(Some(LISTEN_LIMIT))?;
    socket.write_all(format!("1\0jcmd\0{command}\0\0\0").as_bytes())?;
    let until = Instant::now() + ANSWER_LIMIT;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while answer.len() < MAX_ANSWER {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut piece)? {
            0 => break,
            got => answer.extend_from_slice(piece.get(..got).unwrap_or_default()),
        }
    }
    if answer.is_empty() {
        return Err(io::Error::other("it closed the connection, as it does if it sees another user"));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The file `.attach_pidN`, which makes the JVM take SIGQUIT as a request to listen. Removed on
/// drop if it is still the same file.
struct Request {
    path: PathBuf,
    inode: u64,
    /// Whether the file stays because it may still be needed.
    keep: bool,
    /// Whether another process created it.
    is_found: bool,
}

impl Drop for Request {
    fn drop(&mut self) {
        let is_same = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if is_same && !self.keep {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Connects to the JVM; requests that it listen if it does not yet.
fn connect(process: &Process) -> Result<UnixStream, Refusal> {
    let status = process.status()?;
    let pid = process.pid();
    let inner = status.namespace_pids.last().copied().unwrap_or(pid);
    let handle = sys::open_pidfd(pid).map_err(|e| Refusal::from_io(process, "opening it", e))?;
    // HotSpot always uses this folder, whatever the environment contains. No symbolic link in it is
    // followed: the folder may belong to the target.
    let folder = process.path("root").join("tmp");
    let options = OpenOptions::new().read(true).custom_flags(O_DIRECTORY | O_NOFOLLOW).open(folder);
    let folder = options.map_err(|e| Refusal::from_io(process, "opening its /tmp", e))?;
    let within = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let socket = within.join(format!(".java_pid{inner}"));
    let path = within.join(format!(".attach_pid{inner}"));
    if let Some(connected) = wait_for(process, &socket, &status, Duration::ZERO)? {
        // A listening JVM does not need the file: its creator was killed.
        if let Some(mut left) = found(&path, &status) {
            left.keep = false;
        }
        return Ok(connected);
    }
    may_be_asked(process, &status)?;
    let (mut file, mut connected) = create_request(process, &path, &socket, &status)?;
    if connected.is_none() {
        // The process may have been stopped or have called exec meanwhile. Or another process may
        // have made it listen: then it would take the signal as a request for a thread dump.
        may_be_asked(process, &process.status()?)?;
        connected = wait_for(process, &socket, &status, Duration::ZERO)?;
    }
    if connected.is_none() {
        sys::signal(&handle, SIGQUIT).map_err(|e| Refusal::from_io(process, "sending SIGQUIT", e))?;
        // The JVM must find the file whenever it handles the signal, even ten minutes later. Once
        // the process has ended, the file is not needed.
        file.keep = true;
        connected = wait_for(process, &socket, &status, LISTEN_LIMIT)?;
    }
    file.keep = connected.is_none() && !sys::has_ended(&handle, Duration::ZERO).unwrap_or(false);
    connected
        .ok_or_else(|| refused(process, "did not listen within 10 s after the request (SIGQUIT)".to_owned()))
}

/// Creates the file. If it exists already, first waits for the JVM to listen at its creator's
/// request.
fn create_request(
    process: &Process,
    path: &Path,
    socket: &Path,
    status: &Status,
) -> Result<(Request, Option<UnixStream>), Refusal> {
    let file = request(process, path, status)?;
    let connected = if file.is_found { wait_for(process, socket, status, FOUND_LIMIT)? } else { None };
    if !file.is_found || connected.is_some() {
        return Ok((file, connected));
    }
    // A creator that gave up has removed the file.
    Ok((request(process, path, status)?, None))
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
        let is_full = match listener(socket, status) {
            Some(Ok(connected)) => return own(process, connected).map(Some),
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(refused(process, "does not own the socket at the path of its JVM".to_owned()));
            }
            Some(Err(error)) => error.kind() == io::ErrorKind::WouldBlock,
            None => false,
        };
        match since.elapsed() {
            over if over >= limit && !is_full => return Ok(None),
            over if over >= LISTEN_LIMIT.max(limit) => {
                return Err(refused(process, "listens, and takes no connection within 10 s".to_owned()));
            }
            _ => std::thread::sleep(BETWEEN_LOOKS),
        }
    }
}

/// Connects, without waiting, to a socket that must belong to the JVM's user or to root: any user
/// can create files in that folder.
fn listener(socket: &Path, status: &Status) -> Option<io::Result<UnixStream>> {
    let data = socket.symlink_metadata().ok()?;
    let is_of_user = data.uid() == 0 || status.users.is_some_and(|users| users[1] == data.uid());
    Some(match data.file_type().is_socket() && is_of_user {
        true => sys::connect_now(socket),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    })
}

/// Returns the connection if the process itself listens: any user can create a socket in that
/// folder.
fn own(process: &Process, socket: UnixStream) -> Result<UnixStream, Refusal> {
    let peer =
        sys::peer(&socket).map_err(|e| Refusal::from_io(process, "reading the peer's credentials", e))?;
    if peer == process.pid() {
        Ok(socket)
    } else {
        Err(refused(process, "does not own the socket at the path of its JVM".to_owned()))
    }
}

/// Creates the file, owned by the JVM's user. An existing file serves as well.
fn request(process: &Process, path: &Path, status: &Status) -> Result<Request, Refusal> {
    let failed = |e| Refusal::from_io(process, "requesting its JVM to listen", e);
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let text = "would not take SIGQUIT as a request: its file .attach_pidN in /tmp is another user's, or was removed";
            return found(path, status).ok_or_else(|| refused(process, text.to_owned()));
        }
        made => made.map_err(failed)?,
    };
    let inode = file.metadata().map_err(failed)?.ino();
    let request = Request { path: path.to_owned(), inode, keep: false, is_found: false };
    let effective = status.users.map(|users| users[1]);
    fchown(&file, effective, None).map_err(failed)?;
    Ok(request)
}

/// Returns the file if another process created it, which is attaching now or was killed; `None` if
/// the JVM would ignore it (`AttachListener::is_init_trigger`).
fn found(path: &Path, status: &Status) -> Option<Request> {
    let found = std::fs::symlink_metadata(path).ok()?;
    let is_believed = found.uid() == 0 || status.users.is_some_and(|users| users[1] == found.uid());
    let of = Request { path: path.to_owned(), inode: found.ino(), keep: true, is_found: true };
    (found.is_file() && is_believed).then_some(of)
}

/// Refuses a process that SIGQUIT would end, that is stopped, or that is in another user namespace.
fn may_be_asked(process: &Process, status: &Status) -> Result<(), Refusal> {
    if status.caught.is_none_or(|caught| caught >> (SIGQUIT - 1) & 1 == 0) {
        return Err(refused(process, "does not catch SIGQUIT (-Xrs, or it is just starting)".to_owned()));
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
            Err(refused(process, text.to_owned()))
        }
        _ => Ok(()),
    }
}

fn refused(process: &Process, what: String) -> Refusal {
    Refusal::Unsafe {
        pid: process.pid(),
        what,
        advice: "call System.gc() in the program, or request it by JMX",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_accepted_if_it_reports_success() {
        let (gc, trim) = (GC_RUN, TRIM_NATIVE_HEAP);
        assert!(understood("0\nCommand executed successfully\n", gc).is_ok());
        let unknown = understood("0\njava.lang.IllegalArgumentException: Unknown diagnostic command\n", trim);
        assert!(unknown.unwrap_err().contains("System.trim_native_heap"));
        assert!(understood("101\nno such command a password", gc).unwrap_err().ends_with("status 101"));
        assert!(understood("", gc).is_err());
    }
}

//! Calls on whole processes: comparing address spaces, pidfds, signals, advice, sockets, reaping.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// `KCMP_VM` and `KCMP_FILES` of `include/uapi/linux/kcmp.h`: compare the address spaces, the
/// descriptor tables.
const KCMP_VM: libc::c_long = 1;
const KCMP_FILES: libc::c_long = 2;

/// `MADV_PAGEOUT` of `madvise(2)`: reclaim these pages, writing dirty ones to swap.
pub const MADV_PAGEOUT: i32 = 21;
/// SIGQUIT, which requests a Java virtual machine to open its attach socket.
pub const SIGQUIT: i32 = libc::SIGQUIT;
/// Opens only directories (`open(2)`).
pub const O_DIRECTORY: i32 = libc::O_DIRECTORY;
/// Fails if the last component of the path is a symbolic link (`open(2)`).
pub const O_NOFOLLOW: i32 = libc::O_NOFOLLOW;

/// Whether two processes share one address space (as after `vfork`).
///
/// # Errors
/// Returns the error of kcmp(2): `EPERM` without ptrace access to both, `ENOSYS` on kernels built
/// without it.
pub fn have_same_memory(pid: i32, other_pid: i32) -> io::Result<bool> {
    share_resource(pid, other_pid, KCMP_VM)
}

/// Whether two threads share one table of descriptors.
///
/// # Errors
/// As [`have_same_memory`].
pub fn have_same_descriptors(tid: i32, other_tid: i32) -> io::Result<bool> {
    share_resource(tid, other_tid, KCMP_FILES)
}

/// Whether two tasks share a resource (`KCMP_*`).
fn share_resource(tid: i32, other_tid: i32, resource: libc::c_long) -> io::Result<bool> {
    // SAFETY: kcmp reads its integer arguments only; both kinds ignore the last two.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, tid, other_tid, resource, 0, 0) };
    Ok(crate::check(order)? == 0)
}

/// Address of thread `tid`'s list of robust futexes (set_robust_list(2)); `None` if it registered
/// none. The thread need not be traced.
///
/// # Errors
/// Returns the error of get_robust_list(2): `EPERM` for a thread that this process may not read.
pub fn robust_list(tid: i32) -> io::Result<Option<u64>> {
    let (mut head, mut bytes) = (0_u64, 0_usize);
    // SAFETY: the kernel writes one pointer and one size to the two locals, which live until the
    // call returns.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut bytes) };
    crate::check(result).map(|_| Some(head).filter(|&head| head != 0))
}

/// Opens a pidfd of the process `pid`; it never refers to another process.
///
/// # Errors
/// Returns the error of pidfd_open(2): `ESRCH` without such a process, `ENOSYS` before Linux 5.3.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open reads its integer arguments only.
    let descriptor = crate::check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Gives `advice` (`MADV_*`) on the first 1024 of `ranges` of another process's memory; returns the
/// number of bytes that the kernel accepted.
///
/// # Errors
/// Returns the error of process_madvise(2): `ENOSYS` before Linux 5.10, `EPERM` without the rights.
pub fn advise(process: &OwnedFd, ranges: &[Range<u64>], advice: i32) -> io::Result<u64> {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .take(crate::memory::MAX_RANGES)
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: range.end.saturating_sub(range.start) as usize,
        })
        .collect();
    // SAFETY: `vectors` is a live array of `vectors.len()` descriptors; the addresses in it are the
    // other process's, and the kernel checks them.
    let advised_bytes = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            advice,
            0,
        )
    };
    Ok(crate::check(advised_bytes)? as u64)
}

/// Kills the process of a pidfd ([`open_pidfd`]).
///
/// # Errors
/// As [`signal`].
pub fn kill(process: &OwnedFd) -> io::Result<()> {
    signal(process, libc::SIGKILL)
}

/// Sends `signal` to the process of a pidfd ([`open_pidfd`]).
///
/// # Errors
/// Returns the error of pidfd_send_signal(2): `ESRCH` if it has ended, `EPERM` without the rights.
pub fn signal(process: &OwnedFd, signal: i32) -> io::Result<()> {
    // SAFETY: pidfd_send_signal reads its integer arguments only; the kernel fills in the siginfo
    // if it gets a null pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    crate::check(result).map(drop)
}

/// Whether the process of a pidfd ([`open_pidfd`]) has ended or ends within `limit` (a zombie has
/// ended).
///
/// # Errors
/// Returns the error of poll(2).
pub fn ends_within(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let since = Instant::now();
    let mut polled = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // A limit beyond 24 days is cut.
        let milliseconds = i32::try_from(limit.saturating_sub(since.elapsed()).as_millis());
        // SAFETY: `polled` is one live pollfd, and the count is 1.
        let ready = unsafe { libc::poll(&raw mut polled, 1, milliseconds.unwrap_or(i32::MAX)) };
        match crate::check(ready.into()) {
            // A signal handler ran in this thread, or is about to.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ready => return ready.map(|ready| ready > 0),
        }
    }
}

/// Sends `signal` to the one thread `tid` of process `pid`.
///
/// # Errors
/// Returns the error of tgkill(2): `ESRCH` without such a thread, `EPERM` without the rights.
pub fn signal_thread(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: tgkill reads its integer arguments only.
    crate::check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

/// Connects to a Unix socket without waiting.
///
/// # Errors
/// Returns the error of connect(2), [`io::ErrorKind::WouldBlock`] where it would wait because the
/// listener's backlog is full; `InvalidInput` for a path of more than 107 bytes.
pub fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let mut address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays zero as the terminator.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers only.
    let socket = crate::check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }.into())?;
    // SAFETY: the descriptor is new; nothing else owns it.
    let socket = unsafe { UnixStream::from_raw_fd(socket as i32) };
    let length = std::mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is a live sockaddr_un of `length` bytes.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    crate::check(result.into())?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Process id of the peer of a connected Unix socket, as of the peer's `listen`.
///
/// # Errors
/// Returns the error of getsockopt(2).
pub fn peer(socket: &impl AsRawFd) -> io::Result<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is a live ucred of `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    crate::check(result.into()).map(|_| peer.pid)
}

/// The kernel's counters for a process that ended and for the descendants that it reaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// The largest resident set of any of them, in KiB. At least that of the starting process when
    /// it started the program: the kernel carries it over an exec.
    pub peak_rss_kib: u64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
}

/// A child that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapedChild {
    /// Its process id.
    pub pid: i32,
    /// Its status, as `wait` reports it.
    pub status: i32,
    /// The resources that it used.
    pub usage: Usage,
}

/// Waits for the end of the child `pid`, or of any child (-1), and reaps it.
///
/// # Errors
/// Returns the error of wait4(2): `ECHILD` if there is no such child.
pub fn reap(pid: i32) -> io::Result<ReapedChild> {
    loop {
        if let Some(child) = wait(pid, 0)? {
            return Ok(child);
        }
    }
}

/// Reaps the child `pid`, or any child (-1), without waiting; `None` if none has ended yet.
///
/// # Errors
/// As [`reap`].
pub fn try_reap(pid: i32) -> io::Result<Option<ReapedChild>> {
    wait(pid, libc::WNOHANG)
}

/// wait4(2), repeated after a signal handler has run; `None` only with `WNOHANG`.
fn wait(pid: i32, options: libc::c_int) -> io::Result<Option<ReapedChild>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: `status` and `usage` are live and writable.
        let reaped = unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) };
        match crate::check(reaped.into()) {
            Ok(0) => return Ok(None),
            Ok(reaped) => {
                return Ok(Some(ReapedChild { pid: reaped as i32, status, usage: Usage::of(&usage) }));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Usage {
    /// The counters in the kernel's structure.
    pub(crate) fn of(usage: &libc::rusage) -> Self {
        let microseconds = |time: libc::timeval| {
            time.tv_sec.unsigned_abs().saturating_mul(1_000_000).saturating_add(time.tv_usec.unsigned_abs())
        };
        Self {
            user_us: microseconds(usage.ru_utime),
            system_us: microseconds(usage.ru_stime),
            peak_rss_kib: usage.ru_maxrss.unsigned_abs(),
            minor_faults: usage.ru_minflt.unsigned_abs(),
            major_faults: usage.ru_majflt.unsigned_abs(),
        }
    }

    /// Adds the counters of both; the high-water mark is the larger one.
    pub fn plus(self, other: Self) -> Self {
        Self {
            user_us: self.user_us.saturating_add(other.user_us),
            system_us: self.system_us.saturating_add(other.system_us),
            peak_rss_kib: self.peak_rss_kib.max(other.peak_rss_kib),
            minor_faults: self.minor_faults.saturating_add(other.minor_faults),
            major_faults: self.major_faults.saturating_add(other.major_faults),
        }
    }
}

/// Makes this process the parent of its orphaned descendants (`PR_SET_CHILD_SUBREAPER`), so that it
/// receives their exit statuses.
///
/// # Errors
/// Returns the error of prctl(2).
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl reads its integer arguments only.
    crate::check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_a_child_used_comes_with_its_end() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let ended = reap(child.id() as i32).unwrap();
        assert_eq!((ended.pid, ended.status), (child.id() as i32, 3 << 8));
        assert!(ended.usage.peak_rss_kib > 0 && ended.usage.minor_faults > 0, "{ended:?}");
        assert!(child.wait().is_err(), "it ends once");
    }

    #[test]
    fn a_signal_handler_does_not_end_a_wait() {
        crate::signal::prepare_to_wake().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let handle = open_pidfd(child.id() as i32).unwrap();
        let (own_id, ids) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            own_id.send(crate::signal::own_thread()).unwrap();
            ends_within(&handle, Duration::from_secs(600))
        });
        let thread = ids.recv().unwrap();
        let call = || std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
        // It sleeps in poll(2).
        while !call().starts_with("7 ") {
            std::thread::yield_now();
        }
        signal_thread(std::process::id() as i32, thread, crate::signal::wake_signal()).unwrap();
        child.kill().unwrap();
        assert!(waiting.join().unwrap().unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_shares_its_memory_with_itself_only() {
        let pid = std::process::id() as i32;
        assert!(have_same_memory(pid, pid).unwrap());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // Before its exec it does share it.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let shared = have_same_memory(pid, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shared.unwrap());
    }

    #[test]
    fn a_thread_may_have_descriptors_of_its_own() {
        let pid = std::process::id() as i32;
        let thread = std::thread::spawn(move || {
            let own_tid = crate::signal::own_thread();
            assert!(have_same_descriptors(pid, own_tid).unwrap());
            // SAFETY: unshare reads its integer argument only; the copied descriptors end with this
            // thread.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            assert!(!have_same_descriptors(pid, own_tid).unwrap());
        });
        thread.join().unwrap();
    }
}

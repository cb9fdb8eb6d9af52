//! A child process that kills this one if it is stopped or hangs while it holds another: when a
//! tracer ends, the kernel releases all its tracees.
//!
//! The child is a fork without an exit signal, in its own session, so that a terminal's Ctrl-Z and
//! signals to the process group do not reach it. It closes all inherited files but one, makes only
//! system calls, and ends with the thread that started it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::monotonic_time;

/// Bounds of the interval between two checks of the held time.
const MAX_INTERVAL: Duration = Duration::from_millis(100);
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// Time for which this process may stay stopped while it holds another, unless the hold's deadline
/// is earlier.
const MAX_STOPPED: Duration = Duration::from_secs(1);
/// Grace period past the intended hold time while this process runs: it is then mostly busy
/// releasing.
const GRACE: Duration = Duration::from_secs(4);
/// Maximum number of descriptors that the watchdog closes one by one: others stay open in it.
const MAX_CLOSED_DESCRIPTORS: u64 = 1 << 20;
/// The watched thread's `stat` in the watchdog; the descriptors after it are closed.
const STAT_DESCRIPTOR: libc::c_int = 0;

/// The memory that this process shares with its watchdog.
#[repr(C)]
struct Shared {
    /// Until when this process intends to hold another, in nanoseconds of the monotonic clock; 0
    /// while it holds none.
    deadline_ns: AtomicU64,
}

/// The watchdog process; dropping this ends it. See the module.
#[derive(Debug)]
pub struct Watchdog {
    shared: *mut Shared,
    /// The id of the watchdog process.
    child: libc::pid_t,
}

impl Watchdog {
    /// Starts a watchdog for what this process holds. It ends with the calling thread, whose state
    /// shows it whether the process is stopped.
    ///
    /// # Errors
    /// Returns the error of open(2), mmap(2) or clone(2).
    pub fn start() -> io::Result<Self> {
        let thread = crate::signal::own_thread();
        let stat = File::open(format!("/proc/self/task/{thread}/stat"))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new memory, anywhere.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let shared = page.cast::<Shared>();
        let parent = std::process::id().cast_signed();
        // SAFETY: a raw fork (no flags, no exit signal, no stack of its own): the child has a copy
        // of this thread and of all memory, and calls only `watch`, which never returns, takes no
        // lock and allocates nothing.
        let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if child == 0 {
            watch(shared, parent, stat.as_raw_fd());
        }
        match crate::check(child) {
            Ok(child) => Ok(Self { shared, child: child as libc::pid_t }),
            Err(error) => {
                // SAFETY: the page was made above; nothing else refers to it.
                unsafe { libc::munmap(page, size_of::<Shared>()) };
                Err(error)
            }
        }
    }

    /// Arms the watchdog: this process holds another from now on, for at most `limit`.
    /// With [`Duration::MAX`] only the limit on being stopped applies.
    pub fn arm(&self, limit: Duration) {
        let deadline_ns = monotonic_time().saturating_add(limit).as_nanos().min(u64::MAX.into()) as u64;
        self.deadline_ns().store(deadline_ns, Ordering::Release);
    }

    /// Disarms the watchdog: this process holds no other any more.
    pub fn disarm(&self) {
        self.deadline_ns().store(0, Ordering::Release);
    }

    /// The deadline in the shared memory.
    fn deadline_ns(&self) -> &AtomicU64 {
        // SAFETY: the page lives until `drop`, is aligned, and is used as atomics only.
        unsafe { &(*self.shared).deadline_ns }
    }
}

// SAFETY: the page belongs to the process, and any of its threads may end its child.
unsafe impl Send for Watchdog {}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SAFETY: kill and waitpid take a child of this process that no other code reaps: it is
        // waited for only by its id with `__WALL`. The page is not used after this.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), libc::__WALL);
            libc::munmap(self.shared.cast(), size_of::<Shared>());
        }
    }
}

/// Separates the child from this process's terminal, files and name; keeps `stat` as descriptor 0.
fn detach(stat: libc::c_int) {
    // SAFETY: system calls on integers, a static text and `limit`, which is live and writable for
    // the call.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"strandline-dog".as_ptr(), 0, 0, 0);
        libc::setsid();
        // Cannot fail: `stat` is open, and this copy has a table of descriptors of its own.
        libc::dup2(stat, STAT_DESCRIPTOR);
        // Close inherited files, so that readers of this process's output do not wait for this
        // child. (Before Linux 5.9: one by one.)
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            for descriptor in 1..limit.rlim_cur.min(MAX_CLOSED_DESCRIPTORS) as libc::c_int {
                libc::close(descriptor);
            }
        }
    }
}

/// The loop of the child. `stat` is the open `stat` file of the watched thread.
fn watch(shared: *const Shared, parent: libc::pid_t, stat: libc::c_int) -> ! {
    detach(stat);
    let mut stopped_since = None;
    loop {
        // SAFETY: the page is mapped in this process too, for its whole life.
        let deadline = Duration::from_nanos(unsafe { (*shared).deadline_ns.load(Ordering::Acquire) });
        let now = monotonic_time();
        if deadline.is_zero() {
            stopped_since = None;
        } else if is_stopped() {
            let since = *stopped_since.get_or_insert(now);
            if now >= deadline || now.saturating_sub(since) >= MAX_STOPPED {
                kill_parent(parent);
            }
        } else {
            stopped_since = None;
            if now >= deadline.saturating_add(GRACE) {
                kill_parent(parent);
            }
        }
        let remaining = if deadline.is_zero() { MAX_INTERVAL } else { deadline.saturating_sub(now) };
        nap(remaining.clamp(MIN_INTERVAL, MAX_INTERVAL));
        // SAFETY: getppid has no arguments; _exit does not return.
        unsafe {
            if libc::getppid() != parent {
                libc::_exit(0);
            }
        }
    }
}

/// Whether the thread whose `stat` is open as [`STAT_DESCRIPTOR`] is known to be stopped by a
/// signal or by a tracer.
fn is_stopped() -> bool {
    // The number and the name come before the state. The kernel prints at most 64 bytes of a name
    // (fs/proc/array.c, proc_task_name).
    let mut text = [0_u8; 256];
    // SAFETY: reads at most `text.len()` bytes into `text`.
    let read_bytes = unsafe { libc::pread(STAT_DESCRIPTOR, text.as_mut_ptr().cast(), text.len(), 0) };
    let text = text.get(..usize::try_from(read_bytes).unwrap_or(0)).unwrap_or_default();
    // The state follows the name, which ends at the last bracket.
    let end = text.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| text.get(end + 2)).is_some_and(|state| matches!(state, b'T' | b't'))
}

/// Kills the watched process if it still exists, and exits.
fn kill_parent(parent: libc::pid_t) -> ! {
    // SAFETY: system calls on integers. While `parent` is the parent of this process, its id refers
    // to no other process.
    unsafe {
        if libc::getppid() == parent {
            libc::kill(parent, libc::SIGKILL);
        }
        libc::_exit(0)
    }
}

/// Sleeps for less than a second.
fn nap(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: `time` is a live timespec; the remainder is not requested.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

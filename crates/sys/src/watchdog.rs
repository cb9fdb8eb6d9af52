//! A small process that ends this one where it is stopped, or hangs, while it holds another: with the end of a tracer the
//! kernel lets go of all that it holds.
//!
//! It is a fork without a signal to its parent, in a session of its own, so that a terminal's Ctrl-Z and a signal to the process
//! group miss it. It closes what it was left but one file, runs system calls only, and ends with the thread that started it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::monotonic_time;

/// How often it looks.
const LONGEST_NAP: Duration = Duration::from_millis(100);
const SHORTEST_NAP: Duration = Duration::from_millis(2);
/// How long this process may be stopped while it holds another, if it may hold it that long.
const MAX_STOPPED: Duration = Duration::from_secs(1);
/// How much longer than it wanted it may hold another while it runs: what is done then is mostly to let go.
const MAX_LATE: Duration = Duration::from_secs(4);

/// What both sides see.
#[repr(C)]
struct Shared {
    /// Until when this process wants to hold another, in nanoseconds of the monotonic clock; 0 while it holds none.
    until: AtomicU64,
}

/// See the module. Dropped, it ends.
#[derive(Debug)]
pub struct Watchdog {
    shared: *mut Shared,
    child: libc::pid_t,
}

impl Watchdog {
    /// Starts one, for what the calling thread holds: it ends with that.
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
        // SAFETY: a fork by number (no flags, no signal at its end, no stack of its own): the child has a copy of this thread
        // and of all memory, and calls `watch` only, which never returns, takes no lock and allocates nothing.
        let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if child == 0 {
            watch(shared, parent, stat.as_raw_fd());
        }
        match crate::check(child) {
            Ok(child) => Ok(Self { shared, child: child as libc::pid_t }),
            Err(error) => {
                // SAFETY: the page was made above, and nobody else has it.
                unsafe { libc::munmap(page, size_of::<Shared>()) };
                Err(error)
            }
        }
    }

    /// From now on this process holds another, and wants to for at most `most`.
    pub fn hold(&self, most: Duration) {
        let until = (monotonic_time() + most).as_nanos().min(u64::MAX.into()) as u64;
        self.until().store(until, Ordering::Release);
    }

    /// It holds none any more.
    pub fn release(&self) {
        self.until().store(0, Ordering::Release);
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child
    }

    fn until(&self) -> &AtomicU64 {
        // SAFETY: the page lives until `drop`, is aligned, and is used as atomics only.
        unsafe { &(*self.shared).until }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SAFETY: kill and wait4 take the child of this process, which nobody else collects: it is waited for by its id with
        // `__WALL` only. The page is not used after this.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), libc::__WALL);
            libc::munmap(self.shared.cast(), size_of::<Shared>());
        }
    }
}

/// The life of the child. `stat` is the open `stat` of the thread that it watches.
fn watch(shared: *const Shared, parent: libc::pid_t, stat: libc::c_int) -> ! {
    // SAFETY: system calls on integers and on a static text; nothing that this copy of the process has is used after.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"strandline-dog".as_ptr(), 0, 0, 0);
        libc::setsid();
        libc::dup2(stat, 0);
        // Whoever waits for the end of what was written must not wait for this one. (Before Linux 5.9: one after the other.)
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            for descriptor in 1..limit.rlim_cur.min(1 << 20) as libc::c_int {
                libc::close(descriptor);
            }
        }
    }
    let mut stopped_since = None;
    loop {
        // SAFETY: the page is this process's too, and lives as long as it.
        let until = Duration::from_nanos(unsafe { (*shared).until.load(Ordering::Acquire) });
        let now = monotonic_time();
        if until.is_zero() {
            stopped_since = None;
        } else if is_stopped() {
            let since = *stopped_since.get_or_insert(now);
            if now >= until || now.saturating_sub(since) >= MAX_STOPPED {
                end(parent);
            }
        } else {
            stopped_since = None;
            if now >= until + MAX_LATE {
                end(parent);
            }
        }
        let left = if until.is_zero() { LONGEST_NAP } else { until.saturating_sub(now) };
        nap(left.clamp(SHORTEST_NAP, LONGEST_NAP));
        // SAFETY: getppid has no arguments; _exit does not return.
        unsafe {
            if libc::getppid() != parent {
                libc::_exit(0);
            }
        }
    }
}

/// Whether the thread whose `stat` is descriptor 0 is stopped, by a signal or by its own tracer.
fn is_stopped() -> bool {
    let mut text = [0_u8; 256];
    // SAFETY: reads into `text`, which is as long as is said.
    let got = unsafe { libc::pread(0, text.as_mut_ptr().cast(), text.len(), 0) };
    let text = text.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
    // The state stands behind the name, which ends with the last bracket.
    let end = text.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| text.get(end + 2)).is_some_and(|state| matches!(state, b'T' | b't'))
}

/// Ends the process that is watched, if it is there.
fn end(parent: libc::pid_t) -> ! {
    // SAFETY: system calls on integers. While it is this one's parent its id means no other process.
    unsafe {
        if libc::getppid() == parent {
            libc::kill(parent, libc::SIGKILL);
        }
        libc::_exit(0)
    }
}

fn nap(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: `time` is a live timespec, and what is left of it is not asked for.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

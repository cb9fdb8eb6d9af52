//! Sending signals and waiting for a flag set by one.

use std::io;

/// Sends `signal` to the process `pid`.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill only reads its integer arguments.
    crate::check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// A signal that nobody else sends, to wake a thread of this process from a system call: the last one.
pub fn wake_signal() -> i32 {
    libc::SIGRTMAX()
}

extern "C" fn nothing(_: libc::c_int) {}

/// Makes [`wake_signal`] interrupt system calls (EINTR) instead of ending the process.
pub fn prepare_to_wake() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct: no flags, so no SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: `action` is live; its handler does nothing and so is async-signal-safe.
    let set = unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) };
    crate::check(set.into()).map(drop)
}

/// This thread's id.
pub fn own_thread() -> i32 {
    // By number: glibc has a function for it since 2.30 only.
    // SAFETY: gettid has no arguments and cannot fail; its result is a pid_t.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Does what a SIGTSTP does that the caller has blocked and taken: stops this process, unless its process group is orphaned.
/// Returns when it was continued.
pub fn stop_own_process() {
    // SAFETY: sigset_t is a plain C struct, for which all-zero is a value; the calls fill both sets, which are live. tgkill takes
    // numbers only.
    unsafe {
        let (mut stop, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut stop);
        libc::sigaddset(&raw mut stop, libc::SIGTSTP);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), own_thread(), libc::SIGTSTP);
        // Delivered as soon as it is not blocked.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const stop, &raw mut before);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

/// Signals by which a terminal stops a process: TSTP (Ctrl-Z), TTIN and TTOU.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Keeps a terminal's signals from stopping the calling thread, and those that it starts, until it is dropped: what came
/// meanwhile comes then.
#[derive(Debug)]
pub struct NoStops {
    before: libc::sigset_t,
}

impl NoStops {
    /// Blocks them.
    pub fn begin() -> io::Result<Self> {
        // SAFETY: sigset_t is a plain C struct, for which all-zero is a value; the calls fill both sets, which are live.
        unsafe {
            let (mut stops, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut stops);
            for signal in STOPS {
                libc::sigaddset(&raw mut stops, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stops, &raw mut before) {
                0 => Ok(Self { before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Blocks them in the calling thread for good.
    pub fn for_ever() {
        drop(Self::begin().map(std::mem::forget));
    }
}

impl Drop for NoStops {
    fn drop(&mut self) {
        // SAFETY: `before` is the live mask that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

//! Sending signals, waking threads with one, and blocking a terminal's stop signals.

use std::io;

/// Sends `signal` to the process `pid`.
///
/// # Errors
/// Returns the error of kill(2): `ESRCH` without such a process, `EPERM` without the rights.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill only reads its integer arguments.
    crate::check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// A signal that no other program sends, to wake a thread of this process from a system call:
/// SIGRTMAX.
pub fn wake_signal() -> i32 {
    libc::SIGRTMAX()
}

/// The handler of [`wake_signal`]: all it does is skip a `PTRACE_SEIZE`.
extern "C" fn wake_handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    crate::seize::skip(context);
}

/// Makes [`wake_signal`] interrupt system calls (EINTR) instead of ending the process.
///
/// # Errors
/// `EBUSY` if the program has its own handler for it.
pub fn prepare_to_wake() -> io::Result<()> {
    let own_handler = wake_handler as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t;
    match disposition(wake_signal())? {
        handler if handler == own_handler => return Ok(()),
        libc::SIG_DFL | libc::SIG_IGN => {}
        _ => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct; without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = own_handler;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `action` is live; its handler only changes registers and so is async-signal-safe.
    let result = unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) };
    crate::check(result.into()).map(drop)
}

/// What `signal` does in this process: a handler, `SIG_DFL` or `SIG_IGN`. Async-signal-safe.
pub(crate) fn disposition(signal: i32) -> io::Result<libc::sighandler_t> {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action only queries; `action` is live and writable.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    crate::check(result.into()).map(|_| action.sa_sigaction)
}

/// This thread's id.
pub fn own_thread() -> i32 {
    // As a raw system call: glibc has the function only since 2.30.
    // SAFETY: gettid has no arguments and cannot fail; its result is a pid_t.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Stops this process as a SIGTSTP does, for a caller that blocked SIGTSTP and received it. Does
/// nothing if the process group is orphaned. Returns when the process is continued.
pub fn stop_own_process() {
    // SAFETY: sigset_t is a plain C struct for which all-zero is a valid value; the calls fill both
    // sets, which are live. tgkill takes integers only.
    unsafe {
        let (mut stop_signal, mut mask_before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut stop_signal);
        libc::sigaddset(&raw mut stop_signal, libc::SIGTSTP);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), own_thread(), libc::SIGTSTP);
        // SIGTSTP is delivered once it is unblocked.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const stop_signal, &raw mut mask_before);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask_before, std::ptr::null_mut());
    }
}

/// Signals with which a terminal stops a process: TSTP (Ctrl-Z), TTIN and TTOU.
const STOP_SIGNALS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Blocks a terminal's stop signals in the calling thread, and in threads it starts, until dropped.
/// Pending signals are delivered then.
#[derive(Debug)]
pub struct StopSignalsBlocked {
    mask_before: libc::sigset_t,
}

impl StopSignalsBlocked {
    /// Blocks the signals.
    ///
    /// # Errors
    /// Returns the error of pthread_sigmask(3).
    pub fn begin() -> io::Result<Self> {
        // SAFETY: sigset_t is a plain C struct for which all-zero is a valid value; the calls fill
        // both sets, which are live.
        unsafe {
            let (mut stops, mut mask_before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut stops);
            for signal in STOP_SIGNALS {
                libc::sigaddset(&raw mut stops, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stops, &raw mut mask_before) {
                0 => Ok(Self { mask_before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
}

impl Drop for StopSignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `mask_before` is the live mask that the kernel gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask_before, std::ptr::null_mut())
        };
    }
}

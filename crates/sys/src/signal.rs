//! Signals: sending them, waking a thread with one, masks of blocked ones, and ending by one.

use std::io;

use crate::spawn::{Resource, Rlimit};

/// Sends `signal` to the process `pid`.
///
/// # Errors
/// Returns the error of kill(2): `ESRCH` without such a process, `EPERM` without the rights.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill only reads its integer arguments.
    crate::check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Whether a process exists, also one that /proc hides; a zombie does.
pub fn exists(pid: i32) -> bool {
    // Signal 0 checks only.
    !send(pid, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
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

/// This thread's mask of blocked signals, bit n-1 for signal n.
fn mask() -> io::Result<u64> {
    let mut mask = 0u64;
    let no_new_mask: *const u64 = std::ptr::null();
    // SAFETY: the kernel's signal set is 8 bytes; without a new set only `mask` is written.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, no_new_mask, &raw mut mask, 8) };
    crate::check(result).map(|_| mask)
}

/// Sets this thread's mask of blocked signals, bit n-1 for signal n. Async-signal-safe.
pub(crate) fn set_mask(mask: u64) -> io::Result<()> {
    let no_old_mask: *mut u64 = std::ptr::null_mut();
    // SAFETY: the kernel's signal set is 8 bytes; `mask` is live for the call.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, no_old_mask, 8)
    };
    crate::check(result).map(drop)
}

/// Replaces this thread's mask of blocked signals (bit n-1 for signal n); returns the old one.
///
/// # Errors
/// Returns the error of rt_sigprocmask(2).
pub fn replace_mask(signals: u64) -> io::Result<u64> {
    let mask_before = mask()?;
    set_mask(signals)?;
    Ok(mask_before)
}

/// Blocks `signals` (bit n-1 for signal n) in this thread; returns the mask of blocked signals
/// before.
///
/// # Errors
/// Returns the error of rt_sigprocmask(2).
pub fn block(signals: u64) -> io::Result<u64> {
    replace_mask(mask()? | signals)
}

/// Stops this process as a SIGTSTP does, for a caller that blocked SIGTSTP and received it. Does
/// nothing if the process group is orphaned. Returns when the process is continued.
pub fn stop_own_process() {
    // SAFETY: the calls take integers only.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), own_thread(), libc::SIGTSTP) };
    if let Ok(mask_before) = mask() {
        // SIGTSTP is delivered once it is unblocked.
        drop(set_mask(mask_before & !signal_bit(libc::SIGTSTP)));
        drop(set_mask(mask_before));
    }
}

/// The bit of `signal` in a set of signals (bit n-1 for signal n); 0 if there is no such signal.
pub const fn signal_bit(signal: i32) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

/// Blocks a terminal's stop signals (SIGTSTP by Ctrl-Z, SIGTTIN, SIGTTOU) in the calling thread,
/// and in threads it starts, until dropped. Pending signals are delivered then.
#[derive(Debug)]
pub struct StopSignalsBlocked {
    mask_before: u64,
}

impl StopSignalsBlocked {
    /// Blocks the signals.
    ///
    /// # Errors
    /// Returns the error of rt_sigprocmask(2).
    pub fn begin() -> io::Result<Self> {
        let stop_signals = signal_bit(libc::SIGTSTP) | signal_bit(libc::SIGTTIN) | signal_bit(libc::SIGTTOU);
        Ok(Self { mask_before: block(stop_signals)? })
    }
}

impl Drop for StopSignalsBlocked {
    fn drop(&mut self) {
        // The kernel refuses no mask.
        drop(set_mask(self.mask_before));
    }
}

/// Ends this process by `signal`, without a core file. Returns if the signal does not end it.
pub fn die_by(signal: i32) {
    // For the limit of 1 see `disable_core_files`. Where it is unknown, there is no core file.
    let hard = Resource::Core.get().map_or(0, |limits| limits.hard);
    drop(Resource::Core.set(Rlimit { soft: hard.min(1), hard }));
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    drop(set_mask(0));
    // SAFETY: raise reads its integer argument only.
    unsafe { libc::raise(signal) };
}

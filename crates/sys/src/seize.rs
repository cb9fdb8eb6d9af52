//! `PTRACE_SEIZE` that gives up while the process runs execve(2).
//!
//! The kernel holds a mutex of the process during execve (`cred_guard_mutex`, `fs/exec.c`), and
//! `PTRACE_SEIZE` waits for it (`ptrace_attach`, `kernel/ptrace.c`). Meanwhile execve ends the
//! other threads, and waits until the tracer has collected those that are traced. So a tracer that
//! seizes one thread after another would wait for itself. A signal does not end the wait for long:
//! the kernel restarts the call. The handler of the wake signal
//! ([`signal::wake_signal`]) therefore skips the call.

use std::io;
use std::time::Duration;

use crate::signal;

/// The request of ptrace(2) (`include/uapi/linux/ptrace.h`).
const PTRACE_SEIZE: i64 = 0x4206;

std::arch::global_asm!(
    ".pushsection .text.strandline_seize,\"ax\",@progbits",
    ".hidden strandline_seize",
    ".hidden strandline_seize_call",
    ".hidden strandline_seize_end",
    ".globl strandline_seize",
    ".globl strandline_seize_call",
    ".globl strandline_seize_end",
    ".type strandline_seize,@function",
    "strandline_seize:",
    "mov %rdx, %r10",
    "xor %edx, %edx",
    "mov $101, %eax",
    "strandline_seize_call:",
    "syscall",
    "strandline_seize_end:",
    "ret",
    ".size strandline_seize, . - strandline_seize",
    ".popsection",
    options(att_syntax)
);

unsafe extern "C" {
    /// Makes the system call ptrace(request, tid, 0, data); returns what the kernel returns.
    fn strandline_seize(request: i64, tid: i64, data: i64) -> i64;
    static strandline_seize_call: u8;
    static strandline_seize_end: u8;
}

/// Seizes thread `tid`. Fails with EINTR if the handler of the wake signal ran while it waited.
pub(crate) fn seize(tid: i32, options: i32) -> io::Result<()> {
    // SAFETY: the request takes integers only.
    let result = unsafe { strandline_seize(PTRACE_SEIZE, tid.into(), options.into()) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)));
    }
    Ok(())
}

/// Skips a `PTRACE_SEIZE` that `context` was about to make, or to restart.
pub(crate) fn skip(context: *mut libc::c_void) {
    /// The number of ptrace(2) on x86-64.
    const SYS_PTRACE: i64 = 101;
    // SAFETY: the kernel passes a handler with SA_SIGINFO a live ucontext_t, and restores the
    // registers from it afterwards. The two labels are only compared by their addresses; between
    // them is one system call, whose result the function returns.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let (instruction, result) = (libc::REG_RIP as usize, libc::REG_RAX as usize);
        let (call, end) = (&raw const strandline_seize_call as i64, &raw const strandline_seize_end as i64);
        if registers[instruction] == call && registers[result] == SYS_PTRACE {
            registers[instruction] = end;
            registers[result] = -i64::from(libc::EINTR);
        }
    }
}

/// While this exists, no [`crate::ptrace::seize`] of the thread that made it waits for long: it
/// fails with EINTR.
#[derive(Debug)]
pub struct Limit {
    timer: libc::timer_t,
}

impl Limit {
    /// A call that waits fails when a timer of this period expires: after `time` at the latest.
    ///
    /// # Errors
    /// Fails if the kernel has no timer left, or the program uses the wake signal itself.
    pub fn new(time: Duration) -> io::Result<Self> {
        signal::prepare_to_wake()?;
        // SAFETY: an all-zero sigevent is a valid value of that plain C struct.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal::wake_signal();
        event.sigev_notify_thread_id = signal::own_thread();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are live; the kernel writes the timer's id.
        let result = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        crate::check(result.into())?;
        let limit = Self { timer };
        let nanoseconds = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let step =
            libc::timespec { tv_sec: nanoseconds / 1_000_000_000, tv_nsec: nanoseconds % 1_000_000_000 };
        let period = libc::itimerspec { it_interval: step, it_value: step };
        // SAFETY: the timer exists and `period` is live; the old value is not requested.
        let result = unsafe { libc::timer_settime(limit.timer, 0, &raw const period, std::ptr::null_mut()) };
        crate::check(result.into()).map(|_| limit)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: the timer exists and is deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

//! `ptrace(2)`, one function per request. Tracees are seized (`PTRACE_SEIZE`), those of the target
//! without `PTRACE_O_EXITKILL`, so that they run on if their tracer dies.
//!
//! # Errors
//! Each function returns the kernel's errno: ESRCH if the tracee has ended, is not stopped where it
//! must be, or is not traced by this thread. [`wait`], [`poll`], [`sleep_until_event`] and [`reap`]
//! return ECHILD if there is no such tracee.

use std::io;

/// The general registers of an x86-64 thread.
pub type Registers = libc::user_regs_struct;

/// An instruction of a seccomp filter: its operation (`BPF_*`), the instructions to skip if a
/// comparison holds and if it does not, and its constant operand.
pub type FilterInstruction = libc::sock_filter;

/// A change of a tracee's state, from `waitid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped by `PTRACE_INTERRUPT` (or by a trap of its seizure), outside a group stop.
    Stopped,
    /// In a group stop by this signal (SIGSTOP and other stop signals).
    GroupStop(i32),
    /// Stopped about to receive this signal.
    Signal(i32),
    /// Stopped at the entry or exit of a system call (`PTRACE_O_TRACESYSGOOD`).
    Syscall,
    /// Stopped by another ptrace event (`PTRACE_EVENT_*`).
    Other(i32),
    /// The tracee ended.
    Exited {
        /// The exit status, if it called exit.
        status: Option<i32>,
        /// The signal that killed it, if one did.
        signal: Option<i32>,
    },
}

/// Makes a request that returns nothing but success.
fn request(request: libc::c_uint, tid: i32, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: used only with requests whose address and data are integers, or pointers that the
    // calling function made from a live buffer of the size the request needs.
    crate::check(unsafe { libc::ptrace(request, tid, address, data) }).map(drop)
}

/// Becomes the tracer of `tid` without stopping it. `options` are `PTRACE_O_*`.
///
/// The kernel makes this wait while another thread of the process runs execve(2), which may itself
/// wait until this process has collected threads that it traces: see [`crate::seize::Limit`].
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    crate::seize::seize(tid, options)
}

/// Collects the exit of a traced thread that is not its group's leader, so that the kernel can
/// remove it. Does nothing if it has not exited.
pub fn reap(tid: i32) -> io::Result<()> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: a null info is allowed; the kernel writes nothing.
    let result = unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), std::ptr::null_mut(), flags) };
    crate::check(result.into()).map(drop)
}

/// Asks a seized thread to stop (`PTRACE_INTERRUPT`); wait for it with [`wait`].
pub fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets a stopped tracee run, delivering `signal` (0 for none).
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as u64)
}

/// Lets a stopped tracee run until the next entry or exit of a system call.
pub fn resume_to_syscall(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as u64)
}

/// Leaves a tracee in its group stop, and lets it still report events.
pub fn listen(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Stops tracing a stopped tracee, delivering `signal` (0 for none).
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as u64)
}

/// The general registers of a stopped tracee.
pub fn registers(tid: i32) -> io::Result<Registers> {
    let mut registers = crate::registers::zeroed();
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as u64)?;
    Ok(registers)
}

/// Sets the general registers of a stopped tracee in one step.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as u64)
}

/// The word at `address` of a stopped tracee's memory. If `address` is below a mapping that may
/// grow down, the kernel first extends that as the tracee's own access would.
pub fn peek(tid: i32, address: u64) -> io::Result<u64> {
    let mut word = 0u64;
    // SAFETY: the kernel writes one word to `word`; libc's function would return it instead.
    let result =
        unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, tid, address, &raw mut word) };
    crate::check(result)?;
    Ok(word)
}

/// Returns the seccomp filter number `index` of a stopped tracee; `None` after the last. 0 is the
/// oldest one (kernel/seccomp.c, get_nth_filter; ptrace(2) says the newest). Needs CAP_SYS_ADMIN in
/// the first user namespace, and a tracer without filters: else it fails with EACCES.
pub fn seccomp_filter(tid: i32, index: usize) -> io::Result<Option<Vec<FilterInstruction>>> {
    const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
    /// `BPF_MAXINSNS`, the kernel's limit for a filter.
    const MAX_INSTRUCTIONS: usize = 4096;
    let mut filter = vec![FilterInstruction { code: 0, jt: 0, jf: 0, k: 0 }; MAX_INSTRUCTIONS];
    // SAFETY: the kernel writes at most BPF_MAXINSNS instructions of this C struct, for which the
    // buffer has room.
    let count = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, filter.as_mut_ptr()) };
    if count < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    filter.truncate(count as usize);
    Ok(Some(filter))
}

/// Whether the kernel turns system calls of a stopped tracee into SIGSYS (Syscall User Dispatch).
/// Fails with EIO before Linux 6.4, which does not report it.
pub fn dispatches_system_calls(tid: i32) -> io::Result<bool> {
    // include/uapi/linux/ptrace.h; 0x4210 sets it.
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
    // `struct ptrace_sud_config` of include/uapi/linux/ptrace.h: mode, selector, offset, length;
    // mode 0 is off.
    let mut config = [0u64; 4];
    let bytes = size_of_val(&config) as u64;
    request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, bytes, config.as_mut_ptr() as u64)?;
    Ok(config[0] != 0)
}

/// Size of the kernel's `sigset_t` on x86-64.
const SIGNAL_MASK_BYTES: u64 = 8;

/// The blocked signals of a stopped tracee, bit n-1 for signal n.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    request(libc::PTRACE_GETSIGMASK, tid, SIGNAL_MASK_BYTES, &raw mut mask as u64)?;
    Ok(mask)
}

/// Sets the blocked signals of a stopped tracee.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, SIGNAL_MASK_BYTES, &raw const mask as u64)
}

/// A stopped tracee's register set of an ELF note type (`NT_PRSTATUS`, `NT_X86_XSTATE`), in the
/// length that the kernel returns, at most `max_bytes`.
pub fn register_set(tid: i32, note_type: i32, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut image = vec![0u8; max_bytes];
    let mut vector = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: max_bytes };
    request(libc::PTRACE_GETREGSET, tid, note_type as u64, &raw mut vector as u64)?;
    image.truncate(vector.iov_len);
    Ok(image)
}

/// Sets a stopped tracee's register set of an ELF note type.
pub fn set_register_set(tid: i32, note_type: i32, image: &[u8]) -> io::Result<()> {
    let vector = libc::iovec { iov_base: image.as_ptr() as *mut libc::c_void, iov_len: image.len() };
    request(libc::PTRACE_SETREGSET, tid, note_type as u64, &raw const vector as u64)
}

/// Waits for the next event of `tid`.
///
/// A stop before the delivery of a signal is only peeked at, so it is reported again until the
/// tracee is resumed. The kernel drops the signal of a collected stop if the tracer dies before it
/// passes the signal on, but delivers that of a stop that was not collected.
///
/// An exit is never collected either: the tracee may be a child of this process, and its status
/// belongs to the code that waits for it. The kernel keeps the ended thread until its tracing
/// thread ends, and notifies its parent then (kernel/ptrace.c, `exit_ptrace`). So trace from a
/// short-lived thread.
///
/// Meanwhile no other thread may wait for the same child (`waitpid`, `Child::wait`): the kernel
/// would report the stops to that thread too and consume them. Code that needs the status polls a
/// pidfd first, which signals only the exit.
pub fn wait(tid: i32) -> io::Result<Event> {
    loop {
        if let Some(event) = next_event(tid, 0)? {
            return Ok(event);
        }
    }
}

/// Like [`wait`], but returns at once: `None` if no event is pending.
pub fn poll(tid: i32) -> io::Result<Option<Event>> {
    next_event(tid, libc::WNOHANG)
}

/// The next event of `tid`, collected as [`wait`] describes. `None` if the tracee left its stop
/// before this function collected it, or, with `WNOHANG` in `flags`, if there is no event.
fn next_event(tid: i32, flags: i32) -> io::Result<Option<Event>> {
    match wait_event(tid, libc::WEXITED | libc::WNOWAIT | flags)? {
        Some(event @ (Event::Signal(_) | Event::Exited { .. })) => return Ok(Some(event)),
        None => return Ok(None),
        Some(_) => {}
    }
    match wait_event(tid, libc::WNOHANG) {
        // A tracee killed after the peek is no longer stopped: the next peek returns its exit.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => next_event(tid, flags),
        collected => collected,
    }
}

/// Sleeps until `tid` has an event for [`wait`], or a signal handler ran in this thread. Does
/// not report which of the two: check both.
pub fn sleep_until_event(tid: i32) -> io::Result<()> {
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    // SAFETY: a null info is allowed; the kernel writes nothing.
    let result = unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), std::ptr::null_mut(), flags) };
    match crate::check(result.into()) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Waits for stops of `tid` and for the kinds in `flags`; consumes the event unless `flags`
/// contains `WNOWAIT`.
fn wait_event(tid: i32, flags: i32) -> io::Result<Option<Event>> {
    loop {
        // SAFETY: an all-zero siginfo_t is a valid value of that plain C struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = flags | libc::WSTOPPED | libc::__WALL;
        // SAFETY: `info` is a live, writable siginfo_t.
        let result = unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), &raw mut info, flags) };
        if result != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
            continue;
        }
        // SAFETY: waitid fills the fields of a SIGCHLD; where it found nothing they are zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        return Ok((pid != 0).then(|| decode(info.si_code, status)));
    }
}

/// Decodes `si_code` and `si_status` of `waitid`. For a stop, the signal is the low byte (bit 7: a
/// system call) and the ptrace event is above it.
fn decode(code: i32, status: i32) -> Event {
    match code {
        libc::CLD_EXITED => return Event::Exited { status: Some(status), signal: None },
        libc::CLD_KILLED | libc::CLD_DUMPED => {
            return Event::Exited { status: None, signal: Some(status) };
        }
        _ => {}
    }
    let signal = status & 0xff;
    match status >> 8 {
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Event::Stopped,
        libc::PTRACE_EVENT_STOP => Event::GroupStop(signal),
        0 if signal == libc::SIGTRAP | 0x80 => Event::Syscall,
        0 => Event::Signal(signal),
        event => Event::Other(event),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn statuses_decode_as_in_waitid() {
        let trapped = |status| decode(libc::CLD_TRAPPED, status);
        assert_eq!(decode(libc::CLD_EXITED, 3), Event::Exited { status: Some(3), signal: None });
        assert_eq!(decode(libc::CLD_KILLED, 9), Event::Exited { status: None, signal: Some(9) });
        assert_eq!(decode(libc::CLD_DUMPED, 11), Event::Exited { status: None, signal: Some(11) });
        assert_eq!(trapped(128 << 8 | 5), Event::Stopped);
        assert_eq!(trapped(128 << 8 | 19), Event::GroupStop(19));
        assert_eq!(trapped(6 << 8 | 5), Event::Other(libc::PTRACE_EVENT_EXIT));
        assert_eq!(trapped(14), Event::Signal(14));
        assert_eq!(trapped(0x85), Event::Syscall);
    }

    #[test]
    fn the_end_of_a_child_is_reported_to_its_tracer_and_left_to_its_parent() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        seize(pid, 0).unwrap();
        interrupt(pid).unwrap();
        assert_eq!(wait(pid).unwrap(), Event::Stopped);
        assert_eq!(poll(pid).unwrap(), None, "a stop is collected");
        child.kill().unwrap();
        let killed = Event::Exited { status: None, signal: Some(9) };
        assert_eq!(wait(pid).unwrap(), killed);
        assert_eq!(poll(pid).unwrap(), Some(killed), "an end is not");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(poll(pid).is_err(), "nothing is left of it");
    }
}

//! `ptrace(2)`, a request a function. Seized tracees only: never `PTRACE_ATTACH`, never EXITKILL,
//! so that a tracer that dies lets every tracee run on.

use std::io;

/// The general registers of an x86-64 thread.
pub type Registers = libc::user_regs_struct;

/// What `waitpid` said about a tracee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is stopped by `PTRACE_INTERRUPT` (or by a trap of its own seizure), outside a group stop.
    Stopped,
    /// It is stopped as part of a group stop by this signal (SIGSTOP and its kin).
    GroupStop(i32),
    /// It is stopped about to receive this signal.
    Signal(i32),
    /// It is stopped at the entry or the exit of a system call (`PTRACE_O_TRACESYSGOOD`).
    Syscall,
    /// It is stopped by another ptrace event (`PTRACE_EVENT_*`).
    Other(i32),
    /// It ended.
    Exited {
        /// The exit status, if it called exit.
        status: Option<i32>,
        /// The signal that killed it, if one did.
        signal: Option<i32>,
    },
}

fn request(request: libc::c_uint, tid: i32, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: used only with requests whose address and data are integers, or pointers that the
    // calling function made from a live buffer of the size the request needs.
    crate::check(unsafe { libc::ptrace(request, tid, address, data) }).map(drop)
}

/// Becomes the tracer of `tid` without stopping it. `options` are `PTRACE_O_*`.
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as u64)
}

/// Asks a seized thread to stop; wait for it with [`wait`].
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

/// Lets a tracee in a group stop stay there and still report events.
pub fn listen(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Stops tracing a stopped tracee, delivering `signal` (0 for none).
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as u64)
}

/// The general registers of a stopped tracee.
pub fn registers(tid: i32) -> io::Result<Registers> {
    // SAFETY: an all-zero user_regs_struct is a valid value of that plain C struct.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as u64)?;
    Ok(registers)
}

/// Sets the general registers of a stopped tracee in one step.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as u64)
}

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

/// A stopped tracee's register set of ELF note type `kind` (`NT_PRSTATUS`, `NT_X86_XSTATE`), at
/// most `most` bytes; as long as the kernel made it.
pub fn register_set(tid: i32, kind: i32, most: usize) -> io::Result<Vec<u8>> {
    let mut image = vec![0u8; most];
    let mut vector = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: most };
    request(libc::PTRACE_GETREGSET, tid, kind as u64, &raw mut vector as u64)?;
    image.truncate(vector.iov_len);
    Ok(image)
}

/// Sets a stopped tracee's register set of ELF note type `kind`.
pub fn set_register_set(tid: i32, kind: i32, image: &[u8]) -> io::Result<()> {
    let vector = libc::iovec { iov_base: image.as_ptr() as *mut libc::c_void, iov_len: image.len() };
    request(libc::PTRACE_SETREGSET, tid, kind as u64, &raw const vector as u64)
}

/// Looks for news of `tid`: `None` where there is none yet and `block` is false.
///
/// A stop with a signal on its way is looked at and not collected, so it is reported again until the
/// tracee is resumed: the kernel drops a collected signal if the tracer dies before it hands it over,
/// and delivers one that is not collected.
pub fn wait(tid: i32, block: bool) -> io::Result<Option<Event>> {
    loop {
        match peek(tid, block)? {
            None => return Ok(None),
            Some(signal @ Event::Signal(_)) => return Ok(Some(signal)),
            Some(_) => {}
        }
        // A tracee that is killed after the look has nothing to collect until it has ended.
        let event = collect(tid)?;
        if event.is_some() || !block {
            return Ok(event);
        }
    }
}

/// Sleeps until there is news of `tid` for [`wait`] to find, or a signal handler ran in this thread. Either may be
/// the case without this having told: look.
pub fn sleep_until_news(tid: i32) -> io::Result<()> {
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    // SAFETY: a null info is allowed: nothing is written.
    let got = unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), std::ptr::null_mut(), flags) };
    match crate::check(got.into()) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// What [`wait`] would find, without collecting it. Any event but a signal's is [`Event::Stopped`] here.
fn peek(tid: i32, block: bool) -> io::Result<Option<Event>> {
    let flags =
        libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: an all-zero siginfo_t is a valid value of that plain C struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is a live, writable siginfo_t.
        let got = unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), &raw mut info, flags) };
        if got != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
            continue;
        }
        // SAFETY: waitid fills the fields of a SIGCHLD; where it found nothing they are zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        return Ok(match (pid, info.si_code) {
            (0, _) => None,
            // Events stand above the low byte, and a system call's stop has bit 7.
            (_, libc::CLD_TRAPPED) if (1..0x80).contains(&status) => Some(Event::Signal(status)),
            _ => Some(Event::Stopped),
        });
    }
}

/// Collects news of `tid` if there is any.
fn collect(tid: i32) -> io::Result<Option<Event>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live, writable int.
        let got = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match got {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(Some(decode(status))),
        }
    }
}

fn decode(status: i32) -> Event {
    if libc::WIFEXITED(status) {
        return Event::Exited { status: Some(libc::WEXITSTATUS(status)), signal: None };
    }
    if libc::WIFSIGNALED(status) {
        return Event::Exited { status: None, signal: Some(libc::WTERMSIG(status)) };
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Event::Stopped,
        libc::PTRACE_EVENT_STOP => Event::GroupStop(signal),
        0 if signal == libc::SIGTRAP | 0x80 => Event::Syscall,
        0 => Event::Signal(signal),
        event => Event::Other(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_decode_as_ptrace_2_says() {
        assert_eq!(decode(0x0300), Event::Exited { status: Some(3), signal: None });
        assert_eq!(decode(9), Event::Exited { status: None, signal: Some(9) });
        assert_eq!(decode((128 << 16) | (5 << 8) | 0x7f), Event::Stopped);
        assert_eq!(decode((128 << 16) | (19 << 8) | 0x7f), Event::GroupStop(19));
        assert_eq!(decode((14 << 8) | 0x7f), Event::Signal(14));
        assert_eq!(decode((0x85 << 8) | 0x7f), Event::Syscall);
    }
}

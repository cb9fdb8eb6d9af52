//! Making a stop unseen by system calls that do not restart by themselves.
//!
//! epoll_wait, semop, sigtimedwait and their kin return EINTR whenever their thread was stopped
//! (signal(7) lists them). A program that uses no signals has never seen that and may give up. So a
//! thread that is let go is made to call again, unless a signal waits for it: then EINTR is the
//! truth. This module decides and repairs; it neither stops nor resumes anything.

use std::io;

use strandline_sys::ptrace::{self, Registers};

use crate::memory::Memory;
use crate::procfs::{Process, Status};
use crate::target::live::Live;

/// Calls that return EINTR after a stop and have done nothing when they do. recv, send, accept, read and write
/// are here for sockets with a timeout. Never close (the descriptor is gone) or connect (the
/// connection is under way).
const REPEATABLE: [i64; 25] = [
    232, // epoll_wait
    281, // epoll_pwait
    441, // epoll_pwait2
    65,  // semop
    220, // semtimedop
    128, // rt_sigtimedwait
    208, // io_getevents
    333, // io_pgetevents
    426, // io_uring_enter
    69,  // msgsnd
    70,  // msgrcv
    44,  // sendto
    46,  // sendmsg
    307, // sendmmsg
    45,  // recvfrom
    47,  // recvmsg
    299, // recvmmsg
    43,  // accept
    288, // accept4
    0,   // read
    1,   // write
    19,  // readv
    20,  // writev
    40,  // sendfile
    275, // splice
];
/// Signals whose default is to do nothing more: CHLD, CONT, URG, WINCH.
const NOTHING_BY_DEFAULT: u64 = 1 << 16 | 1 << 17 | 1 << 22 | 1 << 27;

/// `EINTR` as a system call returns it.
const MINUS_EINTR: u64 = (-4_i64) as u64;
/// The instruction `syscall`.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// The code segment of 64-bit programs.
pub const CS_64_BIT: u64 = 0x33;

/// Whether a thread that is in the system call `number` sees EINTR when it is stopped, and can be
/// made not to.
pub fn is_repeatable(number: i64) -> bool {
    REPEATABLE.contains(&number)
}

/// The registers with which a stopped thread that is about to return EINTR calls again instead;
/// `None` where it is not about to, or where its call must not be repeated. No system call.
pub fn repeating(registers: &Registers) -> Option<Registers> {
    let number = registers.orig_rax as i64;
    if registers.rax != MINUS_EINTR || !is_repeatable(number) || registers.cs != CS_64_BIT {
        return None;
    }
    let mut again = *registers;
    again.rip = registers.rip.wrapping_sub(SYSCALL_INSTRUCTION.len() as u64);
    again.rax = registers.orig_rax;
    again.orig_rax = u64::MAX;
    Some(again)
}

/// Makes the stopped thread `tid` of `process` call again where it would report an EINTR that
/// only the stop caused; call it last before letting the thread go.
///
/// `registers` are those it stopped with. Reads its pending signals itself, so that a signal that
/// came during the stop keeps its EINTR; where they cannot be read nothing is changed. Returns whether
/// it changed anything; a thread that is gone is an error of kind `ESRCH`, which a caller that lets go
/// may ignore.
pub fn repair(process: &Process, tid: i32, registers: &Registers) -> io::Result<bool> {
    let Some(again) = repeating(registers) else { return Ok(false) };
    let mut code = [0; 2];
    if Live::new(process.pid()).read(again.rip, &mut code).is_err() || code != SYSCALL_INSTRUCTION {
        return Ok(false);
    }
    if process.task_status(tid).ok().and_then(|status| disturbing(&status)) != Some(0) {
        return Ok(false);
    }
    ptrace::set_registers(tid, &again)?;
    Ok(true)
}

/// Whether `signal` does nothing in a process with this status, whose thread sees it only because it is traced.
pub fn is_ignored(status: &Status, signal: i32) -> bool {
    let bit = signal.checked_sub(1).and_then(|shift| 1u64.checked_shl(shift.unsigned_abs())).unwrap_or(0);
    let acts = status.caught.zip(status.ignored);
    acts.is_some_and(|(caught, ignored)| (ignored | NOTHING_BY_DEFAULT) & !caught & bit != 0)
}

/// The pending signals that would have interrupted the thread without us, bit n-1 for signal n; `None` where
/// they cannot be told. The kernel keeps ignored signals too for a thread that is traced.
fn disturbing(status: &Status) -> Option<u64> {
    let does_something = status.caught? | !(status.ignored? | NOTHING_BY_DEFAULT);
    Some(status.deliverable()? & does_something)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped_in(number: i64, result: i64) -> Registers {
        let mut registers = strandline_sys::registers::zeroed();
        registers.rip = 0x1002;
        registers.cs = CS_64_BIT;
        registers.orig_rax = number as u64;
        registers.rax = result as u64;
        registers
    }

    #[test]
    fn an_epoll_wait_calls_again_from_its_syscall_instruction() {
        let again = repeating(&stopped_in(232, -4)).unwrap();
        assert_eq!((again.rip, again.rax, again.orig_rax), (0x1000, 232, u64::MAX));
    }

    #[test]
    fn other_results_other_calls_and_other_modes_are_left_alone() {
        assert!(repeating(&stopped_in(232, 1)).is_none(), "it returned events");
        assert!(repeating(&stopped_in(3, -4)).is_none(), "close must not be repeated");
        assert!(repeating(&stopped_in(42, -4)).is_none(), "nor connect");
        assert!(repeating(&stopped_in(-1, -4)).is_none(), "not in a call");
        let mut compat = stopped_in(232, -4);
        compat.cs = 0x23;
        assert!(repeating(&compat).is_none(), "a 32-bit thread counts its calls differently");
    }

    #[test]
    fn ignored_signals_are_no_reason_for_an_eintr() {
        let status = |pending: u64, ignored: u64, caught: u64| {
            let text = format!(
                "SigPnd:\t{pending:x}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t{ignored:x}\nSigCgt:\t{caught:x}\n"
            );
            disturbing(&Status::parse(text.as_bytes()))
        };
        let (child, user) = (1 << 16, 1 << 9);
        assert_eq!(status(child, 0, 0), Some(0), "ignored by default");
        assert_eq!(status(child, 0, child), Some(child), "caught");
        assert_eq!(status(user, user, 0), Some(0), "ignored by the program");
        assert_eq!(status(user, 0, 0), Some(user), "kills by default");
        assert_eq!(disturbing(&Status::default()), None);
    }
}

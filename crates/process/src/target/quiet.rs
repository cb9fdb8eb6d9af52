//! Hides a stop from system calls that do not restart by themselves.
//!
//! epoll_wait, semop, sigtimedwait and others return EINTR whenever their thread was stopped
//! (signal(7) lists them). A program that uses no signals has never had that error and may give up.
//! So a released thread is made to repeat the call, unless a signal is pending for it: then EINTR
//! is correct. This module decides and repairs; it neither stops nor resumes threads.

use std::io;

use strandline_sys::ptrace::{self, Registers};

use crate::memory::Memory;
use crate::procfs::{MAX_INFO_BYTES, Process, Status, signal_bit};
use crate::target::live::ByPid;

/// Calls that return EINTR after a stop and can be made again. Those from sendto to write are for
/// sockets with a timeout. Those from read on are for files of FUSE, whose server answers an
/// interrupted request with EINTR: it may have acted on the request, and acts the same again.
/// Excluded are close (the descriptor is gone), connect (the connection is in progress), and what
/// changes a directory, a length or an attribute.
const REPEATABLE: [i64; 50] = [
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
    17,  // pread64
    18,  // pwrite64
    19,  // readv
    20,  // writev
    295, // preadv
    296, // pwritev
    327, // preadv2
    328, // pwritev2
    40,  // sendfile
    275, // splice
    326, // copy_file_range
    2,   // open
    257, // openat
    4,   // stat
    5,   // fstat
    6,   // lstat
    262, // newfstatat
    332, // statx
    21,  // access
    269, // faccessat
    439, // faccessat2
    89,  // readlink
    267, // readlinkat
    78,  // getdents
    217, // getdents64
    137, // statfs
    138, // fstatfs
    74,  // fsync
    75,  // fdatasync
];
/// The numbers of open(2) and openat(2).
const OPEN: i64 = 2;
const OPENAT: i64 = 257;
/// Flags with which an open is not repeated: with O_EXCL it would find the file that the first one
/// created, and with O_TRUNC remove what another thread has written since.
const O_EXCL_OR_TRUNC: u64 = 0x80 | 0x200;
/// write, pwrite64, writev, pwritev, pwritev2 and sendfile: they write to the file of their first
/// argument.
const WRITES: [i64; 6] = [1, 18, 20, 296, 328, 40];
/// O_APPEND in the flags of /proc/PID/fdinfo (x86-64).
const O_APPEND: u64 = 0o2000;

/// Signals with a default action of ignore or continue: CHLD, CONT, URG, WINCH.
const NO_EFFECT_BY_DEFAULT: u64 = signal_bit(17) | signal_bit(18) | signal_bit(23) | signal_bit(28);

/// `EINTR` as a system call returns it.
pub(crate) const MINUS_EINTR: u64 = (-4_i64) as u64;
/// The instruction `syscall`.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// The code segment of 64-bit programs.
pub const CS_64_BIT: u64 = 0x33;

/// Whether a stop makes system call `number` return EINTR, and the call can be repeated.
pub fn is_repeatable(number: i64) -> bool {
    REPEATABLE.contains(&number)
}

/// Registers that make a stopped thread repeat its call instead of returning EINTR; `None` if it is
/// not about to return EINTR or the call must not be repeated. Makes no system call.
fn repeat_registers(registers: &Registers) -> Option<Registers> {
    let number = registers.orig_rax as i64;
    if registers.rax != MINUS_EINTR || !is_repeatable(number) || registers.cs != CS_64_BIT {
        return None;
    }
    let flags = match number {
        OPEN => registers.rsi,
        OPENAT => registers.rdx,
        _ => 0,
    };
    if flags & O_EXCL_OR_TRUNC != 0 {
        return None;
    }
    let mut repeated = *registers;
    repeated.rip = registers.rip.wrapping_sub(SYSCALL_INSTRUCTION.len() as u64);
    repeated.rax = registers.orig_rax;
    repeated.orig_rax = u64::MAX;
    Some(repeated)
}

/// Makes the stopped thread `tid` of `process` repeat a call that would return EINTR only because
/// of the stop. Call it last before releasing the thread.
///
/// `registers` are those at its stop. Reads the pending signals itself, so that a signal sent
/// during the stop keeps its EINTR; if they cannot be read, nothing is changed. A thread that is
/// gone is an error `ESRCH`, which a caller that releases it may ignore.
pub fn repeat_interrupted_call(process: &Process, tid: i32, registers: &Registers) -> io::Result<()> {
    let Some(repeated) = repeat_registers(registers).filter(|_| !appends(process, tid, registers)) else {
        return Ok(());
    };
    let mut code = [0; SYSCALL_INSTRUCTION.len()];
    if ByPid::new(process.pid()).read(repeated.rip, &mut code).is_err() || code != SYSCALL_INSTRUCTION {
        return Ok(());
    }
    if process.task_status(tid).ok().and_then(|status| interrupting_signals(&status)) != Some(0) {
        return Ok(());
    }
    ptrace::set_registers(tid, &repeated)
}

/// Whether a call may add to the end of a file, `true` if unknown: if a FUSE server has written
/// before it answered EINTR, the repeated call would write twice.
fn appends(process: &Process, tid: i32, registers: &Registers) -> bool {
    if !WRITES.contains(&(registers.orig_rax as i64)) {
        return false;
    }
    // Of the thread, which may have descriptors of its own (CLONE_FILES of clone(2)). The kernel
    // too takes the lower half of the register as the descriptor.
    let name = format!("task/{tid}/fdinfo/{}", registers.rdi as i32);
    let Ok(info) = process.read_text(&name, MAX_INFO_BYTES) else { return true };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok())
        .is_none_or(|flags| flags & O_APPEND != 0)
}

/// Whether `signal` is known to have no effect in a process with this status: its thread receives
/// it only because it is traced.
pub fn is_ignored(status: &Status, signal: i32) -> bool {
    let actions = status.caught_signals.zip(status.ignored_signals);
    actions
        .is_some_and(|(caught, ignored)| (ignored | NO_EFFECT_BY_DEFAULT) & !caught & signal_bit(signal) != 0)
}

/// The pending signals that would have interrupted the thread untraced, bit n-1 for signal n;
/// `None` if unknown. For a traced thread the kernel queues ignored signals too.
fn interrupting_signals(status: &Status) -> Option<u64> {
    let has_effect = status.caught_signals? | !(status.ignored_signals? | NO_EFFECT_BY_DEFAULT);
    Some(status.deliverable_signals()? & has_effect)
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
        let again = repeat_registers(&stopped_in(232, -4)).unwrap();
        assert_eq!((again.rip, again.rax, again.orig_rax), (0x1000, 232, u64::MAX));
    }

    #[test]
    fn other_results_calls_and_modes_are_not_changed() {
        assert!(repeat_registers(&stopped_in(232, 1)).is_none(), "it returned events");
        assert!(repeat_registers(&stopped_in(3, -4)).is_none(), "close must not be repeated");
        assert!(repeat_registers(&stopped_in(42, -4)).is_none(), "nor connect");
        let mut exclusive = stopped_in(OPENAT, -4);
        assert!(repeat_registers(&exclusive).is_some());
        exclusive.rdx = O_EXCL_OR_TRUNC;
        assert!(repeat_registers(&exclusive).is_none(), "nor the creation of a file");
        assert!(repeat_registers(&stopped_in(-1, -4)).is_none(), "not in a call");
        let mut compat = stopped_in(232, -4);
        compat.cs = 0x23;
        assert!(repeat_registers(&compat).is_none(), "a 32-bit thread counts its calls differently");
    }

    #[test]
    fn ignored_signals_are_no_reason_for_an_eintr() {
        let status = |pending: u64, ignored: u64, caught: u64| {
            let text = format!(
                "SigPnd:\t{pending:x}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t{ignored:x}\nSigCgt:\t{caught:x}\n"
            );
            interrupting_signals(&Status::parse(text.as_bytes()))
        };
        let (child, user) = (1 << 16, 1 << 9);
        assert_eq!(status(child, 0, 0), Some(0), "ignored by default");
        assert_eq!(status(child, 0, child), Some(child), "caught");
        assert_eq!(status(user, user, 0), Some(0), "ignored by the program");
        assert_eq!(status(user, 0, 0), Some(user), "kills by default");
        assert_eq!(interrupting_signals(&Status::default()), None);
    }
}

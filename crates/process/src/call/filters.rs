//! Whether the seccomp filters of a stopped thread, and its Syscall User Dispatch, allow the system
//! calls of an injected call.
//!
//! Processes in containers run under such a filter (the defaults of Docker, Kubernetes and
//! systemd), and a call that a filter rejects may kill the process. So each filter is read from the
//! kernel and interpreted with what is known of each call; unknown values may be anything. A call
//! is made only if every path ends in "allow".
//!
//! Linux: `kernel/seccomp.c` (`seccomp_get_filter`; `seccomp_check_filter` for the permitted
//! instructions; all filters of a thread run, and the least permissive result counts),
//! `include/uapi/linux/seccomp.h` (`struct seccomp_data`), `net/core/filter.c` (jumps go forward
//! only). A filter that another thread adds to this one between check and call
//! (`SECCOMP_FILTER_FLAG_TSYNC`) is missed, as it is for a thread without filters.

use std::time::Duration;

use strandline_sys::ptrace::{self, FilterInstruction};

use crate::procfs::Process;
use crate::target::hold::on_own_thread;
use crate::target::tracee::Tracee;

/// Maximum number of filters of a thread; one with more cannot make a call. Real programs stack
/// fewer.
const MAX_FILTERS: usize = 64;
/// Maximum time for the first thread to stop in [`check`].
const STOP_LIMIT: Duration = Duration::from_millis(100);

/// A system call to make, with the known values of its first arguments.
#[derive(Clone, Copy, Debug)]
pub struct RequiredCall {
    /// Its name in strace.
    pub name: &'static str,
    /// Its number (x86-64).
    pub number: u32,
    /// `None` if unknown.
    pub arguments: [Option<u64>; 3],
}

impl RequiredCall {
    /// A system call with unknown arguments.
    pub const fn with_any_arguments(name: &'static str, number: u32) -> Self {
        Self { name, number, arguments: [None; 3] }
    }

    /// One whose third argument is this protection (`PROT_*`), as of mmap and mprotect.
    const fn with_protection(name: &'static str, number: u32, protection: u64) -> Self {
        Self { name, number, arguments: [None, None, Some(protection)] }
    }
}

/// The system call that ends every injected call.
pub const SIGNAL_RETURN: RequiredCall = RequiredCall::with_any_arguments("rt_sigreturn", 15);

/// `PROT_NONE`.
const NO_ACCESS: u64 = 0;
/// `PROT_READ | PROT_WRITE`.
const READ_WRITE: u64 = 3;

/// System calls of the allocator functions that give memory back, including their locks and the
/// memory for their own bookkeeping. The only protections they request are none and read-write.
pub const ALLOCATOR_CALLS: &[RequiredCall] = &[
    SIGNAL_RETURN,
    RequiredCall::with_protection("mmap", 9, NO_ACCESS),
    RequiredCall::with_protection("mmap", 9, READ_WRITE),
    RequiredCall::with_protection("mprotect", 10, NO_ACCESS),
    RequiredCall::with_protection("mprotect", 10, READ_WRITE),
    RequiredCall::with_any_arguments("munmap", 11),
    RequiredCall::with_any_arguments("brk", 12),
    RequiredCall::with_any_arguments("sched_yield", 24),
    RequiredCall::with_any_arguments("mremap", 25),
    RequiredCall::with_any_arguments("madvise", 28),
    RequiredCall::with_any_arguments("nanosleep", 35),
    RequiredCall::with_any_arguments("getpid", 39),
    RequiredCall::with_any_arguments("gettid", 186),
    RequiredCall::with_any_arguments("futex", 202),
    RequiredCall::with_any_arguments("clock_gettime", 228),
    RequiredCall::with_any_arguments("clock_nanosleep", 230),
    RequiredCall::with_any_arguments("getcpu", 309),
];

/// What a runtime's function that posts a task to another thread needs in addition: the write that
/// wakes the event loop of that thread.
pub const WAKING_CALLS: &[RequiredCall] = &[RequiredCall::with_any_arguments("write", 1)];

/// The reason why a stopped thread cannot make the calls, as the end of a sentence on what it runs
/// under; `None` if it can.
pub fn objection(tracee: &Tracee<'_>, calls: &[RequiredCall]) -> Option<String> {
    const EIO: i32 = 5;
    match ptrace::dispatches_system_calls(tracee.tid) {
        Ok(true) => {
            return Some("Syscall User Dispatch, which turns its system calls into signals".to_owned());
        }
        // Kernels before 6.4 do not report it (EIO); docs/safety.md states the harm.
        Err(error) if error.raw_os_error() != Some(EIO) => {
            return Some(format!("perhaps Syscall User Dispatch, which cannot be read ({error})"));
        }
        Ok(false) | Err(_) => {}
    }
    let status = match tracee.process.task_status(tracee.tid) {
        Ok(status) => status,
        Err(error) => return Some(format!("perhaps a seccomp filter: {error}")),
    };
    if !status.is_under_seccomp() {
        return None;
    }
    for index in 0..MAX_FILTERS {
        match ptrace::seccomp_filter(tracee.tid, index) {
            Ok(Some(filter)) => {
                if let Some(call) = calls.iter().find(|call| !permits(&filter, call)) {
                    return Some(format!("a seccomp filter that may not let {} through", call.name));
                }
            }
            Ok(None) if index > 0 => return None,
            Ok(None) => break,
            Err(error) => return Some(unreadable_filter(&error)),
        }
    }
    Some("seccomp filters that cannot be followed".to_owned())
}

fn unreadable_filter(error: &std::io::Error) -> String {
    const EACCES: i32 = 13;
    let why = match error.raw_os_error() {
        Some(EACCES) => "needs CAP_SYS_ADMIN, and a strandline that is not itself under a filter".to_owned(),
        _ => error.to_string(),
    };
    format!("a seccomp filter that cannot be read ({why})")
}

/// Like [`objection`], for a running process: stops its first thread briefly.
///
/// # Errors
/// Returns the reason, as [`objection`] does.
pub fn check(process: &Process, calls: &[RequiredCall]) -> Result<(), String> {
    let unreadable = |why: &str| Err(format!("a seccomp filter that cannot be read ({why})"));
    let checked = on_own_thread(STOP_LIMIT, || match Tracee::stop(process, process.pid(), STOP_LIMIT) {
        Ok(tracee) => objection(&tracee, calls).map_or(Ok(()), Err),
        Err(_) => unreadable("its first thread cannot be stopped"),
    });
    checked.unwrap_or_else(|| unreadable("there is no thread to trace it from"))
}

/// Codes of the instructions that seccomp permits (`BPF_*` of `include/uapi/linux/bpf_common.h` and
/// `include/uapi/linux/filter.h`; `seccomp_check_filter`). A is the accumulator, X the index
/// register, K the constant in the instruction, M the scratch memory.
mod opcode {
    /// A = K.
    pub const LOAD_CONSTANT: u16 = 0x00;
    /// A = the word at K of `struct seccomp_data`.
    pub const LOAD_DATA: u16 = 0x20;
    /// A = the word of M at K.
    pub const LOAD_SCRATCH: u16 = 0x60;
    /// A = bytes of `struct seccomp_data`.
    pub const LOAD_LENGTH: u16 = 0x80;
    /// X = K.
    pub const LOAD_X_CONSTANT: u16 = 0x01;
    /// X = the word of M at K.
    pub const LOAD_X_SCRATCH: u16 = 0x61;
    /// X = bytes of `struct seccomp_data`.
    pub const LOAD_X_LENGTH: u16 = 0x81;
    /// The word of M at K = A.
    pub const STORE: u16 = 0x02;
    /// The word of M at K = X.
    pub const STORE_X: u16 = 0x03;
    /// Ends the filter with K.
    pub const RETURN_CONSTANT: u16 = 0x06;
    /// Ends the filter with A.
    pub const RETURN_A: u16 = 0x16;
    /// X = A.
    pub const COPY_TO_X: u16 = 0x07;
    /// A = X.
    pub const COPY_FROM_X: u16 = 0x87;

    /// The bits that hold the class of an instruction.
    pub const CLASS_MASK: u16 = 0x07;
    /// Class: A = A op K, or A op X.
    pub const ARITHMETIC: u16 = 0x04;
    /// Class: jumps forward if A and K, or A and X, compare so.
    pub const JUMP: u16 = 0x05;
    /// Set in an instruction of these two classes whose second operand is X.
    pub const OPERAND_IS_X: u16 = 0x08;
    /// The bits that hold the operation of an instruction of these two classes.
    pub const OPERATION_MASK: u16 = 0xf0;

    pub const ADD: u16 = 0x00;
    pub const SUBTRACT: u16 = 0x10;
    pub const MULTIPLY: u16 = 0x20;
    pub const DIVIDE: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const SHIFT_LEFT: u16 = 0x60;
    pub const SHIFT_RIGHT: u16 = 0x70;
    pub const NEGATE: u16 = 0x80;
    pub const XOR: u16 = 0xa0;

    pub const ALWAYS: u16 = 0x00;
    pub const IF_EQUAL: u16 = 0x10;
    pub const IF_GREATER: u16 = 0x20;
    pub const IF_GREATER_OR_EQUAL: u16 = 0x30;
    pub const IF_ANY_BIT: u16 = 0x40;
}

/// The known values of a filter's registers and scratch memory at one of its instructions; `None`
/// is any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registers {
    /// A.
    accumulator: Option<u32>,
    /// X.
    index: Option<u32>,
    /// M.
    scratch: [Option<u32>; 16],
}

impl Registers {
    /// The values on which both agree.
    fn joined(self, other: Self) -> Self {
        let agreed = |a: Option<u32>, b: Option<u32>| a.filter(|_| a == b);
        let mut scratch = self.scratch;
        for (own, others) in scratch.iter_mut().zip(other.scratch) {
            *own = agreed(*own, others);
        }
        Self {
            accumulator: agreed(self.accumulator, other.accumulator),
            index: agreed(self.index, other.index),
            scratch,
        }
    }
}

/// The effect of an instruction on control flow.
enum Flow {
    /// The next instruction follows.
    Next,
    /// Distances past the next instruction, one per branch that may be taken.
    Jump([Option<u32>; 2]),
    /// The filter returns this value, if it is known.
    Return(Option<u32>),
    /// An instruction that seccomp does not permit.
    Unknown,
}

/// Whether a filter allows `call` on every path that it may take.
fn permits(filter: &[FilterInstruction], call: &RequiredCall) -> bool {
    // What is known before each instruction; `None` if no path leads to it.
    let mut registers_before: Vec<Option<Registers>> = vec![None; filter.len()];
    if let Some(first) = registers_before.first_mut() {
        *first = Some(Registers { accumulator: Some(0), index: Some(0), scratch: [None; 16] });
    }
    // Jumps only go forward, so all predecessors of an instruction precede it.
    for (at, instruction) in filter.iter().enumerate() {
        let Some(Some(mut registers)) = registers_before.get(at).copied() else { continue };
        let distances = match execute(*instruction, &mut registers, call) {
            Flow::Next => [Some(0), None],
            Flow::Jump(distances) => distances,
            Flow::Return(value) if value.is_some_and(is_allow) => continue,
            Flow::Return(_) | Flow::Unknown => return false,
        };
        for distance in distances.into_iter().flatten() {
            let target = at.checked_add(1 + distance as usize);
            let Some(at_target) = target.and_then(|target| registers_before.get_mut(target)) else {
                return false;
            };
            *at_target = Some(at_target.map_or(registers, |earlier| earlier.joined(registers)));
        }
    }
    !filter.is_empty()
}

/// `SECCOMP_RET_ALLOW`, or `SECCOMP_RET_LOG`, which allows and logs.
fn is_allow(value: u32) -> bool {
    matches!(value & 0xffff_0000, 0x7fff_0000 | 0x7ffc_0000)
}

/// Executes an instruction of a filter that is asked about `call`.
fn execute(instruction: FilterInstruction, registers: &mut Registers, call: &RequiredCall) -> Flow {
    /// `sizeof(struct seccomp_data)`
    const DATA_BYTES: u32 = 64;
    let FilterInstruction { code, jt, jf, k } = instruction;
    let scratch_index = k as usize;
    match code {
        opcode::LOAD_DATA => registers.accumulator = load_word(k, call),
        opcode::LOAD_CONSTANT => registers.accumulator = Some(k),
        opcode::LOAD_SCRATCH => {
            registers.accumulator = registers.scratch.get(scratch_index).copied().flatten();
        }
        opcode::LOAD_LENGTH => registers.accumulator = Some(DATA_BYTES),
        opcode::LOAD_X_CONSTANT => registers.index = Some(k),
        opcode::LOAD_X_SCRATCH => registers.index = registers.scratch.get(scratch_index).copied().flatten(),
        opcode::LOAD_X_LENGTH => registers.index = Some(DATA_BYTES),
        opcode::STORE | opcode::STORE_X => {
            let value = if code == opcode::STORE { registers.accumulator } else { registers.index };
            match registers.scratch.get_mut(scratch_index) {
                Some(word) => *word = value,
                None => return Flow::Unknown,
            }
        }
        opcode::RETURN_CONSTANT => return Flow::Return(Some(k)),
        opcode::RETURN_A => return Flow::Return(registers.accumulator),
        opcode::COPY_TO_X => registers.index = registers.accumulator,
        opcode::COPY_FROM_X => registers.accumulator = registers.index,
        _ if code & opcode::CLASS_MASK == opcode::ARITHMETIC => return calculate(code, k, registers),
        _ if code & opcode::CLASS_MASK == opcode::JUMP => return jump(code, jt, jf, k, registers),
        _ => return Flow::Unknown,
    }
    Flow::Next
}

/// A word of `struct seccomp_data`: number, architecture, instruction pointer, arguments. `None` if
/// unknown.
fn load_word(offset: u32, call: &RequiredCall) -> Option<u32> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    /// Offset of `args`.
    const ARGUMENTS: u32 = 16;
    match offset {
        0 => Some(call.number),
        4 => Some(AUDIT_ARCH_X86_64),
        _ => {
            let at = offset.checked_sub(ARGUMENTS)?;
            let argument = (*call.arguments.get((at / 8) as usize)?)?;
            Some(if at % 8 == 0 { argument as u32 } else { (argument >> 32) as u32 })
        }
    }
}

/// The second operand of an instruction: X or its constant.
fn second_operand(code: u16, k: u32, registers: &Registers) -> Option<u32> {
    if code & opcode::OPERAND_IS_X != 0 { registers.index } else { Some(k) }
}

/// Executes an arithmetic instruction.
fn calculate(code: u16, k: u32, registers: &mut Registers) -> Flow {
    let second = second_operand(code, k, registers);
    let operands = registers.accumulator.zip(second);
    registers.accumulator = match code & opcode::OPERATION_MASK {
        opcode::ADD => operands.map(|(a, b)| a.wrapping_add(b)),
        opcode::SUBTRACT => operands.map(|(a, b)| a.wrapping_sub(b)),
        opcode::MULTIPLY => operands.map(|(a, b)| a.wrapping_mul(b)),
        // Division by zero ends the filter with result 0: kill.
        opcode::DIVIDE if second.is_none_or(|divisor| divisor == 0) => return Flow::Return(None),
        opcode::DIVIDE => operands.map(|(a, b)| a / b),
        opcode::OR => operands.map(|(a, b)| a | b),
        // Zero whatever the first operand is.
        opcode::AND if second == Some(0) => Some(0),
        opcode::AND => operands.map(|(a, b)| a & b),
        opcode::SHIFT_LEFT => operands.and_then(|(a, b)| a.checked_shl(b)),
        opcode::SHIFT_RIGHT => operands.and_then(|(a, b)| a.checked_shr(b)),
        opcode::NEGATE => registers.accumulator.map(u32::wrapping_neg),
        opcode::XOR => operands.map(|(a, b)| a ^ b),
        _ => return Flow::Unknown,
    };
    Flow::Next
}

/// Executes a jump: `jt` and `jf` are the distances if the comparison holds and if it does not.
fn jump(code: u16, jt: u8, jf: u8, k: u32, registers: &Registers) -> Flow {
    let second = second_operand(code, k, registers);
    let operands = registers.accumulator.zip(second);
    let holds = match code & opcode::OPERATION_MASK {
        opcode::ALWAYS => return Flow::Jump([Some(k), None]),
        opcode::IF_EQUAL => operands.map(|(a, b)| a == b),
        opcode::IF_GREATER => operands.map(|(a, b)| a > b),
        opcode::IF_GREATER_OR_EQUAL => operands.map(|(a, b)| a >= b),
        opcode::IF_ANY_BIT => operands.map(|(a, b)| a & b != 0),
        _ => return Flow::Unknown,
    };
    let (if_true, if_false) = (Some(u32::from(jt)), Some(u32::from(jf)));
    Flow::Jump(match holds {
        Some(true) => [if_true, None],
        Some(false) => [if_false, None],
        None => [if_true, if_false],
    })
}

#[cfg(test)]
mod tests;

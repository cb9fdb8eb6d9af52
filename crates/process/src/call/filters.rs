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

/// Maximum number of filters followed; real programs stack fewer.
const MAX_FILTERS: usize = 64;
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

/// A system call with unknown arguments.
pub const fn any(name: &'static str, number: u32) -> RequiredCall {
    RequiredCall { name, number, arguments: [None; 3] }
}

/// The system call that ends every injected call.
pub const RETURN: RequiredCall = any("rt_sigreturn", 15);

/// System calls of the allocator functions that give memory back, including their locks and the
/// memory for their own bookkeeping. The only protections they request are none and read-write.
pub const ALLOCATOR_CALLS: &[RequiredCall] = &[
    RETURN,
    protecting("mmap", 9, 0),
    protecting("mmap", 9, 3),
    protecting("mprotect", 10, 0),
    protecting("mprotect", 10, 3),
    any("munmap", 11),
    any("brk", 12),
    any("sched_yield", 24),
    any("mremap", 25),
    any("madvise", 28),
    any("nanosleep", 35),
    any("getpid", 39),
    any("gettid", 186),
    any("futex", 202),
    any("clock_gettime", 228),
    any("clock_nanosleep", 230),
    any("getcpu", 309),
];

/// What a runtime's function that posts a task to another thread needs in addition: the write that
/// wakes the event loop of that thread.
pub const WAKING_CALLS: &[RequiredCall] = &[any("write", 1)];

const fn protecting(name: &'static str, number: u32, protection: u64) -> RequiredCall {
    RequiredCall { name, number, arguments: [None, None, Some(protection)] }
}

/// The reason why a stopped thread cannot make the calls, as the end of a sentence; `None` if it
/// can.
pub fn objection(tracee: &Tracee<'_>, calls: &[RequiredCall]) -> Option<String> {
    const EIO: i32 = 5;
    match ptrace::dispatches_system_calls(tracee.tid) {
        Ok(true) => {
            return Some("Syscall User Dispatch, which turns its system calls into signals".to_owned());
        }
        // Kernels before 6.4 do not report it (EIO); docs/safety.md states the harm.
        Err(error) if error.raw_os_error() != Some(EIO) => return Some(error.to_string()),
        Ok(false) | Err(_) => {}
    }
    let status = match tracee.process.task_status(tracee.tid) {
        Ok(status) => status,
        Err(error) => return Some(error.to_string()),
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
/// Returns the objection, as the end of a sentence.
pub fn check(process: &Process, calls: &[RequiredCall]) -> Result<(), String> {
    let result = on_own_thread(STOP_LIMIT, || match Tracee::stop(process, process.pid(), STOP_LIMIT) {
        Ok(tracee) => objection(&tracee, calls),
        Err(_) => {
            Some("a seccomp filter that cannot be read (its first thread cannot be stopped)".to_owned())
        }
    });
    match result {
        Some(None) => Ok(()),
        Some(Some(why)) => Err(why),
        None => Err("a seccomp filter that cannot be read (there is no thread to trace it from)".to_owned()),
    }
}

/// The known register values at an instruction of a filter; `None` is any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    a: Option<u32>,
    x: Option<u32>,
    scratch: [Option<u32>; 16],
}

impl State {
    /// The values on which both states agree.
    fn joined(self, other: Self) -> Self {
        let agreed = |a: Option<u32>, b: Option<u32>| a.filter(|_| a == b);
        let mut scratch = self.scratch;
        for (own, others) in scratch.iter_mut().zip(other.scratch) {
            *own = agreed(*own, others);
        }
        Self { a: agreed(self.a, other.a), x: agreed(self.x, other.x), scratch }
    }
}

/// The effect of an instruction on control flow.
enum Step {
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
    let mut states: Vec<Option<State>> = vec![None; filter.len()];
    if let Some(first) = states.first_mut() {
        *first = Some(State { a: Some(0), x: Some(0), scratch: [None; 16] });
    }
    // Jumps only go forward, so all predecessors of an instruction precede it.
    for (at, instruction) in filter.iter().enumerate() {
        let Some(Some(mut state)) = states.get(at).copied() else { continue };
        let targets = match step(*instruction, &mut state, call) {
            Step::Next => [Some(0), None],
            Step::Jump(targets) => targets,
            Step::Return(value) if value.is_some_and(is_allow) => continue,
            Step::Return(_) | Step::Unknown => return false,
        };
        for target in targets.into_iter().flatten() {
            let target = at.checked_add(1 + target as usize);
            let Some(known) = target.and_then(|target| states.get_mut(target)) else { return false };
            *known = Some(known.map_or(state, |known| known.joined(state)));
        }
    }
    !filter.is_empty()
}

/// `SECCOMP_RET_ALLOW`, or `SECCOMP_RET_LOG`, which allows and logs.
fn is_allow(value: u32) -> bool {
    matches!(value & 0xffff_0000, 0x7fff_0000 | 0x7ffc_0000)
}

/// Executes one instruction (`BPF_*` of `include/uapi/linux/bpf_common.h`, as far as seccomp
/// permits it).
fn step(instruction: FilterInstruction, state: &mut State, call: &RequiredCall) -> Step {
    const DATA_BYTES: u32 = 64;
    let FilterInstruction { code, jt, jf, k } = instruction;
    let slot = k as usize;
    match code {
        // ld: a word of seccomp_data, a constant, a scratch word, the data's length.
        0x20 => state.a = load_word(k, call),
        0x00 => state.a = Some(k),
        0x60 => state.a = state.scratch.get(slot).copied().flatten(),
        0x80 => state.a = Some(DATA_BYTES),
        // ldx: a constant, a scratch word, the data's length.
        0x01 => state.x = Some(k),
        0x61 => state.x = state.scratch.get(slot).copied().flatten(),
        0x81 => state.x = Some(DATA_BYTES),
        // st, stx
        0x02 | 0x03 => {
            let value = if code == 0x02 { state.a } else { state.x };
            match state.scratch.get_mut(slot) {
                Some(word) => *word = value,
                None => return Step::Unknown,
            }
        }
        // ret k, ret a
        0x06 => return Step::Return(Some(k)),
        0x16 => return Step::Return(state.a),
        // tax, txa
        0x07 => state.x = state.a,
        0x87 => state.a = state.x,
        _ if code & 0x07 == 0x04 => return arithmetic(code, k, state),
        _ if code & 0x07 == 0x05 => return jump(code, jt, jf, k, state),
        _ => return Step::Unknown,
    }
    Step::Next
}

/// A word of `struct seccomp_data`: number, architecture, instruction pointer, arguments. `None` if
/// unknown.
fn load_word(offset: u32, call: &RequiredCall) -> Option<u32> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
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
fn operand(code: u16, k: u32, state: &State) -> Option<u32> {
    if code & 0x08 != 0 { state.x } else { Some(k) }
}

fn arithmetic(code: u16, k: u32, state: &mut State) -> Step {
    let second = operand(code, k, state);
    let operands = state.a.zip(second);
    state.a = match code & 0xf0 {
        0x00 => operands.map(|(a, b)| a.wrapping_add(b)),
        0x10 => operands.map(|(a, b)| a.wrapping_sub(b)),
        0x20 => operands.map(|(a, b)| a.wrapping_mul(b)),
        // Division by zero ends the filter with result 0: kill.
        0x30 if second.is_none_or(|divisor| divisor == 0) => return Step::Return(None),
        0x30 => operands.map(|(a, b)| a / b),
        0x40 => operands.map(|(a, b)| a | b),
        // Zero whatever the first operand is.
        0x50 if second == Some(0) => Some(0),
        0x50 => operands.map(|(a, b)| a & b),
        0x60 => operands.and_then(|(a, b)| a.checked_shl(b)),
        0x70 => operands.and_then(|(a, b)| a.checked_shr(b)),
        0x80 => state.a.map(u32::wrapping_neg),
        0xa0 => operands.map(|(a, b)| a ^ b),
        _ => return Step::Unknown,
    };
    Step::Next
}

fn jump(code: u16, jt: u8, jf: u8, k: u32, state: &State) -> Step {
    let second = operand(code, k, state);
    let operands = state.a.zip(second);
    let holds = match code & 0xf0 {
        0x00 => return Step::Jump([Some(k), None]),
        0x10 => operands.map(|(a, b)| a == b),
        0x20 => operands.map(|(a, b)| a > b),
        0x30 => operands.map(|(a, b)| a >= b),
        0x40 => operands.map(|(a, b)| a & b != 0),
        _ => return Step::Unknown,
    };
    let (if_true, if_false) = (Some(u32::from(jt)), Some(u32::from(jf)));
    Step::Jump(match holds {
        Some(true) => [if_true, None],
        Some(false) => [if_false, None],
        None => [if_true, if_false],
    })
}

#[cfg(test)]
mod tests;

//! How much stack a stopped thread has left, and whether a call may use it.
//!
//! Only a thread's own stack qualifies: below the stack pointer of a coroutine or of an alternate
//! signal stack there may be anything.

use strandline_sys::ptrace::Registers;
use strandline_sys::rseq;

use crate::map::AddressSpace;
use crate::memory::Memory;
use crate::stacks::{self, Stack, ThreadFacts};

/// `rseq_cs` in `struct rseq` (include/uapi/linux/rseq.h): the active restartable sequence, or 0.
const OFFSET_RSEQ_CS: u64 = 8;

/// Maximum bytes of a stack that are searched for a signal frame.
const MAX_SEARCHED_BYTES: u64 = 4 << 20;

/// The thread's own stack; `None` if the stack pointer is not on it.
pub fn own_stack(
    memory: &dyn Memory,
    space: &AddressSpace,
    tid: i32,
    registers: &Registers,
) -> Option<Stack> {
    let (stack_pointer, fs_base) = (registers.rsp, registers.fs_base);
    space.find(stack_pointer).filter(|mapping| mapping.permissions.write && !mapping.permissions.shared)?;
    let facts = ThreadFacts { tid, stack_pointer, fs_base, ..ThreadFacts::default() };
    stacks::stack_of(&facts, memory, space).filter(|stack| stack.low <= stack_pointer)
}

/// Bytes between the stack pointer and the lowest mapped address of the thread's own stack; `None`
/// if the stack pointer is not on it.
pub fn room_bytes(memory: &dyn Memory, space: &AddressSpace, tid: i32, registers: &Registers) -> Option<u64> {
    own_stack(memory, space, tid, registers).map(|stack| stack.stack_pointer - stack.low)
}

/// Whether a thread's stack may contain a signal frame, which begins with the address of the C
/// library's return from a handler (arch/x86/kernel/signal_64.c, struct rt_sigframe, `pretcode`).
/// True if unknown.
pub fn may_be_in_signal_handler(memory: &dyn Memory, stack: &Stack, trampoline: u64) -> bool {
    let start = stack.stack_pointer & !7;
    let bytes = stack.high.saturating_sub(start);
    if bytes > MAX_SEARCHED_BYTES {
        return true;
    }
    let mut contents = vec![0; bytes as usize];
    memory.read(start, &mut contents).is_err()
        || contents.chunks_exact(8).any(|word| word == trampoline.to_le_bytes())
}

/// Whether the stopped thread may be in a restartable sequence; `true` if its word cannot be read.
/// A call would not abort the sequence: the thread would go on in its middle.
pub fn is_in_rseq(memory: &dyn Memory, tid: i32) -> bool {
    match rseq::area(tid) {
        Ok(Some(area)) => {
            area.checked_add(OFFSET_RSEQ_CS).and_then(|at| memory.read_word(at).ok()) != Some(0)
        }
        // None is registered, or the kernel (before 5.13) cannot report it. On such kernels
        // sequences are rare, and a blocked thread, which callers prefer, is in none.
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that can be read from its start only.
    struct Descriptor {
        address: u64,
        bytes: Vec<u8>,
    }

    impl Memory for Descriptor {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            if address != self.address {
                return 0;
            }
            let count = buffer.len().min(self.bytes.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            count
        }
    }

    #[test]
    fn stack_space_ends_at_the_guard_and_is_zero_on_foreign_stacks() {
        let mut bytes = vec![0; 2304];
        for (offset, value) in [(0x690, 0x10_0000_u64), (0x698, 0x8000), (0x6a0, 0x1000), (0x6a8, 0x1000)] {
            bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let memory = Descriptor { address: 0x10_7700, bytes };
        // From glibc 2.42 on the mapping includes the guard and the stacks of other threads.
        let (space, _) = AddressSpace::parse(b"100000-300000 rw-p 00000000 00:00 0 \n");
        let room = |fs_base, rsp| {
            let mut registers = strandline_sys::registers::zeroed();
            (registers.fs_base, registers.rsp) = (fs_base, rsp);
            room_bytes(&memory, &space, 1, &registers)
        };
        assert_eq!(room(0x10_7700, 0x10_5000), Some(0x4000));
        assert_eq!(room(0x10_7700, 0x20_0000), None, "another stack");
        assert_eq!(room(0x10_7700, 0x10_0800), None, "in the guard");
        assert_eq!(room(0x9000, 0x10_5000), None, "no descriptor");
    }
}

//! How much stack a stopped thread has left, and whether a call may use it.
//!
//! Only a thread's own stack qualifies: below the stack pointer of a coroutine or of an alternate
//! signal stack there may be anything.

use strandline_sys::ptrace::{self, Registers};
use strandline_sys::rseq;

use super::{frame, inject};
use crate::map::{AddressSpace, Mapping};
use crate::memory::{Memory, word_at};
use crate::stacks::{self, Stack, ThreadFacts};
use crate::target::budget;
use crate::target::tracee::Tracee;

/// `rseq_cs` in `struct rseq` (include/uapi/linux/rseq.h): the active restartable sequence, or 0.
const OFFSET_RSEQ_CS: u64 = 8;

/// Maximum bytes of a stack that are searched for a signal frame.
const MAX_SEARCHED_BYTES: u64 = 4 << 20;
/// Maximum number of code addresses that are read in search of returns from handlers: a hostile
/// stack may be full of them. With more, the answer is unknown.
const MAX_CHECKED_RETURNS: usize = 1 << 12;

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

/// Whether `bytes` below the stack pointer of a stopped thread are mapped; `stack` is its stack.
///
/// The kernel maps more of the main thread's stack only as the program comes to use it. So this
/// function extends that mapping if it is too short, within the program's limits: a function that
/// is called in the thread must not find out that it cannot be extended.
pub fn has_room(tracee: &Tracee<'_>, space: &AddressSpace, stack: &Stack, bytes: u64) -> bool {
    stack.stack_pointer - stack.low >= bytes || extend(tracee, space, stack, bytes)
}

/// Has the kernel extend the main thread's stack; false if `stack` is not that, its limits do not
/// permit it, or other memory is in the way.
fn extend(tracee: &Tracee<'_>, space: &AddressSpace, stack: &Stack, bytes: u64) -> bool {
    let process = tracee.process;
    let is_main = |mapping: &&Mapping| mapping.name == "[stack]";
    let mapping = space.find(stack.stack_pointer).filter(is_main);
    let Some((mapping, low)) = mapping.zip(stack.stack_pointer.checked_sub(bytes)) else { return false };
    // The kernel would apply the tracer's limits. Old kernels populate locked memory.
    let is_locked = process.status().map_or(true, |status| status.locked_bytes != Some(0));
    let has_space_limit = budget::soft_limit(process, "Max address space").is_some();
    let exceeds = |limit: u64| mapping.end - low > limit;
    if is_locked || has_space_limit || budget::soft_limit(process, "Max stack size").is_some_and(exceeds) {
        return false;
    }
    // A read through ptrace extends a stack on all kernels (mm/memory.c, __access_remote_vm), and
    // makes no page resident. It also succeeds in another mapping, such as a guard.
    let extended = ptrace::peek(tracee.tid, low & !7).is_ok().then(|| process.address_space().ok()).flatten();
    let stack_now = extended.as_ref().and_then(|space| space.find(low)).filter(is_main);
    stack_now.is_some_and(|mapping| mapping.contains(stack.stack_pointer))
}

/// Whether a thread's stack may contain a signal frame, which begins with the address of a return
/// from a handler, such as `trampoline`. True if unknown. The address alone is not enough: glibc's
/// sigaction(2) leaves it on the stack.
pub fn may_be_in_signal_handler(
    memory: &dyn Memory,
    space: &AddressSpace,
    stack: &Stack,
    trampoline: u64,
) -> bool {
    let start = stack.stack_pointer & !7;
    let bytes = stack.high.saturating_sub(start);
    if bytes > MAX_SEARCHED_BYTES {
        return true;
    }
    let mut contents = vec![0; bytes as usize];
    if memory.read(start, &mut contents).is_err() {
        return true;
    }
    let mut checked_count = 0;
    // Before glibc 2.34, libpthread has a return of its own.
    let mut is_trampoline = |address: u64| {
        if !space.find(address).is_some_and(|mapping| mapping.permissions.execute) {
            return false;
        }
        checked_count += 1;
        checked_count > MAX_CHECKED_RETURNS || inject::is_trampoline(memory, address)
    };
    (0..contents.len()).step_by(8).any(|offset| {
        let bytes = contents.get(offset..).unwrap_or_default();
        let address = word_at(bytes, 0).unwrap_or(0);
        frame::is_plausible(bytes) && address != 0 && (address == trampoline || is_trampoline(address))
    })
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

    /// Bytes by their address, which can be read from there only.
    struct Areas(Vec<(u64, Vec<u8>)>);

    impl Memory for Areas {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let Some((_, bytes)) = self.0.iter().find(|(start, _)| *start == address) else { return 0 };
            let count = buffer.len().min(bytes.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            count
        }
    }

    #[test]
    fn a_signal_frame_is_found_by_the_return_of_any_library() {
        let (space, _) = AddressSpace::parse(
            b"1000-2000 r-xp 00000000 08:01 7 /lib/libpthread-2.31.so\n8000-9000 rw-p 00000000 00:00 0 \n",
        );
        let stack = Stack { tid: 1, low: 0x8000, high: 0x9000, stack_pointer: 0x8f00 };
        // A return address, flags, a link, and the code segment.
        let may_be_in_handler = |[address, flags, link, segment]: [u64; 4]| {
            let mut contents = vec![0; 0x100];
            contents[0x10..0x28].copy_from_slice(&[address, flags, link].map(u64::to_le_bytes).concat());
            contents[0x10 + 192..0x10 + 200].copy_from_slice(&segment.to_le_bytes());
            let code = |address| (address, inject::TRAMPOLINE.to_vec());
            let memory = Areas(vec![(0x8f00, contents), code(0x1230), code(0x8230)]);
            may_be_in_signal_handler(&memory, &space, &stack, 0x7777)
        };
        assert!(may_be_in_handler([0x7777, 7, 0, 0x33]), "the return that is known");
        assert!(may_be_in_handler([0x1230, 7, 0, 0x33]), "another one");
        assert!(!may_be_in_handler([0x1234, 7, 0, 0x33]), "other code");
        assert!(!may_be_in_handler([0x8230, 7, 0, 0x33]), "no code");
        assert!(may_be_in_handler([0x7777, 7, 0, 0x2b << 48 | 0xe033]), "the segments of Xen");
        let wrong_segments = [[0x7777, 7, 0, 0], [0x7777, 7, 0, 0x33_0033], [0x1230, 7, 0, 0x30]];
        let no_frames = [[0x7777, 8, 0, 0x33], [0x7777, 7, 1, 0x33]];
        for no_frame in no_frames.into_iter().chain(wrong_segments) {
            assert!(!may_be_in_handler(no_frame), "{no_frame:x?}");
        }
    }

    #[test]
    fn the_own_stack_ends_at_the_guard() {
        let mut bytes = vec![0; 2304];
        for (offset, value) in [(0x690, 0x10_0000_u64), (0x698, 0x8000), (0x6a0, 0x1000), (0x6a8, 0x1000)] {
            bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let memory = Areas(vec![(0x10_7700, bytes)]);
        // From glibc 2.42 on the mapping includes the guard and the stacks of other threads.
        let (space, _) = AddressSpace::parse(b"100000-300000 rw-p 00000000 00:00 0 \n");
        let low = |fs_base, rsp| {
            let mut registers = strandline_sys::registers::zeroed();
            (registers.fs_base, registers.rsp) = (fs_base, rsp);
            own_stack(&memory, &space, 1, &registers).map(|stack| stack.low)
        };
        assert_eq!(low(0x10_7700, 0x10_5000), Some(0x10_1000));
        assert_eq!(low(0x10_7700, 0x20_0000), None, "another stack");
        assert_eq!(low(0x10_7700, 0x10_0800), None, "in the guard");
        assert_eq!(low(0x9000, 0x10_5000), None, "no descriptor");
    }
}

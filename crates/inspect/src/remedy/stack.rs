//! How much stack a stopped thread has left, and whether it can be used at all.
//!
//! Only a thread's own stack counts: below the stack pointer of a coroutine or of an alternate
//! signal stack may lie anything.

use strandline_sys::ptrace::Registers;
use strandline_sys::rseq;

use crate::map::AddressSpace;
use crate::memory::{Memory, word_at};

/// glibc's `struct pthread` stands at the thread pointer and is about this long (2304 in 2.36).
const DESCRIPTOR_BYTES: usize = 2560;
/// The largest stack that is believed.
const MOST_STACK_BYTES: u64 = 1 << 36;
/// `rseq_cs` in `struct rseq`: the restartable sequence that is under way, or 0.
const OFFSET_RSEQ_CS: u64 = 8;

/// Bytes between the stack pointer and the lowest address of the thread's own stack that is mapped;
/// `None` where the stack pointer is not on the thread's own stack.
pub(crate) fn room_bytes(memory: &dyn Memory, space: &AddressSpace, registers: &Registers) -> Option<u64> {
    let pointer = registers.rsp;
    let mapping = space.find(pointer).filter(|m| m.permissions.write && !m.permissions.shared)?;
    let floor = if mapping.name == "[stack]" {
        mapping.start
    } else {
        thread_floor(memory, registers.fs_base, pointer)?.max(mapping.start)
    };
    pointer.checked_sub(floor)
}

/// The lowest usable address of the stack on which a thread was started, as glibc's descriptor of
/// it says: `stackblock`, `stackblock_size` and `guardsize` stand side by side in it, and the
/// descriptor itself stands at the top of that block. Their place varies by version.
fn thread_floor(memory: &dyn Memory, thread_pointer: u64, pointer: u64) -> Option<u64> {
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    let got = memory.read_some(thread_pointer, &mut descriptor);
    let descriptor = descriptor.get(..got)?;
    (0..got.saturating_sub(24)).step_by(8).find_map(|offset| {
        let block = word_at(descriptor, offset)?;
        let bytes = word_at(descriptor, offset + 8)?;
        let guard_bytes = word_at(descriptor, offset + 16)?;
        let end = block.checked_add(bytes)?;
        let floor = block.checked_add(guard_bytes)?;
        let fits = bytes <= MOST_STACK_BYTES
            && block != 0
            && floor <= pointer
            && pointer < thread_pointer
            && thread_pointer < end;
        fits.then_some(floor)
    })
}

/// Whether the stopped thread may be in a restartable sequence: a call would end it, and it would go
/// on in its middle as if it had not been interrupted.
pub(crate) fn is_in_sequence(memory: &dyn Memory, tid: i32) -> bool {
    match rseq::area(tid) {
        Ok(Some(area)) => {
            area.checked_add(OFFSET_RSEQ_CS).and_then(|at| memory.read_word(at).ok()) != Some(0)
        }
        // None registered, or a kernel before 5.13, which cannot say. There the sequence is rare and
        // a blocked thread, which is preferred, is in none.
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Descriptor(u64, Vec<u8>);

    impl Memory for Descriptor {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            if address != self.0 {
                return 0;
            }
            let count = buffer.len().min(self.1.len());
            buffer[..count].copy_from_slice(&self.1[..count]);
            count
        }
    }

    #[test]
    fn the_floor_is_above_the_guard_and_foreign_stacks_have_none() {
        let mut bytes = vec![0; 2304];
        for (offset, value) in [(0x690, 0x10_0000_u64), (0x698, 0x8000), (0x6a0, 0x1000)] {
            bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let thread_pointer = 0x10_7700;
        let memory = Descriptor(thread_pointer, bytes);
        assert_eq!(thread_floor(&memory, thread_pointer, 0x10_5000), Some(0x10_1000));
        assert_eq!(thread_floor(&memory, thread_pointer, 0x20_0000), None, "another stack");
        assert_eq!(thread_floor(&memory, thread_pointer, 0x10_0800), None, "in the guard");
        assert_eq!(thread_floor(&memory, 0x9000, 0x10_5000), None, "no descriptor");
    }
}

//! Finds the thread that owns an isolate: the one whose current isolate it is.
//!
//! `v8::Isolate::TryGetCurrent()`, which all builds export, reads the thread's current isolate. Its
//! first instructions say where that is: at an offset from the thread pointer (from V8 11 on, the
//! `thread_local` variable `g_current_isolate_` in `src/execution/isolate.cc`), or by a key of
//! pthread_key_create (V8 10, `Isolate::isolate_key_`).

use strandline_claims::remedy::{Owner, Word};
use strandline_claims::runtime::Context;
use strandline_process::memory::half_word_at;

/// `v8::Isolate::TryGetCurrent()` (`include/v8-isolate.h`).
pub const TRY_GET_CURRENT: &str = "_ZN2v87Isolate13TryGetCurrentEv";
/// Bytes read of that function, which has 11 to 44 in the versions tried.
pub const FUNCTION_BYTES: u64 = 48;

/// `mov %fs:offset,%rax`
const BY_OFFSET: [u8; 5] = [0x64, 0x48, 0x8b, 0x04, 0x25];
/// `mov address(%rip),%rax`, which loads the offset.
const BY_LOADED_OFFSET: [u8; 3] = [0x48, 0x8b, 0x05];
/// `mov %fs:(%rax),%rax`, which follows it.
const AT_LOADED_OFFSET: [u8; 4] = [0x64, 0x48, 0x8b, 0x00];
/// `mov address(%rip),%edi`, which loads the key.
const BY_KEY: [u8; 2] = [0x8b, 0x3d];

/// Offset of the first value in `specific_1stblock` of glibc's `struct pthread` (nptl/descr.h, 2.4
/// to 2.41). That block is at 0x310 and has a sequence number and a value for each of the first 32
/// keys.
const FIRST_KEY_VALUE: u64 = 0x310 + 8;
/// Bytes of the sequence number and the value of a key.
const KEY_BYTES: u64 = 16;
/// Number of keys with values in the first block.
const FIRST_BLOCK_KEYS: u32 = 32;

/// Where a thread's current isolate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentIsolate {
    /// At this offset from the thread pointer.
    Offset(i64),
    /// At the offset that the word at this address holds.
    OffsetAt(u64),
    /// At the value of the key that the 32 bits at this address hold.
    KeyAt(u64),
}

impl CurrentIsolate {
    /// Decodes the start of the function, which is at `address` in the process; `None` if its
    /// instructions are not known.
    pub fn decode(code: &[u8], address: u64) -> Option<Self> {
        let operand = |at: usize| half_word_at(code, at).map(u32::cast_signed);
        // An operand is relative to the next instruction, which follows it.
        let target = |at: usize| {
            let next = address.checked_add(at as u64 + 4)?;
            next.checked_add_signed(operand(at)?.into())
        };
        let find = |bytes: &[u8]| code.windows(bytes.len()).position(|window| window == bytes);
        if let Some(at) = find(&BY_OFFSET) {
            return operand(at + BY_OFFSET.len()).map(|offset| Self::Offset(offset.into()));
        }
        if let Some(at) = find(&BY_LOADED_OFFSET).filter(|_| find(&AT_LOADED_OFFSET).is_some()) {
            return target(at + BY_LOADED_OFFSET.len()).map(Self::OffsetAt);
        }
        find(&BY_KEY).and_then(|at| target(at + BY_KEY.len())).map(Self::KeyAt)
    }

    /// Returns the distance from the thread pointer to the pointer to the current isolate; `None`
    /// if it cannot be read.
    fn offset(self, context: &Context<'_>) -> Option<i64> {
        match self {
            Self::Offset(offset) => Some(offset),
            Self::OffsetAt(address) => context.memory.read_word(address).ok().map(u64::cast_signed),
            Self::KeyAt(address) => {
                let mut key = [0; 4];
                context.memory.read(address, &mut key).ok()?;
                let key = u32::from_le_bytes(key);
                (key < FIRST_BLOCK_KEYS).then(|| (FIRST_KEY_VALUE + KEY_BYTES * u64::from(key)).cast_signed())
            }
        }
    }

    /// Returns the thread whose current isolate is `isolate`; `None` if no thread has entered it,
    /// or the place cannot be read: then nothing is called.
    pub fn owner(self, context: &Context<'_>, isolate: u64) -> Option<Owner> {
        let offset = self.offset(context)?;
        context.threads.iter().filter(|thread| thread.fs_base != 0).find_map(|thread| {
            let at = thread.fs_base.checked_add_signed(offset)?;
            let is_current = context.memory.read_word(at).is_ok_and(|word| word == isolate);
            let proof = Word::whole(at, isolate);
            is_current.then_some(Owner { tid: thread.tid, thread_pointer: thread.fs_base, proof })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_decoded_from_the_code_of_the_function() {
        // As in Node.js 24, 22 and 18.
        let by_offset =
            [0x55, 0x48, 0x89, 0xe5, 0x64, 0x48, 0x8b, 0x04, 0x25, 0x60, 0xff, 0xff, 0xff, 0x5d, 0xc3];
        assert_eq!(CurrentIsolate::decode(&by_offset, 0xc9_3d90), Some(CurrentIsolate::Offset(-0xa0)));
        let by_loaded = [
            0xb8, 0, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x16, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0x6d, 0x66, 0xd9,
            0xfe, 0x48, 0x8b, 0x05, 0xfe, 0xb5, 0x8a, 0x05, 0x5d, 0x64, 0x48, 0x8b, 0x00, 0xc3,
        ];
        assert_eq!(
            CurrentIsolate::decode(&by_loaded, 0x126_9980),
            Some(CurrentIsolate::OffsetAt(0x6b1_4f98))
        );
        let by_key = [0x8b, 0x3d, 0xce, 0x47, 0x49, 0x04, 0xe9, 0xb5, 0x09, 0x15, 0x01];
        assert_eq!(CurrentIsolate::decode(&by_key, 0xd8_6430), Some(CurrentIsolate::KeyAt(0x521_ac04)));
        assert_eq!(CurrentIsolate::decode(&by_offset[..8], 0), None);
        assert_eq!(CurrentIsolate::decode(&[], u64::MAX), None);
    }
}

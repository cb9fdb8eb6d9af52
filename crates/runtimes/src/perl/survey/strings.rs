//! Counts strings, and claims their buffers.

use super::{Surveyor, Value};
use crate::perl::chunk::{Chunk, SIZE_WORD_BYTES, chunk_bytes};
use crate::perl::layout::{HEAD_BYTES, flags};
use crate::perl::objects::Head;
use crate::perl::roots::{self, Buffer, MAX_BUFFER_BYTES, Mark};
use crate::perl::sums::{RetainedBy, add};

/// From this size on malloc may give a buffer a mapping of its own, whose size is in its size word
/// (glibc's `DEFAULT_MMAP_THRESHOLD`).
const MAPPED_BYTES: u64 = 128 << 10;

impl Surveyor<'_> {
    /// Counts a string, and claims its buffer.
    pub(super) fn count_string(&mut self, value: &Value) {
        let head = &value.head;
        // `SvCUR` and `SvLEN`.
        let (Some((length, capacity)), Some(other_owners)) = (value.body, value.other_owners) else {
            self.sums.unread_values += 1;
            return;
        };
        if capacity == 0 {
            return self.count_bufferless_string(head, length);
        }
        let buffer = roots::string_buffer(&mut self.pages, head, capacity).filter(|_| length < capacity);
        let Some(buffer) = buffer else {
            self.sums.damaged_values += 1;
            return;
        };
        let unused_bytes = buffer.bytes - length - 1;
        if other_owners > 0 {
            self.claim(buffer, self.reader.slots.shared_string);
            self.sums.add_shared(other_owners, buffer.bytes, unused_bytes);
        } else {
            if !self.claim_unshared(value, buffer) {
                return;
            }
            let rounding_bytes = self.rounding_bytes(buffer);
            self.sums.add_unshared(length, buffer.bytes, unused_bytes, rounding_bytes);
            if !value.is_compared {
                self.sums.equal_sample.skip(length);
            }
        }
        if head.has_string() {
            self.sums.add_string(head, value.kind, length, self.reader.release);
            add(&mut self.sums.strings.offset, u64::from(head.has_flags(flags::OOK)));
        }
    }

    /// Claims a buffer that is not shared. Returns whether it holds a string in use.
    fn claim_unshared(&mut self, value: &Value, buffer: Buffer) -> bool {
        let (head, slots, bytes) = (&value.head, self.reader.slots, buffer.bytes);
        let (slot, is_in_use) = match value.mark {
            Some(Mark::Lexical) => (self.retained_slot(RetainedBy::Lexical, bytes), false),
            Some(Mark::Temporary) => (self.retained_slot(RetainedBy::Temporary, bytes), false),
            // A number that keeps the buffer of its former string, or memory that C code holds: in
            // use, but no string. It stays with malloc.
            _ if !head.has_string() && head.has_value() => return false,
            // A variable's buffer, or memory that C code holds: distinguished later, by globs.
            _ if !head.has_string() => {
                self.sums.add_undefined(head, buffer);
                return false;
            }
            // With ithreads constants of code are in pads. Without, code points to them directly:
            // those that the compiler computed are marked as an operator's (PADTMP, op.c, since
            // 5.20); literals cannot be distinguished from variables that a program made read-only,
            // and count as strings.
            mark if mark == Some(Mark::Constant) || head.has_flags(flags::READONLY | flags::PADTMP) => {
                add(&mut self.sums.strings.constants.buffers, 1);
                add(&mut self.sums.strings.constants.capacity_bytes, bytes);
                (slots.constant, true)
            }
            _ => (slots.string, true),
        };
        self.claim(buffer, slot);
        is_in_use
    }

    /// Counts a string without a buffer: a shared key, or static text.
    fn count_bufferless_string(&mut self, head: &Head, length: u64) {
        if !head.has_string() {
            return;
        }
        let strings = &mut self.sums.strings;
        add(&mut strings.values, 1);
        add(&mut strings.payload_bytes, length.min(MAX_BUFFER_BYTES));
        add(&mut strings.head_bytes, HEAD_BYTES);
        add(&mut strings.utf8, u64::from(head.has_flags(flags::UTF8)));
        add(&mut strings.cow.key_values, u64::from(head.flags & self.reader.release.cow_flag() != 0));
    }

    /// Bytes that malloc adds to round up: from its size word if the buffer may be a mapping of its
    /// own.
    fn rounding_bytes(&mut self, buffer: Buffer) -> u64 {
        let may_be_mapped = buffer.bytes >= MAPPED_BYTES;
        let bytes =
            if may_be_mapped { Chunk::of(&mut self.pages, buffer).bytes } else { chunk_bytes(buffer.bytes) };
        bytes - SIZE_WORD_BYTES - buffer.bytes
    }
}

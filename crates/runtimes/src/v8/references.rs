//! The references of an object of V8's to other objects.
//!
//! A reference is a word with the tag of a strong pointer (`kHeapObjectTag`, 1), outside of the
//! bytes of strings and numbers. A weak pointer has another tag (`kWeakHeapObjectTag`, 3), but some
//! classes hold objects weakly by words with the strong tag.

use super::instance_types::{FIRST_NONSTRING, InstanceTypes};
use super::layout::{ObjectLayout, representation};
use super::shapes::{Shapes, TableEntry};
use strandline_process::memory::{pair_at, word_at};

/// Representations of strings that refer to other strings.
const REFERRING_STRINGS: [u16; 3] = [representation::CONS, representation::SLICED, representation::THIN];
/// Offset in a `JSWeakRef` of `target_` (`src/objects/js-weak-refs.tq`).
const WEAK_REF: &[usize] = &[24];
/// Offset of the first entry of an `EphemeronHashTable` (`src/objects/hash-table.h`).
pub const FIRST_EPHEMERON: usize = 40;
/// Bytes of an entry of an `EphemeronHashTable`: a key, then a value.
pub const EPHEMERON_BYTES: usize = 16;

/// Returns the addresses of the key and the value in the entry of an `EphemeronHashTable` at an
/// offset of `bytes`; `None` if one of them is no reference.
pub fn ephemeron_at(bytes: &[u8], offset: usize) -> Option<TableEntry> {
    let (key, value) = pair_at(bytes, offset)?;
    Some(TableEntry { key: Shapes::object_at(key)?, value: Shapes::object_at(value)? })
}

/// The words of an object of a class that may be references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum References {
    /// The hidden class only.
    Class,
    /// All words before an offset.
    Until(usize),
    /// All words but those at these offsets, which are weak.
    Except(&'static [usize]),
    /// All words.
    All,
    /// All words before the entries of an `EphemeronHashTable`, whose values are reachable only
    /// while their keys are.
    Ephemerons,
}

impl References {
    /// Returns the references of the class with this instance type.
    pub fn of_type(instance_type: u16, types: &InstanceTypes, layout: &ObjectLayout) -> Self {
        if instance_type < FIRST_NONSTRING {
            let refers = REFERRING_STRINGS.contains(&(instance_type & representation::MASK));
            return if refers { Self::All } else { Self::Class };
        }
        match types.name(instance_type).unwrap_or_default() {
            "ByteArray" | "TrustedByteArray" | "FixedDoubleArray" | "HeapNumber" | "BigInt" | "FreeSpace"
            | "Filler" | "FeedbackMetadata" | "CoverageInfo" => Self::Class,
            "BytecodeArray" => Self::Until(layout.bytecode_header as usize & !7),
            "JSWeakRef" => Self::Except(WEAK_REF),
            "NativeContext" => Self::Except(layout.context_link),
            "WeakCell" => Self::Except(layout.weak_cell.weak_fields),
            "EphemeronHashTable" => Self::Ephemerons,
            _ => Self::All,
        }
    }

    /// Calls `visit` with the offset in the object and the target of each reference in `bytes`,
    /// which begin at `offset` of the object.
    pub fn each(self, offset: usize, bytes: &[u8], visit: &mut dyn FnMut(usize, u64)) {
        let end = match self {
            Self::Class => 8,
            Self::Until(end) => end,
            Self::Ephemerons => FIRST_EPHEMERON,
            Self::All | Self::Except(_) => usize::MAX,
        };
        for at in (0..bytes.len().min(end.saturating_sub(offset))).step_by(8) {
            let is_weak = matches!(self, Self::Except(weak) if weak.contains(&(offset + at)));
            let target = word_at(bytes, at).and_then(Shapes::object_at);
            if let Some(target) = target.filter(|_| !is_weak) {
                visit(offset + at, target);
            }
        }
    }

    /// Returns where to go on after `read_bytes` of an object, so that no entry of a table is
    /// split.
    pub fn start_of_unread(self, read_bytes: u64) -> u64 {
        match (self, read_bytes.checked_sub(FIRST_EPHEMERON as u64)) {
            (Self::Ephemerons, Some(entry_bytes)) => read_bytes - entry_bytes % EPHEMERON_BYTES as u64,
            _ => read_bytes,
        }
    }
}

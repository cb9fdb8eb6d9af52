//! Which words of an object of V8's are references to others.
//!
//! Each word that looks like a pointer to an object counts, but not the bytes of strings and
//! numbers. A weak pointer has another tag (`kWeakHeapObjectTag`, 3) and is none; some classes hold
//! objects weakly by pointers that look strong.

use super::instance_types::{InstanceTypes, STRINGS};
use super::layout::ObjectLayout;
use strandline_process::memory::word_at;

/// Kinds of strings that refer to others: cons, sliced and thin ones
/// (`src/objects/instance-type.h`).
const REFERRING_STRINGS: [u16; 3] = [1, 3, 5];
/// `target_` in a `JSWeakRef`; `target_` and `unregister_token_` in a `WeakCell`
/// (`src/objects/js-weak-refs.tq`).
const WEAK_REF: [usize; 2] = [24, 24];
const WEAK_CELL: [usize; 2] = [16, 24];
/// First entry of an `EphemeronHashTable`, and bytes of an entry: a key and a value
/// (`src/objects/hash-table.h`).
pub const FIRST_EPHEMERON: usize = 40;
/// Bytes of an entry of it.
pub const EPHEMERON_BYTES: usize = 16;

/// The references of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum References {
    /// The hidden class only.
    Class,
    /// All words up to an offset.
    Until(usize),
    /// All words but these two.
    Except([usize; 2]),
    /// All words.
    All,
    /// `EphemeronHashTable`: a value is referred to while its key lives.
    Ephemerons,
}

impl References {
    /// Returns those of the class with this instance type.
    pub fn of(instance_type: u16, types: &InstanceTypes, layout: &ObjectLayout) -> Self {
        if instance_type < STRINGS {
            let refers = REFERRING_STRINGS.contains(&(instance_type & 7));
            return if refers { Self::All } else { Self::Class };
        }
        match types.name(instance_type).unwrap_or_default() {
            "ByteArray" | "TrustedByteArray" | "FixedDoubleArray" | "HeapNumber" | "BigInt" | "FreeSpace"
            | "Filler" | "FeedbackMetadata" | "CoverageInfo" => Self::Class,
            "BytecodeArray" => Self::Until(layout.bytecode_header as usize & !7),
            "JSWeakRef" => Self::Except(WEAK_REF),
            "WeakCell" => Self::Except(WEAK_CELL),
            "EphemeronHashTable" => Self::Ephemerons,
            _ => Self::All,
        }
    }

    /// Passes the offset and the target of each reference in `bytes`, which begin at `offset` of an
    /// object.
    pub fn each(self, offset: usize, bytes: &[u8], visit: &mut dyn FnMut(usize, u64)) {
        let end = match self {
            Self::Class => 8,
            Self::Until(end) => end,
            Self::Ephemerons => FIRST_EPHEMERON,
            Self::All | Self::Except(_) => usize::MAX,
        };
        for at in (0..bytes.len().min(end.saturating_sub(offset))).step_by(8) {
            let word = word_at(bytes, at).unwrap_or(0);
            let is_weak = matches!(self, Self::Except(weak) if weak.contains(&(offset + at)));
            if word & 7 == 1 && !is_weak {
                visit(offset + at, word - 1);
            }
        }
    }
}

//! References in a frame of compiled code (`ImmutableOopMap`, compiler/oopMap.hpp).

use super::blobs::{Blob, Blobs};
use crate::jvm::view::View;

/// Limit on maps of a piece of code; beyond it, no map is found.
const MAX_MAPS: u64 = 1 << 16;
/// Limit on values of a map; beyond it, the map is not read.
const MAX_VALUES: usize = 1 << 14;
/// Maximum bytes of a value: it consists of one or two numbers (`UNSIGNED5`,
/// utilities/unsigned5.hpp, up to JDK 19 in code/compressedStream.hpp).
const MAX_VALUE_BYTES: usize = 10;
/// Limit on bytes of a map before its values.
const MAX_HEADER_BYTES: u64 = 64;
/// `OopMapValue::narrowoop_value` (compiler/oopMap.hpp, JDK 17 to 25); 0 is a wide reference.
const NARROW: u32 = 1;
/// `OopMapValue::callee_saved_value`, the first with a second number.
const CALLEE_SAVED: u32 = 2;
/// Bytes of a number that are not the last have this value or more (`L`, from JDK 20 on `X + L` of
/// `UNSIGNED5`).
const LAST_BYTE_LIMIT: u32 = 192;
/// First version in which no byte of a number is zero (JDK-8292758).
const FIRST_VERSION_WITHOUT_ZERO: u32 = 20;

/// A reference in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OopSlot {
    /// Offset from the start of the frame, in bytes; `None` for a register, which the callee's
    /// frame has saved.
    pub offset: Option<u64>,
    /// Whether the reference is narrow.
    pub is_narrow: bool,
}

/// Format of maps.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// Number of the first stack slot; those of registers are lower.
    first_slot: u32,
    /// Number of lowest values that no byte of a number has; it is subtracted from each byte.
    excluded_values: u32,
    /// Bytes of a map before its values.
    header_bytes: u64,
}

impl Maps {
    /// The format of a JVM; `None` if its tables do not describe it.
    pub fn new(view: &View<'_>) -> Option<Self> {
        let registers = view.constant(&["ConcreteRegisterImpl::number_of_registers"])?;
        Some(Self {
            // `VMRegImpl::stack_0`: rounded up to a multiple of eight.
            first_slot: u32::try_from(registers).ok()?.checked_next_multiple_of(8)?,
            excluded_values: u32::from(view.structs.major()? >= FIRST_VERSION_WITHOUT_ZERO),
            header_bytes: view.structs.size("ImmutableOopMap").filter(|&bytes| bytes <= MAX_HEADER_BYTES)?,
        })
    }

    /// Returns the references of a frame that continues at `pc`; `None` if there is no map for it.
    pub fn slots(&self, view: &View<'_>, blobs: &Blobs<'_>, blob: &Blob, pc: u64) -> Option<Vec<OopSlot>> {
        let set = blob.maps?;
        let count = u64::from(view.half_field(set, &["ImmutableOopMapSet::_count"])?);
        if count > MAX_MAPS {
            return None;
        }
        let pc_offset = u32::try_from(pc.checked_sub(blob.code)?).ok()?;
        let mut entries = (0..count).filter_map(|index| blobs.map_entry(set, index));
        let entry = entries.find(|entry| entry.pc_offset == pc_offset)?;
        let maps = set.checked_add(view.structs.size("ImmutableOopMapSet")?)?.checked_add(count * 8)?;
        let map = maps.checked_add(u64::from(entry.map_offset))?;
        let value_count = view.half_field(map, &["ImmutableOopMap::_count"])? as usize;
        if value_count > MAX_VALUES {
            return None;
        }
        let mut bytes = vec![0; value_count * MAX_VALUE_BYTES];
        let read_bytes = view.memory.read_some(map.checked_add(self.header_bytes)?, &mut bytes);
        self.decode(bytes.get(..read_bytes)?, value_count)
    }

    /// Decodes the `count` values (`OopMapValue`) of a map.
    fn decode(&self, bytes: &[u8], count: usize) -> Option<Vec<OopSlot>> {
        let mut bytes = bytes.iter().copied();
        let mut slots = Vec::new();
        for _ in 0..count {
            let value = self.number(&mut bytes)?;
            let (kind, register) = (value & 3, (value & 0xffff) >> 2);
            // A second number follows. The map contains the base of a derived reference, too.
            if kind >= CALLEE_SAVED {
                self.number(&mut bytes)?;
                continue;
            }
            let offset = register.checked_sub(self.first_slot).map(|slot| u64::from(slot) * 4);
            slots.push(OopSlot { offset, is_narrow: kind == NARROW });
        }
        Some(slots)
    }

    /// Reads a number of up to five bytes (`UNSIGNED5::read_uint`): each counts 64 times as much as
    /// the one before, and one below [`LAST_BYTE_LIMIT`] is the last. `None` if the bytes end
    /// before that, or one has an excluded value.
    fn number(&self, bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
        let mut sum = 0_u32;
        for shift in [0, 6, 12, 18, 24] {
            let byte = u32::from(bytes.next()?);
            sum = sum.wrapping_add(byte.checked_sub(self.excluded_values)? << shift);
            if byte < LAST_BYTE_LIMIT || shift == 24 {
                return Some(sum);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of `UNSIGNED5`: from JDK 20 on, each byte is one more than its value.
    #[test]
    fn numbers_and_slots() {
        let maps = Maps { first_slot: 584, excluded_values: 0, header_bytes: 4 };
        let read = |maps: &Maps, bytes: &[u8]| maps.number(&mut bytes.iter().copied());
        assert_eq!(read(&maps, &[191]), Some(191));
        assert_eq!(read(&maps, &[192, 1]), Some(192 + 64));
        assert_eq!(read(&maps, &[192]), None);
        let later = Maps { excluded_values: 1, ..maps };
        assert_eq!(read(&later, &[1]), Some(0));
        assert_eq!(read(&later, &[192, 1]), Some(191));
        assert_eq!(read(&later, &[0]), None);
        // Slot 2 of the stack, narrow: (584 + 2) * 4 + 1 = 2345 = 201 + 33.5 * 64, so 233 and 33.
        assert_eq!(maps.decode(&[233, 33], 1), Some(vec![OopSlot { offset: Some(8), is_narrow: true }]));
        assert_eq!(maps.decode(&[4], 1), Some(vec![OopSlot { offset: None, is_narrow: false }]));
        assert_eq!(maps.decode(&[4], 2), None);
    }
}

//! Where mallocng's structures stand (musl 1.2.1 and later, `src/malloc/mallocng/meta.h`), on 64-bit machines with pages of
//! 4 KiB.

use strandline_process::memory::{half_word_at, word_at};

/// What sizes are counted in.
pub const UNIT: u64 = 16;
/// Bytes at the end of a slot that belong to the next one's header (`IB`).
pub const HEADER_BYTES: u64 = 4;
/// User addresses are below this.
const ADDRESSES: u64 = 1 << 47;
/// Bytes of a page, and of an area of metadata.
pub const PAGE_BYTES: u64 = 4096;

/// The state (`struct malloc_context`): offsets behind its secret, without and with `pagesize`, which is there where the
/// architecture's page size varies.
pub struct ContextLayout {
    /// `init_done`, 1.
    pub init_done: usize,
    /// `meta_area_head`.
    pub areas: usize,
}

/// Both.
pub static CONTEXTS: [ContextLayout; 2] =
    [ContextLayout { init_done: 8, areas: 56 }, ContextLayout { init_done: 16, areas: 64 }];

/// An area (`struct meta_area`): the secret, the next area, how many slots, and those.
pub const AREA_NEXT: usize = 8;
const AREA_SLOTS: usize = 24;
/// Bytes of a `struct meta`.
const META_BYTES: usize = 40;
/// Slots of an area.
pub const METAS: usize = (PAGE_BYTES as usize - AREA_SLOTS) / META_BYTES;

/// The sizes of slots in units, by class (`size_classes`).
const CLASSES: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204,
    255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460,
    6552, 8191,
];

/// A group, as its `struct meta` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where it stands (`mem`): a head of one unit, then its slots.
    pub start: u64,
    /// Where its meta stands.
    pub meta: u64,
    /// A bit for each slot that may be given out, and for each that was freed or was never given out.
    pub free: u32,
    /// How many slots there are.
    pub slots: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes of its own mapping; 0 where it lies in a slot of another group, or in memory that the loader gave away.
    pub mapped_bytes: u64,
    /// Its size class; `None` for one block with a mapping of its own.
    pub class: Option<usize>,
}

impl Group {
    /// The group of a meta in an area; `None` where that has none, or none that could be.
    pub fn in_area(area: &[u8], address: u64, index: usize) -> Option<Self> {
        let at = AREA_SLOTS + META_BYTES * index;
        let start = word_at(area, at + 16).filter(|&start| start != 0 && start.is_multiple_of(UNIT))?;
        let free = half_word_at(area, at + 24)? | half_word_at(area, at + 28)?;
        let flags = word_at(area, at + 32)?;
        let (last, class, pages) = (flags & 31, (flags >> 6 & 63) as usize, flags >> 12);
        let mapped_bytes = pages.checked_mul(PAGE_BYTES)?;
        // get_stride: a block with a mapping of its own takes all of it.
        let stride =
            if last == 0 && mapped_bytes > 0 { mapped_bytes - UNIT } else { UNIT * CLASSES.get(class)? };
        let class = (class < CLASSES.len() && !(last == 0 && mapped_bytes > 0)).then_some(class);
        let slots = last + 1;
        let size = UNIT.checked_add(slots.checked_mul(stride)?)?;
        let end = start.checked_add(size.max(mapped_bytes)).filter(|&end| end <= ADDRESSES)?;
        let is_one = mapped_bytes == 0 || start + size <= end && size <= mapped_bytes;
        is_one.then_some(Self { start, meta: address + at as u64, free, slots, stride, mapped_bytes, class })
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        if self.mapped_bytes > 0 {
            self.start.saturating_add(self.mapped_bytes)
        } else {
            self.start.saturating_add(UNIT + self.slots * self.stride)
        }
    }

    /// Where a slot begins.
    pub fn slot(&self, index: u64) -> u64 {
        self.start + UNIT + index * self.stride
    }

    /// Whether a slot is free.
    pub fn is_free(&self, index: u64) -> bool {
        self.free >> index & 1 != 0
    }
}

/// What stands in a slot in use, by the four bytes before it, and its last four (`enframe`, `set_size`, `alloc_group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// A block, so many bytes behind the slot's beginning.
    Block {
        /// Where it begins in the slot.
        offset: u64,
        /// How many bytes were asked for.
        bytes: u64,
    },
    /// A group of smaller slots.
    Group,
}

/// Where a block begins in its slot: somewhere else each time, which the header says.
pub fn block_offset(header: [u8; 4]) -> u64 {
    if header[1] == 7 << 5 { UNIT * u64::from(u16::from_le_bytes([header[2], header[3]])) } else { 0 }
}

/// How far apart blocks can begin for which the two bytes of [`block_offset`] are the same: a block that is aligned to more than
/// a MiB is moved farther than they can say (`memalign` stores the offset in 32 bits before the block then).
pub const OFFSET_PERIOD: u64 = UNIT << 16;

/// Whether the header in front of a block, and the four bytes before that, say that it is `offset` into its group's slots.
pub fn begins_at(far: [u8; 4], header: [u8; 4], offset: u64) -> bool {
    let near = u64::from(u16::from_le_bytes([header[2], header[3]]));
    if header[0] == 0 {
        near * UNIT == offset
    } else {
        near == 0 && u64::from(u32::from_le_bytes(far)) * UNIT == offset
    }
}

/// What the header in front of a block says; `reserve` are the last four bytes that the slot can use.
pub fn used(header: [u8; 4], offset: u64, reserve: [u8; 4], stride: u64) -> Option<Used> {
    let reserved = match u64::from(header[1] >> 5) {
        6 => return Some(Used::Group),
        5 => u64::from(u32::from_le_bytes(reserve)),
        7 => return None,
        few => few,
    };
    let bytes = stride.checked_sub(HEADER_BYTES)?.checked_sub(offset)?.checked_sub(reserved)?;
    Some(Used::Block { offset, bytes })
}

/// The bytes that a slot of a class can hold.
pub fn class_bytes(class: usize) -> u64 {
    CLASSES.get(class).map_or(0, |units| UNIT * units - HEADER_BYTES)
}

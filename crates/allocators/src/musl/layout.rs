//! Layout of mallocng's structures (musl 1.2.1 and later, `src/malloc/mallocng/meta.h`), on 64-bit
//! machines with pages of 4 KiB.

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::USER_ADDRESS_END;

/// Unit of sizes in bytes (`UNIT`).
pub const UNIT_BYTES: u64 = 16;
/// Bytes at the end of a slot that belong to the header of the next one (`IB`).
pub const HEADER_BYTES: u64 = 4;
/// Bytes of a page, and of an area of metadata.
pub const PAGE_BYTES: u64 = 4096;

/// Offsets in the state (`struct malloc_context`), which begins with its secret; without and with
/// `pagesize`, which exists if the architecture's page size varies.
pub struct ContextLayout {
    /// `init_done`, which is 1.
    pub init_done: usize,
    /// `meta_area_head`.
    pub area_head: usize,
}

/// Both layouts.
pub static CONTEXT_LAYOUTS: [ContextLayout; 2] =
    [ContextLayout { init_done: 8, area_head: 56 }, ContextLayout { init_done: 16, area_head: 64 }];

/// Offset in an area (`struct meta_area`), which begins with the secret, of the next area.
pub const AREA_NEXT: usize = 8;
/// Offset in an area of its slots, each with a `struct meta`; their number precedes them.
const AREA_SLOTS: usize = 24;
/// Bytes of a `struct meta`.
const META_BYTES: usize = 40;
/// Offset of `mem` in a `struct meta`: the address of its group; 0 if it has none.
const META_MEMORY: usize = 16;
/// Offset of `avail_mask` in a `struct meta`, of 32 bits.
const META_AVAILABLE: usize = 24;
/// Offset of `freed_mask` in a `struct meta`, of 32 bits.
const META_FREED: usize = 28;
/// Offset in a `struct meta` of the bit fields `last_idx` (5 bits), `freeable` (1), `sizeclass` (6)
/// and `maplen`.
const META_FLAGS: usize = 32;
/// Slots of an area.
pub const METAS_PER_AREA: usize = (PAGE_BYTES as usize - AREA_SLOTS) / META_BYTES;

/// Sizes of slots in units, by class (`size_classes`).
const CLASSES: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204,
    255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460,
    6552, 8191,
];

/// A group, as its `struct meta` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its address (`mem`), where a head of one unit precedes its slots.
    pub start: u64,
    /// Address of its meta.
    pub meta: u64,
    /// One bit per free slot: available, freed, or never given out.
    pub free_slots: u32,
    /// Number of slots.
    pub slots: u64,
    /// Bytes from one slot to the next: its capacity and the header of the next.
    pub stride: u64,
    /// Bytes of its own mapping; `None` if it is in a slot of another group or in donated memory.
    pub mapped_bytes: Option<u64>,
    /// Its size class; `None` for a single block with its own mapping.
    pub class: Option<usize>,
}

impl Group {
    /// Whether a meta in an area has a group.
    pub fn is_present(area: &[u8], index: usize) -> bool {
        word_at(area, AREA_SLOTS + META_BYTES * index + META_MEMORY).is_some_and(|start| start != 0)
    }

    /// Parses a meta in an area; `None` if it has no group, or an impossible one.
    pub fn in_area(area: &[u8], address: u64, index: usize) -> Option<Self> {
        let at = AREA_SLOTS + META_BYTES * index;
        let start = word_at(area, at + META_MEMORY)
            .filter(|&start| start != 0 && start.is_multiple_of(UNIT_BYTES))?;
        let free_slots = half_word_at(area, at + META_AVAILABLE)? | half_word_at(area, at + META_FREED)?;
        let flags = word_at(area, at + META_FLAGS)?;
        let (last_index, class, mapped_pages) = (flags & 31, (flags >> 6 & 63) as usize, flags >> 12);
        let mapped_bytes = mapped_pages.checked_mul(PAGE_BYTES)?;
        // get_stride: a block with its own mapping takes all of it.
        let is_single_block = last_index == 0 && mapped_bytes > 0;
        let stride =
            if is_single_block { mapped_bytes - UNIT_BYTES } else { UNIT_BYTES * CLASSES.get(class)? };
        let slots = last_index + 1;
        let bytes = UNIT_BYTES.checked_add(slots.checked_mul(stride)?)?;
        let end = start.checked_add(bytes.max(mapped_bytes))?;
        let fits = end <= USER_ADDRESS_END && (mapped_bytes == 0 || bytes <= mapped_bytes);
        fits.then_some(Self {
            start,
            meta: address + at as u64,
            free_slots,
            slots,
            stride,
            mapped_bytes: (mapped_bytes > 0).then_some(mapped_bytes),
            class: (!is_single_block).then_some(class),
        })
    }

    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.mapped_bytes.unwrap_or(UNIT_BYTES + self.slots * self.stride))
    }

    /// Returns the address of a slot.
    pub fn slot_address(&self, index: u64) -> u64 {
        self.start + UNIT_BYTES + index * self.stride
    }

    /// Whether a slot is free.
    pub fn is_free(&self, index: u64) -> bool {
        self.free_slots >> index & 1 != 0
    }
}

/// Content of a slot in use, according to the four bytes before it and its last four (`enframe`,
/// `set_size`, `alloc_group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotContent {
    /// A block.
    Block {
        /// Its offset in the slot.
        offset: u64,
        /// Bytes requested.
        bytes: u64,
    },
    /// A group of smaller slots.
    Group,
}

/// The second byte of a header that holds the offset of a block that was moved in its slot
/// (`enframe`).
const MOVED: u8 = 7 << 5;
/// Kinds of headers, in the upper three bits of their second byte; below [`RESERVE_AT_END`] it is
/// the number of bytes that the block leaves unused at the end of its slot.
const KIND_SHIFT: u32 = 5;
/// The number of unused bytes is in the last four bytes of the slot.
const RESERVE_AT_END: u8 = 5;
/// The slot holds a group.
const NESTED_GROUP: u8 = 6;
/// No block begins at the start of the slot.
const NO_BLOCK: u8 = 7;

/// Whether the block of a slot was moved, by the header at the start of the slot.
pub fn is_moved(header: [u8; 4]) -> bool {
    header[1] == MOVED
}

/// Whether the number of unused bytes is in the last four bytes of the slot.
pub fn has_reserve_at_end(header: [u8; 4]) -> bool {
    header[1] >> KIND_SHIFT == RESERVE_AT_END
}

/// Offset of a block in its slot: varies with each allocation, and is in the header.
pub fn block_offset(header: [u8; 4]) -> u64 {
    if is_moved(header) { UNIT_BYTES * u64::from(u16::from_le_bytes([header[2], header[3]])) } else { 0 }
}

/// Distance between offsets for which the two bytes of [`block_offset`] are equal. A block aligned
/// to more than a MiB can have a larger offset than they hold (`aligned_alloc` then stores it in 32
/// bits before the block).
pub const OFFSET_PERIOD: u64 = UNIT_BYTES << 16;

/// Whether the header of a block, and the four bytes before it, hold `offset` as its distance from
/// the group's slots: in 16 bits of the header, or in the 32 bits before it.
pub fn has_offset(before_header: [u8; 4], header: [u8; 4], offset: u64) -> bool {
    let short_units = u64::from(u16::from_le_bytes([header[2], header[3]]));
    if header[0] == 0 {
        short_units * UNIT_BYTES == offset
    } else {
        short_units == 0 && u64::from(u32::from_le_bytes(before_header)) * UNIT_BYTES == offset
    }
}

/// Parses the header of a slot in use; `reserve` are the last four bytes that the slot can use.
/// `None` if it is invalid.
pub fn parse_slot(header: [u8; 4], offset: u64, reserve: [u8; 4], stride: u64) -> Option<SlotContent> {
    let reserved_bytes = match header[1] >> KIND_SHIFT {
        NESTED_GROUP => return Some(SlotContent::Group),
        RESERVE_AT_END => u64::from(u32::from_le_bytes(reserve)),
        NO_BLOCK => return None,
        bytes => u64::from(bytes),
    };
    let bytes = stride.checked_sub(HEADER_BYTES)?.checked_sub(offset)?.checked_sub(reserved_bytes)?;
    Some(SlotContent::Block { offset, bytes })
}

//! Offsets in V8's structures by version. They were measured in Node.js 18 to 26, independently of
//! the reader that is tested.

use crate::v8_objects::ObjectOffsets;

/// Offsets in the structures of one version.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The version of V8.
    pub version: [u32; 4],
    /// Names of the spaces, in the order of their numbers.
    pub spaces: &'static str,
    pub heap: HeapOffsets,
    pub space: SpaceOffsets,
    pub area: AreaPointer,
    pub record: RecordOffsets,
    pub pooled: PooledFlags,
    /// Bytes of a page before the first object.
    pub header: u64,
    pub objects: ObjectOffsets,
}

/// Offsets in a heap.
#[derive(Clone, Copy)]
pub struct HeapOffsets {
    /// Pointers to the spaces, by their numbers.
    pub spaces: u64,
    /// Pointer to the isolate.
    pub isolate: u64,
    /// State: 0 outside of a collection.
    pub state: u64,
    /// Pointer to the sweeper, which has the lists of ArrayBuffers.
    pub sweeper: u64,
    /// Table of external strings.
    pub strings: u64,
}

/// Offsets in a space.
#[derive(Clone, Copy)]
pub struct SpaceOffsets {
    /// Pointer to the record of the first page.
    pub first_page: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Bytes of large objects.
    pub large: u64,
}

/// The pointer to the area in which the main thread allocates.
#[derive(Clone, Copy)]
pub enum AreaPointer {
    /// At this offset in a space.
    InSpace(u64),
    /// In the local heap, to which a pointer at this offset in the heap leads.
    InLocalHeap(u64),
}

/// Offsets in the record of a page.
#[derive(Clone, Copy)]
pub struct RecordOffsets {
    pub size: u64,
    pub heap: u64,
    pub start: u64,
    pub end: u64,
    pub allocated: u64,
    pub wasted: u64,
    pub owner: u64,
    /// Record of the next page.
    pub next: u64,
}

/// The flags that mark a pooled page.
#[derive(Clone, Copy)]
pub enum PooledFlags {
    /// These flags of the page.
    OfPage(u64),
    /// These flags at `offset` in its record.
    OfRecord { flags: u64, offset: u64 },
}

const OLD_OBJECTS: ObjectOffsets =
    ObjectOffsets { shared_info: 24, name: 16, scope_names: 32, scope_flags_shift: 32, free_unit_bytes: 1 };
const NEW_OBJECTS: ObjectOffsets =
    ObjectOffsets { shared_info: 32, name: 24, scope_names: 48, scope_flags_shift: 0, free_unit_bytes: 8 };

const RECORD_10: RecordOffsets =
    RecordOffsets { size: 0, heap: 16, start: 24, end: 32, allocated: 40, wasted: 48, owner: 64, next: 232 };
const RECORD_12: RecordOffsets =
    RecordOffsets { size: 16, heap: 24, start: 32, end: 40, allocated: 48, wasted: 56, owner: 72, next: 264 };
const RECORD_13: RecordOffsets =
    RecordOffsets { size: 48, heap: 64, start: 72, end: 56, allocated: 24, wasted: 32, owner: 80, next: 264 };

pub const LAYOUTS: [Layout; 5] = [
    Layout {
        version: [10, 2, 154, 26],
        spaces: "read_only old code map large_object code_large_object new_large_object new",
        heap: HeapOffsets { spaces: 0x1d0, isolate: 0x50, state: 0x240, sweeper: 0x938, strings: 0xc98 },
        space: SpaceOffsets { first_page: 0xa8, allocated: 0x110, large: 0xd8 },
        area: AreaPointer::InSpace(0xc8),
        record: RECORD_10,
        pooled: PooledFlags::OfPage(0x8_2000),
        header: 0x1130,
        objects: OLD_OBJECTS,
    },
    Layout {
        version: [11, 3, 244, 8],
        spaces: "read_only new old code shared new_large_object large_object",
        heap: HeapOffsets { spaces: 0x1c8, isolate: 0x50, state: 0x228, sweeper: 0x920, strings: 0xc30 },
        space: SpaceOffsets { first_page: 0x28, allocated: 0x98, large: 0x60 },
        area: AreaPointer::InSpace(0x50),
        record: RecordOffsets { next: 264, ..RECORD_10 },
        pooled: PooledFlags::OfPage(0x8_4000),
        header: 0x1148,
        objects: OLD_OBJECTS,
    },
    Layout {
        version: [12, 4, 254, 21],
        spaces: "read_only new old code shared trusted new_large_object large_object",
        heap: HeapOffsets { spaces: 0x138, isolate: 0x18, state: 0x198, sweeper: 0x6f0, strings: 0xa48 },
        space: SpaceOffsets { first_page: 0x28, allocated: 0x70, large: 0x60 },
        area: AreaPointer::InLocalHeap(0x20),
        record: RECORD_12,
        pooled: PooledFlags::OfPage(0x1_2000),
        header: 0x1140,
        objects: ObjectOffsets { shared_info: 32, ..OLD_OBJECTS },
    },
    Layout {
        version: [13, 6, 233, 17],
        spaces: "read_only new old code shared trusted shared_trusted new_large_object large_object",
        heap: HeapOffsets { spaces: 0x160, isolate: 0x18, state: 0x220, sweeper: 0x778, strings: 0xa90 },
        space: SpaceOffsets { first_page: 0x28, allocated: 0x78, large: 0x68 },
        area: AreaPointer::InLocalHeap(0x20),
        record: RECORD_13,
        pooled: PooledFlags::OfPage(0x9_0000),
        header: 0x10,
        objects: NEW_OBJECTS,
    },
    Layout {
        version: [14, 6, 202, 34],
        spaces: "read_only new old code shared trusted shared_trusted new_large_object large_object",
        heap: HeapOffsets { spaces: 0x118, isolate: 8, state: 0x228, sweeper: 0x7a8, strings: 0xab0 },
        space: SpaceOffsets { first_page: 0x28, allocated: 0x68, large: 0x58 },
        area: AreaPointer::InLocalHeap(0x10),
        record: RecordOffsets { next: 256, ..RECORD_13 },
        pooled: PooledFlags::OfRecord { flags: 6, offset: 88 },
        header: 0x10,
        objects: NEW_OBJECTS,
    },
];

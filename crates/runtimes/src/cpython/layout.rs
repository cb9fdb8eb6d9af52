//! Offsets in CPython's structures, by version, for 64-bit builds without `Py_TRACE_REFS`
//! (`Py_DEBUG` changes none of them).
//!
//! Printed by a program compiled with the headers of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1,
//! 3.13.0 and 3.14.10, and with `Py_GIL_DISABLED` of 3.13.5 and 3.14.10. Unless noted, they hold
//! for all releases of a minor version. They were tried on running builds, up to 3.14.10 with a
//! global lock and up to 3.13.5 without.
//!
//! Files of CPython are named as in 3.11; up to 3.10 a structure of `Include/cpython/NAME.h` may be
//! in `Include/NAME.h`.

/// Sizes of an arena and of its pools (`Objects/obmalloc.c`; larger from 3.10 on, with
/// `WITH_PYMALLOC_RADIX_TREE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSizes {
    /// `ARENA_SIZE`
    pub arena_bytes: u64,
    /// `POOL_SIZE`
    pub pool_bytes: u64,
}

/// The two known pairs of sizes; the arenas show which one a build uses.
pub const ARENA_SIZES: [ArenaSizes; 2] = [
    ArenaSizes { arena_bytes: 1 << 20, pool_bytes: 16 << 10 },
    ArenaSizes { arena_bytes: 256 << 10, pool_bytes: 4 << 10 },
];

/// Bytes of `struct arena_object` (`Objects/obmalloc.c`, from 3.12 on
/// `Include/internal/pycore_obmalloc.h`, as is `struct pool_header`): the address, `pool_address`,
/// `nfreepools` and `ntotalpools` (32 bits each), `freepools`, `nextarena`, `prevarena`.
pub const ARENA_OBJECT_BYTES: u64 = 48;
/// `address` in an arena object: the start of the arena, or 0 if the object is unused.
pub const ARENA_ADDRESS: usize = 0;
/// `pool_address`: start of the pools that were never handed out.
pub const ARENA_POOL_ADDRESS: usize = 8;
/// `nfreepools` (32 bits).
pub const ARENA_FREE_POOL_COUNT: usize = 16;
/// `ntotalpools` (32 bits).
pub const ARENA_POOL_COUNT: usize = 20;
/// `freepools`: the list of free pools that were handed out before.
pub const ARENA_FREE_POOLS: usize = 24;
/// `nextarena`: the link of the list of unused arena objects.
pub const ARENA_NEXT: usize = 32;
/// Bytes of `struct pool_header`.
pub const POOL_HEADER_BYTES: u64 = 48;
/// `ref.count` in a pool's header: blocks in use (32 bits).
pub const POOL_COUNT: usize = 0;
/// `freeblock`: the first free block. Free blocks are linked through their first words.
pub const POOL_FREE: usize = 8;
/// `nextpool`: the link of an arena's list of free pools.
pub const POOL_NEXT: usize = 16;
/// `arenaindex` (32 bits).
pub const POOL_ARENA: usize = 32;
/// `szidx`, the size class (32 bits): its blocks have 16 * (`szidx` + 1) bytes.
pub const POOL_CLASS: usize = 36;
/// `nextoffset` (32 bits): start of the part that was never handed out.
pub const POOL_NEXT_OFFSET: usize = 40;
/// Number of size classes (`NB_SMALL_SIZE_CLASSES`).
pub const SIZE_CLASSES: usize = 32;
/// `ALIGNMENT`
pub const ALIGNMENT: u64 = 16;

/// `ob_type` in an object (`Include/object.h`). Offsets in objects count from `ob_refcnt`; in
/// builds without a global lock the object begins [`Release::header_prefix_bytes`] bytes before.
pub const TYPE: usize = 8;
/// `ob_size` in an object of variable size (`PyVarObject` in `Include/object.h`).
pub const SIZE: usize = 16;
/// Bytes of `PyGC_Head` (`Include/internal/pycore_gc.h`), in front of objects that the collector
/// tracks.
pub const GC_HEAD_BYTES: u64 = 16;
/// Mask of the address in a link of `PyGC_Head`: the low bits are flags (same file).
pub const GC_LINK_MASK: u64 = !3;
/// Value of [`Release::header_prefix_bytes`] in builds without a global lock: `ob_tid`, and in 8
/// bytes flags, `ob_mutex`, `ob_gc_bits` and `ob_ref_local` (`struct _object` in `Include/object.h`
/// with `Py_GIL_DISABLED`).
pub const FREE_THREADED_PREFIX_BYTES: u64 = 16;
/// `ob_ref_local` (32 bits) in builds without a global lock, from the start of the object.
pub const LOCAL_REFERENCES: usize = 12;
/// `ob_ref_shared` in builds without a global lock, from the start of the object.
pub const SHARED_REFERENCES: usize = 16;
/// Number of low bits of `ob_ref_shared` that are flags (`_Py_REF_SHARED_SHIFT` in
/// `Include/object.h` of 3.13).
pub const SHARED_SHIFT: u32 = 2;

/// `tp_name` in a type (`Include/cpython/object.h`).
pub const TYPE_NAME: usize = 24;
/// `tp_basicsize` in a type.
pub const TYPE_BASIC_SIZE: usize = 32;
/// `tp_itemsize` in a type.
pub const TYPE_ITEM_SIZE: usize = 40;
/// `tp_flags` in a type.
pub const TYPE_FLAGS: usize = 168;
/// `tp_base` in a type.
pub const TYPE_BASE: usize = 256;
/// `tp_dict` in a type.
pub const TYPE_DICT: usize = 264;
/// Bytes read of a type.
pub const TYPE_BYTES: usize = 272;

/// `Py_TPFLAGS_*`, of `tp_flags` (`Include/object.h`).
pub mod flags {
    /// `Py_TPFLAGS_INLINE_VALUES`, from 3.13 on.
    pub const INLINE_VALUES: u64 = 1 << 2;
    /// `Py_TPFLAGS_MANAGED_WEAKREF`, from 3.12 on.
    pub const MANAGED_WEAKREF: u64 = 1 << 3;
    /// `Py_TPFLAGS_MANAGED_DICT`, from 3.11 on.
    pub const MANAGED_DICT: u64 = 1 << 4;
    /// `Py_TPFLAGS_HEAPTYPE`
    pub const HEAP_TYPE: u64 = 1 << 9;
    /// `Py_TPFLAGS_READY`
    pub const READY: u64 = 1 << 12;
    /// `Py_TPFLAGS_HAVE_GC`
    pub const HAVE_GC: u64 = 1 << 14;
    /// `Py_TPFLAGS_LONG_SUBCLASS`
    pub const LONG: u64 = 1 << 24;
    /// `Py_TPFLAGS_LIST_SUBCLASS`
    pub const LIST: u64 = 1 << 25;
    /// `Py_TPFLAGS_BYTES_SUBCLASS`
    pub const BYTES: u64 = 1 << 27;
    /// `Py_TPFLAGS_UNICODE_SUBCLASS`
    pub const UNICODE: u64 = 1 << 28;
    /// `Py_TPFLAGS_DICT_SUBCLASS`
    pub const DICT: u64 = 1 << 29;
    /// `Py_TPFLAGS_TYPE_SUBCLASS`
    pub const TYPE: u64 = 1 << 31;
}

/// `ob_item` in a list (`PyListObject` in `Include/cpython/listobject.h`).
pub const LIST_ITEMS: usize = 24;
/// `allocated` in a list.
pub const LIST_ALLOCATED: usize = 32;
/// `mask` in a set (`PySetObject` in `Include/cpython/setobject.h`): the number of slots of its
/// table, less one.
pub const SET_MASK: usize = 32;
/// `table` in a set.
pub const SET_TABLE: usize = 40;
/// `smalltable` in a set: the table of a small one, within the object.
pub const SET_SMALL_TABLE: u64 = 64;
/// Number of entries of that table (`PySet_MINSIZE`).
pub const SET_SMALL_ENTRIES: u64 = 8;
/// Bytes of a set's entry (`setentry`): key and hash.
pub const SET_ENTRY_BYTES: u64 = 16;
/// `ob_alloc` in a bytearray (`PyByteArrayObject` in `Include/cpython/bytearrayobject.h`).
pub const BYTEARRAY_ALLOCATED: usize = 24;
/// `ob_bytes` in a bytearray.
pub const BYTEARRAY_BYTES: usize = 32;
/// `ob_item` in an array.array (`arrayobject` in Modules/arraymodule.c, the same from 3.8 to 3.14).
pub const ARRAY_ITEMS: usize = 24;
/// `allocated` in an array.array.
pub const ARRAY_ALLOCATED: usize = 32;
/// `ob_descr` in an array.array.
pub const ARRAY_DESCRIPTION: usize = 40;
/// `itemsize` (32 bits) in that description (`struct arraydescr`).
pub const ARRAY_ITEM_BYTES: usize = 4;
/// `data` in a numpy.ndarray (`tagPyArrayObject_fields` in numpy/core/include/numpy/ndarraytypes.h
/// of 1.24, numpy/_core of 2.0).
pub const NDARRAY_DATA: usize = 16;
/// `nd` (32 bits) in a numpy.ndarray.
pub const NDARRAY_DIMENSION_COUNT: usize = 24;
/// `dimensions` in a numpy.ndarray.
pub const NDARRAY_DIMENSIONS: usize = 32;
/// `strides` in a numpy.ndarray.
pub const NDARRAY_STRIDES: usize = 40;
/// `descr` in a numpy.ndarray.
pub const NDARRAY_DESCRIPTION: usize = 56;
/// `flags` (32 bits) in a numpy.ndarray.
pub const NDARRAY_FLAGS: usize = 64;
/// `NPY_ARRAY_OWNDATA`: the array owns its data (same file).
pub const NDARRAY_OWNS: u32 = 4;
/// `NPY_MAXDIMS` of 2.0; 32 before.
pub const NDARRAY_MAX_DIMENSIONS: u32 = 64;
/// `kind`, a letter, in `descr` (`PyArray_Descr`, same file).
pub const NDARRAY_KIND: u64 = 24;
/// Kinds whose items are not references.
pub const NDARRAY_PLAIN_KINDS: [u8; 9] = *b"biufcSUmM";
/// `buffer` in a BufferedReader, BufferedWriter or BufferedRandom (`buffered` in
/// Modules/_io/bufferedio.c).
pub const BUFFERED_BYTES: usize = 56;
/// Last minor version with [`BUFFERED_BYTES`].
pub const BUFFERED_LAST_MINOR: u8 = 13;
/// `b_ptr` in an instance of a ctypes type (`CDataObject` in Modules/_ctypes/ctypes.h).
pub const CTYPES_BYTES: usize = 16;
/// `b_needsfree` (32 bits) in an instance of a ctypes type.
pub const CTYPES_NEEDS_FREE: usize = 24;
/// `b_size` in an instance of a ctypes type.
pub const CTYPES_SIZE: usize = 40;
/// Bytes of a `_Py_CODEUNIT`. From 3.11 on these are the items of a code object
/// (`co_code_adaptive`), and of no other built-in type.
pub const INSTRUCTION_BYTES: u64 = 2;
/// `ob_sval` in a bytes object (`PyBytesObject` in `Include/cpython/bytesobject.h`).
pub const BYTES_DATA: u64 = 32;
/// `leftblock` in a deque (`dequeobject` in `Modules/_collectionsmodule.c`): its first block.
pub const DEQUE_LEFT_BLOCK: usize = 24;
/// `leftindex` in a deque: index of its first item in its first block.
pub const DEQUE_LEFT_INDEX: usize = 40;
/// Bytes of a deque's block (`block`, same file): `leftlink`, the items, `rightlink`.
pub const DEQUE_BLOCK_BYTES: u64 = 528;
/// Number of items of a deque's block (`BLOCKLEN`).
pub const DEQUE_BLOCK_ITEMS: u64 = 64;
/// `rightlink` in a deque's block: the next block.
pub const DEQUE_RIGHT_LINK: u64 = 520;
/// `ma_keys` in a dict (`PyDictObject` in `Include/cpython/dictobject.h`).
pub const DICT_KEYS: usize = 32;
/// `ma_values` in a dict.
pub const DICT_VALUES: usize = 40;
/// `md_dict` in a module (`PyModuleObject` in `Include/internal/pycore_moduleobject.h`, up to 3.10
/// in `Objects/moduleobject.c`).
pub const MODULE_DICT: usize = 16;
/// `length` in a str (`PyASCIIObject` in `Include/cpython/unicodeobject.h`).
pub const STRING_LENGTH: usize = 16;
/// `state` (32 bits) in a str.
pub const STRING_STATE: usize = 32;
/// `wstr` in a str, its `wchar_t` form, up to 3.11 (PEP 623 removed it;
/// `Include/cpython/unicodeobject.h`).
pub const STRING_WIDE: usize = 40;
/// `wstr_length` in a str that is not compact ASCII.
pub const STRING_WIDE_LENGTH: usize = 64;
/// Last minor version with [`STRING_WIDE`].
pub const STRING_WIDE_LAST_MINOR: u8 = 11;
/// Bytes of a `wchar_t` on Linux.
pub const WIDE_BYTES: u64 = 4;
/// `ob_digit` in an int (`Include/cpython/longintrepr.h`). The number of digits is before them,
/// from 3.12 on in `lv_tag`.
pub const INT_DIGITS: u64 = 24;
/// Bytes of a `digit`.
pub const INT_DIGIT_BYTES: u64 = 4;
/// Bits of a digit that are used (`PyLong_SHIFT`); 15 only in builds configured for it.
pub const INT_DIGIT_BITS: u32 = 30;
/// Number of low bits of `lv_tag` that are flags (`NON_SIZE_BITS` in
/// `Include/internal/pycore_long.h`).
pub const INT_TAG_SHIFT: u32 = 3;

/// Bytes of a str without its characters.
#[derive(Clone, Copy, Debug)]
pub struct StringBytes {
    /// `PyASCIIObject`: the characters of an ASCII string follow.
    pub ascii: u64,
    /// `PyCompactUnicodeObject`: the characters of another string follow.
    pub compact: u64,
    /// `PyUnicodeObject`: the characters are in a block of their own.
    pub not_compact: u64,
}

/// Layout of one version.
#[derive(Debug)]
pub struct Release {
    /// 3.`minor`
    pub minor: u8,
    /// Bytes before the fields that objects of other builds begin with (`ob_tid` and others, with
    /// `Py_GIL_DISABLED`); 0 in other builds.
    pub header_prefix_bytes: u64,
    /// Bit number of `kind` in the state of a str.
    pub kind_shift: u32,
    /// Bytes before the items in the block of a list (`_PyListArray` in `Objects/listobject.c`).
    pub list_header_bytes: u64,
    /// Bytes of a str without its characters.
    pub string_bytes: StringBytes,
    /// `utf8` in a str that is not ASCII.
    pub utf8: usize,
    /// Form of a dict's keys.
    pub keys: KeysForm,
    /// Bytes of a class (`PyHeapTypeObject` in `Include/cpython/object.h`).
    pub class_bytes: u64,
    /// `ht_qualname` in a class.
    pub qualname: u64,
    /// Flags of types whose instances have two more words in front (`_PyType_PreHeaderSize` in
    /// `Include/internal/pycore_object.h`).
    pub extra_prefix_flags: u64,
    /// Flags of types whose instances contain the values of their attributes, behind all other
    /// fields.
    pub inline_values_flags: u64,
    /// Whether ints have a tag (`lv_tag`) instead of a signed size.
    pub has_int_tags: bool,
    /// Place of the list of interpreters.
    pub interpreters: Interpreters,
}

impl Release {
    /// Whether it has no global lock.
    pub const fn is_free_threaded(&self) -> bool {
        self.header_prefix_bytes > 0
    }

    /// Whether the collector's links precede objects. Builds without a global lock have none: the
    /// collector walks their heaps.
    pub const fn has_links(&self) -> bool {
        !self.is_free_threaded()
    }
}

/// Offsets of `interpreters.head` in `_PyRuntime` (`_PyRuntimeState` in
/// `Include/internal/pycore_runtime.h`) and of `next` in `PyInterpreterState`
/// (`Include/internal/pycore_interp.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreters {
    /// This offset of the head; `next` is at 0.
    HeadAt(u64),
    /// Offsets are in a table at the start of `_PyRuntime` (`struct _Py_DebugOffsets`).
    InDebugOffsets,
}

/// First bytes of `struct _Py_DebugOffsets`.
pub const COOKIE: [u8; 8] = *b"xdebugpy";
/// `free_threaded` in that table.
pub const DEBUG_OFFSETS_FREE_THREADED: usize = 16;
/// `runtime_state.interpreters_head` in that table.
pub const DEBUG_OFFSETS_HEAD: usize = 40;
/// `interpreter_state.next` in that table.
pub const DEBUG_OFFSETS_NEXT: usize = 64;

/// `interpreter_state.gc` in that table; from 3.14 on another field precedes it.
pub const fn debug_offsets_collector(minor: u8) -> usize {
    if minor <= 13 { 80 } else { 88 }
}

/// Bytes read of that table.
pub const DEBUG_OFFSETS_BYTES: usize = 96;

/// Bits of a str's 32-bit state (`PyASCIIObject` in `Include/cpython/unicodeobject.h`) for interned
/// strings.
pub const INTERNED: u32 = 3;
/// `kind` in that state, behind [`Release::kind_shift`] other bits: bytes per character.
pub const STRING_KIND: u32 = 7;
/// `compact` in that state, right behind `kind`.
pub const STRING_COMPACT: u32 = 1 << 3;
/// `ascii` in that state, right behind `compact`.
pub const STRING_ASCII: u32 = 1 << 4;

/// Form of a dict's keys (`struct _dictkeysobject` in `Objects/dict-common.h`, from 3.11 on in
/// `Include/internal/pycore_dict.h`): a header, indices, entries. The indices are the slots of the
/// hash table: each is the number of an entry, or marks a slot without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysForm {
    /// The header has the number of indices. Offsets are in [`counted_keys`]. Up to 3.10.
    IndexCount,
    /// The header has the logarithms of the number of indices and of their bytes. Offsets are in
    /// [`log2_keys`]. From 3.11 on.
    Log2Sizes,
}

/// Bytes read of a dict's keys: the longer header.
pub const KEYS_HEAD_BYTES: usize = 40;
/// `dk_refcnt` in a dict's keys.
pub const KEYS_REFERENCES: usize = 0;
/// Bytes of an entry with its hash (`PyDictKeyEntry`).
pub const DICT_ENTRY_BYTES: u64 = 24;
/// Bytes of an entry whose key is a string (`PyDictUnicodeEntry`).
pub const DICT_STRING_ENTRY_BYTES: u64 = 16;

/// Offsets of [`KeysForm::IndexCount`] (`struct _dictkeysobject` in `Objects/dict-common.h`).
pub mod counted_keys {
    /// `dk_size`: number of indices.
    pub const INDEX_COUNT: usize = 8;
    /// `dk_nentries`: number of entries written.
    pub const ENTRIES_WRITTEN: usize = 32;
    /// `dk_indices`: end of the header.
    pub const INDICES: u64 = 40;
}

/// Offsets of [`KeysForm::Log2Sizes`], and kinds (`struct _dictkeysobject` and `DictKeysKind` in
/// `Include/internal/pycore_dict.h`).
pub mod log2_keys {
    /// `dk_log2_size`, a byte: logarithm of the number of indices.
    pub const LOG2_INDEX_COUNT: usize = 8;
    /// `dk_log2_index_bytes`, a byte: logarithm of the bytes of all indices.
    pub const LOG2_INDEX_BYTES: usize = 9;
    /// `dk_kind`, a byte.
    pub const KIND: usize = 10;
    /// `dk_usable`: number of entries that can still be written.
    pub const ENTRIES_LEFT: usize = 16;
    /// `dk_nentries`: number of entries written.
    pub const ENTRIES_WRITTEN: usize = 24;
    /// `dk_indices`: end of the header.
    pub const INDICES: u64 = 32;
    /// `DICT_KEYS_GENERAL`: keys may be any objects; in the other kinds all are strings.
    pub const GENERAL: u8 = 0;
    /// `DICT_KEYS_SPLIT`, the last kind: the values are in a table of each dict.
    pub const SPLIT: u8 = 2;
}

/// A number in a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its offset.
    pub offset: usize,
    /// Its size in bits.
    pub bits: u32,
}

/// Offsets in the heaps of builds without a global lock (`mi_segment_t` and `mi_page_t` in
/// `Include/internal/mimalloc/mimalloc/types.h`): CPython's copy of mimalloc, with a heap per kind
/// of content. With `Py_DEBUG` the lists of free blocks are encoded.
#[derive(Debug)]
pub struct HeapLayout {
    /// `cookie` in a segment.
    pub cookie: usize,
    /// `used` in a segment: pages in use.
    pub used_pages: usize,
    /// `segment_slices`.
    pub slice_count: usize,
    /// `segment_info_slices`: slices of the segment's own structures.
    pub info_slice_count: usize,
    /// `kind`: 1 for a segment with a single block.
    pub segment_kind: usize,
    /// `slice_entries`.
    pub entry_count: usize,
    /// `thread_id`: 0 if its thread ended, or the segment was freed.
    pub thread_id: usize,
    /// `slices`, the structures of pages; each begins with its `slice_count` (32 bits).
    pub page_structures: usize,
    /// Bytes of one such structure.
    pub structure_bytes: usize,
    /// Offset of the byte with a page's heap (`tag`, from mimalloc 2.2 on `heap_tag`).
    pub tag: usize,
    /// Number of the heap's lowest bit in that byte.
    pub tag_shift: u32,
    /// `used` in a page.
    pub page_used: Field,
    /// `xblock_size` (from 2.1.4 on `block_size`) in a page.
    pub block_bytes: Field,
    /// `local_free` in a page.
    pub local_free: usize,
    /// `xthread_free` in a page; its two lowest bits are a state.
    pub thread_free: usize,
    /// `page_start` in a page; without it, the start follows from the block size.
    pub blocks_start: Option<usize>,
}

/// The two known layouts: of mimalloc 2.1.2 (3.13, 3.14), and of 2.5.2 (3.14.10; the release that
/// introduced it was not looked up).
pub static HEAPS: [HeapLayout; 2] = [
    HeapLayout {
        cookie: 216,
        used_pages: 208,
        slice_count: 224,
        info_slice_count: 232,
        segment_kind: 240,
        entry_count: 248,
        thread_id: 256,
        page_structures: 264,
        structure_bytes: 96,
        tag: 8,
        tag_shift: 3,
        page_used: Field { offset: 24, bits: 32 },
        block_bytes: Field { offset: 28, bits: 32 },
        local_free: 32,
        thread_free: 40,
        blocks_start: None,
    },
    HeapLayout {
        cookie: 224,
        used_pages: 216,
        slice_count: 248,
        info_slice_count: 256,
        segment_kind: 264,
        entry_count: 272,
        thread_id: 280,
        page_structures: 288,
        structure_bytes: 112,
        tag: 35,
        tag_shift: 0,
        page_used: Field { offset: 32, bits: 16 },
        block_bytes: Field { offset: 40, bits: 64 },
        local_free: 24,
        thread_free: 56,
        blocks_start: Some(48),
    },
];

/// `capacity` in a page of both layouts: blocks created (16 bits).
pub const PAGE_CAPACITY: usize = 10;
/// `reserved`: blocks that the page has room for (16 bits).
pub const PAGE_RESERVED: usize = 12;
/// `free`: the first free block.
pub const PAGE_FREE: usize = 16;
/// Size and alignment of segments.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// Size of the slices of a segment.
pub const SLICE_BYTES: u64 = 64 << 10;

/// Distance from a page's first byte to its blocks if the page does not state it
/// (`_mi_segment_page_start_from_slice` in `Objects/mimalloc/segment.c`).
pub const fn blocks_offset(block_bytes: u64) -> u64 {
    match block_bytes {
        8..=64 => 3 * block_bytes,
        65..=512 => block_bytes,
        _ => 0,
    }
}

/// Mask of a page's tag.
pub const TAG_MASK: u8 = 15;
/// Heaps by tag (`_Py_mimalloc_heap_id` in `Include/internal/pycore_mimalloc.h`): of
/// `PyMem_Malloc`, of objects without the collector, with it, and with it and two more words in
/// front.
pub const HEAP_NAMES: [&str; 4] = ["mem", "object", "gc", "gc_pre"];

/// Layout of a version up to 3.10.
const fn release_like_3_10(minor: u8, class_bytes: u64, qualname: u64) -> Release {
    Release {
        minor,
        header_prefix_bytes: 0,
        kind_shift: 2,
        list_header_bytes: 0,
        string_bytes: StringBytes { ascii: 48, compact: 72, not_compact: 80 },
        utf8: 56,
        keys: KeysForm::IndexCount,
        class_bytes,
        qualname,
        extra_prefix_flags: 0,
        inline_values_flags: 0,
        has_int_tags: false,
        interpreters: Interpreters::HeadAt(32),
    }
}

/// Layout of a version from 3.13 on.
const fn release_like_3_13(minor: u8, class_bytes: u64) -> Release {
    Release {
        string_bytes: StringBytes { ascii: 40, compact: 56, not_compact: 64 },
        utf8: 48,
        keys: KeysForm::Log2Sizes,
        extra_prefix_flags: flags::MANAGED_DICT | flags::MANAGED_WEAKREF,
        inline_values_flags: flags::INLINE_VALUES,
        has_int_tags: true,
        interpreters: Interpreters::InDebugOffsets,
        ..release_like_3_10(minor, class_bytes, 872)
    }
}

/// Layout of a build without a global lock.
const fn release_without_lock(minor: u8, class_bytes: u64, kind_shift: u32) -> Release {
    Release {
        header_prefix_bytes: FREE_THREADED_PREFIX_BYTES,
        kind_shift,
        list_header_bytes: 8,
        string_bytes: StringBytes { ascii: 56, compact: 72, not_compact: 80 },
        utf8: 64,
        qualname: 888,
        ..release_like_3_13(minor, class_bytes)
    }
}

/// The layouts of all known versions.
pub static RELEASES: [Release; 9] = [
    release_like_3_10(8, 880, 864),
    release_like_3_10(9, 880, 856),
    release_like_3_10(10, 888, 864),
    Release {
        keys: KeysForm::Log2Sizes,
        extra_prefix_flags: flags::MANAGED_DICT,
        interpreters: Interpreters::HeadAt(40),
        ..release_like_3_10(11, 904, 864)
    },
    Release { inline_values_flags: 0, interpreters: Interpreters::HeadAt(40), ..release_like_3_13(12, 920) },
    release_like_3_13(13, 928),
    release_like_3_13(14, 936),
    release_without_lock(13, 944, 2),
    // `interned` is its own byte.
    release_without_lock(14, 960, 8),
];

/// The last known minor version.
pub fn last_minor() -> u8 {
    RELEASES[RELEASES.len() - 1].minor
}

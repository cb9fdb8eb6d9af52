//! Where CPython's structures stand, by version, of builds for 64 bits without `Py_TRACE_REFS` (`Py_DEBUG` changes none of them).
//!
//! Offsets were printed by a program against the headers of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14.10, with
//! `Py_GIL_DISABLED` of 3.13.5 and 3.14.10, and hold for all releases of a minor version but where it is said otherwise. Of builds
//! without a global lock 3.13.5 was run, 3.14 only read; of others 3.14.10 was run too.

/// Of an arena, and of the pools that it is cut into (`Objects/obmalloc.c`; from 3.10 on, with `WITH_PYMALLOC_RADIX_TREE`, larger).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `ARENA_SIZE`
    pub arena_bytes: u64,
    /// `POOL_SIZE`
    pub pool_bytes: u64,
}

/// Both there are; which a build has is told by its arenas.
pub const SHAPES: [Shape; 2] = [
    Shape { arena_bytes: 1 << 20, pool_bytes: 16 << 10 },
    Shape { arena_bytes: 256 << 10, pool_bytes: 4 << 10 },
];

/// Bytes of `struct arena_object`: the address, `pool_address`, `nfreepools` and `ntotalpools` (32 bits each), `freepools`,
/// `nextarena`, `prevarena`.
pub const ARENA_OBJECT_BYTES: u64 = 48;
/// Bytes of `struct pool_header`.
pub const POOL_HEADER_BYTES: u64 = 48;
/// In a pool's header: `ref.count`, blocks in use (32 bits).
pub const POOL_COUNT: usize = 0;
/// `freeblock`, the first free one: a list through their first words.
pub const POOL_FREE: usize = 8;
/// `nextpool`, in an arena's list of free pools.
pub const POOL_NEXT: usize = 16;
/// `arenaindex` (32 bits).
pub const POOL_ARENA: usize = 32;
/// `szidx`, the size class (32 bits): blocks of 16 bytes more than 16 times that.
pub const POOL_CLASS: usize = 36;
/// `nextoffset`, where what was never given out begins (32 bits).
pub const POOL_VIRGIN: usize = 40;
/// Size classes (`NB_SMALL_SIZE_CLASSES`).
pub const SIZE_CLASSES: usize = 32;
/// `ALIGNMENT`
pub const ALIGNMENT: u64 = 16;

/// `ob_type` and `ob_size` of an object, behind `ob_refcnt` (`Include/object.h`). All offsets within objects count from there: in builds
/// without a global lock [`Release::ahead`] bytes stand in front.
pub const TYPE: u64 = 8;
/// See [`TYPE`].
pub const SIZE: usize = 16;
/// Bytes of `PyGC_Head`, in front of objects that the collector knows.
pub const GC_HEAD_BYTES: u64 = 16;
/// What stands in front of the type in builds without a global lock: `ob_ref_local` (32 bits) at 12, `ob_ref_shared` at 16, whose
/// two low bits are flags.
pub const AHEAD_BYTES: u64 = 16;
/// See [`AHEAD_BYTES`].
pub const LOCAL_REFERENCES: usize = 12;
/// See [`AHEAD_BYTES`].
pub const SHARED_REFERENCES: usize = 16;
/// See [`AHEAD_BYTES`].
pub const SHARED_SHIFT: u32 = 2;

/// In a type: `tp_name`, `tp_basicsize`, `tp_itemsize`, `tp_flags`, `tp_base`, `tp_dict` (`Include/cpython/object.h`).
pub const TYPE_NAME: usize = 24;
/// See [`TYPE_NAME`].
pub const TYPE_BASIC_SIZE: usize = 32;
/// See [`TYPE_NAME`].
pub const TYPE_ITEM_SIZE: usize = 40;
/// See [`TYPE_NAME`].
pub const TYPE_FLAGS: usize = 168;
/// See [`TYPE_NAME`].
pub const TYPE_BASE: usize = 256;
/// See [`TYPE_NAME`].
pub const TYPE_DICT: usize = 264;
/// So much of a type is read.
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

/// `ob_item` and `allocated` of a list.
pub const LIST_ITEMS: usize = 24;
/// See [`LIST_ITEMS`].
pub const LIST_ALLOCATED: usize = 32;
/// `mask`, `table` and `smalltable` of a set, which has room for 8 itself; entries of 16 bytes.
pub const SET_MASK: usize = 32;
/// See [`SET_MASK`].
pub const SET_TABLE: usize = 40;
/// See [`SET_MASK`].
pub const SET_SMALL_TABLE: u64 = 64;
/// See [`SET_MASK`].
pub const SET_ENTRY_BYTES: u64 = 16;
/// `ob_alloc` and `ob_bytes` of a bytearray.
pub const BYTEARRAY_ALLOCATED: usize = 24;
/// See [`BYTEARRAY_ALLOCATED`].
pub const BYTEARRAY_BYTES: usize = 32;
/// `ob_item`, `allocated` and `ob_descr` of an array.array (`arrayobject` in Modules/arraymodule.c, the same from 3.8 to 3.14); in that
/// description, from its second 32 bits on, bytes of an item.
pub const ARRAY_ITEMS: usize = 24;
/// See [`ARRAY_ITEMS`].
pub const ARRAY_ALLOCATED: usize = 32;
/// See [`ARRAY_ITEMS`].
pub const ARRAY_DESCRIPTION: usize = 40;
/// `data`, `nd` (32 bits), `dimensions`, `strides`, `descr` and `flags` (32 bits) of a numpy.ndarray (`tagPyArrayObject_fields` in
/// numpy/core/include/numpy/ndarraytypes.h of 1.24, numpy/_core of 2.0).
pub const NDARRAY_DATA: usize = 16;
/// See [`NDARRAY_DATA`].
pub const NDARRAY_NUMBER: usize = 24;
/// See [`NDARRAY_DATA`].
pub const NDARRAY_DIMENSIONS: usize = 32;
/// See [`NDARRAY_DATA`].
pub const NDARRAY_STRIDES: usize = 40;
/// See [`NDARRAY_DATA`].
pub const NDARRAY_DESCRIPTION: usize = 56;
/// See [`NDARRAY_DATA`].
pub const NDARRAY_FLAGS: usize = 64;
/// `NPY_ARRAY_OWNDATA`: nothing else has the data (same file).
pub const NDARRAY_OWNS: u32 = 4;
/// `NPY_MAXDIMS` of 2.0; 32 before.
pub const NDARRAY_MOST: u32 = 64;
/// `kind` in its `descr` (`PyArray_Descr`, same file): a letter, of which these are of no references.
pub const NDARRAY_KIND: u64 = 24;
/// See [`NDARRAY_KIND`].
pub const NDARRAY_PLAIN_KINDS: [u8; 9] = *b"biufcSUmM";
/// `buffer` of a BufferedReader, BufferedWriter or BufferedRandom (`buffered` in Modules/_io/bufferedio.c), up to this minor version.
pub const BUFFERED_BYTES: usize = 56;
/// See [`BUFFERED_BYTES`].
pub const BUFFERED_LAST_MINOR: u8 = 13;
/// `b_ptr`, `b_needsfree` (32 bits) and `b_size` of an instance of a ctypes type (`CDataObject` in Modules/_ctypes/ctypes.h).
pub const CTYPES_BYTES: usize = 16;
/// See [`CTYPES_BYTES`].
pub const CTYPES_NEEDS_FREE: usize = 24;
/// See [`CTYPES_BYTES`].
pub const CTYPES_SIZE: usize = 40;
/// `_Py_CODEUNIT`: from 3.11 on the items of a code object (`co_code_adaptive`), and no other built-in type's.
pub const INSTRUCTION_BYTES: u64 = 2;
/// `ob_sval` of a bytes.
pub const BYTES_AT: u64 = 32;
/// `leftblock` and `leftindex` of a deque; a block has so many bytes, room for so many items, and `rightlink` behind these.
pub const DEQUE_LEFT: usize = 24;
/// See [`DEQUE_LEFT`].
pub const DEQUE_INDEX: usize = 40;
/// See [`DEQUE_LEFT`].
pub const DEQUE_BLOCK_BYTES: u64 = 528;
/// See [`DEQUE_LEFT`].
pub const DEQUE_BLOCK_ITEMS: u64 = 64;
/// See [`DEQUE_LEFT`].
pub const DEQUE_LINK: u64 = 520;
/// `ma_keys` and `ma_values` of a dict.
pub const DICT_KEYS: usize = 32;
/// See [`DICT_KEYS`].
pub const DICT_VALUES: usize = 40;
/// `md_dict` of a module.
pub const MODULE_DICT: usize = 16;
/// `length`, and the 32 bits of `state`, of a str.
pub const STRING_LENGTH: usize = 16;
/// See [`STRING_LENGTH`].
pub const STRING_STATE: usize = 32;
/// `ob_digit` of an int; its digits have 32 bits each. Before it stands the number of them, from 3.12 on times 8.
pub const INT_DIGITS: u64 = 24;

/// A version.
#[derive(Debug)]
pub struct Release {
    /// 3.`minor`
    pub minor: u8,
    /// Bytes of an object in front of what other builds begin with (`ob_tid` and more, `Py_GIL_DISABLED`).
    pub ahead: u64,
    /// By how much `kind` stands higher than the lowest bit of a str's state.
    pub kind_shift: u32,
    /// Bytes in front of a list's items in their block (`_PyListArray`).
    pub before_items: u64,
    /// Bytes of `PyASCIIObject`, behind which an ASCII string stands, of `PyCompactUnicodeObject`, behind which another one
    /// does, and of `PyUnicodeObject`.
    pub string: [u64; 3],
    /// `utf8` of a str that is not ASCII.
    pub utf8: usize,
    /// How keys of a dict stand.
    pub keys: Keys,
    /// Bytes of a class (`PyHeapTypeObject`).
    pub class_bytes: u64,
    /// `ht_qualname` of a class.
    pub qualname: u64,
    /// Flags of a type whose instances have two words more in front of them (`_PyType_PreHeaderSize`).
    pub two_more: u64,
    /// Flags of a type whose instances have their attributes' values in themselves, behind all else.
    pub inline_values: u64,
    /// Whether ints have a tag (`lv_tag`) instead of a signed size.
    pub has_int_tags: bool,
    /// Where interpreters stand.
    pub interpreters: Interpreters,
}

impl Release {
    /// Whether it has no global lock.
    pub const fn is_free_threaded(&self) -> bool {
        self.ahead > 0
    }

    /// Whether the collector's links stand before objects: without a global lock it goes over heaps instead.
    pub const fn has_links(&self) -> bool {
        !self.is_free_threaded()
    }
}

/// `interpreters.head` in `_PyRuntime`, and `next` in `PyInterpreterState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreters {
    /// At this offset, and at 0.
    At(u64),
    /// `_PyRuntime` begins with a table of offsets that says so (`struct _Py_DebugOffsets`).
    Told,
}

/// What that table begins with.
pub const COOKIE: [u8; 8] = *b"xdebugpy";
/// In that table: `free_threaded`, `runtime_state.interpreters_head`, `interpreter_state.next` and `.gc`.
pub const TOLD_FREE_THREADED: usize = 16;
/// See [`TOLD_FREE_THREADED`].
pub const TOLD_HEAD: usize = 40;
/// See [`TOLD_FREE_THREADED`].
pub const TOLD_NEXT: usize = 64;
/// See [`TOLD_FREE_THREADED`]; from 3.14 on there is one more before it.
pub const TOLD_COLLECTOR: [usize; 2] = [80, 88];
/// Bytes of that table that are read.
pub const TOLD_BYTES: usize = 96;

/// Of the 32 bits of a str's state, those that say whether it is interned; at [`Release::kind_shift`] stands `kind`, of three bits:
/// bytes of a character; behind that are `compact` and `ascii`.
pub const INTERNED: u32 = 3;

/// How keys of a dict stand (`Objects/dict-common.h`, from 3.11 on `pycore_dict.h`): a header, indices, entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// `dk_size` at 8, `dk_usable` at 24, `dk_nentries` at 32, indices behind 40 bytes; entries of 24 bytes.
    Sized,
    /// `dk_log2_size`, `dk_log2_index_bytes` and `dk_kind` at 8, 9 and 10, `dk_usable` at 16, `dk_nentries` at 24, indices behind
    /// 32 bytes; entries of 24 bytes, or of 16 where all keys are strings (kind 1 and 2).
    Logged,
}

/// Where heaps of builds without a global lock keep their books (`Include/internal/mimalloc/mimalloc/types.h`, of `mi_segment_t` and
/// `mi_page_t`): CPython's copy of mimalloc, which has heaps by what stands in them. Lists of free blocks are encoded with `Py_DEBUG`.
#[derive(Debug)]
pub struct HeapLayout {
    /// Of a segment: `cookie`.
    pub cookie: usize,
    /// `used`, pages in use.
    pub used: usize,
    /// `segment_slices`.
    pub slices: usize,
    /// `segment_info_slices`, those of its own structures.
    pub info_slices: usize,
    /// `kind`, 1 for one block.
    pub kind: usize,
    /// `slice_entries`.
    pub entries: usize,
    /// `thread_id`: 0 where its thread ended, or it was freed.
    pub thread: usize,
    /// `slices`, structures of pages, each with its `slice_count` (32 bits) first.
    pub structures: usize,
    /// Bytes of one.
    pub page_bytes: usize,
    /// Of a page: which heap's it is (`tag`, from mimalloc 2.2 on `heap_tag`): the byte, and by how much it stands higher than the lowest
    /// bit.
    pub tag: (usize, u32),
    /// `used`, and how many bits it has.
    pub page_used: (usize, u32),
    /// `xblock_size`, from 2.1.4 on `block_size`, and how many bits it has.
    pub block_bytes: (usize, u32),
    /// `local_free`.
    pub local_free: usize,
    /// `xthread_free`; its two lowest bits are a state.
    pub thread_free: usize,
    /// `page_start`; where it does not say, that is told by its blocks' size.
    pub start: Option<usize>,
}

/// Both there are: of mimalloc 2.1.2 (3.13, 3.14), and of 2.5.2 (3.14.10; in which release that came was not looked up).
pub static HEAPS: [HeapLayout; 2] = [
    HeapLayout {
        cookie: 216,
        used: 208,
        slices: 224,
        info_slices: 232,
        kind: 240,
        entries: 248,
        thread: 256,
        structures: 264,
        page_bytes: 96,
        tag: (8, 3),
        page_used: (24, 32),
        block_bytes: (28, 32),
        local_free: 32,
        thread_free: 40,
        start: None,
    },
    HeapLayout {
        cookie: 224,
        used: 216,
        slices: 248,
        info_slices: 256,
        kind: 264,
        entries: 272,
        thread: 280,
        structures: 288,
        page_bytes: 112,
        tag: (35, 0),
        page_used: (32, 16),
        block_bytes: (40, 64),
        local_free: 24,
        thread_free: 56,
        start: Some(48),
    },
];
/// In both: `capacity`, blocks that were made, and `reserved`, that there is room for (16 bits each), and `free`.
pub const PAGE_CAPACITY: usize = 10;
/// See [`PAGE_CAPACITY`].
pub const PAGE_RESERVED: usize = 12;
/// See [`PAGE_CAPACITY`].
pub const PAGE_FREE: usize = 16;
/// What segments are aligned to, and the slices that they are cut into.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// See [`SEGMENT_BYTES`].
pub const SLICE_BYTES: u64 = 64 << 10;
/// By how much a page's blocks begin behind its first byte where it does not say (`_mi_segment_page_start_from_slice`).
pub const fn blocks_begin(block_bytes: u64) -> u64 {
    match block_bytes {
        8..=64 => 3 * block_bytes,
        65..=512 => block_bytes,
        _ => 0,
    }
}
/// Bits of a page's tag, and what heaps there are by it (`_Py_mimalloc_heap_id`): `PyMem_Malloc`'s, objects without the collector, such
/// with it, and such with two words more in front.
pub const TAG_BITS: u8 = 15;
/// See [`TAG_BITS`].
pub const HEAP_NAMES: [&str; 4] = ["mem", "object", "gc", "gc_pre"];

/// Up to 3.10.
const fn release(minor: u8, class_bytes: u64, qualname: u64) -> Release {
    Release {
        minor,
        ahead: 0,
        kind_shift: 2,
        before_items: 0,
        string: [48, 72, 80],
        utf8: 56,
        keys: Keys::Sized,
        class_bytes,
        qualname,
        two_more: 0,
        inline_values: 0,
        has_int_tags: false,
        interpreters: Interpreters::At(32),
    }
}

/// From 3.13 on.
const fn newer(minor: u8, class_bytes: u64) -> Release {
    Release {
        string: [40, 56, 64],
        utf8: 48,
        keys: Keys::Logged,
        two_more: flags::MANAGED_DICT | flags::MANAGED_WEAKREF,
        inline_values: flags::INLINE_VALUES,
        has_int_tags: true,
        interpreters: Interpreters::Told,
        ..release(minor, class_bytes, 872)
    }
}

/// Builds without a global lock.
const fn without_lock(minor: u8, class_bytes: u64, kind_shift: u32) -> Release {
    Release {
        ahead: AHEAD_BYTES,
        kind_shift,
        before_items: 8,
        string: [56, 72, 80],
        utf8: 64,
        qualname: 888,
        ..newer(minor, class_bytes)
    }
}

/// Those that are read.
pub static RELEASES: [Release; 9] = [
    release(8, 880, 864),
    release(9, 880, 856),
    release(10, 888, 864),
    Release {
        keys: Keys::Logged,
        two_more: flags::MANAGED_DICT,
        interpreters: Interpreters::At(40),
        ..release(11, 904, 864)
    },
    Release { inline_values: 0, interpreters: Interpreters::At(40), ..newer(12, 920) },
    newer(13, 928),
    newer(14, 936),
    without_lock(13, 944, 2),
    // `interned` has a byte of its own.
    without_lock(14, 960, 8),
];

/// The last minor version that is read.
pub fn last_minor() -> u8 {
    RELEASES.last().map_or(0, |release| release.minor)
}

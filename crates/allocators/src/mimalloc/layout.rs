//! Layouts of mimalloc's pages by version, as data: standard 64-bit builds, without padding and
//! encoded lists (`MI_SECURE`, `MI_DEBUG`). `types.h` of the first release named at each is the
//! source.

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::range::AddressRange;

/// Bytes of a slice (`MI_SEGMENT_SLICE_SIZE`, `MI_ARENA_SLICE_SIZE`), and of the smallest page.
pub const SLICE_BYTES: u64 = 64 << 10;
/// The bit `in_full` in the word at [`QueueFields::flags`].
const IN_FULL: u64 = 1;
/// The bits `retire_expire` in that word: the upper seven of its second byte.
const RETIRE_EXPIRE: u64 = 0xfe00;
/// `xblock_size` of blocks of 2 GiB and more (`MI_HUGE_BLOCK_SIZE`).
const HUGE_BLOCK_BYTES: u64 = 2 << 30;

/// Offsets in the structure of a page, which is a run of blocks of one size (`types.h`,
/// `struct mi_page_s`).
#[derive(Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Bytes of the structure.
    pub bytes: usize,
    /// `capacity`: blocks that were initialised, 16 bits.
    capacity: usize,
    /// `reserved`: blocks that fit, 16 bits.
    reserved: usize,
    /// `free`: see [`FreeLists::free`].
    free: usize,
    /// `local_free`: see [`FreeLists::local_free`].
    local_free: usize,
    /// `xthread_free`, with a state in its low bits: see [`FreeLists::thread_free`].
    thread_free: usize,
    /// `used`: see [`PageWords::used`].
    used: SizedField,
    /// `block_size` or `xblock_size`: see [`PageWords::block_bytes`].
    block_bytes: SizedField,
    /// The heaps: `xheap` (twice) in 1.x and 2.x; `theap` and `heap` from 3.2 on; in 3.0 and 3.1
    /// the first is no pointer (`heap_tag`, `free_is_zero`) and the second is `heap`.
    heaps: [usize; 2],
    /// Where the first block begins.
    pub start: FirstBlock,
    /// Whether the first word is `xthread_id`, with flags in its low bits.
    has_thread: bool,
    /// The page's place in a queue of its heap; `None` for releases where the order of pages does
    /// not matter.
    queue: Option<QueueFields>,
    /// `memid.mem.arena` of 3.x: the arena, then in 32 bits each the first slice in it and the
    /// number of slices.
    arena: Option<usize>,
}

/// Offsets of the fields of a page for the queues of its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueFields {
    /// `flags`, whose first bit is `in_full`, followed by a byte whose upper seven bits are
    /// `retire_expire`.
    flags: usize,
    /// `next`, followed by `prev`.
    next: usize,
}

/// A field whose width differs between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizedField {
    offset: usize,
    /// Its width: 16, 32 or 64.
    bits: u32,
}

const fn field(offset: usize, bits: u32) -> SizedField {
    SizedField { offset, bits }
}

/// Where the first block of a page begins.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstBlock {
    /// At the address in this field (`page_start`).
    Field(usize),
    /// As many words after the page's structure as this field holds (`page_woffset`, 32 bits).
    Words(usize),
    /// At a multiple of the block size, in the first page of a segment (`_mi_segment_page_start`,
    /// 1.x).
    FirstAligned,
    /// At an offset that depends on the block size, by one of [`FIRST_BLOCK_OFFSETS`]
    /// (`_mi_segment_page_start_from_slice`, 2.0 to 2.1.2).
    Offset,
}

/// 1.6 to 1.8.2.
pub const PAGE_1: PageLayout = PageLayout {
    bytes: 64,
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: field(16, 32),
    block_bytes: field(20, 32),
    heaps: [40, 40],
    start: FirstBlock::FirstAligned,
    has_thread: false,
    queue: None,
    arena: None,
};
/// 1.8.4 to 1.9.
pub const PAGE_1_8_4: PageLayout = PageLayout {
    bytes: 80,
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 16,
    thread_free: 48,
    used: field(24, 16),
    block_bytes: field(32, 64),
    heaps: [56, 56],
    start: FirstBlock::Field(40),
    has_thread: false,
    queue: None,
    arena: None,
};
/// 2.0 to 2.1.2.
pub const PAGE_2: PageLayout = PageLayout {
    bytes: 80,
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 32,
    thread_free: 40,
    used: field(24, 32),
    block_bytes: field(28, 32),
    heaps: [48, 48],
    start: FirstBlock::Offset,
    has_thread: false,
    queue: Some(QueueFields { flags: 14, next: 56 }),
    arena: None,
};
/// CPython's own without a global lock (3.13t and later, `Include/internal/mimalloc`): 2.1.2 with
/// more fields at the end.
pub const PAGE_CPYTHON: PageLayout = PageLayout { bytes: 96, ..PAGE_2 };
/// 2.1.4 to 2.4, and CPython's own 2.5.2 with a global lock.
pub const PAGE_2_1_4: PageLayout = PageLayout {
    bytes: 96,
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 24,
    thread_free: 56,
    used: field(32, 16),
    block_bytes: field(40, 64),
    heaps: [64, 64],
    start: FirstBlock::Field(48),
    has_thread: false,
    queue: Some(QueueFields { flags: 14, next: 72 }),
    arena: None,
};
/// CPython's own of later 3.14t: 2.5.2 with more fields at the end.
pub const PAGE_CPYTHON_2_5: PageLayout = PageLayout { bytes: 112, ..PAGE_2_1_4 };
/// 3.0 to 3.3.
pub const PAGE_3: PageLayout = PageLayout {
    bytes: 120,
    capacity: 18,
    reserved: 20,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: field(16, 16),
    block_bytes: field(40, 64),
    heaps: [56, 64],
    start: FirstBlock::Field(48),
    has_thread: true,
    queue: None,
    arena: Some(96),
};
/// 3.4.
pub const PAGE_3_4: PageLayout =
    PageLayout { bytes: 112, start: FirstBlock::Words(48), arena: Some(88), ..PAGE_3 };

/// The lists of free blocks of a page: the address of the first block of each; 0 if it is empty.
/// The first word of each block in a list is the address of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeLists {
    /// `free`: the blocks that its thread hands out next.
    pub free: u64,
    /// `local_free`: blocks that its own thread freed since it began to hand out those of `free`.
    pub local_free: u64,
    /// `xthread_free`, without the state in its low bits: blocks that other threads freed.
    pub thread_free: u64,
}

impl FreeLists {
    /// The first blocks of all lists.
    pub fn first_blocks(self) -> [u64; 3] {
        [self.free, self.local_free, self.thread_free]
    }
}

/// The fields of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWords {
    /// Number of blocks that were initialised.
    pub capacity: u64,
    /// Number of blocks that fit.
    pub reserved: u64,
    /// Number of initialised blocks that are not in its `free` and `local_free` lists. Those that
    /// other threads freed count as used until its thread collects them.
    pub used: u64,
    /// Bytes of a block; 0 if there is no page; `u64::MAX` if its field cannot hold it (the block
    /// is as large as the area).
    pub block_bytes: u64,
    /// Its lists of free blocks.
    pub lists: FreeLists,
    /// The heaps that it belongs to, its thread's and another; 0 if none.
    pub heaps: [u64; 2],
    /// Address of its first block, if a field holds that.
    pub start: Option<u64>,
    /// The thread that it belongs to; `None` if it belongs to none, or if no field holds that
    /// (before 3.x).
    pub thread: Option<u64>,
    /// Its memory according to its arena.
    pub slices: Option<AddressRange>,
    /// Address of its structure.
    pub structure: u64,
    /// The next structure in its heap's queue.
    pub next: Option<u64>,
    /// The previous structure in that queue.
    pub previous: Option<u64>,
    /// Whether it is in the queue of full pages.
    pub is_full: bool,
    /// Whether its heap keeps it for a time although it is empty.
    pub is_retired: bool,
}

impl PageWords {
    /// Number of blocks in its `free` and `local_free` lists; `None` if the fields contradict each
    /// other.
    pub fn free_count(&self) -> Option<u64> {
        self.capacity.checked_sub(self.used)
    }

    /// The heap of its thread, or 0 if the page belongs to no thread. In 3.0 and 3.1 this word is
    /// no pointer to a heap.
    pub fn thread_heap(&self) -> u64 {
        self.heaps[0]
    }
}

impl PageLayout {
    /// Whether the segment uses the page of this structure: `segment_in_use`, the first bit of the
    /// second byte (1.x).
    pub fn is_in_use(structure: &[u8]) -> bool {
        structure.get(1).is_some_and(|flags| flags & 1 != 0)
    }

    /// Parses the structure of a page at `address`; `None` if bytes are missing.
    pub fn read(&self, bytes: &[u8], address: u64) -> Option<PageWords> {
        let half = |at: usize| half_word_at(bytes, at).map(u64::from);
        let sized = |field: SizedField| match field.bits {
            16 => half(field.offset).map(|word| word & 0xffff),
            32 => half(field.offset),
            _ => word_at(bytes, field.offset),
        };
        let start = match self.start {
            FirstBlock::Field(at) => Some(word_at(bytes, at)?),
            FirstBlock::Words(at) => Some(address.checked_add(8 * half(at)?)?),
            FirstBlock::FirstAligned | FirstBlock::Offset => None,
        };
        let non_zero = |word: u64| Some(word).filter(|&word| word != 0);
        let block_bytes = sized(self.block_bytes)?;
        let (flags, next, previous) = match self.queue {
            Some(QueueFields { flags, next }) => {
                (half(flags)?, word_at(bytes, next)?, word_at(bytes, next + 8)?)
            }
            None => (0, 0, 0),
        };
        let slices = |at: usize| {
            let (first, count) = (half(at + 8)?, half(at + 12)?);
            Some(AddressRange::sized(
                word_at(bytes, at)?.checked_add(first * SLICE_BYTES)?,
                count * SLICE_BYTES,
            ))
        };
        Some(PageWords {
            slices: self.arena.and_then(slices),
            structure: address,
            next: non_zero(next),
            previous: non_zero(previous),
            is_full: flags & IN_FULL != 0,
            is_retired: flags & RETIRE_EXPIRE != 0,
            capacity: half(self.capacity)? & 0xffff,
            reserved: half(self.reserved)? & 0xffff,
            used: sized(self.used)?,
            // A field of 32 bits does not hold the size of a huge block: it is that of the area.
            block_bytes: if self.block_bytes.bits == 32 && block_bytes >= HUGE_BLOCK_BYTES {
                u64::MAX
            } else {
                block_bytes
            },
            lists: FreeLists {
                free: word_at(bytes, self.free)?,
                local_free: word_at(bytes, self.local_free)?,
                thread_free: word_at(bytes, self.thread_free)? & !7,
            },
            heaps: [word_at(bytes, self.heaps[0])?, word_at(bytes, self.heaps[1])?],
            start,
            thread: if self.has_thread { non_zero(word_at(bytes, 0)? & !7) } else { None },
        })
    }
}

/// Offset of the first block in the area of a page of 2.0 to 2.1.2, by the size of its blocks
/// (`segment.c`); 128 is `MI_MAX_ALIGN_GUARANTEE`, and 384 three times that.
pub static FIRST_BLOCK_OFFSETS: [fn(u64) -> u64; 4] = [
    // 2.0.0 to 2.0.2.
    |_| 0,
    // 2.0.3 to 2.0.7.
    |bytes| if (8..=1024).contains(&bytes) { 128 } else { 0 },
    // 2.0.9.
    |bytes| if (8..=1024).contains(&bytes) { 384 } else { 0 },
    // 2.1.0 to 2.1.2.
    |bytes| match bytes {
        8..=64 => 3 * bytes,
        65..=512 => bytes,
        _ => 0,
    },
];

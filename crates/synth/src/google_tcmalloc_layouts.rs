//! Size classes of github.com/google/tcmalloc, and the layouts of some of its commits.
//!
//! Written from the headers of that repository, independently of the reader that it tests.

use crate::tcmalloc::{SizeClass, size_class};

/// Size classes in use; number 0 is for spans that are one block.
pub const CLASSES: [SizeClass; 24] = [
    size_class(0, 0),
    size_class(8, 1),
    size_class(16, 1),
    size_class(24, 1),
    size_class(32, 1),
    size_class(64, 1),
    size_class(80, 1),
    size_class(128, 1),
    size_class(256, 1),
    size_class(512, 1),
    size_class(768, 1),
    size_class(1024, 1),
    size_class(1536, 3),
    size_class(2048, 2),
    size_class(3072, 3),
    size_class(4096, 1),
    size_class(6144, 3),
    size_class(8192, 1),
    size_class(16384, 2),
    size_class(32768, 4),
    size_class(65536, 8),
    size_class(98304, 12),
    size_class(131_072, 16),
    size_class(262_144, 32),
];
/// Classes of a partition (`kNumBaseClasses`).
pub const BASE_CLASSES: u64 = 86;

/// Layout of a commit.
pub struct Commit {
    /// Number of partitions: normal ones, and a cold one.
    pub partitions: u64,
    /// Bit of `is_large_span_` in a span's word at 24; `sampled_` follows it.
    pub large_bit: u64,
    /// Offset of the word that holds a small span's number of pages, and the lowest bit of the
    /// number.
    pub small_pages_word: u64,
    pub small_pages_bit: u64,
    /// Offset of `large_or_sampled_state_`.
    pub large_state: u64,
    /// Number of free objects that a span's structure itself can list.
    pub inline_objects: u64,
    /// Offsets in `PageTracker` of the bits for pages in use, and for pages released.
    pub tracker_used: u64,
    pub tracker_released: u64,
    /// `StackTrace`: whether a sample has a proxy.
    pub has_proxy: bool,
    /// Bytes of a lock before the arena's words.
    pub arena_lock_bytes: u64,
    /// Whether the arena has a list of free blocks.
    pub has_arena_list: bool,
    /// Binary logarithm of the pages of a leaf of the page map.
    pub leaf_bits: u64,
    /// Whether a node is between the root and its leaves (`PageMap3`).
    pub has_node: bool,
    /// `TcmallocSlab`: offset of `begins_`.
    pub begins: u64,
}

pub const COMMITS: [Commit; 4] = [
    // 24b3f29b of 2025-06-16
    Commit {
        partitions: 2,
        large_bit: 61,
        small_pages_word: 32,
        small_pages_bit: 0,
        large_state: 32,
        inline_objects: 8,
        tracker_used: 48,
        tracker_released: 88,
        has_proxy: true,
        arena_lock_bytes: 8,
        has_arena_list: false,
        leaf_bits: 15,
        has_node: false,
        begins: 16,
    },
    // 9a55fc48 of 2025-12-15
    Commit {
        partitions: 2,
        large_bit: 60,
        small_pages_word: 32,
        small_pages_bit: 0,
        large_state: 32,
        inline_objects: 8,
        tracker_used: 56,
        tracker_released: 168,
        has_proxy: true,
        arena_lock_bytes: 8,
        has_arena_list: false,
        leaf_bits: 15,
        has_node: false,
        begins: 16,
    },
    // d4298367 of 2025-12-23
    Commit {
        partitions: 2,
        large_bit: 58,
        small_pages_word: 32,
        small_pages_bit: 0,
        large_state: 32,
        inline_objects: 8,
        tracker_used: 56,
        tracker_released: 168,
        has_proxy: true,
        arena_lock_bytes: 8,
        has_arena_list: false,
        leaf_bits: 15,
        has_node: false,
        begins: 16,
    },
    // fce3f55d of 2026-08-21
    Commit {
        partitions: 3,
        large_bit: 35,
        small_pages_word: 24,
        small_pages_bit: 38,
        large_state: 40,
        inline_objects: 12,
        tracker_used: 56,
        tracker_released: 168,
        has_proxy: false,
        arena_lock_bytes: 0,
        has_arena_list: true,
        leaf_bits: 12,
        has_node: true,
        begins: 24,
    },
];

/// Number of commits that can be fabricated.
pub const GOOGLE_LAYOUTS: usize = COMMITS.len();

//! Layouts of jemalloc's structures by version, as data.
//!
//! A layout is recognised by the structures, never by a version string: a build may be stripped,
//! static or renamed. All layouts are of 64-bit builds with pages of 4 KiB and 48-bit addresses;
//! what depends on the quantum is calculated (`sizes.rs`).

use super::sizes::SizeClasses;
use crate::radix::MapLayout;

/// Words read of an `extent_t` (5.0 to 5.2) or `edata_t` (5.3): all of it.
pub const EXTENT_WORDS: usize = 16;
/// Offset of the address (`e_addr`).
const ADDRESS: usize = 8;
/// Offset of the size, whole pages; its low twelve bits are a serial number (`e_size_esn`).
const SIZE: usize = 16;
/// Offset of a slab's bitmap; a set bit is a free region (`e_slab_data`; 5.x `bitmap.h`: no tree up
/// to 512 bits).
const BITMAP: usize = 64;

/// The radix tree (`rtree.h`): two levels of 2^18 entries. The root covers 48-bit addresses, half
/// of them the kernel's. Leaves are aligned to cache lines.
pub const PAGE_MAP_LAYOUT: MapLayout = MapLayout {
    page_shift: 12,
    leaf_bits: 18,
    used_root_bytes: 1 << 20,
    leaf_alignment: 64,
    pointer_mask: ENTRY_POINTER,
};
/// Mask of the extent's address in a leaf entry (`rtree.h`, `struct rtree_leaf_elm_s`); extents are
/// aligned to at least 64 bytes. An entry without an address is empty, even if other bits are
/// set (`emap.c`, `emap_deregister_boundary`).
const ENTRY_POINTER: u64 = 0xffff_ffff_ffc0;
/// Position of the size class in a leaf entry.
const ENTRY_CLASS_SHIFT: u32 = 48;
/// Set in the leaf entry of a slab's page.
const ENTRY_SLAB: u64 = 1;
/// Mask of the state in a leaf entry, once shifted; 0 is that of an extent in use.
const ENTRY_STATE_MASK: u64 = 7;

/// Mask in `e_bits` of the index of the extent's arena (`MALLOCX_ARENA_BITS` is 12 in all
/// versions).
const ARENA_MASK: u64 = 0xfff;
/// Position in `e_bits` of the bit of a slab, in all versions.
const SLAB_SHIFT: u32 = 12;
/// Position in `e_bits` of the bit that names the page allocator of an extent
/// (`EDATA_BITS_PAI_SHIFT`, 5.3).
const HUGE_PAGE_SHIFT: u32 = 14;
/// Mask of a size class in `e_bits`, once shifted.
const CLASS_MASK: u64 = 0xff;
/// Mask of the number of free regions of a slab in `e_bits`, once shifted.
const FREE_MASK: u64 = 0x3ff;
/// Mask of the place within a page, in the words of the address and of the size.
const IN_PAGE_MASK: u64 = 4095;

/// Positions of the fields in an extent's first word (`e_bits`), and the size classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Releases with this layout.
    pub releases: &'static str,
    state_shift: u32,
    state_bits: u32,
    class_shift: u32,
    free_shift: u32,
    /// Position of the state in a leaf entry, in versions that store it.
    entry_state_shift: Option<u32>,
    /// Layout of thread caches.
    pub caches: CacheLayout,
    /// The size classes.
    pub classes: SizeClasses,
}

/// Layout of thread caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayout {
    /// 5.0 to 5.2 (`tcache_structs.h`, `cache_bin.h`): a count, and a pointer past the items.
    Counted,
    /// 5.3 (`tcache_slow_t`, `cache_bin_t`): a pointer to the first item, and the low bits of its
    /// value when empty.
    Stacked,
}

/// The layouts: those with a quantum of 8 bytes, then those with the default; each newest first.
pub static LAYOUTS: [Layout; 6] = [
    RELEASES[0].with_classes(SizeClasses::QUANTUM_8),
    RELEASES[1].with_classes(SizeClasses::QUANTUM_8),
    RELEASES[2].with_classes(SizeClasses::QUANTUM_8),
    RELEASES[0],
    RELEASES[1],
    RELEASES[2],
];

/// The layouts of the releases with the default size classes, newest first.
const RELEASES: [Layout; 3] = [
    // 5.3.0, 5.3.1: edata.h
    Layout {
        releases: "5.3",
        state_shift: 17,
        state_bits: 3,
        class_shift: 20,
        free_shift: 28,
        entry_state_shift: Some(2),
        caches: CacheLayout::Stacked,
        classes: SizeClasses::DEFAULT,
    },
    // 5.1.0, 5.2.0, 5.2.1: extent_structs.h
    Layout {
        releases: "5.1, 5.2",
        state_shift: 16,
        state_bits: 2,
        class_shift: 18,
        free_shift: 26,
        entry_state_shift: None,
        caches: CacheLayout::Counted,
        classes: SizeClasses::DEFAULT,
    },
    // 5.0.0, 5.0.1: extent_structs.h, without the bit `dumpable`
    Layout {
        releases: "5.0",
        state_shift: 15,
        state_bits: 2,
        class_shift: 17,
        free_shift: 25,
        entry_state_shift: None,
        caches: CacheLayout::Counted,
        classes: SizeClasses::DEFAULT,
    },
];

/// State of the pages of an extent (`extent_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In use: a slab, or a large allocation.
    Active,
    /// Free, content unchanged.
    Dirty,
    /// Free, released with MADV_FREE.
    Muzzy,
    /// Free, returned to the kernel; only the addresses are kept.
    Retained,
    /// Between two states (5.3).
    Transition,
}

/// The fields of an extent structure.
#[derive(Clone, Copy, Debug)]
pub struct ExtentFields {
    /// `e_bits`.
    pub bits: u64,
    /// `e_addr`: within the first page; a large allocation begins at one of its cache lines.
    pub address: u64,
    /// Size, whole pages.
    pub bytes: u64,
    /// Bitmap of the slab's free regions.
    pub bitmap: [u64; 8],
}

impl ExtentFields {
    /// Takes the fields from the words of an extent structure.
    pub fn new(words: &[u64; EXTENT_WORDS]) -> Self {
        Self {
            bits: words[0],
            address: words[ADDRESS / 8],
            bytes: words[SIZE / 8] & !IN_PAGE_MASK,
            bitmap: std::array::from_fn(|index| words[BITMAP / 8 + index]),
        }
    }

    /// Address of the first page.
    pub fn start(&self) -> u64 {
        self.address & !IN_PAGE_MASK
    }
}

/// Whether the extent with these `e_bits` is a slab.
pub fn is_slab(bits: u64) -> bool {
    bits >> SLAB_SHIFT & 1 != 0
}

/// Index of the arena of the extent with these `e_bits`.
pub fn arena_index(bits: u64) -> u64 {
    bits & ARENA_MASK
}

impl Layout {
    const fn with_classes(self, classes: SizeClasses) -> Self {
        Self { classes, ..self }
    }

    /// State of an extent; `None` if the number is not a state.
    pub fn state(&self, bits: u64) -> Option<State> {
        Some(match bits >> self.state_shift & ((1 << self.state_bits) - 1) {
            0 => State::Active,
            1 => State::Dirty,
            2 => State::Muzzy,
            3 => State::Retained,
            4 | 5 => State::Transition,
            _ => return None,
        })
    }

    /// Index of the size class.
    pub fn class(&self, bits: u64) -> usize {
        (bits >> self.class_shift & CLASS_MASK) as usize
    }

    /// Whether the extent is part of a huge page of jemalloc (`EXTENT_PAI_HPA`), where only pages
    /// in use have an extent. Only 5.3 has huge pages, and only it has a state in an entry; before
    /// 5.3 the bit means something else.
    pub fn is_of_huge_page(&self, bits: u64) -> bool {
        self.entry_state_shift.is_some() && bits >> HUGE_PAGE_SHIFT & 1 != 0
    }

    /// Number of free regions of a slab.
    pub fn free_regions(&self, bits: u64) -> u64 {
        bits >> self.free_shift & FREE_MASK
    }

    /// Whether an extent in use and the leaf entry that led to it agree; `None` if the extent is
    /// not in use, as they then have little in common.
    pub fn agrees_with_entry(&self, entry: u64, extent: &ExtentFields) -> Option<bool> {
        let Some(state) = self.state(extent.bits) else { return Some(false) };
        // While an extent is being freed, one is changed before the other.
        if state != State::Active || self.class(extent.bits) == self.classes.count() {
            return None;
        }
        let has_same_state =
            self.entry_state_shift.is_none_or(|shift| entry >> shift & ENTRY_STATE_MASK == 0);
        let has_same_class = (entry >> ENTRY_CLASS_SHIFT) as usize == self.class(extent.bits);
        let is_entry_of_slab = entry & ENTRY_SLAB != 0;
        Some(
            has_same_state
                && has_same_class
                && is_entry_of_slab == is_slab(extent.bits)
                && (!is_entry_of_slab || self.slab_count_matches_bitmap(extent)),
        )
    }

    /// Whether an extent in use has the size that is usual for its class.
    pub fn fits_class(&self, extent: &ExtentFields) -> bool {
        let class = self.class(extent.bits);
        is_slab(extent.bits) == (class < self.classes.small_count()) && self.classes.fit(class, extent.bytes)
    }

    /// Whether the number of free regions of a slab matches its bitmap.
    pub fn slab_count_matches_bitmap(&self, extent: &ExtentFields) -> bool {
        let regions = self.classes.regions_per_slab(self.class(extent.bits), extent.bytes);
        let Some(regions) = regions else { return false };
        let free_in_word = |(index, word): (usize, &u64)| {
            let used_bits = regions.saturating_sub(64 * index as u64).min(64);
            let mask = if used_bits == 64 { u64::MAX } else { (1 << used_bits) - 1 };
            u64::from((word & mask).count_ones())
        };
        extent.bitmap.iter().enumerate().map(free_in_word).sum::<u64>() == self.free_regions(extent.bits)
    }
}

/// Address of the extent that a leaf entry points to; `None` if it points to none.
pub fn entry_extent(entry: u64) -> Option<u64> {
    Some(entry & ENTRY_POINTER).filter(|&address| address != 0)
}

//! Size classes: calculated from the quantum, as jemalloc does.
//!
//! `sc.c` (from 5.2 on) and `size_classes.sh` (5.0, 5.1) agree: powers of two from 8 up to the
//! quantum, four multiples of the quantum, then four classes per doubling.

use strandline_process::pages::PAGE_BYTES;

/// Maximum regions of a slab: `LG_SLAB_MAXREGS` is 9 with pages of 4 KiB, whatever the quantum.
const MAX_REGIONS: u64 = 512;
/// Binary logarithm of the smallest class (`SC_LG_TINY_MIN`).
const LG_TINY_MIN: u32 = 3;
/// Classes per doubling (`SC_NGROUP`).
const PER_DOUBLING: usize = 4;
/// Binary logarithm of the smallest class that has no slab (`SC_LG_LARGE_MINCLASS`).
const LG_LARGE_MIN: u32 = 14;
/// Binary logarithm of the base of the last group, which has one class less (`SC_LG_BASE_MAX`).
const LG_BASE_MAX: u32 = 62;

/// The size classes of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClasses {
    /// Binary logarithm of the quantum (`LG_QUANTUM`), the alignment of all but the smallest
    /// blocks.
    lg_quantum: u32,
}

impl SizeClasses {
    /// With a quantum of 16 bytes, the default on x86-64.
    pub const DEFAULT: Self = Self { lg_quantum: 4 };
    /// With a quantum of 8 bytes (`configure --with-lg-quantum=3`), as Redis builds it.
    pub const QUANTUM_8: Self = Self { lg_quantum: 3 };

    /// Number of classes below the quantum (`SC_NTINY`).
    const fn tiny_count(self) -> usize {
        (self.lg_quantum - LG_TINY_MIN) as usize
    }

    /// Number of the classes up to four times the quantum.
    const fn first_count(self) -> usize {
        self.tiny_count() + PER_DOUBLING
    }

    /// Binary logarithm of the base of the first group of four classes per doubling
    /// (`SC_LG_FIRST_REGULAR_BASE`).
    const fn lg_first_base(self) -> u32 {
        self.lg_quantum + 2
    }

    /// Number of small size classes, which have slabs: 8 to 14,336 bytes (`SC_NBINS`).
    pub const fn small_count(self) -> usize {
        self.first_count() + PER_DOUBLING * (LG_LARGE_MIN - self.lg_first_base()) as usize - 1
    }

    /// Number of size classes (`SC_NSIZES`); as an index it means no class.
    pub const fn count(self) -> usize {
        self.first_count() + PER_DOUBLING * (LG_BASE_MAX - self.lg_first_base() + 1) as usize - 1
    }

    /// Bytes of a size class; `None` past the last.
    pub fn bytes(self, class: usize) -> Option<u64> {
        let (tiny_count, first_count) = (self.tiny_count(), self.first_count());
        if class < tiny_count {
            return Some(1 << (LG_TINY_MIN as usize + class));
        }
        if class < first_count {
            return Some((class - tiny_count + 1) as u64 * (1 << self.lg_quantum));
        }
        if class >= self.count() {
            return None;
        }
        let (group, step) = ((class - first_count) / PER_DOUBLING, (class - first_count) % PER_DOUBLING);
        let base = 1_u64 << (self.lg_first_base() as usize + group);
        Some(base + base / PER_DOUBLING as u64 * (step as u64 + 1))
    }

    /// Number of regions of a slab of this class; `None` if there is no such slab.
    pub fn regions_per_slab(self, class: usize, slab_bytes: u64) -> Option<u64> {
        let regions = slab_bytes / self.bytes(class).filter(|_| class < self.small_count())?;
        (1..=MAX_REGIONS).contains(&regions).then_some(regions)
    }

    /// Whether extents of this class have this size by default: a slab is the smallest without a
    /// rest (`slab_size`), which `opt.slab_sizes` changes; a large allocation is up to its class
    /// (from 5.3.1 on whole pages), with a page of padding or none.
    pub fn fit(self, class: usize, extent_bytes: u64) -> bool {
        let Some(bytes) = self.bytes(class) else { return false };
        if class < self.small_count() {
            let mut sizes = (1..).map(|pages| pages * PAGE_BYTES).take(2 * PER_DOUBLING);
            return sizes.find(|size| size % bytes == 0) == Some(extent_bytes);
        }
        let smaller_bytes = class.checked_sub(1).and_then(|class| self.bytes(class)).unwrap_or(0);
        extent_bytes > smaller_bytes && extent_bytes <= bytes.saturating_add(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_those_of_the_manual() {
        // jemalloc(3), table 1.
        let classes = SizeClasses::DEFAULT;
        let first: Vec<u64> = (0..16).filter_map(|class| classes.bytes(class)).collect();
        assert_eq!(first, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448]);
        assert_eq!((classes.count(), classes.small_count()), (232, 36));
        assert_eq!(classes.regions_per_slab(0, 4096), Some(512));
        assert_eq!(classes.regions_per_slab(13, 20480), Some(64));
    }

    #[test]
    fn a_quantum_of_8_bytes_has_three_more_classes() {
        // The lines of "3 3 12 2" of size_classes.h, which size_classes.sh of 5.1.0 writes.
        let classes = SizeClasses::QUANTUM_8;
        let first: Vec<u64> = (0..13).filter_map(|class| classes.bytes(class)).collect();
        assert_eq!(first, [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160]);
        assert_eq!((classes.count(), classes.small_count()), (235, 39));
        assert_eq!(classes.regions_per_slab(2, 3 * 4096), Some(512));
        assert!(classes.fit(2, 3 * 4096) && !classes.fit(2, 4096));
    }

    #[test]
    fn the_ends_are_the_same_with_every_quantum() {
        for classes in [SizeClasses::DEFAULT, SizeClasses::QUANTUM_8] {
            let (small_count, count) = (classes.small_count(), classes.count());
            assert_eq!(classes.bytes(small_count - 1), Some(14 << 10));
            assert_eq!(classes.bytes(small_count), Some(16 << 10));
            assert_eq!(classes.bytes(count - 1), Some(7 << 60));
            assert_eq!((classes.bytes(count), classes.bytes(usize::MAX)), (None, None));
            assert_eq!(classes.regions_per_slab(small_count, 16384), None, "large");
            assert!(classes.fit(small_count, 16 << 10) && classes.fit(small_count, 20 << 10));
            assert!(!classes.fit(small_count, 24 << 10) && !classes.fit(count, 4096));
        }
    }
}

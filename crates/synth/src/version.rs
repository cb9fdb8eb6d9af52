//! How each glibc lays out its structures, from malloc.c and arena.c of that release. Independent
//! of the readers' tables: otherwise a mistake in those would not be found.

/// A release of glibc whose heaps can be fabricated (x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 2.31: no safe-linking, heap_info of 32 bytes.
    V2_31,
    /// 2.36: safe-linking, heap_info of 48 bytes, huge page fields in mp_.
    V2_36,
    /// 2.41: as 2.36, with the tcache pointer at another offset from the thread pointer.
    V2_41,
    /// 2.43: no fastbins, 76 tcache bins of 16 that count free slots.
    V2_43,
}

/// All releases.
pub const VERSIONS: [Version; 4] = [Version::V2_31, Version::V2_36, Version::V2_41, Version::V2_43];

/// Offsets of the fields of malloc_par (mp_).
pub(crate) struct ParameterOffsets {
    pub thp_pagesize: Option<u64>,
    pub n_mmaps: u64,
    pub mmapped_mem: u64,
    /// Bytes of all of it.
    pub bytes: u64,
}

impl Version {
    /// Its version number.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_31 => "2.31",
            Self::V2_36 => "2.36",
            Self::V2_41 => "2.41",
            Self::V2_43 => "2.43",
        }
    }

    /// Whether list links of tcache and fastbins are xored with their address (2.32 and later).
    pub fn has_safe_linking(self) -> bool {
        self != Self::V2_31
    }

    /// Whether there are fastbins: up to 2.41 of these releases.
    pub fn has_fastbins(self) -> bool {
        self != Self::V2_43
    }

    /// Offset of top. mutex, flags and have_fastchunks take 12 bytes, aligned to 16, and ten
    /// fastbins 80; 2.43 has mutex and flags only.
    pub(crate) fn top_offset(self) -> u64 {
        if self.has_fastbins() { 0x60 } else { 0x08 }
    }

    /// Offset of fastbinsY, in releases that have it.
    pub(crate) fn fastbins_offset(self) -> u64 {
        0x10
    }

    /// bins[] follows top and last_remainder.
    pub(crate) fn bins_offset(self) -> u64 {
        self.top_offset() + 0x10
    }

    /// The size of malloc_state: 254 words of bins, 16 bytes of binmap, next, next_free,
    /// attached_threads, system_mem, max_system_mem.
    pub fn arena_bytes(self) -> u64 {
        self.bins_offset() + 254 * 8 + 16 + 5 * 8
    }

    /// The size of heap_info.
    pub(crate) fn heap_info_bytes(self) -> u64 {
        // ar_ptr, prev, size, mprotect_size; from 2.35 pagesize and a word of padding
        if self == Self::V2_31 { 0x20 } else { 0x30 }
    }

    /// Number of bins of a tcache.
    pub(crate) fn tcache_bins(self) -> u64 {
        if self == Self::V2_43 { 76 } else { 64 }
    }

    /// Number of chunks that a tcache bin takes.
    pub(crate) fn tcache_fill(self) -> u64 {
        if self == Self::V2_43 { 16 } else { 7 }
    }

    /// Bytes of the chunk that holds a tcache: a 16-bit count and a pointer for each bin, and a
    /// header.
    pub(crate) fn tcache_chunk_bytes(self) -> u64 {
        (self.tcache_bins() * 10 + 8 + 15) & !15
    }

    /// Distance of the tcache pointer below the thread pointer in Debian's build.
    pub(crate) fn tcache_below_thread(self) -> u64 {
        match self {
            Self::V2_31 => 0x50,
            Self::V2_36 => 0x48,
            Self::V2_41 => 0x40,
            Self::V2_43 => 0x60,
        }
    }

    /// Offsets in mp_.
    pub(crate) fn parameters(self) -> ParameterOffsets {
        match self {
            // five words of settings, then four ints
            Self::V2_31 => ParameterOffsets { thp_pagesize: None, n_mmaps: 40, mmapped_mem: 56, bytes: 112 },
            // thp_pagesize, hp_pagesize, hp_flags (int), then four ints and padding
            Self::V2_36 | Self::V2_41 => {
                ParameterOffsets { thp_pagesize: Some(40), n_mmaps: 60, mmapped_mem: 80, bytes: 136 }
            }
            // thp_mode (int and padding) before them
            Self::V2_43 => {
                ParameterOffsets { thp_pagesize: Some(48), n_mmaps: 68, mmapped_mem: 88, bytes: 144 }
            }
        }
    }
}

/// The bin (1 is the unsorted one) of a free chunk of `size` bytes: exact below 1 KiB, then in
/// classes of 64 bytes, 512 bytes, 4 KiB, 32 KiB and 256 KiB.
pub(crate) fn bin_of(size: u64) -> u64 {
    match size {
        0..1024 => size >> 4,
        _ if size >> 6 <= 48 => 48 + (size >> 6),
        _ if size >> 9 <= 20 => 91 + (size >> 9),
        _ if size >> 12 <= 10 => 110 + (size >> 12),
        _ if size >> 15 <= 4 => 119 + (size >> 15),
        _ if size >> 18 <= 2 => 124 + (size >> 18),
        _ => 126,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_seen_in_real_processes() {
        assert_eq!(Version::V2_36.bins_offset(), 0x70);
        assert_eq!(Version::V2_43.bins_offset(), 0x18);
        assert_eq!(Version::V2_36.arena_bytes(), 2200);
        assert_eq!(Version::V2_36.tcache_chunk_bytes(), 0x290);
        assert_eq!(Version::V2_43.tcache_chunk_bytes(), 0x300);
    }

    #[test]
    fn bins_are_in_order_of_size() {
        let bins: Vec<u64> = (2..100_000).map(|sixteenths| bin_of(sixteenths * 16)).collect();
        assert!(bins.is_sorted());
        assert_eq!((bins[0], bin_of(1008), bin_of(1024), bin_of(4096)), (2, 63, 64, 99));
        assert_eq!(bin_of(1 << 40), 126);
    }
}

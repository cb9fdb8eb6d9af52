//! /proc/PID/smaps and smaps_rollup: the kernel's page counts per mapping.
//!
//! The ledger must add up to the `Rss` of smaps. The text is read as a stream from a file that the
//! caller opened, line by line with a length limit, so that a process with a million mappings needs
//! no copy of its text. A size that the kernel does not print is 0, except that parts of Pss are
//! unknown then ([`Counts::has_pss_parts`]): it omits only lines of features that it lacks. A size
//! that overflows makes the line malformed.

use std::io::{self, BufRead, BufReader, Read};

use crate::map::{self, Mapping};
use crate::procfs::kib;

/// Maximum length of a line that is read completely. Names are paths of at most 4 KiB, four times
/// that when escaped.
const MAX_LINE_BYTES: usize = 32 << 10;
/// Size of the buffer. The kernel fills about a page of it per read(2).
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of mappings. The kernel's `vm.max_map_count` is 65,530 unless an administrator
/// raised it.
const MAX_MAPPINGS: usize = 8 << 20;

/// The two-letter flags of the kernel's `show_smap_vma_flags`; the index is the bit in [`VmFlags`].
const FLAGS: [&[u8; 2]; 41] = [
    b"rd", b"wr", b"ex", b"sh", b"mr", b"mw", b"me", b"ms", b"gd", b"pf", b"lo", b"io", b"sr", b"rr", b"dc",
    b"de", b"lf", b"ac", b"nr", b"ht", b"sf", b"nl", b"ar", b"wf", b"dd", b"sd", b"mm", b"hg", b"nh", b"mg",
    b"bt", b"mt", b"um", b"uw", b"ui", b"ss", b"sl", b"dp", b"gu", b"dw", b"dv",
];

/// The set of a mapping's `VmFlags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmFlags(u64);

impl VmFlags {
    /// Parses `rd wr mr …`. Unknown flags are ignored.
    pub fn parse(text: &str) -> Self {
        Self(text.split_ascii_whitespace().fold(0, |set, word| set | Self::bit(word.as_bytes())))
    }

    /// The bit of a two-letter flag; 0 if it is unknown.
    fn bit(flag: &[u8]) -> u64 {
        FLAGS.iter().position(|known| known.as_slice() == flag).map_or(0, |bit| 1 << bit)
    }

    /// The set and this two-letter flag.
    pub fn with(self, flag: &[u8; 2]) -> Self {
        Self(self.0 | Self::bit(flag))
    }

    /// Whether the two-letter flag is in the set: `has(b"ht")`.
    pub fn has(self, flag: &[u8; 2]) -> bool {
        self.0 & Self::bit(flag) != 0
    }

    /// hugetlb memory (`ht`), which Rss does not include.
    pub fn is_hugetlb(self) -> bool {
        self.has(b"ht")
    }

    /// Pages without a `struct page` (`pf`): device memory, the clock pages of the vdso.
    pub fn is_pfn_map(self) -> bool {
        self.has(b"pf")
    }

    /// Device memory (`io`).
    pub fn is_io(self) -> bool {
        self.has(b"io")
    }

    /// Locked in memory (`lo`).
    pub fn is_locked(self) -> bool {
        self.has(b"lo")
    }
}

/// The kernel's counts for one mapping, or for all (`smaps_rollup`). All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rss: resident bytes.
    pub rss_bytes: u64,
    /// Pss: resident bytes, with shared pages divided by the number of sharers.
    pub pss_bytes: u64,
    /// Pss_Anon: the anonymous part of Pss. The parts are only in smaps_rollup (Linux 5.3 and
    /// later): see [`Counts::has_pss_parts`].
    pub pss_anonymous_bytes: u64,
    /// Pss_File: the file part.
    pub pss_file_bytes: u64,
    /// Pss_Shmem: the shared memory part.
    pub pss_shmem_bytes: u64,
    /// Private_Clean: unwritten bytes on pages that no other process maps.
    pub private_clean_bytes: u64,
    /// Private_Dirty: written bytes on pages that no other process maps.
    pub private_dirty_bytes: u64,
    /// Anonymous: resident anonymous bytes, including private copies of file pages.
    pub anonymous_bytes: u64,
    /// Swap: swapped out.
    pub swap_bytes: u64,
    /// LazyFree: resident, released with MADV_FREE.
    pub lazy_free_bytes: u64,
    /// AnonHugePages: in anonymous huge pages mapped as a whole.
    pub anon_huge_bytes: u64,
    /// ShmemPmdMapped: in shared-memory huge pages mapped as a whole.
    pub shmem_pmd_bytes: u64,
    /// FilePmdMapped: in file huge pages mapped as a whole.
    pub file_pmd_bytes: u64,
    /// Private_Hugetlb: hugetlb, not in Rss.
    pub private_hugetlb_bytes: u64,
    /// Shared_Hugetlb: hugetlb, not in Rss.
    pub shared_hugetlb_bytes: u64,
    /// Locked: mlocked.
    pub locked_bytes: u64,
}

/// Implements the functions that name every counter, from its key in smaps and its field.
macro_rules! impl_counters {
    ($($key:literal => $field:ident),* $(,)?) => {
        impl Counts {
            /// The counter of a line of smaps.
            fn counter(&mut self, key: &str) -> Option<&mut u64> {
                Some(match key {
                    $($key => &mut self.$field,)*
                    _ => return None,
                })
            }

            /// Adds another mapping's counts; saturates.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.saturating_add(other.$field);)*
            }
        }
    };
}

impl_counters! {
    "Rss" => rss_bytes,
    "Pss" => pss_bytes,
    "Pss_Anon" => pss_anonymous_bytes,
    "Pss_File" => pss_file_bytes,
    "Pss_Shmem" => pss_shmem_bytes,
    "Private_Clean" => private_clean_bytes,
    "Private_Dirty" => private_dirty_bytes,
    "Anonymous" => anonymous_bytes,
    "Swap" => swap_bytes,
    "LazyFree" => lazy_free_bytes,
    "AnonHugePages" => anon_huge_bytes,
    "ShmemPmdMapped" => shmem_pmd_bytes,
    "FilePmdMapped" => file_pmd_bytes,
    "Private_Hugetlb" => private_hugetlb_bytes,
    "Shared_Hugetlb" => shared_hugetlb_bytes,
    "Locked" => locked_bytes,
}

impl Counts {
    /// Bytes on pages that no other process maps.
    pub fn private_bytes(&self) -> u64 {
        self.private_clean_bytes.saturating_add(self.private_dirty_bytes)
    }

    /// Whether the parts of Pss are known: kernels before 5.3, and smaps itself, print none, and
    /// then all three are 0.
    pub fn has_pss_parts(&self) -> bool {
        let parts = [self.pss_anonymous_bytes, self.pss_file_bytes, self.pss_shmem_bytes];
        self.pss_bytes == 0 || parts.iter().any(|&bytes| bytes > 0)
    }

    /// Both kinds of hugetlb bytes.
    pub fn hugetlb_bytes(&self) -> u64 {
        self.private_hugetlb_bytes.saturating_add(self.shared_hugetlb_bytes)
    }

    /// Bytes in huge pages mapped as a whole, of all three kinds.
    pub fn huge_bytes(&self) -> u64 {
        self.anon_huge_bytes.saturating_add(self.shmem_pmd_bytes).saturating_add(self.file_pmd_bytes)
    }

    /// Sets the counter of a line `key: value`, if there is one; `None` if its value is malformed.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        if let Some(counter) = self.counter(key) {
            *counter = kib(value)?;
        }
        Some(())
    }
}

/// One mapping of /proc/PID/smaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmapsEntry {
    /// The mapping.
    pub mapping: Mapping,
    /// The kernel's counts for it.
    pub counts: Counts,
    /// VmFlags.
    pub flags: VmFlags,
}

/// The parsed smaps of a process.
#[derive(Clone, Debug, Default)]
pub struct Smaps {
    /// The mappings, in address order and without overlap.
    pub entries: Vec<SmapsEntry>,
    /// Number of malformed lines, which are ignored; a malformed header drops its mapping.
    pub bad_lines: usize,
}

impl Smaps {
    /// Reads /proc/PID/smaps from an open file to its end.
    ///
    /// # Errors
    /// Those of reading, and `InvalidData` if there are more than 8 million mappings.
    pub fn read(file: impl Read) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut smaps = Self::default();
        let mut line = Vec::new();
        // Whether the last header was malformed: its fields must not count for the mapping before
        // it.
        let mut is_dropped = false;
        while next_line(&mut reader, &mut line)? {
            if starts_mapping(&line) {
                if smaps.entries.len() >= MAX_MAPPINGS {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "more than 8 million mappings"));
                }
                is_dropped = !smaps.add_mapping(&line);
            } else if !is_dropped {
                smaps.read_field(&line);
            }
        }
        Ok(smaps)
    }

    /// The sum over all mappings.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.entries.iter().for_each(|entry| total.add(&entry.counts));
        total
    }

    /// Adds the mapping of a header line; false if the line is malformed or out of order.
    fn add_mapping(&mut self, line: &[u8]) -> bool {
        let is_in_order =
            |mapping: &Mapping| self.entries.last().is_none_or(|last| last.mapping.end <= mapping.start);
        let Some(mapping) = map::parse_line(line).filter(is_in_order) else {
            self.bad_lines += 1;
            return false;
        };
        self.entries.push(SmapsEntry { mapping, ..SmapsEntry::default() });
        true
    }

    /// Reads a line below a header.
    fn read_field(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let parsed = match (text.split_once(':'), self.entries.last_mut()) {
            (Some(("VmFlags", value)), Some(entry)) => {
                entry.flags = VmFlags::parse(value);
                Some(())
            }
            (Some((key, value)), Some(entry)) => entry.counts.set(key, value),
            _ => None,
        };
        if parsed.is_none() {
            self.bad_lines += 1;
        }
    }
}

/// Reads /proc/PID/smaps_rollup from an open file: the kernel's totals over all mappings.
///
/// # Errors
/// Those of reading, and `InvalidData` if a size is malformed or the text contains no `Rss`.
pub fn read_rollup(file: impl Read) -> io::Result<Counts> {
    let mut reader = BufReader::new(file);
    let mut counts = Counts::default();
    let mut line = Vec::new();
    let mut has_rss = false;
    while next_line(&mut reader, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        if let Some((key, value)) = text.split_once(':') {
            let malformed =
                || io::Error::new(io::ErrorKind::InvalidData, "smaps_rollup has a malformed size");
            counts.set(key, value).ok_or_else(malformed)?;
            has_rss |= key == "Rss";
        }
    }
    if has_rss {
        Ok(counts)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "smaps_rollup holds no Rss"))
    }
}

/// Whether a line is the header of a mapping. Fields start with a capital letter, addresses are
/// printed in lowercase hexadecimal, and the kernel escapes newlines in names.
fn starts_mapping(line: &[u8]) -> bool {
    line.first().is_some_and(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// Reads the next line into `line`, without its newline; false at the end. Longer names than
/// [`MAX_LINE_BYTES`] hold are cut.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_read = false;
    loop {
        let available = match reader.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(has_read);
        }
        has_read = true;
        let end = available.iter().position(|&byte| byte == b'\n');
        let piece = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&piece[..piece.len().min(MAX_LINE_BYTES - line.len())]);
        let used = end.map_or(available.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"7f0000000000-7f0000021000 r-xp 00001000 fe:0a 123                  /usr/lib/Rss: 4 kB\n\
        Size:                132 kB\nKernelPageSize:        4 kB\nRss:                  64 kB\n\
        Pss:                  10 kB\nPss_Dirty:            9 kB\nAnonymous:            12 kB\n\
        LazyFree:              4 kB\nAnonHugePages:         0 kB\nSwap:                  8 kB\nSwapPss:  1 kB\n\
        Locked:                0 kB\nTHPeligible:           0\nVmFlags: rd ex mr mw me zz \n\
        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nRss:                   4 kB\n\
        7f0000200000-7f0000400000 rw-p 00000000 00:0f 7                          /anon_hugepage (deleted)\n\
        KernelPageSize:     2048 kB\nRss:                   0 kB\nPrivate_Hugetlb:    2048 kB\nVmFlags: rd wr mr ht \n";

    #[test]
    fn fields_go_to_their_mapping() {
        let smaps = Smaps::read(TEXT).unwrap();
        assert_eq!(smaps.entries.len(), 2);
        assert_eq!(smaps.bad_lines, 1, "the overlapping mapping, whose fields are not counted");
        let first = &smaps.entries[0];
        assert_eq!(first.mapping.name, "/usr/lib/Rss: 4 kB");
        assert_eq!(first.counts.rss_bytes, 65536);
        assert_eq!((first.counts.pss_bytes, first.counts.anonymous_bytes), (10240, 12288));
        assert_eq!((first.counts.swap_bytes, first.counts.lazy_free_bytes), (8192, 4096));
        assert!(first.flags.has(b"ex") && first.flags.has(b"me") && !first.flags.is_hugetlb());
        let huge = &smaps.entries[1];
        assert!(huge.flags.is_hugetlb());
        assert_eq!(huge.counts.hugetlb_bytes(), 2 << 20);
        assert_eq!(smaps.total().rss_bytes, 65536);
    }

    #[test]
    fn a_size_that_overflows_is_a_bad_line() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nRss: 99999999999999999 kB\nPss: x kB\n";
        let smaps = Smaps::read(text.as_slice()).unwrap();
        assert_eq!((smaps.bad_lines, smaps.entries[0].counts.rss_bytes), (2, 0));
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let text = std::io::repeat(b'a').take(10 << 20);
        let smaps = Smaps::read(text).unwrap();
        assert_eq!((smaps.entries.len(), smaps.bad_lines), (0, 1));
    }

    #[test]
    fn known_flags_are_distinct() {
        for flag in FLAGS {
            assert_eq!(FLAGS.iter().filter(|other| *other == &flag).count(), 1, "{flag:?}");
            assert!(VmFlags::parse(std::str::from_utf8(flag).unwrap()).has(flag));
        }
    }

    #[test]
    fn a_rollup_is_one_set_of_counts() {
        let own = std::fs::File::open("/proc/self/smaps_rollup").unwrap();
        assert!(read_rollup(own).unwrap().rss_bytes > 0);
        assert!(read_rollup(b"nothing".as_slice()).is_err());
        assert!(read_rollup(b"Rss: 4 kB\nUnknown: x\n".as_slice()).is_ok());
        assert!(read_rollup(b"Rss: 4 kB\nPss: x kB\n".as_slice()).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..4000)) {
            Smaps::read(text.as_slice()).unwrap();
            let _ = read_rollup(text.as_slice());
        }

        #[test]
        fn random_lines_never_panic(
            lines in proptest::collection::vec("(Rss|Pss|VmFlags|[0-9a-f]{1,17}-[0-9a-f]{1,17})[: ]\\PC{0,40}", 0..40),
        ) {
            Smaps::read(lines.join("\n").as_bytes()).unwrap();
        }

        #[test]
        fn generated_text_reads_back(
            spaces in proptest::collection::vec((1u64..1000, 1u64..1000, 0u64..1 << 40, 0u64..1 << 40), 0..20),
        ) {
            let mut text = String::new();
            let mut at = 0x1000u64;
            let mut sum = 0;
            for (gap, pages, rss, anonymous) in &spaces {
                let start = at + gap * 4096;
                at = start + pages * 4096;
                text += &format!("{start:x}-{at:x} rw-p 00000000 00:00 0 \nRss: {rss:>17} kB\n");
                text += &format!("Anonymous: {anonymous:>12} kB\nVmFlags: rd wr ac \n");
                sum += rss * 1024;
            }
            let smaps = Smaps::read(text.as_bytes()).unwrap();
            prop_assert_eq!(smaps.bad_lines, 0);
            prop_assert_eq!(smaps.entries.len(), spaces.len());
            prop_assert_eq!(smaps.total().rss_bytes, sum);
            prop_assert!(smaps.entries.iter().all(|entry| entry.flags.has(b"ac")));
        }
    }
}

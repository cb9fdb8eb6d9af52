//! The address space: the mappings of a process as listed in /proc/PID/maps.
//!
//! The kernel writes the text, but the target chooses the names in it: they are kept as text and
//! only followed as paths through /proc/PID/root or map_files.

use std::collections::HashMap;
use std::fmt::Write;

use crate::memory_spans::MemorySpans;
use crate::modules;
use crate::range::AddressRange;

/// Suffix that the kernel adds to the name of a file without a path.
pub const DELETED_SUFFIX: &str = " (deleted)";

/// The last part of a path, without the kernel's ` (deleted)`.
pub fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(DELETED_SUFFIX).unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// Access permissions of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
    /// `s` rather than `p`
    pub shared: bool,
}

impl std::fmt::Display for Permissions {
    /// Formats them as in maps: `rw-p`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter_or_dash = |is_set: bool, letter: char| if is_set { letter } else { '-' };
        f.write_char(letter_or_dash(self.read, 'r'))?;
        f.write_char(letter_or_dash(self.write, 'w'))?;
        f.write_char(letter_or_dash(self.execute, 'x'))?;
        f.write_char(if self.shared { 's' } else { 'p' })
    }
}

/// The number of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Its driver; 0 for a file system without a device (tmpfs, overlay, NFS).
    pub major: u32,
    /// Its number within the driver, or that of the file system.
    pub minor: u32,
}

/// Identifies a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Its device, as maps has it.
    pub device: DeviceNumber,
    /// Its inode.
    pub inode: u64,
}

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// Its access permissions.
    pub permissions: Permissions,
    /// Offset into the file.
    pub offset: u64,
    /// Device of the file.
    pub device: DeviceNumber,
    /// Inode of the file; 0 without a file.
    pub inode: u64,
    /// Path or kernel name (`[heap]`, `[stack]`), as the kernel printed it; empty if anonymous.
    pub name: String,
}

impl Mapping {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether `address` is in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Whether a file (including shared memory) backs it.
    pub fn has_file(&self) -> bool {
        self.inode != 0
    }

    /// Identifies its file.
    pub fn file_id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }

    /// The last part of its name: see [`file_name`].
    pub fn file_name(&self) -> &str {
        file_name(&self.name)
    }

    /// Whether it is private memory without a file: `[heap]`, `[stack]`, `[anon:…]` or unnamed.
    pub fn is_private_anonymous(&self) -> bool {
        !self.has_file()
            && !self.permissions.shared
            && (self.name.is_empty()
                || self.name == "[heap]"
                || self.name.starts_with("[stack")
                || self.name.starts_with("[anon:"))
    }
}

/// The mappings of a process, in address order and without overlap.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
    /// The lengths of programs and libraries, as far as they are known.
    spans: MemorySpans,
    /// The part that is bss of each anonymous mapping that extends past the program or library
    /// before it, by the mapping's start; `None` if no part is: see [`MemorySpans::bss`].
    bss: HashMap<u64, Option<Mapping>>,
}

impl AddressSpace {
    /// Parses the text of /proc/PID/maps. Malformed lines, and lines that overlap or are out of
    /// address order, are skipped and counted.
    pub fn parse(text: &[u8]) -> (Self, usize) {
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let mut unparsed = 0;
        let parsed = lines.filter_map(|line| {
            let mapping = parse_line(line);
            unparsed += usize::from(mapping.is_none());
            mapping
        });
        let (space, misplaced) = Self::from_mappings(parsed);
        (space, misplaced + unparsed)
    }

    /// Takes mappings in address order; those that are empty, overlap or are out of order are
    /// skipped and counted.
    pub fn from_mappings(candidates: impl IntoIterator<Item = Mapping>) -> (Self, usize) {
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut skipped = 0;
        for mapping in candidates {
            let is_in_order = mappings.last().is_none_or(|last| last.end <= mapping.start);
            if is_in_order && mapping.start < mapping.end {
                mappings.push(mapping);
            } else {
                skipped += 1;
            }
        }
        (Self { mappings, ..Self::default() }, skipped)
    }

    /// Sets the lengths of its programs and libraries, by which [`modules`] finds the end of each
    /// bss.
    pub fn set_spans(&mut self, spans: MemorySpans) {
        self.bss = spans.bss(&modules::groups_with_following_memory(&self.mappings));
        self.spans = spans;
    }

    /// The lengths of programs and libraries that are known.
    pub fn spans(&self) -> &MemorySpans {
        &self.spans
    }

    /// The part of an anonymous mapping that is bss of the program or library before it: all of it
    /// if the length of that is unknown, `None` if nothing is. Any other mapping is returned whole.
    pub(crate) fn bss_of<'a>(&'a self, mapping: &'a Mapping) -> Option<&'a Mapping> {
        match self.bss.get(&mapping.start) {
            Some(bss) => bss.as_ref(),
            None => Some(mapping),
        }
    }

    /// All mappings, in address order.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.contains(address))
    }
}

/// Parses `START-END PERMS OFFSET MAJOR:MINOR INODE NAME` (proc(5)); `None` if it is malformed.
pub(crate) fn parse_line(line: &[u8]) -> Option<Mapping> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let permissions = fields.next()?.as_bytes();
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let hex_32 = |text| u32::from_str_radix(text, 16).ok();
    let inode = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or("").trim_start_matches(' ').to_owned();
    if start >= end || permissions.len() != 4 {
        return None;
    }
    Some(Mapping {
        start,
        end,
        permissions: Permissions {
            read: permissions[0] == b'r',
            write: permissions[1] == b'w',
            execute: permissions[2] == b'x',
            shared: permissions[3] == b's',
        },
        offset,
        device: DeviceNumber { major: hex_32(major)?, minor: hex_32(minor)? },
        inode,
        name,
    })
}

/// A number as maps has it, without a prefix.
fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"55d0c0de0000-55d0c0e00000 rw-p 00000000 00:00 0                          [heap]\n\
        7f0000000000-7f0000021000 r-xp 00001000 fe:0a 123                        /usr/lib/a b.so (deleted)\n\
        rubbish\n\
        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
        7f0000030000-7f0000031000 rw-s 00000000 00:01 7                          /dev/zero (deleted)\n";

    #[test]
    fn lines_become_mappings_and_bad_ones_are_counted() {
        let (space, bad) = AddressSpace::parse(TEXT);
        assert_eq!(bad, 2, "the rubbish and the overlapping line");
        assert_eq!(space.mappings().len(), 3);
        let heap = space.find(0x55d0_c0de_0010).unwrap();
        assert!(heap.is_private_anonymous());
        let file = space.find(0x7f00_0000_0000).unwrap();
        assert_eq!((file.name.as_str(), file.file_name()), ("/usr/lib/a b.so (deleted)", "a b.so"));
        assert_eq!(file.device, DeviceNumber { major: 0xfe, minor: 0x0a });
        assert!(file.permissions.execute && !file.permissions.write);
        assert!(space.find(0x7f00_0003_0000).unwrap().permissions.shared);
        assert!(space.find(0x7f00_0002_1000).is_none());
    }

    #[test]
    fn mappings_that_are_empty_or_end_before_their_start_are_skipped() {
        let mapping = |start, end| Mapping { start, end, ..Mapping::default() };
        let all = [mapping(0x1000, 0x1000), mapping(0x3000, 0x2000), mapping(0x3000, 0x4000)];
        let (space, bad) = AddressSpace::from_mappings(all);
        assert_eq!((space.mappings(), bad), ([mapping(0x3000, 0x4000)].as_slice(), 2));
    }
}

//! Who may hold a process's pages behind its back: devices, rings shared with the kernel, locks.
//!
//! A page that such a holder writes to must not be given back: it would go on writing to the old
//! one. There is no list of them, so this is one of what is known, and it errs on the side of "held".

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;

use crate::error::Result;
use crate::map::{self, AddressSpace, Mapping};
use crate::procfs::Process;

/// The most descriptors that are looked at.
const MOST_DESCRIPTORS: usize = 1 << 20;
/// The most of /proc/PID/smaps that is read.
const MOST_SMAPS_BYTES: u64 = 256 << 20;
/// Beginnings of what a descriptor's link or a mapping's name says.
const HOLDERS: [(&str, &str); 14] = [
    ("anon_inode:[io_uring", "io_uring"),
    ("/[aio]", "kernel AIO"),
    ("/dev/infiniband", "RDMA"),
    ("anon_inode:[infinibandevent]", "RDMA"),
    ("/dev/vfio", "vfio"),
    ("anon_inode:[vfio", "vfio"),
    ("/dev/kvm", "KVM"),
    ("anon_inode:kvm", "KVM"),
    ("/dev/nvidia", "a GPU"),
    ("/dev/dri", "a GPU"),
    ("/dev/kfd", "a GPU"),
    ("/dev/uio", "a user-space driver"),
    ("/dev/vhost", "vhost"),
    ("anon_inode:[userfaultfd]", "userfaultfd"),
];
/// Flags of a mapping (VmFlags of smaps) of which no page is given back: locked; memory of a device;
/// raw page frames; mixed; huge pages of their own; watched by userfaultfd.
const KEPT_FLAGS: [(&str, &str); 8] = [
    ("lo", "locked in memory"),
    ("io", "a device's memory"),
    ("pf", "raw page frames"),
    ("mm", "mixed with raw page frames"),
    ("ht", "huge pages of their own"),
    ("um", "watched by userfaultfd"),
    ("uw", "watched by userfaultfd"),
    ("ui", "watched by userfaultfd"),
];

/// What holds pages of `process` for its own use, if anything; for a message.
pub(crate) fn of_process(process: &Process, space: &AddressSpace) -> Result<Option<String>> {
    let failed = |source| process.error("fd", source);
    for entry in std::fs::read_dir(process.path("fd")).map_err(failed)?.take(MOST_DESCRIPTORS) {
        // A descriptor that is closed meanwhile holds nothing through this process's table.
        let Ok(link) = std::fs::read_link(entry.map_err(failed)?.path()) else { continue };
        if let Some(holder) = named(&link.to_string_lossy()) {
            return Ok(Some(format!("a descriptor of {holder}")));
        }
    }
    Ok(space.mappings().iter().find_map(|mapping| {
        let holder = named(&mapping.name)?;
        Some(format!("a mapping of {holder} at {:#x}", mapping.start))
    }))
}

fn named(name: &str) -> Option<&'static str> {
    HOLDERS.iter().find(|(start, _)| name.starts_with(start)).map(|&(_, holder)| holder)
}

/// Why pages of `ranges` must stay, by the mappings that they are in; `None` where nothing is known
/// against it. A range outside of private anonymous memory must stay.
pub(crate) fn of_ranges(process: &Process, ranges: &[Range<u64>]) -> Result<Option<String>> {
    let file = BufReader::new(process.open_file("smaps")?.take(MOST_SMAPS_BYTES));
    keeper(file, ranges).map_err(|source| process.error("smaps", source))
}

fn keeper(smaps: impl BufRead, ranges: &[Range<u64>]) -> io::Result<Option<String>> {
    let mut covered = 0;
    let mut current: Option<Mapping> = None;
    for line in smaps.split(b'\n') {
        let line = line?;
        // Fields are `Name: value`; a mapping's first word ends with no colon.
        let first = line.split(|&b| b == b' ').next().unwrap_or(&[]);
        if !first.ends_with(b":") {
            current = map::parse_line(&line);
            if let Some(mapping) = &current {
                let overlap = overlap_bytes(mapping, ranges);
                covered += overlap;
                if overlap > 0 && (!mapping.is_private_anonymous() || !mapping.permissions.write) {
                    return Ok(Some(format!(
                        "the mapping at {:#x} is not private anonymous memory",
                        mapping.start
                    )));
                }
            }
        } else if first == b"VmFlags:"
            && let Some(mapping) = &current
            && overlap_bytes(mapping, ranges) > 0
            && let Some(kept) = kept(&line)
        {
            return Ok(Some(format!("the mapping at {:#x} is {kept}", mapping.start)));
        }
    }
    let wanted: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
    Ok((covered != wanted).then(|| "some of the ranges are not mapped, or overlap".into()))
}

fn kept(line: &[u8]) -> Option<&'static str> {
    let mut flags = line.split(|&b| b == b' ').skip(1);
    flags.find_map(|flag| KEPT_FLAGS.iter().find(|(name, _)| name.as_bytes() == flag).map(|&(_, what)| what))
}

fn overlap_bytes(mapping: &Mapping, ranges: &[Range<u64>]) -> u64 {
    let part = |r: &Range<u64>| r.end.min(mapping.end).saturating_sub(r.start.max(mapping.start));
    ranges.iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"1000-9000 rw-p 00000000 00:00 0 \nRss: 32 kB\nVmFlags: rd wr mr mw me ac \n\
        9000-b000 rw-p 00000000 00:00 0 \nRss: 8 kB\nVmFlags: rd wr mr mw me lo ac \n\
        c000-d000 rw-s 00000000 00:01 7                          /dev/zero (deleted)\nVmFlags: rd wr sh \n";

    fn verdict(range: Range<u64>) -> Option<String> {
        keeper(SMAPS, &[range]).unwrap()
    }

    #[test]
    fn only_plain_private_memory_is_given_back() {
        assert_eq!(verdict(0x1000..0x5000), None);
        assert!(verdict(0x8000..0xa000).unwrap().contains("locked"));
        assert!(verdict(0xc000..0xd000).unwrap().contains("not private"));
        assert!(verdict(0xb000..0xc000).unwrap().contains("not mapped"));
    }

    #[test]
    fn devices_and_rings_are_known_by_name() {
        assert_eq!(named("/dev/nvidiactl"), Some("a GPU"));
        assert_eq!(named("anon_inode:[io_uring]"), Some("io_uring"));
        assert_eq!(named("/dev/null"), None);
        assert_eq!(named("anon_inode:[eventpoll]"), None);
    }
}

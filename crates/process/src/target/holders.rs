//! What may hold pages of a process without its page tables showing it: devices, rings shared with
//! the kernel, locks.
//!
//! A page that such a holder writes to must not be released: the holder would continue writing to
//! the old page. The kernel offers no list of holders, so this one covers the known ones and errs
//! on the side of "held".

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use strandline_sys::capabilities::with_dac_capabilities;
use strandline_sys::files::is_socket_of;
use strandline_sys::process::have_same_descriptors;

use crate::error::Result;
use crate::map::{AddressSpace, Mapping};
use crate::procfs::{MAX_INFO_BYTES, Process};
use crate::smaps::{Smaps, SmapsEntry};
use crate::target::tracee::ESRCH;

/// Maximum number of descriptors checked.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// A kind of holder.
struct Holder {
    name: &'static str,
    /// How links of its descriptors, or names of its mappings, begin.
    prefixes: &'static [&'static str],
}

const HOLDERS: [Holder; 9] = [
    Holder { name: "io_uring", prefixes: &["anon_inode:[io_uring"] },
    Holder { name: "kernel AIO", prefixes: &["/[aio]"] },
    Holder { name: "RDMA", prefixes: &["/dev/infiniband", "anon_inode:[infinibandevent]"] },
    Holder { name: "vfio", prefixes: &["/dev/vfio", "/dev/iommu", "anon_inode:[vfio"] },
    Holder { name: "KVM", prefixes: &["/dev/kvm", "anon_inode:kvm"] },
    Holder { name: "a GPU", prefixes: &["/dev/nvidia", "/dev/dri", "/dev/kfd"] },
    Holder { name: "a user-space driver", prefixes: &["/dev/uio"] },
    Holder { name: "vhost", prefixes: &["/dev/vhost"] },
    Holder { name: "userfaultfd", prefixes: &["anon_inode:[userfaultfd]"] },
];

/// VmFlags of smaps that exclude a mapping from releasing pages, with the reason as text.
const KEPT_FLAGS: [(&[u8; 2], &str); 8] = [
    (b"lo", "locked in memory"),
    (b"io", "a device's memory"),
    (b"pf", "raw page frames"),
    (b"mm", "mixed with raw page frames"),
    (b"ht", "huge pages of their own"),
    (b"um", "watched by userfaultfd"),
    (b"uw", "watched by userfaultfd"),
    (b"ui", "watched by userfaultfd"),
];

/// A holder of pages of `process`, if there is one, as text for a message.
///
/// # Errors
/// Fails if the process has ended or may not be inspected.
pub fn find(process: &Process, space: &AddressSpace) -> Result<Option<String>> {
    find_except(process, space, &[])
}

/// Like [`find`], ignoring the holders in `harmless`.
///
/// # Errors
/// As [`find`].
pub fn find_except(process: &Process, space: &AddressSpace, harmless: &[&str]) -> Result<Option<String>> {
    let holder_of = |name: &str| holder_named(name).filter(|holder| !harmless.contains(holder));
    // A process that receives from a socket of AF_XDP has mapped the socket's rings
    // (net/xdp/xsk.c).
    let has_rings = space.mappings().iter().any(|mapping| mapping.name.starts_with("socket:"));
    let mut holder_text = None;
    let all_checked = each_descriptor(process, "fd", &mut |path| {
        // It was closed meanwhile, so it holds nothing through this process's table, or its path is
        // too long for a device's. Where links are refused (EACCES), reading the memory is too.
        let Ok(link) = with_dac_capabilities(|| std::fs::read_link(path)) else { return true };
        let link = link.to_string_lossy();
        // Packets are received into the process's own memory, which the kernel does not count as
        // pinned by it (net/xdp/xdp_umem.c).
        if has_rings && link.starts_with("socket:") && with_dac_capabilities(|| is_socket_of(path, "XDP")) {
            holder_text = Some("a socket of AF_XDP".to_owned());
        } else if let Some(holder) = holder_of(&link) {
            holder_text = Some(format!("a descriptor of {holder}"));
        }
        holder_text.is_none()
    })?;
    if holder_text.is_some() {
        return Ok(holder_text);
    }
    if !all_checked {
        return Ok(Some("too many descriptors to check them all, one perhaps of a device".to_owned()));
    }
    Ok(space.mappings().iter().find_map(|mapping| {
        let holder = holder_of(&mapping.name)?;
        Some(format!("a mapping of {holder} at {:#x}", mapping.start))
    }))
}

/// Passes the files in `folder` (`fd` or `fdinfo`) of the first thread, and of each thread that has
/// or may have descriptors of its own (CLONE_FILES of clone(2)), to `visit` until it returns false.
/// Returns whether all were passed: at most [`MAX_DESCRIPTORS`] are.
fn each_descriptor(process: &Process, folder: &str, visit: &mut dyn FnMut(&Path) -> bool) -> Result<bool> {
    let pid = process.pid();
    let mut count = 0;
    for tid in process.tasks()? {
        // The files of a thread that cannot be compared, as in many containers, are passed too: at
        // worst they are those of the first one again.
        if tid != pid && have_same_descriptors(pid, tid).unwrap_or(false) {
            continue;
        }
        let name = if tid == pid { folder.to_owned() } else { format!("task/{tid}/{folder}") };
        // A thread that is ending has closed its descriptors.
        let has_ended = || tid != pid && !process.task_stat(tid).is_ok_and(|stat| stat.is_alive());
        let entries = match with_dac_capabilities(|| std::fs::read_dir(process.path(&name))) {
            Ok(entries) => entries,
            Err(_) if has_ended() => continue,
            Err(source) => return Err(process.error(&name, source)),
        };
        for entry in entries {
            count += 1;
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(_) if has_ended() => break,
                Err(source) => return Err(process.error(&name, source)),
            };
            if count > MAX_DESCRIPTORS || !visit(&path) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// O_DIRECT in the flags of /proc/PID/fdinfo (x86-64).
const O_DIRECT: u64 = 0o40000;
/// The descriptor was closed meanwhile.
const ENOENT: i32 = 2;

/// The mounts of files open for direct I/O, with which devices write to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectMounts {
    /// Their ids.
    pub ids: BTreeSet<u64>,
    /// Whether there may be others: not all files could be checked.
    pub may_lack_others: bool,
}

impl DirectMounts {
    /// Whether no file is open for direct I/O.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && !self.may_lack_others
    }
}

/// Finds the mounts of files that a process has open for direct I/O.
///
/// # Errors
/// Fails if the process has ended or may not be inspected.
pub fn direct_mounts(process: &Process) -> Result<DirectMounts> {
    let mut mounts = DirectMounts::default();
    let all_checked = each_descriptor(process, "fdinfo", &mut |path| {
        let mut text = Vec::new();
        let file = with_dac_capabilities(|| File::open(path));
        if let Err(error) = file.and_then(|file| file.take(MAX_INFO_BYTES).read_to_end(&mut text)) {
            mounts.may_lack_others |= !matches!(error.raw_os_error(), Some(ENOENT | ESRCH));
            return true;
        }
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = field("flags:").and_then(|flags| u64::from_str_radix(flags, 8).ok());
        // Linux >= 3.15 reports the mount.
        let mount_id = field("mnt_id:").and_then(|number| number.parse().ok());
        match (flags, mount_id) {
            (Some(flags), _) if flags & O_DIRECT == 0 => {}
            (Some(_), Some(id)) => {
                mounts.ids.insert(id);
            }
            (Some(_), None) | (None, _) => mounts.may_lack_others = true,
        }
        true
    })?;
    mounts.may_lack_others |= !all_checked;
    Ok(mounts)
}

/// The holder that the name of a descriptor or mapping identifies.
fn holder_named(name: &str) -> Option<&'static str> {
    let is_named = |holder: &&Holder| holder.prefixes.iter().any(|prefix| name.starts_with(prefix));
    HOLDERS.iter().find(is_named).map(|holder| holder.name)
}

/// The reason why pages of `ranges` (in address order) must be kept, from the mappings that contain
/// them; `None` if nothing is known against releasing them. A range outside private anonymous
/// memory must be kept.
///
/// # Errors
/// Fails if smaps cannot be read.
pub fn reason_to_keep(process: &Process, ranges: &[Range<u64>]) -> Result<Option<String>> {
    let smaps = Smaps::read(process.open_file("smaps")?).map_err(|source| process.error("smaps", source))?;
    Ok(reason_in(&smaps.entries, ranges))
}

/// The same as [`reason_to_keep`], from these mappings of the process.
fn reason_in(entries: &[SmapsEntry], ranges: &[Range<u64>]) -> Option<String> {
    let mut covered_bytes = 0;
    for SmapsEntry { mapping, flags, .. } in entries {
        let overlap = overlap_bytes(mapping, ranges);
        if overlap == 0 {
            continue;
        }
        covered_bytes += overlap;
        let start = mapping.start;
        if !mapping.is_private_anonymous() || !mapping.permissions.write {
            return Some(format!("the mapping at {start:#x} is not private anonymous memory"));
        }
        if let Some((_, kept)) = KEPT_FLAGS.iter().find(|(flag, _)| flags.has(flag)) {
            return Some(format!("the mapping at {start:#x} is {kept}"));
        }
    }
    let range_bytes: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
    (covered_bytes != range_bytes)
        .then(|| "some of the ranges are not mapped, or not in address order".into())
}

/// Bytes of `ranges` (in address order) that are in a mapping.
fn overlap_bytes(mapping: &Mapping, ranges: &[Range<u64>]) -> u64 {
    let first_index = ranges.partition_point(|range| range.end <= mapping.start);
    let within = ranges[first_index..].iter().take_while(|range| range.start < mapping.end);
    within.map(|range| range.end.min(mapping.end).saturating_sub(range.start.max(mapping.start))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"1000-9000 rw-p 00000000 00:00 0 \nRss: 32 kB\nVmFlags: rd wr mr mw me ac \n\
        9000-b000 rw-p 00000000 00:00 0 \nRss: 8 kB\nVmFlags: rd wr mr mw me lo ac \n\
        c000-d000 rw-s 00000000 00:01 7                          /dev/zero (deleted)\nVmFlags: rd wr sh \n";

    fn reason_of(range: Range<u64>) -> Option<String> {
        reason_in(&Smaps::read(SMAPS).unwrap().entries, &[range])
    }

    #[test]
    fn only_plain_private_memory_is_given_back() {
        assert_eq!(reason_of(0x1000..0x5000), None);
        assert!(reason_of(0x8000..0xa000).unwrap().contains("locked"));
        assert!(reason_of(0xc000..0xd000).unwrap().contains("not private"));
        assert!(reason_of(0xb000..0xc000).unwrap().contains("not mapped"));
    }

    #[test]
    fn devices_and_rings_are_known_by_name() {
        assert_eq!(holder_named("/dev/nvidiactl"), Some("a GPU"));
        assert_eq!(holder_named("anon_inode:[io_uring]"), Some("io_uring"));
        assert_eq!(holder_named("/dev/null"), None);
        assert_eq!(holder_named("anon_inode:[eventpoll]"), None);
    }
}

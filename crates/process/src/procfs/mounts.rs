//! Which file systems of a process are shared memory. The kernel can swap its pages, as anonymous
//! ones, but not drop them, as those of other files.
//!
//! smaps does not mark shared memory. The device number identifies it: that of a tmpfs mount of the
//! process, or that of the kernel's hidden tmpfs, which holds memfd, SysV segments and shared
//! anonymous memory and whose files have characteristic names.

use std::collections::BTreeSet;

use crate::map::{DeviceNumber, Mapping};

/// The devices of tmpfs mounts.
pub type Devices = BTreeSet<DeviceNumber>;

/// Maximum number of mounts kept: the kernel's own limit (`fs.mount-max`) for a mount namespace.
pub(super) const MAX_MOUNTS: usize = 100_000;

/// The devices of the tmpfs mounts in the text of /proc/PID/mountinfo.
pub fn shared_memory_devices(text: &[u8]) -> Devices {
    // devtmpfs is a tmpfs too, if the kernel has tmpfs at all.
    let is_tmpfs = |mount: &Mount| matches!(mount.kind.as_str(), "tmpfs" | "devtmpfs");
    each_mount(text).filter(is_tmpfs).map(|mount| mount.device).take(MAX_MOUNTS).collect()
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Its id.
    pub id: u64,
    /// The device of its files.
    pub device: DeviceNumber,
    /// Where it is mounted.
    pub point: String,
    /// The type of its file system.
    pub kind: String,
}

/// The mounts in the text of /proc/PID/mountinfo, at most `MAX_MOUNTS`.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    each_mount(text).take(MAX_MOUNTS).collect()
}

fn each_mount(text: &[u8]) -> impl Iterator<Item = Mount> {
    text.split(|&byte| byte == b'\n').filter_map(|line| parse_line(&String::from_utf8_lossy(line)))
}

/// Parses a line `36 35 0:42 / /tmp rw,nosuid shared:1 - tmpfs tmpfs rw`.
fn parse_line(line: &str) -> Option<Mount> {
    // The kernel escapes blanks in paths: ` - ` occurs once, before the type.
    let (mount, kind) = line.split_once(" - ")?;
    let mut words = mount.split(' ');
    let id = words.next()?.parse().ok()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let point = unescaped(words.nth(1)?);
    Some(Mount { id, device, point, kind: kind.split(' ').next()?.to_owned() })
}

/// A path without the kernel's escapes: `\040` for a blank, and so on (proc(5)).
pub fn unescaped(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    // The backslash comes last: it begins the others.
    escapes.into_iter().fold(path.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Whether `mapping` is shared memory: its pages that are not anonymous can be swapped, but not
/// dropped.
pub fn is_shared_memory(mapping: &Mapping, devices: &Devices) -> bool {
    const NAMES: &[&str] = &["/memfd:", "/SYSV", "/dev/zero (deleted)", "[anon_shmem:"];
    devices.contains(&mapping.device) && mapping.has_file()
        || NAMES.iter().any(|name| mapping.name.starts_with(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        23 22 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
        24 22 0:5 / /dev rw shared:2 master:3 - devtmpfs udev rw\n24 22 x:y / /a rw - tmpfs tmpfs rw\n";

    fn device(major: u32, minor: u32) -> DeviceNumber {
        DeviceNumber { major, minor }
    }

    #[test]
    fn types_belong_to_mounts() {
        let mounts = parse(b"22 1 254:0 / / rw shared:1 - ext4 /dev/root rw\n40 22 0:50 / /a\\040b rw - fuse.sshfs me@x rw\nx - y\n");
        let types: Vec<_> = mounts.iter().map(|mount| (mount.id, mount.kind.as_str())).collect();
        assert_eq!(types, [(22, "ext4"), (40, "fuse.sshfs")]);
    }

    #[test]
    fn mounts_have_ids_devices_and_points() {
        let all = parse(b"22 1 254:0 / / rw shared:1 - ext4 /dev/root rw\n40 22 0:50 / /a\\040b\\134c rw - tmpfs x rw\nx y\n");
        assert_eq!((all.len(), all[1].id, all[1].device), (2, 40, device(0, 50)));
        assert_eq!(
            (all[0].point.as_str(), all[1].point.as_str(), all[1].kind.as_str()),
            ("/", "/a b\\c", "tmpfs")
        );
    }

    #[test]
    fn tmpfs_files_and_the_kernels_own_are_shared_memory() {
        let devices = shared_memory_devices(TEXT);
        assert_eq!(devices, Devices::from([device(0, 21), device(0, 5)]));
        let mapping =
            |device, inode, name: &str| Mapping { device, inode, name: name.into(), ..Mapping::default() };
        assert!(is_shared_memory(&mapping(device(0, 21), 3, "/dev/shm/x (deleted)"), &devices));
        assert!(is_shared_memory(&mapping(device(0, 1), 1033, "/memfd:pages (deleted)"), &devices));
        assert!(is_shared_memory(&mapping(device(0, 1), 17, "/dev/zero (deleted)"), &devices));
        assert!(!is_shared_memory(&mapping(device(254, 0), 3, "/usr/lib/libc.so.6"), &devices));
        assert!(!is_shared_memory(&mapping(device(0, 0), 0, "[heap]"), &devices));
    }

    #[test]
    fn own_mounts_are_read() {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        let lines = String::from_utf8_lossy(&text).lines().filter(|line| line.contains(" - tmpfs ")).count();
        assert!(lines == 0 || !shared_memory_devices(&text).is_empty());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..600)) {
            shared_memory_devices(&text);
        }

        #[test]
        fn generated_mounts_read_back(mounts in proptest::collection::btree_map((0u32..9, 0u32..999), any::<bool>(), 0..20)) {
            let text: String = mounts
                .iter()
                .map(|((major, minor), tmpfs)| {
                    let kind = if *tmpfs { "tmpfs" } else { "ext4" };
                    format!("1 2 {major}:{minor} / /a\\040b rw shared:1 - {kind} none rw\n")
                })
                .collect();
            let tmpfs_numbers = mounts.into_iter().filter(|(_, tmpfs)| *tmpfs).map(|(numbers, _)| numbers);
            let expected: Devices = tmpfs_numbers.map(|(major, minor)| device(major, minor)).collect();
            prop_assert_eq!(shared_memory_devices(text.as_bytes()), expected);
        }
    }
}

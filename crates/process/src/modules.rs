//! The programs and libraries that a process has mapped, with their static data.

use std::collections::HashSet;

use crate::map::{AddressSpace, Mapping};

/// The most distinct mapped files that are looked into.
const MAX_FILES: usize = 1024;
/// Of very much static data of a program the first part is looked at.
const MAX_DATA_BYTES: u64 = 64 << 20;

/// A program or library that is mapped.
pub struct Module<'a> {
    /// Its mappings, the anonymous one behind them among these.
    pub mappings: Vec<&'a Mapping>,
    /// The one with its code.
    pub code: &'a Mapping,
    /// Its static data.
    pub data: (u64, u64),
}

/// The programs and libraries that have code and static data, each once.
pub fn all(space: &AddressSpace) -> Vec<Module<'_>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for mappings in groups(space.mappings()) {
        let code = mappings.iter().copied().find(|mapping| mapping.permissions.execute);
        let Some((code, data)) = code.zip(data(&mappings)) else { continue };
        if seen.len() < MAX_FILES && seen.insert((code.device, code.inode)) {
            all.push(Module { mappings, code, data });
        }
    }
    all
}

/// The static data of a program or library.
pub fn data(mappings: &[&Mapping]) -> Option<(u64, u64)> {
    let first = mappings.iter().find(|mapping| mapping.permissions.write)?;
    let end = mappings.last()?.end.min(first.start.saturating_add(MAX_DATA_BYTES));
    Some((first.start, end))
}

/// Consecutive mappings of one file, with the anonymous mapping (bss) that follows a program's without a gap: behind a file of data
/// (locale-archive) stands whatever was mapped there.
pub fn groups(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
    let mut groups: Vec<Vec<&Mapping>> = Vec::new();
    for mapping in mappings {
        let last = groups.last_mut();
        if mapping.has_file() && !mapping.permissions.shared {
            match last {
                Some(group)
                    if group[0].inode == mapping.inode
                        && group[0].device == mapping.device
                        && mapping.offset != 0 =>
                {
                    group.push(mapping);
                }
                _ => groups.push(vec![mapping]),
            }
        } else if let Some(group) = last
            && mapping.is_private_anonymous()
            && mapping.permissions.write
            && !mapping.name.starts_with("[stack")
            && group.last().is_some_and(|before| before.end == mapping.start && before.has_file())
            && group.iter().any(|of_file| of_file.permissions.write || of_file.permissions.execute)
        {
            group.push(mapping);
        }
    }
    groups
}

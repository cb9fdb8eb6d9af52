//! The programs and libraries that a process has mapped, with their static data.

use std::collections::HashSet;

use crate::image::exports;
use crate::map::{AddressSpace, Mapping};
use crate::procfs::Process;
use crate::range::AddressRange;

/// Maximum number of distinct mapped files.
const MAX_FILES: usize = 1024;
/// Maximum bytes of static data per program or library; the rest is ignored.
const MAX_DATA_BYTES: u64 = 64 << 20;

/// A mapped program or library.
pub struct Module<'a> {
    /// The mapping with its code.
    pub code: &'a Mapping,
    /// Its static data.
    pub data: AddressRange,
}

/// All programs and libraries with code and static data, each once.
pub fn all(space: &AddressSpace) -> Vec<Module<'_>> {
    let mut seen = HashSet::new();
    let mut modules = Vec::new();
    for mappings in file_groups(space.mappings()) {
        let code = mappings.iter().copied().find(|mapping| mapping.permissions.execute);
        let Some((code, data)) = code.zip(data(&mappings)) else { continue };
        if seen.len() < MAX_FILES && seen.insert((code.device, code.inode)) {
            modules.push(Module { code, data });
        }
    }
    modules
}

/// The programs and libraries that export one of `names`: each file is read when it is asked for.
pub fn exporting<'a>(
    process: &'a Process,
    space: &'a AddressSpace,
    names: &'a [&'static str],
) -> impl Iterator<Item = Module<'a>> {
    all(space).into_iter().filter(move |module| exports(process, module.code, names))
}

/// The static data of a program or library; `None` if nothing is writable.
pub fn data(mappings: &[&Mapping]) -> Option<AddressRange> {
    let first = mappings.iter().find(|mapping| mapping.permissions.write)?;
    let end = mappings.last()?.end.min(first.start.saturating_add(MAX_DATA_BYTES));
    Some(AddressRange::new(first.start, end))
}

/// Groups consecutive mappings of one file, with the anonymous mapping (bss) that follows those of
/// a program without a gap. A mapping behind a data file (locale-archive) is unrelated and not
/// included.
pub fn file_groups(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
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
            && group.iter().any(|part| part.permissions.write || part.permissions.execute)
        {
            group.push(mapping);
        }
    }
    groups
}

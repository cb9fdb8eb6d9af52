//! The programs and libraries that a process has mapped, with their static data.

use std::collections::HashSet;

use crate::image::exports;
use crate::map::{AddressSpace, Mapping};
use crate::procfs::Process;
use crate::range::AddressRange;

/// Maximum number of programs and libraries: the largest processes map thousands, and readers open
/// each. What a later one contains is not recognised, so that its memory is on the rows of its
/// allocator or mapping.
const MAX_FILES: usize = 8192;
/// Maximum bytes of static data per program or library; what is beyond is not searched.
const MAX_DATA_BYTES: u64 = 64 << 20;

/// A mapped program or library.
pub struct Module<'a> {
    /// The mapping with its code.
    pub code: &'a Mapping,
    /// Its static data.
    pub data: AddressRange,
}

/// The programs and libraries with code and static data, each once; at most `MAX_FILES`.
pub fn all(space: &AddressSpace) -> Vec<Module<'_>> {
    let mut seen_files = HashSet::new();
    let mut modules = Vec::new();
    for mappings in file_groups(space) {
        let code = mappings.iter().copied().find(|mapping| mapping.permissions.execute);
        let Some((code, static_data)) = code.zip(data(&mappings)) else { continue };
        if seen_files.len() < MAX_FILES && seen_files.insert(code.file_id()) {
            modules.push(Module { code, data: static_data });
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
    let start = mappings.iter().find(|mapping| mapping.permissions.write)?.start;
    let end = mappings.last()?.end.min(start.saturating_add(MAX_DATA_BYTES));
    Some(AddressRange::new(start, end))
}

/// Groups consecutive mappings of one file, with its bss: the anonymous mapping that follows those
/// of a program without a gap, up to the end that the headers show ([`AddressSpace::set_spans`]),
/// or all of it if they are not known. A mapping behind a data file (locale-archive) is unrelated
/// and not included.
pub fn file_groups(space: &AddressSpace) -> Vec<Vec<&Mapping>> {
    let groups = groups_with_following_memory(space.mappings()).into_iter();
    groups.map(|group| group.into_iter().filter_map(|mapping| space.bss_of(mapping)).collect()).collect()
}

/// Groups consecutive mappings of one file, each with the whole anonymous mapping that may begin
/// with its bss.
pub(crate) fn groups_with_following_memory(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
    let mut groups: Vec<Vec<&Mapping>> = Vec::new();
    for mapping in mappings {
        let last_group = groups.last_mut();
        if mapping.has_file() && !mapping.permissions.shared {
            match last_group {
                Some(group) if continues_file(group, mapping) => group.push(mapping),
                _ => groups.push(vec![mapping]),
            }
        } else if let Some(group) = last_group
            && may_begin_with_bss(group, mapping)
        {
            group.push(mapping);
        }
    }
    groups
}

/// Whether `mapping` is of the file of `group`, and not the start of another copy of it.
fn continues_file(group: &[&Mapping], mapping: &Mapping) -> bool {
    group.first().is_some_and(|first| first.file_id() == mapping.file_id()) && mapping.offset != 0
}

/// Whether `mapping` is anonymous memory right behind the mappings of a program or library.
fn may_begin_with_bss(group: &[&Mapping], mapping: &Mapping) -> bool {
    let is_writable_memory = mapping.is_private_anonymous() && mapping.permissions.write;
    is_writable_memory
        && !mapping.name.starts_with("[stack")
        && group.last().is_some_and(|before| before.end == mapping.start && before.has_file())
        && group.iter().any(|part| part.permissions.write || part.permissions.execute)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_spans::MemorySpans;

    const MAPS: &[u8] = b"7f0000000000-7f0000001000 r-xp 00000000 fe:01 5 /usr/lib/a.so\n\
        7f0000001000-7f0000002000 rw-p 00001000 fe:01 5 /usr/lib/a.so\n\
        7f0000002000-7f0000009000 rw-p 00000000 00:00 0\n";
    const START: u64 = 0x7f00_0000_0000;

    /// The end of the static data of a library of `span_bytes`, and of its group.
    fn ends(span_bytes: Option<u64>) -> (u64, u64) {
        let (mut space, _) = AddressSpace::parse(MAPS);
        let mut spans = MemorySpans::default();
        if let Some(bytes) = span_bytes {
            spans.set(&space.mappings()[0], bytes);
        }
        space.set_spans(spans);
        assert_eq!(space.mappings().len(), 3, "mappings stay as they are");
        let groups = file_groups(&space);
        let [group] = groups.as_slice() else { panic!("{groups:x?}") };
        let modules = all(&space);
        assert_eq!(modules.len(), 1);
        (modules[0].data.end - START, group.last().unwrap().end - START)
    }

    #[test]
    fn memory_behind_a_library_is_its_bss_as_far_as_its_headers_say() {
        assert_eq!(ends(Some(0x4000)), (0x4000, 0x4000), "an allocator has the rest");
        assert_eq!(ends(Some(0x2000)), (0x2000, 0x2000), "it has no bss");
        assert_eq!(ends(Some(0x9000)), (0x9000, 0x9000));
        assert_eq!(ends(Some(0xa000)), (0x9000, 0x9000), "the kernel lists the rest apart");
        assert_eq!(ends(None), (0x9000, 0x9000), "unknown: all of it");
    }
}

//! The lengths of programs and libraries in memory, by the headers of their files.
//!
//! The kernel joins anonymous mappings that touch: what follows a library in /proc/PID/maps may be
//! its bss, memory that an allocator has mapped there, or both. Only the file shows where the bss
//! ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::image;
use crate::map::{AddressSpace, FileId, Mapping};
use crate::modules;
use crate::namespaces::open_mapped_file;
use crate::procfs::Process;

/// Maximum number of files whose headers are read; others count as unreadable.
const MAX_FILES: usize = 8192;

/// The lengths in memory of programs and libraries in bytes, bss included, by file; `None` for one
/// that could not be read: all anonymous memory right behind it counts as its bss.
#[derive(Clone, Debug, Default)]
pub struct MemorySpans(HashMap<FileId, Option<u64>>);

impl MemorySpans {
    /// Reads the headers of the files that anonymous memory follows. To be called while the process
    /// runs, because a file system may take long to answer.
    pub fn read(process: &Process, space: &AddressSpace) -> Self {
        let mut spans = Self::default();
        for group in modules::file_groups(space) {
            let Some(first) = group.first().filter(|first| first.offset == 0) else { continue };
            if group.iter().all(|mapping| mapping.has_file()) || spans.0.len() >= MAX_FILES {
                continue;
            }
            if let Entry::Vacant(place) = spans.0.entry(first.file_id()) {
                let file = open_mapped_file(process, first).ok();
                place.insert(file.and_then(|file| image::memory_span(&file)));
            }
        }
        spans
    }

    /// Sets the length of the program or library whose first mapping is `first`.
    pub fn set(&mut self, first: &Mapping, bytes: u64) {
        self.0.insert(first.file_id(), Some(bytes));
    }

    /// Where the memory of the program or library ends whose first mapping is `first`; `None` if
    /// unknown.
    pub fn end(&self, first: &Mapping) -> Option<u64> {
        let bytes = (*self.0.get(&first.file_id())?)?;
        first.start.checked_add(bytes).filter(|_| first.offset == 0)
    }

    /// Returns the part that is bss of each anonymous mapping in these groups, by the mapping's
    /// start; `None` if no part is. A mapping that is bss as a whole, or behind a program or
    /// library of unknown length, is left out.
    pub(crate) fn bss(&self, groups: &[Vec<&Mapping>]) -> HashMap<u64, Option<Mapping>> {
        let mut bss_parts = HashMap::new();
        for group in groups {
            let Some(end) = group.first().and_then(|first| self.end(first)) else { continue };
            let behind = group.iter().filter(|mapping| !mapping.has_file() && end < mapping.end);
            bss_parts.extend(behind.map(|&mapping| {
                let bss = (mapping.start < end).then(|| Mapping { end, ..mapping.clone() });
                (mapping.start, bss)
            }));
        }
        bss_parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bss_of_the_system_library_is_short() {
        let process = Process::open(std::process::id() as i32).unwrap();
        let mut space = process.address_space().unwrap();
        let spans = MemorySpans::read(&process, &space);
        space.set_spans(spans);
        let groups = modules::file_groups(&space);
        let libc = groups.iter().find(|group| group[0].name.contains("/libc.so.6")).unwrap();
        let end = space.spans().end(libc[0]).expect("it has bss, and can be read");
        let last_of_file = libc.iter().rfind(|mapping| mapping.has_file()).unwrap();
        assert!((last_of_file.end..last_of_file.end + (1 << 20)).contains(&end), "{end:#x} {libc:x?}");
        assert!(libc.iter().all(|mapping| mapping.end <= end), "{end:#x} {libc:x?}");
    }
}

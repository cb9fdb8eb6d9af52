//! The table of all readers, and of everything that is recognised without being read.
//!
//! `recognise` uses the evidence in it, and the ledger its rows; `doctor --readers` and the README
//! print it. To add a reader, add a folder in `crates/allocators` or `crates/runtimes`, and a line
//! here.

use std::collections::HashMap;
use std::sync::LazyLock;

use strandline_allocators::{
    glibc, google_tcmalloc, jemalloc, mimalloc, musl, named as allocators, tcmalloc,
};
use strandline_claims::reader::ReaderInfo;
use strandline_claims::remedy::{Effect, Spec};
use strandline_claims::rows::{ANONYMOUS, KERNEL_ROWS, RowRef};
use strandline_claims::{allocator, runtime};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_runtimes::{cpython, go, jvm, named as runtimes, perl, sbcl, v8};

/// An entry of the table.
pub struct Entry<R: 'static> {
    /// Name, evidence, versions and rows.
    pub about: &'static ReaderInfo,
    /// The reader; `None` if it is only named.
    pub reader: Option<&'static R>,
}

const fn named<R>(about: &'static ReaderInfo) -> Entry<R> {
    Entry { about, reader: None }
}

/// Allocators, in the order in which their evidence is checked.
pub static ALLOCATORS: &[Entry<allocator::Reader>] = &[
    Entry { about: &glibc::ABOUT, reader: Some(&glibc::READER) },
    Entry { about: &jemalloc::ABOUT, reader: Some(&jemalloc::READER) },
    Entry { about: &tcmalloc::ABOUT, reader: Some(&tcmalloc::READER) },
    Entry { about: &google_tcmalloc::ABOUT, reader: Some(&google_tcmalloc::READER) },
    Entry { about: &mimalloc::ABOUT, reader: Some(&mimalloc::READER) },
    named(&allocators::SNMALLOC),
    named(&allocators::ASAN),
    named(&allocators::BDWGC),
    named(&allocators::GGC),
    named(&allocators::PARTITION_ALLOC),
    Entry { about: &musl::ABOUT, reader: Some(&musl::READER) },
    named(&allocators::RPMALLOC),
    named(&allocators::HOARD),
    named(&allocators::SCUDO),
    named(&allocators::HARDENED_MALLOC),
];

/// Runtimes, in the order in which their evidence is checked.
pub static RUNTIMES: &[Entry<runtime::Reader>] = &[
    Entry { about: &perl::ABOUT, reader: Some(&perl::READER) },
    Entry { about: &sbcl::ABOUT, reader: Some(&sbcl::READER) },
    Entry { about: &go::ABOUT, reader: Some(&go::READER) },
    Entry { about: &cpython::ABOUT, reader: Some(&cpython::READER) },
    named(&runtimes::RUBY),
    named(&runtimes::NODE),
    Entry { about: &v8::ABOUT, reader: Some(&v8::READER) },
    named(&runtimes::BUN),
    named(&runtimes::DENO),
    named(&runtimes::CHROMIUM),
    named(&runtimes::PHP),
    Entry { about: &jvm::ABOUT, reader: Some(&jvm::READER) },
    named(&runtimes::D),
    named(&runtimes::LUAJIT),
    named(&runtimes::LUA),
    named(&runtimes::MONO),
    named(&runtimes::DOTNET),
    named(&runtimes::RACKET),
    named(&runtimes::CHEZ),
    named(&runtimes::ERLANG),
    named(&runtimes::OCAML),
    named(&runtimes::GHC),
    named(&runtimes::GUILE),
    named(&runtimes::R),
    named(&runtimes::SPIDERMONKEY),
    named(&runtimes::JULIA),
    named(&runtimes::ECL),
    named(&runtimes::CLISP),
];

/// Returns all rows that a ledger may have, in the order of documents that refer to rows by number.
pub fn rows() -> impl Iterator<Item = RowRef> {
    let of_allocators = ALLOCATORS.iter().flat_map(|entry| entry.about.rows.iter().copied());
    let of_runtimes = RUNTIMES.iter().flat_map(|entry| entry.about.rows.iter().copied());
    KERNEL_ROWS.iter().copied().chain(of_allocators).chain([&ANONYMOUS]).chain(of_runtimes)
}

/// Returns the index of a row in [`rows`].
pub fn number(id: RowRef) -> usize {
    static NUMBERS: LazyLock<HashMap<&'static str, usize>> =
        LazyLock::new(|| rows().enumerate().map(|(number, row)| (row.id, number)).collect());
    // Bytes on a row that is missing in the table count as unexplained; a test checks the rows of
    // blocks.
    NUMBERS.get(id.id).or_else(|| NUMBERS.get(ANONYMOUS.id)).copied().unwrap_or(0)
}

/// The reader of the runtime `name`.
pub fn runtime_reader(name: &str) -> Option<&'static runtime::Reader> {
    RUNTIMES.iter().find(|entry| entry.about.name == name)?.reader
}

/// All entries of the table.
pub fn all() -> impl Iterator<Item = &'static ReaderInfo> {
    ALLOCATORS.iter().map(|entry| entry.about).chain(RUNTIMES.iter().map(|entry| entry.about))
}

/// Every remedy of the table, with whose it is.
pub fn remedies() -> impl Iterator<Item = (&'static ReaderInfo, &'static Spec)> {
    all().flat_map(|about| about.remedies.iter().map(move |spec| (about, spec)))
}

/// The remedy `id` of the table.
pub fn remedy(id: &str) -> Option<&'static Spec> {
    remedies().map(|(_, spec)| spec).find(|spec| spec.id == id)
}

/// The allocator whose free pages the remedy `id` releases.
pub fn frees_pages_of(id: &str) -> Option<&'static ReaderInfo> {
    let Effect::FreePages(name) = remedy(id)?.effect else { return None };
    allocator(name)
}

/// Returns the allocator with this name.
pub fn allocator(name: &str) -> Option<&'static ReaderInfo> {
    ALLOCATORS.iter().map(|entry| entry.about).find(|about| about.name == name)
}

/// Returns the runtime with this name.
pub fn runtime(name: &str) -> Option<&'static ReaderInfo> {
    RUNTIMES.iter().map(|entry| entry.about).find(|about| about.name == name)
}

/// What the readers found in the files mapped by a process.
#[derive(Default)]
pub struct Found {
    /// The allocators, in the order of their layers.
    pub allocators: Vec<(allocator::Layer, Box<dyn allocator::FoundAllocator>)>,
    /// The runtimes.
    pub runtimes: Vec<Box<dyn runtime::Found>>,
}

impl Found {
    /// Searches the files that `process` has mapped, for runtimes only if `with_runtimes` is set.
    /// The process may be running.
    pub fn find(process: &Process, space: &AddressSpace, with_runtimes: bool) -> Self {
        let mut allocators: Vec<_> = ALLOCATORS.iter().filter_map(|entry| entry.reader).collect();
        allocators.sort_by_key(|reader| reader.layer);
        let runtimes = RUNTIMES.iter().filter(|_| with_runtimes).filter_map(|entry| entry.reader);
        Self {
            allocators: allocators
                .into_iter()
                .filter_map(|reader| Some((reader.layer, (reader.find)(process, space)?)))
                .collect(),
            runtimes: runtimes.filter_map(|reader| (reader.find)(process, space)).collect(),
        }
    }

    /// Whether to copy all memory of the process before reading: if a reader wants that, and none
    /// copies what it needs itself. Reads a few structures at most; the process may be running.
    pub fn wants_copy(&self, memory: &dyn Memory) -> bool {
        let access: Vec<_> = self.runtimes.iter().map(|found| found.access(memory)).collect();
        access.contains(&runtime::Access::Copied) && !access.contains(&runtime::Access::OwnCopy)
    }

    /// Whether a snapshot stops the process for less time than reading all of this.
    pub fn is_slow(&self) -> bool {
        self.runtimes.iter().any(|found| found.takes_long())
            || self.allocators.iter().any(|(_, found)| found.reads_blocks())
    }

    /// Whether a runtime keeps its memory from children.
    pub fn hides_memory(&self) -> bool {
        self.runtimes.iter().any(|found| found.hides_memory_from_children())
    }

    /// Whether a reader uses the threads' pointers, which may be unknown for a thread that is not
    /// stopped.
    pub fn needs_thread_pointers(&self) -> bool {
        self.allocators.iter().any(|(_, found)| found.needs_thread_pointers())
            || self.runtimes.iter().any(|found| found.needs_thread_pointers())
    }

    /// Whether a runtime's own flag marks a collection as under way. Reads what it takes to
    /// find the flag; the process may be running.
    pub fn is_collecting(&self, memory: &dyn Memory) -> bool {
        self.runtimes.iter().any(|found| found.is_collecting(memory))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use strandline_claims::palette::BlockRows;
    use strandline_claims::remedy::Action;

    use super::*;

    #[test]
    fn names_are_given_once_and_rows_go_by_them() {
        let names: HashSet<&str> = all().map(|about| about.name).collect();
        assert_eq!(names.len(), all().count());
        let rows_of: Vec<RowRef> = rows().collect();
        let ids: HashSet<&str> = rows_of.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), rows_of.len(), "no two rows of one name");
        assert!(rows_of.len() <= 256, "pictures number rows with a byte");
        for about in all() {
            for row in about.rows {
                assert!(row.id.starts_with(&format!("{}.", about.name)), "{}", row.id);
            }
        }
        for (place, row) in rows_of.iter().enumerate() {
            assert_eq!(number(row), place);
        }
    }

    #[test]
    fn supported_readers_list_what_they_read() {
        let of_allocators = ALLOCATORS.iter().map(|entry| (entry.about, entry.reader.is_some()));
        let of_runtimes = RUNTIMES.iter().map(|entry| (entry.about, entry.reader.is_some()));
        for (about, is_read) in of_allocators.chain(of_runtimes) {
            assert_eq!(is_read, !about.versions.is_empty(), "{}", about.name);
            assert_eq!(is_read, !about.rows.is_empty(), "{}", about.name);
            if let Some(blocks) = about.blocks {
                let BlockRows { live, header, metadata, cached, releasable, kept, pinned, mapped, unread } =
                    *blocks;
                let all = [live, header, metadata, cached, releasable, kept, pinned, mapped, unread];
                assert!(all.iter().all(|row| about.rows.contains(row)), "{}", about.name);
            }
            assert!(!about.title.is_empty() && !about.not_read.is_empty(), "{}", about.name);
        }
    }

    #[test]
    fn who_is_a_part_of_another_names_one_of_the_table() {
        for whole in all().filter_map(|about| about.part_of) {
            assert!(runtime(whole).is_some(), "{whole}");
        }
    }

    #[test]
    fn remedies_name_allocators_and_calls_are_theirs() {
        for (about, spec) in remedies() {
            if let Effect::FreePages(name) = spec.effect {
                assert!(allocator(name).is_some(), "{}", spec.id);
            }
            let is_own = spec.effect == Effect::FreePages(about.name);
            assert!(is_own || !matches!(spec.action, Action::Call), "{}", spec.id);
        }
    }

    #[test]
    fn files_of_similar_names_are_distinguished() {
        let allocator = |file: &str| {
            let has = |about: &&ReaderInfo| about.evidence.files.iter().any(|name| name.matches(file));
            all().find(has).map(|about| about.name)
        };
        assert_eq!(allocator("libc.so"), Some("musl"));
        assert_eq!(allocator("libc.so.6"), None);
        assert_eq!(allocator("libgc.so.1.5.1"), Some("bdwgc"));
        assert_eq!(allocator("libgcc_s.so.1"), None);
        assert_eq!(allocator("libluajit-5.1.so.2"), Some("luajit"));
    }
}

//! The table of all readers, and of everything that is recognised without being read.
//!
//! `recognise` uses the evidence in it, and the ledger its rows; `doctor --readers` and the README
//! print it. To add a reader, add a folder in `crates/allocators` or `crates/runtimes`, and a line
//! here.

use std::collections::HashMap;
use std::sync::LazyLock;

use strandline_allocators as allocators;
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::reader::ReaderInfo;
use strandline_claims::remedy::{Effect, Spec};
use strandline_claims::rows::{ANONYMOUS, KERNEL_ROWS, RowRef};
use strandline_claims::{allocator, runtime};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_runtimes as runtimes;

/// An entry of the table.
pub struct Entry<R: 'static> {
    /// Name, evidence, versions and rows.
    pub about: &'static ReaderInfo,
    /// The reader; `None` if it is only recognised.
    pub reader: Option<&'static R>,
}

/// An entry with a reader.
const fn read<R>(about: &'static ReaderInfo, reader: &'static R) -> Entry<R> {
    Entry { about, reader: Some(reader) }
}

/// An entry without a reader: its memory is recognised, not read.
const fn named<R>(about: &'static ReaderInfo) -> Entry<R> {
    Entry { about, reader: None }
}

/// Allocators, in the order in which their evidence is checked.
pub static ALLOCATORS: &[Entry<allocator::Reader>] = &[
    read(&allocators::glibc::ABOUT, &allocators::glibc::READER),
    read(&allocators::jemalloc::ABOUT, &allocators::jemalloc::READER),
    read(&allocators::tcmalloc::ABOUT, &allocators::tcmalloc::READER),
    read(&allocators::google_tcmalloc::ABOUT, &allocators::google_tcmalloc::READER),
    read(&allocators::mimalloc::ABOUT, &allocators::mimalloc::READER),
    named(&allocators::named::SNMALLOC),
    named(&allocators::named::ASAN),
    named(&allocators::named::BDWGC),
    named(&allocators::named::GGC),
    named(&allocators::named::PARTITION_ALLOC),
    read(&allocators::musl::ABOUT, &allocators::musl::READER),
    named(&allocators::named::RPMALLOC),
    named(&allocators::named::HOARD),
    named(&allocators::named::SCUDO),
    named(&allocators::named::HARDENED_MALLOC),
];

/// Runtimes, in the order in which their evidence is checked.
pub static RUNTIMES: &[Entry<runtime::Reader>] = &[
    read(&runtimes::perl::ABOUT, &runtimes::perl::READER),
    read(&runtimes::sbcl::ABOUT, &runtimes::sbcl::READER),
    read(&runtimes::go::ABOUT, &runtimes::go::READER),
    read(&runtimes::cpython::ABOUT, &runtimes::cpython::READER),
    named(&runtimes::named::RUBY),
    named(&runtimes::named::NODE),
    read(&runtimes::v8::ABOUT, &runtimes::v8::READER),
    named(&runtimes::named::BUN),
    named(&runtimes::named::DENO),
    named(&runtimes::named::CHROMIUM),
    named(&runtimes::named::PHP),
    read(&runtimes::jvm::ABOUT, &runtimes::jvm::READER),
    named(&runtimes::named::D),
    named(&runtimes::named::LUAJIT),
    named(&runtimes::named::LUA),
    named(&runtimes::named::MONO),
    named(&runtimes::named::DOTNET),
    named(&runtimes::named::RACKET),
    named(&runtimes::named::CHEZ),
    named(&runtimes::named::ERLANG),
    named(&runtimes::named::OCAML),
    named(&runtimes::named::GHC),
    named(&runtimes::named::GUILE),
    named(&runtimes::named::R),
    named(&runtimes::named::SPIDERMONKEY),
    named(&runtimes::named::JULIA),
    named(&runtimes::named::ECL),
    named(&runtimes::named::CLISP),
];

/// Returns the allocators of the table, read or only recognised.
pub fn allocators() -> impl Iterator<Item = &'static ReaderInfo> {
    ALLOCATORS.iter().map(|entry| entry.about)
}

/// Returns the runtimes of the table, read or only recognised.
pub fn runtimes() -> impl Iterator<Item = &'static ReaderInfo> {
    RUNTIMES.iter().map(|entry| entry.about)
}

/// Returns the readers of allocators.
pub fn allocator_readers() -> impl Iterator<Item = &'static allocator::Reader> {
    ALLOCATORS.iter().filter_map(|entry| entry.reader)
}

/// Returns the readers of runtimes.
pub fn runtime_readers() -> impl Iterator<Item = &'static runtime::Reader> {
    RUNTIMES.iter().filter_map(|entry| entry.reader)
}

/// Returns all rows that a ledger may have, in the order of their numbers in page maps.
pub fn rows() -> impl Iterator<Item = RowRef> {
    let of_allocators = allocators().flat_map(|about| about.rows.iter().copied());
    let of_runtimes = runtimes().flat_map(|about| about.rows.iter().copied());
    KERNEL_ROWS.iter().copied().chain(of_allocators).chain([&ANONYMOUS]).chain(of_runtimes)
}

/// Returns the number of a row: its index in [`rows`].
pub fn number(row: RowRef) -> usize {
    static NUMBERS: LazyLock<HashMap<&'static str, usize>> =
        LazyLock::new(|| rows().enumerate().map(|(number, row)| (row.id, number)).collect());
    // Bytes on a row that is missing in the table count as unexplained; a test checks the rows of
    // blocks.
    NUMBERS.get(row.id).or_else(|| NUMBERS.get(ANONYMOUS.id)).copied().unwrap_or(0)
}

/// Returns the reader of the runtime `name`; `None` if it is unknown or only recognised.
pub fn runtime_reader(name: &str) -> Option<&'static runtime::Reader> {
    RUNTIMES.iter().find(|entry| entry.about.name == name)?.reader
}

/// Returns what all readers find in a ledger: runtimes' findings first, each in the order of the
/// table.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    findings_of(RUNTIMES, ALLOCATORS, view)
}

fn findings_of(
    runtimes: &[Entry<runtime::Reader>],
    allocators: &[Entry<allocator::Reader>],
    view: &LedgerView<'_>,
) -> Vec<Finding> {
    let of_runtimes = runtimes.iter().filter_map(|entry| entry.reader).map(|reader| reader.findings);
    let of_allocators = allocators.iter().filter_map(|entry| entry.reader).map(|reader| reader.findings);
    of_runtimes.chain(of_allocators).flat_map(|findings| findings(view)).collect()
}

/// Returns all allocators and runtimes of the table.
pub fn all() -> impl Iterator<Item = &'static ReaderInfo> {
    allocators().chain(runtimes())
}

/// Returns every remedy of the table, with the allocator or runtime that it belongs to.
pub fn remedies() -> impl Iterator<Item = (&'static ReaderInfo, &'static Spec)> {
    all().flat_map(|about| about.remedies.iter().map(move |spec| (about, spec)))
}

/// Returns the remedy `id` of the table, with the allocator or runtime that it belongs to.
pub fn remedy_and_reader(id: &str) -> Option<(&'static ReaderInfo, &'static Spec)> {
    remedies().find(|(_, spec)| spec.id == id)
}

/// Returns the remedy `id` of the table.
pub fn remedy(id: &str) -> Option<&'static Spec> {
    remedy_and_reader(id).map(|(_, spec)| spec)
}

/// Returns the allocator whose free pages the remedy `id` releases; `None` if it releases none.
pub fn frees_pages_of(id: &str) -> Option<&'static ReaderInfo> {
    let Effect::FreePages(name) = remedy(id)?.effect else { return None };
    allocator(name)
}

/// Returns the allocator with this name.
pub fn allocator(name: &str) -> Option<&'static ReaderInfo> {
    allocators().find(|about| about.name == name)
}

/// Returns the runtime with this name.
pub fn runtime(name: &str) -> Option<&'static ReaderInfo> {
    runtimes().find(|about| about.name == name)
}

/// An allocator that a reader found.
pub struct AllocatorInLayer {
    /// The layer of its reader.
    pub layer: allocator::Layer,
    /// The allocator.
    pub found: Box<dyn allocator::FoundAllocator>,
}

/// What the readers found in the files mapped by a process.
#[derive(Default)]
pub struct FoundReaders {
    /// The allocators, in the order of their layers.
    pub allocators: Vec<AllocatorInLayer>,
    /// The runtimes.
    pub runtimes: Vec<Box<dyn runtime::FoundRuntime>>,
}

impl FoundReaders {
    /// Searches the files that `process` has mapped, for runtimes only if `with_runtimes` is set.
    /// The process may be running.
    pub fn find(process: &Process, space: &AddressSpace, with_runtimes: bool) -> Self {
        let mut readers: Vec<_> = allocator_readers().collect();
        readers.sort_by_key(|reader| reader.layer);
        let allocator = |reader: &allocator::Reader| {
            Some(AllocatorInLayer { layer: reader.layer, found: (reader.find)(process, space)? })
        };
        let runtimes = runtime_readers().filter(|_| with_runtimes);
        Self {
            allocators: readers.into_iter().filter_map(allocator).collect(),
            runtimes: runtimes.filter_map(|reader| (reader.find)(process, space)).collect(),
        }
    }

    /// Whether to copy all memory of the process before reading: a reader wants that, and no reader
    /// makes a copy of its own. Reads a few structures at most; the process may be running.
    pub fn wants_copy(&self, memory: &dyn Memory) -> bool {
        let access: Vec<_> = self.runtimes.iter().map(|found| found.access(memory)).collect();
        access.contains(&runtime::Access::Copied) && !access.contains(&runtime::Access::OwnCopy)
    }

    /// Whether reading stops the process for longer than taking a snapshot does.
    pub fn is_slow(&self) -> bool {
        self.runtimes.iter().any(|found| found.takes_long())
            || self.allocators.iter().any(|allocator| allocator.found.takes_long())
    }

    /// Whether a runtime keeps its memory from child processes (MADV_DONTFORK).
    pub fn hides_memory(&self) -> bool {
        self.runtimes.iter().any(|found| found.hides_memory_from_children())
    }

    /// Whether a reader uses the threads' pointers, which may be unknown for a thread that is not
    /// stopped.
    pub fn needs_thread_pointers(&self) -> bool {
        self.allocators.iter().any(|allocator| allocator.found.needs_thread_pointers())
            || self.runtimes.iter().any(|found| found.needs_thread_pointers())
    }

    /// Whether a runtime's own flag says that it is collecting garbage. The process may be running.
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
    fn names_are_unique_and_rows_begin_with_them() {
        let names: HashSet<&str> = all().map(|about| about.name).collect();
        assert_eq!(names.len(), all().count());
        let rows_of: Vec<RowRef> = rows().collect();
        let ids: HashSet<&str> = rows_of.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), rows_of.len(), "no two rows of one name");
        assert!(rows_of.len() <= 256, "page maps number rows with a byte");
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
        for (about, is_read) in of_allocators.clone() {
            assert_eq!(is_read, !about.block_sizes.is_empty(), "{}", about.name);
        }
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
    fn a_part_names_a_runtime_of_the_table_as_its_whole() {
        for whole in all().filter_map(|about| about.part_of) {
            assert!(runtime(whole).is_some(), "{whole}");
        }
    }

    #[test]
    fn findings_of_allocators_and_runtimes_count() {
        static ALLOCATOR: allocator::Reader = allocator::Reader {
            findings: |view| vec![Finding { class: "x", bytes: view.rss_bytes, headline: String::new() }],
            ..allocator::Reader::new(|_, _| None)
        };
        static RUNTIME: runtime::Reader = runtime::Reader {
            findings: |view| vec![Finding { class: "y", bytes: view.threads, headline: String::new() }],
            ..runtime::Reader::new(|_, _| None)
        };
        let allocators = [read(&ReaderInfo::NONE, &ALLOCATOR)];
        let runtimes = [read(&ReaderInfo::NONE, &RUNTIME)];
        let view = LedgerView { rss_bytes: 7, threads: 3, ..LedgerView::default() };
        let found = findings_of(&runtimes, &allocators, &view);
        assert_eq!(found.iter().map(|one| (one.class, one.bytes)).collect::<Vec<_>>(), [("y", 3), ("x", 7)]);
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

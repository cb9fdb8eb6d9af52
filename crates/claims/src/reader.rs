//! Entries of the table of readers: how an allocator or runtime is recognised, what its reader
//! reads, and what not.
//!
//! Evidence is data; inspect's `recognise` evaluates it. An allocator or runtime without a reader
//! is only named.

use strandline_process::image::{ElfFile, Symbol};
use strandline_process::map::Mapping;
use strandline_process::namespaces::{open_executable, open_mapped_file};
use strandline_process::procfs::Process;

use crate::palette::BlockRows;
use crate::remedy::Spec;
use crate::rows::RowRef;

/// An entry of the table of readers: an allocator or a runtime.
#[derive(Debug)]
pub struct ReaderInfo {
    /// Its name in every document: `jemalloc`, `cpython`.
    pub name: &'static str,
    /// Its name in texts: `GNU libc's malloc`.
    pub title: &'static str,
    /// How it is recognised.
    pub evidence: Evidence,
    /// The versions whose structures are read; empty if it is only named.
    pub versions: &'static str,
    /// The rows of the ledger that its reader fills.
    pub rows: &'static [RowRef],
    /// For an allocator: the row of each class of its blocks.
    pub blocks: Option<&'static BlockRows>,
    /// For an allocator: by how much the size of a block may exceed its request, as a clause.
    pub block_sizes: &'static str,
    /// The remedies specific to it.
    pub remedies: &'static [Spec],
    /// What is not read of it, and why.
    pub not_read: &'static str,
    /// For an allocator: whether it has one main arena, and caches and a top chunk in each arena.
    pub has_main_arena: bool,
    /// For a runtime: where it keeps its objects. An allocator leaves it out.
    pub heap: HeapKind,
    /// For a runtime: one that may contain it, and then it is not reported separately: Lua within
    /// LuaJIT.
    pub part_of: Option<&'static str>,
    /// The signal handlers with which it stops and restarts threads.
    pub stop_handlers: StopHandlers,
}

/// Where the signal handlers are with which a collector stops and restarts threads. They call only
/// async-signal-safe functions, so they may run while a thread is in an allocator.
#[derive(Clone, Copy, Debug)]
pub struct StopHandlers {
    /// Names of files that contain only the runtime's code.
    pub files: &'static [FileName],
    /// Symbols of the handlers, for programs that contain the runtime.
    pub symbols: &'static [&'static str],
}

impl StopHandlers {
    /// No handlers: the runtime stops no threads by signals, or its handlers are not known.
    pub const NONE: Self = Self { files: &[], symbols: &[] };
}

/// Defines methods of [`ReaderInfo`] that set one field each.
macro_rules! setters {
    ($($about:literal $name:ident($($field:ident).+: $type:ty),)+) => {
        $(
            #[doc = $about]
            pub const fn $name(mut self, $name: $type) -> Self {
                self.$($field).+ = $name;
                self
            }
        )+
    };
}

impl ReaderInfo {
    /// An entry without evidence and without a reader.
    pub const NONE: Self = Self {
        name: "",
        title: "",
        evidence: Evidence::NONE,
        versions: "",
        rows: &[],
        blocks: None,
        block_sizes: "",
        remedies: &[],
        not_read: "its structures; it has no reader yet",
        has_main_arena: false,
        heap: HeapKind::Malloc,
        part_of: None,
        stop_handlers: StopHandlers::NONE,
    };

    /// An entry without a reader; further methods set the evidence.
    pub const fn named(name: &'static str, title: &'static str) -> Self {
        Self { name, title, ..Self::NONE }
    }

    setters! {
        "Sets the names of the files that it is mapped from." files(evidence.files: &'static [FileName]),
        "Sets the names of executables." executables(evidence.executables: &'static [FileName]),
        "Sets the symbols of the executable that only it defines." symbols(evidence.symbols: &'static [&'static str]),
        "Sets the section that only it has." section(evidence.section: Option<&'static str>),
        "Sets the strings that it contains." strings(evidence.strings: &'static [(char, &'static str)]),
        "Sets the function that returns its version." version(evidence.version: fn(&Match<'_>) -> Option<String>),
        "Sets what is not read of it." not_read(not_read: &'static str),
        "Sets where it keeps its objects." heap(heap: HeapKind),
        "Sets the runtime that may contain it." part_of(part_of: Option<&'static str>),
        "Sets the handlers that stop its threads." stop_handlers(stop_handlers: StopHandlers),
    }
}

/// Where a runtime keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapKind {
    /// All in blocks of malloc.
    Malloc,
    /// In memory that it maps itself, beside malloc.
    Own,
    /// In memory that it maps itself, and it does not use malloc at all. Holds the name of its
    /// allocator.
    OwnOnly(&'static str),
}

/// How an allocator or a runtime is recognised.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// Names of the files that it is mapped from.
    pub files: &'static [FileName],
    /// Names of executables, for those without a distinctive symbol.
    pub executables: &'static [FileName],
    /// Symbols that only an executable containing it defines; libraries are not searched.
    pub symbols: &'static [&'static str],
    /// Symbols from which its version is read.
    pub version_symbols: &'static [&'static str],
    /// A section that only executables containing it have.
    pub section: Option<&'static str>,
    /// Strings in the read-only data of an executable that contains it, stripped or not. The first
    /// letter is stored apart, so that a program that contains this table is not recognised.
    pub strings: &'static [(char, &'static str)],
    /// Returns its version.
    pub version: fn(&Match<'_>) -> Option<String>,
}

impl Evidence {
    /// No evidence.
    pub const NONE: Self = Self {
        files: &[],
        executables: &[],
        symbols: &[],
        version_symbols: &[],
        section: None,
        strings: &[],
        version: |_| None,
    };
}

/// A pattern for file names.
#[derive(Clone, Copy, Debug)]
pub enum FileName {
    /// Starts with the first string; the rest contains the second.
    Contains(&'static str, &'static str),
    /// Starts with this and continues with a version or nothing (`python3.11`, not
    /// `python-helper`).
    Versioned(&'static str),
    /// Equals this.
    Exact(&'static str),
}

impl FileName {
    /// Whether `file` matches.
    pub fn matches(&self, file: &str) -> bool {
        match self {
            Self::Contains(start, part) => file.strip_prefix(start).is_some_and(|rest| rest.contains(part)),
            Self::Versioned(start) => file
                .strip_prefix(start)
                .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')),
            Self::Exact(name) => file == *name,
        }
    }
}

/// What matched the evidence of an allocator or runtime; its version is found from this.
pub struct Match<'a> {
    /// The process.
    pub process: &'a Process,
    /// Last component of the file's path.
    pub file: &'a str,
    /// The mapping of the file if its name matched; `None` if the content of the executable did.
    pub mapping: Option<&'a Mapping>,
    /// The symbols of the evidence tables that the executable defines.
    pub symbols: &'a [Symbol],
}

impl Match<'_> {
    /// Whether the content of the executable matched, not the name of a mapped file.
    pub fn is_executable(&self) -> bool {
        self.mapping.is_none()
    }

    /// Opens the file as an ELF image; `None` if that fails.
    pub fn image(&self) -> Option<ElfFile> {
        let file = match self.mapping {
            Some(mapping) => open_mapped_file(self.process, mapping),
            None => open_executable(self.process),
        };
        file.ok().and_then(ElfFile::open)
    }

    /// Address of a symbol of the executable.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }
}

/// Maximum characters of a version; further ones are cut off.
const MAX_VERSION_CHARS: usize = 24;

/// The version at the start of `text`, such as `3.11.2`; `None` if `text` begins with no digit.
pub fn leading_version(text: &str) -> Option<String> {
    let is_part = |c: &char| c.is_ascii_digit() || *c == '.';
    let version: String = text.chars().take(MAX_VERSION_CHARS).take_while(is_part).collect();
    let version = version.trim_end_matches('.');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The version in the name of a library or an executable: `libpython3.11.so.1.0` is 3.11,
/// `libperl.so.5.36` is 5.36, `python3` is 3; `None` if absent.
pub fn version_in_file_name(file: &str) -> Option<String> {
    let (stem, after_so) = file.split_once(".so").unwrap_or((file, ""));
    let first_digit = stem.find(|c: char| c.is_ascii_digit());
    let in_stem = first_digit.and_then(|index| leading_version(&stem[index..]));
    in_stem.filter(|version| version.contains('.') || after_so.is_empty()).or_else(|| {
        let version = leading_version(after_so.strip_prefix('.')?)?;
        // A lone number is the library's interface version, not its release.
        version.contains('.').then_some(version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_file_name() {
        assert_eq!(version_in_file_name("libpython3.11.so.1.0").as_deref(), Some("3.11"));
        assert_eq!(version_in_file_name("libperl.so.5.36.0").as_deref(), Some("5.36.0"));
        assert_eq!(version_in_file_name("libruby-3.1.so.3.1.2").as_deref(), Some("3.1"));
        assert_eq!(version_in_file_name("python3").as_deref(), Some("3"));
        assert_eq!(version_in_file_name("libjemalloc.so.2"), None);
        assert_eq!(version_in_file_name("libmimalloc.so.2.0").as_deref(), Some("2.0"));
        assert_eq!(version_in_file_name("node"), None);
    }

    #[test]
    fn file_name_patterns_reject_longer_names() {
        assert!(FileName::Versioned("python").matches("python3.11"));
        assert!(!FileName::Versioned("python").matches("python-helper"));
        assert!(FileName::Contains("libtcmalloc", ".so").matches("libtcmalloc_minimal.so.4"));
        assert!(
            FileName::Exact("libc.so").matches("libc.so") && !FileName::Exact("libc.so").matches("libc.so.6")
        );
    }
}

//! What the table of readers says of an allocator or a runtime: what it is told by, what is read of it, what not.
//!
//! Evidence is data; the engine that goes by it is inspect's `recognise`. An entry without a reader is one that is
//! named only.

use strandline_process::image::{Image, Symbol};
use strandline_process::map::Mapping;
use strandline_process::namespaces::{open_executable, open_mapped_file};
use strandline_process::procfs::Process;

use crate::palette::BlockRows;
use crate::rows::Id;

/// An allocator or a runtime, as the table of readers has it.
#[derive(Debug)]
pub struct About {
    /// Its name in every document: `jemalloc`, `cpython`.
    pub name: &'static str,
    /// Its name for a person: `GNU libc's malloc`.
    pub title: &'static str,
    /// What it is told by.
    pub evidence: Evidence,
    /// The versions whose structures are read; empty for those that are named only.
    pub versions: &'static str,
    /// The rows of the ledger that its reader fills.
    pub rows: &'static [Id],
    /// Of an allocator's: which class of its blocks stands on which.
    pub blocks: Option<&'static BlockRows>,
    /// The remedies that are its own.
    pub remedies: &'static [&'static str],
    /// What is not read of it, and why.
    pub not_read: &'static str,
    /// Where it keeps objects.
    pub heap: HeapKind,
    /// What it may be a part of, and then needs no word of its own: Lua within LuaJIT.
    pub part_of: Option<&'static str>,
}

impl About {
    /// One without evidence that is not read, to be filled in.
    pub const NONE: Self = Self {
        name: "",
        title: "",
        evidence: Evidence::NONE,
        versions: "",
        rows: &[],
        blocks: None,
        remedies: &[],
        not_read: "its structures; it has no reader yet",
        heap: HeapKind::Malloc,
        part_of: None,
    };
}

/// Where a runtime keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapKind {
    /// In blocks of malloc's, all of them.
    Malloc,
    /// In memory that it maps itself, beside malloc's.
    Own,
    /// In memory that it maps itself, and nothing of it goes through malloc: this is its allocator's name.
    Alone(&'static str),
}

/// What gives an allocator or a runtime away.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// Names of files that it is mapped from.
    pub files: &'static [FileName],
    /// Names of executables, for those that define no telling symbol.
    pub executables: &'static [FileName],
    /// Symbols that only a file with it inside defines.
    pub symbols: &'static [&'static str],
    /// Symbols that tell its version, where it is one.
    pub version_symbols: &'static [&'static str],
    /// A section of an executable that only it has.
    pub section: Option<&'static str>,
    /// What stands in the read-only data of an executable with it inside, stripped. The first letter stands apart: a
    /// program that has this table must not be taken for one that has the allocator.
    pub strings: &'static [(char, &'static str)],
    /// Tells its version.
    pub version: fn(&Clue<'_>) -> Option<String>,
}

impl Evidence {
    /// None at all.
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

/// A file's name, or how it begins and goes on.
#[derive(Clone, Copy, Debug)]
pub enum FileName {
    /// It begins with the first, and what follows contains the second.
    Has(&'static str, &'static str),
    /// It begins so and goes on with a version, or with nothing (`python3.11`, not `python-helper`).
    Versioned(&'static str),
    /// It is just that.
    Is(&'static str),
}

impl FileName {
    /// Whether `file` is such a name.
    pub fn matches(&self, file: &str) -> bool {
        match self {
            Self::Has(start, part) => file.strip_prefix(start).is_some_and(|rest| rest.contains(part)),
            Self::Versioned(start) => file
                .strip_prefix(start)
                .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')),
            Self::Is(name) => file == *name,
        }
    }
}

/// What gave somebody away, to tell a version by.
pub struct Clue<'a> {
    /// The process.
    pub process: &'a Process,
    /// The last part of the file's path.
    pub file: &'a str,
    /// The mapping of the file, where it is one by its name; else it is the executable, by what is in it.
    pub mapping: Option<&'a Mapping>,
    /// Symbols that the executable defines, of those in the table.
    pub symbols: &'a [Symbol],
}

impl Clue<'_> {
    /// Whether it is the executable, by what is in it.
    pub fn is_executable(&self) -> bool {
        self.mapping.is_none()
    }

    /// The file's content.
    pub fn image(&self) -> Option<Image> {
        let file = match self.mapping {
            Some(mapping) => open_mapped_file(self.process, mapping),
            None => open_executable(self.process),
        };
        file.ok().and_then(Image::open)
    }

    /// Where a symbol of the executable is.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }
}

/// The version that `text` opens with (`3.11.2`), at most 24 characters; `None` where there is none.
pub fn leading_version(text: &str) -> Option<String> {
    let version: String = text.chars().take(24).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version = version.trim_end_matches('.');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The version in the name of a library or an executable: `libpython3.11.so.1.0` is 3.11,
/// `libperl.so.5.36` is 5.36, `python3` is 3; `None` where there is none.
pub fn version_in_file_name(file: &str) -> Option<String> {
    let (stem, tail) = file.split_once(".so").unwrap_or((file, ""));
    let digit = stem.find(|c: char| c.is_ascii_digit());
    let in_stem = digit.and_then(|digit| leading_version(&stem[digit..]));
    in_stem.filter(|version| version.contains('.') || tail.is_empty()).or_else(|| {
        let version = leading_version(tail.strip_prefix('.')?)?;
        // A lone number is the library's interface version, not its release.
        version.contains('.').then_some(version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_versions_or_not() {
        assert_eq!(version_in_file_name("libpython3.11.so.1.0").as_deref(), Some("3.11"));
        assert_eq!(version_in_file_name("libperl.so.5.36.0").as_deref(), Some("5.36.0"));
        assert_eq!(version_in_file_name("libruby-3.1.so.3.1.2").as_deref(), Some("3.1"));
        assert_eq!(version_in_file_name("python3").as_deref(), Some("3"));
        assert_eq!(version_in_file_name("libjemalloc.so.2"), None);
        assert_eq!(version_in_file_name("libmimalloc.so.2.0").as_deref(), Some("2.0"));
        assert_eq!(version_in_file_name("node"), None);
    }

    #[test]
    fn a_prefix_alone_is_no_match() {
        assert!(FileName::Versioned("python").matches("python3.11"));
        assert!(!FileName::Versioned("python").matches("python-helper"));
        assert!(FileName::Has("libtcmalloc", ".so").matches("libtcmalloc_minimal.so.4"));
        assert!(FileName::Is("libc.so").matches("libc.so") && !FileName::Is("libc.so").matches("libc.so.6"));
    }
}

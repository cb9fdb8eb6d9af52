//! Recognises the allocators and language runtimes of a process by what it has mapped.
//!
//! Cheap evidence comes first: names of mapped files, then symbols and strings of the executable
//! and of the few files that need to be opened. The table of readers ([`crate::readers`]) defines
//! the evidence; [`Component::found_by`] reports it, because a name alone proves little. No target
//! memory is read: allocators recognised by structures alone (glibc's and musl's malloc in a static
//! program) are left to their readers.

use std::collections::HashSet;

use strandline_claims::reader::{HeapKind, Match, ReaderInfo};
use strandline_process::image::{ElfFile, Symbol};
use strandline_process::map::{AddressSpace, Mapping, file_name};
use strandline_process::namespaces::open_executable;
use strandline_process::procfs::{Process, printable};

use crate::readers::{self, allocators, runtimes};

/// An allocator or a runtime in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its name in the table of readers: `jemalloc`.
    pub name: String,
    /// Its version, if it can be determined cheaply.
    pub version: Option<String>,
    /// The evidence: a mapped file, a symbol, a section, a string.
    pub found_by: String,
}

/// What [`recognise`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecognisedComponents {
    /// Allocators other than glibc's.
    pub allocators: Vec<Component>,
    /// Language runtimes.
    pub runtimes: Vec<Component>,
}

/// Maximum number of distinct mapped files whose names are checked: a process may map a million,
/// and libraries are mapped before most of them.
const MAX_FILES: usize = 16_384;
/// Maximum characters of a file's name in the evidence.
const MAX_NAME_CHARACTERS: usize = 128;

/// Returns the allocators and runtimes of a process, each once, in the order they were found.
///
/// Never fails: what cannot be opened gives no evidence.
pub fn recognise(process: &Process, space: &AddressSpace) -> RecognisedComponents {
    let mut found = RecognisedComponents::default();
    let mut seen: HashSet<&str> = HashSet::new();
    for mapping in space.mappings().iter().filter(|mapping| mapping.name.starts_with('/')) {
        if seen.len() >= MAX_FILES {
            break;
        }
        if seen.insert(&mapping.name) {
            add_by_file_name(process, mapping, &mut found);
        }
    }
    // If its name is not known, its contents still are evidence.
    let executable = process.executable().unwrap_or_default();
    if let Some(image) = open_executable(process).ok().and_then(ElfFile::open) {
        add_by_executable(&Executable { process, image, file: file_name(&executable) }, &mut found);
    }
    // A part of another runtime is left out if that was found.
    let names: Vec<String> = found.runtimes.iter().map(|runtime| runtime.name.clone()).collect();
    found.runtimes.retain(|runtime| {
        let whole = readers::runtime(&runtime.name).and_then(|about| about.part_of);
        whole.is_none_or(|whole| names.iter().all(|name| name != whole))
    });
    found
}

/// Whether a runtime keeps objects in its own memory.
pub(crate) fn has_own_heap(runtime: &str) -> bool {
    readers::runtime(runtime).is_some_and(|about| about.heap != HeapKind::Malloc)
}

impl RecognisedComponents {
    /// Whether an allocator of this name was found.
    fn has_allocator(&self, name: &str) -> bool {
        self.allocators.iter().any(|found| found.name == name)
    }

    /// Adds a component, unless one of this name was found before.
    fn add(list: &mut Vec<Component>, name: &str, version: Option<String>, found_by: String) {
        if list.iter().all(|found| found.name != name) {
            list.push(Component { name: name.to_owned(), version, found_by });
        }
    }

    fn add_allocator(&mut self, name: &str, version: Option<String>, found_by: String) {
        Self::add(&mut self.allocators, name, version, found_by);
    }

    /// Adds a runtime, and the allocator that it contains, if any.
    fn add_runtime(&mut self, about: &ReaderInfo, version: Option<String>, found_by: String) {
        if let HeapKind::OwnOnly(allocator) = about.heap {
            let version = version.clone().filter(|_| allocator == about.name);
            self.add_allocator(allocator, version, found_by.clone());
        }
        Self::add(&mut self.runtimes, about.name, version, found_by);
    }
}

/// Evidence from the name of a mapped file; its content is read for the version only.
fn add_by_file_name(process: &Process, mapping: &Mapping, found: &mut RecognisedComponents) {
    let file = file_name(&mapping.name);
    let has_file = |about: &&ReaderInfo| about.evidence.files.iter().any(|name| name.matches(file));
    let evidence = Match { process, file, mapping: Some(mapping), symbols: &[] };
    let found_by = || format!("mapped file {}", printable(file, MAX_NAME_CHARACTERS));
    if let Some(about) = allocators().find(has_file) {
        found.add_allocator(about.name, (about.evidence.version)(&evidence), found_by());
    }
    if let Some(about) = runtimes().find(has_file) {
        found.add_runtime(about, (about.evidence.version)(&evidence), found_by());
    }
}

/// The executable of a process.
struct Executable<'a> {
    process: &'a Process,
    image: ElfFile,
    /// The last part of its path.
    file: &'a str,
}

impl Executable<'_> {
    /// The version of an allocator or a runtime that the executable contains, if it is known.
    fn version(&self, about: &ReaderInfo, symbols: &[Symbol]) -> Option<String> {
        let evidence = Match { process: self.process, file: self.file, mapping: None, symbols };
        (about.evidence.version)(&evidence)
    }
}

/// Evidence from inside the executable: sections, symbols it defines, strings.
fn add_by_executable(executable: &Executable<'_>, found: &mut RecognisedComponents) {
    for about in runtimes() {
        if let Some(section) = about.evidence.section
            && executable.image.section_bytes(section, 1).is_some()
        {
            let found_by = format!("section {section} of the executable");
            found.add_runtime(about, executable.version(about, &[]), found_by);
        }
    }
    let all_evidence = || readers::all().map(|about| &about.evidence);
    let symbols = all_evidence().flat_map(|evidence| evidence.symbols);
    let version_symbols = all_evidence().flat_map(|evidence| evidence.version_symbols);
    let symbols: Vec<&'static str> = symbols.chain(version_symbols).copied().collect();
    add_by_symbols(executable, &executable.image.exported(&symbols), found);
    if found.allocators.is_empty() {
        add_by_symbols(executable, &executable.image.static_symbols(&symbols), found);
    }
    add_by_strings(executable, found);
    // The name alone, for executables whose symbols give no evidence.
    let has_executable =
        |about: &&ReaderInfo| about.evidence.executables.iter().any(|name| name.matches(executable.file));
    if let Some(about) = runtimes().find(has_executable) {
        let version = executable.version(about, &[]);
        let found_by = format!("executable {}", printable(executable.file, MAX_NAME_CHARACTERS));
        found.add_runtime(about, version, found_by);
    }
}

/// A string that an executable with an allocator or a runtime contains.
struct SearchedString {
    text: String,
    about: &'static ReaderInfo,
    is_runtime: bool,
}

/// Evidence from messages and names of settings in the executable's read-only data.
fn add_by_strings(executable: &Executable<'_>, found: &mut RecognisedComponents) {
    let strings_of = |about: &'static ReaderInfo, is_runtime: bool| {
        let strings = about.evidence.strings.iter();
        strings.map(move |(first, rest)| SearchedString { text: format!("{first}{rest}"), about, is_runtime })
    };
    let searched: Vec<SearchedString> = allocators()
        .flat_map(|about| strings_of(about, false))
        .chain(runtimes().flat_map(|about| strings_of(about, true)))
        .collect();
    let texts: Vec<&str> = searched.iter().map(|string| string.text.as_str()).collect();
    let matches = executable.image.strings(&texts);
    for (string, _) in searched.iter().zip(matches).filter(|(_, position)| position.is_some()) {
        let SearchedString { text, about, is_runtime } = string;
        let found_by = format!("string {:?} in the executable", text.trim_end());
        if *is_runtime {
            // The executable's own name does not determine the version of what is linked in.
            found.add_runtime(about, None, found_by);
        } else if !found.has_allocator(about.name) {
            found.add_allocator(about.name, executable.version(about, &[]), found_by);
        }
    }
}

/// Evidence from symbols that the executable defines.
fn add_by_symbols(executable: &Executable<'_>, symbols: &[Symbol], found: &mut RecognisedComponents) {
    for symbol in symbols {
        let found_by = || format!("symbol {} of the executable", symbol.name);
        let has_symbol = |about: &&ReaderInfo| about.evidence.symbols.contains(&symbol.name);
        if let Some(about) = allocators().find(has_symbol) {
            if !found.has_allocator(about.name) {
                found.add_allocator(about.name, executable.version(about, symbols), found_by());
            }
        } else if let Some(about) = runtimes().find(has_symbol) {
            found.add_runtime(about, executable.version(about, symbols), found_by());
        }
    }
}

#[cfg(test)]
mod tests;

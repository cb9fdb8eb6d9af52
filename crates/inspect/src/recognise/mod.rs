//! Which allocators and language runtimes a process has, told by what it has mapped.
//!
//! Cheap evidence first: the names of mapped files, then the symbols and strings of the executable
//! and of the few files that need a second look. A name proves little and is therefore reported as
//! what it is: [`Found::found_by`] says what gave it away. Target memory is read only where files say nothing
//! (a static musl), and glibc's malloc is left to its own reader, which finds it by its structures.

mod image;
mod musl;
mod names;

use std::collections::HashSet;

use image::{Image, Symbol};

pub(crate) use names::has_own_heap;

use crate::map::{AddressSpace, Mapping};
use crate::memory::Memory;
use crate::namespaces::{open_executable, open_in_root, open_mapped_file};
use crate::procfs::{Process, printable};

/// An allocator or a runtime that a process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// `jemalloc`, `tcmalloc`, `mimalloc`, `musl`, `go`, `jvm`, `v8`; `cpython`, `perl`, `node`, ….
    pub name: String,
    /// Its version, where that is cheap to tell.
    pub version: Option<String>,
    /// What gave it away: a mapped file, a symbol, a section, a string.
    pub found_by: String,
}

/// What [`recognise`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recognised {
    /// Allocators other than glibc's.
    pub allocators: Vec<Found>,
    /// Language runtimes.
    pub runtimes: Vec<Found>,
}

/// The most distinct mapped files whose names are looked at; a process may map a million.
const MOST_FILES: usize = 16_384;

/// What is known of a process beside its files.
pub struct Known<'a> {
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// Its memory.
    pub memory: &'a dyn Memory,
    /// The runs of resident pages in a range, cut to it: what else is read would grow the target.
    pub resident: &'a dyn Fn(u64, u64) -> Vec<(u64, u64)>,
    /// Whether its malloc is glibc's, and was found.
    pub has_glibc: bool,
}

/// The allocators and runtimes of a process, each once, in the order they were found.
///
/// Never fails: what cannot be opened gives no evidence.
pub fn recognise(process: &Process, known: &Known<'_>) -> Recognised {
    let space = known.space;
    let mut found = Recognised::default();
    let mut seen: HashSet<&str> = HashSet::new();
    for mapping in space.mappings().iter().filter(|mapping| mapping.name.starts_with('/')) {
        if seen.len() >= MOST_FILES {
            break;
        }
        if seen.insert(&mapping.name) {
            by_file_name(process, mapping, &mut found);
        }
    }
    let executable = process.executable().unwrap_or_default();
    if let Some(image) = open_executable(process).ok().and_then(Image::open) {
        by_executable(&image, file_name(&executable), &mut found);
    }
    let is_part = |name: &str, all: &[Found]| {
        let wholes = names::PARTS.iter().filter(|(part, _)| *part == name);
        wholes.into_iter().any(|(_, whole)| all.iter().any(|found| found.name == *whole))
    };
    let all = found.runtimes.clone();
    found.runtimes.retain(|runtime| !is_part(&runtime.name, &all));
    // A program without an interpreter has its libc inside.
    if found.allocators.is_empty() && !known.has_glibc && musl::is_in(known, &executable) {
        let found_by = "structure of mallocng (musl 1.2.1 and later) in the executable's data";
        found.add_allocator("musl", None, found_by.to_owned());
    }
    found
}

impl Recognised {
    fn has_allocator(&self, name: &str) -> bool {
        self.allocators.iter().any(|found| found.name == name)
    }

    fn add(list: &mut Vec<Found>, name: &str, version: Option<String>, found_by: String) {
        if list.iter().all(|found| found.name != name) {
            list.push(Found { name: name.to_owned(), version, found_by });
        }
    }

    fn add_allocator(&mut self, name: &str, version: Option<String>, found_by: String) {
        Self::add(&mut self.allocators, name, version, found_by);
    }

    /// Adds a runtime, and the allocator it brings along, if any.
    fn add_runtime(&mut self, name: &str, version: Option<String>, found_by: String) {
        let heap = names::OWN_HEAPS.iter().find(|(runtime, _)| *runtime == name);
        if let Some(allocator) = heap.and_then(|(_, allocator)| *allocator) {
            self.add_allocator(allocator, version.clone().filter(|_| allocator == name), found_by.clone());
        }
        Self::add(&mut self.runtimes, name, version, found_by);
    }
}

/// The last part of a path, without the kernel's ` (deleted)`.
fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// Evidence from the name of a mapped file; its content is read for the version only.
fn by_file_name(process: &Process, mapping: &Mapping, found: &mut Recognised) {
    let file = file_name(&mapping.name);
    if let Some(rule) = names::ALLOCATOR_FILES.iter().find(|rule| names::matches(rule, file)) {
        let version = match rule.name {
            "jemalloc" | "tcmalloc" => open_mapped_file(process, mapping)
                .ok()
                .and_then(Image::open)
                .and_then(|i| malloc_version(&i, rule.name)),
            "mimalloc" => names::version_in_file_name(file),
            _ => None,
        };
        found.add_allocator(rule.name, version, format!("mapped file {}", printable(file, 128)));
    }
    if let Some(rule) = names::RUNTIME_FILES.iter().find(|rule| names::matches(rule, file)) {
        let version = match rule.name {
            "jvm" => java_version(process, &mapping.name),
            "cpython" => {
                let image = open_mapped_file(process, mapping).ok().and_then(Image::open);
                image.and_then(|image| python_version(&image, &image.exported(&["Py_Version"])))
            }
            _ => None,
        };
        let version = version.or_else(|| names::version_in_file_name(file));
        found.add_runtime(rule.name, version, format!("mapped file {}", printable(file, 128)));
    }
}

/// Evidence from inside the executable: sections, symbols it defines, strings.
fn by_executable(image: &Image, file: &str, found: &mut Recognised) {
    if let Some(version) = image.section_bytes(".go.buildinfo", 256).map(|bytes| go_version(&bytes)) {
        found.add_runtime("go", version, "section .go.buildinfo of the executable".to_owned());
    }
    let symbols = names::symbols();
    let exported = image.exported(&symbols);
    by_symbols(image, &exported, file, found);
    if found.allocators.is_empty() {
        by_symbols(image, &image.unstripped(&symbols), file, found);
    }
    by_strings(image, found);
    // A name alone, for executables whose symbols say nothing.
    if let Some(rule) = names::EXECUTABLES.iter().find(|rule| names::matches(rule, file)) {
        found.add_runtime(
            rule.name,
            names::version_in_file_name(file),
            format!("executable {}", printable(file, 128)),
        );
    }
}

/// Evidence from messages and names of settings in the executable's read-only data.
fn by_strings(image: &Image, found: &mut Recognised) {
    let tables = || names::ALLOCATOR_STRINGS.iter().chain(names::RUNTIME_STRINGS);
    let needles: Vec<String> = tables().map(|(first, rest, _)| format!("{first}{rest}")).collect();
    let texts = image.strings(&needles.iter().map(String::as_str).collect::<Vec<_>>());
    let is_there = texts.iter().map(Option::is_some);
    for (index, ((needle, (_, _, name)), is_there)) in needles.iter().zip(tables()).zip(is_there).enumerate()
    {
        let found_by = || format!("string {:?} in the executable", needle.trim_end());
        if !is_there {
            continue;
        }
        if index >= names::ALLOCATOR_STRINGS.len() {
            found.add_runtime(name, None, found_by());
        } else if !found.has_allocator(name) {
            found.add_allocator(name, malloc_version(image, name), found_by());
        }
    }
}

/// Evidence from symbols that the executable defines.
fn by_symbols(image: &Image, symbols: &[Symbol], file: &str, found: &mut Recognised) {
    for symbol in symbols {
        let by = || format!("symbol {} of the executable", symbol.name);
        if let Some((_, name)) = names::ALLOCATOR_SYMBOLS.iter().find(|(known, _)| *known == symbol.name) {
            if !found.has_allocator(name) {
                found.add_allocator(name, malloc_version(image, name), by());
            }
        } else if let Some((_, name)) = names::RUNTIME_SYMBOLS.iter().find(|(known, _)| *known == symbol.name)
        {
            let version = match *name {
                "cpython" => python_version(image, symbols),
                "perl" => perl_version(image),
                "node" => node_version(image),
                "ruby" => text_at(image, symbol.address),
                _ => None,
            };
            found.add_runtime(name, version.or_else(|| names::version_in_file_name(file)), by());
        }
    }
}

/// The version that jemalloc (`5.3.0-0-g54eaed1d…`) and gperftools (`gperftools 2.10`) carry.
fn malloc_version(image: &Image, name: &str) -> Option<String> {
    let needle = match name {
        "jemalloc" => "-0-g",
        "tcmalloc" => "gperftools ",
        _ => return None,
    };
    if name == "tcmalloc" {
        let text = image.strings(&[needle]).pop()??;
        return names::leading_version(text.strip_prefix(needle)?);
    }
    // The version stands before the needle: look for it release by release.
    const RELEASES: &[&str] = &[
        "5.3.1-0-g",
        "5.3.0-0-g",
        "5.2.1-0-g",
        "5.2.0-0-g",
        "5.1.0-0-g",
        "5.0.1-0-g",
        "4.5.0-0-g",
        "3.6.0-0-g",
    ];
    let found = image.strings(RELEASES).into_iter().flatten().next()?;
    names::leading_version(&found)
}

/// `Py_Version` of CPython 3.11 and later: PY_VERSION_HEX, 0xMMmmpprs.
fn python_version(image: &Image, symbols: &[Symbol]) -> Option<String> {
    let symbol = symbols.iter().find(|symbol| symbol.name == "Py_Version")?;
    let hex = u32::from_le_bytes(image.bytes_at(symbol.address, 4)?.try_into().ok()?);
    let (major, minor, micro) = (hex >> 24, hex >> 16 & 0xff, hex >> 8 & 0xff);
    (major == 3).then(|| format!("{major}.{minor}.{micro}"))
}

/// The version in the module paths that perl is built with (`/usr/share/perl/5.36.0`).
fn perl_version(image: &Image) -> Option<String> {
    const PLACES: &[&str] = &["/perl/5.", "/perl5/5.", "/perl-5."];
    let text = image.strings(PLACES).into_iter().flatten().next()?;
    names::leading_version(text.get(text.find("5.")?..)?)
}

/// The version in the addresses that node is built with (`…/download/release/v20.11.0/…`).
fn node_version(image: &Image) -> Option<String> {
    const NEEDLE: &str = "/download/release/v";
    let text = image.strings(&[NEEDLE]).pop()??;
    names::leading_version(text.strip_prefix(NEEDLE)?)
}

/// A version string that a symbol names (`ruby_version`).
fn text_at(image: &Image, address: u64) -> Option<String> {
    let bytes = image.bytes_at(address, 16)?;
    names::leading_version(std::str::from_utf8(bytes.split(|&byte| byte == 0).next()?).ok()?)
}

/// Go's build information, as `debug/buildinfo` reads it: 14 bytes of magic, pointer size, flags; with
/// flag 2 (Go 1.18 and later) the version follows at 32, its length before it in one byte here.
fn go_version(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(b"\xff Go buildinf:") || bytes.get(15)? & 2 == 0 {
        return None;
    }
    let length = usize::from(*bytes.get(32)?);
    // A varint whose first byte has its top bit set is a version of 128 characters or more: not ours.
    let text = std::str::from_utf8(bytes.get(33..33 + length).filter(|_| length < 128)?).ok()?;
    names::leading_version(text.strip_prefix("go")?)
}

/// JAVA_VERSION of the `release` file, two folders above `lib/server/libjvm.so`.
fn java_version(process: &Process, library: &str) -> Option<String> {
    use std::io::Read;

    let library = library.strip_suffix(" (deleted)").unwrap_or(library);
    let home = library.strip_suffix("/server/libjvm.so").and_then(|lib| lib.rsplit_once('/'))?.0;
    let mut text = Vec::new();
    open_in_root(process, &format!("{home}/release")).ok()?.take(8192).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    names::leading_version(line.trim_matches('"'))
}

/// Whether the file that `mapping` is of defines one of `names` among its dynamic symbols. Reads each table once: for
/// files with very many symbols, of which nearly all are somebody else's.
pub(crate) fn exports(process: &Process, mapping: &Mapping, names: &[&'static str]) -> bool {
    let image = open_mapped_file(process, mapping).ok().and_then(Image::open);
    image.is_some_and(|image| !image.exported(names).is_empty())
}

#[cfg(test)]
mod tests;

//! Finds CPython in mapped files: its version, its `_PyRuntime`, its static data.

use super::MAX_PROGRAMS;
use super::layout::{
    COOKIE, DEBUG_OFFSETS_BYTES, DEBUG_OFFSETS_FREE_THREADED, DEBUG_OFFSETS_HEAD, DEBUG_OFFSETS_NEXT,
    Interpreters, RELEASES, Release, debug_offsets_collector,
};
use strandline_process::elf::Object;
use strandline_process::image::ElfFile;
use strandline_process::map::AddressSpace;
use strandline_process::memory::{Memory, word_at};
use strandline_process::modules::{self, Module};
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;

/// The variable with the state of CPython; every build exports it.
const RUNTIME: &str = "_PyRuntime";
/// The variable with the version, from 3.11 on.
const VERSION: &str = "Py_Version";
/// A function that only builds without a global lock export (`Objects/object.c`, from 3.13 on).
const FREE_THREADED_FUNCTION: &str = "_Py_MergeZeroLocalRefcount";

/// A version: 3.`minor`.`micro`.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// The minor version.
    pub minor: u8,
    /// The micro version, if the file states it.
    pub micro: Option<u8>,
}

/// A mapped file that holds a CPython.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path, as the kernel reports it.
    pub path: String,
    /// Version, if known.
    pub version: Option<Version>,
    /// The address of `_PyRuntime`.
    pub runtime: u64,
    /// Range of its static data.
    pub data: AddressRange,
    /// Whether it was built without a global lock (`Py_GIL_DISABLED`).
    pub is_free_threaded: bool,
}

/// The linked list of interpreters.
#[derive(Clone, Copy, Debug)]
pub struct InterpreterList {
    /// Address of the first interpreter; 0 before CPython has made one.
    pub first: u64,
    /// Offset of the link to the next one.
    pub next_offset: u64,
}

impl Program {
    /// Returns the version as text; `None` if it is not known.
    pub fn version_text(&self) -> Option<String> {
        let Version { minor, micro } = self.version?;
        Some(micro.map_or(format!("3.{minor}"), |micro| format!("3.{minor}.{micro}")))
    }

    /// Returns the layout of its release; `None` if none is known.
    pub fn release(&self) -> Option<&'static Release> {
        let minor = self.version?.minor;
        let is_same = |release: &&Release| {
            release.minor == minor && release.is_free_threaded() == self.is_free_threaded
        };
        RELEASES.iter().find(is_same)
    }

    /// Returns the list of interpreters; `None` if the variables that lead to it cannot be read.
    pub fn interpreters(&self, memory: &dyn Memory, release: &Release) -> Option<InterpreterList> {
        let (offset, next_offset) = match release.interpreters {
            Interpreters::HeadAt(offset) => (offset, 0),
            Interpreters::InDebugOffsets => {
                let table = self.debug_offsets(memory, release)?;
                (word_at(&table, DEBUG_OFFSETS_HEAD)?, word_at(&table, DEBUG_OFFSETS_NEXT)?)
            }
        };
        let first = memory.read_word(self.runtime.checked_add(offset)?).ok()?;
        Some(InterpreterList { first, next_offset })
    }

    /// Reads the start of the table of offsets; `None` if absent.
    fn debug_offsets(&self, memory: &dyn Memory, release: &Release) -> Option<[u8; DEBUG_OFFSETS_BYTES]> {
        let mut table = [0; DEBUG_OFFSETS_BYTES];
        memory.read(self.runtime, &mut table).ok()?;
        let is_free_threaded = word_at(&table, DEBUG_OFFSETS_FREE_THREADED)? != 0;
        (table.starts_with(&COOKIE) && is_free_threaded == release.is_free_threaded()).then_some(table)
    }

    /// Returns the offset of the collector's state in an interpreter's state, if the table of
    /// offsets contains it.
    pub fn collector_offset(&self, memory: &dyn Memory, release: &Release) -> Option<u64> {
        let table = self.debug_offsets(memory, release)?;
        word_at(&table, debug_offsets_collector(release.minor))
    }
}

/// Returns the mapped files that hold a CPython: up to [`MAX_PROGRAMS`], and one more if there are
/// more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    // Stripped files export it too, for modules in C.
    modules::exporting(process, space, &[RUNTIME])
        .filter_map(|module| program(process, space, &module))
        .take(MAX_PROGRAMS + 1)
        .collect()
}

/// Returns the CPython in a module; `None` if it has none, or cannot be read.
fn program(process: &Process, space: &AddressSpace, module: &Module<'_>) -> Option<Program> {
    let runtime = Object::open(process, space, module.code).ok()?.symbol_address(RUNTIME)?;
    let image = open_mapped_file(process, module.code).ok().and_then(ElfFile::open)?;
    let path = module.code.name.clone();
    let version = version(&image).or_else(|| version_in(&path)).or_else(|| version_in_strings(&image));
    let is_free_threaded = !image.exported(&[FREE_THREADED_FUNCTION]).is_empty();
    Some(Program { path, version, runtime, data: module.data, is_free_threaded })
}

/// `Py_Version`, from 3.11 on: `PY_VERSION_HEX`, a byte each for major, minor, micro and level.
fn version(image: &ElfFile) -> Option<Version> {
    let address = image.exported(&[VERSION]).first()?.address;
    let [_, micro, minor, major] = image.bytes_at(address, 4)?.try_into().ok()?;
    (major == 3).then_some(Version { minor, micro: Some(micro) })
}

/// The last version in a name: `libpython3.9.so.1.0`, `python3.10`.
fn version_in(text: &str) -> Option<Version> {
    let (_, minor_and_rest) = text.rsplit_once("python3.")?;
    let digits: String = minor_and_rest.chars().take_while(char::is_ascii_digit).collect();
    Some(Version { minor: digits.parse().ok()?, micro: None })
}

/// The version in the path of its modules (`lib/python3.9`).
fn version_in_strings(image: &ElfFile) -> Option<Version> {
    version_in(&image.strings(&["lib/python3."]).pop()??)
}

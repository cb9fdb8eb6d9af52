//! Finds SBCL in mapped files: its runtime's dynamic symbols, and the version among the runtime's
//! constants.
//!
//! The runtime is the program itself, a program that the dynamic linker runs, or a shared library.
//! A program made by `save-lisp-and-die :executable t` is the runtime followed by a core, and has
//! the same symbols. Debian strips the runtime; the needed symbols stay in `.dynsym`, because cores
//! are linked against it.

use std::collections::BTreeMap;

use super::MAX_PROGRAMS;
use super::reserved_memory::ReservedMemory;
use crate::sbcl::layout::{KnownRelease, Release, known_release};
use strandline_process::elf::Object;
use strandline_process::image::exports;
use strandline_process::map::{AddressSpace, DeviceNumber, Mapping};
use strandline_process::memory::{Memory, word_at};
use strandline_process::procfs::{Process, printable};
use strandline_process::range::AddressRange;
use strandline_process::target::live::ByPid;

/// Symbols of every runtime that can be read. A file without one of them is no SBCL runtime, or its
/// collector is not known (`:mark-region-gc` has no `from_space`).
const REQUIRED_SYMBOLS: [&str; 7] = [
    "generations",
    "page_table",
    "page_table_pages",
    "next_free_page",
    "bytes_allocated",
    "DYNAMIC_SPACE_START",
    "from_space",
];
/// Symbols that are read if they exist.
const OPTIONAL_SYMBOLS: [&str; 35] = [
    "ALIEN_LINKAGE_SPACE_START",
    "ALIEN_LINKAGE_TABLE_SPACE_START",
    "FIXEDOBJ_SPACE_START",
    "READ_ONLY_SPACE_END",
    "READ_ONLY_SPACE_START",
    "STATIC_SPACE_START",
    "TEXT_SPACE_START",
    "VARYOBJ_SPACE_START",
    "all_threads",
    "alloc_profile_data",
    "arena_chain",
    "auto_gc_trigger",
    "bytes_consed_between_gcs",
    "dynamic_space_size",
    "dynamic_values_bytes",
    "fixedobj_free_pointer",
    "fixedobj_pages",
    "gc_active_p",
    "gc_alloc_region",
    "gc_card_mark",
    "gc_card_table_nbits",
    "gc_object_watcher",
    "gc_page_pins",
    "gencgc_oldest_gen_to_gc",
    "linkage_space",
    "lisp_init_function",
    "lisp_package_vector",
    "lisp_sig_handlers",
    "permgen_bounds",
    "permgen_space_free_pointer",
    "read_only_space_free_pointer",
    "static_space_free_pointer",
    "text_space_highwatermark",
    "varyobj_free_pointer",
    "widetag_lowtag",
];
/// Limit on the length of a version.
const MAX_VERSION_BYTES: usize = 64;
/// Limit on the length of a path in messages.
const MAX_PATH_CHARACTERS: usize = 256;
/// Maximum number of files that are examined: a process has one runtime, a hostile one may map any
/// number of files.
const MAX_FILES: usize = 4096;

/// A mapped file that holds an SBCL.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path, as the kernel names it.
    pub path: String,
    /// The version among its constants; `None` if they have no version, or more than one.
    pub version: Option<String>,
    /// Memory for a copy of its objects.
    pub(super) reserved: ReservedMemory,
    symbols: BTreeMap<&'static str, Symbol>,
}

/// A symbol of the runtime.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    /// Size, from the file.
    bytes: u64,
}

impl Program {
    /// Makes a program of variables with these names and ranges, for fabricated memory.
    pub fn with_symbols(
        path: &str,
        version: &str,
        symbols: impl IntoIterator<Item = (&'static str, AddressRange)>,
    ) -> Self {
        let symbol = |range: AddressRange| Symbol { address: range.start, bytes: range.len() };
        Self {
            path: path.to_owned(),
            version: Some(version.to_owned()),
            reserved: ReservedMemory::default(),
            symbols: symbols.into_iter().map(|(name, range)| (name, symbol(range))).collect(),
        }
    }

    /// Address of a symbol; `None` if the runtime does not have it.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.get(name).map(|symbol| symbol.address)
    }

    /// The range of a variable; `None` without such a symbol.
    pub fn range(&self, name: &str) -> Option<AddressRange> {
        self.symbols.get(name).map(|symbol| AddressRange::sized(symbol.address, symbol.bytes))
    }

    /// The unsigned value of a variable of up to 8 bytes, by its size in the file; `None` if
    /// the runtime does not have it, or if it is larger or cannot be read.
    pub fn value(&self, memory: &dyn Memory, name: &str) -> Option<u64> {
        let &Symbol { address, bytes } = self.symbols.get(name)?;
        let length = usize::try_from(bytes).ok().filter(|length| (1..=8).contains(length))?;
        let mut word = [0; 8];
        memory.read(address, word.get_mut(..length)?).ok()?;
        word_at(&word, 0)
    }

    /// The release of its version, if its structures are known.
    pub fn known_release(&self) -> Option<KnownRelease> {
        known_release(self.version.as_deref()?)
    }
}

/// The version among a runtime's constants: a whole string that parses as a release of SBCL 2
/// (versions of zlib and zstd, which it may also hold, start with 1). `None` if they have no such
/// version, or more than one.
fn version_in(constants: &[u8]) -> Option<String> {
    let mut only_version: Option<&str> = None;
    for text in constants.split(|&byte| byte == 0) {
        if !text.starts_with(b"2.")
            || text.len() > MAX_VERSION_BYTES
            || !text.iter().all(|&byte| is_version_byte(byte))
        {
            continue;
        }
        let Ok(version) = std::str::from_utf8(text) else { continue };
        if Release::parse(version).is_none() || only_version == Some(version) {
            continue;
        }
        if only_version.replace(version).is_some() {
            return None;
        }
    }
    only_version.map(str::to_owned)
}

/// Whether versions of SBCL have this byte.
fn is_version_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'_')
}

/// A file, however it is named.
#[derive(PartialEq, Eq)]
struct FileId {
    inode: u64,
    device: DeviceNumber,
}

/// The mapped files that hold an SBCL: up to [`MAX_PROGRAMS`], and one more if there are more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    // If it is unknown, a runtime is found by its file's name.
    let executable = process.executable().unwrap_or_default();
    let mut program_files: Vec<FileId> = Vec::new();
    let mut programs = Vec::new();
    let mut files_tried = 0;
    // A core within an executable is mapped too, in many parts: only mappings of the runtime itself
    // are of use.
    for mapping in space.mappings().iter().filter(|mapping| mapping.permissions.execute && mapping.has_file())
    {
        if programs.len() > MAX_PROGRAMS {
            break;
        }
        let name = mapping.name.strip_suffix(" (deleted)").unwrap_or(&mapping.name);
        let file_name = name.rsplit('/').next().unwrap_or(name);
        let may_be_runtime = mapping.name == executable || file_name.contains("sbcl");
        let file = FileId { inode: mapping.inode, device: mapping.device };
        if !may_be_runtime
            || file_name.ends_with(".core")
            || program_files.contains(&file)
            || files_tried >= MAX_FILES
        {
            continue;
        }
        files_tried += 1;
        if let Some(mut program) = program(process, space, mapping) {
            // Memory is reserved for one: each reservation may take half of what is available.
            let has_reserved = |program: &Program| program.reserved.bytes() > 0;
            if program.known_release().is_some() && !programs.iter().any(has_reserved) {
                let live = ByPid::new(process.pid());
                program.reserved = ReservedMemory::reserve(&|name| program.value(&live, name));
            }
            program_files.push(file);
            programs.push(program);
        }
    }
    programs
}

/// Returns the SBCL in a mapped file; `None` if it lacks one of the required symbols.
fn program(process: &Process, space: &AddressSpace, mapping: &Mapping) -> Option<Program> {
    if !exports(process, mapping, &REQUIRED_SYMBOLS[..1]) {
        return None;
    }
    // A file that cannot be opened is recognised by its name only (`Evidence`).
    let object = Object::open(process, space, mapping).ok()?;
    let mut symbols = BTreeMap::new();
    object.each_symbol(&mut |name, symbol| {
        let variable =
            REQUIRED_SYMBOLS.iter().chain(&OPTIONAL_SYMBOLS).find(|variable| variable.as_bytes() == name);
        if let Some(&variable) = variable {
            symbols.entry(variable).or_insert(Symbol { address: symbol.address, bytes: symbol.bytes });
        }
    });
    if !REQUIRED_SYMBOLS.iter().all(|name| symbols.contains_key(name)) {
        return None;
    }
    let version = object.section(b".rodata").and_then(|constants| version_in(&constants.bytes));
    let path = printable(&mapping.name, MAX_PATH_CHARACTERS);
    Some(Program { path, version, reserved: ReservedMemory::default(), symbols })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_string_of_its_form() {
        let constants = b"1.2.11\0%d\x002.2.9.debian\0This is SBCL %s\x002.2.9.debian\0";
        assert_eq!(version_in(constants).as_deref(), Some("2.2.9.debian"));
        assert_eq!(version_in(b"x2.6.4\x002.6.4 \x002.6\0"), None);
        assert_eq!(version_in(b"2.6.4\x002.2.9\0"), None, "two");
        assert_eq!(version_in(b""), None);
    }

    #[test]
    fn the_runtime_of_this_system_is_found_with_its_version() {
        let Ok(mut child) = std::process::Command::new("sbcl")
            .args(["--non-interactive", "--no-sysinit", "--no-userinit", "--eval", "(sleep 600)"])
            .stdout(std::process::Stdio::null())
            .spawn()
        else {
            eprintln!("skipped: no sbcl here");
            return;
        };
        let process = Process::open(child.id() as i32).unwrap();
        let mut programs = Vec::new();
        // SBCL maps its runtime a while after its start.
        while programs.is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
            programs = find(&process, &space);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(programs.len(), 1);
        assert!(programs[0].address("generations").is_some());
        let version = std::process::Command::new("sbcl").arg("--version").output().unwrap();
        let version = String::from_utf8_lossy(&version.stdout).trim().replace("SBCL ", "");
        assert_eq!(programs[0].version.as_deref(), Some(version.as_str()));
    }
}

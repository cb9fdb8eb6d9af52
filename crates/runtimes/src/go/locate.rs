//! Finds Go in mapped files: its version, the address of its heap structure, its static data.

use super::MAX_PROGRAMS;
use super::layout::{BUILD_INFORMATION_BYTES, LAYOUTS, Layout};
use crate::named::go_version;
use strandline_process::elf::Object;
use strandline_process::image::ElfFile;
use strandline_process::map::AddressSpace;
use strandline_process::modules::{self, Module};
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;

/// Symbols that only plugins export, neither programs nor C libraries. A plugin contains the code
/// of a runtime but uses the runtime of the program, and registers its own tables there through
/// this function.
const PLUGIN_SYMBOLS: [&str; 2] = ["runtime.addmoduledata.abi0", "runtime.addmoduledata"];

/// A mapped file that holds a Go runtime.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path, as the kernel reports it.
    pub path: String,
    /// Version; `None` if the file states none that begins with `go`: those of old development
    /// builds begin with `devel`.
    pub version: Option<String>,
    /// Addresses of its variables.
    pub symbols: Symbols,
    /// Range of its static data.
    pub data: AddressRange,
    /// Whether no other library is mapped and there is no `brk` heap, so that no other malloc has
    /// memory in the process.
    pub is_only_module: bool,
}

/// Addresses of a runtime's variables; `None` in stripped files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Symbols {
    /// `runtime.mheap_`.
    pub heap: Option<u64>,
    /// `runtime.gcController`.
    pub controller: Option<u64>,
    /// `runtime.memstats`.
    pub memstats: Option<u64>,
}

impl Program {
    /// Returns the layout of its version; `None` if none is known.
    pub fn layout(&self) -> Option<&'static Layout> {
        let mut parts = self.version.as_deref()?.split('.');
        let (Some("1"), Some(minor)) = (parts.next(), parts.next()) else { return None };
        let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
        let minor: u8 = digits.parse().ok()?;
        LAYOUTS.iter().find(|layout| (layout.first_minor..=layout.last_minor).contains(&minor))
    }
}

/// Returns the mapped files that hold a Go runtime: up to [`MAX_PROGRAMS`], and one more if there
/// are more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    let modules = modules::all(space);
    // glibc's loader keeps no memory for itself, and the kernel's vDSO takes none.
    let is_other = |module: &&Module<'_>| {
        let name = &module.code.name;
        !name.contains("/ld-linux-x86-64.so") && name.starts_with('/')
    };
    // Go does not use brk; a statically linked C library does.
    let has_break = space.mappings().iter().any(|mapping| mapping.name == "[heap]");
    let is_alone = !has_break && modules.iter().filter(is_other).count() == 1;
    let programs = modules.iter().filter_map(|module| program(process, space, module, is_alone));
    programs.take(MAX_PROGRAMS + 1).collect()
}

/// Returns the Go runtime in a module; `None` if it has none, or cannot be read.
fn program(process: &Process, space: &AddressSpace, module: &Module<'_>, is_alone: bool) -> Option<Program> {
    let image = open_mapped_file(process, module.code).ok().and_then(ElfFile::open)?;
    let information = image.section_bytes(".go.buildinfo", BUILD_INFORMATION_BYTES)?;
    if !image.exported(&PLUGIN_SYMBOLS).is_empty() {
        return None;
    }
    let object = Object::open(process, space, module.code).ok()?;
    let [heap, controller, memstats] =
        object.symbol_addresses(["runtime.mheap_", "runtime.gcController", "runtime.memstats"]);
    Some(Program {
        path: module.code.name.clone(),
        version: go_version(&information),
        symbols: Symbols { heap, controller, memstats },
        data: module.data,
        is_only_module: is_alone,
    })
}

//! Finds V8 in mapped files, with its version.

use super::MAX_PROGRAMS;
use super::current::{self, CurrentIsolate, TRY_GET_CURRENT};
use super::instance_types::{self, InstanceTypes};
use super::layout::{LAYOUTS, Layout};
use strandline_process::elf::Object;
use strandline_process::image::ElfFile;
use strandline_process::map::AddressSpace;
use strandline_process::modules::{self, Module};
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;

/// `v8::internal::Version::major_`, `minor_`, `build_` and `patch_` (`src/utils/version.h`), which
/// stripped builds of Node.js export too.
const VERSION_SYMBOLS: [&str; 4] = [
    "_ZN2v88internal7Version6major_E",
    "_ZN2v88internal7Version6minor_E",
    "_ZN2v88internal7Version6build_E",
    "_ZN2v88internal7Version6patch_E",
];

/// `v8::Isolate::MemoryPressureNotification(v8::MemoryPressureLevel)` (`include/v8-isolate.h`),
/// which "can be called from any thread".
pub const MEMORY_PRESSURE: &str = "_ZN2v87Isolate26MemoryPressureNotificationENS_19MemoryPressureLevelE";

/// Bytes read of that function, which has 94 to 100 in the versions tried.
const FUNCTION_BYTES: u64 = 128;

/// A mapped file that holds V8.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Path, as the kernel reports it.
    pub path: String,
    /// Major, minor, build and patch number; `None` if the file does not state them.
    pub version: Option<[u32; 4]>,
    /// The code of [`MEMORY_PRESSURE`], and what follows it; empty if the file does not export it.
    pub memory_pressure: Vec<u8>,
    /// Where a thread's current isolate is; `None` if the code that reads it was not understood.
    pub current_isolate: Option<CurrentIsolate>,
    /// Instance types; `None` if the file does not state them, or the layout is not known.
    pub types: Option<InstanceTypes>,
}

impl Program {
    /// Returns the version as V8 writes it.
    pub fn version_text(&self) -> Option<String> {
        let numbers: Vec<String> = self.version?.iter().map(u32::to_string).collect();
        Some(numbers.join("."))
    }

    /// Returns the layout of its version; `None` if none is known.
    pub fn layout(&self) -> Option<&'static Layout> {
        let [major, minor, ..] = self.version?;
        LAYOUTS.iter().find(|layout| layout.version == [major, minor])
    }

    /// Sets the instance types: those of V8's classes, and the first one of contexts.
    pub fn set_types(&mut self, classes: impl Iterator<Item = (String, u16)>, first_context: u16) {
        self.types =
            self.layout().and_then(|layout| InstanceTypes::new(classes, first_context, &layout.objects));
    }
}

/// Returns the mapped files that hold V8: up to [`MAX_PROGRAMS`], and one more if there are more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    let modules = modules::all(space);
    modules.iter().filter_map(|module| program(process, space, module)).take(MAX_PROGRAMS + 1).collect()
}

/// Returns the V8 in a module; `None` if the module exports no version of V8.
fn program(process: &Process, space: &AddressSpace, module: &Module<'_>) -> Option<Program> {
    let image = open_mapped_file(process, module.code).ok().and_then(ElfFile::open)?;
    let [major, minor, build, patch] = VERSION_SYMBOLS;
    let symbols = image.exported(&[major, minor, build, patch, MEMORY_PRESSURE, TRY_GET_CURRENT]);
    let address = |name: &str| symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address);
    if VERSION_SYMBOLS.iter().all(|name| address(name).is_none()) {
        return None;
    }
    let number = |name: &str| Some(u32::from_le_bytes(image.bytes_at(address(name)?, 4)?.try_into().ok()?));
    let version = match VERSION_SYMBOLS.map(number) {
        [Some(major), Some(minor), Some(build), Some(patch)] => Some([major, minor, build, patch]),
        _ => None,
    };
    let code = address(MEMORY_PRESSURE).and_then(|address| image.bytes_at(address, FUNCTION_BYTES));
    let object = Object::open(process, space, module.code).ok();
    let current_isolate = object.and_then(|object| {
        let code = image.bytes_at(address(TRY_GET_CURRENT)?, current::FUNCTION_BYTES)?;
        CurrentIsolate::decode(&code, object.symbol_address(TRY_GET_CURRENT)?)
    });
    let (path, memory_pressure) = (module.code.name.clone(), code.unwrap_or_default());
    let mut program = Program { path, version, memory_pressure, current_isolate, types: None };
    if let Some(exported) = instance_types::exported(&image) {
        program.set_types(exported.classes.into_iter(), exported.first_context);
    }
    Some(program)
}

//! Finds V8 in mapped files, with its version.

use super::MAX_PROGRAMS;
use super::layout::{LAYOUTS, Layout};
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

/// A mapped file that holds V8.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path, as the kernel reports it.
    pub path: String,
    /// Major, minor, build and patch number; `None` if the file does not state them.
    pub version: Option<[u32; 4]>,
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
        LAYOUTS.iter().find(|layout| layout.version == (major, minor))
    }
}

/// Returns the mapped files that hold V8: up to [`MAX_PROGRAMS`], and one more if there are more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    let modules = modules::all(space);
    modules.iter().filter_map(|module| program(process, module)).take(MAX_PROGRAMS + 1).collect()
}

fn program(process: &Process, module: &Module<'_>) -> Option<Program> {
    let image = open_mapped_file(process, module.code).ok().and_then(ElfFile::open)?;
    let symbols = image.exported(&VERSION_SYMBOLS);
    if symbols.is_empty() {
        return None;
    }
    let number = |name: &str| {
        let symbol = symbols.iter().find(|symbol| symbol.name == name)?;
        Some(u32::from_le_bytes(image.bytes_at(symbol.address, 4)?.try_into().ok()?))
    };
    let [major, minor, build, patch] = VERSION_SYMBOLS.map(number);
    let version = major.zip(minor).zip(build.zip(patch));
    let version = version.map(|((major, minor), (build, patch))| [major, minor, build, patch]);
    Some(Program { path: module.code.name.clone(), version })
}

//! Finds HotSpot in mapped files, and the tables that describe its structures.

use std::fs::File;
use std::sync::OnceLock;

use super::MAX_PROGRAMS;
use super::structs::{TABLES, VmStructs};
use strandline_process::elf::Object;
use strandline_process::image::ElfFile;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::modules::{self, Module};
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;

/// A mapped file that contains HotSpot.
#[derive(Debug)]
pub struct Program {
    /// Path, as the kernel reports it.
    pub path: String,
    /// Range of its static data.
    pub data: AddressRange,
    file: File,
    tables: [u64; 4],
    bias: u64,
    structs: OnceLock<Option<VmStructs>>,
}

impl Program {
    /// A program with pointers to the tables at `tables`, in a library mapped from `file`. `bias`
    /// is the difference between its addresses in the process and in the file, `data` its static
    /// data.
    pub fn new(path: &str, file: File, tables: [u64; 4], bias: u64, data: AddressRange) -> Self {
        Self { path: path.to_owned(), data, file, tables, bias, structs: OnceLock::new() }
    }

    /// Reads the description of its structures, once: it does not change while the library is
    /// mapped. `None` if it cannot be read.
    pub fn structs(&self, memory: &dyn Memory) -> Option<&VmStructs> {
        self.structs.get_or_init(|| VmStructs::read(memory, &self.file, self.tables, self.bias)).as_ref()
    }
}

/// Returns the mapped files that contain HotSpot: up to [`MAX_PROGRAMS`], and one more if there are
/// more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    modules::exporting(process, space, &TABLES[..1])
        .filter_map(|module| program(process, space, &module))
        .take(MAX_PROGRAMS + 1)
        .collect()
}

fn program(process: &Process, space: &AddressSpace, module: &Module<'_>) -> Option<Program> {
    let object = Object::open(process, space, module.code).ok()?;
    let open = || open_mapped_file(process, module.code).ok();
    let exported = ElfFile::open(open()?)?.exported(&TABLES[..1]);
    let [fields, types, ints, longs] = object.symbol_addresses(TABLES);
    let tables = [fields?, types?, ints?, longs?];
    let bias = tables[0].wrapping_sub(exported.first()?.address);
    Some(Program::new(&module.code.name, open()?, tables, bias, module.data))
}

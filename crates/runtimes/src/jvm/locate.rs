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
    /// Where its tables are, or what of them was not found, as a clause.
    tables: Result<Tables, String>,
    structs: OnceLock<Result<VmStructs, String>>,
}

/// Where the tables of a HotSpot are.
#[derive(Debug)]
struct Tables {
    /// The library, which holds the names that the tables point to.
    file: File,
    /// Addresses of the pointers to the tables, in the order of [`TABLES`].
    pointers: [u64; 4],
    /// Difference between the library's addresses in the process and in the file.
    bias: u64,
}

impl Program {
    /// A program with pointers to the tables at the addresses `pointers`, in a library mapped from
    /// `file`. `bias` is the difference between its addresses in the process and in the file,
    /// `data` its static data.
    pub fn new(path: &str, file: File, pointers: [u64; 4], bias: u64, data: AddressRange) -> Self {
        Self::with_tables(path, Ok(Tables { file, pointers, bias }), data)
    }

    /// A program whose tables were not all found: `missing` says which, as a clause.
    #[cfg(test)]
    pub fn incomplete(path: &str, missing: &str, data: AddressRange) -> Self {
        Self::with_tables(path, Err(missing.to_owned()), data)
    }

    fn with_tables(path: &str, tables: Result<Tables, String>, data: AddressRange) -> Self {
        Self { path: path.to_owned(), data, tables, structs: OnceLock::new() }
    }

    /// Reads the description of its structures, once: it does not change while the library is
    /// mapped.
    ///
    /// # Errors
    /// What of it was not found or cannot be read, as a clause.
    pub fn structs(&self, memory: &dyn Memory) -> Result<&VmStructs, &str> {
        let read = || match &self.tables {
            Ok(Tables { file, pointers, bias }) => VmStructs::read(memory, file, *pointers, *bias),
            Err(missing) => Err(missing.clone()),
        };
        self.structs.get_or_init(read).as_ref().map_err(String::as_str)
    }
}

/// Returns the mapped files that contain HotSpot, or a part of it: up to [`MAX_PROGRAMS`] complete
/// ones, and one more if there are more; then incomplete ones, which get a caveat each.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    let (mut programs, mut incomplete_programs) = (Vec::new(), Vec::new());
    for module in modules::exporting(process, space, &TABLES) {
        let tables = tables(process, space, &module);
        let list = if tables.is_ok() { &mut programs } else { &mut incomplete_programs };
        list.push(Program::with_tables(&module.code.name, tables, module.data));
        if programs.len() > MAX_PROGRAMS {
            break;
        }
    }
    programs.extend(incomplete_programs);
    programs.truncate(MAX_PROGRAMS + 1);
    programs
}

/// Locates the tables of a module that exports at least one of them.
///
/// # Errors
/// What was not found, as a clause.
fn tables(process: &Process, space: &AddressSpace, module: &Module<'_>) -> Result<Tables, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("its file cannot be read ({error})");
    let object = Object::open(process, space, module.code).map_err(|error| unreadable(&error))?;
    let open = || open_mapped_file(process, module.code).map_err(|error| unreadable(&error));
    let image = ElfFile::open(open()?).ok_or("its file is no ELF-64 file")?;
    let addresses = object.symbol_addresses(TABLES);
    let exported = image.exported(&TABLES[..1]);
    let ([Some(fields), Some(types), Some(ints), Some(longs)], Some(in_file)) = (addresses, exported.first())
    else {
        let is_missing = |index: &usize| addresses[*index].is_none() || *index == 0 && exported.is_empty();
        let missing: Vec<&str> = (0..TABLES.len()).filter(is_missing).map(|index| TABLES[index]).collect();
        return Err(format!("it does not export {}", missing.join(", ")));
    };
    let bias = fields.wrapping_sub(in_file.address);
    Ok(Tables { file: open()?, pointers: [fields, types, ints, longs], bias })
}

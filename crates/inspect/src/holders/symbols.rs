//! Names of variables and functions in programs and libraries.

use std::collections::HashMap;

use strandline_process::elf::Object;
use strandline_process::map::Mapping;
use strandline_process::procfs::Process;

use super::names;
use crate::capture::FrozenState;

/// Maximum number of symbols of one program or library; further variables and functions are named
/// by file and offset.
const MAX_SYMBOLS: usize = 1 << 21;
/// Maximum bytes of the names of all these symbols.
const MAX_NAMES_BYTES: usize = 128 << 20;
/// Maximum number of names of one function: functions with identical code may be merged.
const MAX_FUNCTION_NAMES: usize = 16;
/// Maximum number of functions before an instruction that are checked for one that contains it.
const MAX_CHECKED: usize = 64;

/// A data symbol.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Its address in the process.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its name as in the file, [bounded](names::bounded).
    pub name: Vec<u8>,
}

/// Data symbols, in address order.
pub struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Reads the data symbols of the program or library of a mapping; empty if it cannot be read.
    pub fn read(process: &Process, frozen: &FrozenState, mapping: &Mapping) -> Self {
        let (mut symbols, mut names_bytes): (Vec<Symbol>, usize) = (Vec::new(), 0);
        if let Ok(object) = Object::open(process, &frozen.address_space, mapping) {
            object.each_symbol(&mut |name, symbol| {
                let mapping = frozen.address_space.find(symbol.address);
                let is_data = mapping.is_some_and(|mapping| !mapping.permissions.execute);
                let has_room = symbols.len() < MAX_SYMBOLS && names_bytes < MAX_NAMES_BYTES;
                if is_data && symbol.bytes > 0 && has_room {
                    let name = names::bounded(name);
                    names_bytes += name.len();
                    symbols.push(Symbol { address: symbol.address, bytes: symbol.bytes, name });
                }
            });
        }
        symbols.sort_unstable();
        Self(symbols)
    }

    /// Returns the symbol that contains an address.
    pub fn containing(&self, address: u64) -> Option<&Symbol> {
        let index = self.0.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        self.0.get(index).filter(|symbol| address - symbol.address < symbol.bytes)
    }
}

/// The names of a function.
pub struct FunctionNames {
    /// The names.
    pub names: Vec<String>,
    /// Whether these are all names; false if one was too long, could not be demangled, or was one
    /// too many.
    pub is_complete: bool,
}

impl Default for FunctionNames {
    fn default() -> Self {
        Self { names: Vec::new(), is_complete: true }
    }
}

/// Adds all names of functions of one program or library that begin at one of the sorted
/// `addresses` to `found`; none if the file cannot be read.
pub fn add_function_names(
    process: &Process,
    frozen: &FrozenState,
    mapping: &Mapping,
    addresses: &[u64],
    found: &mut HashMap<u64, FunctionNames>,
) {
    let Ok(object) = Object::open(process, &frozen.address_space, mapping) else { return };
    object.each_symbol(&mut |name, symbol| {
        if addresses.binary_search(&symbol.address).is_ok() {
            let function = found.entry(symbol.address).or_default();
            let text =
                if name.len() <= names::MAX_BYTES { names::demangle_symbol(name) } else { String::new() };
            // A name that could not be demangled keeps its prefix.
            if text.is_empty() || text.starts_with("_ZN") || text.starts_with("_R") {
                function.is_complete = false;
            } else if !function.names.contains(&text) {
                function.is_complete &= function.names.len() < MAX_FUNCTION_NAMES;
                function.names.extend(Some(text).filter(|_| function.is_complete));
            }
        }
    });
}

/// A function: its addresses, and its number among all symbols of the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FunctionRange {
    start: u64,
    end: u64,
    number: u32,
}

/// Returns the name of the function that contains each of `instructions`, in the same order; `None`
/// for one in no known function, and for all if the file cannot be read. If functions overlap, only
/// the last `MAX_CHECKED` that begin before the instruction are considered: a hostile file may have
/// millions.
pub fn functions(
    process: &Process,
    frozen: &FrozenState,
    mapping: &Mapping,
    instructions: &[u64],
) -> Vec<Option<String>> {
    let mut function_names: Vec<Option<String>> = vec![None; instructions.len()];
    let Ok(object) = Object::open(process, &frozen.address_space, mapping) else { return function_names };
    let mut sorted = instructions.to_vec();
    sorted.sort_unstable();
    let mut functions: Vec<FunctionRange> = Vec::new();
    let mut number = 0_u32;
    object.each_symbol(&mut |_, symbol| {
        number = number.saturating_add(1);
        let end = symbol.address.saturating_add(symbol.bytes);
        let first = sorted.partition_point(|&instruction| instruction < symbol.address);
        let has_instruction = sorted.get(first).is_some_and(|&instruction| instruction < end);
        if has_instruction && functions.len() < MAX_SYMBOLS {
            functions.push(FunctionRange { start: symbol.address, end, number });
        }
    });
    functions.sort_unstable();
    let mut by_number: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, &instruction) in instructions.iter().enumerate() {
        let next = functions.partition_point(|function| function.start <= instruction);
        let near = functions.get(next.saturating_sub(MAX_CHECKED)..next).unwrap_or_default();
        if let Some(function) = near.iter().rev().find(|function| instruction < function.end) {
            by_number.entry(function.number).or_default().push(index);
        }
    }
    number = 0;
    object.each_symbol(&mut |name, _| {
        number = number.saturating_add(1);
        for index in by_number.remove(&number).into_iter().flatten() {
            if let Some(function_name) = function_names.get_mut(index) {
                *function_name = Some(names::demangle_symbol(&names::bounded(name)));
            }
        }
    });
    function_names
}

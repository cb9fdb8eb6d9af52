//! What programs and libraries call their variables and functions.

use std::collections::HashMap;

use strandline_process::elf::Object;
use strandline_process::map::Mapping;
use strandline_process::procfs::Process;

use super::names;
use crate::explain::frozen::Frozen;

/// The most symbols of one program or library, and bytes of their names.
const MAX_SYMBOLS: usize = 1 << 21;
const MAX_NAMES_BYTES: usize = 128 << 20;
/// Names of one function: those of several that are the same to the processor are put together.
const MAX_NAMES: usize = 16;
/// Symbols that are looked at for one that an instruction is in.
const MAX_BACK: usize = 64;

/// A symbol of data.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Where it is in the process.
    pub address: u64,
    /// How large.
    pub bytes: u64,
    /// As it stands in the file.
    pub name: Vec<u8>,
}

/// Symbols of data, in address order.
pub struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Those of the program or library of a mapping; none where it cannot be read.
    pub fn of(process: &Process, frozen: &Frozen, mapping: &Mapping) -> Self {
        let (mut symbols, mut names_bytes): (Vec<Symbol>, usize) = (Vec::new(), 0);
        if let Ok(object) = Object::open(process, &frozen.space, mapping) {
            object.each_symbol(&mut |name, symbol| {
                let found = frozen.space.find(symbol.address);
                let is_data = found.is_some_and(|mapping| !mapping.permissions.execute);
                let has_room = symbols.len() < MAX_SYMBOLS && names_bytes < MAX_NAMES_BYTES;
                if is_data && symbol.bytes > 0 && has_room {
                    let name = name.get(..name.len().min(names::MAX_BYTES)).unwrap_or_default().to_vec();
                    names_bytes += name.len();
                    symbols.push(Symbol { address: symbol.address, bytes: symbol.bytes, name });
                }
            });
        }
        symbols.sort_unstable();
        Self(symbols)
    }

    /// The symbol that has an address.
    pub fn at(&self, address: u64) -> Option<&Symbol> {
        let index = self.0.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        self.0.get(index).filter(|symbol| address - symbol.address < symbol.bytes)
    }
}

/// What a function is called.
pub struct Called {
    /// Its names.
    pub names: Vec<String>,
    /// Whether it has no others, which were too long or too many.
    pub are_all: bool,
}

impl Default for Called {
    fn default() -> Self {
        Self { names: Vec::new(), are_all: true }
    }
}

/// All names of the functions of one program or library that begin at some addresses, which are in order.
pub fn beginning_at(
    process: &Process,
    frozen: &Frozen,
    mapping: &Mapping,
    addresses: &[u64],
    found: &mut HashMap<u64, Called>,
) {
    let Ok(object) = Object::open(process, &frozen.space, mapping) else { return };
    object.each_symbol(&mut |name, symbol| {
        if addresses.binary_search(&symbol.address).is_ok() {
            let known = found.entry(symbol.address).or_default();
            let text = if name.len() <= names::MAX_BYTES { names::of_symbol(name) } else { String::new() };
            // What was not made sense of begins as it did.
            if text.is_empty() || text.starts_with("_ZN") || text.starts_with("_R") {
                known.are_all = false;
            } else if !known.names.contains(&text) {
                known.are_all &= known.names.len() < MAX_NAMES;
                known.names.extend(Some(text).filter(|_| known.are_all));
            }
        }
    });
}

/// The functions that some instructions of one program or library are in, in the order of these. Of functions that overlap it is one
/// that begins not far in front: a file made to hurt has millions of them.
pub fn functions(
    process: &Process,
    frozen: &Frozen,
    mapping: &Mapping,
    instructions: &[u64],
) -> Vec<Option<String>> {
    let mut found: Vec<Option<String>> = vec![None; instructions.len()];
    let Ok(object) = Object::open(process, &frozen.space, mapping) else { return found };
    let mut wanted = instructions.to_vec();
    wanted.sort_unstable();
    // Begin, end, and the place among all symbols.
    let mut ranges: Vec<(u64, u64, u32)> = Vec::new();
    let mut place = 0_u32;
    object.each_symbol(&mut |_, symbol| {
        place = place.saturating_add(1);
        let end = symbol.address.saturating_add(symbol.bytes);
        let first = wanted.partition_point(|&at| at < symbol.address);
        if wanted.get(first).is_some_and(|&at| at < end) && ranges.len() < MAX_SYMBOLS {
            ranges.push((symbol.address, end, place));
        }
    });
    ranges.sort_unstable();
    let mut by_place: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, &at) in instructions.iter().enumerate() {
        let behind = ranges.partition_point(|range| range.0 <= at);
        let near = ranges.get(behind.saturating_sub(MAX_BACK)..behind).unwrap_or_default();
        if let Some(range) = near.iter().rev().find(|range| at < range.1) {
            by_place.entry(range.2).or_default().push(index);
        }
    }
    place = 0;
    object.each_symbol(&mut |name, _| {
        place = place.saturating_add(1);
        for index in by_place.remove(&place).into_iter().flatten() {
            let name = name.get(..name.len().min(names::MAX_BYTES)).unwrap_or_default();
            if let Some(found) = found.get_mut(index) {
                *found = Some(names::of_symbol(name));
            }
        }
    });
    found
}

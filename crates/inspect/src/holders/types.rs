//! What blocks are: the C++ class whose table of virtual functions their first word leads to, or else how large they are.
//!
//! Before such a table stands the address of the class's `std::type_info`, which has the address of its name (Itanium C++ ABI,
//! "Virtual Table Layout" and "RTTI Layout"): in stripped programs too. The table and the rest are in read-only data of a mapped file.

use std::collections::HashMap;

use strandline_holders::{Held, Refused};
use strandline_process::map::AddressSpace;
use strandline_process::memory::{Memory, word_at};

use super::Filled;
use super::facts::Type;
use super::pins::Pins;

/// Bytes that are read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Tables that are looked at; a heap made to hurt has as many first words as blocks.
const MOST_TABLES: usize = 1 << 16;
/// Different sizes that are told apart; larger blocks and further sizes are one type.
const MOST_SIZES: usize = 1 << 16;
/// The longest name that is read.
const MOST_NAME: usize = 512;

/// The types of blocks, and what each is called.
pub struct Types {
    of: Vec<u32>,
    names: Vec<String>,
    by_name: HashMap<String, u32>,
    by_size: HashMap<u64, u32>,
}

impl Types {
    /// Reads the first word of each block.
    pub fn read(held: &Held, (memory, space): (&Filled<'_>, &AddressSpace)) -> Result<Self, Refused> {
        let blocks = held.blocks();
        let mut types =
            Self { of: Vec::new(), names: Vec::new(), by_name: HashMap::new(), by_size: HashMap::new() };
        let count = blocks.len() as usize;
        types.of.try_reserve_exact(count).map_err(|_| Refused::NoMemory(count as u64 * 4))?;
        let mut tables: HashMap<u64, Option<u32>> = HashMap::new();
        let mut window = (0_u64, vec![0; WINDOW_BYTES], 0_usize);
        for (start, bytes) in blocks.iter(0) {
            let word = first_word(memory, &mut window, start);
            let known = tables.get(&word).copied();
            let class = known.unwrap_or_else(|| {
                let class = if tables.len() < MOST_TABLES { class_of(memory, space, word) } else { None };
                let class = class.map(|name| types.named(name));
                // Words that are no addresses of read-only data are most of all there are: those are not kept.
                if class.is_some() {
                    tables.insert(word, class);
                }
                class
            });
            let kind = class.unwrap_or_else(|| types.sized(bytes));
            types.of.push(kind);
        }
        Ok(types)
    }

    fn named(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        *self.by_name.entry(name.clone()).or_insert_with(|| {
            self.names.push(name);
            next
        })
    }

    fn sized(&mut self, bytes: u64) -> u32 {
        let is_full = self.by_size.len() >= MOST_SIZES && !self.by_size.contains_key(&bytes);
        // 0 is no size: further ones stand there.
        let bytes = if is_full { 0 } else { bytes };
        if let Some(&known) = self.by_size.get(&bytes) {
            return known;
        }
        let name = if is_full { "blocks of other sizes".to_owned() } else { format!("{bytes}-byte blocks") };
        let kind = self.named(name);
        self.by_size.insert(bytes, kind);
        kind
    }

    /// How many types there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// The type of a block.
    pub fn of(&self, block: usize) -> u32 {
        self.of.get(block).copied().unwrap_or(0)
    }

    /// All of them, the one with most bytes first.
    pub fn told(&self, held: &Held, is_lost: &dyn Fn(u32) -> bool, pins: &Pins) -> Vec<Type> {
        let mut all: Vec<Type> =
            self.names.iter().map(|name| Type { name: name.clone(), ..Type::default() }).collect();
        for (block, (_, bytes)) in held.blocks().iter(0).enumerate() {
            if let Some(of) = all.get_mut(self.of(block) as usize) {
                of.instances += 1;
                of.bytes += bytes;
                of.unreachable_bytes += if is_lost(block as u32) { bytes } else { 0 };
            }
        }
        for (of, &pins) in all.iter_mut().zip(&pins.of_types) {
            of.pins_bytes = pins;
        }
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

fn first_word(memory: &dyn Memory, window: &mut (u64, Vec<u8>, usize), start: u64) -> u64 {
    let (at, bytes, got) = window;
    let skip = start.checked_sub(*at).and_then(|skip| usize::try_from(skip).ok());
    let skip = skip.filter(|skip| skip.saturating_add(8) <= *got).unwrap_or_else(|| {
        (*at, *got) = (start, memory.read_some(start, bytes));
        0
    });
    if skip + 8 <= *got { word_at(bytes, skip).unwrap_or(0) } else { 0 }
}

/// The name of the class whose table of virtual functions is at `table`.
fn class_of(memory: &Filled<'_>, space: &AddressSpace, table: u64) -> Option<String> {
    let is_of_file = |address: u64| {
        let found = space.find(address);
        found.is_some_and(|mapping| mapping.has_file() && !mapping.permissions.shared)
    };
    if !table.is_multiple_of(8) || !is_of_file(table) || !is_of_file(table.checked_sub(16)?) {
        return None;
    }
    // The first function, and how far the table's part of an object stands from its beginning: 0 for the whole object.
    let is_code = |address: u64| space.find(address).is_some_and(|mapping| mapping.permissions.execute);
    let function = memory.memory.read_word(table).ok()?;
    let (offset, info) =
        (memory.memory.read_word(table - 16).ok()?, memory.memory.read_word(table - 8).ok()?);
    if !is_code(function) || offset != 0 || !is_of_file(info) {
        return None;
    }
    let name = memory.memory.read_word(info.checked_add(8)?).ok().filter(|&name| is_of_file(name))?;
    let mut text = [0; MOST_NAME];
    let got = memory.memory.read_some(name, &mut text);
    let text = text.get(..got)?.split(|&byte| byte == 0).next()?;
    // Of a class that is known in one file only a star stands in front.
    let text = std::str::from_utf8(text).ok()?.trim_start_matches('*');
    demangled(text)
}

/// A type's name as its author wrote it.
fn demangled(mangled: &str) -> Option<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if mangled.is_empty() || !mangled.chars().all(is_of_name) {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(format!("_ZTS{mangled}")).ok()?;
    let name = symbol.demangle().ok()?;
    name.strip_prefix("typeinfo name for ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_their_author_wrote_them() {
        assert_eq!(demangled("7Session").as_deref(), Some("Session"));
        assert_eq!(demangled("N3net5CacheIiEE").as_deref(), Some("net::Cache<int>"));
        assert_eq!((demangled(""), demangled("7Ses\nion"), demangled("99")), (None, None, None));
    }
}

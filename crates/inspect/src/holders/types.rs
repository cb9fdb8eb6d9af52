//! What blocks are: the C++ class whose table of virtual functions their first word leads to, what a runtime's reader knows them for, or
//! else how large they are.
//!
//! Before such a table stands the address of the class's `std::type_info`, which has the address of its name (Itanium C++ ABI,
//! "Virtual Table Layout" and "RTTI Layout"): in stripped programs too. The table and the rest are in read-only data of a mapped file.

use std::collections::HashMap;

use strandline_claims::refinements::Refinements;
use strandline_holders::{Held, Refused};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::{Memory, word_at};
use strandline_process::modules;

use super::facts::Type;
use super::pins::Pins;
use super::{Filled, names};

/// Bytes that are read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Tables that are looked at; a heap made to hurt has as many first words as blocks.
const MOST_TABLES: usize = 1 << 16;
/// Different sizes that are told apart; larger blocks and further sizes are one type.
const MOST_SIZES: usize = 1 << 16;

/// The types of blocks, and what each is called.
pub struct Types {
    of: Vec<u32>,
    names: Vec<String>,
    by_name: HashMap<String, u32>,
    by_size: HashMap<u64, u32>,
}

impl Types {
    /// Reads the first word of each block.
    pub fn read(
        held: &Held,
        (memory, space): (&Filled<'_>, &AddressSpace),
        refinements: &Refinements,
    ) -> Result<Self, Refused> {
        let blocks = held.blocks();
        let mut types =
            Self { of: Vec::new(), names: Vec::new(), by_name: HashMap::new(), by_size: HashMap::new() };
        let count = blocks.len() as usize;
        types.of.try_reserve_exact(count).map_err(|_| Refused::NoMemory(count as u64 * 4))?;
        let mut tables: HashMap<u64, Option<u32>> = HashMap::new();
        let modules = Modules::new(space);
        let palette = refinements.palette();
        let mut of_runtimes = Some(refinements.finder()).filter(|_| !refinements.is_empty());
        let mut window = (0_u64, vec![0; WINDOW_BYTES], 0_usize);
        for (start, bytes) in blocks.iter(0) {
            let word = first_word(memory, &mut window, start);
            // Most first words are no addresses in files.
            let is_possible =
                word.is_multiple_of(8) && word >= 16 && modules.have(word) && modules.have(word - 16);
            let class = match tables.get(&word) {
                Some(&known) => known,
                None if is_possible && tables.len() < MOST_TABLES => {
                    let name = modules.class_of(memory.memory, space, word);
                    let class = name.map(|name| types.named(name));
                    tables.insert(word, class);
                    class
                }
                None => None,
            };
            let known = of_runtimes.as_mut().and_then(|finder| finder.find(start, bytes));
            let row = known.filter(|_| class.is_none()).and_then(|known| palette.get(known.slot));
            let kind = class.or_else(|| row.map(|row| types.named(row.0.id.to_owned())));
            let kind = kind.unwrap_or_else(|| types.sized(bytes));
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

    /// The type of each block.
    pub fn all(&self) -> &[u32] {
        &self.of
    }

    /// What a type is called.
    pub fn name(&self, kind: u32) -> &str {
        self.names.get(kind as usize).map_or("", String::as_str)
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
                let lost = if is_lost(block as u32) { bytes } else { 0 };
                of.unreachable_bytes = Some(of.unreachable_bytes.unwrap_or(0) + lost);
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

/// The mapped files that are programs or libraries: what is executed of them, and the rest.
struct Modules(Vec<(u64, u64)>);

impl Modules {
    fn new(space: &AddressSpace) -> Self {
        let groups = modules::groups(space.mappings());
        let are_code = groups.iter().filter(|group| group.iter().any(|of| of.permissions.execute));
        let of_files = are_code.flatten().filter(|mapping| mapping.has_file());
        Self(of_files.map(|mapping| (mapping.start, mapping.end)).collect())
    }

    fn have(&self, address: u64) -> bool {
        let index = self.0.partition_point(|range| range.1 <= address);
        self.0.get(index).is_some_and(|range| range.0 <= address)
    }

    /// The name of the class whose table of virtual functions is at `table`.
    fn class_of(&self, memory: &dyn Memory, space: &AddressSpace, table: u64) -> Option<String> {
        let is_code = |address: u64| {
            self.have(address) && space.find(address).is_some_and(|mapping| mapping.permissions.execute)
        };
        // The first function; how far the table's part of an object stands from its beginning, 0 for the whole object; the type.
        let function = memory.read_word(table).ok()?;
        let (offset, info) = (memory.read_word(table - 16).ok()?, memory.read_word(table - 8).ok()?);
        if !is_code(function) || offset != 0 || !self.have(info) {
            return None;
        }
        let name = memory.read_word(info.checked_add(8)?).ok()?;
        let is_constant = |mapping: &Mapping| self.have(name) && !mapping.permissions.write;
        space.find(name).filter(|mapping| is_constant(mapping))?;
        let mut text = [0; names::MOST_BYTES];
        let got = memory.read_some(name, &mut text);
        let text = text.get(..got)?.split(|&byte| byte == 0).next()?;
        // Of a class that is known in one file only a star stands in front.
        names::of_type(std::str::from_utf8(text).ok()?.trim_start_matches('*'))
    }
}

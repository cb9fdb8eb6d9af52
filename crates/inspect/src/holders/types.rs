//! What blocks are: the C++ class whose table of virtual functions their first word leads to, what a runtime's reader knows them for, or
//! else how large they are.
//!
//! Before such a table stands the address of the class's `std::type_info`, which has the address of its name (Itanium C++ ABI,
//! "Virtual Table Layout" and "RTTI Layout"): in stripped programs too. The table and the rest are in read-only data of a mapped file.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use strandline_claims::refinements::Refinements;
use strandline_holders::{Heads, Hear, Held, Refused};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::modules;

use super::facts::Type;
use super::names;
use super::pins::Pins;
use super::runtimes::OwnBlocks;

/// Words that are looked at for a table, and those that are kept in mind by each worker.
const MOST_LOOKS: u32 = 1 << 19;
const MOST_KEPT: usize = 1 << 14;
/// Different sizes that are told apart; larger blocks and further sizes are one type.
const MOST_SIZES: usize = 1 << 16;

/// The types of blocks, and what each is called.
pub struct Types {
    of: Vec<u32>,
    names: Vec<String>,
    by_name: HashMap<String, u32>,
    by_size: HashMap<u64, u32>,
    /// Of rows of the ledger, which are few.
    rows: Vec<(&'static str, u32)>,
}

/// What the first words of blocks are that may lead to a class's table: heard while references are read.
pub struct FirstWords<'a> {
    modules: Modules,
    space: &'a AddressSpace,
    /// For each block the number of its first word, 0 where that leads to no table.
    numbers: Vec<AtomicU16>,
    memory: &'a dyn Memory,
    known: Mutex<Known>,
}

/// Tables by number.
#[derive(Default)]
struct Known {
    numbers: HashMap<u64, u16>,
    names: Vec<String>,
    /// Words that were looked at, tables or not.
    looks: u32,
}

impl<'a> FirstWords<'a> {
    /// Of so many blocks of a process whose memory is `memory`.
    pub fn new(space: &'a AddressSpace, memory: &'a dyn Memory, blocks: u32) -> Result<Self, Refused> {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(blocks as usize).map_err(|_| Refused::NoMemory(u64::from(blocks) * 2))?;
        numbers.resize_with(blocks as usize, AtomicU16::default);
        Ok(Self { modules: Modules::new(space), space, numbers, memory, known: Mutex::default() })
    }

    /// The number of a word, from 1 on; 0 for what leads to no table, or is one too many.
    fn number(&self, word: u64) -> u16 {
        let Ok(mut known) = self.known.lock() else { return 0 };
        if let Some(&number) = known.numbers.get(&word) {
            return number;
        }
        // A heap made to hurt has as many first words as blocks.
        let Ok(next) = u16::try_from(known.names.len() + 1) else { return 0 };
        if known.looks >= MOST_LOOKS {
            return 0;
        }
        known.looks += 1;
        let Some(name) = self.modules.class_of(self.memory, self.space, word) else { return 0 };
        known.names.push(name);
        known.numbers.insert(word, next);
        next
    }
}

impl Heads for FirstWords<'_> {
    fn hear(&self) -> Hear<'_> {
        let mut known: HashMap<u64, u16> = HashMap::new();
        let mut last = (0, 0);
        Box::new(move |block, word| {
            // Most first words are no addresses in files.
            let is_possible = word.is_multiple_of(8) && word >= 16;
            if !is_possible || !self.modules.have(word) || !self.modules.have(word - 16) {
                return;
            }
            if last.0 != word {
                if known.len() >= MOST_KEPT {
                    known.clear();
                }
                last = (word, *known.entry(word).or_insert_with(|| self.number(word)));
            }
            if let Some(number) = self.numbers.get(block as usize) {
                number.store(last.1, Ordering::Relaxed);
            }
        })
    }
}

impl Types {
    /// Of blocks whose first words were heard.
    pub fn new(
        held: &Held,
        first_words: FirstWords<'_>,
        (refinements, own): (&Refinements, &OwnBlocks<'_>),
    ) -> Result<Self, Refused> {
        let blocks = held.blocks();
        let mut types = Self {
            of: Vec::new(),
            names: Vec::new(),
            by_name: HashMap::new(),
            by_size: HashMap::new(),
            rows: Vec::new(),
        };
        let count = blocks.len() as usize;
        types.of.try_reserve_exact(count).map_err(|_| Refused::NoMemory(count as u64 * 4))?;
        let FirstWords { numbers, known, .. } = first_words;
        let known = known.into_inner().unwrap_or_default();
        let classes: Vec<u32> = known.names.into_iter().map(|name| types.named(name)).collect();
        let palette = refinements.palette();
        let mut of_runtimes = Some(refinements.finder()).filter(|_| !refinements.is_empty());
        for ((start, bytes), number) in blocks.iter(0).zip(&numbers) {
            let class = usize::from(number.load(Ordering::Relaxed)).checked_sub(1);
            let class = class.and_then(|class| classes.get(class).copied());
            let known = of_runtimes.as_mut().and_then(|finder| finder.find(start, bytes));
            let row = known.filter(|_| class.is_none()).and_then(|known| palette.get(known.slot));
            let row = row.map(|row| row.0.id).or_else(|| own.row(start).filter(|_| class.is_none()));
            let kind = class.or_else(|| row.map(|id| types.of_row(id)));
            let kind = kind.unwrap_or_else(|| types.sized(bytes));
            types.of.push(kind);
        }
        Ok(types)
    }

    fn of_row(&mut self, id: &'static str) -> u32 {
        match self.rows.iter().find(|known| known.0 == id) {
            Some(known) => known.1,
            None => {
                let kind = self.named(id.to_owned());
                self.rows.push((id, kind));
                kind
            }
        }
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

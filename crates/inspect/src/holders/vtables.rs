//! Identifies types of blocks by vtables, from words that are collected while references are read.
//!
//! The first word of a C++ object points to the vtable of its class. The word before the vtable
//! points to the class's `std::type_info`, which has the address of its name (Itanium C++ ABI,
//! "Virtual Table Layout" and "RTTI Layout"), in stripped programs too. A Rust trait object is
//! identified by a reference to it: the word after its address points to a vtable with the drop
//! function, size, alignment and methods of the trait (rust-lang/rust,
//! compiler/rustc_middle/src/ty/vtable.rs, `COMMON_VTABLE_ENTRIES`; the order is not guaranteed).
//! Both vtables are in read-only data of a mapped file.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use strandline_holders::{Refused, TypeWord, TypeWordSink, WordCallback};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::modules;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, containing};

use super::names;
use super::symbols::{self, FunctionNames};
use crate::capture::FrozenState;

/// Maximum number of distinct words that are checked for a vtable. Further ones give no type: a
/// hostile heap may have as many as blocks.
const MAX_CHECKED: usize = 1 << 19;
/// Maximum number of results that each worker caches.
const MAX_CACHED: usize = 1 << 14;
/// Number of blocks whose vtable numbers are allocated together.
const GROUP_BLOCKS: usize = 1 << 12;
/// Maximum alignment of a type. Rust permits 2^29, but what exceeds this is probably other data.
const MAX_ALIGNMENT: u64 = 1 << 12;
/// Maximum number of methods that are used to find the name of a type.
const MAX_METHODS: usize = 3;
/// Bytes of a word.
const WORD_BYTES: u64 = 8;
/// Bytes before a C++ vtable: an offset and the address of a type.
const CLASS_PREFIX_BYTES: u64 = 2 * WORD_BYTES;
/// Words before the methods of a Rust vtable: the drop function, size and alignment.
const RUST_HEAD_WORDS: usize = 3;

/// Collects vtables, and which block has which, from several threads.
pub struct VtableCollector<'a> {
    modules: Modules,
    space: &'a AddressSpace,
    block_numbers: BlockNumbers,
    memory: &'a dyn Memory,
    vtables: Mutex<Vtables>,
}

/// For each block the number of its vtable, 0 if none was found. A group of blocks is allocated
/// with its first vtable: in most heaps few blocks have one.
struct BlockNumbers(Vec<OnceLock<Box<[AtomicU16]>>>);

impl BlockNumbers {
    /// The number of a block; `None` if no block of its group has a vtable.
    fn of(&self, block: usize) -> Option<&AtomicU16> {
        self.0.get(block / GROUP_BLOCKS)?.get()?.get(block % GROUP_BLOCKS)
    }

    /// The number of a block, whose group is allocated if necessary.
    fn of_or_new(&self, block: usize) -> Option<&AtomicU16> {
        let zeros = || (0..GROUP_BLOCKS).map(|_| AtomicU16::default()).collect();
        self.0.get(block / GROUP_BLOCKS)?.get_or_init(zeros).get(block % GROUP_BLOCKS)
    }
}

/// The vtables found so far.
#[derive(Default)]
struct Vtables {
    /// The number of the vtable, from 1 on, that each checked word points to, if it points to one.
    checked: HashMap<TypeWord, Option<NonZeroU16>>,
    /// By number, the first one at index 0.
    tables: Vec<Vtable>,
    /// Whether words were not checked, because a maximum was reached.
    is_limited: bool,
}

/// What a vtable identifies.
enum Vtable {
    /// The name of a C++ class.
    Class(String),
    /// A Rust type.
    Trait(RustVtable),
}

/// A vtable of a Rust type.
struct RustVtable {
    /// Size of the type.
    bytes: u64,
    /// Address of the drop function, if anything needs to be dropped.
    drop: Option<u64>,
    /// Addresses of methods.
    methods: Vec<u64>,
}

/// A type with a name.
pub struct NamedType {
    /// Its name.
    pub name: String,
    /// Minimum size of its blocks.
    pub min_bytes: u64,
}

/// Types by number, and the number of the type of each block.
pub struct BlockTypes {
    /// `None` if no name was found for a vtable.
    pub types: Vec<Option<NamedType>>,
    /// Whether types may be missing, because there were too many words to check.
    pub is_limited: bool,
    numbers: BlockNumbers,
}

impl BlockTypes {
    /// Returns the index of a block's type in `types`.
    pub fn type_index(&self, block: usize) -> Option<usize> {
        usize::from(self.numbers.of(block)?.load(Ordering::Relaxed)).checked_sub(1)
    }
}

impl<'a> VtableCollector<'a> {
    /// Makes a collector for `blocks` blocks of a process whose memory is `memory`.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if there is no memory for it.
    pub fn new(space: &'a AddressSpace, memory: &'a dyn Memory, blocks: u32) -> Result<Self, Refused> {
        let mut numbers = Vec::new();
        let groups = (blocks as usize).div_ceil(GROUP_BLOCKS);
        let bytes = groups * size_of::<OnceLock<Box<[AtomicU16]>>>();
        numbers.try_reserve_exact(groups).map_err(|_| Refused::NoMemory(bytes as u64))?;
        numbers.resize_with(groups, OnceLock::default);
        let block_numbers = BlockNumbers(numbers);
        Ok(Self { modules: Modules::new(space), space, block_numbers, memory, vtables: Mutex::default() })
    }

    /// Returns the number of the vtable that a word points to; `None` if it points to no vtable, or
    /// if there are too many.
    fn number(&self, word: TypeWord) -> Option<NonZeroU16> {
        let mut vtables = self.vtables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = vtables.checked.get(&word) {
            return number;
        }
        let next = u16::try_from(vtables.tables.len() + 1).ok().and_then(NonZeroU16::new);
        if next.is_none() || vtables.checked.len() >= MAX_CHECKED {
            vtables.is_limited = true;
            return None;
        }
        let table = match word {
            TypeWord::First(table) => {
                self.modules.class_name(self.memory, self.space, table).map(Vtable::Class)
            }
            TypeWord::AfterReference(table) => {
                self.modules.rust_vtable(self.memory, self.space, table).map(Vtable::Trait)
            }
        };
        let number = next.filter(|_| table.is_some());
        vtables.tables.extend(table);
        vtables.checked.insert(word, number);
        number
    }

    /// Stores the number of a block's vtable, which `word` points to.
    fn set_number(&self, block: u32, word: TypeWord, number: NonZeroU16) {
        let number = number.get();
        let Some(stored) = self.block_numbers.of_or_new(block as usize) else { return };
        // A block's first word is better evidence than a word after a reference to it.
        match word {
            TypeWord::First(_) => stored.store(number, Ordering::Relaxed),
            TypeWord::AfterReference(_) => {
                _ = stored.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Returns all types with their names.
    pub fn finish(self, process: &Process, frozen: &FrozenState) -> BlockTypes {
        let Vtables { tables, is_limited, .. } =
            self.vtables.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut addresses: Vec<u64> = Vec::new();
        for table in &tables {
            if let Vtable::Trait(table) = table {
                addresses.extend(table.drop);
                addresses.extend(&table.methods);
            }
        }
        let functions = function_names(process, frozen, &addresses);
        let named = |table: Vtable| match table {
            Vtable::Class(name) => Some(NamedType { name, min_bytes: 0 }),
            Vtable::Trait(table) => {
                let all_names = |address: &u64| {
                    let function = functions.get(address).filter(|function| function.is_complete);
                    function.map(|function| function.names.as_slice())
                };
                // If not all names of the drop function are known, the type is unknown; methods are
                // weaker evidence.
                let drop = table.drop.as_ref().map_or(Some([].as_slice()), all_names)?;
                let name = names::vtable_type(drop, table.methods.iter().filter_map(all_names))?;
                Some(NamedType { name, min_bytes: table.bytes })
            }
        };
        let types = tables.into_iter().map(named).collect();
        BlockTypes { types, is_limited, numbers: self.block_numbers }
    }
}

impl TypeWordSink for VtableCollector<'_> {
    fn callback(&self) -> WordCallback<'_> {
        let mut cache: HashMap<TypeWord, Option<NonZeroU16>> = HashMap::new();
        let (mut last_word, mut last_number) = (TypeWord::First(0), None);
        Box::new(move |block, word| {
            let (TypeWord::First(table) | TypeWord::AfterReference(table)) = word;
            // Most words are not addresses in mapped files.
            let Some(prefix) = table.checked_sub(CLASS_PREFIX_BYTES) else { return };
            let is_aligned = table.is_multiple_of(WORD_BYTES);
            if !is_aligned || !self.modules.contains(table) || !self.modules.contains(prefix) {
                return;
            }
            if last_word != word {
                if cache.len() >= MAX_CACHED {
                    cache.clear();
                }
                last_word = word;
                last_number = *cache.entry(word).or_insert_with(|| self.number(word));
            }
            if let Some(number) = last_number {
                self.set_number(block, word, number);
            }
        })
    }

    fn type_range(&self) -> AddressRange {
        let modules = self.modules.0.first().zip(self.modules.0.last());
        modules.map_or(AddressRange::default(), |(first, last)| AddressRange::new(first.start, last.end))
    }
}

/// Returns the names of the functions that begin at `addresses`.
fn function_names(process: &Process, frozen: &FrozenState, addresses: &[u64]) -> HashMap<u64, FunctionNames> {
    // Each file is searched once, however many mappings it has.
    let groups = modules::file_groups(&frozen.address_space);
    let indexed = groups.iter().enumerate();
    let groups_by_start: HashMap<u64, usize> =
        indexed.flat_map(|(index, group)| group.iter().map(move |mapping| (mapping.start, index))).collect();
    let mut by_group: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for &address in addresses {
        let mapping = frozen.address_space.find(address);
        if let Some(&group) = mapping.and_then(|mapping| groups_by_start.get(&mapping.start)) {
            by_group.entry(group).or_default().push(address);
        }
    }
    let mut names = HashMap::new();
    for (group, mut addresses) in by_group {
        addresses.sort_unstable();
        addresses.dedup();
        if let Some(mapping) = groups.get(group).and_then(|group| group.first()) {
            symbols::add_function_names(process, frozen, mapping, &addresses, &mut names);
        }
    }
    names
}

/// The mapped files of programs and libraries, executable or not, in address order.
struct Modules(Vec<AddressRange>);

impl Modules {
    fn new(space: &AddressSpace) -> Self {
        let groups = modules::file_groups(space);
        let code = groups.iter().filter(|group| group.iter().any(|mapping| mapping.permissions.execute));
        let file_mappings = code.flatten().filter(|mapping| mapping.has_file());
        Self(file_mappings.map(|mapping| mapping.range()).collect())
    }

    fn contains(&self, address: u64) -> bool {
        containing(&self.0, address).is_some()
    }

    fn is_code(&self, space: &AddressSpace, address: u64) -> bool {
        self.contains(address) && space.find(address).is_some_and(|mapping| mapping.permissions.execute)
    }

    /// Returns the name of the class whose vtable is at `table`.
    fn class_name(&self, memory: &dyn Memory, space: &AddressSpace, table: u64) -> Option<String> {
        // The vtable begins with its first function. Before that are the address of the
        // `std::type_info`, and the offset in the object of the vtable's part: 0 for the whole.
        let function = memory.read_word(table).ok()?;
        let offset = memory.read_word(table.checked_sub(CLASS_PREFIX_BYTES)?).ok()?;
        let info = memory.read_word(table.checked_sub(WORD_BYTES)?).ok()?;
        if !self.is_code(space, function) || offset != 0 || !self.contains(info) {
            return None;
        }
        let name = memory.read_word(info.checked_add(WORD_BYTES)?).ok()?;
        let is_constant = |mapping: &Mapping| self.contains(name) && !mapping.permissions.write;
        space.find(name).filter(|mapping| is_constant(mapping))?;
        let mut text = [0; names::MAX_BYTES];
        let read_bytes = memory.read_some(name, &mut text);
        let text = text.get(..read_bytes)?.split(|&byte| byte == 0).next()?;
        // The name of a class that is local to one file begins with an asterisk.
        names::demangle_type(std::str::from_utf8(text).ok()?.trim_start_matches('*'))
    }

    /// Reads the vtable of a Rust type at `table`.
    fn rust_vtable(&self, memory: &dyn Memory, space: &AddressSpace, table: u64) -> Option<RustVtable> {
        space.find(table).filter(|mapping| !mapping.permissions.write && !mapping.permissions.execute)?;
        let mut head = [0; (RUST_HEAD_WORDS + MAX_METHODS) * WORD_BYTES as usize];
        let read_bytes = memory.read_some(table, &mut head);
        let words = head.get(..read_bytes)?.as_chunks::<8>().0.iter();
        let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
        let (&[drop, bytes, alignment], methods) = words.split_first_chunk()?;
        let has_layout = bytes > 0 && alignment <= MAX_ALIGNMENT && alignment.is_power_of_two();
        if !has_layout || !bytes.is_multiple_of(alignment) || drop != 0 && !self.is_code(space, drop) {
            return None;
        }
        let methods = methods.iter().copied().take_while(|&method| self.is_code(space, method)).collect();
        Some(RustVtable { bytes, drop: Some(drop).filter(|&drop| drop != 0), methods })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x40_0000;
    const DATA: u64 = 0x40_1000;
    /// Of the first vtable, within the constants.
    const TABLE: u64 = DATA + 0x10;
    const INFO: u64 = DATA + 0x80;
    const NAME: u64 = DATA + 0xc0;

    /// The constants of a program.
    struct Constants(Vec<u8>);

    impl Constants {
        fn new(words: &[(u64, u64)]) -> Self {
            let mut bytes = vec![0; 0x1000];
            for (address, word) in words {
                let at = (address - DATA) as usize;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            Self(bytes)
        }
    }

    impl Memory for Constants {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let offset = address.checked_sub(DATA).and_then(|offset| usize::try_from(offset).ok());
            let rest = offset.and_then(|offset| self.0.get(offset..)).unwrap_or_default();
            let bytes = rest.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&rest[..bytes]);
            bytes
        }
    }

    fn space() -> AddressSpace {
        let maps = b"00400000-00401000 r-xp 00000000 08:01 1 /usr/bin/x\n\
                     00401000-00402000 r--p 00001000 08:01 1 /usr/bin/x\n";
        AddressSpace::parse(maps).0
    }

    #[test]
    fn a_class_has_code_an_offset_of_0_and_a_constant_name() {
        let space = space();
        let modules = Modules::new(&space);
        let name = u64::from_le_bytes(*b"*1A\0\0\0\0\0");
        let class = [(TABLE, CODE), (TABLE - 8, INFO), (INFO + 8, NAME), (NAME, name)];
        let name_with = |changed: &[(u64, u64)]| {
            modules.class_name(&Constants::new(&[&class[..], changed].concat()), &space, TABLE)
        };
        assert_eq!(name_with(&[]).as_deref(), Some("A"));
        for changed in [
            (TABLE, DATA),
            (TABLE - 16, 8),
            (TABLE - 8, u64::MAX),
            (INFO + 8, CODE - 1),
            (NAME, u64::MAX),
            (NAME, 0),
        ] {
            assert_eq!(name_with(&[changed]), None, "{changed:x?}");
        }
        for table in [0, 8, 16, DATA, DATA + 0xff8, u64::MAX] {
            assert_eq!(modules.class_name(&Constants::new(&class), &space, table), None, "{table:#x}");
        }
    }

    #[test]
    fn a_rust_vtable_has_a_possible_layout() {
        let space = space();
        let modules = Modules::new(&space);
        let vtable = [(TABLE, 0), (TABLE + 8, 24), (TABLE + 16, 8), (TABLE + 24, CODE), (TABLE + 32, 1)];
        let read_with = |changed: &[(u64, u64)], table: u64| {
            modules.rust_vtable(&Constants::new(&[&vtable[..], changed].concat()), &space, table)
        };
        let read = read_with(&[], TABLE).unwrap();
        assert_eq!((read.bytes, read.drop, read.methods), (24, None, vec![CODE]));
        for changed in [
            (TABLE, DATA),
            (TABLE + 8, 0),
            (TABLE + 8, 25),
            (TABLE + 16, 0),
            (TABLE + 16, 3),
            (TABLE + 16, 1 << 63),
        ] {
            assert!(read_with(&[changed], TABLE).is_none(), "{changed:x?}");
        }
        for table in [0, CODE, DATA + 0xff0, u64::MAX] {
            assert!(read_with(&[], table).is_none(), "{table:#x}");
        }
    }
}

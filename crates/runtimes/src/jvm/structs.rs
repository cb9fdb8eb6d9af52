//! HotSpot's description of its own structures: `gHotSpotVMStructs` and three further tables.
//!
//! Every build exports them for the serviceability agent, stripped ones too
//! (`src/hotspot/share/runtime/vmStructs.{hpp,cpp}`, with the same shape from JDK 8 to 27): offsets
//! of fields, addresses of static fields, sizes of types, and constants. So one reader covers many
//! versions. A constructor fills the tables when the library is loaded, and they do not change
//! later: this reads the tables from the process, and the names that they point to from the file.

use std::collections::BTreeMap;
use std::fs::File;

use strandline_process::constants::Constants;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// The exported pointers to the tables.
pub const TABLES: [&str; 4] =
    ["gHotSpotVMStructs", "gHotSpotVMTypes", "gHotSpotVMIntConstants", "gHotSpotVMLongConstants"];

/// Limit on entries of a table, beyond which it counts as unreadable; JDK 25 has about 2,300
/// fields.
const MAX_ENTRIES: u64 = 16 << 10;
/// Limit on bytes of a name; a table with a longer one counts as unreadable.
const MAX_NAME_BYTES: usize = 160;

/// Bytes of a `VMStructEntry`, then offsets in it: `typeName`, `fieldName`, `typeString`,
/// `isStatic`, `offset`, `address`.
const FIELD_BYTES: usize = 48;
const FIELD_NAME: usize = 8;
const FIELD_IS_STATIC: usize = 24;
const FIELD_OFFSET: usize = 32;
const FIELD_ADDRESS: usize = 40;
/// Bytes of a `VMTypeEntry`, then an offset in it: `typeName`, `superclassName`, three fields of 32
/// bits, `size`.
const TYPE_BYTES: usize = 40;
const TYPE_SIZE: usize = 32;
/// Bytes of a `VMIntConstantEntry` or a `VMLongConstantEntry`, then an offset in it: `name`,
/// `value`.
const CONSTANT_BYTES: usize = 16;
const CONSTANT_VALUE: usize = 8;
/// Entries read at once.
const ENTRIES_AT_ONCE: usize = 64;

/// Place of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldPlace {
    /// Offset in its type.
    Offset(u64),
    /// Address of a static field.
    Static(u64),
}

/// The tables, by name.
#[derive(Clone, Debug, Default)]
pub struct VmStructs {
    /// Places of fields, by `TYPE::FIELD`.
    fields: BTreeMap<String, FieldPlace>,
    /// Sizes of types.
    sizes: BTreeMap<String, u64>,
    constants: BTreeMap<String, i64>,
    /// Addresses of command line flags' values, by name.
    flags: BTreeMap<String, u64>,
    /// Release string: `17.0.15+6-Debian-1deb12u1`; `None` if it cannot be read.
    pub release: Option<String>,
}

impl VmStructs {
    /// Reads the tables. `tables` are the addresses of the pointers to them, in a library mapped
    /// from `file`; `bias` is the difference between its addresses in the process and in the file.
    ///
    /// # Errors
    /// What cannot be read, as a clause.
    pub fn read(memory: &dyn Memory, file: &File, tables: [u64; 4], bias: u64) -> Result<Self, String> {
        let unreadable =
            |table: usize| format!("{} cannot be read completely (swapped out, or damaged)", TABLES[table]);
        let constants = Constants::parse(file).ok_or("its file is no ELF-64 file")?;
        let mut texts = Texts { memory, constants, bias };
        let mut structs = Self::default();
        let [fields, types, ints, longs] = tables;
        texts
            .each_entry(fields, FIELD_BYTES, &mut |texts, name, entry| {
                let field = texts.text(word_at(entry, FIELD_NAME)?)?;
                let place = match half_word_at(entry, FIELD_IS_STATIC)? {
                    0 => FieldPlace::Offset(word_at(entry, FIELD_OFFSET)?),
                    _ => FieldPlace::Static(word_at(entry, FIELD_ADDRESS)?),
                };
                structs.fields.insert(format!("{name}::{field}"), place);
                Some(())
            })
            .ok_or_else(|| unreadable(0))?;
        texts
            .each_entry(types, TYPE_BYTES, &mut |_, name, entry| {
                structs.sizes.insert(name, word_at(entry, TYPE_SIZE)?);
                Some(())
            })
            .ok_or_else(|| unreadable(1))?;
        texts
            .each_entry(ints, CONSTANT_BYTES, &mut |_, name, entry| {
                structs.constants.insert(name, i64::from(half_word_at(entry, CONSTANT_VALUE)? as i32));
                Some(())
            })
            .ok_or_else(|| unreadable(2))?;
        texts
            .each_entry(longs, CONSTANT_BYTES, &mut |_, name, entry| {
                structs.constants.insert(name, word_at(entry, CONSTANT_VALUE)? as i64);
                Some(())
            })
            .ok_or_else(|| unreadable(3))?;
        // Without flags no collector is found, and the heap is not read.
        structs.flags = structs.read_flags(&mut texts).unwrap_or_default();
        let release = structs.address("Abstract_VM_Version::_s_vm_release");
        structs.release = release.and_then(|at| texts.text(memory.read_word(at).ok()?));
        Ok(structs)
    }

    /// Reads `JVMFlag::flags`: a table of names and addresses of values
    /// (`runtime/flags/jvmFlag.hpp`). `None` unless all can be read: a flag that is left out would
    /// count as one that the version does not have.
    fn read_flags(&self, texts: &mut Texts<'_>) -> Option<BTreeMap<String, u64>> {
        let word = |name: &str| texts.memory.read_word(self.address(name)?).ok();
        let table = word("JVMFlag::flags")?;
        let count = word("JVMFlag::numFlags").filter(|&count| count <= MAX_ENTRIES)?;
        let bytes = self.size("JVMFlag").filter(|bytes| (16..=256).contains(bytes))?;
        let name_offset = self.offset("JVMFlag::_name")?;
        let address_offset = self.offset("JVMFlag::_addr")?;
        let mut entries = vec![0; (count * bytes) as usize];
        texts.memory.read(table, &mut entries).ok()?;
        let mut flags = BTreeMap::new();
        for entry in entries.chunks_exact(bytes as usize) {
            let field = |offset: u64| word_at(entry, usize::try_from(offset).ok()?);
            // The last entry has no name.
            let name = field(name_offset)?;
            if name != 0 {
                flags.insert(texts.text(name)?, field(address_offset)?);
            }
        }
        Some(flags)
    }

    /// Returns the offset of the field `TYPE::FIELD`.
    pub fn offset(&self, field: &str) -> Option<u64> {
        match self.fields.get(field)? {
            FieldPlace::Offset(offset) => Some(*offset),
            FieldPlace::Static(_) => None,
        }
    }

    /// Returns the address of the static field `TYPE::FIELD`.
    pub fn address(&self, field: &str) -> Option<u64> {
        match self.fields.get(field)? {
            FieldPlace::Static(address) => Some(*address),
            FieldPlace::Offset(_) => None,
        }
    }

    /// Returns the address of the value of a command line flag.
    pub fn flag(&self, name: &str) -> Option<u64> {
        self.flags.get(name).copied()
    }

    /// Returns the size of a type.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    /// Returns a constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name).copied()
    }

    /// Returns the major version, 17 for a [`Self::release`] of `17.0.15+6`; `None` if it is not
    /// known.
    pub fn major(&self) -> Option<u32> {
        let release = self.release.as_deref()?;
        let digits: String = release.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

#[cfg(test)]
impl VmStructs {
    /// Tables with these fields and types only, for tests.
    pub fn of_offsets(offsets: &[(&str, u64)], sizes: &[(&str, u64)]) -> Self {
        let fields = offsets.iter().map(|&(field, offset)| (field.to_owned(), FieldPlace::Offset(offset)));
        let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size));
        Self { fields: fields.collect(), sizes: sizes.collect(), ..Self::default() }
    }

    /// Tables with these flags only, by the addresses of their values, for tests.
    pub fn of_flags(flags: &[(&str, u64)]) -> Self {
        let flags = flags.iter().map(|&(flag, address)| (flag.to_owned(), address));
        Self { flags: flags.collect(), ..Self::default() }
    }
}

/// Called with the name and the bytes of an entry of a table.
type Visit<'a, T> = &'a mut dyn FnMut(&mut T, String, &[u8]) -> Option<()>;

/// Reads names that the process points to.
struct Texts<'a> {
    memory: &'a dyn Memory,
    /// The read-only data of the library's file.
    constants: Constants<'a>,
    /// Difference between the library's addresses in the process and in the file.
    bias: u64,
}

impl Texts<'_> {
    /// Returns the text at an address of the process.
    fn text(&mut self, address: u64) -> Option<String> {
        self.constants.text(address.wrapping_sub(self.bias), MAX_NAME_BYTES)
    }

    /// Calls `visit` with each entry, and its name, of the table that the word at `pointer` points
    /// to, up to the entry without a name. An entry has `bytes` bytes. `None` if the table cannot
    /// be read to its end, or if `visit` returns `None`.
    fn each_entry(&mut self, pointer: u64, bytes: usize, visit: Visit<'_, Self>) -> Option<()> {
        let table = self.memory.read_word(pointer).ok()?;
        let mut entries = vec![0; ENTRIES_AT_ONCE * bytes];
        for first in (0..MAX_ENTRIES).step_by(ENTRIES_AT_ONCE) {
            let at = table.checked_add(first.checked_mul(bytes as u64)?)?;
            let read_bytes = self.memory.read_some(at, &mut entries);
            for entry in entries.get(..read_bytes)?.chunks_exact(bytes) {
                let name = word_at(entry, 0)?;
                if name == 0 {
                    return Some(());
                }
                let name = self.text(name)?;
                visit(self, name, entry)?;
            }
            if read_bytes < entries.len() {
                return None;
            }
        }
        None
    }
}

//! HotSpot's description of its own structures: `gHotSpotVMStructs` and the tables beside it.
//!
//! Every build exports them, stripped ones too, for the serviceability agent (`src/hotspot/share/runtime/vmStructs.{hpp,cpp}`, the
//! same shape from JDK 8 to 27): which field of which type stands at which offset, where static fields are, how large
//! types are, and constants. So one reader follows many versions. A constructor fills the tables when the library is loaded, and
//! then they stay: they are read from the process, and the names they point to from the file.

use std::collections::BTreeMap;
use std::fs::File;

use strandline_process::constants::Constants;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// The exported pointers to the tables.
pub const TABLES: [&str; 4] =
    ["gHotSpotVMStructs", "gHotSpotVMTypes", "gHotSpotVMIntConstants", "gHotSpotVMLongConstants"];

/// The most entries of a table that are read; JDK 25 has some 2,300 fields.
const MAX_ENTRIES: u64 = 16 << 10;
const MAX_NAME: usize = 160;

/// `VMStructEntry`: `typeName`, `fieldName`, `typeString`, `isStatic`, `offset`, `address`.
const FIELD_BYTES: usize = 48;
/// `VMTypeEntry`: `typeName`, `superclassName`, three of 32 bits, `size`.
const TYPE_BYTES: usize = 40;
/// `VMIntConstantEntry` and `VMLongConstantEntry`: `name`, `value`.
const CONSTANT_BYTES: usize = 16;
/// Entries that are read at once.
const AT_ONCE: usize = 64;

/// Where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So many bytes into each of its type.
    Offset(u64),
    /// At an address.
    Static(u64),
}

/// The tables, by name.
#[derive(Clone, Debug, Default)]
pub struct Structs {
    fields: BTreeMap<String, Place>,
    sizes: BTreeMap<String, u64>,
    constants: BTreeMap<String, i64>,
    /// Where flags of the command line are kept, by name.
    flags: BTreeMap<String, u64>,
    /// What it calls its release: `17.0.15+6-Debian-1deb12u1`.
    pub release: Option<String>,
}

impl Structs {
    /// Reads them from a process, in which the pointers are at `tables`, of a library mapped from `file`, `bias` further than it
    /// says.
    pub fn read(memory: &dyn Memory, file: &File, tables: [u64; 4], bias: u64) -> Option<Self> {
        let mut texts = Texts { memory, constants: Constants::of(file)?, bias };
        let mut this = Self::default();
        let [fields, types, ints, longs] = tables;
        texts.each(fields, FIELD_BYTES, &mut |texts, name, entry| {
            let field = texts.text(word_at(entry, 8)?)?;
            let place = match half_word_at(entry, 24)? {
                0 => Place::Offset(word_at(entry, 32)?),
                _ => Place::Static(word_at(entry, 40)?),
            };
            this.fields.insert(format!("{name}::{field}"), place);
            Some(())
        })?;
        texts.each(types, TYPE_BYTES, &mut |_, name, entry| {
            this.sizes.insert(name, word_at(entry, 32)?);
            Some(())
        })?;
        texts.each(ints, CONSTANT_BYTES, &mut |_, name, entry| {
            this.constants.insert(name, i64::from(half_word_at(entry, 8)? as i32));
            Some(())
        })?;
        texts.each(longs, CONSTANT_BYTES, &mut |_, name, entry| {
            this.constants.insert(name, word_at(entry, 8)? as i64);
            Some(())
        })?;
        this.flags = this.read_flags(&mut texts).unwrap_or_default();
        let release = this.address("Abstract_VM_Version::_s_vm_release");
        this.release = release.and_then(|at| texts.text(memory.read_word(at).ok()?));
        Some(this)
    }

    /// `JVMFlag::flags`, a table in which each has its name and the address of its value (`runtime/flags/jvmFlag.hpp`).
    fn read_flags(&self, texts: &mut Texts<'_>) -> Option<BTreeMap<String, u64>> {
        let word = |name: &str| texts.memory.read_word(self.address(name)?).ok();
        let (table, count) = (word("JVMFlag::flags")?, word("JVMFlag::numFlags")?.min(MAX_ENTRIES));
        let bytes = self.size("JVMFlag").filter(|bytes| (16..=256).contains(bytes))?;
        let (name, address) = (self.offset("JVMFlag::_name")?, self.offset("JVMFlag::_addr")?);
        let mut entries = vec![0; (count * bytes) as usize];
        texts.memory.read(table, &mut entries).ok()?;
        let mut flags = BTreeMap::new();
        for entry in entries.chunks_exact(bytes as usize) {
            let of = |at: u64| word_at(entry, usize::try_from(at).ok()?);
            // The last one has none.
            let Some(text) = of(name).filter(|&text| text != 0).and_then(|text| texts.text(text)) else {
                continue;
            };
            flags.insert(text, of(address)?);
        }
        Some(flags)
    }

    /// How far into its type the field `TYPE::FIELD` stands.
    pub fn offset(&self, field: &str) -> Option<u64> {
        match self.fields.get(field)? {
            Place::Offset(offset) => Some(*offset),
            Place::Static(_) => None,
        }
    }

    /// Where the static field `TYPE::FIELD` is in the process.
    pub fn address(&self, field: &str) -> Option<u64> {
        match self.fields.get(field)? {
            Place::Static(address) => Some(*address),
            Place::Offset(_) => None,
        }
    }

    /// Where the value of a flag of the command line is in the process.
    pub fn flag(&self, name: &str) -> Option<u64> {
        self.flags.get(name).copied()
    }

    /// The size of a type.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    /// A constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name).copied()
    }

    /// Its major version: `17`, of [`Self::release`].
    pub fn major(&self) -> Option<u32> {
        let release = self.release.as_deref()?;
        let digits: String = release.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

#[cfg(test)]
impl Structs {
    /// Of fields at these offsets, and types of these sizes: for tests of what reads by them.
    pub fn of_offsets(offsets: &[(&str, u64)], sizes: &[(&str, u64)]) -> Self {
        let fields = offsets.iter().map(|&(field, offset)| (field.to_owned(), Place::Offset(offset)));
        let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size));
        Self { fields: fields.collect(), sizes: sizes.collect(), ..Self::default() }
    }
}

/// Takes an entry of a table, with its name.
type Take<'a, T> = &'a mut dyn FnMut(&mut T, String, &[u8]) -> Option<()>;

/// Names, by pointers of the process.
struct Texts<'a> {
    memory: &'a dyn Memory,
    constants: Constants<'a>,
    bias: u64,
}

impl Texts<'_> {
    fn text(&mut self, address: u64) -> Option<String> {
        self.constants.text(address.wrapping_sub(self.bias), MAX_NAME)
    }

    /// Hands over each entry of the table that the pointer at `pointer` leads to, with its name, up to one without.
    fn each(&mut self, pointer: u64, bytes: usize, take: Take<'_, Self>) -> Option<()> {
        let table = self.memory.read_word(pointer).ok()?;
        let mut entries = vec![0; AT_ONCE * bytes];
        for first in (0..MAX_ENTRIES).step_by(AT_ONCE) {
            let at = table.checked_add(first.checked_mul(bytes as u64)?)?;
            let got = self.memory.read_some(at, &mut entries);
            for entry in entries.get(..got)?.chunks_exact(bytes) {
                let name = word_at(entry, 0)?;
                if name == 0 {
                    return Some(());
                }
                let name = self.text(name)?;
                take(self, name, entry)?;
            }
            if got < entries.len() {
                return None;
            }
        }
        None
    }
}

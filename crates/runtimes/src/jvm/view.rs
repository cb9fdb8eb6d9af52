//! The process's memory by HotSpot's names for it.

use strandline_process::memory::Memory;

use super::structs::Structs;

/// Behind the last address of a process with page tables of four levels; where there are five, nobody asks for more.
pub const LAST: u64 = 1 << 47;

/// Reads fields by name. A name that a version does not have is absent; several names are tried in turn.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The process's memory.
    pub memory: &'a dyn Memory,
    /// Where fields are.
    pub structs: &'a Structs,
}

impl View<'_> {
    /// The word at `address`.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.memory.read_word(address).ok()
    }

    /// The 32-bit word at `address`.
    pub fn half_word(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(address, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    /// The byte at `address`.
    pub fn byte(&self, address: u64) -> Option<u8> {
        let mut byte = [0];
        self.memory.read(address, &mut byte).ok()?;
        Some(byte[0])
    }

    /// How far into its type a field stands: the first of these names that the version has.
    pub fn offset(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.offset(name))
    }

    /// Where a field of `object` is.
    pub fn place(&self, object: u64, names: &[&str]) -> Option<u64> {
        if object == 0 { None } else { object.checked_add(self.offset(names)?) }
    }

    /// The word in a field of `object`.
    pub fn field(&self, object: u64, names: &[&str]) -> Option<u64> {
        self.word(self.place(object, names)?)
    }

    /// The 32-bit word in a field of `object`.
    pub fn half_field(&self, object: u64, names: &[&str]) -> Option<u32> {
        self.half_word(self.place(object, names)?)
    }

    /// The byte in a field of `object`.
    pub fn byte_field(&self, object: u64, names: &[&str]) -> Option<u8> {
        self.byte(self.place(object, names)?)
    }

    /// The word in a static field.
    pub fn fixed(&self, names: &[&str]) -> Option<u64> {
        self.word(self.address(names)?)
    }

    /// The 32-bit word in a static field.
    pub fn fixed_half(&self, names: &[&str]) -> Option<u32> {
        self.half_word(self.address(names)?)
    }

    /// Where a static field is.
    pub fn address(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.address(name))
    }

    /// Whether a flag of the command line is set; not where the version has none of that name, `None` where it cannot be
    /// read.
    pub fn is_set(&self, name: &str) -> Option<bool> {
        match self.structs.flag(name) {
            Some(at) => self.byte(at).map(|value| value != 0),
            None => Some(false),
        }
    }

    /// As [`View::is_set`], where it is all one whether it is known.
    pub fn has_flag(&self, name: &str) -> bool {
        self.is_set(name) == Some(true)
    }

    /// A flag's value, of 64 bits.
    pub fn flag(&self, name: &str) -> Option<u64> {
        self.word(self.structs.flag(name)?)
    }

    /// The first of several constants.
    pub fn constant(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.constant(name)).and_then(|value| u64::try_from(value).ok())
    }
}

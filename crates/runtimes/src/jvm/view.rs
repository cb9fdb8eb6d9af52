//! The process's memory by HotSpot's names for it.

use strandline_process::memory::{Memory, words_in};

use super::structs::VmStructs;

/// Reads fields by name: a function that takes several names uses the first that the version has.
/// `None` means that the version has none of them, or that the memory cannot be read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The process's memory.
    pub memory: &'a dyn Memory,
    /// Offsets and addresses of fields.
    pub structs: &'a VmStructs,
}

impl View<'_> {
    /// Reads the word at `address`.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.memory.read_word(address).ok()
    }

    /// Reads the 32-bit word at `address`.
    pub fn half_word(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// Reads the byte at `address`.
    pub fn byte(&self, address: u64) -> Option<u8> {
        self.array(address).map(|[byte]| byte)
    }

    /// Reads `N` bytes at `address`.
    pub fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read(address, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads `count` words from `address` on; the caller bounds their number.
    pub fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; count.checked_mul(8)?];
        self.memory.read(address, &mut bytes).ok()?;
        Some(words_in(&bytes).collect())
    }

    /// Returns the offset of a field: of the first of these names that the version has.
    pub fn offset(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.offset(name))
    }

    /// Returns the address of a field of `object`; `None` if that is null.
    pub fn field_address(&self, object: u64, names: &[&str]) -> Option<u64> {
        if object == 0 { None } else { object.checked_add(self.offset(names)?) }
    }

    /// Reads the word in a field of `object`.
    pub fn field(&self, object: u64, names: &[&str]) -> Option<u64> {
        self.word(self.field_address(object, names)?)
    }

    /// Reads the 32-bit word in a field of `object`.
    pub fn half_field(&self, object: u64, names: &[&str]) -> Option<u32> {
        self.half_word(self.field_address(object, names)?)
    }

    /// Reads the byte in a field of `object`.
    pub fn byte_field(&self, object: u64, names: &[&str]) -> Option<u8> {
        self.byte(self.field_address(object, names)?)
    }

    /// Reads the word in a static field.
    pub fn static_field(&self, names: &[&str]) -> Option<u64> {
        self.word(self.address(names)?)
    }

    /// Reads the 32-bit word in a static field.
    pub fn static_half_field(&self, names: &[&str]) -> Option<u32> {
        self.half_word(self.address(names)?)
    }

    /// Returns the address of a static field.
    pub fn address(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.address(name))
    }

    /// Whether a command line flag is set: false if the version does not have it, `None` if it
    /// cannot be read.
    pub fn is_set(&self, name: &str) -> Option<bool> {
        match self.structs.flag(name) {
            Some(at) => self.byte(at).map(|value| value != 0),
            None => Some(false),
        }
    }

    /// Reads the value of a 64-bit flag.
    pub fn flag(&self, name: &str) -> Option<u64> {
        self.word(self.structs.flag(name)?)
    }

    /// Returns the first of several constants that the version has.
    pub fn constant(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.structs.constant(name)).and_then(|value| u64::try_from(value).ok())
    }
}

//! `gHotSpotVMStructs` and the tables beside it (`runtime/vmStructs.hpp`), with the file that holds
//! their names.

use std::collections::BTreeMap;

use crate::Image;

/// Bytes of the header of an ELF file, and of a program header; the texts follow.
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Bytes of data for static fields and values of flags, behind the pointers to the tables.
const STATIC_BYTES: u64 = 0x1000;

pub struct Tables {
    bias: u64,
    data: u64,
    file: Vec<u8>,
    texts: BTreeMap<String, u64>,
    fields: BTreeMap<(&'static str, &'static str), u64>,
    statics: BTreeMap<(&'static str, &'static str), u64>,
    sizes: BTreeMap<&'static str, u64>,
    ints: Vec<(&'static str, u32)>,
    longs: Vec<(&'static str, u64)>,
    flags: Vec<(&'static str, u64)>,
    free: u64,
}

impl Tables {
    /// Creates the tables of a library that is mapped at `bias` and has its data at `data`.
    pub fn new(bias: u64, data: u64) -> Self {
        Self {
            bias,
            data,
            file: vec![0; HEADER_BYTES + SEGMENT_BYTES],
            texts: BTreeMap::new(),
            fields: BTreeMap::new(),
            statics: BTreeMap::new(),
            sizes: BTreeMap::new(),
            ints: Vec::new(),
            longs: Vec::new(),
            flags: Vec::new(),
            free: data + 64,
        }
    }

    /// Address of a text, which is added to the file if it is new.
    pub fn text(&mut self, text: &str) -> u64 {
        let (file, bias) = (&mut self.file, self.bias);
        *self.texts.entry(text.to_owned()).or_insert_with(|| {
            let at = bias + file.len() as u64;
            file.extend(text.as_bytes());
            file.push(0);
            at
        })
    }

    /// Describes a field.
    pub fn field(&mut self, of: &'static str, name: &'static str, offset: u64) {
        self.fields.insert((of, name), offset);
    }

    /// Describes a field as one of the type from which this type inherits it.
    pub fn rename(&mut self, of: &'static str, name: &'static str, to: &'static str) {
        if let Some(offset) = self.fields.remove(&(of, name)) {
            self.fields.insert((to, name), offset);
        }
    }

    /// Offset of a field.
    pub fn offset(&self, of: &'static str, name: &str) -> u64 {
        let field = self.fields.iter().find(|((type_name, field), _)| *type_name == of && *field == name);
        field.map(|(_, offset)| *offset).unwrap_or_else(|| panic!("no {of}::{name}"))
    }

    /// Describes a type.
    pub fn size(&mut self, of: &'static str, bytes: u64) {
        self.sizes.insert(of, bytes);
    }

    pub fn size_of(&self, of: &'static str) -> u64 {
        self.sizes.get(of).copied().unwrap_or_else(|| panic!("no {of}"))
    }

    fn place(&mut self) -> u64 {
        self.free += 8;
        assert!(self.free <= self.data + STATIC_BYTES, "no room for static fields");
        self.free - 8
    }

    /// Describes a static field; returns its address.
    pub fn fixed(&mut self, of: &'static str, name: &'static str) -> u64 {
        let at = self.place();
        self.statics.insert((of, name), at);
        at
    }

    /// Allocates a word of static data that the tables do not describe.
    pub fn allocate_word(&mut self) -> u64 {
        self.place()
    }

    /// Describes a flag; returns the address of its value.
    pub fn flag(&mut self, name: &'static str) -> u64 {
        let at = self.place();
        self.flags.push((name, at));
        at
    }

    /// Describes a constant of 32 bits.
    pub fn int(&mut self, name: &'static str, value: u32) {
        self.ints.push((name, value));
    }

    /// Describes a constant of 64 bits.
    pub fn long(&mut self, name: &'static str, value: u64) {
        self.longs.push((name, value));
    }

    /// Writes all tables; returns the file and the addresses of the pointers to the tables.
    pub fn write(mut self, image: &mut Image) -> (Vec<u8>, [u64; 4]) {
        self.jvm_flags(image);
        let mut at = self.data + 0x2000;
        let mut tables = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        // VMStructEntry: typeName, fieldName, typeString, isStatic of 32 bits, offset, address.
        for ((of, name), offset) in std::mem::take(&mut self.fields) {
            let words = [self.text(of), self.text(name), self.text("size_t"), 0, offset, 0];
            tables[0].extend(words);
        }
        for ((of, name), place) in std::mem::take(&mut self.statics) {
            let words = [self.text(of), self.text(name), self.text("size_t"), 1, 0, place];
            tables[0].extend(words);
        }
        tables[0].extend([0; 6]);
        // VMTypeEntry: typeName, superclassName, isOopType, isIntegerType and isUnsigned of 32 bits
        // each, size.
        for (of, bytes) in std::mem::take(&mut self.sizes) {
            let words = [self.text(of), 0, 0, 0, bytes];
            tables[1].extend(words);
        }
        tables[1].extend([0; 5]);
        for (name, value) in std::mem::take(&mut self.ints) {
            let words = [self.text(name), u64::from(value)];
            tables[2].extend(words);
        }
        for (name, value) in std::mem::take(&mut self.longs) {
            let words = [self.text(name), value];
            tables[3].extend(words);
        }
        tables[2].extend([0; 2]);
        tables[3].extend([0; 2]);
        let mut pointers = [0; 4];
        for (index, words) in tables.iter().enumerate() {
            pointers[index] = self.data + 8 * index as u64;
            image.put_word(pointers[index], at);
            image.put_row(at, words.iter().copied());
            at += 8 * words.len() as u64;
        }
        assert!(image.word(at).is_some(), "no room for tables");
        (self.elf(), pointers)
    }

    /// Writes `JVMFlag::flags` (`runtime/flags/jvmFlag.hpp`): `_addr`, `_name`, `_flags` and
    /// `_type` of 32 bits each; the last entry is empty.
    fn jvm_flags(&mut self, image: &mut Image) {
        for (field, offset) in [("_addr", 0), ("_name", 8), ("_flags", 16), ("_type", 20)] {
            self.field("JVMFlag", field, offset);
        }
        self.size("JVMFlag", 24);
        let table = self.data + STATIC_BYTES;
        let flags = std::mem::take(&mut self.flags);
        for (at, number) in [("flags", table), ("numFlags", flags.len() as u64 + 1)] {
            let place = self.fixed("JVMFlag", at);
            image.put_word(place, number);
        }
        for (index, (name, value)) in flags.into_iter().enumerate() {
            let at = table + 24 * index as u64;
            image.put_row(at, [value, self.text(name)]);
        }
    }

    /// The file: one mapped segment that contains all of it.
    fn elf(mut self) -> Vec<u8> {
        let bytes = self.file.len() as u64;
        let mut put = |at: usize, value: &[u8]| self.file[at..at + value.len()].copy_from_slice(value);
        // ELF-64, little-endian, a shared object for x86-64.
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &3_u16.to_le_bytes());
        put(18, &62_u16.to_le_bytes());
        put(20, &1_u32.to_le_bytes());
        put(32, &(HEADER_BYTES as u64).to_le_bytes());
        put(52, &(HEADER_BYTES as u16).to_le_bytes());
        put(54, &(SEGMENT_BYTES as u16).to_le_bytes());
        put(56, &1_u16.to_le_bytes());
        // PT_LOAD, readable: offset, two addresses, bytes of the file and of memory, alignment.
        put(HEADER_BYTES, &1_u32.to_le_bytes());
        put(HEADER_BYTES + 4, &4_u32.to_le_bytes());
        put(HEADER_BYTES + 32, &bytes.to_le_bytes());
        put(HEADER_BYTES + 40, &bytes.to_le_bytes());
        put(HEADER_BYTES + 48, &4096_u64.to_le_bytes());
        self.file
    }
}

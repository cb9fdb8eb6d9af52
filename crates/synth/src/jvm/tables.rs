//! `gHotSpotVMStructs` and the tables beside it (`runtime/vmStructs.hpp`), with the file that holds
//! their names.

use std::collections::BTreeMap;

use crate::Image;

/// Bytes of `Elf64_Ehdr`.
const ELF_HEADER_BYTES: usize = 64;
/// Bytes of `Elf64_Phdr`; the texts follow.
const PROGRAM_HEADER_BYTES: usize = 56;
/// Bytes of data for the pointers to the tables, static fields and values of flags.
const STATIC_BYTES: u64 = 0x1000;
/// Offset in the data of static fields, after the pointers to the tables.
const FIRST_STATIC: u64 = 64;
/// Offset in the data of `JVMFlag::flags`.
const FLAGS: u64 = STATIC_BYTES;
/// Offset in the data of the tables.
const TABLES: u64 = 0x2000;
/// Bytes of a `JVMFlag`.
const FLAG_BYTES: u64 = 24;

/// The tables in memory, and the file with their texts.
pub struct WrittenTables {
    pub file: Vec<u8>,
    /// Addresses of the pointers to the tables: fields, types, constants of 32 and of 64 bits.
    pub pointers: [u64; 4],
}

/// The tables while they are filled.
pub struct Tables {
    /// Address that the library is mapped at, and that of its data.
    bias: u64,
    data: u64,
    /// The library's file.
    file: Vec<u8>,
    /// Addresses of the texts in the file.
    texts: BTreeMap<String, u64>,
    /// By type and name, offsets of fields, and addresses of static fields.
    fields: BTreeMap<(&'static str, &'static str), u64>,
    statics: BTreeMap<(&'static str, &'static str), u64>,
    /// By type, its bytes.
    sizes: BTreeMap<&'static str, u64>,
    /// Constants of 32 and of 64 bits.
    ints: Vec<(&'static str, u32)>,
    longs: Vec<(&'static str, u64)>,
    /// Flags with the addresses of their values.
    flags: Vec<(&'static str, u64)>,
    /// Address of the next word of static data.
    next_static: u64,
}

impl Tables {
    /// Creates the tables of a library that is mapped at `bias` and has its data at `data`.
    pub fn new(bias: u64, data: u64) -> Self {
        Self {
            bias,
            data,
            file: vec![0; ELF_HEADER_BYTES + PROGRAM_HEADER_BYTES],
            texts: BTreeMap::new(),
            fields: BTreeMap::new(),
            statics: BTreeMap::new(),
            sizes: BTreeMap::new(),
            ints: Vec::new(),
            longs: Vec::new(),
            flags: Vec::new(),
            next_static: data + FIRST_STATIC,
        }
    }

    /// Address of a text, which is added to the file if it is new.
    pub fn add_text(&mut self, text: &str) -> u64 {
        let (file, bias) = (&mut self.file, self.bias);
        *self.texts.entry(text.to_owned()).or_insert_with(|| {
            let address = bias + file.len() as u64;
            file.extend(text.as_bytes());
            file.push(0);
            address
        })
    }

    /// Describes a field.
    pub fn declare_field(&mut self, type_name: &'static str, name: &'static str, offset: u64) {
        self.fields.insert((type_name, name), offset);
    }

    /// Describes a field as one of the type `base`, from which its type inherits it.
    ///
    /// # Panics
    /// If the field was not described.
    pub fn move_to_base(&mut self, type_name: &'static str, name: &'static str, base: &'static str) {
        let offset = self.offset(type_name, name);
        self.fields.remove(&(type_name, name));
        self.fields.insert((base, name), offset);
    }

    /// Offset of a field.
    ///
    /// # Panics
    /// If the field was not described.
    pub fn offset(&self, type_name: &'static str, name: &str) -> u64 {
        let field = self.fields.iter().find(|(key, _)| **key == (type_name, name));
        field.map(|(_, offset)| *offset).unwrap_or_else(|| panic!("no {type_name}::{name}"))
    }

    /// Describes a type.
    pub fn declare_size(&mut self, type_name: &'static str, bytes: u64) {
        self.sizes.insert(type_name, bytes);
    }

    /// Bytes of a type.
    ///
    /// # Panics
    /// If the type was not described.
    pub fn size_of(&self, type_name: &'static str) -> u64 {
        self.sizes.get(type_name).copied().unwrap_or_else(|| panic!("no {type_name}"))
    }

    /// Describes a static field; returns its address.
    pub fn declare_static(&mut self, type_name: &'static str, name: &'static str) -> u64 {
        let address = self.allocate_word();
        self.statics.insert((type_name, name), address);
        address
    }

    /// Allocates a word of static data.
    pub fn allocate_word(&mut self) -> u64 {
        let address = self.next_static;
        self.next_static += 8;
        assert!(self.next_static <= self.data + STATIC_BYTES, "no room for static fields");
        address
    }

    /// Describes a flag; returns the address of its value.
    pub fn declare_flag(&mut self, name: &'static str) -> u64 {
        let address = self.allocate_word();
        self.flags.push((name, address));
        address
    }

    /// Describes a constant of 32 bits.
    pub fn declare_int(&mut self, name: &'static str, value: u32) {
        self.ints.push((name, value));
    }

    /// Describes a constant of 64 bits.
    pub fn declare_long(&mut self, name: &'static str, value: u64) {
        self.longs.push((name, value));
    }

    /// Writes all tables.
    pub fn write(mut self, image: &mut Image) -> WrittenTables {
        self.write_flags(image);
        let (mut fields, mut types, mut ints, mut longs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // VMStructEntry: typeName, fieldName, typeString, isStatic of 32 bits, offset, address.
        for ((type_name, name), offset) in std::mem::take(&mut self.fields) {
            let texts = [type_name, name, "size_t"].map(|text| self.add_text(text));
            fields.extend(texts.into_iter().chain([0, offset, 0]));
        }
        for ((type_name, name), address) in std::mem::take(&mut self.statics) {
            let texts = [type_name, name, "size_t"].map(|text| self.add_text(text));
            fields.extend(texts.into_iter().chain([1, 0, address]));
        }
        fields.extend([0; 6]);
        // VMTypeEntry: typeName, superclassName, isOopType, isIntegerType and isUnsigned of 32 bits
        // each, size.
        for (type_name, bytes) in std::mem::take(&mut self.sizes) {
            types.extend([self.add_text(type_name), 0, 0, 0, bytes]);
        }
        types.extend([0; 5]);
        for (name, value) in std::mem::take(&mut self.ints) {
            ints.extend([self.add_text(name), u64::from(value)]);
        }
        ints.extend([0; 2]);
        for (name, value) in std::mem::take(&mut self.longs) {
            longs.extend([self.add_text(name), value]);
        }
        longs.extend([0; 2]);
        let mut table = self.data + TABLES;
        let mut pointers = [0; 4];
        for (index, words) in [fields, types, ints, longs].into_iter().enumerate() {
            pointers[index] = self.data + 8 * index as u64;
            image.put_word(pointers[index], table);
            let bytes = 8 * words.len() as u64;
            image.put_row(table, words);
            table += bytes;
        }
        assert!(image.word(table).is_some(), "no room for tables");
        WrittenTables { file: self.elf_file(), pointers }
    }

    /// Writes `JVMFlag::flags` (`runtime/flags/jvmFlag.hpp`): `_addr`, `_name`, `_flags` and
    /// `_type` of 32 bits each; the last entry is empty.
    fn write_flags(&mut self, image: &mut Image) {
        for (field, offset) in [("_addr", 0), ("_name", 8), ("_flags", 16), ("_type", 20)] {
            self.declare_field("JVMFlag", field, offset);
        }
        self.declare_size("JVMFlag", FLAG_BYTES);
        let table = self.data + FLAGS;
        let flags = std::mem::take(&mut self.flags);
        assert!(FLAGS + FLAG_BYTES * (flags.len() as u64 + 1) <= TABLES, "no room for flags");
        for (field, word) in [("flags", table), ("numFlags", flags.len() as u64 + 1)] {
            let address = self.declare_static("JVMFlag", field);
            image.put_word(address, word);
        }
        for (index, (name, value_address)) in (0..).zip(flags) {
            image.put_row(table + FLAG_BYTES * index, [value_address, self.add_text(name)]);
        }
    }

    /// The file: one mapped segment that contains all of it.
    fn elf_file(mut self) -> Vec<u8> {
        let bytes = self.file.len() as u64;
        let mut put =
            |offset: usize, value: &[u8]| self.file[offset..offset + value.len()].copy_from_slice(value);
        // e_ident: ELF-64, little-endian. Then e_type (a shared object), e_machine (x86-64),
        // e_version, e_phoff, e_ehsize, e_phentsize, e_phnum.
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &3_u16.to_le_bytes());
        put(18, &62_u16.to_le_bytes());
        put(20, &1_u32.to_le_bytes());
        put(32, &(ELF_HEADER_BYTES as u64).to_le_bytes());
        put(52, &(ELF_HEADER_BYTES as u16).to_le_bytes());
        put(54, &(PROGRAM_HEADER_BYTES as u16).to_le_bytes());
        put(56, &1_u16.to_le_bytes());
        // p_type (PT_LOAD), p_flags (readable), p_filesz, p_memsz, p_align; p_offset and the
        // addresses are 0.
        put(ELF_HEADER_BYTES, &1_u32.to_le_bytes());
        put(ELF_HEADER_BYTES + 4, &4_u32.to_le_bytes());
        put(ELF_HEADER_BYTES + 32, &bytes.to_le_bytes());
        put(ELF_HEADER_BYTES + 40, &bytes.to_le_bytes());
        put(ELF_HEADER_BYTES + 48, &4096_u64.to_le_bytes());
        self.file
    }
}

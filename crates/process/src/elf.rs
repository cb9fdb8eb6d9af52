//! A mapped ELF object: the addresses of its functions in the target, and its call frame
//! information.
//!
//! The files belong to the target and may be made to attack a reader: they are read in pieces, with
//! a bound on each piece and on the total, and no offset or size in them is trusted. Nothing here
//! reads the target's memory, except the kernel's vDSO, which has no file.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef};

use crate::error::Error;
use crate::image::until_zero;
use crate::map::{AddressSpace, Mapping};
use crate::memory::Memory;
use crate::namespaces;
use crate::pages::page_of;
use crate::procfs::Process;

/// Size limit of files that are parsed, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Size limit of a table (symbols, strings, call frame information), in bytes.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Limit on bytes read for one parse: `object` keeps every piece until the parse ends.
const MAX_PARSE_BYTES: u64 = 256 << 20;
/// Limit on the length of a symbol name with its terminator, in bytes: without it, a table without
/// terminators costs symbols times bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Size limit of the vDSO, in bytes.
const MAX_VDSO_BYTES: u64 = 1 << 20;

/// Why an object could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// Its file cannot be opened, or was replaced by another.
    #[error(transparent)]
    File(#[from] Error),
    /// It is not a readable x86-64 ELF file.
    #[error("{path} mapped at {start:#x} is not a readable x86-64 ELF file: {detail}")]
    Malformed {
        /// The path of the file, from the kernel.
        path: String,
        /// The start of its mapping.
        start: u64,
        /// The defect.
        detail: &'static str,
    },
}

/// A symbol of an object, with its address in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its runtime address.
    pub address: u64,
    /// Its length in bytes; 0 if the object does not record it.
    pub bytes: u64,
    /// Whether other objects can link to it (not `STB_LOCAL`).
    pub is_global: bool,
}

/// The contents of a section, with its address in the target.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Runtime address of its first byte.
    pub address: u64,
    /// Its contents in the file.
    pub bytes: Vec<u8>,
}

/// The call frame information of an object.
#[derive(Clone, Debug)]
pub struct FrameSections {
    /// The index, `.eh_frame_hdr`; `None` if absent or unreadable.
    pub header: Option<Section>,
    /// The information, `.eh_frame`.
    pub frames: Section,
}

/// One mapped ELF object of a process.
#[derive(Debug)]
pub struct Object {
    source: Source,
    /// Its path, from the kernel.
    name: String,
    /// Whether it is a 32-bit file, of which nothing is read.
    is_32_bit: bool,
    /// Added to a file address to get the target address, modulo 2^64.
    bias: u64,
    /// Executable ranges at runtime.
    text: Vec<Range<u64>>,
}

type Header = elf::FileHeader64<object::LittleEndian>;
const LE: object::LittleEndian = object::LittleEndian;

/// The parsed headers of an object, and the reader for what they refer to.
struct Parsed<'a> {
    reader: LimitedReader<'a>,
    header: &'a Header,
    sections: SectionTable<'a, Header, LimitedReader<'a>>,
}

impl Object {
    /// Opens the object behind `mapping` of `process` with [`namespaces::open_mapped_file`]. For
    /// the vDSO use [`Object::from_memory`] instead.
    ///
    /// # Errors
    /// [`ElfError::File`] or [`ElfError::Malformed`].
    pub fn open(process: &Process, space: &AddressSpace, mapping: &Mapping) -> Result<Self, ElfError> {
        let file = namespaces::open_mapped_file(process, mapping)?;
        let unknown_length = |_| ElfError::Malformed {
            path: mapping.name.clone(),
            start: mapping.start,
            detail: "its length cannot be read",
        };
        let length = file.metadata().map_err(unknown_length)?.len();
        Self::new(Source::File { file, length }, space, mapping)
    }

    /// Reads an object that is entirely in `mapping`, like the vDSO.
    ///
    /// # Errors
    /// [`ElfError::Malformed`], also if the memory cannot be read.
    pub fn from_memory(
        memory: &dyn Memory,
        space: &AddressSpace,
        mapping: &Mapping,
    ) -> Result<Self, ElfError> {
        let mut bytes = vec![0; mapping.bytes().min(MAX_VDSO_BYTES) as usize];
        let read_bytes = memory.read_some(mapping.start, &mut bytes);
        bytes.truncate(read_bytes);
        Self::new(Source::Bytes(bytes), space, mapping)
    }

    fn new(source: Source, space: &AddressSpace, mapping: &Mapping) -> Result<Self, ElfError> {
        let malformed =
            |detail| ElfError::Malformed { path: mapping.name.clone(), start: mapping.start, detail };
        if source.length() > MAX_FILE_BYTES {
            return Err(malformed("larger than 512 MiB"));
        }
        let mut object =
            Self { source, name: mapping.name.clone(), is_32_bit: false, bias: 0, text: Vec::new() };
        object.is_32_bit = object.read_is_32_bit().map_err(malformed)?;
        if object.is_32_bit {
            return Ok(object);
        }
        object.bias = object
            .with_parsed(|parsed| load_bias(parsed, mapping))
            .and_then(|bias| bias)
            .map_err(malformed)?;
        object.text = space
            .mappings()
            .iter()
            .filter(|other| other.permissions.execute && is_same_object(other, mapping))
            .map(|text| text.start..text.end)
            .collect();
        Ok(object)
    }

    /// Its path, from the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether `address` is in executable memory of this object.
    pub fn text_contains(&self, address: u64) -> bool {
        self.text.iter().any(|range| range.contains(&address))
    }

    /// Its executable ranges in the target.
    pub fn text(&self) -> &[Range<u64>] {
        &self.text
    }

    /// The runtime address of the symbol `name`; `None` as for [`Object::symbol`].
    pub fn symbol_address(&self, name: &str) -> Option<u64> {
        self.symbol(name).map(|symbol| symbol.address)
    }

    /// The runtime addresses of several symbols, from one pass over the tables; `None` for those
    /// that they do not define.
    pub fn symbol_addresses<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut addresses = [None; N];
        self.each_symbol(&mut |symbol_name, symbol| {
            for (name, address) in names.iter().zip(&mut addresses) {
                if address.is_none() && symbol_name == name.as_bytes() {
                    *address = Some(symbol.address);
                }
            }
        });
        addresses
    }

    /// The symbol `name`, from the dynamic table or else from the static one; `None` if neither
    /// defines it.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let mut first_match = None;
        self.each_symbol(&mut |symbol_name, symbol| {
            if first_match.is_none() && symbol_name == name.as_bytes() {
                first_match = Some(symbol);
            }
        });
        first_match
    }

    /// Passes every defined symbol to `visit`, those of the dynamic table first. An unreadable
    /// table counts as empty, and a name beyond the limit on tables as missing: to a caller, a
    /// symbol that it cannot find does not exist.
    pub fn each_symbol(&self, visit: &mut dyn FnMut(&[u8], Symbol)) {
        let bias = self.bias;
        let _: Result<(), &'static str> = self.with_parsed(|Parsed { reader, sections, .. }| {
            for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
                let Ok(table) = sections.symbols(LE, *reader, kind) else { continue };
                let names_section = sections.section(table.string_section()).ok();
                // Read in one piece: reading name by name would read the file for each symbol.
                let names = names_section.and_then(|section| {
                    let (offset, bytes) = section.file_range(LE)?;
                    reader.read_bytes_at(offset, bytes.min(MAX_TABLE_BYTES)).ok()
                });
                let Some(names) = names else { continue };
                for symbol in table.symbols().iter().filter(|symbol| !symbol.is_undefined(LE)) {
                    let name = name_at(names, symbol.st_name(LE));
                    let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
                    let address = symbol.st_value(LE).wrapping_add(bias);
                    let is_global = symbol.st_bind() != elf::STB_LOCAL;
                    visit(name, Symbol { address, bytes: symbol.st_size(LE), is_global });
                }
            }
        });
    }

    /// The call frame information; `None` if the object has none that can be read.
    pub fn frames(&self) -> Option<FrameSections> {
        let frames = self.section(b".eh_frame")?;
        Some(FrameSections { header: self.section(b".eh_frame_hdr"), frames })
    }

    /// The section `name`; `None` if absent, unreadable, or without contents in the file.
    pub fn section(&self, name: &[u8]) -> Option<Section> {
        let bias = self.bias;
        let section = self.with_parsed(|Parsed { reader, sections, .. }| {
            let (_, section) = sections.section_by_name(LE, name)?;
            let bytes = section.data(LE, *reader).ok()?.to_vec();
            Some(Section { address: section.sh_addr(LE).wrapping_add(bias), bytes })
        });
        section.ok().flatten()
    }

    /// Whether the header is that of a 32-bit file, or why it is no ELF header.
    fn read_is_32_bit(&self) -> Result<bool, &'static str> {
        let mut ident = [0; 6];
        let read_bytes = self.source.read_at(&mut ident, 0).map_err(|_| "its header cannot be read")?;
        match (read_bytes, ident) {
            (6, [0x7f, b'E', b'L', b'F', 2, 1]) => Ok(false),
            (6, [0x7f, b'E', b'L', b'F', 1, 1]) => Ok(true),
            _ => Err("no ELF header"),
        }
    }

    /// Parses the headers and passes them to `use_parsed`; what is read for that is dropped
    /// afterwards.
    fn with_parsed<T>(&self, use_parsed: impl for<'a> FnOnce(&Parsed<'a>) -> T) -> Result<T, &'static str> {
        if self.is_32_bit {
            return Err("a 32-bit file");
        }
        let cache = ReadCache::new(Cursor { source: &self.source, position: 0 });
        let remaining_bytes = Cell::new(MAX_PARSE_BYTES);
        let reader = LimitedReader { cache: &cache, remaining_bytes: &remaining_bytes };
        let header = Header::parse(reader).map_err(|_| "bad header")?;
        if header.e_machine.get(LE) != elf::EM_X86_64 {
            return Err("made for another processor");
        }
        // Damaged sections count as none, as in a file from which they were removed: such an object
        // still has a load bias.
        let sections = header.sections(LE, reader).unwrap_or_default();
        Ok(use_parsed(&Parsed { reader, header, sections }))
    }
}

/// The name at `offset` in a string table; `None` if it does not end within [`MAX_NAME_BYTES`].
fn name_at(names: &[u8], offset: u32) -> Option<&[u8]> {
    until_zero(names.get(usize::try_from(offset).ok()?..)?, MAX_NAME_BYTES - 1)
}

/// The load bias, from the segment that `mapping` maps.
fn load_bias(parsed: &Parsed<'_>, mapping: &Mapping) -> Result<u64, &'static str> {
    let segments = parsed.header.program_headers(LE, parsed.reader).map_err(|_| "bad program headers")?;
    // Two segments may share a page of the file: the one whose execute permission matches counts,
    // or else the first.
    let mut first_bias = None;
    for segment in segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD) {
        let offset = segment.p_offset(LE);
        let end = offset.saturating_add(segment.p_filesz(LE));
        if !(page_of(offset)..end).contains(&mapping.offset) {
            continue;
        }
        let file_address = segment.p_vaddr(LE).wrapping_sub(offset).wrapping_add(mapping.offset);
        let bias = mapping.start.wrapping_sub(file_address);
        let is_executable = segment.p_flags(LE).0 & elf::PF_X.0 != 0;
        if is_executable == mapping.permissions.execute {
            return Ok(bias);
        }
        first_bias.get_or_insert(bias);
    }
    first_bias.ok_or("no segment of it is mapped there")
}

/// Whether `other` belongs to the object of `mapping`. A mapping without a file (vDSO) is an object
/// of its own.
fn is_same_object(other: &Mapping, mapping: &Mapping) -> bool {
    if mapping.has_file() { other.file_id() == mapping.file_id() } else { other.start == mapping.start }
}

/// Where the bytes of an object are read from.
#[derive(Debug)]
enum Source {
    File {
        file: File,
        /// In bytes, when it was opened.
        length: u64,
    },
    Bytes(Vec<u8>),
}

impl Source {
    fn length(&self) -> u64 {
        match self {
            Self::File { length, .. } => *length,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self {
            Self::File { file, .. } => file.read_at(buffer, position),
            Self::Bytes(bytes) => {
                // As in a file, there is nothing to read past the end.
                let unread =
                    usize::try_from(position).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
                let count = unread.len().min(buffer.len());
                buffer[..count].copy_from_slice(&unread[..count]);
                Ok(count)
            }
        }
    }
}

/// A read position in a source, so that several readers can share one file.
struct Cursor<'a> {
    source: &'a Source,
    position: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read_bytes = self.source.read_at(buffer, self.position)?;
        self.position += read_bytes as u64;
        Ok(read_bytes)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(delta) => self.source.length().checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// A reader that refuses pieces above the table limit and stops at the parse limit, whatever the
/// headers contain.
#[derive(Clone, Copy)]
struct LimitedReader<'a> {
    cache: &'a ReadCache<Cursor<'a>>,
    /// Bytes that may still be read.
    remaining_bytes: &'a Cell<u64>,
}

impl LimitedReader<'_> {
    /// Takes `bytes` from the parse limit; fails if fewer remain.
    fn charge(self, bytes: u64) -> Result<(), ()> {
        let remaining_bytes = self.remaining_bytes.get().checked_sub(bytes).ok_or(())?;
        self.remaining_bytes.set(remaining_bytes);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for LimitedReader<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > MAX_TABLE_BYTES {
            return Err(());
        }
        self.charge(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // `ReadCache` searches at most this far for the delimiter (object, read_cache.rs,
        // read_bytes_at_until).
        self.charge(MAX_NAME_BYTES as u64)?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_space() -> AddressSpace {
        AddressSpace::parse(&std::fs::read("/proc/self/maps").unwrap()).0
    }

    fn libc_of(space: &AddressSpace) -> &Mapping {
        space
            .mappings()
            .iter()
            .find(|mapping| mapping.name.ends_with("/libc.so.6") && mapping.permissions.execute)
            .expect("tests run on a dynamic glibc")
    }

    #[test]
    fn names_of_symbols_are_bounded() {
        assert_eq!(name_at(b"\0one\0two", 1), Some(&b"one"[..]));
        assert_eq!(name_at(b"\0one\0two", 5), None, "it has no end");
        assert_eq!(name_at(b"\0one\0", 99), None);
        let long = [vec![b'a'; 2 * MAX_NAME_BYTES], vec![0]].concat();
        assert_eq!(name_at(&long, 0), None);
        assert_eq!(name_at(&long, MAX_NAME_BYTES as u32 + 1).map(<[u8]>::len), Some(MAX_NAME_BYTES - 1));
    }

    #[test]
    fn a_search_reads_at_most_its_limit() {
        let source = Source::Bytes(vec![0; MAX_NAME_BYTES]);
        let cache = ReadCache::new(Cursor { source: &source, position: 0 });
        let remaining_bytes = Cell::new(MAX_NAME_BYTES as u64 + 100);
        let reader = LimitedReader { cache: &cache, remaining_bytes: &remaining_bytes };
        assert_eq!(reader.read_bytes_at_until(0..64, 0), Ok(&[][..]));
        assert_eq!(reader.read_bytes_at_until(64..128, 0), Err(()));
        assert_eq!(reader.read_bytes_at(0, 64).map(<[u8]>::len), Ok(64));
        assert_eq!(reader.read_bytes_at(64, 64), Err(()));
    }

    #[test]
    fn symbols_of_the_mapped_libc_have_the_linkers_addresses() {
        let space = own_space();
        let process = Process::open(std::process::id() as i32).unwrap();
        let libc = Object::open(&process, &space, libc_of(&space)).unwrap();
        let getpid = libc.symbol_address("getpid").expect("libc exports getpid");
        assert!(libc.text_contains(getpid));
        // glibc's getpid is `mov $39, %eax; syscall; ret` (39 is its system call number).
        let mut code = [0; 8];
        let read = strandline_sys::memory::read(std::process::id() as i32, getpid, &mut code);
        assert_eq!(read.unwrap(), 8);
        assert_eq!(code, [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(libc.symbol_address("no_such_function"), None);
        assert_eq!(libc.symbol_addresses(["no_such_function", "getpid"]), [None, Some(getpid)]);
        let FrameSections { header, frames } = libc.frames().expect("libc has call frame information");
        assert!(header.is_some_and(|header| !header.bytes.is_empty()) && !frames.bytes.is_empty());
    }

    #[test]
    fn rubbish_and_truncated_files_are_refused() {
        let space = own_space();
        let mapping = libc_of(&space);
        let whole = std::fs::read(&mapping.name).unwrap();
        for bytes in [vec![], b"#!/bin/sh\n".to_vec(), whole[..60].to_vec(), whole[..4096].to_vec()] {
            match Object::new(Source::Bytes(bytes), &space, mapping) {
                Ok(object) => {
                    assert_eq!(object.symbol("malloc"), None);
                    assert!(object.frames().is_none());
                }
                Err(error) => assert!(matches!(error, ElfError::Malformed { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn headers_with_flipped_bytes_never_panic() {
        let space = own_space();
        let mapping = libc_of(&space);
        let whole = std::fs::read(&mapping.name).unwrap();
        for position in 4..512 {
            let mut bytes = whole[..(256 << 10).min(whole.len())].to_vec();
            bytes[position] ^= 0xff;
            if let Ok(object) = Object::new(Source::Bytes(bytes), &space, mapping) {
                object.symbol("malloc");
                object.frames();
            }
        }
    }
}

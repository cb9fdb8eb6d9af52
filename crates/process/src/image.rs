//! Facts of a mapped ELF file, from bounded positioned reads: the symbols it defines, its sections,
//! strings in it.
//!
//! The target chooses the file and may have made it to attack the reader: every size is bounded
//! before it is read, every offset is checked, and inconsistent data counts as absent. Layouts are
//! those of the ELF-64 object file format; only little-endian 64-bit files are read.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::map::{AddressSpace, Mapping};
use crate::memory::{half_word_at, word_at};
use crate::namespaces::open_mapped_file;
use crate::pages::{PAGE_BYTES, page_of};
use crate::procfs::Process;

/// Maximum number of sections read; linkers make dozens.
const MAX_SECTIONS: usize = 4096;
/// Maximum length of a section name: names may overlap in the file, but each takes memory of its
/// own.
const MAX_SECTION_NAME_BYTES: usize = 64;
/// Maximum bytes read of the names of sections.
const MAX_SECTION_NAMES_BYTES: u64 = 1 << 20;
/// Maximum bytes read of a symbol table: a million symbols.
const MAX_SYMBOL_TABLE_BYTES: u64 = 24 << 20;
/// Maximum bytes read of the names of symbols.
const MAX_SYMBOL_NAMES_BYTES: u64 = 64 << 20;
/// Maximum bytes of read-only data searched for strings.
const MAX_SEARCHED_BYTES: u64 = 16 << 20;
/// Bytes of read-only data read at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum length of a string that is returned.
const MAX_STRING_BYTES: usize = 96;
/// Maximum number of program headers read.
const MAX_SEGMENTS: usize = 256;
/// Maximum bytes of initialised data that are read at once.
const MAX_DATA_BYTES: u64 = 4096;
/// Maximum number of exported values with one prefix: V8 has about 500. Callers look for known
/// names, so that one beyond it counts as missing.
const MAX_VALUES: usize = 4096;
/// Maximum number of strings with one ending; a table of options has fewer.
const MAX_ENDINGS: usize = 64;

/// Sizes of `Elf64_Ehdr`, `Elf64_Shdr`, `Elf64_Phdr` and `Elf64_Sym` (elf.h).
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SYMBOL_BYTES: usize = 24;
/// Offsets in `Elf64_Ehdr`.
const E_PHOFF: usize = 32;
const E_SHOFF: usize = 40;
const E_PHENTSIZE: usize = 54;
const E_PHNUM: usize = 56;
const E_SHENTSIZE: usize = 58;
const E_SHNUM: usize = 60;
const E_SHSTRNDX: usize = 62;
const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const PT_LOAD: u32 = 1;

/// One section header.
#[derive(Clone, Debug)]
struct Section {
    name: Vec<u8>,
    /// `SHT_*`.
    kind: u32,
    /// Where its contents begin in the file.
    offset: u64,
    bytes: u64,
    /// The index of the section with the names, for a symbol table.
    link: u32,
}

/// An open ELF file with its section headers.
#[derive(Debug)]
pub struct ElfFile {
    file: File,
    header: Vec<u8>,
    sections: Vec<Section>,
}

/// A 32-bit value that the file exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedValue {
    /// Its name without the requested prefix.
    pub name: String,
    /// The value.
    pub value: u32,
}

/// A symbol that the file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// One of the requested names.
    pub name: &'static str,
    /// Its address, before relocation.
    pub address: u64,
}

impl ElfFile {
    /// Reads the headers; `None` if the file is not a little-endian ELF-64 file. Damaged sections
    /// count as none.
    pub fn open(file: File) -> Option<Self> {
        let header = header(&file)?;
        let mut image = Self { file, header, sections: Vec::new() };
        image.sections = image.read_sections().unwrap_or_default();
        Some(image)
    }

    /// The section headers; `None` if there are none, too many, or they are damaged.
    fn read_sections(&self) -> Option<Vec<Section>> {
        let offset = word_at(&self.header, E_SHOFF)?;
        let count = elf_half_at(&self.header, E_SHNUM)?;
        let name_section = elf_half_at(&self.header, E_SHSTRNDX)?;
        if elf_half_at(&self.header, E_SHENTSIZE)? != SECTION_BYTES || count == 0 || count > MAX_SECTIONS {
            return None;
        }
        let table = read(&self.file, offset, (count * SECTION_BYTES) as u64)?;
        let entries = table.chunks_exact(SECTION_BYTES);
        let mut sections = entries.clone().map(parse_section).collect::<Option<Vec<Section>>>()?;
        let name_section = sections.get(name_section)?;
        let names = read(&self.file, name_section.offset, name_section.bytes.min(MAX_SECTION_NAMES_BYTES))?;
        for (section, entry) in sections.iter_mut().zip(entries) {
            section.name = section_name(&names, half_word_at(entry, 0)? as usize).to_vec();
        }
        Some(sections)
    }

    fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name.as_bytes())
    }

    /// The first `max_bytes` bytes of a section; `None` if there is no such section.
    pub fn section_bytes(&self, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
        let section = self.section(name).filter(|section| section.kind != SHT_NOBITS)?;
        read(&self.file, section.offset, section.bytes.min(max_bytes))
    }

    /// Those of `names` that the file defines in its dynamic symbol table.
    pub fn exported(&self, names: &[&'static str]) -> Vec<Symbol> {
        self.symbols(SHT_DYNSYM, names)
    }

    /// Those of `names` that the file defines in its full symbol table, if it is not stripped.
    pub fn static_symbols(&self, names: &[&'static str]) -> Vec<Symbol> {
        self.symbols(SHT_SYMTAB, names)
    }

    /// The 32-bit values of the data that the file exports under names that begin with `prefix`; at
    /// most 4,096.
    pub fn exported_values(&self, prefix: &str) -> Vec<ExportedValue> {
        let mut addresses = Vec::new();
        self.each_symbol(SHT_DYNSYM, &mut |text, address| {
            let suffix = text
                .strip_prefix(prefix.as_bytes())
                .and_then(|suffix| until_zero(suffix, MAX_STRING_BYTES))
                .filter(|_| addresses.len() < MAX_VALUES);
            let suffix = suffix.and_then(|suffix| std::str::from_utf8(suffix).ok());
            addresses.extend(suffix.map(|suffix| (suffix.to_owned(), address)));
        });
        let with_value = |(name, address)| {
            Some(ExportedValue { name, value: half_word_at(&self.bytes_at(address, 4)?, 0)? })
        };
        addresses.into_iter().filter_map(with_value).collect()
    }

    /// Those of `names` that the symbol table of this kind (`SHT_*`) defines.
    fn symbols(&self, kind: u32, names: &[&'static str]) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::new();
        self.each_symbol(kind, &mut |text, address| {
            let name = names.iter().find(|name| {
                text.first() == name.as_bytes().first()
                    && text.starts_with(name.as_bytes())
                    && text.get(name.len()) == Some(&0)
            });
            if let Some(name) = name.filter(|name| symbols.iter().all(|symbol| symbol.name != **name)) {
                symbols.push(Symbol { name, address });
            }
        });
        symbols
    }

    /// Passes the name of each symbol that a table defines, with all bytes after it, and its
    /// address to `visit`. A table that is missing or damaged has none, and one beyond the limits
    /// is cut.
    fn each_symbol(&self, kind: u32, visit: &mut dyn FnMut(&[u8], u64)) {
        let read_tables = || {
            let table = self.sections.iter().find(|section| section.kind == kind)?;
            let names = self.sections.get(table.link as usize)?;
            let entries = read(&self.file, table.offset, table.bytes.min(MAX_SYMBOL_TABLE_BYTES))?;
            Some((entries, read(&self.file, names.offset, names.bytes.min(MAX_SYMBOL_NAMES_BYTES))?))
        };
        let Some((entries, names)) = read_tables() else { return };
        for entry in entries.chunks_exact(SYMBOL_BYTES) {
            // st_name at 0, st_shndx at 6 (0: used here, defined elsewhere), st_value at 8.
            let (Some(name), Some(section), Some(address)) =
                (half_word_at(entry, 0), elf_half_at(entry, 6), word_at(entry, 8))
            else {
                break;
            };
            if section != 0 {
                visit(names.get(name as usize..).unwrap_or_default(), address);
            }
        }
    }

    /// Reads `bytes` bytes of initialised data at an address before relocation; `None` if they are
    /// not all in one segment, or more than 4,096.
    pub fn bytes_at(&self, address: u64, bytes: u64) -> Option<Vec<u8>> {
        let fits = |segment: &Segment| segment.part_from(address).filter(|part| part.bytes >= bytes);
        let part = segments(&self.file, &self.header)?.iter().find_map(fits);
        read(&self.file, part.filter(|_| bytes <= MAX_DATA_BYTES)?.offset, bytes)
    }

    /// Where the file has read-only data that is searched for strings, as offsets.
    fn read_only_data(&self) -> Option<Range<u64>> {
        let section = self.section(".rodata").filter(|section| section.kind != SHT_NOBITS)?;
        let end = section.offset.saturating_add(section.bytes.min(MAX_SEARCHED_BYTES));
        Some(section.offset..end)
    }

    /// Searches the read-only data for each of `needles`; returns the printable text at the first
    /// match of each: up to 96 bytes, including the needle. Only the first 16 MiB are searched.
    pub fn strings(&self, needles: &[&str]) -> Vec<Option<String>> {
        let mut texts = vec![None; needles.len()];
        let Some(Range { start: mut at, end }) = self.read_only_data() else { return texts };
        while at < end && texts.iter().any(Option::is_none) {
            // Blocks overlap by the maximum string length, so that no string is cut at a border:
            // what begins in the overlap is whole in the next block.
            let block_bytes = (end - at).min((BLOCK_BYTES + MAX_STRING_BYTES) as u64);
            let Some(block) = read(&self.file, at, block_bytes) else { break };
            for (needle, text) in needles.iter().zip(&mut texts).filter(|(_, text)| text.is_none()) {
                *text = memchr::memmem::find(&block, needle.as_bytes())
                    .filter(|&position| position < BLOCK_BYTES)
                    .map(|position| printable(&block[position..], MAX_STRING_BYTES));
            }
            at += BLOCK_BYTES as u64;
        }
        texts
    }

    /// The C strings of the read-only data that end with `ending`, each complete, in alphabetical
    /// order. Linkers merge a string into the end of a longer one, so callers that search for a
    /// name must consider longer strings too. Left out are strings with more than 96 bytes before
    /// `ending`, those beyond the first 16 MiB, and after 64 strings the others.
    pub fn strings_ending(&self, ending: &str) -> BTreeSet<String> {
        let mut strings = BTreeSet::new();
        let Some(Range { start: mut at, end }) = self.read_only_data() else { return strings };
        let mut window = Vec::new();
        let carried_bytes = 2 * MAX_STRING_BYTES.max(ending.len()) + 1;
        while at < end && strings.len() < MAX_ENDINGS {
            let Some(block) = read(&self.file, at, (end - at).min(BLOCK_BYTES as u64)) else { break };
            // Keep the end of the previous block; matches that end within it were returned with
            // that block.
            window.drain(..window.len().saturating_sub(carried_bytes));
            let known_bytes = window.len();
            window.extend_from_slice(&block);
            strings.extend(strings_ending_in(&window, ending, known_bytes).take(MAX_ENDINGS));
            at += BLOCK_BYTES as u64;
        }
        strings
    }
}

/// The C strings of `bytes` that end with `ending` and whose terminator is not among the first
/// `known_bytes` bytes.
fn strings_ending_in<'a>(
    bytes: &'a [u8],
    ending: &'a str,
    known_bytes: usize,
) -> impl Iterator<Item = String> + 'a {
    memchr::memmem::find_iter(bytes, ending.as_bytes()).filter_map(move |position| {
        let terminator = position + ending.len();
        let bytes_before = bytes[..position]
            .iter()
            .rev()
            .take(MAX_STRING_BYTES + 1)
            .take_while(|byte| is_text(**byte))
            .count();
        let is_wanted = terminator >= known_bytes
            && bytes.get(terminator) == Some(&0)
            && bytes_before <= MAX_STRING_BYTES;
        is_wanted.then(|| {
            bytes[position - bytes_before..terminator].iter().map(|&byte| char::from(byte)).collect()
        })
    })
}

/// Whether a byte is printable ASCII.
fn is_text(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

/// Decodes a section header (sh_type at 4, sh_offset at 24, sh_size at 32, sh_link at 40), without
/// the name, which is in another section.
fn parse_section(entry: &[u8]) -> Option<Section> {
    Some(Section {
        name: Vec::new(),
        kind: half_word_at(entry, 4)?,
        offset: word_at(entry, 24)?,
        bytes: word_at(entry, 32)?,
        link: half_word_at(entry, 40)?,
    })
}

/// A part of a file that is mapped (`PT_LOAD`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Its first address, before relocation.
    pub start: u64,
    /// Its length in the file.
    pub bytes: u64,
    /// Its length in memory: what is beyond the file is bss.
    pub memory_bytes: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

impl Segment {
    /// Its part from `address` on; `None` if that is not in it.
    pub fn part_from(self, address: u64) -> Option<Self> {
        let skip = address.checked_sub(self.start).filter(|&skip| skip < self.bytes)?;
        Some(Self {
            start: address,
            bytes: self.bytes - skip,
            memory_bytes: self.memory_bytes.saturating_sub(skip),
            offset: self.offset.checked_add(skip)?,
        })
    }
}

/// The segments of an ELF-64 file with this header, the first 256 of them; `None` if they cannot be
/// read.
pub(crate) fn segments(file: &File, header: &[u8]) -> Option<Vec<Segment>> {
    if elf_half_at(header, E_PHENTSIZE)? != SEGMENT_BYTES {
        return None;
    }
    let count = elf_half_at(header, E_PHNUM)?.min(MAX_SEGMENTS);
    let table = read(file, word_at(header, E_PHOFF)?, (count * SEGMENT_BYTES) as u64)?;
    let mapped = table.chunks_exact(SEGMENT_BYTES).filter(|entry| half_word_at(entry, 0) == Some(PT_LOAD));
    // p_offset at 8, p_vaddr at 16, p_filesz at 32, p_memsz at 40.
    let segment = |entry: &[u8]| {
        Some(Segment {
            start: word_at(entry, 16)?,
            bytes: word_at(entry, 32)?,
            memory_bytes: word_at(entry, 40)?,
            offset: word_at(entry, 8)?,
        })
    };
    Some(mapped.filter_map(segment).collect())
}

/// The 16-bit number (`Elf64_Half`) at `offset` of `bytes`; `None` past the end.
fn elf_half_at(bytes: &[u8], offset: usize) -> Option<usize> {
    let bytes = bytes.get(offset..offset.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?).into())
}

/// The bytes that an ELF-64 file takes in memory, from the page of its first segment to the end of
/// its last one (`p_memsz`), bss included, in whole pages; `None` if its headers cannot be read.
pub fn memory_span(file: &File) -> Option<u64> {
    let segments = segments(file, &header(file)?)?;
    let start = segments.iter().map(|segment| page_of(segment.start)).min()?;
    let ends = segments.iter().map(|segment| segment.start.saturating_add(segment.memory_bytes));
    ends.max()?.checked_next_multiple_of(PAGE_BYTES)?.checked_sub(start)
}

/// The header of a little-endian ELF-64 file; `None` if it is another file.
pub(crate) fn header(file: &File) -> Option<Vec<u8>> {
    // Magic, ELFCLASS64, ELFDATA2LSB.
    read(file, 0, HEADER_BYTES as u64).filter(|header| header.starts_with(b"\x7fELF\x02\x01"))
}

/// Reads exactly `bytes` bytes at `offset`. Checks first that the file has them, so that a false
/// size in a header costs no memory.
fn read(file: &File, offset: u64, bytes: u64) -> Option<Vec<u8>> {
    let size = file.metadata().ok()?.len();
    if offset.checked_add(bytes)? > size {
        return None;
    }
    let mut buffer = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

/// The name at `start`; empty if it does not end within [`MAX_SECTION_NAME_BYTES`].
fn section_name(names: &[u8], start: usize) -> &[u8] {
    names.get(start..).and_then(|name| until_zero(name, MAX_SECTION_NAME_BYTES)).unwrap_or_default()
}

/// The bytes before the first zero byte; `None` if there are more than `max_bytes`. Names in a file
/// may overlap, so each is searched for its end within a bound.
pub(crate) fn until_zero(bytes: &[u8], max_bytes: usize) -> Option<&[u8]> {
    let searched = bytes.get(..=max_bytes).unwrap_or(bytes);
    searched.get(..memchr::memchr(0, searched)?)
}

/// The printable ASCII characters that `bytes` begin with, at most `max_bytes`.
pub(crate) fn printable(bytes: &[u8], max_bytes: usize) -> String {
    let text = bytes.iter().take(max_bytes).take_while(|byte| is_text(**byte));
    text.map(|&byte| char::from(byte)).collect()
}

/// Opens the file that is mapped at `address`; `None` if no file is mapped there, or it cannot be
/// read.
pub fn image_at(process: &Process, space: &AddressSpace, address: u64) -> Option<ElfFile> {
    ElfFile::open(open_mapped_file(process, space.find(address)?).ok()?)
}

/// Whether the file of `mapping` is known to define one of `names` in its dynamic symbols; false
/// for one that cannot be read.
pub fn exports(process: &Process, mapping: &Mapping, names: &[&'static str]) -> bool {
    let image = open_mapped_file(process, mapping).ok().and_then(ElfFile::open);
    image.is_some_and(|image| !image.exported(names).is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let name = format!("strandline-image-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Calls every function on a file with these bytes.
    fn read_all_of(bytes: &[u8]) {
        if let Some(image) = ElfFile::open(file(bytes)) {
            image.exported(&["malloc", "mallctl"]);
            image.static_symbols(&["malloc"]);
            image.section_bytes(".go.buildinfo", 64);
            image.strings(&["<jemalloc>"]);
            image.strings_ending("MALLOC_CONF");
            image.bytes_at(0x1000, 8);
        }
        memory_span(&file(bytes));
    }

    #[test]
    fn the_system_library_defines_malloc() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find(|line| line.contains("/libc.so.6")).unwrap();
        let image = ElfFile::open(File::open(&libc[libc.find('/').unwrap()..]).unwrap()).unwrap();
        let symbols = image.exported(&["malloc", "mallctl"]);
        assert_eq!(symbols.iter().map(|symbol| symbol.name).collect::<Vec<_>>(), ["malloc"]);
        assert!(image.bytes_at(symbols[0].address, 16).is_some());
        let banner = image.strings(&["GNU C Library (", "no such string in there"]);
        assert!(banner[0].as_ref().unwrap().starts_with("GNU C Library ("));
        assert_eq!(banner[1], None);
        assert!(image.strings_ending("nsswitch.conf").contains("/etc/nsswitch.conf"));
    }

    #[test]
    fn the_span_in_memory_is_that_of_the_headers() {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..58].copy_from_slice(&[56, 0, 3, 0]);
        // Kind, then offset, address (twice), bytes in the file and in memory, alignment.
        for (kind, words) in [
            (1u32, [0, 0x40_0000, 0x40_0000, 0x100, 0x100, 0]),
            (1, [0x1e00, 0x40_2e00, 0x40_2e00, 0x100, 0x3201, 0]),
            (2, [0, 0x90_0000, 0x90_0000, 0x100, 0x100, 0]),
        ] {
            bytes.extend(u64::from(kind).to_le_bytes());
            bytes.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
        }
        // The bss ends at 0x406001.
        assert_eq!(memory_span(&file(&bytes)), Some(0x7000));
        assert_eq!(memory_span(&file(b"no program")), None);
    }

    #[test]
    fn a_string_at_the_border_of_two_blocks_is_whole() {
        let (names, data) = (b"\0.rodata\0\0\0\0\0\0\0", BLOCK_BYTES + 2 * MAX_STRING_BYTES);
        let mut bytes = vec![0; HEADER_BYTES + 2 * SECTION_BYTES + names.len() + data];
        let rodata = bytes.len() - data;
        let mut set = |at: usize, value: &[u8]| bytes[at..][..value.len()].copy_from_slice(value);
        set(0, b"\x7fELF\x02\x01");
        set(E_SHOFF, &HEADER_BYTES.to_le_bytes());
        set(E_SHENTSIZE, &[SECTION_BYTES as u8, 0, 2, 0]);
        // The section of names is the first. Name, kind, offset and size.
        for (index, (kind, name, at, size)) in
            [(3, 0, rodata - names.len(), names.len()), (1, 1, rodata, data)].into_iter().enumerate()
        {
            let entry = HEADER_BYTES + index * SECTION_BYTES;
            set(entry, &[name, 0, 0, 0, kind]);
            set(entry + 24, &at.to_le_bytes());
            set(entry + 32, &size.to_le_bytes());
        }
        set(rodata - names.len(), names);
        let text = "lib/python3.11 and more, to the end of what is returned";
        set(rodata + BLOCK_BYTES + MAX_STRING_BYTES - 13, text.as_bytes());
        let image = ElfFile::open(file(&bytes)).unwrap();
        assert_eq!(image.strings(&["lib/python3."]), [Some(text.to_owned())]);
    }

    #[test]
    fn strings_are_found_by_their_end() {
        let bytes =
            b"\0_RJEM_MALLOC_CONF\0value of MALLOC_CONF\0MALLOC_CONF is set\0\x01MALLOC_CONF\0MALLOC_CONF";
        let strings_after =
            |known_bytes| strings_ending_in(bytes, "MALLOC_CONF", known_bytes).collect::<Vec<_>>();
        assert_eq!(strings_after(0), ["_RJEM_MALLOC_CONF", "value of MALLOC_CONF", "MALLOC_CONF"]);
        assert_eq!(strings_after(40), ["MALLOC_CONF"]);
        let long = [vec![b'x'; MAX_STRING_BYTES + 1], b"end\0".to_vec()].concat();
        assert_eq!(strings_ending_in(&long, "end", 0).count(), 0);
        assert_eq!(strings_ending_in(&long[1..], "end", 0).count(), 1);
    }

    #[test]
    fn names_of_sections_are_bounded() {
        let names = [b"\0.data\0".to_vec(), vec![b'x'; 1 << 20], b"\0.end".to_vec()].concat();
        assert_eq!(section_name(&names, 1), b".data");
        assert_eq!(section_name(&names, 7), b"", "longer than a name is");
        assert_eq!(section_name(&names, names.len() - 4), b"", "it has no end");
        assert_eq!(section_name(&names, names.len() + 1), b"");
        let value = [vec![b'x'; MAX_STRING_BYTES], vec![0]].concat();
        assert_eq!(until_zero(&value, MAX_STRING_BYTES).map(<[u8]>::len), Some(MAX_STRING_BYTES));
        assert_eq!(until_zero(&value, MAX_STRING_BYTES - 1), None);
    }

    #[test]
    fn false_headers_are_rejected_early() {
        let mut bytes = std::fs::read("/bin/true").unwrap();
        assert!(ElfFile::open(file(&bytes)).is_some_and(|image| image.section(".rodata").is_some()));
        bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        read_all_of(&bytes);
        let cut = bytes.len() / 2;
        read_all_of(&bytes[..cut]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_files_never_panic(changes in proptest::collection::vec((0usize..4096, any::<u8>()), 0..60)) {
            let mut bytes = std::fs::read("/bin/true").unwrap();
            let length = bytes.len();
            for (number, value) in changes {
                // Half of the damage goes to the headers at either end.
                let at = if number % 2 == 0 { number % 256 } else { length - 1 - number };
                bytes[at] = value;
            }
            read_all_of(&bytes);
        }
    }
}

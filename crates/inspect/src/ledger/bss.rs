//! Finds where each program's bss ends, from the headers of mapped files.
//!
//! Reads files, not the target's mappings of them: reading those would bring pages into the target.
//! If a file cannot be opened, its bss stays on the row of unexplained memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian;
use object::elf::{FileHeader32, FileHeader64, PF_W, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use strandline_process::map::Mapping;
use strandline_process::namespaces::open_mapped_file;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::smaps::SmapsEntry;

/// Bytes read of a file: ELF and program headers are at its start, within a page in every known
/// program.
const HEADER_BYTES: usize = 16 << 10;

/// Returns the bss of each mapped program: the anonymous memory after its data, up to the end in
/// its headers. The kernel may have merged other memory with it, or list it as several mappings if
/// the program called madvise on a part.
pub fn find(process: &Process, smaps_entries: &[SmapsEntry]) -> Vec<AddressRange> {
    let mut found = Vec::new();
    let mut first: Option<&Mapping> = None;
    for (index, pair) in smaps_entries.windows(2).enumerate() {
        let (mapping, next) = (&pair[0].mapping, &pair[1].mapping);
        let is_same_file = |first: &&Mapping| first.file_id() == mapping.file_id();
        if mapping.has_file() && (mapping.offset == 0 || !first.as_ref().is_some_and(is_same_file)) {
            first = Some(mapping);
        }
        let is_data = mapping.has_file() && mapping.permissions.write && !mapping.permissions.shared;
        if !is_data || mapping.end != next.start || !next.is_private_anonymous() || !next.name.is_empty() {
            continue;
        }
        // Any memory may follow a file that is not a program, such as the mapped image of a Lisp
        // heap; without a header it does not count as bss.
        let end = first.filter(is_same_file).and_then(|first| data_end(process, first));
        let mut anonymous_end = next.end;
        for following in smaps_entries[index + 2..].iter().map(|entry| &entry.mapping) {
            let is_adjacent = following.start == anonymous_end;
            if !is_adjacent || !following.is_private_anonymous() || !following.name.is_empty() {
                break;
            }
            anonymous_end = following.end;
        }
        let end = end.map_or(next.start, |end| end.clamp(next.start, anonymous_end));
        if end > next.start {
            found.push(AddressRange::new(next.start, end));
        }
    }
    found
}

/// Returns the end of the data of the program whose first mapping is `first`, rounded up to a page.
fn data_end(process: &Process, first: &Mapping) -> Option<u64> {
    if first.offset != 0 {
        return None;
    }
    let file: File = open_mapped_file(process, first).ok()?;
    let mut bytes = vec![0; HEADER_BYTES];
    let read_bytes = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read_bytes);
    // A 32-bit program has another header.
    data_end_by::<FileHeader64<LittleEndian>>(&bytes, first)
        .or_else(|| data_end_by::<FileHeader32<LittleEndian>>(&bytes, first))
}

/// Returns the end of the data by the headers in `bytes`, if they are of the format `Header`.
fn data_end_by<Header: FileHeader<Endian = LittleEndian>>(bytes: &[u8], first: &Mapping) -> Option<u64> {
    let header = Header::parse(bytes).ok()?;
    let headers = header.program_headers(LittleEndian, bytes).ok()?;
    let loads = || headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD);
    let start = |header: &Header::ProgramHeader| -> u64 { header.p_vaddr(LittleEndian).into() };
    let lowest = loads().map(start).min()?;
    let bias = first.start.wrapping_sub(lowest - lowest % PAGE_BYTES);
    let writable = loads().filter(|header| header.p_flags(LittleEndian).contains(PF_W));
    let end =
        writable.map(|header| start(header).saturating_add(header.p_memsz(LittleEndian).into())).max()?;
    bias.wrapping_add(end).checked_next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_process::smaps::Smaps;

    #[test]
    fn this_test_program_has_bss() {
        let pid = std::process::id().cast_signed();
        let process = Process::open(pid).unwrap();
        let smaps = Smaps::read(process.open_file("smaps").unwrap()).unwrap();
        let libc =
            smaps.entries.iter().map(|entry| &entry.mapping).find(|m| m.name.contains("/libc.so")).unwrap();
        let bss = find(&process, &smaps.entries);
        assert!(bss.iter().any(|range| range.start > libc.start), "libc has bss: {bss:x?}");
        for range in &bss {
            assert!(range.len() < 1 << 20, "no bss here is that long: {range:x?}");
        }
    }
}

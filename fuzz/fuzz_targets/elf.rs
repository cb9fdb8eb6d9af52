//! Arbitrary bytes as a mapped ELF object: symbols, sections and call frames are found or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strandline_process::elf::Object;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;

const START: u64 = 0x7fff_f7fc_0000;

struct Bytes<'a>(&'a [u8]);

impl Memory for Bytes<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let offset = address.checked_sub(START).and_then(|offset| usize::try_from(offset).ok());
        let Some(rest) = offset.and_then(|offset| self.0.get(offset..)) else { return 0 };
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }
}

fuzz_target!(|bytes: &[u8]| {
    let maps = format!("{START:x}-{:x} r-xp 00000000 00:00 0 [vdso]\n", START + 0x10_0000);
    let (space, _) = AddressSpace::parse(maps.as_bytes());
    let Some(mapping) = space.find(START) else { return };
    let Ok(object) = Object::from_memory(&Bytes(bytes), &space, mapping) else { return };
    let _ = object.text_contains(START);
    let mut symbols = 0u64;
    object.each_symbol(&mut |name, _| symbols += u64::from(!name.is_empty()));
    assert!(symbols <= bytes.len() as u64, "more symbols than bytes");
    let _ = object.symbol_address("malloc_trim");
    if let Some(sections) = object.frames() {
        let mut loaded = sections.header.iter().chain([&sections.frames]);
        assert!(loaded.all(|section| section.bytes.len() <= bytes.len()));
    }
});

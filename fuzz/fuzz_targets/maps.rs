//! /proc/PID/maps: mappings are ordered and do not overlap, and every address finds its mapping.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strandline_process::map::AddressSpace;

fuzz_target!(|text: &[u8]| {
    let (space, bad) = AddressSpace::parse(text);
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(space.mappings().len() + bad, lines);
    for pair in space.mappings().windows(2) {
        assert!(pair[0].end <= pair[1].start);
    }
    for mapping in space.mappings() {
        assert!(mapping.bytes() > 0);
        assert_eq!(space.find(mapping.start), Some(mapping));
        assert_eq!(space.find(mapping.end - 1), Some(mapping));
    }
});

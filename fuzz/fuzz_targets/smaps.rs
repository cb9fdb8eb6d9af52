//! /proc/PID/smaps and smaps_rollup: mappings are ordered, and no page is derived from text alone.
#![no_main]

use std::fs::File;

use libfuzzer_sys::fuzz_target;
use strandline_process::pages::{Interface, Residency};
use strandline_process::smaps::{Smaps, read_rollup};

fuzz_target!(|text: &[u8]| {
    let _ = read_rollup(text);
    let Ok(smaps) = Smaps::read(text) else { return };
    for pair in smaps.entries.windows(2) {
        assert!(pair[0].mapping.end <= pair[1].mapping.start);
    }
    let _ = smaps.total();
    // A pagemap without entries: the process ended. Whatever smaps contains, there are no runs.
    let Ok(empty) = File::open("/dev/null") else { return };
    if let Ok(residency) = Residency::read_by(&empty, &smaps.entries, Interface::Entries) {
        assert_eq!(residency.resident_bytes_in(0..u64::MAX), 0);
    }
});

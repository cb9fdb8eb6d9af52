//! Recordings: arbitrary bytes are read to their end in bounded memory, or refused; a block of
//! samples of any shape is unrolled.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use strandline_recording::{Block, Reader, Record, Writer};

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes, Path::new("fuzz")) else { return };
    while let Ok(Some(record)) = reader.next_record() {
        if let Record::Samples(block) = record {
            // Expands the block, as a report does.
            let _ = block.runs().take(100_000).map(|run| run.count.min(1)).sum::<u64>();
        }
    }
    let _ = reader.caveats();
}

fuzz_target!(|bytes: &[u8]| {
    // As a file: almost always damaged.
    read(bytes);
    // As the lines inside a valid file.
    if let Ok(framed) = zstd::bulk::compress(bytes, 1) {
        read(&framed);
    }
    // As a block of samples between a valid beginning and end.
    let Ok(block) = serde_json::from_slice::<Block>(bytes) else { return };
    let Ok(mut writer) = Writer::new(Vec::new()) else { return };
    if writer.push(&Record::Samples(Box::new(block))).is_ok() && writer.flush().is_ok() {
        read(writer.file());
    }
});

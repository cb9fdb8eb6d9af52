//! Writes a recording of an hour at 1 kHz in which every sample differs, for the bench: `hour FILE
//! [SECONDS]`.

use std::fs::File;
use std::io::BufWriter;

use strandline_recording::{
    Block, Ending, Header, Heartbeat, ProcessStart, Record, Run, SCHEMA, Sample, Writer,
};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or_else(|| std::io::Error::other("usage: hour FILE [SECONDS]"))?;
    let seconds: u64 = match arguments.next() {
        Some(text) => text.parse().map_err(std::io::Error::other)?,
        None => 3600,
    };
    let mut writer = Writer::new(BufWriter::new(File::create(path)?))?;
    let header = Header {
        schema: SCHEMA.to_owned(),
        command: vec!["an-hour".to_owned()],
        interval_us: 1000,
        ..Header::default()
    };
    writer.push(&Record::Header(Box::new(header)))?;
    let start = ProcessStart { pid: 4711, command: vec!["an-hour".to_owned()], ..ProcessStart::default() };
    writer.push(&Record::Process(start))?;
    let mut random = 88_172_645_463_325_252_u64;
    let mut faults = 0;
    for half_second in 0..seconds * 2 {
        let mut runs = Vec::new();
        for tick in 0..500 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at_us = half_second * 500_000 + tick * 1000 + random % 40;
            let anonymous_kib = 100_000 + at_us / 50_000 + random % 4096 * 4;
            faults += random % 64;
            let sample = Sample {
                rss_kib: anonymous_kib + 4000,
                virtual_kib: 400_000 + anonymous_kib / 132 * 132,
                data_kib: 300_000 + anonymous_kib / 132 * 132,
                anonymous_kib,
                file_kib: 4000,
                minor_faults: faults,
                user_ms: at_us / 10_000 * 9,
                system_ms: at_us / 10_000,
                threads: 4,
                ..Sample::default()
            };
            runs.push(Run { at_us, span_us: 0, count: 1, sample });
        }
        writer.push(&Record::Samples(Box::new(Block::new(0, &runs))))?;
        let at_us = (half_second + 1) * 500_000;
        writer.push(&Record::Heartbeat(Heartbeat { at_us, samples: (half_second + 1) * 500, missed: 0 }))?;
        writer.flush()?;
    }
    let end = Ending {
        at_us: seconds * 1_000_000,
        why: "ended".to_owned(),
        samples: seconds * 1000,
        ..Ending::default()
    };
    writer.push(&Record::End(Box::new(end)))?;
    writer.flush()
}

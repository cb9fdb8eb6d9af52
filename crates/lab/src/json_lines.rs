//! Lines of JSON, one for each message or finished run.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A longer line of a file counts as damaged; a run has about 1 KiB.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Writes a value as a line, at once.
pub fn write_line(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)
}

/// The valid lines of a file, up to the first one that is damaged or was cut off.
pub struct JsonLines<'a> {
    reader: BufReader<&'a File>,
    line: Vec<u8>,
    /// Size of the lines that were returned.
    pub valid_bytes: u64,
}

impl<'a> JsonLines<'a> {
    /// The lines from the position of `file` on.
    pub fn of(file: &'a File) -> Self {
        Self { reader: BufReader::new(file), line: Vec::new(), valid_bytes: 0 }
    }

    /// The value of the next line; `None` at the first that is not valid, after which nothing may
    /// be read.
    pub fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        self.line.clear();
        let bytes = Read::take(&mut self.reader, MAX_LINE_BYTES).read_until(b'\n', &mut self.line)?;
        let value = serde_json::from_slice(&self.line).ok().filter(|_| self.line.ends_with(b"\n"));
        if value.is_some() {
            self.valid_bytes += bytes as u64;
        }
        Ok(value)
    }
}

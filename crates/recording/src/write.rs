//! Writing: buffers lines, and writes them as one zstd frame with one `write`.

use std::io::{self, Write};

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::record::Record;

/// A recorder flushes as soon as its buffered lines have more bytes than this. The line that
/// exceeds it, such as a ledger, may be long: a reader unpacks frames of up to eight times this
/// size.
pub const FLUSH_THRESHOLD_BYTES: usize = 4 << 20;
/// Fast, and close to the compression of higher levels for such lines.
const COMPRESSION_LEVEL: i32 = 3;
/// Capacity that the buffer of lines keeps after a flush, so that it does not stay as large as the
/// largest ledger.
const KEPT_BUFFER_BYTES: usize = 64 << 10;

/// Writes records. Nothing reaches the file before [`Writer::flush`].
pub struct Writer<W: Write> {
    file: W,
    compressor: Compressor<'static>,
    /// Lines that were not written yet.
    lines: Vec<u8>,
    written_bytes: u64,
}

impl<W: Write> Writer<W> {
    /// A writer to `file`, which must be empty.
    ///
    /// # Errors
    /// If zstd cannot be set up (no memory).
    pub fn new(file: W) -> io::Result<Self> {
        let mut compressor = Compressor::new(COMPRESSION_LEVEL)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        compressor.set_parameter(CParameter::ContentSizeFlag(true))?;
        Ok(Self { file, compressor, lines: Vec::new(), written_bytes: 0 })
    }

    /// Adds a line to the current frame.
    ///
    /// # Errors
    /// If the record cannot be converted to JSON.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        let line_start = self.lines.len();
        if let Err(error) = serde_json::to_writer(&mut self.lines, record) {
            self.lines.truncate(line_start);
            return Err(error.into());
        }
        self.lines.push(b'\n');
        Ok(())
    }

    /// Bytes of buffered lines.
    pub fn buffered_bytes(&self) -> usize {
        self.lines.len()
    }

    /// Bytes that reached the file.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The file.
    pub fn file(&self) -> &W {
        &self.file
    }

    /// Drops the buffered lines, except the first one of the file: that is the header, which alone
    /// says what was recorded.
    pub fn drop_buffered(&mut self) {
        let header_end = self.lines.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        self.lines.truncate(if self.written_bytes == 0 { header_end } else { 0 });
    }

    /// Writes the buffered lines as one frame. On failure they stay buffered, and a part of the
    /// frame may have reached the file, past [`Writer::written_bytes`].
    ///
    /// # Errors
    /// The error of the write: ENOSPC, EFBIG, EIO, …
    pub fn flush(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let frame = self.compressor.compress(&self.lines)?;
        self.file.write_all(&frame)?;
        self.file.flush()?;
        self.written_bytes += frame.len() as u64;
        self.lines.clear();
        self.lines.shrink_to(KEPT_BUFFER_BYTES);
        Ok(())
    }
}

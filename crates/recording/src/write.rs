//! Writing: lines gather, and go out as one zstd frame with one `write`.

use std::io::{self, Write};

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::record::Record;

/// Lines of more bytes than this do not wait for the next flush, and no reader unpacks a frame of more than
/// eight times as much.
pub const MAX_FRAME_BYTES: usize = 4 << 20;
/// Fast, and close to what the higher ones reach on lines like these.
const LEVEL: i32 = 3;

/// Writes records. Nothing reaches the file before [`Writer::flush`].
pub struct Writer<W: Write> {
    out: W,
    compressor: Compressor<'static>,
    lines: Vec<u8>,
    written_bytes: u64,
}

impl<W: Write> Writer<W> {
    /// A writer to `out`, which is at its beginning.
    ///
    /// # Errors
    /// Where zstd cannot be set up (no memory).
    pub fn new(out: W) -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        compressor.set_parameter(CParameter::ContentSizeFlag(true))?;
        Ok(Self { out, compressor, lines: Vec::new(), written_bytes: 0 })
    }

    /// Adds a line to the frame under way.
    ///
    /// # Errors
    /// Where it cannot be put into JSON.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        let before = self.lines.len();
        if let Err(error) = serde_json::to_writer(&mut self.lines, record) {
            self.lines.truncate(before);
            return Err(error.into());
        }
        self.lines.push(b'\n');
        Ok(())
    }

    /// Bytes of lines that wait for the next flush.
    pub fn waiting_bytes(&self) -> usize {
        self.lines.len()
    }

    /// Bytes that reached the file.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The file.
    pub fn file(&self) -> &W {
        &self.out
    }

    /// Forgets the lines that wait.
    pub fn drop_waiting(&mut self) {
        self.lines.clear();
    }

    /// Writes the lines that wait as one frame. On failure they still wait, and a part of the frame may
    /// have reached the file, behind [`Writer::written_bytes`].
    ///
    /// # Errors
    /// What writing came to: ENOSPC, EFBIG, EIO, …
    pub fn flush(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let frame = self.compressor.compress(&self.lines)?;
        self.out.write_all(&frame)?;
        self.out.flush()?;
        self.written_bytes += frame.len() as u64;
        self.lines.clear();
        // After a large ledger the buffer would stay large for ever.
        self.lines.shrink_to(64 << 10);
        Ok(())
    }
}

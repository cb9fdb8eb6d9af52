//! Reads headers of blocks in address order.

use super::layout::PAGE_BYTES;
use strandline_claims::range::page_of;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;

/// Reads headers in address order: a large window if they are close together, otherwise a page.
pub struct ForwardReader<'a> {
    memory: &'a dyn Memory,
    buffer: ReadBuffer,
    /// Address of the first byte in the buffer.
    start: u64,
    /// Number of bytes in it.
    length: usize,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Bytes of the large window; fits a processor's cache.
const WINDOW_BYTES: usize = 128 << 10;
/// A header this far past the window is read with its page only.
const MAX_GAP_BYTES: u64 = 16 << 10;

impl<'a> ForwardReader<'a> {
    /// An empty window.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, buffer: ReadBuffer::new(WINDOW_BYTES), start: 0, length: 0, bytes_read: 0 }
    }

    /// Returns the bytes at an address; `None` if they cannot be read.
    pub fn read<const BYTES: usize>(&mut self, address: u64) -> Option<[u8; BYTES]> {
        if let Some(bytes) = self.buffered(address) {
            return Some(bytes);
        }
        let window_end = self.start.saturating_add(self.length as u64);
        let follows = address.wrapping_sub(window_end) < MAX_GAP_BYTES;
        let page = page_of(address);
        let window = if follows { WINDOW_BYTES } else { PAGE_BYTES as usize };
        self.length = self.memory.read_some(page, self.buffer.get_mut(..window)?);
        self.start = page;
        self.bytes_read += self.length as u64;
        if let Some(bytes) = self.buffered(address) {
            return Some(bytes);
        }
        // The header crosses two pages, or cannot be read.
        let mut bytes = [0; BYTES];
        self.memory.read(address, &mut bytes).ok()?;
        Some(bytes)
    }

    fn buffered<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let buffered = self.buffer.get(..self.length)?;
        buffered.get(at..at.checked_add(BYTES)?)?.try_into().ok()
    }
}

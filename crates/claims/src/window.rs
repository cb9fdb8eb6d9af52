//! Reads an address range front to back through a window that fits the processor's cache.
//!
//! Only resident pages are read: touching any other page would make the kernel bring it in and
//! change what is being measured. Every page that is read is checked for zeros on the way, so that
//! memory is read once.

use std::time::Instant;

use crate::range::{PAGE_BYTES, RangePages, is_all_zero, page_of};
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, WordPair, word_at};

/// Fits in a second-level cache together with the working set of the walk.
const WINDOW_BYTES: u64 = 256 << 10;

/// Two words outside of the order in which the window moves: see [`Window::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekedPair {
    /// The words.
    pub pair: WordPair,
    /// Whether they are outside the window, and so were read from the target.
    pub is_far: bool,
}

/// A window that moves forward over one range.
pub struct Window<'a> {
    memory: &'a dyn Memory,
    pages: &'a RangePages,
    buffer: ReadBuffer,
    /// Address of the first byte in the buffer.
    start: u64,
    /// First address past the buffer. Until the deadline, every resident page before it was read.
    end: u64,
    bytes_read: u64,
    unreadable_bytes: u64,
    deadline: Instant,
    is_late: bool,
}

impl<'a> Window<'a> {
    /// A window that has read nothing yet and will start at `start`. After the deadline it skips to
    /// the addresses that are asked for, and the pages before them are not checked for zeros.
    pub fn new(memory: &'a dyn Memory, pages: &'a RangePages, start: u64, deadline: Instant) -> Self {
        let start = page_of(start);
        Self {
            memory,
            pages,
            buffer: ReadBuffer::default(),
            start,
            end: start,
            bytes_read: 0,
            unreadable_bytes: 0,
            deadline,
            is_late: false,
        }
    }

    /// Whether the deadline had passed when the window last moved.
    #[inline]
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Resident bytes that could not be read.
    pub fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
    }

    /// The pages under the window.
    pub fn pages(&self) -> &'a RangePages {
        self.pages
    }

    /// Reads everything up to and including the page that contains `address`.
    pub fn advance(&mut self, address: u64) {
        while address >= self.end && self.end < self.pages.end() {
            self.is_late = self.is_late || Instant::now() >= self.deadline;
            let next_run = self.pages.runs_in(self.end, self.pages.end()).next().filter(|_| !self.is_late);
            let next_resident = next_run.map_or(u64::MAX, |run| run.start);
            // Skips what is not resident.
            self.start = if next_resident > address { page_of(address) } else { next_resident };
            self.end = self.start.saturating_add(WINDOW_BYTES).min(self.pages.end());
            self.fill();
        }
    }

    /// Reads the resident pages of the window; the rest of the buffer becomes 0.
    fn fill(&mut self) {
        let length = self.end.saturating_sub(self.start) as usize;
        self.buffer.resize(length);
        let mut filled_end = 0;
        for run in self.pages.runs_in(self.start, self.end) {
            let offsets = (run.start - self.start) as usize..(run.end - self.start) as usize;
            self.buffer.get_mut(filled_end..offsets.start).unwrap_or_default().fill(0);
            filled_end = offsets.end;
            let Some(bytes) = self.buffer.get_mut(offsets) else { continue };
            let read_length = self.memory.read_some(run.start, bytes);
            self.bytes_read += read_length as u64;
            self.unreadable_bytes += run.len().saturating_sub(read_length as u64);
            let (read, unread) = bytes.split_at_mut(read_length.min(bytes.len()));
            unread.fill(0);
            let addresses = (run.start..).step_by(PAGE_BYTES as usize);
            for (page, address) in read.chunks_exact(PAGE_BYTES as usize).zip(addresses) {
                if is_all_zero(page) {
                    self.pages.set_zero(address);
                }
            }
        }
        self.buffer.get_mut(filled_end..).unwrap_or_default().fill(0);
    }

    /// The two words at `address`, which must be 16-byte aligned and not below an earlier
    /// `address`; zeros if the page is not resident or cannot be read. Everything in between is
    /// read on the way.
    #[inline]
    pub fn pair(&mut self, address: u64) -> WordPair {
        if address >= self.end {
            self.advance(address);
        }
        self.pair_in_window(address).unwrap_or((0, 0))
    }

    fn pair_in_window(&self, address: u64) -> Option<WordPair> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        if address >= self.end {
            return None;
        }
        Some((word_at(&self.buffer, offset)?, word_at(&self.buffer, offset + 8)?))
    }

    /// The two words at any `address`, without moving the window. If the page is not resident or
    /// cannot be read: zeros within the window, `None` outside.
    pub fn peek(&self, address: u64) -> Option<PeekedPair> {
        if let Some(pair) = self.pair_in_window(address) {
            return Some(PeekedPair { pair, is_far: false });
        }
        if !self.pages.is_resident(address) {
            return None;
        }
        let mut bytes = [0; 16];
        self.memory.read(address, &mut bytes).ok()?;
        Some(PeekedPair { pair: (word_at(&bytes, 0)?, word_at(&bytes, 8)?), is_far: true })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strandline_process::range::AddressRange;

    use super::*;

    struct Ramp;
    impl Memory for Ramp {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            for (byte, at) in buffer.iter_mut().zip(address..) {
                *byte = if (0x20_0000..0x20_3000).contains(&at) { 0 } else { (at / 8) as u8 | 1 };
            }
            buffer.len()
        }
    }

    #[test]
    fn forward_reads_find_zeros_and_skip_nonresident_pages() {
        let pages =
            RangePages::new((0x10_0000, 0x8000_0000), [(0x10_0000, 0x20_5000), (0x7000_0000, 0x7000_1000)]);
        let mut window = Window::new(&Ramp, &pages, 0x10_0000, Instant::now() + Duration::from_secs(600));
        let word = |at: u64| u64::from_le_bytes([(at / 8) as u8 | 1; 8]);
        assert_eq!(window.pair(0x10_0040), (word(0x10_0040), word(0x10_0048)));
        assert_eq!(window.pair(0x20_4000), (word(0x20_4000), word(0x20_4008)));
        assert_eq!(pages.zero_runs(), [AddressRange::new(0x20_0000, 0x20_3000)]);
        assert_eq!(window.pair(0x3000_0000), (0, 0), "not resident");
        assert_eq!(window.pair(0x7000_0010).0, word(0x7000_0010));
        window.advance(0x7fff_ffff);
        assert_eq!(window.bytes_read(), 0x10_5000 + 0x1000);
        assert!(window.peek(0x11_0000).is_some_and(|peeked| peeked.is_far));
        assert!(window.peek(0x3000_0000).is_none());
    }

    #[test]
    fn after_the_deadline_only_what_is_asked_for_is_read() {
        let pages = RangePages::new((0x10_0000, 0x8000_0000), [(0x10_0000, 0x8000_0000)]);
        let mut window = Window::new(&Ramp, &pages, 0x10_0000, Instant::now());
        assert!(!window.is_late());
        assert_ne!(window.pair(0x7000_0010), (0, 0));
        assert!(window.is_late());
        assert_eq!(window.bytes_read(), WINDOW_BYTES);
    }
}

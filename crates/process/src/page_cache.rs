//! A cache of target pages, for following pointers: lists and trees jump, but mostly not far.

use crate::buffer::ReadBuffer;
use crate::memory::{Memory, Unreadable, WordPair, pair_at, word_at};
use crate::pages::{PAGE_BYTES, page_of};

/// Pages in a cache of the usual size.
const USUAL_PAGES: usize = 1024;
/// Pages whose memory is allocated together, at their first use: most caches stay nearly empty.
const PAGES_PER_GROUP: usize = 32;

/// Reads words and small structures through a direct-mapped cache of pages.
pub struct PageCache<'a> {
    memory: &'a dyn Memory,
    /// Number of pages, a power of two.
    pages: usize,
    /// The address of the page in each place; `u64::MAX` for an empty place.
    tags: Vec<u64>,
    /// Their bytes, [`PAGES_PER_GROUP`] pages in each buffer.
    bytes: Vec<ReadBuffer>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl<'a> PageCache<'a> {
    /// An empty cache of the usual size.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self::with_capacity(memory, USUAL_PAGES)
    }

    /// An empty cache of at least `pages` pages.
    pub fn with_capacity(memory: &'a dyn Memory, pages: usize) -> Self {
        let pages = pages.max(1).next_power_of_two();
        Self { memory, pages, tags: Vec::new(), bytes: Vec::new(), bytes_read: 0 }
    }

    /// Returns the bytes of a page; reads it if it is not in the cache.
    #[inline]
    fn page(&mut self, page: u64) -> Option<&[u8]> {
        let place = (page / PAGE_BYTES) as usize & (self.pages - 1);
        if self.tags.get(place) != Some(&page) {
            self.fill(page, place)?;
        }
        let at = place % PAGES_PER_GROUP * PAGE_BYTES as usize;
        self.bytes.get(place / PAGES_PER_GROUP)?.get(at..at + PAGE_BYTES as usize)
    }

    fn fill(&mut self, page: u64, place: usize) -> Option<()> {
        if self.tags.is_empty() {
            self.tags = vec![u64::MAX; self.pages];
            self.bytes = vec![ReadBuffer::default(); self.pages.div_ceil(PAGES_PER_GROUP)];
        }
        let group = self.bytes.get_mut(place / PAGES_PER_GROUP)?;
        if group.is_empty() {
            *group = ReadBuffer::new(self.pages.min(PAGES_PER_GROUP) * PAGE_BYTES as usize);
        }
        let at = place % PAGES_PER_GROUP * PAGE_BYTES as usize;
        let bytes = group.get_mut(at..at + PAGE_BYTES as usize)?;
        let tag = self.tags.get_mut(place)?;
        *tag = u64::MAX;
        self.memory.read(page, bytes).ok()?;
        *tag = page;
        self.bytes_read += PAGE_BYTES;
        Some(())
    }

    /// Reads the whole of `buffer`.
    ///
    /// # Errors
    /// [`Unreadable`], with the number of bytes up to the first page that cannot be read.
    pub fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let wanted = buffer.len();
        let mut done = 0;
        while done < wanted {
            let fail = Unreadable { address, wanted, got: done };
            let at = address.checked_add(done as u64).ok_or(fail)?;
            let within = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - within).min(wanted - done);
            let bytes = self.page(page_of(at)).and_then(|page| page.get(within..within + count));
            let (Some(to), Some(bytes)) = (buffer.get_mut(done..done + count), bytes) else {
                return Err(fail);
            };
            to.copy_from_slice(bytes);
            done += count;
        }
        Ok(())
    }

    /// Reads `N` bytes at `address`.
    pub fn array<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads the word at `address`.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let within = (address % PAGE_BYTES) as usize;
        if within > PAGE_BYTES as usize - 8 {
            return self.array(address).map(u64::from_le_bytes);
        }
        word_at(self.page(page_of(address))?, within)
    }

    /// Reads the 32-bit word at `address`.
    pub fn word32(&mut self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// Reads the word at `address` and the next.
    pub fn pair(&mut self, address: u64) -> Option<WordPair> {
        let bytes: [u8; 16] = self.array(address)?;
        pair_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages whose bytes are the low bits of their addresses.
    struct TwoPages;
    impl Memory for TwoPages {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let end = 3 * PAGE_BYTES;
            let readable = if address < PAGE_BYTES { 0 } else { end.saturating_sub(address) };
            let count = buffer.len().min(readable as usize);
            for (byte, at) in buffer.iter_mut().take(count).zip(address..) {
                *byte = at as u8;
            }
            count
        }
    }

    #[test]
    fn structures_may_cross_pages_and_end_with_memory() {
        let mut cache = PageCache::with_capacity(&TwoPages, 1);
        let word = |at: u64| Some(u64::from_le_bytes(std::array::from_fn(|byte| (at + byte as u64) as u8)));
        for at in [PAGE_BYTES, PAGE_BYTES + 8, 2 * PAGE_BYTES - 4, 2 * PAGE_BYTES, 3 * PAGE_BYTES - 8] {
            assert_eq!(cache.word(at), word(at), "{at:#x}");
            assert_eq!(cache.array(at).map(u64::from_le_bytes), word(at), "{at:#x}");
        }
        assert_eq!((cache.word(8), cache.word(3 * PAGE_BYTES - 4), cache.word(u64::MAX)), (None, None, None));
        let failed = Unreadable { address: 3 * PAGE_BYTES - 4, wanted: 8, got: 4 };
        assert_eq!(cache.read(3 * PAGE_BYTES - 4, &mut [0; 8]), Err(failed));
    }
}

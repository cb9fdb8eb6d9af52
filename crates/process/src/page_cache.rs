//! A cache of target pages, for following pointers: the next node of a list or tree is mostly on a
//! page that was read shortly before.

use std::ops::Range;

use crate::buffer::ReadBuffer;
use crate::memory::{Memory, PAIR_BYTES, Unreadable, WordPair, pair_at, word_at};
use crate::pages::{PAGE_BYTES, page_of};

/// Pages in a cache of the default size: 4 MiB.
const DEFAULT_PAGES: usize = 1024;
/// Pages whose memory is allocated together, at their first use: most caches stay nearly empty.
const PAGES_PER_GROUP: usize = 32;

/// The tag of an empty slot: not the address of a page, so that one comparison suffices.
const EMPTY: u64 = u64::MAX;

/// Reads words and small structures through a direct-mapped cache of pages; `None` for those that
/// cannot be read.
pub struct PageCache<'a> {
    memory: &'a dyn Memory,
    /// Number of slots, each for one page; a power of two.
    slot_count: usize,
    /// The address of the page in each slot; [`EMPTY`] for an empty slot.
    tags: Vec<u64>,
    /// The bytes of the pages, [`PAGES_PER_GROUP`] slots in each buffer.
    groups: Vec<ReadBuffer>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl<'a> PageCache<'a> {
    /// An empty cache of the default size.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self::with_capacity(memory, DEFAULT_PAGES)
    }

    /// An empty cache of at least `pages` pages.
    pub fn with_capacity(memory: &'a dyn Memory, pages: usize) -> Self {
        let slot_count = pages.max(1).next_power_of_two();
        Self { memory, slot_count, tags: Vec::new(), groups: Vec::new(), bytes_read: 0 }
    }

    /// Returns the bytes of a page; reads it if it is not in the cache.
    #[inline]
    fn page(&mut self, page_start: u64) -> Option<&[u8]> {
        let slot = (page_start / PAGE_BYTES) as usize & (self.slot_count - 1);
        if self.tags.get(slot) != Some(&page_start) {
            self.fill(page_start, slot)?;
        }
        self.groups.get(slot / PAGES_PER_GROUP)?.get(bytes_in_group(slot))
    }

    /// Reads a page into a slot; `None`, with the slot empty, if it cannot be read.
    fn fill(&mut self, page_start: u64, slot: usize) -> Option<()> {
        if self.tags.is_empty() {
            self.tags = vec![EMPTY; self.slot_count];
            self.groups = vec![ReadBuffer::default(); self.slot_count.div_ceil(PAGES_PER_GROUP)];
        }
        let group = self.groups.get_mut(slot / PAGES_PER_GROUP)?;
        if group.is_empty() {
            *group = ReadBuffer::new(self.slot_count.min(PAGES_PER_GROUP) * PAGE_BYTES as usize);
        }
        let bytes = group.get_mut(bytes_in_group(slot))?;
        let tag = self.tags.get_mut(slot)?;
        *tag = EMPTY;
        self.memory.read(page_start, bytes).ok()?;
        *tag = page_start;
        self.bytes_read += PAGE_BYTES;
        Some(())
    }

    /// Reads the whole of `buffer`.
    ///
    /// # Errors
    /// [`Unreadable`], with the number of bytes up to the first page that cannot be read.
    pub fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let wanted_bytes = buffer.len();
        let mut read_bytes = 0;
        while read_bytes < wanted_bytes {
            let error = Unreadable { address, wanted_bytes, read_bytes };
            let at = address.checked_add(read_bytes as u64).ok_or(error)?;
            let offset = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - offset).min(wanted_bytes - read_bytes);
            let bytes = self.page(page_of(at)).and_then(|page| page.get(offset..offset + count));
            let (Some(destination), Some(bytes)) = (buffer.get_mut(read_bytes..read_bytes + count), bytes)
            else {
                return Err(error);
            };
            destination.copy_from_slice(bytes);
            read_bytes += count;
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
        let offset = (address % PAGE_BYTES) as usize;
        if offset > PAGE_BYTES as usize - 8 {
            return self.array(address).map(u64::from_le_bytes);
        }
        word_at(self.page(page_of(address))?, offset)
    }

    /// Reads the 32-bit word at `address`.
    pub fn word32(&mut self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// Reads the word at `address` and the next.
    pub fn pair(&mut self, address: u64) -> Option<WordPair> {
        let bytes: [u8; PAIR_BYTES] = self.array(address)?;
        pair_at(&bytes, 0)
    }
}

/// Where the page of a slot is in the buffer of its group.
#[inline]
fn bytes_in_group(slot: usize) -> Range<usize> {
    let start = slot % PAGES_PER_GROUP * PAGE_BYTES as usize;
    start..start + PAGE_BYTES as usize
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
        let failed = Unreadable { address: 3 * PAGE_BYTES - 4, wanted_bytes: 8, read_bytes: 4 };
        assert_eq!(cache.read(3 * PAGE_BYTES - 4, &mut [0; 8]), Err(failed));
    }
}

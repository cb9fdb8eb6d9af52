//! A cache of target pages for walks along lists and trees, which jump, but mostly not far.

use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, word_at};

/// Pages in a regular cache: 4 MiB.
const CACHED_PAGES: usize = 1024;
/// Pages in a small cache.
const SMALL_CACHE_PAGES: usize = 32;

/// Reads words and small structures through a direct-mapped cache of pages.
pub struct PageCache<'a> {
    memory: &'a dyn Memory,
    pages: usize,
    tags: Vec<u64>,
    bytes: ReadBuffer,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl<'a> PageCache<'a> {
    /// An empty cache. Its buffer is allocated at first use.
    pub fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, pages: CACHED_PAGES, tags: Vec::new(), bytes: ReadBuffer::default(), bytes_read: 0 }
    }

    /// An empty cache of only a few pages.
    pub fn small(memory: &'a dyn Memory) -> Self {
        Self { pages: SMALL_CACHE_PAGES, ..Self::new(memory) }
    }

    /// The word at `address`, which must not cross a page.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let at = self.slot(page_of(address))?;
        word_at(&self.bytes, at + (address % PAGE_BYTES) as usize)
    }

    /// Reads a small structure, which may cross pages.
    pub fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let (now, later) = rest.split_at_mut((PAGE_BYTES as usize - within).min(rest.len()));
            let slot = self.slot(page_of(at))? + within;
            now.copy_from_slice(self.bytes.get(slot..slot + now.len())?);
            at = at.checked_add(now.len() as u64)?;
            rest = later;
        }
        Some(())
    }

    /// Returns the offset of a page in the buffer; reads the page if it is not cached.
    fn slot(&mut self, page: u64) -> Option<usize> {
        let slot = (page / PAGE_BYTES) as usize % self.pages;
        if self.tags.is_empty() {
            self.tags = vec![u64::MAX; self.pages];
            self.bytes = ReadBuffer::new(self.pages * PAGE_BYTES as usize);
        }
        let at = slot * PAGE_BYTES as usize;
        if self.tags[slot] != page {
            let bytes = self.bytes.get_mut(at..at + PAGE_BYTES as usize)?;
            self.tags[slot] = u64::MAX;
            self.memory.read(page, bytes).ok()?;
            self.tags[slot] = page;
            self.bytes_read += PAGE_BYTES;
        }
        Some(at)
    }
}

//! Dynamic space while it is filled: pages, their objects, and the page table.

use std::collections::BTreeMap;

use super::release::{CONS_PAGE_BYTES, GC_PAGE_BYTES, LARGE_BYTES, PageKind, SINGLE_OBJECT, SbclRelease};

/// A page of the collector.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub used_bytes: u64,
    pub type_byte: u8,
    pub generation: u8,
    /// Bytes from the start of an object, or of the block, to the page's start.
    pub scan_start: u64,
}

/// Place of the next object of a kind and generation.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    first: u64,
    behind: u64,
    at: u64,
}

/// Dynamic space while it is made.
#[derive(Clone, Debug)]
pub(super) struct Dynamic {
    release: SbclRelease,
    pub start: u64,
    pub pages: Vec<Page>,
    pub memory: Vec<u8>,
    open: BTreeMap<(u8, u8), OpenBlock>,
}

impl Dynamic {
    pub fn new(release: SbclRelease, start: u64) -> Self {
        Self { release, start, pages: Vec::new(), memory: Vec::new(), open: BTreeMap::new() }
    }

    /// Allocates an object of `bytes` bytes; if a new block is needed, it has `block_pages` pages.
    pub fn allocate(&mut self, generation: u8, kind: PageKind, bytes: u64, block_pages: u64) -> u64 {
        if bytes >= LARGE_BYTES {
            return self.allocate_large(generation, kind, bytes);
        }
        let is_cons = kind == PageKind::Cons && self.release == SbclRelease::V2_2_9;
        let page_bytes = if is_cons { CONS_PAGE_BYTES } else { GC_PAGE_BYTES };
        let key = (generation, self.release.page_type(kind));
        let fits = |open: &OpenBlock| open.at + bytes <= open.behind;
        if !self.open.get(&key).is_some_and(fits) {
            let pages = if is_cons { 1 } else { block_pages.max(bytes.div_ceil(GC_PAGE_BYTES)) };
            let first = self.add_pages(pages);
            let behind = if is_cons { first + page_bytes } else { first + pages * GC_PAGE_BYTES };
            self.open.insert(key, OpenBlock { first, behind, at: first });
        }
        let type_byte = key.1;
        let Some(open) = self.open.get_mut(&key) else { return self.start };
        let at = open.at;
        open.at += bytes;
        let block = open.first;
        self.take(block, at, bytes, generation, type_byte);
        at
    }

    fn allocate_large(&mut self, generation: u8, kind: PageKind, bytes: u64) -> u64 {
        let first = self.add_pages(bytes.div_ceil(GC_PAGE_BYTES));
        let type_byte = self.release.page_type(kind) | SINGLE_OBJECT;
        self.take(first, first, bytes, generation, type_byte);
        first
    }

    fn add_pages(&mut self, count: u64) -> u64 {
        let first = self.start + self.memory.len() as u64;
        self.memory.resize(self.memory.len() + (count * GC_PAGE_BYTES) as usize, 0);
        self.pages.resize(self.pages.len() + count as usize, Page::default());
        first
    }

    /// Leaves pages free.
    pub fn skip(&mut self, count: u64) {
        self.add_pages(count);
    }

    fn take(&mut self, block: u64, at: u64, bytes: u64, generation: u8, type_byte: u8) {
        let end = at + bytes;
        for index in (at - self.start) / GC_PAGE_BYTES..(end - self.start).div_ceil(GC_PAGE_BYTES) {
            let address = self.start + index * GC_PAGE_BYTES;
            let page = &mut self.pages[index as usize];
            page.type_byte = type_byte;
            page.generation = generation;
            page.used_bytes = end.min(address + GC_PAGE_BYTES) - address;
            page.scan_start = address - block;
        }
    }

    pub fn put(&mut self, address: u64, word: u64) {
        let at = (address - self.start) as usize;
        self.memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.start) as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The page table: offset to the scan start (in pages if bit 0 is set, otherwise in double
    /// words), used part, type, generation.
    pub fn table(&self) -> Vec<u8> {
        let mut table = Vec::with_capacity(self.pages.len() * 8);
        for page in &self.pages {
            let in_pages = page.scan_start != 0 && page.scan_start.is_multiple_of(GC_PAGE_BYTES);
            let offset = page.scan_start / if in_pages { GC_PAGE_BYTES } else { 16 };
            table.extend(((offset as u32) << 1 | u32::from(in_pages)).to_le_bytes());
            table.extend(self.release.used(page.used_bytes).to_le_bytes());
            table.extend([page.type_byte, page.generation]);
        }
        table
    }
}

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

/// Pages in which the next objects of a kind and generation are allocated.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    start: u64,
    end: u64,
    /// Address of the next object.
    next: u64,
}

/// Dynamic space while it is made.
#[derive(Clone, Debug)]
pub(super) struct Dynamic {
    release: SbclRelease,
    pub start: u64,
    pub pages: Vec<Page>,
    pub memory: Vec<u8>,
    /// By generation and page type.
    open_blocks: BTreeMap<(u8, u8), OpenBlock>,
}

impl Dynamic {
    pub fn new(release: SbclRelease, start: u64) -> Self {
        Self { release, start, pages: Vec::new(), memory: Vec::new(), open_blocks: BTreeMap::new() }
    }

    /// Allocates an object of `bytes` bytes; if a new block is needed, it has `block_pages` pages.
    pub fn allocate(&mut self, generation: u8, kind: PageKind, bytes: u64, block_pages: u64) -> u64 {
        if bytes >= LARGE_BYTES {
            return self.allocate_large(generation, kind, bytes);
        }
        let is_cons_page = kind == PageKind::Cons && self.release == SbclRelease::V2_2_9;
        let page_bytes = if is_cons_page { CONS_PAGE_BYTES } else { GC_PAGE_BYTES };
        let type_byte = self.release.page_type(kind);
        let key = (generation, type_byte);
        let fits = |block: &&OpenBlock| block.next + bytes <= block.end;
        let mut block = match self.open_blocks.get(&key).filter(fits) {
            Some(block) => *block,
            None => {
                let pages = if is_cons_page { 1 } else { block_pages.max(bytes.div_ceil(GC_PAGE_BYTES)) };
                let start = self.add_pages(pages);
                OpenBlock { start, end: start + pages * page_bytes, next: start }
            }
        };
        let (start, object) = (block.start, block.next);
        block.next += bytes;
        self.open_blocks.insert(key, block);
        self.use_pages(start, object, bytes, generation, type_byte);
        object
    }

    /// Allocates an object on pages of its own.
    fn allocate_large(&mut self, generation: u8, kind: PageKind, bytes: u64) -> u64 {
        let first = self.add_pages(bytes.div_ceil(GC_PAGE_BYTES));
        let type_byte = self.release.page_type(kind) | SINGLE_OBJECT;
        self.use_pages(first, first, bytes, generation, type_byte);
        first
    }

    /// Adds pages, and returns the address of the first one.
    fn add_pages(&mut self, count: u64) -> u64 {
        let first = self.start + self.memory.len() as u64;
        self.memory.resize(self.memory.len() + (count * GC_PAGE_BYTES) as usize, 0);
        self.pages.resize(self.pages.len() + count as usize, Page::default());
        first
    }

    /// Adds free pages.
    pub fn skip_pages(&mut self, count: u64) {
        self.add_pages(count);
    }

    /// Records an object in the entries of its pages; its block starts at `block`.
    fn use_pages(&mut self, block: u64, object: u64, bytes: u64, generation: u8, type_byte: u8) {
        let end = object + bytes;
        for index in (object - self.start) / GC_PAGE_BYTES..(end - self.start).div_ceil(GC_PAGE_BYTES) {
            let address = self.start + index * GC_PAGE_BYTES;
            let page = &mut self.pages[index as usize];
            page.type_byte = type_byte;
            page.generation = generation;
            page.used_bytes = end.min(address + GC_PAGE_BYTES) - address;
            page.scan_start = address - block;
        }
    }

    pub fn put(&mut self, address: u64, word: u64) {
        let offset = (address - self.start) as usize;
        self.memory[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        let offset = (address - self.start) as usize;
        self.memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The page table: offset to the scan start (in pages if bit 0 is set, otherwise in double
    /// words), used part, type, generation.
    pub fn page_table_bytes(&self) -> Vec<u8> {
        let mut table = Vec::with_capacity(self.pages.len() * 8);
        for page in &self.pages {
            let is_in_pages = page.scan_start != 0 && page.scan_start.is_multiple_of(GC_PAGE_BYTES);
            let offset = page.scan_start / if is_in_pages { GC_PAGE_BYTES } else { 16 };
            table.extend(((offset as u32) << 1 | u32::from(is_in_pages)).to_le_bytes());
            table.extend(self.release.used_field(page.used_bytes).to_le_bytes());
            table.extend([page.type_byte, page.generation]);
        }
        table
    }
}

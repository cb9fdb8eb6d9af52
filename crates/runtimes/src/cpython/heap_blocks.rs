//! Walks the blocks of heaps of objects: which are in use, and which object each holds. In the
//! ledger the memory belongs to mimalloc; mimalloc's reader checks for each claim that the block is
//! in use.

use super::census::Census;
use super::counted::BlockContent;
use super::heaps::Page;
use super::large::Slots;
use super::layout::HEAP_NAMES;
use super::objects::{HEAD_BYTES, Table};
use crate::batch::PageCache;
use strandline_claims::add_fields;
use strandline_claims::bits;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::refinements::{LARGE_BYTES, Refinements};
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, word_at};

/// Limit on the bytes of a page's blocks that are read at once.
const MAX_BUFFERED_BYTES: u64 = 1 << 20;
/// Most bytes before the fields of an object in its block: a guard, two more words and
/// `FREE_THREADED_PREFIX_BYTES`, rounded up.
const MAX_OFFSET_BYTES: usize = 64;
/// Bytes read of a block to recognise its content.
const HEAD_READ_BYTES: usize = MAX_OFFSET_BYTES + HEAD_BYTES;
/// Blocks up to this size are claimed whole for an object; of a larger one, only the object is.
const SMALL_BYTES: u64 = 1 << 10;

/// Pages of one kind of heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapCounts {
    /// Number of pages.
    pub pages: u64,
    /// Bytes of these pages.
    pub page_bytes: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Bytes of these blocks.
    pub used_bytes: u64,
    /// Bytes of free blocks, and of memory not yet divided into blocks.
    pub free_bytes: u64,
}

/// Totals over heaps.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Heaps by kind.
    pub heaps: [HeapCounts; HEAP_NAMES.len()],
    /// Damaged pages, and whether the deadline passed.
    pub doubts: ReadProblems,
}

impl Sums {
    /// Adds another walker's totals.
    pub fn add(&mut self, other: &Self) {
        for (counts, added) in self.heaps.iter_mut().zip(other.heaps) {
            add_fields!(counts, added: pages, page_bytes, used_blocks, used_bytes, free_bytes);
        }
        self.doubts.add(&other.doubts);
    }
}

/// Walks pages.
pub struct Walker<'a> {
    context: &'a Context<'a>,
    memory: &'a dyn Memory,
    refinements: &'a Refinements,
    slots: Slots,
    pages: PageCache<'a>,
    /// Blocks of the current page; empty if they are read one by one.
    buffer: ReadBuffer,
    /// Bitmap of the free blocks of the current page.
    free_bitmap: Vec<u64>,
    /// Totals of the walk.
    pub sums: Sums,
    /// Objects in the blocks.
    pub census: Census<'a>,
}

impl<'a> Walker<'a> {
    /// A walker that reads with `memory`.
    pub fn new(
        context: &'a Context<'a>,
        memory: &'a dyn Memory,
        refinements: &'a Refinements,
        slots: Slots,
        census: Census<'a>,
    ) -> Self {
        Self {
            context,
            memory,
            refinements,
            slots,
            pages: PageCache::new(memory),
            buffer: ReadBuffer::default(),
            free_bitmap: Vec::new(),
            sums: Sums::default(),
            census,
        }
    }

    /// Counts the blocks of a page, and claims its objects.
    pub fn count_page(&mut self, page: &Page) {
        let used_blocks = if page.has_objects() { self.claim_objects(page) } else { self.count_used(page) };
        let Some(used_blocks) = used_blocks else { return self.sums.doubts.note_damage(page.start, 0) };
        if let Some(counts) = self.sums.heaps.get_mut(page.heap) {
            let bytes = page.end - page.start;
            let used_bytes = used_blocks.saturating_mul(page.block_bytes).min(bytes);
            counts.pages += 1;
            counts.page_bytes += bytes;
            counts.used_blocks += used_blocks;
            counts.used_bytes += used_bytes;
            counts.free_bytes += bytes - used_bytes;
        }
        (self.context.progress)(page.end - page.start);
    }

    /// Counts the blocks in use of a page without objects; `None` if it is damaged.
    fn count_used(&mut self, page: &Page) -> Option<u64> {
        self.buffer.resize(0);
        self.clear_bitmap(page);
        let freed_blocks = self.mark_free(page, page.free_lists.thread)?;
        page.used_blocks.checked_sub(freed_blocks)
    }

    /// Counts and claims the objects of a page. Returns the number of blocks in use; `None` if it
    /// is damaged.
    fn claim_objects(&mut self, page: &Page) -> Option<u64> {
        self.read_blocks(page);
        self.clear_bitmap(page);
        let lists = page.free_lists;
        let owner_freed_blocks = self.mark_free(page, lists.next)? + self.mark_free(page, lists.local)?;
        if page.capacity_blocks.checked_sub(page.used_blocks)? != owner_freed_blocks {
            return None;
        }
        let freed_blocks = self.mark_free(page, page.free_lists.thread)?;
        for index in 0..page.capacity_blocks {
            if !bits::has(&self.free_bitmap, index as usize) {
                self.claim_block(page, page.first_block + index * page.block_bytes);
            }
        }
        page.used_blocks.checked_sub(freed_blocks)
    }

    fn clear_bitmap(&mut self, page: &Page) {
        self.free_bitmap.clear();
        // The capacity has 16 bits.
        self.free_bitmap.resize(page.capacity_blocks.div_ceil(64) as usize, 0);
    }

    /// Reads all blocks of a page at once, if they are few enough and all resident.
    fn read_blocks(&mut self, page: &Page) {
        let bytes = page.capacity_blocks * page.block_bytes;
        self.buffer.resize(0);
        if bytes <= MAX_BUFFERED_BYTES {
            self.buffer.resize(bytes as usize);
            if self.memory.read(page.first_block, &mut self.buffer).is_err() {
                self.buffer.resize(0);
            }
        }
    }

    /// Marks the blocks of the free list that begins at `first`; each begins with the address of
    /// the next. Returns their number; `None` if the list is invalid.
    fn mark_free(&mut self, page: &Page, first: u64) -> Option<u64> {
        let (mut at, mut count) = (first, 0);
        while at != 0 {
            let offset = at.checked_sub(page.first_block)?;
            let index = offset / page.block_bytes;
            let (word, bit) = (self.free_bitmap.get_mut((index / 64) as usize)?, 1 << (index % 64));
            // A block already marked means a cycle.
            if !offset.is_multiple_of(page.block_bytes) || index >= page.capacity_blocks || *word & bit != 0 {
                return None;
            }
            *word |= bit;
            count += 1;
            at = match word_at(&self.buffer, offset as usize) {
                Some(next) => next,
                None => self.pages.word(at)?,
            };
        }
        Some(count)
    }

    /// Counts and claims the object of a block in use.
    fn claim_block(&mut self, page: &Page, at: u64) {
        let offset = (at - page.first_block) as usize;
        let bytes = page.block_bytes.min(page.end.saturating_sub(at));
        let mut head_buffer = [0; HEAD_READ_BYTES];
        let head_bytes = HEAD_READ_BYTES.min(bytes as usize);
        let head = match self.buffer.get(offset..offset + head_bytes) {
            Some(head) => head,
            None => {
                let Some(head_buffer) = head_buffer.get_mut(..head_bytes) else { return };
                // In swap, or never written: no byte of its head is resident.
                if self.pages.read(at, head_buffer).is_err() {
                    return;
                }
                head_buffer
            }
        };
        let (object_bytes, has_pointers) = match self.census.count_heap_block(at, head, bytes) {
            BlockContent::Object { bytes, has_pointers } => (bytes, has_pointers),
            BlockContent::FreeListed => {
                self.refinements.claim(at, bytes, self.slots.free_listed);
                return;
            }
            BlockContent::Other => return,
        };
        let claimed_bytes = if bytes <= SMALL_BYTES { bytes } else { object_bytes.min(bytes) };
        if self.refinements.claim(at, claimed_bytes, self.slots.object) && claimed_bytes > LARGE_BYTES {
            self.census.record_claim(at, self.slots.object);
        }
        if !has_pointers {
            return;
        }
        match self.buffer.get(offset..offset + claimed_bytes as usize) {
            Some(block) => self.census.follow(block),
            None => {
                let object = Table::new(at, claimed_bytes, claimed_bytes);
                self.census.follow_block(object, self.context.deadline);
            }
        }
    }
}

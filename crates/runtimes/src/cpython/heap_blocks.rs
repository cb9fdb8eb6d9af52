//! Walks the blocks of heaps of objects: which are in use, and which object each holds. The memory
//! belongs to mimalloc in the ledger, whose reader checks for each claim that the block is in use.

use super::census::Census;
use super::counted::Block;
use super::heaps::Page;
use super::large::{self, Slots};
use super::layout::HEAP_NAMES;
use super::objects::{HEAD_BYTES, Table};
use crate::batch::PageCache;
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
/// Bytes read of a block to recognize its content.
const HEAD_READ_BYTES: usize = MAX_OFFSET_BYTES + HEAD_BYTES;
/// Blocks up to this size are claimed whole for an object; of a larger one, only the object is.
const SMALL_BYTES: u64 = 1 << 10;
/// Bytes of a block that are followed at once.
const PIECE_BYTES: usize = 64 << 10;

/// Pages of one kind of heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapCounts {
    /// Number of pages.
    pub pages: u64,
    /// Bytes of these pages.
    pub page_bytes: u64,
    /// Blocks in use.
    pub used: u64,
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
        for (mine, theirs) in self.heaps.iter_mut().zip(other.heaps) {
            strandline_claims::add_fields!(mine, theirs: pages, page_bytes, used, used_bytes, free_bytes);
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
    free: Vec<u64>,
    /// Piece of a block whose pointers are followed.
    piece: ReadBuffer,
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
            free: Vec::new(),
            piece: ReadBuffer::new(PIECE_BYTES),
            sums: Sums::default(),
            census,
        }
    }

    /// Walks a page.
    pub fn page(&mut self, page: &Page) {
        let used = if page.has_objects() { self.claim_objects(page) } else { self.count_used(page) };
        let Some(used) = used else { return self.sums.doubts.note_damage(page.start, 0) };
        if let Some(counts) = self.sums.heaps.get_mut(page.heap) {
            let bytes = page.end - page.start;
            let used_bytes = used.saturating_mul(page.block_bytes).min(bytes);
            counts.pages += 1;
            counts.page_bytes += bytes;
            counts.used += used;
            counts.used_bytes += used_bytes;
            counts.free_bytes += bytes - used_bytes;
        }
        (self.context.progress)(page.end - page.start);
    }

    /// Counts the blocks in use of a page without objects.
    fn count_used(&mut self, page: &Page) -> Option<u64> {
        self.buffer.resize(0);
        self.clear_bitmap(page)?;
        let freed = self.mark_free(page, page.free_lists.thread)?;
        page.used.checked_sub(freed)
    }

    /// Counts and claims the objects of a page; returns the number of blocks in use.
    fn claim_objects(&mut self, page: &Page) -> Option<u64> {
        self.read_blocks(page);
        self.clear_bitmap(page)?;
        let lists = page.free_lists;
        let owner_freed = self.mark_free(page, lists.next)? + self.mark_free(page, lists.local)?;
        if page.capacity.checked_sub(page.used)? != owner_freed {
            return None;
        }
        let freed = self.mark_free(page, page.free_lists.thread)?;
        for index in 0..page.capacity {
            if !bits::has(&self.free, index as usize) {
                self.claim_block(page, page.first_block + index * page.block_bytes);
            }
        }
        page.used.checked_sub(freed)
    }

    fn clear_bitmap(&mut self, page: &Page) -> Option<()> {
        self.free.clear();
        self.free.resize(usize::try_from(page.capacity.div_ceil(64)).ok()?, 0);
        Some(())
    }

    /// Reads all blocks of a page at once, if they are few enough and all resident.
    fn read_blocks(&mut self, page: &Page) {
        let bytes = page.capacity * page.block_bytes;
        self.buffer.resize(0);
        if bytes <= MAX_BUFFERED_BYTES {
            self.buffer.resize(bytes as usize);
            if self.memory.read(page.first_block, &mut self.buffer).is_err() {
                self.buffer.resize(0);
            }
        }
    }

    /// Marks the blocks of the free list that begins at `first`; each begins with the address of
    /// the next. Returns their number.
    fn mark_free(&mut self, page: &Page, first: u64) -> Option<u64> {
        let (mut at, mut count) = (first, 0);
        while at != 0 {
            let offset = at.checked_sub(page.first_block)?;
            let index = offset / page.block_bytes;
            let (word, bit) = (self.free.get_mut((index / 64) as usize)?, 1 << (index % 64));
            // A block already marked means a cycle.
            if !offset.is_multiple_of(page.block_bytes) || index >= page.capacity || *word & bit != 0 {
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
                if self.pages.read(at, head_buffer).is_err() {
                    return;
                }
                head_buffer
            }
        };
        let (object_bytes, has_pointers) = match self.census.heap_block(at, head, bytes) {
            Block::Object { bytes, has_pointers } => (bytes, has_pointers),
            Block::Dead => {
                self.refinements.claim(at, bytes, self.slots.dead);
                return;
            }
            Block::Other => return,
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
                large::read(self.memory, &mut self.census, object, &mut self.piece, self.context.deadline);
            }
        }
    }
}

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

/// Pages with at most this many bytes of blocks are read at once.
const AT_ONCE_BYTES: u64 = 1 << 20;
/// Bytes read of a block to recognize its content: guards, the object's prefix, its first bytes.
const HEAD_READ_BYTES: usize = 64 + HEAD_BYTES;
/// Blocks up to this size are claimed whole for an object; of larger ones, the rest behind the
/// object is not.
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
    /// Bytes of free blocks, and of memory not yet cut into blocks.
    pub free_bytes: u64,
}

/// Totals over heaps.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Heaps by kind.
    pub heaps: [HeapCounts; HEAP_NAMES.len()],
    /// Pages that made no sense, and whether the time was over.
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
    buffer: ReadBuffer,
    /// Bitmap of free blocks.
    free: Vec<u64>,
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
        let known = if page.has_objects() { self.objects(page) } else { self.others(page) };
        let Some(used) = known else { return self.sums.doubts.note_damage(page.start, 0) };
        if let Some(of) = self.sums.heaps.get_mut(page.heap) {
            let bytes = page.end - page.start;
            let used_bytes = used.saturating_mul(page.block_bytes).min(bytes);
            of.pages += 1;
            of.page_bytes += bytes;
            of.used += used;
            of.used_bytes += used_bytes;
            of.free_bytes += bytes - used_bytes;
        }
        (self.context.progress)(page.end - page.start);
    }

    /// Counts the blocks in use of a page without objects.
    fn others(&mut self, page: &Page) -> Option<u64> {
        self.buffer.resize(0);
        self.clear(page)?;
        let freed = self.mark(page, 2)?;
        page.used.checked_sub(freed)
    }

    /// Counts and claims the objects of a page; returns the number of blocks in use.
    fn objects(&mut self, page: &Page) -> Option<u64> {
        self.read(page);
        self.clear(page)?;
        let own = self.mark(page, 0)? + self.mark(page, 1)?;
        if page.capacity.checked_sub(page.used)? != own {
            return None;
        }
        let freed = self.mark(page, 2)?;
        for index in 0..page.capacity {
            if !bits::has(&self.free, index as usize) {
                self.block(page, page.first + index * page.block_bytes);
            }
        }
        page.used.checked_sub(freed)
    }

    fn clear(&mut self, page: &Page) -> Option<()> {
        self.free.clear();
        self.free.resize(usize::try_from(page.capacity.div_ceil(64)).ok()?, 0);
        Some(())
    }

    /// Reads all blocks of a page at once, if they are few enough and all resident.
    fn read(&mut self, page: &Page) {
        let bytes = page.capacity * page.block_bytes;
        self.buffer.resize(0);
        if bytes <= AT_ONCE_BYTES {
            self.buffer.resize(bytes as usize);
            if self.memory.read(page.first, &mut self.buffer).is_err() {
                self.buffer.resize(0);
            }
        }
    }

    /// Marks the blocks of a free list, which links through their first words; returns their
    /// number.
    fn mark(&mut self, page: &Page, list: usize) -> Option<u64> {
        let (mut at, mut count) = (*page.lists.get(list)?, 0);
        while at != 0 {
            let offset = at.checked_sub(page.first)?;
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
    fn block(&mut self, page: &Page, at: u64) {
        let offset = (at - page.first) as usize;
        let bytes = page.block_bytes.min(page.end.saturating_sub(at));
        let mut look = [0; HEAD_READ_BYTES];
        let wanted = HEAD_READ_BYTES.min(bytes as usize);
        let head = match self.buffer.get(offset..offset + wanted) {
            Some(head) => head,
            None => {
                let Some(look) = look.get_mut(..wanted) else { return };
                if self.pages.read(at, look).is_err() {
                    return;
                }
                look
            }
        };
        let (own, leads) = match self.census.heap_block(at, head, bytes) {
            Block::Object { bytes, leads } => (bytes, leads),
            Block::Dead => {
                self.refinements.claim(at, bytes, self.slots.dead);
                return;
            }
            Block::Other => return,
        };
        let own = if bytes <= SMALL_BYTES { bytes } else { own.min(bytes) };
        if self.refinements.claim(at, own, self.slots.object) && own > LARGE_BYTES {
            self.census.record_claim(at, self.slots.object);
        }
        if !leads {
            return;
        }
        match self.buffer.get(offset..offset + own as usize) {
            Some(block) => self.census.follow(block),
            None => {
                let all = Table::new(at, own, own);
                large::read(self.memory, &mut self.census, all, &mut self.piece, self.context.deadline);
            }
        }
    }
}

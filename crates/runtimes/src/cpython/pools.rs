//! Walks the pools of an arena: blocks in use, free blocks, and the content of those in use.

use super::arenas::Arena;
use super::census::Census;
use super::counted::BlockContent;
use super::heap_blocks;
use super::layout::{
    ALIGNMENT, ArenaSizes, POOL_ARENA, POOL_CLASS, POOL_COUNT, POOL_FREE, POOL_HEADER_BYTES,
    POOL_NEXT_OFFSET, SIZE_CLASSES,
};
use crate::batch::PageCache;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::add_fields;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::bits;
use strandline_claims::class::Slot;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Words of the bitmap of a pool's blocks; the largest pool has 1,021 of the smallest blocks.
const BITMAP_WORDS: usize = 16;
/// Bytes of the link in a free block.
const WORD_BYTES: u64 = 8;

/// Pools in use of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClassCounts {
    /// Number of pools.
    pub pools: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    pub free_blocks: u64,
}

/// Totals over pools.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Pools by size class.
    pub classes: [SizeClassCounts; SIZE_CLASSES],
    /// Free pools, including those never handed out.
    pub unused_pools: u64,
    /// Bytes of the unused pools.
    pub unused_bytes: u64,
    /// Bytes lost at the ends of pools.
    pub quantization_bytes: u64,
    /// Bytes lost to the alignment of arenas.
    pub alignment_bytes: u64,
    /// Heaps of builds without a global lock, which have no arenas.
    pub heaps: heap_blocks::Sums,
    /// Damaged arenas and pools, and whether the deadline passed.
    pub doubts: ReadProblems,
}

impl Sums {
    /// Adds the totals of another walker of arenas, which counts no heaps.
    pub fn add(&mut self, other: &Self) {
        for (counts, added) in self.classes.iter_mut().zip(other.classes) {
            add_fields!(counts, added: pools, used_blocks, free_blocks);
        }
        add_fields!(self, other: unused_pools, unused_bytes, quantization_bytes, alignment_bytes);
        self.doubts.add(&other.doubts);
    }
}

/// Bytes of the blocks of a size class.
pub fn class_bytes(class: usize) -> u64 {
    (class as u64 + 1) * ALIGNMENT
}

/// Walks arenas.
pub struct Walker<'a> {
    context: &'a Context<'a>,
    memory: &'a dyn Memory,
    sizes: ArenaSizes,
    /// Slot of blocks that hold objects.
    object_slot: Slot,
    pages: PageCache<'a>,
    /// Content of the current pool.
    buffer: ReadBuffer,
    /// Bitmap of the free blocks of the current pool.
    free_bitmap: [u64; BITMAP_WORDS],
    /// Totals of the walk.
    pub sums: Sums,
    /// Objects in the blocks.
    pub census: Census<'a>,
    /// Claimed ranges.
    pub claims: Vec<RangeClaim>,
}

/// A pool in use.
struct Pool {
    /// Address of its header.
    start: u64,
    /// Bytes per block.
    block_bytes: u64,
    /// Blocks in use.
    used_blocks: u64,
    /// Address of the first free block.
    first_free: u64,
    /// Blocks handed out at least once.
    created_blocks: u64,
    capacity_blocks: u64,
}

impl<'a> Walker<'a> {
    /// A walker that reads with `memory`.
    pub fn new(
        context: &'a Context<'a>,
        memory: &'a dyn Memory,
        sizes: ArenaSizes,
        object_slot: Slot,
        census: Census<'a>,
    ) -> Self {
        Self {
            context,
            memory,
            sizes,
            object_slot,
            pages: PageCache::new(memory),
            buffer: ReadBuffer::new(sizes.pool_bytes as usize),
            free_bitmap: [0; BITMAP_WORDS],
            sums: Sums::default(),
            census,
            claims: Vec::new(),
        }
    }

    /// Claims a whole arena.
    pub fn claim_arena(&mut self, arena: &Arena) {
        let pages = self.context.pages(arena.start, arena.end);
        let mut accumulator = Accumulator::new(arena.start, &pages);
        accumulator.claim_to(arena.first_pool, Class::Metadata);
        let end = arena.first_pool + arena.pool_count * self.sizes.pool_bytes;
        self.sums.alignment_bytes += arena.end - arena.start - (end - arena.first_pool);
        if let Some(free_pools) = arena.free_pools(&mut self.pages, self.sizes) {
            self.claim_pools(arena, &free_pools, &mut accumulator);
        } else {
            self.sums.doubts.note_damage(arena.start, self.resident_bytes(arena.first_pool, end));
            accumulator.claim_to(end, Class::Unread);
        }
        accumulator.claim_to(arena.end, Class::Metadata);
        let sums = accumulator.cut().finish(&pages);
        self.claims.push(RangeClaim { start: arena.start, end: arena.end, sums });
        (self.context.progress)(arena.end - arena.start);
    }

    /// Claims the pools of an arena. Those in `free_pools`, in address order, are free.
    fn claim_pools(&mut self, arena: &Arena, mut free_pools: &[u64], accumulator: &mut Accumulator<'_>) {
        let pool_bytes = self.sizes.pool_bytes;
        let (used_before, damages_before) = (self.used_blocks(), self.sums.doubts.damages);
        for index in 0..arena.pool_count {
            let at = arena.first_pool + index * pool_bytes;
            let is_listed = free_pools.first() == Some(&at);
            free_pools = &free_pools[usize::from(is_listed)..];
            if is_listed || at >= arena.untouched_start {
                self.sums.unused_pools += 1;
                self.sums.unused_bytes += pool_bytes;
                accumulator.claim_to(at + pool_bytes, Class::Free);
            } else if self.claim_pool(arena, at, accumulator).is_none() {
                let unread_bytes = self.resident_bytes(accumulator.cursor(), at + pool_bytes);
                self.sums.doubts.note_damage(at, unread_bytes);
                accumulator.claim_to(at + pool_bytes, Class::Unread);
            }
        }
        // A pool that could not be read may hold any number of blocks.
        let is_whole = self.sums.doubts.damages == damages_before;
        let used_blocks = is_whole.then(|| self.used_blocks() - used_before);
        self.census.end_arena(arena.range(), used_blocks);
    }

    fn used_blocks(&self) -> u64 {
        self.sums.classes.iter().map(|class| class.used_blocks).sum()
    }

    fn resident_bytes(&self, start: u64, end: u64) -> u64 {
        self.context.resident_bytes((start, end))
    }

    /// Claims a pool in use. `None`, with nothing claimed, if it is damaged.
    fn claim_pool(&mut self, arena: &Arena, start: u64, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let mut header = [0; POOL_HEADER_BYTES as usize];
        self.memory.read(start, &mut header).ok()?;
        let half_word = |offset: usize| half_word_at(&header, offset).unwrap_or(u32::MAX);
        let class = half_word(POOL_CLASS) as usize;
        let blocks_bytes = self.sizes.pool_bytes - POOL_HEADER_BYTES;
        let block_bytes = class_bytes(class.min(SIZE_CLASSES));
        let created_bytes = u64::from(half_word(POOL_NEXT_OFFSET)).checked_sub(POOL_HEADER_BYTES)?;
        let pool = Pool {
            start,
            block_bytes,
            used_blocks: half_word(POOL_COUNT).into(),
            first_free: word_at(&header, POOL_FREE)?,
            created_blocks: created_bytes / block_bytes,
            capacity_blocks: blocks_bytes / block_bytes,
        };
        let is_valid = class < SIZE_CLASSES
            && half_word(POOL_ARENA) == arena.index
            && created_bytes.is_multiple_of(block_bytes)
            && (1..=pool.created_blocks).contains(&pool.used_blocks)
            && pool.created_blocks <= pool.capacity_blocks;
        if !is_valid {
            return None;
        }
        self.read_pool(&pool)?;
        self.mark_free(&pool)?;
        let counts = self.sums.classes.get_mut(class)?;
        counts.pools += 1;
        counts.used_blocks += pool.used_blocks;
        counts.free_blocks += pool.capacity_blocks - pool.used_blocks;
        self.sums.quantization_bytes += blocks_bytes - pool.capacity_blocks * block_bytes;
        accumulator.claim_to(start + POOL_HEADER_BYTES, Class::Metadata);
        self.claim_blocks(&pool, accumulator);
        accumulator.claim_to(start + POOL_HEADER_BYTES + pool.capacity_blocks * block_bytes, Class::Free);
        accumulator.claim_to(start + self.sizes.pool_bytes, Class::Metadata);
        Some(())
    }

    /// Reads the header and the created blocks of a pool into the buffer; `None` if too few can be
    /// read.
    fn read_pool(&mut self, pool: &Pool) -> Option<()> {
        let created_end = (POOL_HEADER_BYTES + pool.created_blocks * pool.block_bytes) as usize;
        let buffer = self.buffer.get_mut(..created_end)?;
        let read_bytes = self.memory.read_some(pool.start, buffer);
        // Only the first word of the last block may be written yet; the rest may be on a page that
        // was never written.
        let (_, unread) = buffer.split_at_mut(read_bytes);
        unread.fill(0);
        (read_bytes as u64 + pool.block_bytes >= created_end as u64 + WORD_BYTES).then_some(())
    }

    /// Marks the free blocks of the pool in the buffer, by their list; `None` if the list is
    /// invalid.
    fn mark_free(&mut self, pool: &Pool) -> Option<()> {
        self.free_bitmap = [0; BITMAP_WORDS];
        let mut at = pool.first_free;
        for _ in pool.used_blocks..pool.created_blocks {
            let offset = at.checked_sub(pool.start + POOL_HEADER_BYTES)?;
            let index = offset / pool.block_bytes;
            let (word, bit) = (self.free_bitmap.get_mut(index as usize / 64)?, 1 << (index % 64));
            if !offset.is_multiple_of(pool.block_bytes) || index >= pool.created_blocks || *word & bit != 0 {
                return None;
            }
            *word |= bit;
            at = word_at(&self.buffer, (POOL_HEADER_BYTES + offset) as usize)?;
        }
        // The list ends with 0; in a full pool it is empty.
        (at == 0).then_some(())
    }

    fn claim_blocks(&mut self, pool: &Pool, accumulator: &mut Accumulator<'_>) {
        for index in 0..pool.created_blocks {
            let offset = POOL_HEADER_BYTES + index * pool.block_bytes;
            let start = pool.start + offset;
            let end = start + pool.block_bytes;
            if bits::has(&self.free_bitmap, index as usize) {
                accumulator.claim_to(end, Class::Free);
                continue;
            }
            let range = offset as usize..(offset + pool.block_bytes) as usize;
            let class = match self.census.count_block(start, self.buffer.get(range).unwrap_or_default()) {
                BlockContent::Object { .. } => Class::Refined(self.object_slot),
                BlockContent::FreeListed => Class::Cached,
                BlockContent::Other => Class::Live,
            };
            accumulator.claim_to(end, class);
        }
    }
}

/// A size class that has pools.
pub struct UsedClass {
    pub block_bytes: u64,
    pub counts: SizeClassCounts,
}

/// Returns the size classes that have pools, by block size.
pub fn used_classes(sums: &Sums) -> impl Iterator<Item = UsedClass> {
    let used = sums.classes.iter().enumerate().filter(|(_, counts)| counts.pools > 0);
    used.map(|(class, counts)| UsedClass { block_bytes: class_bytes(class), counts: *counts })
}

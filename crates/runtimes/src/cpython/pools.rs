//! Walks the pools of an arena: blocks in use, free blocks, and the content of those in use.

use super::arenas::Arena;
use super::census::Census;
use super::counted::Block;
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
use strandline_process::range::AddressRange;

/// Words of the bitmap of a pool's blocks; the largest pool has 1,021 of the smallest blocks.
const BITMAP_WORDS: usize = 16;

/// Pools in use of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClassCounts {
    /// Number of pools.
    pub pools: u64,
    /// Blocks in use.
    pub used: u64,
    /// Free blocks.
    pub free: u64,
}

/// Totals over pools.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Pools by size class.
    pub classes: [SizeClassCounts; SIZE_CLASSES],
    /// Free pools, including those never handed out.
    pub unused_pools: u64,
    /// Their bytes.
    pub unused_bytes: u64,
    /// Bytes lost at the ends of pools.
    pub quantization_bytes: u64,
    /// Bytes lost to the alignment of arenas.
    pub alignment_bytes: u64,
    /// Heaps of builds without a global lock, which have no arenas.
    pub heaps: heap_blocks::Sums,
    /// Arenas and pools that made no sense, and whether the time was over.
    pub doubts: ReadProblems,
}

impl Sums {
    /// Adds another walker's totals.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.classes.iter_mut().zip(other.classes) {
            add_fields!(mine, theirs: pools, used, free);
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
    shape: ArenaSizes,
    /// Slot of blocks that hold objects.
    object: Slot,
    pages: PageCache<'a>,
    buffer: ReadBuffer,
    free: [u64; BITMAP_WORDS],
    /// Totals of the walk.
    pub sums: Sums,
    /// Objects in the blocks.
    pub census: Census<'a>,
    /// Claimed ranges.
    pub claims: Vec<RangeClaim>,
}

/// A pool in use.
struct Pool {
    start: u64,
    used: u64,
    /// First free block.
    first_free: u64,
    /// Blocks handed out at least once.
    created: u64,
    /// Capacity in blocks.
    total: u64,
}

impl<'a> Walker<'a> {
    /// A walker that reads with `memory`.
    pub fn new(
        context: &'a Context<'a>,
        memory: &'a dyn Memory,
        shape: ArenaSizes,
        object: Slot,
        census: Census<'a>,
    ) -> Self {
        Self {
            context,
            memory,
            shape,
            object,
            pages: PageCache::new(memory),
            buffer: ReadBuffer::new(shape.pool_bytes as usize),
            free: [0; BITMAP_WORDS],
            sums: Sums::default(),
            census,
            claims: Vec::new(),
        }
    }

    /// Claims a whole arena.
    pub fn arena(&mut self, arena: &Arena) {
        let pages = self.context.pages(arena.start, arena.end);
        let mut accumulator = Accumulator::new(arena.start, &pages);
        accumulator.claim_to(arena.pools, Class::Metadata);
        let end = arena.pools + arena.total * self.shape.pool_bytes;
        self.sums.alignment_bytes += arena.end - arena.start - (end - arena.pools);
        match arena.free_pools(&mut self.pages, self.shape) {
            Some(free) => {
                let mut free = free.as_slice();
                let before = (self.used(), self.sums.doubts.damages);
                for at in (arena.pools..end).step_by(self.shape.pool_bytes as usize) {
                    let is_listed = free.first() == Some(&at);
                    free = &free[usize::from(is_listed)..];
                    let behind = at + self.shape.pool_bytes;
                    if is_listed || at >= arena.untouched {
                        self.sums.unused_pools += 1;
                        self.sums.unused_bytes += self.shape.pool_bytes;
                        accumulator.claim_to(behind, Class::Free);
                    } else if self.pool(arena, at, &mut accumulator).is_none() {
                        let from = accumulator.cursor();
                        self.sums.doubts.note_damage(at, self.resident(from, behind));
                        accumulator.claim_to(behind, Class::Unread);
                    }
                }
                // A pool that could not be read may hold any number of blocks.
                let used = (self.sums.doubts.damages == before.1).then(|| self.used() - before.0);
                self.census.end_arena(AddressRange::new(arena.start, arena.end), used);
            }
            None => {
                self.sums.doubts.note_damage(arena.start, self.resident(arena.pools, end));
                accumulator.claim_to(end, Class::Unread);
            }
        }
        accumulator.claim_to(arena.end, Class::Metadata);
        let sums = accumulator.cut().finish(&pages);
        self.claims.push(RangeClaim { start: arena.start, end: arena.end, sums });
        (self.context.progress)(arena.end - arena.start);
    }

    fn used(&self) -> u64 {
        self.sums.classes.iter().map(|of| of.used).sum()
    }

    fn resident(&self, start: u64, end: u64) -> u64 {
        crate::resident::resident_bytes(self.context, start, end)
    }

    /// Claims a pool in use. `None`, with nothing claimed, if it makes no sense.
    fn pool(&mut self, arena: &Arena, start: u64, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let mut header = [0; POOL_HEADER_BYTES as usize];
        self.memory.read(start, &mut header).ok()?;
        let half = |offset: usize| half_word_at(&header, offset).unwrap_or(u32::MAX);
        let class = half(POOL_CLASS) as usize;
        let room = self.shape.pool_bytes - POOL_HEADER_BYTES;
        let bytes = class_bytes(class.min(SIZE_CLASSES));
        let virgin = u64::from(half(POOL_NEXT_OFFSET));
        let pool = Pool {
            start,
            used: half(POOL_COUNT).into(),
            first_free: word_at(&header, POOL_FREE)?,
            created: virgin.checked_sub(POOL_HEADER_BYTES)? / bytes,
            total: room / bytes,
        };
        let is_one = class < SIZE_CLASSES
            && half(POOL_ARENA) == arena.index
            && (virgin - POOL_HEADER_BYTES).is_multiple_of(bytes)
            && (1..=pool.created).contains(&pool.used)
            && pool.created <= pool.total;
        if !is_one {
            return None;
        }
        self.free = [0; BITMAP_WORDS];
        let made_bytes = (POOL_HEADER_BYTES + pool.created * bytes) as usize;
        let buffer = self.buffer.get_mut(..made_bytes)?;
        let got = self.memory.read_some(start, buffer);
        // Only the first word of the last block may be written yet; the rest may be on a page that
        // was never written.
        let (_, behind) = buffer.split_at_mut(got);
        behind.fill(0);
        if got as u64 + bytes < made_bytes as u64 + 8 {
            return None;
        }
        self.mark_free(&pool, bytes)?;
        let of = self.sums.classes.get_mut(class)?;
        of.pools += 1;
        of.used += pool.used;
        of.free += pool.total - pool.used;
        self.sums.quantization_bytes += room - pool.total * bytes;
        accumulator.claim_to(start + POOL_HEADER_BYTES, Class::Metadata);
        self.blocks(&pool, bytes, accumulator);
        accumulator.claim_to(start + POOL_HEADER_BYTES + pool.total * bytes, Class::Free);
        accumulator.claim_to(start + self.shape.pool_bytes, Class::Metadata);
        Some(())
    }

    /// Marks the free blocks of the pool in the buffer, by their list.
    fn mark_free(&mut self, pool: &Pool, bytes: u64) -> Option<()> {
        let mut at = pool.first_free;
        for _ in pool.used..pool.created {
            let offset = at.checked_sub(pool.start + POOL_HEADER_BYTES)?;
            let index = offset / bytes;
            let (word, bit) = (self.free.get_mut(index as usize / 64)?, 1 << (index % 64));
            if !offset.is_multiple_of(bytes) || index >= pool.created || *word & bit != 0 {
                return None;
            }
            *word |= bit;
            at = word_at(&self.buffer, (POOL_HEADER_BYTES + offset) as usize)?;
        }
        // The list ends with 0; in a full pool it is empty.
        (at == 0).then_some(())
    }

    fn blocks(&mut self, pool: &Pool, bytes: u64, accumulator: &mut Accumulator<'_>) {
        for index in 0..pool.created {
            let start = POOL_HEADER_BYTES + index * bytes;
            let end = pool.start + start + bytes;
            if bits::has(&self.free, index as usize) {
                accumulator.claim_to(end, Class::Free);
                continue;
            }
            let block = self.buffer.get(start as usize..(start + bytes) as usize).unwrap_or_default();
            let class = match self.census.block(pool.start + start, block) {
                Block::Object { .. } => Class::Refined(self.object),
                Block::Dead => Class::Cached,
                Block::Other => Class::Live,
            };
            accumulator.claim_to(end, class);
        }
    }
}

/// Returns the size classes that have pools, by block size.
pub fn classes(sums: &Sums) -> impl Iterator<Item = (u64, SizeClassCounts)> {
    sums.classes
        .iter()
        .enumerate()
        .filter(|(_, of)| of.pools > 0)
        .map(|(class, of)| (class_bytes(class), *of))
}

//! Plans a heap before a byte of it is written: its chunks, their addresses and states.

use crate::{PAGE, Recipe, Rng, Thread, Version};

/// Address of the secondary arena's first heap; heaps are aligned to their 64 MiB.
const SECONDARY_START: u64 = 0x7f5a_2400_0000;
/// Largest heap of a secondary arena (`HEAP_MAX_SIZE`).
pub const MAX_HEAP_BYTES: u64 = 64 << 20;
/// Address of the chunks with their own mappings.
const MMAPPED_START: u64 = 0x7f5a_6000_0000;
/// End of the mmapped pieces of the main arena; each newer piece is right below the one before.
const PIECES_END: u64 = 0x7f5a_5f00_0000;
/// Address of the threads' control blocks, each in its own two pages, and of the thread pointer in
/// these.
const THREADS_START: u64 = 0x7f5a_7000_0000;
const THREAD_DISTANCE: u64 = 0x10000;
const THREAD_POINTER: u64 = 0x1740;
/// The largest chunk a fastbin takes (global_max_fast).
const MAX_FAST_BYTES: u64 = 0x80;
/// The largest chunk a tcache takes without tunables.
const MAX_CACHED_BYTES: u64 = 1040;
/// The smallest chunk (`MINSIZE`), and the multiple that sizes are of (`MALLOC_ALIGNMENT`).
const MIN_CHUNK_BYTES: u64 = 32;
const ALIGNMENT: u64 = 16;
/// Bytes of the two headers that end a stretch without top.
const FENCEPOST_BYTES: u64 = 32;
/// Number of bins of a tcache up to MAX_CACHED_BYTES; 2.43 has more bins.
const TCACHE_BINS: usize = 64;

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// In use.
    Live,
    /// In the tcache of the thread with this index.
    Cached(usize),
    /// In a fastbin.
    Fast,
    /// In another bin.
    Free,
}

/// A chunk other than a top chunk.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// The address of its header.
    pub at: u64,
    /// Its bytes, header included.
    pub size: u64,
    pub state: ChunkState,
}

/// How a stretch of chunks ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In the arena's top chunk.
    Top,
    /// In two headers of 0x10, because others moved or blocked the break.
    MovedBreak,
    /// In a header of 0x10 and one of 0, because a secondary heap was full.
    FullHeap,
}

/// Consecutive chunks.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// First address that belongs to malloc: start of the break, or of heap_info.
    pub base: u64,
    pub chunks: Vec<Chunk>,
    /// End of the chunks: start of the fenceposts or of the top chunk.
    pub chunks_end: u64,
    /// First address past them.
    pub end: u64,
    pub ending: Ending,
    /// Whether its memory is from the break.
    pub is_from_break: bool,
    /// End of the foreign bytes between this stretch and the next; `end` if there are none.
    pub foreign_end: u64,
}

/// An arena and its memory.
#[derive(Clone, Debug)]
pub struct Arena {
    /// The address of its malloc_state.
    pub address: u64,
    pub is_main: bool,
    /// Its chunks; the last stretch ends in its top chunk.
    pub stretches: Vec<Stretch>,
}

/// The top chunk of an arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct Top {
    pub address: u64,
    pub bytes: u64,
}

impl Arena {
    /// Bytes taken from the system. Bytes by which others moved the break count: glibc takes the
    /// whole range for its own.
    pub fn system_bytes(&self) -> u64 {
        let break_stretches = self.stretches.iter().filter(|stretch| stretch.is_from_break);
        let break_start = break_stretches.map(|stretch| stretch.base).min().unwrap_or(0);
        let mapped_stretches = self.stretches.iter().filter(|stretch| !stretch.is_from_break);
        self.break_end() - break_start
            + mapped_stretches.map(|stretch| stretch.end - stretch.base).sum::<u64>()
    }

    /// End of the memory that the arena took by the break; 0 if it took none.
    pub fn break_end(&self) -> u64 {
        let break_stretches = self.stretches.iter().filter(|stretch| stretch.is_from_break);
        break_stretches.map(|stretch| stretch.end).max().unwrap_or(0)
    }

    /// Its top chunk.
    pub fn top(&self) -> Top {
        let last = self.stretches.last();
        last.map_or(Top::default(), |stretch| Top {
            address: stretch.chunks_end,
            bytes: stretch.end - stretch.chunks_end,
        })
    }
}

/// A chunk with its own mapping.
#[derive(Clone, Copy, Debug)]
pub struct Mmapped {
    /// Start of the mapping.
    pub base: u64,
    /// Bytes of the mapping.
    pub bytes: u64,
    /// Offset of the chunk in the mapping (memalign).
    pub offset: u64,
}

/// A heap before it is written.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its arenas, main_arena first.
    pub arenas: Vec<Arena>,
    pub threads: Vec<Thread>,
    pub mmapped: Vec<Mmapped>,
    /// Bytes that 2.43 fails to subtract from mmapped_mem: 16 for each chunk that was resized.
    pub mmapped_leftover: u64,
    /// The address of the break.
    pub system_break: u64,
}

impl Plan {
    /// Bytes of mmapped chunks as mp_ counts them.
    pub fn mmapped_bytes(&self) -> u64 {
        self.mmapped.iter().map(|chunk| chunk.bytes).sum::<u64>() + self.mmapped_leftover
    }
}

/// Plans the heap of `recipe`.
pub fn plan(recipe: &Recipe) -> Plan {
    let thread_count = recipe.threads.max(1);
    let cached_counts = vec![[0; TCACHE_BINS]; thread_count];
    let mut planner = Planner { recipe, rng: Rng::new(recipe.seed), cached_counts, tcaches: Vec::new() };
    // The main thread's tcache is the heap's first chunk; those of the others are in their arena.
    let secondary_tcaches = if recipe.secondary_heaps > 0 { thread_count - 1 } else { 0 };
    let mut arenas = vec![planner.plan_main_arena(thread_count - secondary_tcaches)];
    if recipe.secondary_heaps > 0 {
        arenas.push(planner.plan_secondary_arena(secondary_tcaches));
    }
    let Planner { mut rng, tcaches, .. } = planner;
    let fs_base = |index: u64| THREADS_START + index * THREAD_DISTANCE + THREAD_POINTER;
    let threads =
        (0u64..).zip(tcaches).map(|(index, tcache)| Thread { fs_base: fs_base(index), tcache }).collect();
    let end = arenas[0].break_end();
    // A program may move the break by any number of bytes.
    let system_break = if recipe.is_break_moved { end + 0x1230 } else { end };
    let mmapped = draw_mmapped(recipe, &mut rng);
    let mmapped_leftover = if recipe.version == Version::V2_43 { 16 * rng.below(4) } else { 0 };
    Plan { arenas, threads, mmapped, mmapped_leftover, system_break }
}

/// Moves a stretch that was planned from address 0 on to `base`.
fn moved_to_base(stretch: Stretch, base: u64) -> Stretch {
    let chunks = stretch.chunks.into_iter().map(|chunk| Chunk { at: chunk.at + base, ..chunk }).collect();
    let (chunks_end, end) = (stretch.chunks_end + base, stretch.end + base);
    Stretch { base, chunks, chunks_end, end, foreign_end: end, ..stretch }
}

/// A plan that is being made.
struct Planner<'a> {
    recipe: &'a Recipe,
    rng: Rng,
    /// By thread and bin, the number of chunks in its cache: no bin gets more than it takes.
    cached_counts: Vec<[u64; TCACHE_BINS]>,
    /// Addresses of the threads' tcaches.
    tcaches: Vec<u64>,
}

impl Planner<'_> {
    fn plan_main_arena(&mut self, tcache_count: usize) -> Arena {
        let recipe = self.recipe;
        let mut stretches = Vec::new();
        let mut base = recipe.places.heap;
        if recipe.has_foreign_sbrk {
            let mut stretch = self.plan_stretch(base, base, tcache_count, Ending::MovedBreak);
            // There may be any number of foreign bytes; malloc aligns the chunk after them.
            base = (stretch.end + 1 + self.rng.below(20_000)).next_multiple_of(ALIGNMENT);
            stretch.foreign_end = base;
            stretches.push(stretch);
        }
        let unplaced_tcaches = if recipe.has_foreign_sbrk { 0 } else { tcache_count };
        let ending = if recipe.mmapped_pieces > 0 { Ending::MovedBreak } else { Ending::Top };
        stretches.push(self.plan_stretch(base, base, unplaced_tcaches, ending));
        stretches.iter_mut().for_each(|stretch| stretch.is_from_break = true);
        let mut end = PIECES_END;
        for index in 1..=recipe.mmapped_pieces {
            let ending = if index == recipe.mmapped_pieces { Ending::Top } else { Ending::MovedBreak };
            let piece = self.plan_stretch(0, 0, 0, ending);
            end -= piece.end;
            stretches.push(moved_to_base(piece, end));
        }
        Arena { address: recipe.places.main_arena, is_main: true, stretches }
    }

    fn plan_secondary_arena(&mut self, tcache_count: usize) -> Arena {
        let Recipe { version, secondary_heaps, .. } = *self.recipe;
        let address = SECONDARY_START + version.heap_info_bytes();
        let mut stretches = Vec::new();
        for index in 0..secondary_heaps as u64 {
            let base = SECONDARY_START + index * MAX_HEAP_BYTES;
            let is_newest = index + 1 == secondary_heaps as u64;
            let ending = if is_newest { Ending::Top } else { Ending::FullHeap };
            let mut first = base + version.heap_info_bytes();
            if index == 0 {
                first = (first + version.arena_bytes()).next_multiple_of(ALIGNMENT);
            }
            let own_tcaches = if index == 0 { tcache_count } else { 0 };
            stretches.push(self.plan_stretch(base, first, own_tcaches, ending));
        }
        Arena { address, is_main: false, stretches }
    }

    /// Plans chunks from `first` on, `tcache_count` of them for tcaches.
    fn plan_stretch(&mut self, base: u64, first: u64, tcache_count: usize, ending: Ending) -> Stretch {
        let mut chunks = Vec::new();
        let mut at = first;
        let mut push = |at: &mut u64, size, state| {
            chunks.push(Chunk { at: *at, size, state });
            *at += size;
        };
        for _ in 0..tcache_count {
            self.tcaches.push(at + 16);
            push(&mut at, self.recipe.version.tcache_chunk_bytes(), ChunkState::Live);
        }
        let mut previous = ChunkState::Live;
        for _ in 0..self.recipe.chunks {
            let size = self.draw_size();
            previous = self.draw_state(size, previous);
            push(&mut at, size, previous);
        }
        // No free chunk is adjacent to top or another free chunk: malloc would have merged them.
        if previous == ChunkState::Free {
            push(&mut at, 48, ChunkState::Live);
        }
        // The rest is the top chunk, or another chunk and the fenceposts.
        let max_rest_bytes = if self.rng.chance(20) { 400_000 } else { 9_000 };
        let rest_bytes = 96 + self.rng.below(max_rest_bytes);
        let end = (at + rest_bytes).next_multiple_of(PAGE);
        if ending != Ending::Top {
            // The former top is now a chunk up to the fenceposts.
            let state = if self.rng.chance(70) { ChunkState::Free } else { ChunkState::Live };
            let size = end - FENCEPOST_BYTES - at;
            push(&mut at, size, state);
        }
        Stretch { base, chunks, chunks_end: at, end, ending, is_from_break: false, foreign_end: end }
    }

    /// Draws the size of a chunk: mostly one that a fastbin or a tcache takes.
    fn draw_size(&mut self) -> u64 {
        let max_size = match self.rng.below(100) {
            0..60 => MAX_FAST_BYTES,
            60..85 => MAX_CACHED_BYTES,
            85..98 => 9_000,
            _ => 120_000,
        };
        (MIN_CHUNK_BYTES + self.rng.below(max_size - MIN_CHUNK_BYTES + 1)).next_multiple_of(ALIGNMENT)
    }

    /// Draws a state that a chunk of this size may have after one in the state `previous`.
    fn draw_state(&mut self, size: u64, previous: ChunkState) -> ChunkState {
        match self.rng.below(100) {
            0..15 if size <= MAX_CACHED_BYTES => {
                self.draw_cache(size).map_or(ChunkState::Live, ChunkState::Cached)
            }
            15..35 if size <= MAX_FAST_BYTES && self.recipe.version.has_fastbins() => ChunkState::Fast,
            35..65 if previous != ChunkState::Free => ChunkState::Free,
            _ => ChunkState::Live,
        }
    }

    /// Chooses a thread and caches a chunk of `size` there; `None` if its bin is full.
    fn draw_cache(&mut self, size: u64) -> Option<usize> {
        let thread = self.rng.below(self.cached_counts.len() as u64) as usize;
        let bin = usize::try_from((size.checked_sub(MIN_CHUNK_BYTES)?) / ALIGNMENT).ok()?;
        let count = self.cached_counts.get_mut(thread)?.get_mut(bin)?;
        (*count < self.recipe.version.tcache_fill()).then(|| {
            *count += 1;
            thread
        })
    }
}

/// Draws the chunks with their own mappings.
fn draw_mmapped(recipe: &Recipe, rng: &mut Rng) -> Vec<Mmapped> {
    (0..recipe.mmapped_chunks as u64)
        .map(|index| {
            let bytes = PAGE * (1 + rng.below(80));
            let offset = if rng.chance(25) { 16 * rng.below(64) } else { 0 };
            // Mappings are apart, or the kernel would print them as one.
            Mmapped { base: MMAPPED_START + index * 0x100_0000, bytes, offset }
        })
        .collect()
}

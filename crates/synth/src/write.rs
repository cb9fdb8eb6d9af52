//! Writes a planned heap: chunk headers, lists, arenas, heap_info, tcaches, mp_, thread blocks.
//!
//! Everything that malloc does not define (payload, former contents of freed chunks) is filled with
//! words that sometimes look like headers and pointers, as in real heaps.

use crate::plan::{Arena, Chunk, ChunkState, Ending, MAX_HEAP_BYTES, Plan, Stretch};
use crate::version::{Version, bin_of};
use crate::{Expected, Heap, Image, Mapping, PAGE, Recipe, Rng, round_down};

/// The previous chunk is in use.
const PREV_INUSE: u64 = 1;
/// The chunk has its own mapping.
const IS_MMAPPED: u64 = 2;
/// The chunk belongs to a secondary arena.
const NON_MAIN_ARENA: u64 = 4;

/// Number of bins; bin 0 is not used, bin 1 is the unsorted one (`NBINS`).
const BINS: usize = 128;
/// Number of the first large bin (`NSMALLBINS`), and the smallest chunk in one.
const FIRST_LARGE_BIN: usize = 64;
const MIN_LARGE_BYTES: u64 = 1024;
/// Bytes of bins[] in malloc_state; binmap follows.
const BINS_BYTES: u64 = 254 * 8;
/// Number of fastbins (`NFASTBINS`).
const FASTBINS: usize = 10;
/// Bytes of a fencepost: a chunk that is only a header.
const FENCEPOST_BYTES: u64 = 0x10;
/// Bytes of a chunk before its memory.
const HEADER_BYTES: u64 = 16;
/// Offsets in a chunk (`struct malloc_chunk`).
mod malloc_chunk {
    pub const SIZE: u64 = 8;
    pub const FD: u64 = 16;
    pub const BK: u64 = 24;
    pub const FD_NEXTSIZE: u64 = 32;
    pub const BK_NEXTSIZE: u64 = 40;
}
/// malloc_state's flag of an arena that is not contiguous (`NONCONTIGUOUS_BIT`).
const NONCONTIGUOUS: u32 = 2;
/// Default of trim_threshold, top_pad and mmap_threshold in mp_ (`DEFAULT_TOP_PAD`, …).
const DEFAULT_THRESHOLD: u64 = 131_072;
/// Default of n_mmaps_max in mp_.
const DEFAULT_MAX_MMAPS: u64 = 65_536;

/// The double-free key of tcache entries from 2.34 on (`tcache_key`).
const TCACHE_KEY: u64 = 0x9d3c_51e7_0b6a_f284;

struct Writer {
    version: Version,
    image: Image,
    rng: Rng,
    /// Addresses of the words of the heap's structure.
    structure: Vec<u64>,
    mappings: Vec<Mapping>,
}

/// Writes a planned heap into memory.
pub fn write(recipe: &Recipe, plan: Plan, expected: Expected) -> Heap {
    let mut writer = Writer {
        version: recipe.version,
        image: Image::default(),
        rng: Rng::new(recipe.seed ^ 0xb17e5),
        structure: Vec::new(),
        mappings: Vec::new(),
    };
    writer.map_all(recipe, &plan);
    for (index, arena) in plan.arenas.iter().enumerate() {
        for stretch in &arena.stretches {
            writer.write_chunks(arena, stretch);
        }
        let next_arena = plan.arenas.get(index + 1).unwrap_or(&plan.arenas[0]).address;
        writer.write_arena(arena, next_arena);
    }
    writer.write_heap_infos(&plan);
    writer.write_tcaches(&plan);
    writer.write_mmapped(&plan);
    writer.write_parameters(recipe.places.parameters, &plan);
    writer.mappings.sort_by_key(|mapping| mapping.start);
    Heap {
        recipe: recipe.clone(),
        image: writer.image,
        mappings: writer.mappings,
        main_arena: recipe.places.main_arena,
        parameters: recipe.places.parameters,
        system_break: plan.system_break,
        threads: plan.threads,
        expected,
        structure: writer.structure,
    }
}

impl Writer {
    /// Writes a word of the heap's structure.
    fn put_structure_word(&mut self, address: u64, word: u64) {
        self.image.put_word(address, word);
        self.structure.push(address);
    }

    /// Adds a readable and writable mapping with its memory.
    fn map(&mut self, start: u64, end: u64, name: &'static str) {
        self.image.map(start, (end - start) as usize);
        self.mappings.push(Mapping { start, end, permissions: "rw-p", name });
    }

    /// Adds all mappings of the process except that of its code.
    fn map_all(&mut self, recipe: &Recipe, plan: &Plan) {
        for arena in &plan.arenas {
            if arena.is_main {
                let start = arena.stretches[0].base;
                self.map(start, plan.system_break.next_multiple_of(PAGE), "[heap]");
                let pieces = || arena.stretches.iter().filter(|stretch| !stretch.is_from_break);
                let ends = (pieces().map(|piece| piece.base).min(), pieces().map(|piece| piece.end).max());
                if let (Some(start), Some(end)) = ends {
                    // The kernel merges adjacent pieces; a foreign page may follow.
                    let foreign_bytes = PAGE * self.rng.below(3);
                    self.map(start, end + foreign_bytes, "");
                    self.fill_garbage(end, end + foreign_bytes);
                }
                continue;
            }
            for stretch in &arena.stretches {
                self.map(stretch.base, stretch.end, "");
                // The rest of a heap is reserved.
                let end = round_down(stretch.base, MAX_HEAP_BYTES) + MAX_HEAP_BYTES;
                self.mappings.push(Mapping { start: stretch.end, end, permissions: "---p", name: "" });
            }
        }
        for chunk in &plan.mmapped {
            self.map(chunk.base, chunk.base + chunk.bytes, "");
        }
        for thread in &plan.threads {
            let start = round_down(thread.fs_base, PAGE) - PAGE;
            self.map(start, start + 2 * PAGE, "");
        }
        let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let (arena, parameters) = (recipe.places.main_arena, recipe.places.parameters);
        let end = (arena + self.version.arena_bytes()).max(parameters + self.version.parameters().bytes);
        self.map(round_down(arena.min(parameters), PAGE), end.next_multiple_of(PAGE), libc);
    }

    /// Fills `start..end` with leftovers, which malloc does not define.
    fn fill_garbage(&mut self, start: u64, end: u64) {
        let mut bytes = Vec::with_capacity((end - start) as usize);
        for _ in (start..end).step_by(8) {
            let word: u64 = match self.rng.below(8) {
                0 => 0,
                1 => self.rng.below(2000).next_multiple_of(16) | self.rng.below(8),
                2 => start + round_down(self.rng.below(end - start), 16),
                3 => self.rng.below(256),
                _ => self.rng.word(),
            };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.image.put(start, &bytes);
    }

    /// Writes the chunks of a stretch and its end.
    fn write_chunks(&mut self, arena: &Arena, stretch: &Stretch) {
        let arena_flag = if arena.is_main { 0 } else { NON_MAIN_ARENA };
        let first = stretch.chunks.first().map_or(stretch.chunks_end, |chunk| chunk.at);
        self.fill_garbage(first, stretch.chunks_end);
        let mut in_use = PREV_INUSE;
        for chunk in &stretch.chunks {
            self.put_structure_word(chunk.at + malloc_chunk::SIZE, chunk.size | arena_flag | in_use);
            in_use = if chunk.state == ChunkState::Free { 0 } else { PREV_INUSE };
            if chunk.state == ChunkState::Free {
                self.put_structure_word(chunk.at + chunk.size, chunk.size);
            }
        }
        let last_size = stretch.chunks_end + malloc_chunk::SIZE;
        match stretch.ending {
            Ending::Top => {
                self.put_structure_word(last_size, (stretch.end - stretch.chunks_end) | PREV_INUSE);
            }
            Ending::MovedBreak => {
                self.put_structure_word(last_size, FENCEPOST_BYTES | in_use);
                self.put_structure_word(last_size + FENCEPOST_BYTES, FENCEPOST_BYTES | PREV_INUSE);
            }
            Ending::FullHeap => {
                self.put_structure_word(last_size, FENCEPOST_BYTES | in_use);
                self.put_structure_word(last_size + FENCEPOST_BYTES, PREV_INUSE);
            }
        }
        self.fill_garbage(stretch.end, stretch.foreign_end);
    }

    /// Writes an arena's malloc_state.
    fn write_arena(&mut self, arena: &Arena, next_arena: u64) {
        let bins = arena.address + self.version.bins_offset();
        self.put_structure_word(arena.address + self.version.top_offset(), arena.top().address);
        if arena.stretches.iter().any(|stretch| arena.is_main && !stretch.is_from_break) {
            // flags
            self.image.put(arena.address + 4, &NONCONTIGUOUS.to_le_bytes());
        }
        let binmap = self.write_bins(arena, bins);
        self.image.put(bins + BINS_BYTES, &binmap);
        // next, next_free, attached_threads, system_mem, max_system_mem.
        let next = bins + BINS_BYTES + binmap.len() as u64;
        self.put_structure_word(next, next_arena);
        self.put_structure_word(next + 8, 0);
        self.image.put_word(next + 16, 1);
        self.put_structure_word(next + 24, arena.system_bytes());
        self.put_structure_word(next + 32, arena.system_bytes());
        if self.version.has_fastbins() {
            self.write_fastbins(arena);
        }
    }

    /// Writes bins[] and the lists of free chunks, and returns the binmap: a bit for each bin that
    /// is not empty.
    fn write_bins(&mut self, arena: &Arena, bins: u64) -> Vec<u8> {
        let mut lists: Vec<Vec<Chunk>> = vec![Vec::new(); BINS];
        let chunks = arena.stretches.iter().flat_map(|stretch| &stretch.chunks);
        for chunk in chunks.filter(|chunk| chunk.state == ChunkState::Free) {
            // The unsorted bin holds what was freed last, of any size.
            let bin = if self.rng.chance(20) { 1 } else { bin_of(chunk.size) };
            lists[bin as usize].push(*chunk);
        }
        let mut binmap = [0u32; BINS / 32];
        for (bin, list) in lists.iter_mut().enumerate().skip(1) {
            // Large bins are in order of size, the largest first.
            if bin >= FIRST_LARGE_BIN {
                list.sort_by_key(|chunk| std::cmp::Reverse(chunk.size));
                self.link_sizes(list);
            } else if bin == 1 {
                // Chunks that are not sorted yet are in no list of sizes.
                for chunk in list.iter().filter(|chunk| chunk.size >= MIN_LARGE_BYTES) {
                    self.image.put_row(chunk.at + malloc_chunk::FD_NEXTSIZE, [0; 2]);
                }
            }
            if !list.is_empty() && bin > 1 {
                binmap[bin / 32] |= 1 << (bin % 32);
            }
            // A bin is a chunk that has only fd and bk.
            let head = bins + (bin as u64 - 1) * 16 - HEADER_BYTES;
            let ring: Vec<u64> = std::iter::once(head).chain(list.iter().map(|chunk| chunk.at)).collect();
            for (index, &chunk) in ring.iter().enumerate() {
                let following = ring[(index + 1) % ring.len()];
                self.put_structure_word(chunk + malloc_chunk::FD, following);
                self.put_structure_word(following + malloc_chunk::BK, chunk);
            }
        }
        binmap.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Links the first chunks of each size in a large bin into a second ring, by size.
    fn link_sizes(&mut self, list: &[Chunk]) {
        let mut firsts: Vec<u64> = Vec::new();
        for (index, chunk) in list.iter().enumerate() {
            if index == 0 || list[index - 1].size != chunk.size {
                firsts.push(chunk.at);
            } else {
                self.image.put_row(chunk.at + malloc_chunk::FD_NEXTSIZE, [0; 2]);
            }
        }
        for (index, &chunk) in firsts.iter().enumerate() {
            let following = firsts[(index + 1) % firsts.len()];
            self.put_structure_word(chunk + malloc_chunk::FD_NEXTSIZE, following);
            self.put_structure_word(following + malloc_chunk::BK_NEXTSIZE, chunk);
        }
    }

    /// Writes fastbinsY and the lists of fastbin chunks.
    fn write_fastbins(&mut self, arena: &Arena) {
        let mut heads = [0u64; FASTBINS];
        for stretch in &arena.stretches {
            for chunk in stretch.chunks.iter().filter(|chunk| chunk.state == ChunkState::Fast) {
                let bin = (chunk.size / 16 - 2) as usize;
                let memory = chunk.at + HEADER_BYTES;
                let link = self.protected(memory, heads[bin]);
                self.put_structure_word(memory, link);
                heads[bin] = chunk.at;
            }
        }
        for (bin, head) in heads.into_iter().enumerate() {
            self.put_structure_word(arena.address + self.version.fastbins_offset() + bin as u64 * 8, head);
        }
        // have_fastchunks
        self.image.put(arena.address + 8, &1u32.to_le_bytes());
    }

    /// A list link as it is stored at `address` (`PROTECT_PTR`).
    fn protected(&self, address: u64, link: u64) -> u64 {
        if self.version.has_safe_linking() { (address >> 12) ^ link } else { link }
    }

    /// Writes the heap_info of each secondary heap.
    fn write_heap_infos(&mut self, plan: &Plan) {
        for arena in plan.arenas.iter().filter(|arena| !arena.is_main) {
            let mut previous = 0;
            for stretch in &arena.stretches {
                // ar_ptr, prev, size, mprotect_size, and pagesize.
                let bytes = stretch.end - stretch.base;
                self.put_structure_word(stretch.base, arena.address);
                self.put_structure_word(stretch.base + 8, previous);
                self.put_structure_word(stretch.base + 16, bytes);
                self.put_structure_word(stretch.base + 24, bytes);
                if self.version.heap_info_bytes() > 0x20 {
                    self.put_structure_word(stretch.base + 32, PAGE);
                }
                previous = stretch.base;
            }
        }
    }

    /// Writes the tcaches, and the threads' pointers to them.
    fn write_tcaches(&mut self, plan: &Plan) {
        let (bins, fill) = (self.version.tcache_bins(), self.version.tcache_fill());
        for (index, thread) in plan.threads.iter().enumerate() {
            self.put_structure_word(thread.fs_base - self.version.tcache_below_thread(), thread.tcache);
            // The thread's control block starts with its own address, and holds it again at 16.
            self.image.put_word(thread.fs_base, thread.fs_base);
            self.image.put_word(thread.fs_base + 16, thread.fs_base);
            let mut counts = vec![0u64; bins as usize];
            let mut heads = vec![0u64; bins as usize];
            let chunks = plan.arenas.iter().flat_map(|arena| &arena.stretches).flat_map(|s| &s.chunks);
            for chunk in chunks.filter(|chunk| chunk.state == ChunkState::Cached(index)) {
                let (bin, memory) = (((chunk.size - 32) / 16) as usize, chunk.at + HEADER_BYTES);
                let link = self.protected(memory, heads[bin]);
                self.put_structure_word(memory, link);
                let key = if self.version == Version::V2_31 { thread.tcache } else { TCACHE_KEY };
                self.image.put_word(memory + 8, key);
                heads[bin] = memory;
                counts[bin] += 1;
            }
            for (bin, (count, head)) in (0u64..).zip(counts.into_iter().zip(heads)) {
                // 2.43 counts the free slots; earlier releases count the chunks.
                let stored = if self.version == Version::V2_43 { fill - count } else { count };
                self.image.put_bits(thread.tcache + bin * 2, stored, 16);
                self.put_structure_word(thread.tcache + bins * 2 + bin * 8, head);
            }
        }
    }

    /// Writes the chunks with their own mappings.
    fn write_mmapped(&mut self, plan: &Plan) {
        for chunk in &plan.mmapped {
            let header = chunk.base + chunk.offset;
            self.fill_garbage(header + HEADER_BYTES, chunk.base + chunk.bytes);
            // From 2.43 on the size excludes 16 bytes at the end.
            let tail_bytes = if self.version == Version::V2_43 { 16 } else { 0 };
            let size = chunk.bytes - chunk.offset - tail_bytes;
            self.put_structure_word(header, chunk.offset);
            self.put_structure_word(header + malloc_chunk::SIZE, size | IS_MMAPPED);
        }
    }

    /// Writes mp_.
    fn write_parameters(&mut self, parameters: u64, plan: &Plan) {
        let offsets = self.version.parameters();
        // trim_threshold, top_pad, mmap_threshold, arena_test, arena_max.
        let settings = [DEFAULT_THRESHOLD, DEFAULT_THRESHOLD, DEFAULT_THRESHOLD, 8, 0];
        self.image.put_row(parameters, settings);
        if let Some(offset) = offsets.thp_pagesize {
            self.image.put_word(parameters + offset, 0);
        }
        // n_mmaps, n_mmaps_max, max_n_mmaps, no_dyn_threshold.
        let count = plan.mmapped.len() as u64;
        for (index, number) in (0..).zip([count, DEFAULT_MAX_MMAPS, count, 0]) {
            self.image.put_half(parameters + offsets.n_mmaps + 4 * index, number);
        }
        // mmapped_mem, max_mmapped_mem, sbrk_base.
        let bytes = plan.mmapped_bytes();
        self.put_structure_word(parameters + offsets.mmapped_mem, bytes);
        self.put_structure_word(parameters + offsets.mmapped_mem + 8, bytes);
        self.put_structure_word(parameters + offsets.mmapped_mem + 16, plan.arenas[0].stretches[0].base);
        // tcache_bins, tcache_max_bytes, tcache_count, tcache_unsorted_limit.
        let max_cached_bytes = if self.version == Version::V2_43 { 1041 } else { 1032 };
        let tcache_settings = [64, max_cached_bytes, self.version.tcache_fill(), 0];
        self.image.put_row(parameters + offsets.bytes - 32, tcache_settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tally, VERSIONS, fabricate};

    /// Walks chunks by their sizes alone and returns those before `top` that are free by their
    /// neighbour's flag.
    fn free_chunks(heap: &Heap, mut at: u64, top: u64) -> Tally {
        let mut free = Tally::default();
        while at < top {
            let size = heap.image.word(at + 8).unwrap() & !7;
            assert!(size >= 32 && size.is_multiple_of(16), "{at:#x}: {size:#x}");
            if heap.image.word(at + size + 8).unwrap() & PREV_INUSE == 0 {
                assert_eq!(heap.image.word(at + size), Some(size), "the footer of {at:#x}");
                free.add(size);
            }
            at += size;
        }
        assert_eq!(at, top);
        free
    }

    #[test]
    fn sizes_lead_from_the_first_chunk_to_top() {
        for version in VERSIONS {
            for seed in 0..10 {
                let recipe = Recipe {
                    has_foreign_sbrk: false,
                    secondary_heaps: 0,
                    mmapped_pieces: 0,
                    ..Recipe::from_seed(version, seed)
                };
                let heap = fabricate(&recipe);
                let top = heap.image.word(heap.main_arena + version.top_offset()).unwrap();
                let free = free_chunks(&heap, heap.mappings[0].start, top);
                let mallinfo = &heap.expected.mallinfo;
                assert_eq!(free.count, mallinfo.ordblks - 1);
                assert_eq!(free.bytes, mallinfo.fordblks - mallinfo.fsmblks - mallinfo.keepcost);
                assert_eq!(
                    heap.image.word(top + 8).map(|size| size & !7),
                    Some(heap.expected.mallinfo.keepcost)
                );
            }
        }
    }

    #[test]
    fn bins_are_rings_both_ways_and_hold_every_free_chunk() {
        for version in VERSIONS {
            for seed in 0..10 {
                let heap = fabricate(&Recipe::from_seed(version, seed));
                let mut free_chunks = heap.expected.arenas.len() as u64;
                for arena in &heap.expected.arenas {
                    for bin in 0..127 {
                        let head = arena.address + version.bins_offset() + bin * 16 - 16;
                        let mut at = heap.image.word(head + 16).unwrap();
                        let mut before = head;
                        while at != head {
                            assert_eq!(heap.image.word(at + 24), Some(before));
                            free_chunks += 1;
                            before = at;
                            at = heap.image.word(at + 16).unwrap();
                        }
                        assert_eq!(heap.image.word(head + 24), Some(before));
                    }
                }
                assert_eq!(free_chunks, heap.expected.mallinfo.ordblks);
            }
        }
    }

    #[test]
    fn cached_chunks_are_in_the_tcaches() {
        for version in VERSIONS {
            for seed in 0..10 {
                let heap = fabricate(&Recipe::from_seed(version, seed));
                let mut bytes = 0;
                for thread in &heap.threads {
                    let tcache = heap.image.word(thread.fs_base - version.tcache_below_thread()).unwrap();
                    assert_eq!(tcache, thread.tcache);
                    for bin in 0..version.tcache_bins() {
                        let mut at = heap.image.word(tcache + version.tcache_bins() * 2 + bin * 8).unwrap();
                        while at != 0 {
                            let size = heap.image.word(at - 8).unwrap() & !7;
                            assert_eq!((size - 32) / 16, bin);
                            bytes += size;
                            let link = heap.image.word(at).unwrap();
                            at = if version == Version::V2_31 { link } else { link ^ (at >> 12) };
                        }
                    }
                }
                assert_eq!(bytes, heap.expected.arenas.iter().map(|arena| arena.tcache_bytes).sum::<u64>());
            }
        }
    }
}

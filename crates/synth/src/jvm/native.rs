//! Memory besides the heap: threads and their buffers (`gc/shared/threadLocalAllocBuffer.hpp`),
//! metaspace (`memory/metaspace/`), compiled code (`memory/heap.hpp`).

use super::{
    CLASS_SPACE, CLASS_SPACE_BYTES, CODE, CODE_BYTES, CODE_MAP, METASPACE, METASPACE_BYTES, PAGE, STACK,
    STACK_BYTES, Writer,
};
use crate::Usage;

/// Words that a buffer keeps free at its end.
const RESERVE_WORDS: u64 = 8;
/// Segments of a code heap have 128 bytes.
const SEGMENT_SHIFT: u32 = 7;

/// Blocks of code.
struct CodeBlocks {
    /// Number of segments that they take.
    segments: u64,
    /// Bytes of those in use.
    used_bytes: u64,
}

impl Writer {
    /// Fills eden with objects and, among them, buffers of threads; only their first part
    /// has objects.
    pub fn eden(&mut self, start: u64, end: u64) -> u64 {
        let mut at = start;
        for _ in 0..self.dice.below(3) {
            let middle = at + (end - at) / 4 / 8 * 8;
            let filled = self.objects(at, middle);
            let behind = (filled + 64 + 8 * self.dice.below(200)).min(end);
            if filled + 8 * RESERVE_WORDS + 8 > behind {
                return filled;
            }
            self.buffers.push([at, filled, behind - 8 * RESERVE_WORDS]);
            at = behind;
        }
        self.objects(at, end)
    }

    /// Writes threads: those with a buffer, and some without.
    pub fn threads(&mut self) {
        self.declare("ThreadsList", &[("_length", 4), ("_threads", 8)]);
        let common = self.declare("Thread", &[("_tlab", 128)]);
        for (field, offset) in [("_stack_base", 16), ("_stack_size", 8), ("_next", 24)] {
            self.tables.field("JavaThread", field, common + offset);
        }
        self.tables.size("Thread", common + 32);
        // `_allocation_end` is between them, and not in the tables.
        for (field, offset) in
            [("_start", 0), ("_top", 8), ("_pf_top", 16), ("_end", 24), ("_desired_size", 40)]
        {
            self.tables.field("ThreadLocalAllocBuffer", field, offset);
        }
        self.static_field("ThreadLocalAllocBuffer", "_reserve_for_allocation_prefetch", RESERVE_WORDS);
        if self.is_new {
            self.static_field("CollectedHeap", "_lab_alignment_reserve", 2);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.resize(buffers.len() + 1 + self.dice.below(3) as usize, [0; 3]);
        let threads = self.structure(8 * buffers.len() as u64);
        let mut last = 0;
        for (index, [start, top, end]) in buffers.iter().enumerate() {
            let thread = self.object("Thread", &[]);
            let buffer = thread + self.tables.offset("Thread", "_tlab");
            self.image.put_row(buffer, [*start, *top, *top, *end, *end, 512]);
            // Only the last thread has a stack in memory.
            if index + 1 == buffers.len() {
                self.image.put_word(thread + common + 16, STACK + STACK_BYTES);
                self.image.put_word(thread + common + 8, STACK_BYTES);
            }
            self.image.put_word(threads + 8 * index as u64, thread);
            self.image.put_word(thread + common + 24, last);
            last = thread;
        }
        if self.is_old {
            return self.static_field("Threads", "_thread_list", last);
        }
        let list = self.object("ThreadsList", &[("_length", buffers.len() as u64), ("_threads", threads)]);
        self.static_field("ThreadsSMRSupport", "_java_thread_list", list);
    }

    /// Writes class loaders, their arenas of chunks, the nodes that chunks are in, and the
    /// counters.
    pub fn metaspace(&mut self) {
        self.declare("ClassLoaderData", &[("_next", 8), ("_class_loader", 24), ("_klasses", 8)]);
        let counters = [self.tables.allocate_word(), self.tables.allocate_word()];
        let limiter = self.tables.allocate_word();
        let ranges = [(METASPACE, METASPACE_BYTES), (CLASS_SPACE, CLASS_SPACE_BYTES)];
        let nodes = ranges.map(|(start, bytes)| match self.is_old {
            true => self.old_node(start, bytes),
            false => self.node(start, bytes, limiter),
        });
        // The classes belong to the first loader.
        let mut used = [1000, self.metadata[1] - CLASS_SPACE];
        let loaders = 1 + self.dice.below(8);
        let mut next = 0;
        for index in 0..loaders {
            let mut chunks: [Vec<(u64, u64)>; 2] = [Vec::new(), Vec::new()];
            if index == 0 {
                chunks[0].push((METASPACE, 1000));
                chunks[1].push((CLASS_SPACE, self.metadata[1] - CLASS_SPACE));
                self.metadata = [METASPACE + PAGE, self.metadata[1].next_multiple_of(PAGE)];
            }
            for (kind, chunks) in chunks.iter_mut().enumerate() {
                for _ in 0..self.dice.below(3) {
                    let (start, bytes) = (self.metadata[kind], 8 * (8 + self.dice.below(PAGE / 8 - 7)));
                    if start + PAGE <= ranges[kind].0 + ranges[kind].1 {
                        self.metadata[kind] += PAGE;
                        used[kind] += bytes;
                        chunks.push((start, bytes));
                    }
                }
            }
            next = self.loader(next, &chunks, nodes, counters);
        }
        // A loader that has loaded nothing.
        let head = self.object("ClassLoaderData", &[("_next", next)]);
        self.static_field("ClassLoaderDataGraph", "_head", head);
        self.expected.loaders = self.loaders.len() as u64;
        for (counter, used) in counters.into_iter().zip(used).filter(|_| !self.is_old) {
            self.image.put_word(counter, used / 8);
        }
        let both = Usage::of(used[0] + used[1], METASPACE_BYTES + CLASS_SPACE_BYTES);
        self.expected.pools.insert("Metaspace", both);
        self.expected.pools.insert("Compressed Class Space", Usage::of(used[1], CLASS_SPACE_BYTES));
    }

    /// Writes a `VirtualSpaceNode`, in its own `VirtualSpaceList`, all of it committed.
    fn node(&mut self, start: u64, bytes: u64, limiter: u64) -> u64 {
        let (node, list) = (self.structure(0x100), self.structure(48));
        // The list: `_name`, `_first_node`, `_nodes_counter` and `_can_expand`, `_commit_limiter`,
        // and two counters of words.
        self.image.put_row(list + 8, [node, 1, limiter, bytes / 8, bytes / 8]);
        // The node: `_next`, then base, size and more of the reserved range; at its end the
        // limiter, and pointers to the counters in the list. The bytes between them differ by
        // release.
        let counters = 0xb0 + 8 * self.dice.below(4);
        self.image.put_row(node + 8, [start, bytes]);
        self.image.put_row(node + counters, [limiter, list + 32, list + 40]);
        node
    }

    /// Writes a `VirtualSpaceNode` of JDK 11: `_next`, `_is_class`, base, size and more of the
    /// reserved range; then `_low_boundary`, `_high_boundary`, `_low` and `_high`.
    fn old_node(&mut self, start: u64, bytes: u64) -> u64 {
        let (node, end) = (self.structure(144), start + bytes);
        self.image.put_row(node + 16, [start, bytes]);
        self.image.put_row(node + 64, [start, end, start, end]);
        node
    }

    /// Writes a `SpaceManager` of JDK 11, whose chunks begin with their headers.
    fn old_arena(&mut self, chunks: &[(u64, u64)], node: u64) -> u64 {
        let arena = self.structure(96);
        let mut first = 0;
        for &(start, bytes) in chunks {
            // `_word_size`, `_next`, `_prev`, `_container`, `_top`, `_sentinel`.
            let top = start + bytes;
            let size = top.next_multiple_of(PAGE) - start;
            self.image.put_row(start, [size / 8, first]);
            self.image.put_row(start + 24, [node, top, 0x4d45_54ef | 7 << 32]);
            first = start;
        }
        let used: u64 = chunks.iter().map(|chunk| chunk.1).sum();
        self.image.put_word(arena + 16, first);
        self.image.put_word(arena + 48, used / 8);
        arena
    }

    /// Writes a `ClassLoaderData` with `_metaspace` and `_metaspace_lock` behind `_class_loader`.
    fn loader(
        &mut self,
        next: u64,
        chunks: &[Vec<(u64, u64)>; 2],
        nodes: [u64; 2],
        counters: [u64; 2],
    ) -> u64 {
        let loader = self.object("ClassLoaderData", &[("_next", next)]);
        let place = loader + self.tables.offset("ClassLoaderData", "_class_loader");
        let (metaspace, lock) = (self.structure(32), self.structure(8));
        // The first loader has no object, and a hidden class has the object of its loader.
        let (handle, object) = (self.structure(8), 8 * self.dice.below(6));
        self.image.put_word(handle, object);
        self.image.put_word(place, if object == 0 { 0 } else { handle });
        self.loaders.insert(object);
        self.image.put_row(place + 8, [metaspace, lock]);
        // `ClassLoaderMetaspace`: `_lock` and `_space_type`, in JDK 11 the other way round; two
        // arenas.
        self.image.put_word(metaspace + 8 * u64::from(self.is_old), lock);
        for (kind, chunks) in chunks.iter().enumerate() {
            if self.is_old {
                let arena = self.old_arena(chunks, nodes[kind]);
                self.image.put_word(metaspace + 16 + 8 * kind as u64, arena);
                continue;
            }
            let arena = self.structure(64);
            self.image.put_word(metaspace + 16 + 8 * kind as u64, arena);
            // `MetaspaceArena`: `_chunks` at 24 with their number, `_fbl`, then the counter that
            // all arenas of a kind share.
            let mut first = 0;
            for &(start, bytes) in chunks {
                // `Metachunk`: `_base`, `_used_words`, `_committed_words`, `_level` and `_state`,
                // `_vsnode`, `_prev`, `_next`.
                let chunk = self.structure(72);
                self.image.put_row(chunk, [start, bytes / 8, 512, 12, nodes[kind]]);
                self.image.put_word(chunk + 48, first);
                first = chunk;
            }
            self.image.put_words(arena, [(24, first), (32, chunks.len() as u64), (48, counters[kind])]);
        }
        loader
    }

    /// Writes a code cache of one heap, in blocks of segments.
    pub fn code(&mut self) {
        let base = self.declare("VirtualSpace", &[("_low", 8), ("_high", 8), ("_low_boundary", 8)]);
        self.declare("GrowableArrayBase", &[("_len", 4)]);
        let data = self.tables.size_of("GrowableArrayBase");
        self.tables.field("GrowableArray<int>", "_data", data);
        let used = if self.is_new { 4 } else { 8 };
        for (of, field, offset) in [
            ("HeapBlock", "_header", 0),
            ("HeapBlock::Header", "_length", 0),
            ("HeapBlock::Header", "_used", used),
            ("CodeHeap", "_memory", 8),
            ("CodeHeap", "_segmap", 8 + base),
            ("CodeHeap", "_log2_segment_size", 32 + 2 * base),
        ] {
            self.tables.field(of, field, offset);
        }
        let heap = self.structure(128 + 2 * base);
        self.fill(heap + 8, "VirtualSpace", &[("_low", CODE), ("_high", CODE + CODE_BYTES)]);
        self.fill(heap + 8 + base, "VirtualSpace", &[("_low", CODE_MAP), ("_high", CODE_MAP + PAGE)]);
        let blocks = self.blocks();
        let shift = heap + 32 + 2 * base;
        // `_next_segment` follows, and further on the type of the code in it: all kinds.
        self.image.put_words(shift, [(0, u64::from(SEGMENT_SHIFT)), (8, blocks.segments), (64, 3)]);
        let (array, pointers) = (self.structure(data + 8), self.structure(8));
        self.fill(array, "GrowableArrayBase", &[("_len", 1)]);
        self.image.put_word(array + data, pointers);
        self.image.put_word(pointers, heap);
        self.static_field("CodeCache", "_heaps", array);
        self.expected.pools.insert("CodeCache", Usage::of(blocks.used_bytes, CODE_BYTES));
    }

    /// Writes blocks, in use and free.
    fn blocks(&mut self) -> CodeBlocks {
        let (mut segment, mut in_use) = (0, 0);
        let stop = self.dice.below((CODE_BYTES >> SEGMENT_SHIFT) + 1);
        while segment < stop {
            let length = (1 + self.dice.below(30)).min(stop - segment);
            let is_used = self.dice.chance(70);
            let at = CODE + (segment << SEGMENT_SHIFT);
            if self.is_new {
                self.image.put_word(at, length | u64::from(is_used) << 32);
            } else {
                self.image.put_row(at, [length, u64::from(is_used)]);
            }
            in_use += (u64::from(is_used) * length) << SEGMENT_SHIFT;
            segment += length;
        }
        CodeBlocks { segments: stop, used_bytes: in_use }
    }
}

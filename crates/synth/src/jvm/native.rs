//! Memory besides the heap: threads and their buffers (`gc/shared/threadLocalAllocBuffer.hpp`),
//! metaspace (`memory/metaspace/`), compiled code (`memory/heap.hpp`).

use super::{
    CLASS_SPACE, CLASS_SPACE_BYTES, CODE, CODE_BYTES, CODE_MAP, Jdk, METASPACE, METASPACE_BYTES, PAGE, STACK,
    STACK_BYTES, Writer,
};
use crate::Usage;

/// Words at the end of a buffer that no object uses.
const RESERVE_WORDS: u64 = 8;
/// Segments of a code heap have 128 bytes.
const SEGMENT_SHIFT: u32 = 7;
/// Offsets of fields of `JavaThread` from the end of the part that all threads have.
const STACK_SIZE: u64 = 8;
const STACK_BASE: u64 = 16;
const NEXT_THREAD: u64 = 24;
const JAVA_THREAD_BYTES: u64 = 32;
/// Bytes of the classes in the metaspace of the first loader.
const CLASS_METADATA_BYTES: u64 = 1000;
/// `Metachunk::_sentinel` of JDK 11 (`CHUNK_SENTINEL`), and the chunk's type and origin.
const CHUNK_SENTINEL: u64 = 0x4d45_54ef | 7 << 32;

/// A chunk of metaspace.
#[derive(Clone, Copy)]
struct Chunk {
    start: u64,
    used_bytes: u64,
}

/// The buffer of a thread.
#[derive(Clone, Copy, Default)]
pub struct Buffer {
    start: u64,
    /// End of the objects.
    top: u64,
    /// End, without the reserve.
    end: u64,
}

/// Blocks of code.
struct CodeBlocks {
    /// Number of segments that they take.
    segments: u64,
    /// Bytes of those in use.
    used_bytes: u64,
}

impl Writer {
    /// Fills eden with objects and, among them, buffers of threads with objects in their first
    /// part; returns the end of the last objects.
    pub fn write_eden(&mut self, start: u64, end: u64) -> u64 {
        let mut next = start;
        for _ in 0..self.rng.below(3) {
            // Objects of a buffer take at most a quarter of the rest.
            let max_top = next + (end - next) / 32 * 8;
            let top = self.write_objects(next, max_top);
            let buffer_end = (top + 64 + 8 * self.rng.below(200)).min(end);
            if top + 8 * RESERVE_WORDS + 8 > buffer_end {
                return top;
            }
            self.buffers.push(Buffer { start: next, top, end: buffer_end - 8 * RESERVE_WORDS });
            next = buffer_end;
        }
        self.write_objects(next, end)
    }

    /// Writes threads, some of them without a buffer.
    pub fn write_threads(&mut self) {
        self.declare_type("ThreadsList", &[("_length", 4), ("_threads", 8)]);
        let common_bytes = self.declare_type("Thread", &[("_tlab", 128)]);
        for (field, offset) in
            [("_stack_base", STACK_BASE), ("_stack_size", STACK_SIZE), ("_next", NEXT_THREAD)]
        {
            self.tables.declare_field("JavaThread", field, common_bytes + offset);
        }
        self.tables.declare_size("Thread", common_bytes + JAVA_THREAD_BYTES);
        // `_allocation_end`, at 32, is not in the tables.
        for (field, offset) in
            [("_start", 0), ("_top", 8), ("_pf_top", 16), ("_end", 24), ("_desired_size", 40)]
        {
            self.tables.declare_field("ThreadLocalAllocBuffer", field, offset);
        }
        self.write_static("ThreadLocalAllocBuffer", "_reserve_for_allocation_prefetch", RESERVE_WORDS);
        if self.jdk == Jdk::V25 {
            self.write_static("CollectedHeap", "_lab_alignment_reserve", 2);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.resize(buffers.len() + 1 + self.rng.below(3) as usize, Buffer::default());
        let threads = self.allocate_structure(8 * buffers.len() as u64);
        let mut list_head = 0;
        for (index, &Buffer { start, top, end }) in buffers.iter().enumerate() {
            let thread = self.write_structure("Thread", &[]);
            let buffer = thread + self.tables.offset("Thread", "_tlab");
            self.image.put_row(buffer, [start, top, top, end, end, 512]);
            let java_thread = thread + common_bytes;
            // Only the last thread has a stack in memory.
            if index + 1 == buffers.len() {
                self.image.put_word(java_thread + STACK_BASE, STACK + STACK_BYTES);
                self.image.put_word(java_thread + STACK_SIZE, STACK_BYTES);
            }
            self.image.put_word(threads + 8 * index as u64, thread);
            self.image.put_word(java_thread + NEXT_THREAD, list_head);
            list_head = thread;
        }
        if self.jdk == Jdk::V11 {
            return self.write_static("Threads", "_thread_list", list_head);
        }
        let list =
            self.write_structure("ThreadsList", &[("_length", buffers.len() as u64), ("_threads", threads)]);
        self.write_static("ThreadsSMRSupport", "_java_thread_list", list);
    }

    /// Writes class loaders, their arenas of chunks, the nodes that chunks are in, and the
    /// counters.
    pub fn write_metaspace(&mut self) {
        self.declare_type("ClassLoaderData", &[("_next", 8), ("_class_loader", 24), ("_klasses", 8)]);
        let counters = [self.tables.allocate_word(), self.tables.allocate_word()];
        let limiter = self.tables.allocate_word();
        let ranges = [(METASPACE, METASPACE_BYTES), (CLASS_SPACE, CLASS_SPACE_BYTES)];
        let nodes = ranges.map(|(start, bytes)| match self.jdk {
            Jdk::V11 => self.write_old_node(start, bytes),
            _ => self.write_node(start, bytes, limiter),
        });
        // The classes belong to the first loader. Arrays are for metaspace, then for class space.
        let class_bytes = self.next_class_space - CLASS_SPACE;
        let mut used_bytes = [CLASS_METADATA_BYTES, class_bytes];
        let mut next_chunks = [METASPACE + PAGE, self.next_class_space.next_multiple_of(PAGE)];
        let loaders = 1 + self.rng.below(8);
        let mut next_loader = 0;
        for index in 0..loaders {
            let mut chunks: [Vec<Chunk>; 2] = [Vec::new(), Vec::new()];
            if index == 0 {
                chunks[0].push(Chunk { start: METASPACE, used_bytes: CLASS_METADATA_BYTES });
                chunks[1].push(Chunk { start: CLASS_SPACE, used_bytes: class_bytes });
            }
            for (kind, chunks) in chunks.iter_mut().enumerate() {
                for _ in 0..self.rng.below(3) {
                    let (start, bytes) = (next_chunks[kind], 8 * (8 + self.rng.below(PAGE / 8 - 7)));
                    if start + PAGE <= ranges[kind].0 + ranges[kind].1 {
                        next_chunks[kind] += PAGE;
                        used_bytes[kind] += bytes;
                        chunks.push(Chunk { start, used_bytes: bytes });
                    }
                }
            }
            next_loader = self.write_loader(next_loader, &chunks, nodes, counters);
        }
        // A loader that has loaded nothing.
        let head = self.write_structure("ClassLoaderData", &[("_next", next_loader)]);
        self.write_static("ClassLoaderDataGraph", "_head", head);
        self.expected.loader_count = self.loaders.len() as u64;
        for (counter, bytes) in counters.into_iter().zip(used_bytes).filter(|_| self.jdk != Jdk::V11) {
            self.image.put_word(counter, bytes / 8);
        }
        let [metaspace_bytes, class_space_bytes] = used_bytes;
        let both = Usage::of(metaspace_bytes + class_space_bytes, METASPACE_BYTES + CLASS_SPACE_BYTES);
        let class_space = Usage::of(class_space_bytes, CLASS_SPACE_BYTES);
        self.expected.pools.insert("Metaspace", both);
        self.expected.pools.insert("Compressed Class Space", class_space);
    }

    /// Writes a `VirtualSpaceNode`, in its own `VirtualSpaceList`, all of it committed.
    fn write_node(&mut self, start: u64, bytes: u64, limiter: u64) -> u64 {
        let (node, list) = (self.allocate_structure(0x100), self.allocate_structure(48));
        // The list: `_name`, `_first_node`, `_nodes_counter` and `_can_expand`, `_commit_limiter`,
        // and two counters of words.
        self.image.put_row(list + 8, [node, 1, limiter, bytes / 8, bytes / 8]);
        // The node: `_next`, then base, size and more of the reserved range; at its end the
        // limiter, and pointers to the counters in the list. The bytes between them differ by
        // release.
        let counters = 0xb0 + 8 * self.rng.below(4);
        self.image.put_row(node + 8, [start, bytes]);
        self.image.put_row(node + counters, [limiter, list + 32, list + 40]);
        node
    }

    /// Writes a `VirtualSpaceNode` of JDK 11: `_next`, `_is_class`, base, size and more of the
    /// reserved range; then `_low_boundary`, `_high_boundary`, `_low` and `_high`.
    fn write_old_node(&mut self, start: u64, bytes: u64) -> u64 {
        let (node, end) = (self.allocate_structure(144), start + bytes);
        self.image.put_row(node + 16, [start, bytes]);
        self.image.put_row(node + 64, [start, end, start, end]);
        node
    }

    /// Writes a `SpaceManager` of JDK 11, whose chunks begin with their headers.
    fn write_old_arena(&mut self, chunks: &[Chunk], node: u64) -> u64 {
        let arena = self.allocate_structure(96);
        let mut first = 0;
        for &Chunk { start, used_bytes } in chunks {
            // `_word_size`, `_next`, `_prev`, `_container`, `_top`, `_sentinel`.
            let top = start + used_bytes;
            let size = top.next_multiple_of(PAGE) - start;
            self.image.put_row(start, [size / 8, first]);
            self.image.put_row(start + 24, [node, top, CHUNK_SENTINEL]);
            first = start;
        }
        let used_bytes: u64 = chunks.iter().map(|chunk| chunk.used_bytes).sum();
        self.image.put_word(arena + 16, first);
        self.image.put_word(arena + 48, used_bytes / 8);
        arena
    }

    /// Writes a `ClassLoaderData`, with `_metaspace` and `_metaspace_lock` after `_class_loader`.
    fn write_loader(
        &mut self,
        next: u64,
        chunks: &[Vec<Chunk>; 2],
        nodes: [u64; 2],
        counters: [u64; 2],
    ) -> u64 {
        let loader = self.write_structure("ClassLoaderData", &[("_next", next)]);
        let handle_field = loader + self.tables.offset("ClassLoaderData", "_class_loader");
        let (metaspace, lock) = (self.allocate_structure(32), self.allocate_structure(8));
        // The first loader has no object, and a hidden class has the object of its loader.
        let (handle, object) = (self.allocate_structure(8), 8 * self.rng.below(6));
        self.image.put_word(handle, object);
        self.image.put_word(handle_field, if object == 0 { 0 } else { handle });
        self.loaders.insert(object);
        self.image.put_row(handle_field + 8, [metaspace, lock]);
        // `ClassLoaderMetaspace`: `_lock` and `_space_type`, in JDK 11 the other way round; two
        // arenas.
        self.image.put_word(metaspace + 8 * u64::from(self.jdk == Jdk::V11), lock);
        for (kind, chunks) in chunks.iter().enumerate() {
            let arena = match self.jdk {
                Jdk::V11 => self.write_old_arena(chunks, nodes[kind]),
                _ => self.write_arena(chunks, nodes[kind], counters[kind]),
            };
            self.image.put_word(metaspace + 16 + 8 * kind as u64, arena);
        }
        loader
    }

    /// Writes a `MetaspaceArena`: `_chunks` at 24 with their number, `_fbl`, then the counter that
    /// all arenas of a kind share.
    fn write_arena(&mut self, chunks: &[Chunk], node: u64, counter: u64) -> u64 {
        let arena = self.allocate_structure(64);
        let mut first = 0;
        for &Chunk { start, used_bytes } in chunks {
            // `Metachunk`: `_base`, `_used_words`, `_committed_words`, `_level` and `_state`,
            // `_vsnode`, `_prev`, `_next`.
            let chunk = self.allocate_structure(72);
            self.image.put_row(chunk, [start, used_bytes / 8, 512, 12, node]);
            self.image.put_word(chunk + 48, first);
            first = chunk;
        }
        self.image.put_words(arena, [(24, first), (32, chunks.len() as u64), (48, counter)]);
        arena
    }

    /// Writes a code cache of one heap, in blocks of segments.
    pub fn write_code(&mut self) {
        let space_bytes =
            self.declare_type("VirtualSpace", &[("_low", 8), ("_high", 8), ("_low_boundary", 8)]);
        self.declare_type("GrowableArrayBase", &[("_len", 4)]);
        let data_offset = self.tables.size_of("GrowableArrayBase");
        self.tables.declare_field("GrowableArray<int>", "_data", data_offset);
        let used_offset = if self.jdk == Jdk::V25 { 4 } else { 8 };
        self.tables.declare_field("HeapBlock", "_header", 0);
        self.tables.declare_field("HeapBlock::Header", "_length", 0);
        self.tables.declare_field("HeapBlock::Header", "_used", used_offset);
        self.tables.declare_field("CodeHeap", "_memory", 8);
        self.tables.declare_field("CodeHeap", "_segmap", 8 + space_bytes);
        self.tables.declare_field("CodeHeap", "_log2_segment_size", 32 + 2 * space_bytes);
        let heap = self.allocate_structure(128 + 2 * space_bytes);
        self.write_fields(heap + 8, "VirtualSpace", &[("_low", CODE), ("_high", CODE + CODE_BYTES)]);
        self.write_fields(
            heap + 8 + space_bytes,
            "VirtualSpace",
            &[("_low", CODE_MAP), ("_high", CODE_MAP + PAGE)],
        );
        let blocks = self.write_blocks();
        let segment_size = heap + 32 + 2 * space_bytes;
        // `_next_segment` follows, and further on the type of the code in it: all kinds.
        self.image.put_words(segment_size, [(0, u64::from(SEGMENT_SHIFT)), (8, blocks.segments), (64, 3)]);
        let (array, pointers) = (self.allocate_structure(data_offset + 8), self.allocate_structure(8));
        self.write_fields(array, "GrowableArrayBase", &[("_len", 1)]);
        self.image.put_word(array + data_offset, pointers);
        self.image.put_word(pointers, heap);
        self.write_static("CodeCache", "_heaps", array);
        self.expected.pools.insert("CodeCache", Usage::of(blocks.used_bytes, CODE_BYTES));
    }

    /// Writes blocks, in use and free.
    fn write_blocks(&mut self) -> CodeBlocks {
        let (mut segment, mut used_bytes) = (0, 0);
        let end = self.rng.below((CODE_BYTES >> SEGMENT_SHIFT) + 1);
        while segment < end {
            let length = (1 + self.rng.below(30)).min(end - segment);
            let is_used = self.rng.chance(70);
            let block = CODE + (segment << SEGMENT_SHIFT);
            if self.jdk == Jdk::V25 {
                self.image.put_word(block, length | u64::from(is_used) << 32);
            } else {
                self.image.put_row(block, [length, u64::from(is_used)]);
            }
            used_bytes += (u64::from(is_used) * length) << SEGMENT_SHIFT;
            segment += length;
        }
        CodeBlocks { segments: end, used_bytes }
    }
}

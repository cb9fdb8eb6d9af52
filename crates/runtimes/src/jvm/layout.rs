//! Offsets that HotSpot does not describe itself: fields of the metaspace's structures and of
//! ZGC's.
//!
//! All others are in HotSpot's own tables (`structs`), or beside the code that needs them (`roots`,
//! `code`). Those of the metaspace are the same from JDK 16 on (JEP 387), and from JDK 11 to 15.
//! Each is checked against others before it is trusted: with a wrong one, no list of spaces is
//! found.

use std::ops::RangeInclusive;

/// Major versions with chunks that describe themselves.
pub const CHUNKED_VERSIONS: RangeInclusive<u32> = 11..=15;
/// Major versions with the metaspace of JEP 387.
pub const ELASTIC_VERSIONS: RangeInclusive<u32> = 16..=27;

/// Distance from `ClassLoaderData::_class_loader` to `_metaspace`, which its lock follows
/// (`classfile/classLoaderData.hpp`).
pub const METASPACE_AFTER_LOADER: u64 = 8;
/// `ClassLoaderMetaspace::_lock` (`memory/classLoaderMetaspace.hpp`).
pub const METASPACE_LOCK: u64 = 0;
/// `_lock` up to JDK 15, behind `_space_type` (`memory/metaspace.hpp`).
pub const OLD_METASPACE_LOCK: u64 = 8;
/// `ClassLoaderMetaspace::_non_class_space_arena` and `_class_space_arena`; `_vsm` and `_class_vsm`
/// up to JDK 15.
pub const METASPACE_ARENAS: [u64; 2] = [16, 24];
/// `MetaspaceArena::_chunks._first` (`memory/metaspace/metaspaceArena.hpp`).
pub const ARENA_CHUNKS: u64 = 24;
/// `MetaspaceArena::_total_used_words_counter`, behind the number of chunks and `_fbl`: the counter
/// for everything used in spaces of its kind.
pub const ARENA_COUNTER: u64 = 48;
/// `Metachunk::_base` (`memory/metaspace/metachunk.hpp`).
pub const CHUNK_BASE: usize = 0;
/// `Metachunk::_used_words`.
pub const CHUNK_USED_WORDS: usize = 8;
/// `Metachunk::_vsnode`.
pub const CHUNK_NODE: usize = 32;
/// `Metachunk::_next`.
pub const CHUNK_NEXT: usize = 48;
/// Bytes read of a `Metachunk`.
pub const CHUNK_BYTES: usize = 56;
/// Largest chunk, `chunklevel::MAX_CHUNK_BYTE_SIZE`: 4 MiB in JDK 16 to 21, 16 MiB later.
pub const MAX_CHUNK_BYTES: u64 = 16 << 20;
/// `VirtualSpaceNode::_next` (`memory/metaspace/virtualSpaceNode.hpp`).
pub const NODE_NEXT: u64 = 0;
/// `VirtualSpaceNode::_rs._base`.
pub const NODE_BASE: u64 = 8;
/// `VirtualSpaceNode::_rs._size`.
pub const NODE_SIZE: u64 = 16;
/// Bytes read of a node: they include its pointers to the counters of its list.
pub const NODE_BYTES: usize = 0x140;
/// `VirtualSpaceList::_first_node` (`memory/metaspace/virtualSpaceList.hpp`).
pub const LIST_FIRST: u64 = 8;
/// `VirtualSpaceList::_commit_limiter`.
pub const LIST_LIMITER: u64 = 24;
/// `VirtualSpaceList::_reserved_words_counter`.
pub const LIST_RESERVED: u64 = 32;
/// `VirtualSpaceList::_committed_words_counter`.
pub const LIST_COMMITTED: u64 = 40;
/// `SpaceManager::_chunk_list` (JDK 11 to 15, `memory/metaspace/spaceManager.hpp`).
pub const SPACE_CHUNKS: u64 = 16;
/// `SpaceManager::_used_words`.
pub const SPACE_USED_WORDS: u64 = 48;
/// `Metachunk::_word_size` (JDK 11 to 15, `memory/metaspace/metachunk.hpp`): size of the whole
/// chunk.
pub const OLD_CHUNK_WORDS: usize = 0;
/// `Metachunk::_next`.
pub const OLD_CHUNK_NEXT: usize = 8;
/// `Metachunk::_container`.
pub const OLD_CHUNK_NODE: usize = 24;
/// `Metachunk::_top`.
pub const OLD_CHUNK_TOP: usize = 32;
/// `Metachunk::_sentinel`.
pub const OLD_CHUNK_SENTINEL: usize = 40;
/// `Metachunk::CHUNK_SENTINEL`.
pub const SENTINEL: u32 = 0x4d45_54ef;
/// Bytes read of a `Metachunk`.
pub const OLD_CHUNK_BYTES: usize = 48;
/// `VirtualSpaceNode::_next` (JDK 11 to 15, `memory/metaspace/virtualSpaceNode.hpp`).
pub const OLD_NODE_NEXT: usize = 0;
/// `VirtualSpaceNode::_rs._base`.
pub const OLD_NODE_BASE: usize = 16;
/// `VirtualSpaceNode::_rs._size`.
pub const OLD_NODE_SIZE: usize = 24;
/// `VirtualSpaceNode::_virtual_space._low` and `._high` (`memory/virtualspace.hpp`).
pub const OLD_NODE_COMMITTED: [usize; 2] = [80, 88];
/// Bytes read of a `VirtualSpaceNode`.
pub const OLD_NODE_BYTES: usize = 96;
/// Distance from `ZPageAllocator::_max_capacity` to `_used`, which has no entry from JDK 25 on
/// (`gc/z/zPageAllocator.hpp`).
pub const Z_USED_AFTER_MAX_CAPACITY: u64 = 8;
/// Distance from `ZPageAllocator::_used` to `_used_generations` (JDK 21 to 27).
pub const Z_GENERATIONS_AFTER_USED: u64 = 8;
/// `ZValueStorage::offset`: distance between the values of two NUMA nodes
/// (`gc/z/zValue.inline.hpp`).
pub const Z_PER_NUMA_BYTES: u64 = 4096;

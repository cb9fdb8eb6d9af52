//! What is known of a CPython in a process, as data: the shape of `runtimes[].cpython` in `explain --json`.
//!
//! Sizes are bytes; unknown is `None`, never 0. Nothing here is of what objects hold: only sizes, counts, addresses and names
//! of types. Words are those of obmalloc.c: arena, pool, block, size class.

use serde::{Deserialize, Serialize};

/// A CPython.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CPython {
    /// Bytes of an arena, and of the pools that it is cut into; nothing where there is none.
    pub arena_bytes: Option<u64>,
    /// See `arena_bytes`.
    pub pool_bytes: Option<u64>,
    /// The heaps of a build without a global lock.
    #[serde(default)]
    pub heaps: Vec<Heap>,
    /// Pools in use by size class.
    pub size_classes: Vec<SizeClass>,
    /// Dead objects on free lists; nothing where objects were not looked at.
    pub free_lists: Option<Objects>,
    /// Interned strings.
    pub interned: Option<Objects>,
    /// Objects in blocks of an allocator's, beside the arenas.
    pub beside_arenas: Option<Objects>,
    /// Arenas that hardly anything keeps.
    pub sparse_arenas: Option<SparseArenas>,
    /// The collectors of interpreters, the main one's last; those that were found.
    #[serde(default)]
    pub collectors: Vec<Collector>,
}

/// An interpreter's collector, as `gc.isenabled`, `gc.get_threshold`, `gc.get_count` and `gc.get_stats` tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Collector {
    /// Whether it collects by itself.
    pub enabled: bool,
    /// Whether it is at it.
    pub collecting: bool,
    /// Its generations, the youngest first.
    pub generations: Vec<Generation>,
}

/// A generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Collected when `count` is more than this; 0 for never.
    pub threshold: u32,
    /// Objects since the last collection, or collections of the generation before.
    pub count: u32,
    /// How often it was collected.
    pub collections: u64,
    /// Objects that were garbage.
    pub collected_objects: u64,
    /// Garbage that could not be freed.
    pub uncollectable_objects: u64,
}

/// Heaps of one kind, of all threads, as `pycore_mimalloc.h` calls them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heap {
    /// `mem` (`PyMem_Malloc`), `object` (without the collector), `gc` (with it), `gc_pre` (with two words more in front).
    pub name: String,
    /// Pages.
    pub pages: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Their bytes.
    pub used_bytes: u64,
    /// Bytes of free blocks, and of what is not cut into blocks.
    pub free_bytes: u64,
}

/// Pools of one size class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Pools in use.
    pub pools: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Free ones.
    pub free_blocks: u64,
}

/// Some objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Arenas with fewer than ten objects in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SparseArenas {
    /// How many.
    pub arenas: u64,
    /// Blocks in use in them.
    pub blocks: u64,
    /// Of which types these are, most first.
    pub kept_by: Vec<KeptBy>,
}

/// Objects of a type, in arenas with hardly anything else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptBy {
    /// The type.
    pub name: String,
    /// How many.
    pub objects: u64,
}

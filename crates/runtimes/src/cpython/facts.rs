//! Facts about a CPython in a process, as data: the shape of `runtimes[].cpython` in `explain
//! --json`.
//!
//! Sizes are bytes. Unknown is `None`, never 0. Nothing here shows what objects contain: only
//! sizes, counts, addresses and names of types. The terms are those of obmalloc.c: arena, pool,
//! block, size class.

use serde::{Deserialize, Serialize};

/// A CPython.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CPython {
    /// Bytes of an arena; `None` if there are no arenas.
    pub arena_bytes: Option<u64>,
    /// Bytes of a pool; `None` if there are no arenas.
    pub pool_bytes: Option<u64>,
    /// The heaps of a build without a global lock.
    #[serde(default)]
    pub heaps: Vec<Heap>,
    /// Pools in use by size class.
    pub size_classes: Vec<SizeClass>,
    /// Dead objects on free lists; `None` if objects were not read.
    pub free_lists: Option<Objects>,
    /// Interned strings.
    pub interned: Option<Objects>,
    /// Objects in allocators' blocks, outside the arenas.
    pub beside_arenas: Option<Objects>,
    /// Arenas with only a few objects.
    pub sparse_arenas: Option<SparseArenas>,
    /// The collectors that were found, one per interpreter; that of the main interpreter is the
    /// last, if it was found.
    #[serde(default)]
    pub collectors: Vec<Collector>,
}

/// An interpreter's collector, as `gc.isenabled`, `gc.get_threshold`, `gc.get_count` and
/// `gc.get_stats` report it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Collector {
    /// Whether automatic collection is enabled.
    pub enabled: bool,
    /// Whether a collection is under way.
    pub collecting: bool,
    /// Its generations, the youngest first.
    pub generations: Vec<Generation>,
}

/// A generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The generation is collected when `count` exceeds this; 0 for never.
    pub threshold: u32,
    /// Objects since the last collection, or collections of the next younger generation.
    pub count: u32,
    /// Number of collections.
    pub collections: u64,
    /// Garbage objects found.
    pub collected_objects: u64,
    /// Garbage objects that could not be freed.
    pub uncollectable_objects: u64,
}

/// Heaps of one kind, of all threads, named as in `pycore_mimalloc.h`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heap {
    /// `mem` (`PyMem_Malloc`), `object` (objects without the collector), `gc` (with it), `gc_pre`
    /// (with it and two more words in front).
    pub name: String,
    /// Number of pages.
    pub pages: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Bytes of blocks in use.
    pub used_bytes: u64,
    /// Bytes of free blocks, and of memory not yet divided into blocks.
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
    /// Free blocks.
    pub free_blocks: u64,
}

/// A number of objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Objects {
    /// Counts an object.
    pub fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Arenas with fewer than ten blocks in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SparseArenas {
    /// Number of arenas.
    pub arenas: u64,
    /// Blocks in use in these arenas.
    pub blocks: u64,
    /// Types of the objects in these blocks, most frequent first, at most ten.
    pub kept_by: Vec<TypeInSparseArenas>,
}

/// Objects of one type in sparse arenas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeInSparseArenas {
    /// Name of the type.
    pub name: String,
    /// Number of objects.
    pub objects: u64,
}

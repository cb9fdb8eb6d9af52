//! What a census counts.

use std::collections::HashMap;

use super::facts::Objects;
use super::types::Type;
use strandline_claims::class::Slot;
use strandline_claims::runtime::{ObjectTypes, ReferenceHints};

/// An arena with fewer blocks in use than this, and so with fewer objects, counts as sparse.
pub const MIN_OBJECTS_NOT_SPARSE: u64 = 10;

/// Number in [`TypedObjects::objects`] of all types whose own number does not fit into 16 bits.
pub const UNNUMBERED_TYPE: u16 = u16::MAX;

/// Objects of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeCounts {
    /// Number of objects.
    pub instances: u64,
    /// Their bytes, as `sys.getsizeof` reports them.
    pub bytes: u64,
    /// Number of them in sparse arenas.
    pub in_sparse_arenas: u64,
}

impl TypeCounts {
    /// Adds the counts of other objects of the type.
    pub fn add(&mut self, other: &Self) {
        self.instances += other.instances;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.in_sparse_arenas += other.in_sparse_arenas;
    }
}

/// A type, and its objects.
#[derive(Clone, Copy, Debug)]
pub struct CountedType {
    pub object_type: Type,
    pub counts: TypeCounts,
}

/// A counted large object outside the arenas.
#[derive(Clone, Copy, Debug)]
pub struct LargeObject {
    /// Address of its block.
    pub start: u64,
    pub type_address: u64,
    /// Its bytes, as counted.
    pub bytes: u64,
}

/// A claimed block of an allocator.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedBlock {
    /// Address that the allocator returned.
    pub pointer: u64,
    /// Slot of the claim.
    pub slot: Slot,
    /// Address of the type of its object; the block is the object itself, its table, or memory that
    /// it points to.
    pub type_address: u64,
}

/// What a block in use holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// An object.
    Object {
        /// Bytes of the object, with its prefix.
        bytes: u64,
        /// Whether its words may be pointers.
        has_pointers: bool,
    },
    /// An object on a free list.
    FreeListed,
    /// Something else.
    Other,
}

/// The counts of one worker, or of several added up.
#[derive(Default)]
pub struct CensusResult {
    /// Types and their objects, by address of the type.
    pub types: HashMap<u64, CountedType>,
    /// Objects on free lists; bytes are those of their blocks.
    pub free_listed_objects: Objects,
    /// Objects outside the arenas.
    pub outside_objects: Objects,
    /// Interned strings.
    pub interned_objects: Objects,
    /// Number of sparse arenas.
    pub sparse_arenas: u64,
    /// Number of blocks in use in sparse arenas.
    pub sparse_arena_blocks: u64,
    /// Large objects outside the arenas.
    pub large_objects: Vec<LargeObject>,
    /// Allocators' blocks that belong to an object and are, or may be, large.
    pub claimed_blocks: Vec<ClaimedBlock>,
    /// Blocks and references for the search for holders, if requested.
    pub hints: Option<ReferenceHints>,
    /// The types of objects, for the same search.
    pub typed_objects: Vec<TypedObjects>,
    /// Whether a limit was reached: what came after it is missing.
    pub is_incomplete: bool,
}

impl CensusResult {
    /// Adds another worker's counts.
    pub fn add(&mut self, other: Self) {
        for (address, CountedType { object_type, counts }) in other.types {
            let new = CountedType { object_type, counts: TypeCounts::default() };
            self.types.entry(address).or_insert(new).counts.add(&counts);
        }
        for (total, added) in [
            (&mut self.outside_objects, other.outside_objects),
            (&mut self.free_listed_objects, other.free_listed_objects),
            (&mut self.interned_objects, other.interned_objects),
        ] {
            total.objects += added.objects;
            total.bytes = total.bytes.saturating_add(added.bytes);
        }
        self.sparse_arenas += other.sparse_arenas;
        self.sparse_arena_blocks += other.sparse_arena_blocks;
        self.large_objects.extend(other.large_objects);
        self.claimed_blocks.extend(other.claimed_blocks);
        if let Some(hints) = other.hints {
            self.hints.get_or_insert_default().add(hints);
        }
        self.typed_objects.extend(other.typed_objects);
        self.is_incomplete |= other.is_incomplete;
    }
}

/// Objects that one worker found, and their types.
#[derive(Default)]
pub struct TypedObjects {
    /// Address of the object's block and the worker's number of the type; see [`ObjectTypes`].
    pub objects: ObjectTypes,
    /// The worker's types, by number.
    pub types: Vec<Type>,
}

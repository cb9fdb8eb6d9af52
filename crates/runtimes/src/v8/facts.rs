//! Facts about a V8 in a process, as data: the shape of `runtimes[].v8` in `explain --json`.
//!
//! Sizes are bytes. Unknown is `None`, never 0.

use serde::{Deserialize, Serialize};
use strandline_claims::facts::TypeFacts;

/// V8's heaps in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct V8 {
    /// Number of isolates: one, and one more for each worker thread.
    pub isolates: u64,
    /// Resident bytes of pages that hold no object and are kept for reuse.
    pub pool_resident_bytes: u64,
    /// Resident bytes of the new space that hold no object.
    pub young_idle_resident_bytes: u64,
    /// Resident bytes of the read-only space, which V8's own statistics leave out.
    pub read_only_resident_bytes: u64,
    /// Number of objects, live or not yet collected; `None` if they were not counted.
    #[serde(default)]
    pub objects: Option<u64>,
    /// Objects to which globals, stacks and V8's own roots lead; `None` if objects were not traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<Counted>,
    /// Objects to which only a word in other memory leads, a handle or a stale word; `None` if
    /// objects were not traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<Counted>,
    /// Objects to which nothing leads, garbage that is not collected yet; `None` if objects were
    /// not traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage: Option<Amount>,
    /// Path from a root to an object of the requested type; `None` if none was requested or found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Path>,
    /// Why there is no path to an object of that type, though one lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_path: Option<String>,
    /// ArrayBuffers and Buffers of all isolates with a store in malloc's blocks: what
    /// `process.memoryUsage().arrayBuffers` counts, without SharedArrayBuffers; `None` if not
    /// known.
    #[serde(default)]
    pub buffers: Option<Amount>,
    /// Bytes that no live typed array or DataView shows, of those ArrayBuffers that one shows in
    /// part: the unused rest of the slabs of small Buffers; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unviewed_buffer_bytes: Option<u64>,
    /// ArrayBuffers whose store V8 maps: memories of WebAssembly, and resizable ones, without
    /// shared ones; `None` if not known.
    #[serde(default)]
    pub mapped_buffers: Option<Amount>,
    /// Stores of SharedArrayBuffers and of shared memories of WebAssembly, each once for all
    /// isolates; `None` if not known.
    #[serde(default)]
    pub shared_buffers: Option<Amount>,
    /// External strings, whose characters are outside the heap; only those that cache the address
    /// of their characters. `None` if not known.
    #[serde(default)]
    pub external_strings: Option<Amount>,
}

/// Objects by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The types with most bytes.
    pub types: Vec<TypeFacts>,
}

/// What keeps an object alive. Its root is `V8's contexts`, or where outside of the heap a pointer
/// is.
pub type Path = strandline_claims::facts::Path<Step>;

/// One object on a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its address.
    pub address: u64,
    /// Where it holds the next one: `.property`, `[element]`, the name of a variable, or the offset
    /// in an object of V8's own; `None` for the last one, or if it is not known or not shown.
    pub slot: Option<String>,
}

/// A number of objects and their bytes: in the heap, or outside of it, resident or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Number of objects.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    /// Adds more objects.
    pub fn add(&mut self, more: Self) {
        *self = self.plus(more);
    }

    /// Returns the sum of both.
    pub const fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// A space, summed over all isolates, with the names of `v8.getHeapSpaceStatistics()`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceFigures {
    /// `old_space`, `new_space`, …
    pub space_name: String,
    /// Committed bytes.
    pub space_size: u64,
    /// Bytes of objects, live or not yet collected; `None` if they cannot be determined.
    pub space_used_size: Option<u64>,
}

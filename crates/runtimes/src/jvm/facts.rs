//! Facts about a JVM in a process, as data: the shape of `runtimes[].jvm` in `explain --json`.
//!
//! Sizes are bytes of address space, resident or not. Unknown is `None`, never 0.

use serde::{Deserialize, Serialize};
use strandline_claims::facts::TypeFacts;

/// A Java virtual machine, HotSpot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Jvm {
    /// `-Xmx` in force.
    pub max_heap_bytes: Option<u64>,
    /// `MinHeapSize`, below which the heap does not shrink (`-Xms` sets it); `None` in JDK 11.
    pub min_heap_bytes: Option<u64>,
    /// Size of a region; `None` if the collector has no regions.
    pub region_bytes: Option<u64>,
    /// Parts of the heap, by kind.
    pub kinds: Vec<KindFigures>,
    /// Resident bytes of the heap; if it is mapped several times, the sum over all views.
    pub resident_bytes: u64,
    /// Resident bytes of free regions and free ends of spaces.
    pub free_resident_bytes: u64,
    /// Upper bound on the bytes of live objects; `None` if the heap was not traced.
    pub live_bytes: Option<u64>,
    /// Lower bound: bytes reachable from certain roots. Other objects are reachable only from words
    /// that may be references.
    #[serde(default)]
    pub live_at_least_bytes: Option<u64>,
    /// [`Jvm::live_bytes`] by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live_types: Vec<TypeFacts>,
    /// The largest class loaders that have loaded a class, and their bytes of metaspace and class
    /// space.
    pub class_loaders: Vec<ClassLoader>,
    /// Number of such class loaders; `None` if metaspace could not be read.
    pub class_loader_count: Option<u64>,
    /// Reserved range of the heap, start and end; `None` if it is shared memory in many places.
    pub heap_range: Option<(u64, u64)>,
    /// Number of mappings of the heap's memory: RSS counts each of them. `None` if it is 1.
    pub views: Option<u64>,
    /// Whether requests from outside are possible (`-XX:+DisableAttachMechanism` and `-Xrs` turn
    /// them off); `None` if a flag could not be read.
    pub attach: Option<bool>,
}

impl Jvm {
    /// Returns the bytes of objects that may or may not be live; `None` if that is a hundredth of
    /// the upper bound or less, or not known.
    pub fn uncertain_bytes(&self) -> Option<u64> {
        let (upper, lower) = self.live_bytes.zip(self.live_at_least_bytes)?;
        upper.checked_sub(lower).filter(|&uncertain| uncertain > upper / 100)
    }
}

/// The parts of the heap of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindFigures {
    /// `eden`, `survivor`, `old`, `humongous`, `archive`, `free`.
    pub kind: String,
    /// Number of parts.
    pub areas: u64,
    /// Their bytes, resident or not.
    pub bytes: u64,
    /// Bytes of objects in them.
    pub used_bytes: u64,
    /// Their resident bytes.
    pub resident_bytes: u64,
    /// Resident bytes behind their objects.
    pub free_resident_bytes: u64,
    /// Upper bound on the bytes of live objects in them; `None` if the heap was not traced.
    #[serde(default)]
    pub live_bytes: Option<u64>,
}

/// A class loader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassLoader {
    /// Name of its class, `bootstrap` for the first loader; `None` if it cannot be read.
    pub name: Option<String>,
    /// Bytes that its classes use.
    pub used_bytes: u64,
}

//! What is known of a JVM in a process, as data: the shape of `runtimes[].jvm` in `explain --json`.
//!
//! Sizes are bytes of address space, resident or not; unknown is `None`, never 0.

use serde::{Deserialize, Serialize};
use strandline_claims::facts::TypeFacts;

/// A HotSpot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Jvm {
    /// `-Xmx` in force.
    pub max_heap_bytes: Option<u64>,
    /// What it begins with and does not go below.
    pub min_heap_bytes: Option<u64>,
    /// The size of a region, where its collector has such.
    pub region_bytes: Option<u64>,
    /// The heap by what its parts are for.
    pub kinds: Vec<AreaKind>,
    /// Resident bytes of the heap; of one that is mapped several times those of all views.
    pub resident_bytes: u64,
    /// Resident bytes of free regions and free ends of spaces.
    pub free_resident_bytes: u64,
    /// Bytes of objects that something leads to, at most; where it was traced.
    pub live_bytes: Option<u64>,
    /// Of these what is held for certain: the others only by words that may be references.
    #[serde(default)]
    pub live_at_least_bytes: Option<u64>,
    /// [`Jvm::live_bytes`] by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live_types: Vec<TypeFacts>,
    /// Class loaders that have loaded something, and what they have of metaspace and class space together: largest first, some.
    pub class_loaders: Vec<ClassLoader>,
    /// How many there are.
    pub class_loader_count: u64,
    /// Where it is reserved, first byte and first byte behind; unknown where it is shared memory in many places.
    pub heap_range: Option<(u64, u64)>,
    /// How often the memory of its heap is mapped, where that is more than once: RSS counts it as often.
    pub views: Option<u64>,
    /// Whether it can be asked to do something from outside (`-XX:+DisableAttachMechanism`, `-Xrs`).
    pub attach: Option<bool>,
}

impl Jvm {
    /// Bytes of objects that may live or not, where they are more than a hundredth of what may live.
    pub fn doubtful_bytes(&self) -> Option<u64> {
        let (most, least) = self.live_bytes.zip(self.live_at_least_bytes)?;
        most.checked_sub(least).filter(|&doubtful| doubtful > most / 100)
    }
}

/// Parts of the heap of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AreaKind {
    /// `eden`, `survivor`, `old`, `humongous`, `archive`, `free`.
    pub kind: String,
    /// How many.
    pub areas: u64,
    /// Their bytes, committed or not.
    pub bytes: u64,
    /// What objects have of them.
    pub used_bytes: u64,
    /// What of them is resident.
    pub resident_bytes: u64,
    /// What is resident behind their objects.
    pub free_resident_bytes: u64,
    /// Bytes of objects in them that something leads to, at most; where the heap was traced.
    #[serde(default)]
    pub live_bytes: Option<u64>,
}

/// A class loader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassLoader {
    /// Its class; `bootstrap` for the first one.
    pub name: Option<String>,
    /// What its classes use.
    pub used_bytes: u64,
}

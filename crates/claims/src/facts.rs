//! What readers find of a process, as data: parts of `explain --json`.
//!
//! Field names are an interface that others rely on (`docs/schema.md`): fields may be added, never
//! renamed. Sizes are bytes, unknown is `None`, never 0.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Figures under the names that their owner gives them: an allocator's own statistics, a runtime's.
pub type Figures = serde_json::Map<String, serde_json::Value>;

/// Figures of which each is a number.
pub fn figures(figures: &[(&str, u64)]) -> Figures {
    figures.iter().map(|&(name, figure)| (name.to_owned(), figure.into())).collect()
}

/// Who holds a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stratum {
    /// The program's own live data.
    Values,
    /// The language runtime.
    Runtime,
    /// The garbage collector.
    Collector,
    /// malloc.
    Allocator,
    /// The kernel.
    Kernel,
    /// Code, static data and stacks.
    Program,
}

/// What can become of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// In use.
    Live,
    /// Resident, needed by nobody, and something can give it back.
    Stranded,
    /// Free, on a page that a live neighbour keeps.
    Pinned,
    /// The kernel drops it by itself under pressure.
    Evictable,
    /// Not known.
    Unattributed,
}

/// An allocator found in the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocator {
    /// `glibc`, `jemalloc`, `tcmalloc`, `mimalloc`, `musl`, …
    pub name: String,
    /// Its version, where it can be told.
    pub version: Option<String>,
    /// What gave it away: a mapped file, a symbol, a structure.
    pub found_by: String,
    /// Whether its structures were read; false means named only.
    pub read: bool,
    /// Bytes of blocks in use, as malloc_usable_size counts them; those in caches of threads or processors are not
    /// among them.
    #[serde(default)]
    pub live_bytes: Option<u64>,
    /// How many blocks are in use.
    #[serde(default)]
    pub live_blocks: Option<u64>,
    /// Bytes in caches of threads or processors.
    #[serde(default)]
    pub cached_bytes: Option<u64>,
    /// Bytes of free places that are in no cache.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Bytes of the allocator's own structures, the words in front of blocks among them.
    #[serde(default)]
    pub metadata_bytes: Option<u64>,
    /// The allocator's own statistics under its own names, computed from outside.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub own: Figures,
    /// Its arenas.
    pub arenas: Vec<Arena>,
    /// Its size classes in use, where it has such: smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub size_classes: Vec<SizeClass>,
    /// What the target's own `mallinfo2()` would say (glibc).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mallinfo: Option<Mallinfo>,
    /// Settings in force inside it, by name (glibc: `trim_threshold`, `top_pad`, …).
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub settings: std::collections::BTreeMap<String, u64>,
}

/// What an allocator has of blocks of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeClass {
    /// The bytes of a block, as malloc_usable_size has them.
    pub bytes: u64,
    /// How many slabs, spans, pages or groups hold such blocks.
    pub spans: u64,
    /// The bytes of those.
    pub span_bytes: u64,
    /// Blocks in use.
    pub live_blocks: u64,
    /// Blocks in caches of threads or processors.
    pub cached_blocks: u64,
    /// Free places that are in no cache.
    pub free_blocks: u64,
}

impl SizeClass {
    /// Adds more of the same size.
    pub fn add(&mut self, more: &Self) {
        self.bytes = more.bytes;
        self.spans += more.spans;
        self.span_bytes += more.span_bytes;
        self.live_blocks += more.live_blocks;
        self.cached_blocks += more.cached_blocks;
        self.free_blocks += more.free_blocks;
    }
}

/// Main or secondary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArenaKind {
    /// The arena on brk.
    #[default]
    Main,
    /// An arena on mmapped heaps.
    Secondary,
}

/// One arena of an allocator. Bytes are of address space unless their name says otherwise.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Arena {
    /// Its address, as text.
    pub id: String,
    /// Main or secondary.
    pub kind: ArenaKind,
    /// What it took from the kernel (glibc: system_mem).
    pub mapped_bytes: u64,
    /// In chunks that are in use (tcached chunks not included).
    pub used_bytes: u64,
    /// In free chunks: bins, fastbins and top (tcached chunks not included).
    pub free_bytes: u64,
    /// In chunks in threads' caches.
    pub tcache_bytes: u64,
    /// In fastbin chunks.
    pub fastbin_bytes: u64,
    /// In the top chunk.
    pub top_bytes: u64,
    /// Resident bytes that malloc_trim(0) gives back from this arena.
    pub trim_bytes: u64,
}

/// The figures of `mallinfo2()`, summed over arenas as glibc does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mallinfo {
    /// Bytes taken by arenas.
    pub arena: u64,
    /// Free chunks, top included.
    pub ordblks: u64,
    /// Fastbin chunks.
    pub smblks: u64,
    /// Mmapped chunks.
    pub hblks: u64,
    /// Bytes in mmapped chunks.
    pub hblkhd: u64,
    /// Bytes in fastbin chunks.
    pub fsmblks: u64,
    /// Bytes in use.
    pub uordblks: u64,
    /// Bytes free.
    pub fordblks: u64,
    /// Bytes in the main arena's top chunk.
    pub keepcost: u64,
}

/// A language runtime found in the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Runtime {
    /// `cpython`, `perl`, `go`, `jvm`, `v8`, …
    pub name: String,
    /// Its version, where it can be told.
    pub version: Option<String>,
    /// What gave it away.
    pub found_by: String,
    /// Whether its structures were read; false means named only.
    #[serde(default)]
    pub read: bool,
    /// Bytes of objects, live or not yet collected, in memory that the runtime manages.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Bytes of free places in that memory.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Bytes that the runtime holds for objects, used or not.
    #[serde(default)]
    pub committed_bytes: Option<u64>,
    /// What kinds of objects there are, those with most bytes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<TypeFacts>,
    /// Figures under the runtime's own names.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub own: Figures,
    /// What its reader tells besides, under the runtime's name: see [`Runtime::details`].
    #[serde(flatten)]
    pub details: Figures,
}

impl Runtime {
    /// What its reader tells under `name` (`perl`, `sbcl`), in the shape that the reader's `facts` define.
    pub fn details<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.details.get(name)?.clone()).ok()
    }

    /// A figure of its own, where it is a number.
    pub fn own_figure(&self, name: &str) -> Option<u64> {
        self.own.get(name)?.as_u64()
    }

    /// Tells `details` under `name`.
    pub fn set_details<T: Serialize>(&mut self, name: &str, details: &T) {
        if let Ok(value) = serde_json::to_value(details) {
            self.details.insert(name.to_owned(), value);
        }
    }
}

/// Objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeFacts {
    /// The type, by the runtime's name for it.
    pub name: String,
    /// How many objects.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What kind of thing a remedy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemedyKind {
    /// A call in the running process.
    #[default]
    Call,
    /// A setting for the next start.
    Setting,
    /// Another allocator.
    Allocator,
    /// A change of the program.
    Program,
}

/// Something that gives memory back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Remedy {
    /// `malloc_trim`, `zero_pages`, …
    pub id: String,
    /// What kind of thing it is.
    pub kind: RemedyKind,
    /// What it is predicted to give back; `None` where that cannot be told from outside.
    pub predicted_bytes: Option<u64>,
    /// What of that the machine gets back: pages that no other process has mapped. `None` where that was not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_pss_bytes: Option<u64>,
    /// What it would still give back after all remedies that stand before it; `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_after_better_bytes: Option<u64>,
    /// Why that is not known, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_because: Option<String>,
    /// How to apply it: a command or a setting, ready to paste.
    pub how: String,
    /// What it costs.
    pub cost: String,
}

impl Remedy {
    /// A call, made by `strandline reclaim`.
    pub fn call(id: &str, predicted_bytes: u64, how: String, cost: &str) -> Self {
        Self {
            id: id.to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes: Some(predicted_bytes),
            how,
            cost: cost.to_owned(),
            ..Self::default()
        }
    }

    /// A setting for the next start, of which it is not known what it would change.
    pub fn setting(id: &str, how: &str, cost: &str) -> Self {
        Self {
            id: id.to_owned(),
            kind: RemedyKind::Setting,
            unknown_because: Some("it acts on what the program allocates from its next start on".to_owned()),
            how: how.to_owned(),
            cost: cost.to_owned(),
            ..Self::default()
        }
    }

    /// With what it would change: what the process as it is would not hold under it.
    pub fn predicting(self, bytes: u64) -> Self {
        Self { predicted_bytes: Some(bytes), unknown_because: None, ..self }
    }

    /// Without a prediction, for a reason of its own.
    pub fn unknown_because(self, reason: &str) -> Self {
        Self { predicted_bytes: None, unknown_because: Some(reason.to_owned()), ..self }
    }
}

//! What readers find in a process, as data: parts of `explain --json`.
//!
//! Field names are an interface that others rely on (`docs/schema.md`): fields may be added, never
//! renamed. Sizes are bytes, unknown is `None`, never 0.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Steps of a path that are reported from each of its ends.
const MAX_PATH_END: usize = 32;

/// Figures under their owner's names: an allocator's own statistics, or a runtime's.
pub type Figures = serde_json::Map<String, serde_json::Value>;

/// Makes [`Figures`] of numbers.
pub fn figures(figures: &[(&str, u64)]) -> Figures {
    figures.iter().map(|&(name, figure)| (name.to_owned(), figure.into())).collect()
}

/// The kind of holder of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
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

/// What can happen to a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// In use.
    Live,
    /// Resident, not needed, and something can release it.
    Stranded,
    /// Free, on a page with live data.
    Pinned,
    /// The kernel drops it by itself under memory pressure.
    Evictable,
    /// Not known.
    Unattributed,
}

/// One row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the row: `glibc.free.trim`. `docs/accounting.md` defines each. If parts of a row
    /// have named holders, there are several rows of the same name.
    pub id: String,
    /// Kind of the holder.
    pub stratum: HolderKind,
    /// What can happen to the bytes.
    pub state: State,
    /// The holder, for a person: `malloc, free chunks that malloc_trim releases`.
    pub holder: String,
    /// Number of bytes.
    pub bytes: u64,
}

/// An allocator found in the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocator {
    /// `glibc`, `jemalloc`, `tcmalloc`, `mimalloc`, `musl`, …
    pub name: String,
    /// Its version, if known.
    pub version: Option<String>,
    /// What it was recognised by: a mapped file, a symbol, a structure.
    pub found_by: String,
    /// Whether its structures were read; false means named only.
    pub read: bool,
    /// Bytes of blocks in use, as malloc_usable_size counts them, without blocks in caches of
    /// threads or processors.
    #[serde(default)]
    pub live_bytes: Option<u64>,
    /// Number of blocks in use.
    #[serde(default)]
    pub live_blocks: Option<u64>,
    /// Bytes in caches of threads or processors.
    #[serde(default)]
    pub cached_bytes: Option<u64>,
    /// Bytes of free slots that are in no cache.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Bytes of the allocator's own structures, block headers included.
    #[serde(default)]
    pub metadata_bytes: Option<u64>,
    /// The allocator's own statistics under its own names, computed from outside.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub own: Figures,
    /// Its arenas.
    pub arenas: Vec<Arena>,
    /// Its size classes in use, smallest first; empty for allocators without size classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub size_classes: Vec<SizeClass>,
    /// What the target's own `mallinfo2()` would return (glibc).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mallinfo: Option<Mallinfo>,
    /// Settings in force inside it, by name (glibc: `trim_threshold`, `top_pad`, …).
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub settings: std::collections::BTreeMap<String, u64>,
}

/// Blocks of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Bytes of a block, as malloc_usable_size returns them.
    pub bytes: u64,
    /// Number of slabs, spans, pages or groups that hold such blocks.
    pub spans: u64,
    /// Bytes of those spans.
    pub span_bytes: u64,
    /// Blocks in use.
    pub live_blocks: u64,
    /// Blocks in caches of threads or processors.
    pub cached_blocks: u64,
    /// Free slots that are in no cache.
    pub free_blocks: u64,
}

impl SizeClass {
    /// Adds more blocks of the same size.
    pub fn add(&mut self, more: &Self) {
        self.bytes = more.bytes;
        crate::add_fields!(self, more: spans, span_bytes, live_blocks, cached_blocks, free_blocks);
    }
}

/// Main or secondary arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArenaKind {
    /// The arena on brk.
    #[default]
    Main,
    /// An arena on mmapped heaps.
    Secondary,
}

/// One arena of an allocator. Sizes are of address space, except `trim_bytes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Arena {
    /// Its address, as text.
    pub id: String,
    /// Main or secondary.
    pub kind: ArenaKind,
    /// Bytes taken from the kernel (glibc: system_mem).
    pub mapped_bytes: u64,
    /// In chunks that are in use (tcached chunks not included).
    pub used_bytes: u64,
    /// In free chunks: bins, fastbins and top (tcached chunks not included).
    pub free_bytes: u64,
    /// In chunks in threads' caches; `None` for other allocators than glibc.
    pub tcache_bytes: Option<u64>,
    /// In fastbin chunks; `None` for other allocators than glibc.
    pub fastbin_bytes: Option<u64>,
    /// In the top chunk; `None` for other allocators than glibc.
    pub top_bytes: Option<u64>,
    /// Resident bytes that malloc_trim(0) releases from this arena; `None` for other allocators
    /// than glibc.
    pub trim_bytes: Option<u64>,
}

/// The figures of `mallinfo2()`, summed over arenas as glibc does (`int_mallinfo` in
/// malloc/malloc.c), without `usmblks`, which is always 0.
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
    /// Its version, if known.
    pub version: Option<String>,
    /// What it was recognised by.
    pub found_by: String,
    /// Whether its structures were read; false means named only.
    #[serde(default)]
    pub read: bool,
    /// Bytes of objects, live or not yet collected, in memory that the runtime manages.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Bytes of free slots in that memory.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Bytes that the runtime holds for objects, used or not.
    #[serde(default)]
    pub committed_bytes: Option<u64>,
    /// Object types, largest in bytes first; last [`OTHER_TYPES`], if the list is limited.
    #[serde(default)]
    pub types: Vec<TypeFacts>,
    /// Figures under the runtime's own names.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub own: Figures,
    /// What its reader adds under the runtime's name: see [`Runtime::details`].
    #[serde(flatten)]
    pub details: Figures,
}

impl Runtime {
    /// What its reader added under `name` (`perl`, `sbcl`), in the shape that the reader's `facts`
    /// define; `None` if there is nothing, or of another shape (from another version).
    pub fn details<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.details.get(name)?.clone()).ok()
    }

    /// One of its own figures; `None` if it is missing or not a number.
    pub fn own_figure(&self, name: &str) -> Option<u64> {
        self.own.get(name)?.as_u64()
    }

    /// Stores `details` under `name`.
    pub fn set_details<T: Serialize>(&mut self, name: &str, details: &T) {
        // Only maps with other keys than strings have no JSON; the readers' facts have none.
        if let Ok(value) = serde_json::to_value(details) {
            self.details.insert(name.to_owned(), value);
        }
    }
}

/// Objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeFacts {
    /// The runtime's name for the type.
    pub name: String,
    /// Number of objects.
    pub instances: u64,
    /// Bytes of the objects.
    pub bytes: u64,
}

/// Name of the entry that has the objects of the types beyond the limit of a list.
pub const OTHER_TYPES: &str = "objects of other types";

/// Replaces the types after the first `max_types` by one entry with their sum, [`OTHER_TYPES`].
pub fn sum_other_types(types: &mut Vec<TypeFacts>, max_types: usize) {
    let other_types = types.split_off(max_types.min(types.len()));
    if other_types.is_empty() {
        return;
    }
    let mut sum = TypeFacts { name: OTHER_TYPES.to_owned(), ..TypeFacts::default() };
    for facts in other_types {
        sum.instances = sum.instances.saturating_add(facts.instances);
        sum.bytes = sum.bytes.saturating_add(facts.bytes);
    }
    types.push(sum);
}

/// What keeps an object alive: a short path from a root to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path<Step> {
    /// The root, in the words of the runtime.
    pub root: String,
    /// From the object that the root holds to the requested one.
    pub steps: Vec<Step>,
    /// Number of steps that were left out in the middle of a long path.
    pub left_out: u64,
}

impl<Step> Path<Step> {
    /// Makes a path of `count` objects; `step` describes those at both ends. Objects for which it
    /// returns `None` are left out too.
    pub fn new(root: String, count: usize, step: impl FnMut(usize) -> Option<Step>) -> Self {
        let shown = (0..count).filter(|number| Self::is_shown(*number, count));
        let steps: Vec<Step> = shown.filter_map(step).collect();
        Self { root, left_out: (count - steps.len()) as u64, steps }
    }

    /// Whether a path of `count` objects has a step for the object with this number.
    pub fn is_shown(number: usize, count: usize) -> bool {
        number < MAX_PATH_END || number.saturating_add(MAX_PATH_END) >= count
    }

    /// Number of steps that were left out before the step `index`; `None` if none was.
    pub fn gap(&self, index: usize) -> Option<u64> {
        (self.left_out > 0 && index == self.steps.len() / 2).then_some(self.left_out)
    }
}

/// The kind of a remedy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemedyKind {
    /// A call in the running process.
    #[default]
    Call,
    /// A setting for the next start.
    Setting,
    /// Another allocator for the next start.
    Allocator,
    /// A change of the program: advice only.
    Program,
}

/// Something that releases memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Remedy {
    /// `malloc_trim`, `zero_pages`, …
    pub id: String,
    /// Kind of remedy.
    pub kind: RemedyKind,
    /// Bytes that it is predicted to release; `None` if that cannot be predicted from outside.
    pub predicted_bytes: Option<u64>,
    /// Of those, bytes that the machine gets back: pages that no other process has mapped. `None`
    /// if not determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_pss_bytes: Option<u64>,
    /// Bytes that it would still release after all remedies listed before it; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_after_better_bytes: Option<u64>,
    /// Lower bound of the bytes that it releases, where no figure can be predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_least_bytes: Option<u64>,
    /// Why the prediction is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_because: Option<String>,
    /// How to apply it: a command or a setting, ready to paste.
    pub how: String,
    /// What it needs that is missing here: without it, it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// What it costs.
    pub cost: String,
}

impl Remedy {
    /// A call that `strandline reclaim` makes in process `pid`.
    pub fn call(id: &str, predicted_bytes: Option<u64>, pid: i32, cost: &str) -> Self {
        Self {
            id: id.to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes,
            how: format!("strandline reclaim {pid} --remedy {id}"),
            cost: cost.to_owned(),
            ..Self::default()
        }
    }

    /// A change of the program, which strandline never makes: advice only.
    pub fn advice(id: &str, predicted_bytes: Option<u64>, how: &str, cost: &str) -> Self {
        Self {
            id: id.to_owned(),
            kind: RemedyKind::Program,
            predicted_bytes,
            how: how.to_owned(),
            cost: cost.to_owned(),
            ..Self::default()
        }
    }

    /// A setting for the next start, whose effect is unknown.
    pub fn setting(id: &str, how: &str, cost: &str) -> Self {
        Self {
            id: id.to_owned(),
            kind: RemedyKind::Setting,
            unknown_because: Some("takes effect at the next start of the program".to_owned()),
            how: how.to_owned(),
            cost: cost.to_owned(),
            ..Self::default()
        }
    }

    /// Adds a prediction: the bytes that the process in its present state would not hold under the
    /// setting.
    pub fn predicting(self, bytes: u64) -> Self {
        Self { predicted_bytes: Some(bytes), unknown_because: None, ..self }
    }

    /// Whether it is a call that `reclaim` always refuses: the reason is in place of the command.
    pub fn is_impossible(&self) -> bool {
        self.unknown_because.as_ref() == Some(&self.how)
    }

    /// Removes the prediction and gives a specific reason.
    pub fn unknown_because(self, reason: &str) -> Self {
        Self { predicted_bytes: None, unknown_because: Some(reason.to_owned()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_beyond_the_limit_are_one_entry() {
        let facts = |name: &str, instances, bytes| TypeFacts { name: name.to_owned(), instances, bytes };
        let mut types = vec![facts("a", 1, 30), facts("b", 4, 20), facts("c", 2, u64::MAX)];
        sum_other_types(&mut types, 3);
        assert_eq!(types.len(), 3);
        sum_other_types(&mut types, 1);
        assert_eq!(types, [facts("a", 1, 30), facts(OTHER_TYPES, 6, u64::MAX)]);
    }
}

//! Figures of an SBCL: the `sbcl` member of a runtime in `explain --json`.
//!
//! Sizes are in bytes; an unknown figure is `null`, never 0. The bytes of a generation are counted
//! as SBCL counts them (bytes used of pages, resident or not), so that the figures can be compared
//! with `sb-kernel:dynamic-usage`, `(room)` and `sb-ext:generation-…`; resident bytes are in the
//! ledger.

use serde::{Deserialize, Serialize};
use strandline_claims::facts::Runtime;

/// The figures of one SBCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sbcl {
    /// Bytes in use of dynamic space: what `(sb-kernel:dynamic-usage)` returns.
    pub dynamic_usage_bytes: u64,
    /// The size of dynamic space: what `(sb-ext:dynamic-space-size)` returns.
    pub dynamic_space_bytes: u64,
    /// Bytes of one page of the garbage collector (called a "GC card" before 2.2.1).
    pub gc_page_bytes: u64,
    /// Bytes allocated from regions that are still open. SBCL counts them once a region is closed,
    /// so that no figure of usage includes them.
    pub open_region_bytes: u64,
    /// What `(sb-ext:bytes-consed-between-gcs)` returns, the size of the nursery; `None` if it
    /// cannot be read.
    pub bytes_consed_between_gcs: Option<u64>,
    /// The dynamic usage at which the next collection starts; `None` if none is set, or it cannot
    /// be read.
    pub auto_gc_trigger_bytes: Option<u64>,
    /// The generations in order: 0 to 5, the pseudo-static one, and the one that is only used
    /// within a collection.
    pub generations: Vec<Generation>,
    /// The spaces that the runtime keeps objects in, by address.
    pub spaces: Vec<Space>,
    /// Resident bytes of free pages of dynamic space; `None` if dynamic space was not claimed.
    pub free_resident_bytes: Option<u64>,
    /// Resident bytes of pages in use behind their used part, and if objects were traced, of
    /// fillers; `None` if dynamic space was not claimed.
    pub waste_resident_bytes: Option<u64>,
    /// Whether objects were traced from the roots; if not, live and dead bytes are unknown.
    pub traced: bool,
    /// Duration of the trace, which runs after the process is resumed; `None` if nothing was
    /// traced.
    pub trace_seconds: Option<f64>,
    /// Bytes of dynamic space that are reachable from the roots, including those of pseudo-static
    /// pages.
    pub live_bytes: Option<u64>,
    /// Bytes of dynamic space that are not reachable: what `(gc :full t)` is predicted to free.
    pub dead_bytes: Option<u64>,
    /// The predicted dynamic usage after `(gc :full t)`.
    pub usage_after_full_gc_bytes: Option<u64>,
    /// Bytes of whole resident pages that `(gc :full t)` is predicted to release to the kernel.
    pub full_gc_gives_back_bytes: Option<u64>,
    /// The types that make up most of the dead bytes, largest first.
    pub dead_by_type: Vec<TypeBytes>,
    /// The types that make up most of the live bytes, largest first, without what came with the
    /// core (pseudo-static).
    pub live_by_type: Vec<TypeBytes>,
    /// Path from a root to an object of the requested type; `None` if none was requested, or none
    /// is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Path>,
    /// Why there is no path to an object of that type, though one lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_path: Option<String>,
    /// Number of names of types in which characters that no identifier has were replaced, or that
    /// are left out.
    pub names_replaced: u64,
}

impl Sbcl {
    /// Writes these figures into the facts of the runtime, with the figures that all runtimes
    /// report. The committed bytes are those of the collector's pages in use.
    pub(super) fn write_to(&self, facts: &mut Runtime) {
        let committed_bytes =
            self.generations.iter().map(|generation| generation.pages).sum::<u64>() * self.gc_page_bytes;
        facts.used_bytes = Some(self.dynamic_usage_bytes);
        facts.committed_bytes = Some(committed_bytes);
        facts.free_bytes = Some(committed_bytes.saturating_sub(self.dynamic_usage_bytes));
        let own_figures = [
            ("dynamic-usage", Some(self.dynamic_usage_bytes)),
            ("dynamic-space-size", Some(self.dynamic_space_bytes)),
            ("bytes-consed-between-gcs", self.bytes_consed_between_gcs),
        ];
        facts.own = own_figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect();
        facts.set_details(super::ABOUT.name, self);
    }
}

/// One generation of the collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number: 0 is the nursery, 6 pseudo-static.
    pub number: u64,
    /// Whether it is the pseudo-static one, which is never collected.
    pub is_pseudo_static: bool,
    /// Bytes in use, summed over its pages: what `(room)` counts.
    pub bytes_allocated: u64,
    /// The same, as the collector stores it (`generations[n].bytes_allocated`).
    pub bytes_allocated_kept: u64,
    /// Number of its pages.
    pub pages: u64,
    /// Unused bytes of its pages.
    pub waste_bytes: u64,
    /// Bytes in use of its pages of large objects; each has its own pages.
    pub large_bytes: u64,
    /// Number of these pages.
    pub large_pages: u64,
    /// Bytes in use of its pages of compiled code.
    pub code_bytes: u64,
    /// Bytes in use of its pages of objects without pointers.
    pub unboxed_bytes: u64,
    /// How often it was collected since the last promotion to the next: `num_gc`.
    pub collections: u64,
    /// Number of collections after which its objects are promoted:
    /// `(generation-number-of-gcs-before-promotion n)`.
    pub collections_before_promotion: u64,
    /// Sum of its sizes before each promotion into it since its last collection:
    /// `cum_sum_bytes_allocated`.
    pub cum_sum_bytes: u64,
    /// `cum_sum_bytes` divided by `bytes_allocated_kept`: `(generation-average-age n)`.
    pub average_age: f64,
    /// The average age from which it is collected: `(generation-minimum-age-before-gc n)`; `None`
    /// if it is not finite, which is damage and which JSON does not have.
    pub minimum_age: Option<f64>,
    /// The size from which it is collected: `gc_trigger`.
    pub trigger_bytes: u64,
    /// `(generation-bytes-consed-between-gcs n)`.
    pub bytes_consed_between_gcs: u64,
    /// What must happen before it is collected: `a promotion from generation 1; average age 0.00 of
    /// 0.75; 2.0 MiB more`, `the next collection`, `never`.
    pub waits_for: String,
    /// Bytes that must still be allocated (for generation 0) or promoted to it before it is
    /// collected; `None` if its collection waits for anything else.
    pub bytes_until_collected: Option<u64>,
    /// Bytes reachable from the roots; `None` if nothing was traced.
    pub live_bytes: Option<u64>,
    /// Bytes that are not reachable; `None` if nothing was traced.
    pub dead_bytes: Option<u64>,
    /// Bytes of fillers, which are not objects: the unused memory between objects that a
    /// conservative root pinned, and at the ends of regions. The collector counts them as in use;
    /// they stay as long as their page. `None` if nothing was traced.
    pub filler_bytes: Option<u64>,
}

/// A range of addresses that holds objects of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// `dynamic`, `read_only`, `static`, `immobile_fixed`, `immobile_text`, `permanent`.
    pub name: String,
    /// First byte.
    pub start: u64,
    /// Bytes of it in use.
    pub bytes: u64,
    /// Resident bytes of it, except those of file pages.
    pub resident_bytes: u64,
}

/// Objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeBytes {
    /// Name of the structure or class without its package (`MESSAGE`), or the kind of object in
    /// lower case: `cons`, `simple-vector`, `simple-base-string`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether `type_name` is the name of a structure or class of the program.
    pub is_named: bool,
    /// Number of objects.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The generation that holds most of these bytes.
    pub generation: u64,
    /// The generations with objects of this type.
    pub by_generation: Vec<GenerationCount>,
}

/// Objects of one type in one generation; in JSON, an array of the three numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
pub struct GenerationCount {
    /// Number of the generation.
    pub generation: u64,
    /// Number of objects.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl From<[u64; 3]> for GenerationCount {
    fn from([generation, instances, bytes]: [u64; 3]) -> Self {
        Self { generation, instances, bytes }
    }
}

impl From<GenerationCount> for [u64; 3] {
    fn from(count: GenerationCount) -> Self {
        [count.generation, count.instances, count.bytes]
    }
}

/// What keeps an object alive. Its root is, for example, `thread 4711's control stack`, `static
/// space`, or `an object that came with the core (pseudo-static)`.
pub type Path = strandline_claims::facts::Path<Step>;

/// One object on a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its type, as in [`TypeBytes`].
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its address.
    pub address: u64,
    /// Its generation; `None` if it is not in dynamic space.
    pub generation: Option<u64>,
    /// Index of its word that points to the next object; `None` for the last one, and if a pair of
    /// a weak table holds the next one.
    pub word: Option<u64>,
}

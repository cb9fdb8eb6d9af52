//! What is told of an SBCL: the `sbcl` member of a runtime in `explain --json`.
//!
//! Sizes are bytes; what is not known is `null`, never 0. Every byte of a generation is counted as SBCL
//! counts it (bytes used of pages, resident or not), so that the figures can be held against
//! `sb-kernel:dynamic-usage`, `(room)` and `sb-ext:generation-…`; what is resident stands in the ledger.

use serde::{Deserialize, Serialize};
use strandline_claims::facts::Runtime;

/// The figures of one SBCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sbcl {
    /// The bytes in use of dynamic space: what `(sb-kernel:dynamic-usage)` returns.
    pub dynamic_usage_bytes: u64,
    /// The size of dynamic space: what `(sb-ext:dynamic-space-size)` returns.
    pub dynamic_space_bytes: u64,
    /// Bytes of one page of the garbage collector (a "GC card" before 2.2.6).
    pub gc_page_bytes: u64,
    /// Bytes handed out from regions that threads still allocate from: SBCL counts them once a region is closed,
    /// so they are in no other figure.
    pub open_region_bytes: u64,
    /// What `(sb-ext:bytes-consed-between-gcs)` returns: the nursery.
    pub bytes_consed_between_gcs: Option<u64>,
    /// The dynamic usage at which the next collection starts; `None` where none is set.
    pub auto_gc_trigger_bytes: Option<u64>,
    /// The generations, 0 first: 0 to 5, the pseudo-static one, and last that which is only used within a
    /// collection.
    pub generations: Vec<Generation>,
    /// The spaces that the runtime keeps objects in, by address.
    pub spaces: Vec<Space>,
    /// Resident bytes of dynamic space's pages that hold nothing.
    pub free_resident_bytes: u64,
    /// Resident bytes of pages in use, behind their used part; fillers where objects were traced.
    pub waste_resident_bytes: u64,
    /// Whether objects were traced from the roots: else what is live and dead is not known.
    pub traced: bool,
    /// What the trace took, once the process was let go.
    pub trace_seconds: Option<f64>,
    /// Bytes of dynamic space reached from the roots, those of pseudo-static pages included.
    pub live_bytes: Option<u64>,
    /// Bytes of dynamic space that nothing reaches: what `(gc :full t)` is predicted to free.
    pub dead_bytes: Option<u64>,
    /// The dynamic usage after `(gc :full t)`, as predicted.
    pub usage_after_full_gc_bytes: Option<u64>,
    /// Whole resident pages that `(gc :full t)` is predicted to give back to the kernel.
    pub full_gc_gives_back_bytes: Option<u64>,
    /// The types that make up most of the dead bytes, largest first.
    pub dead_by_type: Vec<TypeBytes>,
    /// The types that make up most of the live bytes, largest first; what came with the core (pseudo-static) is left
    /// out.
    pub live_by_type: Vec<TypeBytes>,
    /// From a root to an object of the type that was asked for; `None` where none was, or none is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Path>,
    /// Names of types that had characters replaced because no identifier has them, or that are not told at all.
    pub names_replaced: u64,
}

impl Sbcl {
    /// Puts these figures into what is told of the runtime, and of them what all runtimes tell. Its memory for objects is
    /// dynamic space: committed are the collector's pages in use.
    pub(super) fn put(&self, facts: &mut Runtime) {
        let committed: u64 = self.generations.iter().map(|one| one.pages).sum::<u64>() * self.gc_page_bytes;
        facts.used_bytes = Some(self.dynamic_usage_bytes);
        facts.committed_bytes = Some(committed);
        facts.free_bytes = Some(committed.saturating_sub(self.dynamic_usage_bytes));
        let own = [
            ("dynamic-usage", Some(self.dynamic_usage_bytes)),
            ("dynamic-space-size", Some(self.dynamic_space_bytes)),
            ("bytes-consed-between-gcs", self.bytes_consed_between_gcs),
        ];
        facts.own = own.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect();
        facts.set_details(super::ABOUT.name, self);
    }
}

/// One generation of the collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number: 0 is the nursery, 6 pseudo-static.
    pub number: u64,
    /// Whether it is the pseudo-static one, which no collection looks at.
    pub is_pseudo_static: bool,
    /// Bytes in use, by the pages: what `(room)` counts.
    pub bytes_allocated: u64,
    /// The same, as the collector itself keeps it (`generations[n].bytes_allocated`).
    pub bytes_allocated_kept: u64,
    /// Its pages.
    pub pages: u64,
    /// Bytes of its pages that are not in use.
    pub waste_bytes: u64,
    /// Bytes in use of its pages that hold large objects, one object in as many pages as it needs.
    pub large_bytes: u64,
    /// Those pages.
    pub large_pages: u64,
    /// Bytes in use of its pages of compiled code.
    pub code_bytes: u64,
    /// Bytes in use of its pages of objects without pointers.
    pub unboxed_bytes: u64,
    /// How often it was collected since it was last raised into the next: `num_gc`.
    pub collections: u64,
    /// After how many it is raised: `(generation-number-of-gcs-before-promotion n)`.
    pub collections_before_promotion: u64,
    /// Since its last collection, its whole size before each raise into it, added up:
    /// `cum_sum_bytes_allocated`.
    pub cum_sum_bytes: u64,
    /// `cum_sum_bytes` by `bytes_allocated_kept`: `(generation-average-age n)`.
    pub average_age: f64,
    /// The average age from which it is collected: `(generation-minimum-age-before-gc n)`.
    pub minimum_age: f64,
    /// The bytes from which it is collected: `gc_trigger`.
    pub trigger_bytes: u64,
    /// `(generation-bytes-consed-between-gcs n)`.
    pub bytes_consed_between_gcs: u64,
    /// What has to be before a collection takes it: `a raise of generation 1; average age 0.00 of 0.75; 2.0 MiB
    /// more`, `the next collection`, `never`.
    pub waits_for: String,
    /// How many bytes have yet to be allocated (for generation 0) or to come into it before a collection takes it;
    /// `None` where it waits for anything else besides.
    pub bytes_until_collected: Option<u64>,
    /// Bytes reached from the roots; `None` where nothing was traced.
    pub live_bytes: Option<u64>,
    /// Bytes that nothing reaches.
    pub dead_bytes: Option<u64>,
    /// Bytes of fillers, which are no objects: the unused room beside those that a conservative root kept where
    /// they are, and at the ends of regions. They are in use by the collector's count, and stay as long as their page.
    pub filler_bytes: Option<u64>,
}

/// A range of addresses that the runtime keeps objects in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// `dynamic`, `read_only`, `static`, `immobile_fixed`, `immobile_text`.
    pub name: String,
    /// First byte.
    pub start: u64,
    /// How many bytes of it are in use.
    pub bytes: u64,
    /// How many are resident, those of file pages not included.
    pub resident_bytes: u64,
}

/// Objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeBytes {
    /// The structure's or class's name without its package (`MESSAGE`), or in lower case what kind of
    /// object it is: `cons`, `simple-vector`, `simple-base-string`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether `type_name` is the name of a structure or class of the program.
    pub is_named: bool,
    /// How many.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The generation that most of those bytes are in.
    pub generation: u64,
    /// By generation: number, instances, bytes.
    pub by_generation: Vec<(u64, u64, u64)>,
}

/// What keeps an object: the way from a root to it, a short one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Where it starts: `thread 0's control stack`, `static space`, `an object that came with the core
    /// (pseudo-static)`.
    pub root: String,
    /// From the object that the root holds to the one asked for.
    pub steps: Vec<Step>,
    /// How many steps in between were left out: a long list is told by its ends.
    pub left_out: u64,
}

/// One object on a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it is, as in [`TypeBytes`].
    #[serde(rename = "type")]
    pub type_name: String,
    /// Where.
    pub address: u64,
    /// Its generation; `None` for what is not in dynamic space.
    pub generation: Option<u64>,
    /// Which of its words points to the next object; `None` for the last one, and where a weak table's pair does.
    pub word: Option<u64>,
}

//! What is known of a Go runtime in a process, as data: the shape of `runtimes[].go` in `explain --json`.
//!
//! Sizes are bytes of address space, resident or not; unknown is `None`, never 0.

use serde::{Deserialize, Serialize};

/// A Go runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Go {
    /// Spans of objects by size of these, those with most free bytes first; a large object has a span of its own, of 0.
    pub size_classes: Vec<SizeClass>,
    /// Idle spans that are resident, as long as they were not given back.
    pub idle_resident_bytes: u64,
    /// What the last mark found alive.
    pub live_after_last_mark_bytes: Option<u64>,
    /// At how many bytes of heap the next collection is to end, where GOGC alone decides that.
    pub next_gc_bytes: Option<u64>,
    /// `GOGC` in force; -1 for off.
    pub gogc_percent: Option<i64>,
    /// `GOMEMLIMIT` in force, where there is one.
    pub memory_limit_bytes: Option<u64>,
}

/// Spans of objects of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Bytes of an object; 0 for large ones.
    pub object_bytes: u64,
    /// Spans.
    pub spans: u64,
    /// Their bytes.
    pub span_bytes: u64,
    /// Objects in them.
    pub objects: u64,
    /// Free places.
    pub free_places: u64,
}

//! Facts about a Go runtime in a process, as data: the shape of `runtimes[].go` in `explain
//! --json`.
//!
//! Sizes are bytes of address space, resident or not. Unknown is `None`, never 0.

use serde::{Deserialize, Serialize};

/// A Go runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Go {
    /// Spans of objects by object size, most free bytes first, at most 256 sizes. Spans with room
    /// for one object count as one size, 0.
    pub size_classes: Vec<SizeClass>,
    /// Resident bytes of idle spans that were not released; `None` unless all spans and their
    /// bitmaps could be read.
    pub idle_resident_bytes: Option<u64>,
    /// Bytes that the last mark found live.
    pub live_after_last_mark_bytes: Option<u64>,
    /// Heap bytes at which the next collection is to end; `None` if it is not known, if `GOGC` is
    /// off, or if there is a memory limit, which may end it earlier.
    pub next_gc_bytes: Option<u64>,
    /// `GOGC` in force; -1 for off.
    pub gogc_percent: Option<i64>,
    /// `GOMEMLIMIT` in force; `None` if there is no limit. If `gogc_percent` is `None`, neither is
    /// known.
    pub memory_limit_bytes: Option<u64>,
}

/// Spans of objects of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Bytes of an object; 0 for spans with room for one object.
    pub object_bytes: u64,
    /// Number of spans.
    pub spans: u64,
    /// Bytes of these spans.
    pub span_bytes: u64,
    /// Objects in these spans.
    pub objects: u64,
    /// Free slots in these spans.
    pub free_places: u64,
}

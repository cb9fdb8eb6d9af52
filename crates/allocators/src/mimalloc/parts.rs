//! What mimalloc's memory is divided into, whichever way its releases keep their books.

use std::collections::HashMap;

use super::layout::PageWords;
use super::spans::Scheduled;
use strandline_claims::doubts::Doubts;

/// A part of mimalloc's memory.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// What it is.
    pub kind: Kind,
    /// What goes back to the kernel only as a whole: the segment that it is in, the page of 3.x; 0 for none.
    pub whole: u64,
    /// The thread that it belongs to, by its FS base; 0 for none.
    pub thread: u64,
}

/// What a part is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// mimalloc's own structures.
    Own,
    /// In no page.
    Free,
    /// In no page, and given back with the next purge: of its thread, where it is in a segment.
    Waiting,
    /// A page.
    Page(PageWords),
}

/// What a collection by one thread gives back, beside segments of that thread in which nothing is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collect {
    /// Each of that thread's pages in which nothing is live.
    pub pages: bool,
    /// What ended threads left, where the main thread collects.
    pub ended: bool,
    /// What waits in arenas.
    pub arenas: Arenas,
    /// What of spans of slices.
    pub spans: Spans,
}

/// When free spans of segments that others' pages are in are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spans {
    /// There are none: each page is given back for itself.
    #[default]
    None,
    /// Never, but of segments that ended threads left.
    Kept,
    /// With the first page that is freed in their segment, where they are due.
    WhenDue,
    /// Each time that the collection comes to a page of their segment.
    AtVisits,
}

/// Whose collection gives back what waits in arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arenas {
    /// Nobody's.
    #[default]
    ByNone,
    /// The main thread's.
    ByMain,
    /// Any thread's.
    ByAny,
}

/// One mimalloc, in parts.
#[derive(Default)]
pub struct Heap {
    /// An address of the program or library that it is in.
    pub object: u64,
    /// What that is called.
    pub name: String,
    /// The releases that lay it out so.
    pub releases: &'static str,
    /// Its parts, in address order, without overlap.
    pub parts: Vec<Part>,
    /// Segments, or arenas and what was taken beside them.
    pub segments: u64,
    /// Where heaps keep the list of blocks that other threads freed, if they do.
    pub delayed_free: Option<u64>,
    /// How the first block of a page is found where the page does not say: one of `OFFSETS`.
    pub has_offsets: bool,
    /// What a collection gives back.
    pub collect: Collect,
    /// Whether what threads have for themselves is taken from the kernel.
    pub has_thread_data: bool,
    /// When it was read, by the clock that its times are of.
    pub now: u64,
    /// What segments say of their free slices, by where they begin.
    pub scheduled: HashMap<u64, Scheduled>,
    /// Whether it is one of a build whose structures are others.
    pub is_encoded: bool,
    /// Arenas that are purged in runs of slices only.
    pub in_runs: Vec<Purged>,
    /// Structures that made no sense, and where the time was over.
    pub doubts: Doubts,
    /// Target memory read.
    pub bytes_read: u64,
}

/// An arena of which whole runs of slices are purged, where each of the run is marked; and of these, those that are free.
pub struct Purged {
    /// Its first byte.
    pub start: u64,
    /// Its first byte behind.
    pub end: u64,
    /// Its marks, a bit a slice. Those of slices that are in use again stay.
    pub marks: Vec<u8>,
}

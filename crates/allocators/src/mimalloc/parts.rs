//! What mimalloc's memory is divided into, whichever way its releases keep their books.

use super::layout::PageWords;
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
    /// In no segment or page, and given back with the next purge.
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
    /// Arenas that are purged in runs of slices only, all of which have to be free.
    pub in_runs: Vec<(u64, u64)>,
    /// Structures that made no sense, and where the time was over.
    pub doubts: Doubts,
    /// Target memory read.
    pub bytes_read: u64,
}

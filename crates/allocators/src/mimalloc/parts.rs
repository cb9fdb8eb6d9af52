//! The parts of mimalloc's memory, common to all releases.

use std::collections::HashMap;

use super::layout::PageWords;
use super::spans::PurgeSchedule;
use strandline_claims::doubts::ReadProblems;
use strandline_process::range::AddressRange;

/// A part of mimalloc's memory.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its kind.
    pub kind: PartKind,
    /// Address of the unit with which it is released to the kernel, if it belongs to one: its
    /// segment, or its page in 3.x.
    pub release_unit: Option<u64>,
    /// FS base of the thread that it belongs to, if it belongs to one.
    pub thread: Option<u64>,
}

impl Part {
    /// Returns the page, if it is one.
    pub fn page(&self) -> Option<PageWords> {
        match self.kind {
            PartKind::Page(page) => Some(page),
            PartKind::Own | PartKind::Free | PartKind::PurgePending => None,
        }
    }

    /// Whether it is free, in no page.
    pub fn is_free(&self) -> bool {
        matches!(self.kind, PartKind::Free | PartKind::PurgePending)
    }

    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// Kind of a part.
#[derive(Clone, Copy, Debug)]
pub enum PartKind {
    /// mimalloc's own structures.
    Own,
    /// Free, in no page.
    Free,
    /// Free, in no page, and released with the next purge, or with the next purge of its thread if
    /// it is in a segment.
    PurgePending,
    /// A page.
    Page(PageWords),
}

/// What a collection by one thread releases, besides segments of that thread with nothing live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectRules {
    /// Every page of that thread with nothing live.
    pub frees_pages: bool,
    /// What ended threads left, if the main thread collects.
    pub frees_ended: bool,
    /// Which threads' collections release memory that waits in arenas.
    pub arena_purge: ArenaPurge,
    /// When free spans of slices are released.
    pub span_purge: SpanPurge,
}

/// When a collection releases free spans of segments that still contain pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanPurge {
    /// There are no spans: each page is released by itself.
    #[default]
    None,
    /// Never, except in segments that ended threads left.
    Kept,
    /// With the first page that is freed in their segment, if they are due.
    WhenDue,
    /// Whenever the collection visits a page of their segment.
    AtVisits,
}

/// Which threads' collections release memory that waits in arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArenaPurge {
    /// No thread's.
    #[default]
    Never,
    /// The main thread's.
    MainThread,
    /// Any thread's.
    AnyThread,
}

/// A thread that makes a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectingThread {
    /// Its FS base.
    pub fs_base: u64,
    /// Whether it is the main thread, which also collects what ended threads left.
    pub is_main: bool,
}

/// Minimum bytes of the structure that begins with a thread's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadDataBytes {
    /// In the first releases with a layout.
    pub earlier: u64,
    /// In later releases with that layout, whose heaps are larger
    /// ([`LATER_HEAP_BYTES`](super::segment_layout::LATER_HEAP_BYTES)), if there are any.
    pub later: Option<u64>,
}

/// One mimalloc, divided into parts.
#[derive(Default)]
pub struct Heap {
    /// An address in the program or library that contains it.
    pub object: u64,
    /// Name of that program or library.
    pub name: String,
    /// Releases with this layout.
    pub releases: &'static str,
    /// Its parts, in address order, without overlap.
    pub parts: Vec<Part>,
    /// Number of its segments; of its arenas in 3.x.
    pub segment_count: u64,
    /// Offset in a heap of the list of blocks that other threads freed, if there is one.
    pub delayed_free: Option<u64>,
    /// Whether the offset of the first block of a page comes from one of
    /// `FIRST_BLOCK_OFFSETS`, because the page does not store it.
    pub has_offsets: bool,
    /// What a collection releases.
    pub collect_rules: CollectRules,
    /// Minimum bytes of the structure that begins with a thread's heap; `None` if no such structure
    /// is taken from the kernel.
    pub thread_data: Option<ThreadDataBytes>,
    /// When it was read, by mimalloc's clock.
    pub read_at_milliseconds: u64,
    /// State of the free slices of segments, by the start of the segment.
    pub purge_schedules: HashMap<u64, PurgeSchedule>,
    /// Whether its build has other structures than a standard release.
    pub is_encoded: bool,
    /// Arenas that are purged in runs of slices only, in address order.
    pub run_purged_arenas: Vec<RunPurgedArena>,
    /// Further mimallocs, which are not read, if there are any.
    pub unread_heaps: Option<UnreadHeaps>,
    /// Its segments that are not read, if there are any.
    pub unread_segments: Option<UnreadSegments>,
    /// Invalid structures, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Segments that are not read, because a real process hardly has that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadSegments {
    /// Start of the first one.
    pub first: u64,
    /// Resident bytes of all of them; `None` if there was no time to find all.
    pub resident_bytes: Option<u64>,
}

/// Mimallocs that are not read, because a real process does not have that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadHeaps {
    /// Their number.
    pub count: usize,
    /// Start of the first of their segments.
    pub first_segment: u64,
    /// Resident bytes of their segments; `None` if there was no time to find all.
    pub resident_bytes: Option<u64>,
}

/// An arena that purges only runs of slices that are marked throughout; of these, the free slices.
pub struct RunPurgedArena {
    /// Its addresses.
    pub range: AddressRange,
    /// Number of slices in a run.
    pub slices_per_run: u64,
    /// Its marks, one bit per slice. A slice that is in use again keeps its mark.
    pub marks: Vec<u8>,
}

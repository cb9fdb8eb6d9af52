//! The ledger rows of Google's tcmalloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Objects and spans in use.
pub static LIVE: RowKind =
    RowKind::of_allocator("google_tcmalloc.live", State::Live, "Google's tcmalloc, allocations in use");
/// Unused ends of spans.
pub static PADDING: RowKind = RowKind::of_allocator(
    "google_tcmalloc.padding",
    State::Live,
    "Google's tcmalloc, what is left over at the ends of spans",
);
/// tcmalloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("google_tcmalloc.metadata", State::Live, "Google's tcmalloc, its own structures");
/// Objects in per-CPU, thread and transfer caches.
pub static CACHED: RowKind = RowKind::of_allocator(
    "google_tcmalloc.cached",
    State::Stranded,
    "Google's tcmalloc, free objects in caches of processors, threads and transfer",
);
/// Free pages of the page heap.
pub static FREE_PURGE: RowKind = RowKind::of_allocator(
    "google_tcmalloc.free.purge",
    State::Stranded,
    "Google's tcmalloc, free pages of the page heap, which a release can give back",
);
/// Free bytes on pages that a release leaves.
pub static FREE_KEPT: RowKind = RowKind::of_allocator(
    "google_tcmalloc.free.kept",
    State::Stranded,
    "Google's tcmalloc, free pages within spans in use",
);
/// Free objects on pages with something live.
pub static FREE_PINNED: RowKind = RowKind::of_allocator(
    "google_tcmalloc.free.pinned",
    State::Pinned,
    "Google's tcmalloc, free objects of spans (central lists) on pages with live ones",
);
/// Invalid structures.
pub static UNREAD: RowKind = RowKind::of_allocator(
    "google_tcmalloc.unread",
    State::Unattributed,
    "Google's tcmalloc, damaged or caught in motion",
);

/// All rows.
pub static ROWS: [RowRef; 8] =
    [&LIVE, &PADDING, &METADATA, &CACHED, &FREE_PURGE, &FREE_KEPT, &FREE_PINNED, &UNREAD];

/// The row of each class of claims.
pub static BLOCKS: BlockRows = BlockRows {
    live: &LIVE,
    header: &PADDING,
    metadata: &METADATA,
    cached: &CACHED,
    trimmable: &FREE_PURGE,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &LIVE,
    unread: &UNREAD,
};

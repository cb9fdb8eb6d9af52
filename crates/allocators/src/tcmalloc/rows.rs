//! The ledger rows of tcmalloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Objects and spans in use.
pub static LIVE: RowKind =
    RowKind::of_allocator("tcmalloc.live", State::Live, "tcmalloc, allocations in use");
/// Unused ends of spans.
pub static PADDING: RowKind = RowKind::of_allocator(
    "tcmalloc.padding",
    State::Live,
    "tcmalloc, what is left over at the ends of spans",
);
/// tcmalloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("tcmalloc.metadata", State::Live, "tcmalloc, its own structures");
/// Objects in thread caches and transfer caches.
pub static CACHED: RowKind = RowKind::of_allocator(
    "tcmalloc.cached",
    State::Stranded,
    "tcmalloc, free objects in threads' caches and transfer caches",
);
/// Free spans.
pub static FREE_PURGE: RowKind = RowKind::of_allocator(
    "tcmalloc.free.purge",
    State::Stranded,
    "tcmalloc, free spans of the page heap, which a release gives back",
);
/// Free bytes on pages that a release leaves.
pub static FREE_KEPT: RowKind =
    RowKind::of_allocator("tcmalloc.free.kept", State::Stranded, "tcmalloc, free pages within spans in use");
/// Free objects on pages with something live.
pub static FREE_PINNED: RowKind = RowKind::of_allocator(
    "tcmalloc.free.pinned",
    State::Pinned,
    "tcmalloc, free objects of spans (central cache) on pages with live ones",
);
/// Invalid spans.
pub static UNREAD: RowKind =
    RowKind::of_allocator("tcmalloc.unread", State::Unattributed, "tcmalloc, damaged or caught in motion");

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

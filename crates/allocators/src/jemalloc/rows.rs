//! The ledger rows of jemalloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Allocations in use.
pub static LIVE: RowKind =
    RowKind::of_allocator("jemalloc.live", State::Live, "jemalloc, allocations in use");
/// The page by which large allocations are offset, and the unused end of a slab.
pub static PADDING: RowKind =
    RowKind::of_allocator("jemalloc.padding", State::Live, "jemalloc, padding of extents in use");
/// jemalloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("jemalloc.metadata", State::Live, "jemalloc, its own structures");
/// Allocations in thread caches.
pub static CACHED: RowKind =
    RowKind::of_allocator("jemalloc.cached", State::Stranded, "jemalloc, free places in threads' caches");
/// Dirty and muzzy extents.
pub static FREE_PURGE: RowKind = RowKind::of_allocator(
    "jemalloc.free.purge",
    State::Stranded,
    "jemalloc, free pages (dirty, muzzy) that a purge gives back",
);
/// Free bytes on pages that a purge leaves.
pub static FREE_KEPT: RowKind =
    RowKind::of_allocator("jemalloc.free.kept", State::Stranded, "jemalloc, free pages that a purge leaves");
/// Free regions on pages of slabs with something live.
pub static FREE_PINNED: RowKind = RowKind::of_allocator(
    "jemalloc.free.pinned",
    State::Pinned,
    "jemalloc, free places of slabs on pages with live ones",
);
/// Invalid extents.
pub static UNREAD: RowKind =
    RowKind::of_allocator("jemalloc.unread", State::Unattributed, "jemalloc, damaged or caught in motion");

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

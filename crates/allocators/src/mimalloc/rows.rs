//! The ledger rows of mimalloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Blocks in use.
pub static LIVE: RowKind = RowKind::of_allocator("mimalloc.live", State::Live, "mimalloc, blocks in use");
/// Bytes before the first block of a page.
pub static PADDING: RowKind = RowKind::of_allocator(
    "mimalloc.padding",
    State::Live,
    "mimalloc, what is left out at the begin of pages",
);
/// mimalloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("mimalloc.metadata", State::Live, "mimalloc, its own structures");
/// Blocks that other threads freed.
pub static CACHED: RowKind = RowKind::of_allocator(
    "mimalloc.cached",
    State::Stranded,
    "mimalloc, blocks that other threads freed and their own thread has not taken back yet",
);
/// Free pages that a collection gives back.
pub static FREE_PURGE: RowKind = RowKind::of_allocator(
    "mimalloc.free.purge",
    State::Stranded,
    "mimalloc, free pages that a collection gives back",
);
/// Free pages that a collection leaves.
pub static FREE_KEPT: RowKind = RowKind::of_allocator(
    "mimalloc.free.kept",
    State::Stranded,
    "mimalloc, free pages that a collection leaves",
);
/// Free blocks on pages with something live.
pub static FREE_PINNED: RowKind = RowKind::of_allocator(
    "mimalloc.free.pinned",
    State::Pinned,
    "mimalloc, free blocks on pages with live ones",
);
/// Invalid pages.
pub static UNREAD: RowKind =
    RowKind::of_allocator("mimalloc.unread", State::Unattributed, "mimalloc, damaged or caught in motion");

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

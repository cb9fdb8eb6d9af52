//! The ledger rows of glibc's malloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Chunks in use.
pub static LIVE: RowKind = RowKind::of_allocator("glibc.live", State::Live, "malloc, chunks in use");
/// The size word of each chunk in use.
pub static HEADER: RowKind =
    RowKind::of_allocator("glibc.header", State::Live, "malloc, size words of chunks in use");
/// malloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("glibc.metadata", State::Live, "malloc, its own structures");
/// Chunks in thread caches.
pub static TCACHE: RowKind =
    RowKind::of_allocator("glibc.tcache", State::Stranded, "malloc, free chunks in threads' caches");
/// Free bytes that malloc_trim(0) gives back.
pub static FREE_TRIM: RowKind = RowKind::of_allocator(
    "glibc.free.trim",
    State::Stranded,
    "malloc, free pages that malloc_trim gives back",
);
/// Free bytes on free pages that malloc_trim(0) leaves.
pub static FREE_KEPT: RowKind =
    RowKind::of_allocator("glibc.free.kept", State::Stranded, "malloc, free pages that malloc_trim leaves");
/// Free bytes on pages with live bytes.
pub static FREE_PINNED: RowKind =
    RowKind::of_allocator("glibc.free.pinned", State::Pinned, "malloc, free bytes on pages with live ones");
/// Chunks with their own mapping.
pub static MMAPPED: RowKind =
    RowKind::of_allocator("glibc.mmapped", State::Live, "malloc, chunks with a mapping of their own");
/// Part of an arena, but invalid.
pub static UNREAD: RowKind =
    RowKind::of_allocator("glibc.unread", State::Unattributed, "malloc, damaged or caught in motion");

/// All rows.
pub static ROWS: [RowRef; 9] =
    [&LIVE, &HEADER, &METADATA, &TCACHE, &FREE_TRIM, &FREE_KEPT, &FREE_PINNED, &MMAPPED, &UNREAD];

/// The row of each class of claims.
pub static BLOCKS: BlockRows = BlockRows {
    live: &LIVE,
    header: &HEADER,
    metadata: &METADATA,
    cached: &TCACHE,
    trimmable: &FREE_TRIM,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &MMAPPED,
    unread: &UNREAD,
};

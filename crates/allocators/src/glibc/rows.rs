//! The ledger rows of glibc's malloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Chunks in use.
pub static LIVE: RowKind = RowKind::of_allocator("glibc.live", State::Live, "chunks in use");
/// The size word of each chunk in use.
pub static HEADER: RowKind =
    RowKind::of_allocator("glibc.header", State::Live, "size words of chunks in use");
/// malloc's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("glibc.metadata", State::Live, "the allocator's own structures");
/// Chunks in thread caches.
pub static TCACHE: RowKind =
    RowKind::of_allocator("glibc.tcache", State::Stranded, "free chunks in thread caches");
/// Free bytes that malloc_trim(0) releases.
pub static FREE_TRIM: RowKind =
    RowKind::of_allocator("glibc.free.trim", State::Stranded, "free pages malloc_trim releases");
/// Free bytes on free pages that malloc_trim(0) leaves.
pub static FREE_KEPT: RowKind =
    RowKind::of_allocator("glibc.free.kept", State::Stranded, "free pages malloc_trim keeps");
/// Free bytes on pages with live bytes.
pub static FREE_PINNED: RowKind =
    RowKind::of_allocator("glibc.free.pinned", State::Pinned, "free bytes beside live ones");
/// Chunks with their own mapping.
pub static MMAPPED: RowKind =
    RowKind::of_allocator("glibc.mmapped", State::Live, "chunks with their own mapping");
/// Part of an arena, but invalid.
pub static UNREAD: RowKind =
    RowKind::of_allocator("glibc.unread", State::Unattributed, "damaged, or read during a change");

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

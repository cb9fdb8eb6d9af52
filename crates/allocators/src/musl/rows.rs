//! The ledger rows of musl's malloc.

use strandline_claims::facts::State;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Bytes that the program requested, of slots in use.
pub static LIVE: RowKind = RowKind::of_allocator("musl.live", State::Live, "blocks in use");
/// Headers of chunks, and the rest of slots in use.
pub static PADDING: RowKind =
    RowKind::of_allocator("musl.padding", State::Live, "headers and unused ends of slots in use");
/// musl's own structures.
pub static METADATA: RowKind =
    RowKind::of_allocator("musl.metadata", State::Live, "the allocator's own structures");
/// Free slots on pages without anything live.
pub static FREE_KEPT: RowKind =
    RowKind::of_allocator("musl.free.kept", State::Stranded, "free pages inside groups in use");
/// Free slots on pages with something live.
pub static FREE_PINNED: RowKind =
    RowKind::of_allocator("musl.free.pinned", State::Pinned, "free slots beside live ones");
/// Invalid groups and chunks.
pub static UNREAD: RowKind =
    RowKind::of_allocator("musl.unread", State::Unattributed, "damaged, or read during a change");

/// All rows.
pub static ROWS: [RowRef; 6] = [&LIVE, &PADDING, &METADATA, &FREE_KEPT, &FREE_PINNED, &UNREAD];

/// The row of each class of claims. musl has no caches, and no call that releases memory: a group
/// is freed with its last slot.
pub static BLOCKS: BlockRows = BlockRows {
    live: &LIVE,
    header: &PADDING,
    metadata: &METADATA,
    cached: &FREE_KEPT,
    trimmable: &FREE_KEPT,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &LIVE,
    unread: &UNREAD,
};

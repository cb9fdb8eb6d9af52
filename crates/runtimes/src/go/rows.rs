//! The ledger rows of Go.

use strandline_claims::facts::{HolderKind, State};
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

/// Objects.
pub static OBJECT: RowKind = RowKind::new(
    "go.object",
    HolderKind::Values,
    State::Live,
    "Go, objects, those among them that no collection has swept yet",
);
/// Stacks and the collector's working memory.
pub static STACK: RowKind = RowKind::new(
    "go.stack",
    HolderKind::Runtime,
    State::Live,
    "Go, stacks of goroutines, and what the collector works with",
);
/// The runtime's own structures.
pub static METADATA: RowKind =
    RowKind::new("go.metadata", HolderKind::Runtime, State::Live, "Go, the runtime's own structures");
/// Idle spans.
pub static FREE_PURGE: RowKind = RowKind::new(
    "go.free.purge",
    HolderKind::Runtime,
    State::Stranded,
    "Go, idle spans that it has not given back",
);
/// Free slots on pages without a live object.
pub static FREE_KEPT: RowKind =
    RowKind::new("go.free.kept", HolderKind::Runtime, State::Stranded, "Go, free pages within spans in use");
/// Free slots on pages with a live object.
pub static FREE_PINNED: RowKind = RowKind::new(
    "go.free.pinned",
    HolderKind::Runtime,
    State::Pinned,
    "Go, free places of spans on pages with objects",
);
/// Spans that make no sense.
pub static UNREAD: RowKind = RowKind::new(
    "go.unread",
    HolderKind::Runtime,
    State::Unattributed,
    "Go, spans that are damaged or were caught in motion",
);

/// All rows of Go.
pub static ROWS: [RowRef; 7] = [&OBJECT, &STACK, &METADATA, &FREE_PURGE, &FREE_KEPT, &FREE_PINNED, &UNREAD];

/// The row of each class of its claims.
pub static BLOCKS: BlockRows = BlockRows {
    live: &OBJECT,
    header: &METADATA,
    metadata: &METADATA,
    cached: &FREE_KEPT,
    trimmable: &FREE_PURGE,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &OBJECT,
    unread: &UNREAD,
};

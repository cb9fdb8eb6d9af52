//! The ledger rows of CPython.

use strandline_claims::facts::{HolderKind, State};
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{RowKind, RowRef};

const fn row(id: &'static str, stratum: HolderKind, state: State, holder: &'static str) -> RowKind {
    RowKind::new(id, stratum, state, holder)
}

/// Objects, in arenas and in malloc's blocks.
pub static OBJECT: RowKind = row("cpython.object", HolderKind::Values, State::Live, "CPython, objects");
/// Tables of lists, dicts, sets and deques.
pub static TABLE: RowKind =
    row("cpython.table", HolderKind::Values, State::Live, "CPython, tables of lists, dicts, sets and deques");
/// Data of objects in malloc's blocks.
pub static BUFFER: RowKind = row(
    "cpython.buffer",
    HolderKind::Values,
    State::Live,
    "CPython, data of arrays, of buffers of files and of ctypes",
);
/// Blocks in arenas that hold no object.
pub static BLOCK: RowKind = row(
    "cpython.block",
    HolderKind::Runtime,
    State::Live,
    "CPython, blocks in arenas that are no objects: small tables, what code in C keeps",
);
/// Objects on free lists.
pub static FREE_LIST: RowKind =
    row("cpython.free_list", HolderKind::Runtime, State::Stranded, "CPython, dead objects on its free lists");
/// Pool headers.
pub static POOL_HEADER: RowKind =
    row("cpython.pool_header", HolderKind::Runtime, State::Live, "CPython, heads of pools");
/// Free pools and pages.
pub static FREE_KEPT: RowKind = row(
    "cpython.free.kept",
    HolderKind::Runtime,
    State::Stranded,
    "CPython, free pools and pages of arenas in use",
);
/// Free blocks on pages with a live block.
pub static FREE_PINNED: RowKind = row(
    "cpython.free.pinned",
    HolderKind::Runtime,
    State::Pinned,
    "CPython, free blocks of pools on pages with live ones",
);
/// Pools that make no sense.
pub static UNREAD: RowKind = row(
    "cpython.unread",
    HolderKind::Runtime,
    State::Unattributed,
    "CPython, pools that are damaged or were caught in motion",
);

/// All rows of CPython.
pub static ROWS: [RowRef; 9] =
    [&OBJECT, &TABLE, &BUFFER, &BLOCK, &FREE_LIST, &POOL_HEADER, &FREE_KEPT, &FREE_PINNED, &UNREAD];

/// The row of each class of its claims on arenas.
pub static BLOCKS: BlockRows = BlockRows {
    live: &BLOCK,
    header: &POOL_HEADER,
    metadata: &POOL_HEADER,
    cached: &FREE_LIST,
    trimmable: &FREE_KEPT,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &BLOCK,
    unread: &UNREAD,
};

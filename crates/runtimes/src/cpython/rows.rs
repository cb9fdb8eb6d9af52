//! The ledger rows of CPython.

use strandline_claims::palette::BlockRows;

strandline_claims::row_table! { ROWS:
    OBJECT = ("cpython.object", Values, Live, "objects"),
    TABLE = ("cpython.table", Values, Live, "tables of lists, dicts, sets and deques"),
    BUFFER = ("cpython.buffer", Values, Live, "data of arrays, file buffers and ctypes"),
    BLOCK = ("cpython.block", Runtime, Live, "arena blocks without object"),
    FREE_LIST = ("cpython.free_list", Runtime, Stranded, "dead objects on free lists"),
    POOL_HEADER = ("cpython.pool_header", Runtime, Live, "pool headers"),
    FREE_KEPT = ("cpython.free.kept", Runtime, Stranded, "free pools and pages of arenas"),
    FREE_PINNED = ("cpython.free.pinned", Runtime, Pinned, "free blocks beside live ones"),
    UNREAD = ("cpython.unread", Runtime, Unattributed, "pools damaged or changed while read"),
}

/// The row of each class that CPython claims parts of its arenas for.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: BLOCK, header: POOL_HEADER, metadata: POOL_HEADER, cached: FREE_LIST, releasable: FREE_KEPT,
    kept: FREE_KEPT, pinned: FREE_PINNED, mapped: BLOCK, unread: UNREAD,
};

//! The ledger rows of Go.

use strandline_claims::palette::BlockRows;

strandline_claims::row_table! { ROWS:
    OBJECT = ("go.object", Values, Live, "objects, including dead ones not yet swept"),
    STACK = ("go.stack", Runtime, Live, "goroutine stacks and collector buffers"),
    METADATA = ("go.metadata", Runtime, Live, "the runtime's own structures"),
    FREE_PURGE = ("go.free.purge", Runtime, Stranded, "idle spans not yet released"),
    FREE_KEPT = ("go.free.kept", Runtime, Stranded, "free pages within spans in use"),
    FREE_PINNED = ("go.free.pinned", Runtime, Pinned, "free slots beside live objects"),
    UNREAD = ("go.unread", Runtime, Unattributed, "spans damaged or changed while read"),
}

/// The row of each class of its claims.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: OBJECT, header: METADATA, metadata: METADATA, cached: FREE_KEPT, releasable: FREE_PURGE,
    kept: FREE_KEPT, pinned: FREE_PINNED, mapped: OBJECT, unread: UNREAD,
};

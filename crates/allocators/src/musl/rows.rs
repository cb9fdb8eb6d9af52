//! The ledger rows of musl's malloc.

use strandline_claims::palette::BlockRows;

strandline_claims::row_table! { ROWS:
    // The bytes that the program requested.
    LIVE = ("musl.live", Allocator, Live, "blocks in use"),
    PADDING = ("musl.padding", Allocator, Live, "headers and unused ends of slots in use"),
    METADATA = ("musl.metadata", Allocator, Live, "the allocator's own structures"),
    FREE_KEPT = ("musl.free.kept", Allocator, Stranded, "free pages inside groups in use"),
    FREE_PINNED = ("musl.free.pinned", Allocator, Pinned, "free slots beside live ones"),
    UNREAD = ("musl.unread", Allocator, Unattributed, "damaged, or read during a change"),
}

/// The row of each class of claims. musl has no caches, and no call that releases memory: a group
/// is freed with its last slot.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: LIVE, header: PADDING, metadata: METADATA, cached: FREE_KEPT, releasable: FREE_KEPT,
    kept: FREE_KEPT, pinned: FREE_PINNED, mapped: LIVE, unread: UNREAD,
};

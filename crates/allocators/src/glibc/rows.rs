//! The ledger rows of glibc's malloc.

use strandline_claims::palette::BlockRows;

strandline_claims::row_table! { ROWS:
    LIVE = ("glibc.live", Allocator, Live, "chunks in use"),
    HEADER = ("glibc.header", Allocator, Live, "size words of chunks in use"),
    METADATA = ("glibc.metadata", Allocator, Live, "the allocator's own structures"),
    TCACHE = ("glibc.tcache", Allocator, Stranded, "free chunks in thread caches"),
    FREE_TRIM = ("glibc.free.trim", Allocator, Stranded, "free pages malloc_trim releases"),
    FREE_KEPT = ("glibc.free.kept", Allocator, Stranded, "free pages malloc_trim keeps"),
    FREE_PINNED = ("glibc.free.pinned", Allocator, Pinned, "free bytes beside live ones"),
    MMAPPED = ("glibc.mmapped", Allocator, Live, "chunks with their own mapping"),
    UNREAD = ("glibc.unread", Allocator, Unattributed, "damaged, or read during a change"),
}

/// The row of each class of claims.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: LIVE, header: HEADER, metadata: METADATA, cached: TCACHE, releasable: FREE_TRIM,
    kept: FREE_KEPT, pinned: FREE_PINNED, mapped: MMAPPED, unread: UNREAD,
};

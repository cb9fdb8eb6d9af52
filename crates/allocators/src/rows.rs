//! The ledger rows that the readers of most allocators have in common.

/// Defines the rows `NAME.live` to `NAME.unread` of an allocator, and which of them each class of
/// claims is on (`strandline_claims::palette::BlockRows`). The strings are the labels of the rows:
/// `padding` is that of `BlockRows::header`, and `releasable` that of `NAME.free.purge`.
macro_rules! block_rows {
    (
        $name:literal,
        live: $live:literal,
        padding: $padding:literal,
        cached: $cached:literal,
        releasable: $releasable:literal,
        kept: $kept:literal,
        pinned: $pinned:literal $(,)?
    ) => {
        use strandline_claims::palette::BlockRows;

        strandline_claims::row_table! { ROWS:
            LIVE = (concat!($name, ".live"), Allocator, Live, $live),
            // Bytes lost to the division into blocks.
            PADDING = (concat!($name, ".padding"), Allocator, Live, $padding),
            METADATA = (concat!($name, ".metadata"), Allocator, Live, "the allocator's own structures"),
            CACHED = (concat!($name, ".cached"), Allocator, Stranded, $cached),
            FREE_PURGE = (concat!($name, ".free.purge"), Allocator, Stranded, $releasable),
            // On pages without live data.
            FREE_KEPT = (concat!($name, ".free.kept"), Allocator, Stranded, $kept),
            FREE_PINNED = (concat!($name, ".free.pinned"), Allocator, Pinned, $pinned),
            UNREAD = (concat!($name, ".unread"), Allocator, Unattributed, "damaged, or read during a change"),
        }

        /// The row of each class of claims.
        pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
            live: LIVE, header: PADDING, metadata: METADATA, cached: CACHED, releasable: FREE_PURGE,
            kept: FREE_KEPT, pinned: FREE_PINNED, mapped: LIVE, unread: UNREAD,
        };
    };
}

pub(crate) use block_rows;

//! The ledger rows that the readers of most allocators have in common.

/// Defines the rows `NAME.live` to `NAME.unread`, and the row of each class of claims. Each string
/// says what the row's bytes are.
macro_rules! block_rows {
    (
        $name:literal,
        live: $live:literal,
        padding: $padding:literal,
        cached: $cached:literal,
        purge: $purge:literal,
        kept: $kept:literal,
        pinned: $pinned:literal $(,)?
    ) => {
        use strandline_claims::facts::State;
        use strandline_claims::palette::BlockRows;
        use strandline_claims::rows::{RowKind, RowRef};

        /// Payload of blocks in use.
        pub static LIVE: RowKind = RowKind::of_allocator(concat!($name, ".live"), State::Live, $live);
        /// Bytes lost to the division into blocks.
        pub static PADDING: RowKind =
            RowKind::of_allocator(concat!($name, ".padding"), State::Live, $padding);
        /// The allocator's own structures.
        pub static METADATA: RowKind =
            RowKind::of_allocator(concat!($name, ".metadata"), State::Live, "the allocator's own structures");
        /// Blocks in caches.
        pub static CACHED: RowKind =
            RowKind::of_allocator(concat!($name, ".cached"), State::Stranded, $cached);
        /// Free pages that a purge releases.
        pub static FREE_PURGE: RowKind =
            RowKind::of_allocator(concat!($name, ".free.purge"), State::Stranded, $purge);
        /// Free bytes on pages without live data that a purge leaves.
        pub static FREE_KEPT: RowKind =
            RowKind::of_allocator(concat!($name, ".free.kept"), State::Stranded, $kept);
        /// Free blocks on pages with live data.
        pub static FREE_PINNED: RowKind =
            RowKind::of_allocator(concat!($name, ".free.pinned"), State::Pinned, $pinned);
        /// Inconsistent structures.
        pub static UNREAD: RowKind = RowKind::of_allocator(
            concat!($name, ".unread"),
            State::Unattributed,
            "damaged, or read during a change",
        );

        /// All rows.
        pub static ROWS: [RowRef; 8] =
            [&LIVE, &PADDING, &METADATA, &CACHED, &FREE_PURGE, &FREE_KEPT, &FREE_PINNED, &UNREAD];

        /// The row of each class of claims.
        pub static BLOCKS: BlockRows = BlockRows {
            live: &LIVE,
            header: &PADDING,
            metadata: &METADATA,
            cached: &CACHED,
            trimmable: &FREE_PURGE,
            kept: &FREE_KEPT,
            pinned: &FREE_PINNED,
            mapped: &LIVE,
            unread: &UNREAD,
        };
    };
}

pub(crate) use block_rows;

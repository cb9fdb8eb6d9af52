//! The ledger rows of jemalloc. Padding is the page by which large allocations are offset, and the
//! unused end of a slab.

crate::rows::block_rows! {
    "jemalloc",
    live: "allocations in use",
    padding: "padding of extents in use",
    cached: "free regions in thread caches",
    releasable: "dirty and muzzy pages a purge releases",
    kept: "free pages a purge keeps",
    pinned: "free regions beside live ones",
}

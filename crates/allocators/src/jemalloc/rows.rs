//! The ledger rows of jemalloc. On `jemalloc.padding` are the bytes of an extent in use that are in
//! no region or allocation: the extra page of a large allocation (`opt.cache_oblivious`) and the
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

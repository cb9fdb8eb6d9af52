//! The ledger rows of mimalloc. On `mimalloc.padding` are the bytes before the first block of a
//! page; on `mimalloc.cached`, blocks that other threads freed.

crate::rows::block_rows! {
    "mimalloc",
    live: "blocks in use",
    padding: "bytes before the first block of a page",
    cached: "blocks that other threads freed",
    releasable: "free pages a collection releases",
    kept: "free pages a collection keeps",
    pinned: "free blocks beside live ones",
}

//! The ledger rows of tcmalloc. On `tcmalloc.padding` are the ends of spans that are
//! too short for another object.

crate::rows::block_rows! {
    "tcmalloc",
    live: "allocations in use",
    padding: "unused ends of spans",
    cached: "free objects in caches",
    releasable: "free spans that a release frees",
    kept: "free pages inside spans in use",
    pinned: "free objects beside live ones",
}

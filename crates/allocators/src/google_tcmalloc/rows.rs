//! The ledger rows of Google's tcmalloc. On `google_tcmalloc.padding` are the ends of spans that
//! are too short for another object.

crate::rows::block_rows! {
    "google_tcmalloc",
    live: "allocations in use",
    padding: "unused ends of spans",
    cached: "free objects in caches",
    releasable: "free pages of the page heap",
    kept: "free pages inside spans in use",
    pinned: "free objects beside live ones",
}

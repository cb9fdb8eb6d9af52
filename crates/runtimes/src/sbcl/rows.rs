//! The ledger rows of SBCL.

strandline_claims::row_table! { ROWS:
    LIVE = ("sbcl.live", Values, Live, "live objects"),
    DEAD = ("sbcl.dead", Collector, Stranded, "unreachable objects, not collected yet"),
    ALLOCATED = ("sbcl.allocated", Collector, Unattributed, "objects, live or dead (not traced)"),
    WASTE = ("sbcl.waste", Collector, Pinned, "unused rest of pages in use"),
    FREE = ("sbcl.free", Collector, Stranded, "free pages"),
    CODE = ("sbcl.code", Runtime, Live, "compiled code"),
    STATIC = ("sbcl.static", Runtime, Live, "static space"),
    IMMOBILE = ("sbcl.immobile", Runtime, Live, "immobile spaces"),
    THREAD = ("sbcl.thread", Runtime, Live, "thread structures"),
    TABLES = ("sbcl.tables", Runtime, Live, "the collector's tables"),
}

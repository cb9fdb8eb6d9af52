//! The ledger rows of the JVM.

use strandline_claims::palette::BlockRows;
use strandline_claims::rows::ANONYMOUS;

strandline_claims::row_table! { ROWS:
    OBJECT = ("jvm.object", Values, Live, "objects not known to be dead"),
    DIRECT = ("jvm.direct", Values, Live, "direct buffers (java.nio) in malloc"),
    DEAD = ("jvm.dead", Collector, Stranded, "unreachable objects, freed by a full GC"),
    FREE_PURGE = ("jvm.free.purge", Collector, Stranded, "free regions and free ends of spaces"),
    FREE_KEPT = ("jvm.free.kept", Collector, Stranded, "free pages of regions in use and TLABs"),
    FREE_PINNED = ("jvm.free.pinned", Collector, Pinned, "free bytes beside objects"),
    SHARED_OBJECT = ("jvm.shmem.object", Values, Live, "objects in ZGC's shared memory"),
    SHARED_FREE = ("jvm.shmem.free", Collector, Stranded, "free pages of ZGC's shared memory"),
    METASPACE = ("jvm.metaspace", Runtime, Live, "metaspace"),
    CLASS_SPACE = ("jvm.class_space", Runtime, Live, "compressed class space"),
    METASPACE_FREE = ("jvm.metaspace.free", Runtime, Stranded, "free metaspace and class space"),
    CODE = ("jvm.code", Runtime, Live, "compiled code and interpreter"),
    CODE_FREE = ("jvm.code.free", Runtime, Stranded, "committed code cache without code"),
    COLLECTOR = ("jvm.collector", Collector, Live, "the collector's card table"),
    METADATA = ("jvm.metadata", Runtime, Live, "other mappings of the runtime"),
}

/// The row of each class of its claims.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: OBJECT, header: METADATA, metadata: METADATA, cached: FREE_KEPT, releasable: FREE_PURGE,
    kept: FREE_KEPT, pinned: FREE_PINNED, mapped: OBJECT, unread: ANONYMOUS,
};

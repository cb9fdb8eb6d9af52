//! The ledger rows of the JVM.

use strandline_claims::facts::{HolderKind, State};
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::{ANONYMOUS, RowKind, RowRef};

/// Objects.
pub static OBJECT: RowKind = RowKind::new(
    "jvm.object",
    HolderKind::Values,
    State::Live,
    "the JVM, objects, those among them that no collection has found dead yet",
);
/// Unreachable objects.
pub static DEAD: RowKind = RowKind::new(
    "jvm.dead",
    HolderKind::Collector,
    State::Stranded,
    "the JVM, objects that nothing leads to: a full collection frees them",
);
/// Free regions and the free ends of spaces.
pub static FREE_PURGE: RowKind = RowKind::new(
    "jvm.free.purge",
    HolderKind::Collector,
    State::Stranded,
    "the JVM, free regions and free ends of spaces of its heap",
);
/// Free pages of regions in use.
pub static FREE_KEPT: RowKind = RowKind::new(
    "jvm.free.kept",
    HolderKind::Collector,
    State::Stranded,
    "the JVM, free pages of regions in use and of threads' allocation buffers",
);
/// Free bytes on pages with objects.
pub static FREE_PINNED: RowKind = RowKind::new(
    "jvm.free.pinned",
    HolderKind::Collector,
    State::Pinned,
    "the JVM, free bytes of its heap on pages with objects",
);
/// Objects of a collector that keeps them in shared memory.
pub static SHARED_OBJECT: RowKind = RowKind::new(
    "jvm.shmem.object",
    HolderKind::Values,
    State::Live,
    "the JVM, objects in ZGC's shared memory, dead ones not yet collected among them",
);
/// Free parts of that shared memory.
pub static SHARED_FREE: RowKind = RowKind::new(
    "jvm.shmem.free",
    HolderKind::Collector,
    State::Stranded,
    "the JVM, free pages of ZGC's shared memory",
);
/// Metaspace.
pub static METASPACE: RowKind =
    RowKind::new("jvm.metaspace", HolderKind::Runtime, State::Live, "the JVM, metaspace");
/// Compressed class space.
pub static CLASS_SPACE: RowKind =
    RowKind::new("jvm.class_space", HolderKind::Runtime, State::Live, "the JVM, compressed class space");
/// Unused chunks of both.
pub static METASPACE_FREE: RowKind = RowKind::new(
    "jvm.metaspace.free",
    HolderKind::Runtime,
    State::Stranded,
    "the JVM, committed metaspace and class space that nobody uses",
);
/// Compiled code.
pub static CODE: RowKind = RowKind::new(
    "jvm.code",
    HolderKind::Runtime,
    State::Live,
    "the JVM, compiled code, its interpreter and stubs",
);
/// Committed code cache without code.
pub static CODE_FREE: RowKind = RowKind::new(
    "jvm.code.free",
    HolderKind::Runtime,
    State::Stranded,
    "the JVM, committed code cache that holds no code",
);
/// The collector's structures outside the heap.
pub static COLLECTOR: RowKind = RowKind::new(
    "jvm.collector",
    HolderKind::Collector,
    State::Live,
    "the JVM, the card table of its collector",
);
/// Other structures.
pub static METADATA: RowKind = RowKind::new(
    "jvm.metadata",
    HolderKind::Runtime,
    State::Live,
    "the JVM, other memory that it maps for itself",
);

/// Direct buffers, in malloc's blocks.
pub static DIRECT: RowKind = RowKind::new(
    "jvm.direct",
    HolderKind::Values,
    State::Live,
    "the JVM, direct buffers (java.nio), in blocks of its malloc",
);

/// All rows of the JVM.
pub static ROWS: [RowRef; 15] = [
    &OBJECT,
    &DIRECT,
    &DEAD,
    &FREE_PURGE,
    &FREE_KEPT,
    &FREE_PINNED,
    &SHARED_OBJECT,
    &SHARED_FREE,
    &METASPACE,
    &CLASS_SPACE,
    &METASPACE_FREE,
    &CODE,
    &CODE_FREE,
    &COLLECTOR,
    &METADATA,
];

/// The row of each class of its claims.
pub static BLOCKS: BlockRows = BlockRows {
    live: &OBJECT,
    header: &METADATA,
    metadata: &METADATA,
    cached: &FREE_KEPT,
    trimmable: &FREE_PURGE,
    kept: &FREE_KEPT,
    pinned: &FREE_PINNED,
    mapped: &OBJECT,
    unread: &ANONYMOUS,
};

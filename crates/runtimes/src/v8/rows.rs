//! The ledger rows of V8.

use strandline_claims::palette::BlockRows;
use strandline_claims::rows::ANONYMOUS;

strandline_claims::row_table! { ROWS:
    OBJECT = ("v8.object", Values, Live, "objects not known to be dead"),
    DEAD = ("v8.dead", Collector, Stranded, "unreachable objects, not collected yet"),
    BUFFER = ("v8.buffer", Values, Live, "ArrayBuffers and Buffers (malloc)"),
    SHARED_BUFFER = ("v8.buffer.shared", Values, Live, "SharedArrayBuffers (malloc)"),
    MAPPED_BUFFER = ("v8.buffer.mapped", Values, Live, "WebAssembly memories, resizable ArrayBuffers"),
    EXTERNAL_STRING = ("v8.external_string", Values, Live, "characters of external strings (malloc)"),
    FREE = ("v8.free", Collector, Pinned, "free bytes in pages with objects"),
    WASTED = ("v8.wasted", Collector, Pinned, "bytes of pages that no object can use"),
    YOUNG_IDLE = ("v8.young.idle", Collector, Stranded, "young generation without objects"),
    POOL = ("v8.pool", Collector, Stranded, "freed pages, kept for reuse"),
    HEADER = ("v8.page_header", Collector, Live, "page headers"),
    READ_ONLY = ("v8.read_only", Runtime, Live, "read-only space"),
    CODE_RANGE = ("v8.code_range", Runtime, Live, "code range outside pages"),
    METADATA = ("v8.metadata", Runtime, Live, "tables, V8's own structures"),
}

/// Ids of the rows of its heap, which is its own memory; most of the others are in malloc's blocks.
pub static HEAP: [&str; 9] =
    [OBJECT.id, DEAD.id, FREE.id, WASTED.id, YOUNG_IDLE.id, POOL.id, HEADER.id, READ_ONLY.id, CODE_RANGE.id];

/// The row of each class of its claims; all but free bytes have their own slots.
pub static BLOCKS: BlockRows = strandline_claims::class_rows! {
    live: OBJECT, header: HEADER, metadata: CODE_RANGE, cached: YOUNG_IDLE, releasable: POOL,
    kept: FREE, pinned: FREE, mapped: READ_ONLY, unread: ANONYMOUS,
};

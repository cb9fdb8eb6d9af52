//! The ledger rows of Perl.

strandline_claims::row_table! { ROWS:
    STRING = ("perl.string", Values, Live, "string buffers in use"),
    STRING_SHARED = ("perl.string.shared", Values, Live, "shared string buffers (copy-on-write)"),
    CONSTANT = ("perl.constant", Values, Live, "constants in op trees"),
    CONTAINER = ("perl.container", Values, Live, "storage of arrays and hashes"),
    ARENA = ("perl.arena", Values, Live, "heads and bodies of values"),
    ARENA_FREE = ("perl.arena.free", Runtime, Pinned, "free slots for heads and bodies"),
    PAD_RETAINED = ("perl.pad.retained", Runtime, Stranded, "unused buffers of lexicals, temporaries"),
    BUFFER_RETAINED = ("perl.buffer.retained", Runtime, Stranded, "unused buffers of other variables"),
}

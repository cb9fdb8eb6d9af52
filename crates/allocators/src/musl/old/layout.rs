//! Layouts of `struct chunk`, `struct bin` and `mal` on 64-bit machines (`malloc.c`; from 1.1.20 on
//! the first two are in `malloc_impl.h`).

/// Bytes of the header of a chunk (`struct chunk`): the size of the previous chunk and its own.
pub const HEADER_BYTES: u64 = 16;
/// Bytes of the header of a free chunk, which also has its neighbours in its list.
pub const FREE_HEADER_BYTES: u64 = 32;
/// Offset in a free chunk of `prev`, the pointer to the previous one in its list.
pub const CHUNK_PREVIOUS: u64 = 24;
/// Alignment of sizes (`SIZE_ALIGN`) of chunks without their own mapping.
pub const ALIGNMENT: u64 = 32;
/// The lowest bit of both sizes (`C_INUSE`), set if the chunk is in use.
pub const IN_USE: u64 = 1;
/// Offset of the first chunk in a region (`expand_heap`), and of a block's chunk in its own
/// mapping.
pub const FIRST_CHUNK_OFFSET: u64 = 16;

/// Number of bins, each with one list.
pub const BINS: usize = 64;
/// Bytes of `struct bin`: a lock, and pointers to the first and the last chunk.
pub const BIN_BYTES: usize = 24;
/// Offset in a bin of `head`, the pointer to the first chunk; `tail`, to the last one, follows.
pub const BIN_HEAD: usize = 8;
/// Offset of the bins in `mal`. They follow `binmap`, which has a bit per non-empty bin.
pub const FIRST_BIN: usize = 8;
/// Bytes of `mal`, without the lock at its end.
pub const STATE_BYTES: usize = FIRST_BIN + BINS * BIN_BYTES;

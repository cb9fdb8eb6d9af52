//! The malloc that musl had before mallocng (1.1 and 1.2.0, and later where it was built `--with-malloc=oldmalloc`), read from
//! outside: `src/malloc/oldmalloc/malloc.c`.
//!
//! `state` finds its lists of free chunks. Nothing says where its memory is: `walk` finds regions, which begin with a chunk of no size,
//! end with another one, and in which each chunk repeats the size of the one before; and blocks with mappings of their own, which have
//! the bytes of that.

mod state;
mod walk;

pub use self::state::{State, find};

use self::walk::Walk;
use super::rows;
use strandline_claims::allocator::{Context, Reading};

/// `struct chunk`: the size of the one before and its own, and, of a free one, its neighbours in its list.
const HEAD: u64 = 16;
const FREE_HEAD: u64 = 32;
/// What sizes are multiples of (`SIZE_ALIGN`), of chunks that have no mapping of their own.
const ALIGNMENT: u64 = 32;
/// The lowest bit of both sizes (`C_INUSE`).
const IN_USE: u64 = 1;
/// Where the first chunk of a region stands, or a block with a mapping of its own.
const FIRST: u64 = 16;

/// Reads one, beside what is `taken` by others.
pub fn read(context: &Context<'_>, state: &State, taken: &[(u64, u64)]) -> Reading {
    let mut walk = Walk::new(context, taken);
    walk.all();
    walk.check(&state.chunks);
    let Walk { counts, claims, memory, blocks, regions, .. } = walk;
    let own = [("regions", regions), ("mmapped_blocks", counts.mapped_blocks)];
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    reading.allocator = counts.facts(format!("lists of free chunks in {}", state.name), 0, &own);
    reading.refined = blocks.matched;
    reading.bytes_read = memory.bytes_read;
    counts.doubts.say(&mut reading.caveats, &super::ABOUT, "chunks", &state.name);
    reading.in_motion = counts.doubts.damages > 0;
    reading
}

//! The malloc of musl before mallocng (1.1 and 1.2.0, later ones if built
//! `--with-malloc=oldmalloc`), read from outside: `src/malloc/oldmalloc/malloc.c`.
//!
//! `state` finds its lists of free chunks. No structure lists its memory: `walk` finds regions,
//! which begin and end with a chunk of size 0 and in which each chunk repeats the size of the one
//! before; and blocks with their own mapping, whose size matches it.

mod layout;
mod state;
mod walk;

pub use self::state::{State, find};

use self::walk::Walk;
use super::rows;
use strandline_claims::allocator::{Context, Reading};
use strandline_process::range::RangeSet;

/// Reads one instance outside `taken` (claimed by others).
pub fn read(context: &Context<'_>, state: &State, taken: &RangeSet) -> Reading {
    let mut walk = Walk::new(context, taken);
    walk.claim_all();
    walk.check_free_chunks(&state.list_ends);
    let Walk { counts, claims, memory, blocks, region_count, .. } = walk;
    let structure_counts = [("regions", region_count), ("mmapped_blocks", counts.mapped_blocks)];
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    reading.allocator = counts.facts(format!("lists of free chunks in {}", state.name), 0, &structure_counts);
    reading.refined = blocks.matched;
    reading.bytes_read = memory.bytes_read;
    counts.doubts.add_caveats(&mut reading.caveats, &super::ABOUT, "chunks", &state.name);
    reading.is_inconsistent = counts.doubts.damages > 0;
    reading
}

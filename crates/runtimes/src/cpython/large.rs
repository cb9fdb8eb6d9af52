//! Follows what objects lead to beside the arenas: larger objects, tables, and blocks of malloc's that are neither.
//!
//! Each is claimed where it begins; the allocator's reader says whether a block in use begins there. So a word that
//! leads nowhere, or into the middle of a block, claims nothing.

use std::time::Instant;

use super::census::Census;
use super::objects::Table;
use strandline_claims::class::Slot;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::Memory;

/// So much of what is followed is read at once.
const PIECE_BYTES: usize = 64 << 10;
/// After so many places the time is looked at.
const LOOKS_AT_THE_TIME: usize = 64;

/// As what blocks of allocators are claimed.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Objects.
    pub object: Slot,
    /// Tables of objects.
    pub table: Slot,
    /// What else objects lead to.
    pub buffer: Slot,
}

/// Follows all that `census` has noted; false where the time was over before.
pub fn follow(
    memory: &dyn Memory,
    census: &mut Census<'_>,
    (refinements, slots): (&Refinements, Slots),
    deadline: Instant,
) -> bool {
    let mut piece = vec![0; PIECE_BYTES];
    let mut seen = 0_usize;
    loop {
        seen += 1;
        if seen.is_multiple_of(LOOKS_AT_THE_TIME) && Instant::now() >= deadline {
            return false;
        }
        // Tables first: who leads to an object's table else leads to a block of unknown use.
        if let Some(table) = census.tables.pop() {
            let is_new = match table.is_whole {
                true => refinements.claim_whole(table.address, slots.table),
                false => refinements.claim(table.address, table.bytes, slots.table),
            };
            if is_new {
                read(memory, census, table, (&mut piece, deadline));
            }
        } else if let Some(place) = census.places.pop() {
            match census.object_at(place) {
                Some(large) => {
                    if refinements.claim(large.start, large.size.block, slots.object) {
                        census.count_large(&large);
                        let bytes = large.size.block;
                        let block = Table { address: large.start, bytes, used: bytes, is_whole: false };
                        if large.leads {
                            read(memory, census, block, (&mut piece, deadline));
                        }
                    }
                }
                None => census.other(place),
            }
        } else {
            break;
        }
    }
    // What is left leads into the middle of blocks too, where a claim would stand in the way of the next block's.
    for place in std::mem::take(&mut census.others) {
        refinements.claim_whole(place, slots.buffer);
    }
    true
}

/// Has the census note what the words of a block lead to, as far as it can be read.
pub fn read(
    memory: &dyn Memory,
    census: &mut Census<'_>,
    block: Table,
    (piece, deadline): (&mut [u8], Instant),
) {
    let mut at = block.address;
    let end = block.address.saturating_add(block.used);
    while at < end && Instant::now() < deadline {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
        let Some(bytes) = piece.get_mut(..wanted) else { return };
        let got = memory.read_some(at, bytes);
        census.follow(&bytes[..got]);
        if got < wanted {
            return;
        }
        at += wanted as u64;
    }
}

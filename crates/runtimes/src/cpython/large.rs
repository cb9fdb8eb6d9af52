//! Follows pointers of objects to memory outside the arenas: larger objects, tables, data, and
//! other blocks of malloc, which are not claimed.
//!
//! Each is claimed at its address; the allocator's reader checks whether a block in use begins
//! there. So a word that points nowhere, or into the middle of a block, claims nothing.

use std::collections::HashSet;
use std::time::Instant;

use super::census::{Census, OutsideObject};
use super::objects::{GuardedBlock, NO_OWNER, Table};
use strandline_claims::class::Slot;
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::refinements::{LARGE_BYTES, Refinements};

/// Rounds of following blocks that are not objects: a thread's state, a chunk of its frames, and
/// the blocks that the frames point to.
const MAX_ROUNDS: usize = 3;
/// Limit on the blocks followed per round that are not objects ([`Census::note_incomplete`]).
const MAX_FOLLOWED_BLOCKS: usize = 1 << 16;
/// Bytes read of a block that is not an object.
const READ_BLOCK_BYTES: u64 = 1024;
/// Bytes read of a block that is not an object, at the start of a page: it may be a chunk of frames
/// (`DATA_STACK_CHUNK_SIZE` in `Python/pystate.c`, from 3.11 on).
const READ_CHUNK_BYTES: u64 = 16 << 10;
/// Targets and tables between two checks of the deadline.
const STEPS_PER_DEADLINE_CHECK: usize = 64;

/// Slots for claims on allocators' blocks.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub object: Slot,
    /// Tables of objects.
    pub table: Slot,
    /// Data of objects.
    pub buffer: Slot,
    /// Objects on free lists, in heaps of objects.
    pub free_listed: Slot,
}

/// Follows all pointers that `census` has collected. False if the deadline passed before the end.
pub fn follow(census: &mut Census<'_>, refinements: &Refinements, slots: Slots, deadline: Instant) -> bool {
    let mut is_done = follow_objects(census, refinements, slots, deadline);
    // Blocks of C code point on, for example thread states to the chunks with frames (from 3.11
    // on). What they point to gets no owner: any word may point there, even a number or a stale
    // pointer.
    let mut visited = HashSet::new();
    for _ in 0..MAX_ROUNDS {
        let mut targets = std::mem::take(&mut census.non_objects);
        // The pointers in claimed blocks are known already.
        targets.retain(|target| !refinements.is_claimed(target.at) && visited.insert(target.at));
        if targets.len() > MAX_FOLLOWED_BLOCKS {
            census.note_incomplete();
            targets.truncate(MAX_FOLLOWED_BLOCKS);
        }
        targets.sort_unstable();
        for target in targets {
            let bytes =
                if target.at.is_multiple_of(PAGE_BYTES) { READ_CHUNK_BYTES } else { READ_BLOCK_BYTES };
            census.owner = NO_OWNER;
            census.follow_block(Table::new(target.at, bytes, bytes), deadline);
        }
        is_done &= follow_objects(census, refinements, slots, deadline);
    }
    census.owner = NO_OWNER;
    is_done && Instant::now() < deadline
}

/// Follows the pointers of objects and their tables. False if the deadline passed before the end.
fn follow_objects(
    census: &mut Census<'_>,
    refinements: &Refinements,
    slots: Slots,
    deadline: Instant,
) -> bool {
    let mut steps = 0_usize;
    let mut pending = Vec::new();
    loop {
        steps += 1;
        if steps.is_multiple_of(STEPS_PER_DEADLINE_CHECK) && Instant::now() >= deadline {
            return false;
        }
        // Tables come first: one that another pointer reached before would count as a block of
        // unknown use.
        if let Some(table) = census.tables.pop() {
            follow_table(census, refinements, slots, table, deadline);
        } else if let Some(target) = census.next_target(&mut pending) {
            match census.object_at(target.at) {
                Some(object) => follow_object(census, refinements, slots.object, &object, deadline),
                None => census.add_non_object(target),
            }
        } else {
            return true;
        }
    }
}

/// Claims a table, and follows its pointers unless it was claimed before.
fn follow_table(
    census: &mut Census<'_>,
    refinements: &Refinements,
    slots: Slots,
    table: Table,
    deadline: Instant,
) {
    let GuardedBlock { begin, bytes } = census.guarded_block(table.address, table.bytes);
    let slot = if table.is_data { slots.buffer } else { slots.table };
    let is_new = if table.is_whole {
        refinements.claim_whole(begin, slot)
    } else {
        refinements.claim(begin, bytes, slot)
    };
    census.owner = table.owner;
    if is_new {
        if table.is_whole || bytes > LARGE_BYTES {
            census.record_claim(begin, slot);
        }
        census.follow_block(table, deadline);
        census.add_linked_table(table);
    }
}

/// Claims and counts an object, and follows its pointers, unless it was claimed before.
fn follow_object(
    census: &mut Census<'_>,
    refinements: &Refinements,
    slot: Slot,
    object: &OutsideObject,
    deadline: Instant,
) {
    let object_bytes = object.size.block_bytes;
    let GuardedBlock { begin, bytes } = census.guarded_block(object.start, object_bytes);
    if refinements.claim(begin, bytes, slot) {
        census.count_outside(object, begin);
        if bytes > LARGE_BYTES {
            census.record_claim(begin, slot);
        }
        if object.has_pointers {
            census.follow_block(Table::new(object.start, object_bytes, object_bytes), deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpython::census::Target;
    use crate::cpython::layout::RELEASES;
    use crate::cpython::outside::OutsideMemory;
    use crate::fabricated::Unreadable;
    use strandline_process::range::RangeSet;

    /// Whether the result is incomplete after following this number of blocks of C code.
    fn is_incomplete_after(blocks: usize) -> bool {
        let outside = OutsideMemory::new([], RangeSet::default());
        let mut census = Census::following(&Unreadable, &RELEASES[0], &outside);
        let target = |index: usize| Target { at: 16 * (index as u64 + 1), owner: NO_OWNER };
        census.non_objects.extend((0..blocks).map(target));
        let slot = Slot::new(0).unwrap();
        let slots = Slots { object: slot, table: slot, buffer: slot, free_listed: slot };
        let deadline = Instant::now() + Duration::from_secs(600);
        assert!(follow(&mut census, &Refinements::default(), slots, deadline));
        census.finish().is_incomplete
    }

    #[test]
    fn blocks_beyond_the_limit_are_noted() {
        assert!(!is_incomplete_after(MAX_FOLLOWED_BLOCKS));
        assert!(is_incomplete_after(MAX_FOLLOWED_BLOCKS + 1));
    }
}

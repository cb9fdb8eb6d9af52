//! Thread-local storage of a library that was loaded while the program ran, and was not built for
//! the initial-exec model (`configure --disable-initial-exec-tls`): a block of memory per thread.
//!
//! glibc keeps the addresses of a thread's blocks in a vector: `dtv`, the second word of
//! `tcbhead_t` (2.31 to 2.42: `sysdeps/x86_64/nptl/tls.h`), to which the FS base points. A slot has
//! two words (`sysdeps/generic/dl-dtv.h`), the address of the block and what to free; the number
//! of slots is in the slot before the first one (`elf/dl-tls.c`, `INSTALL_DTV`).

use std::collections::BTreeMap;

use super::caches::MAX_STORAGE_BYTES;
use crate::scan::{is_private_memory, read_words};
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Offset of `dtv` in `tcbhead_t`.
const VECTOR: u64 = 8;
/// Bytes of a slot.
const SLOT_BYTES: usize = 16;
/// Maximum slots read: one for each module with thread-local storage.
const MAX_SLOTS: u64 = 1024;
/// Bytes of a block that are searched; a block's size is not known.
const MAX_BLOCK_BYTES: u64 = 16 << 10;
/// Threads with a cache after which its place is known.
const ENOUGH_THREADS: usize = 16;
/// Maximum threads searched for the place.
const MAX_THREADS: usize = 256;

/// Where a library's variable is, the same in all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its offset in the library's block.
    pub offset: u64,
    /// The library's slot.
    slot: usize,
}

impl Place {
    /// The block that holds the variable of the thread at `fs_base`, as far as it is searched.
    pub fn block(self, context: &Context<'_>, fs_base: u64) -> Option<AddressRange> {
        let (_, block) = blocks(context, fs_base).into_iter().find(|(slot, _)| *slot == self.slot)?;
        Some(block)
    }
}

/// Finds where most threads have what `offset_in` finds in a block: past its end a block may be
/// followed by that of another thread.
pub fn find_place(
    context: &Context<'_>,
    fs_bases: &[u64],
    offset_in: &mut dyn FnMut(AddressRange) -> Option<u64>,
) -> Option<Place> {
    let mut threads_by_place: BTreeMap<Place, usize> = BTreeMap::new();
    for &fs_base in fs_bases.iter().take(MAX_THREADS) {
        let is_known = threads_by_place.values().any(|&threads| threads >= ENOUGH_THREADS);
        if is_known || context.deadline_passed() {
            break;
        }
        for (slot, block) in blocks(context, fs_base) {
            if let Some(offset) = offset_in(block) {
                *threads_by_place.entry(Place { offset, slot }).or_default() += 1;
            }
        }
    }
    // Of equals the one with the smallest offset is in its own block.
    let best = threads_by_place.into_iter().rev().max_by_key(|(_, threads)| *threads);
    best.map(|(place, _)| place)
}

/// Returns the blocks of a thread with their slots, as far as they are searched.
fn blocks(context: &Context<'_>, fs_base: u64) -> Vec<(usize, AddressRange)> {
    let mut blocks = Vec::new();
    let Some(bytes) = vector(context, fs_base) else { return blocks };
    for (slot, bytes) in bytes.as_chunks::<SLOT_BYTES>().0.iter().enumerate().skip(1) {
        // A block that was not used yet has the address -1 (`TLS_DTV_UNALLOCATED`).
        let address = word_at(bytes, 0).filter(|start| start.is_multiple_of(8) && *start < USER_ADDRESS_END);
        let Some((start, mapping)) = address.and_then(|start| Some((start, context.space.find(start)?)))
        else {
            continue;
        };
        // Most libraries have theirs below the FS base, which was searched.
        if (fs_base.saturating_sub(MAX_STORAGE_BYTES)..fs_base).contains(&start) {
            continue;
        }
        let block = AddressRange::new(start, mapping.end.min(start.saturating_add(MAX_BLOCK_BYTES)));
        if is_private_memory(context, block) {
            blocks.push((slot, block));
        }
    }
    blocks
}

/// Reads the vector of a thread, from its first slot on, which holds no block.
fn vector(context: &Context<'_>, fs_base: u64) -> Option<Vec<u8>> {
    let [vector] = read_words(context, fs_base.checked_add(VECTOR)?)?;
    let [slots] = read_words(context, vector.checked_sub(SLOT_BYTES as u64)?)?;
    let mut bytes = vec![0; (slots.min(MAX_SLOTS) as usize + 1) * SLOT_BYTES];
    let read_bytes = context.memory.read_some(vector, &mut bytes);
    bytes.truncate(read_bytes);
    Some(bytes)
}

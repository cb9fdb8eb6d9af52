//! The memory of a process, read from its snapshot.

use crate::memory::{Memory, WordPair, pair_at};
use crate::range::AddressRange;
use crate::target::copy::MemoryCopy;
use crate::target::live::MemFile;

/// The memory of a process seen through a snapshot, with copies, made during the stop, of memory
/// that the program excludes from its children (MADV_DONTFORK, MADV_WIPEONFORK).
///
/// The child is read through its /proc/PID/mem, never by `process_vm_readv`, which pins pages: the
/// kernel copies a page that two processes share before it pins it (`gup_must_unshare` of
/// `mm/internal.h`, Linux 5.19), so the child would end up with a second copy of all of the
/// program's memory.
pub struct SnapshotMemory {
    /// The child's /proc/PID/mem.
    pub file: MemFile,
    /// Ranges that may be read from it, in address order; device registers are excluded.
    pub readable: Vec<AddressRange>,
    /// The copies made during the stop.
    pub copy: MemoryCopy<'static>,
    /// Ranges of the copies, in address order.
    pub copied: Vec<AddressRange>,
}

/// Whether `address` is inside one of `ranges`, and the address where that changes.
fn find_range(ranges: &[AddressRange], address: u64) -> (bool, u64) {
    let index = ranges.partition_point(|range| range.end <= address);
    match ranges.get(index) {
        Some(range) if range.start <= address => (true, range.end),
        Some(range) => (false, range.start),
        None => (false, u64::MAX),
    }
}

/// Addresses this close to each other are read together, up to [`MAX_READ_BYTES`].
const NEAR_BYTES: u64 = 1024;
const MAX_READ_BYTES: usize = 64 << 10;

impl Memory for SnapshotMemory {
    /// Reads neighbouring pairs together: each read is a system call, and most are close together.
    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        let mut pairs = vec![None; addresses.len()];
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        let mut unread = order.as_slice();
        let mut buffer = Vec::new();
        while let Some(&first) = unread.first() {
            let start = addresses[first];
            let mut last = start;
            let near = unread.iter().take_while(|&&index| {
                let at = addresses[index];
                let is_near = at - last <= NEAR_BYTES && (at - start) as usize + 16 <= MAX_READ_BYTES;
                last = if is_near { at } else { last };
                is_near
            });
            let (group, after) = unread.split_at(near.count().max(1));
            buffer.resize((last - start) as usize + 16, 0);
            let got = self.read_some(start, &mut buffer);
            for &index in group {
                let at = (addresses[index] - start) as usize;
                pairs[index] = if at + 16 <= got {
                    pair_at(&buffer, at)
                } else {
                    // The gap between two of them may be unreadable.
                    let mut pair = [0; 16];
                    let is_whole = self.read_some(addresses[index], &mut pair) == 16;
                    is_whole.then(|| pair_at(&pair, 0)).flatten()
                };
            }
            unread = after;
        }
        pairs
    }

    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut got = 0;
        while got < buffer.len() {
            let Some(at) = address.checked_add(got as u64) else { break };
            let Some(room) = buffer.get_mut(got..) else { break };
            let (is_copied, copied_until) = find_range(&self.copied, at);
            let (is_readable, readable_until) = find_range(&self.readable, at);
            let count =
                usize::try_from(copied_until.min(readable_until) - at).unwrap_or(usize::MAX).min(room.len());
            let Some(part) = room.get_mut(..count) else { break };
            let read = match (is_copied, is_readable) {
                (true, _) => self.copy.read_some(at, part),
                (false, true) => self.file.read_some(at, part),
                (false, false) => 0,
            };
            got += read;
            if read < count {
                break;
            }
        }
        got
    }
}

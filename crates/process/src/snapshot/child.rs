//! The memory of a process, read from its snapshot.

use crate::memory::{Memory, word_at};
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
    pub readable: Vec<(u64, u64)>,
    /// The copies made during the stop.
    pub kept: MemoryCopy<'static>,
    /// Ranges of the copies, in address order.
    pub ranges: Vec<(u64, u64)>,
}

/// Whether `at` is inside one of `ranges`, and the address where that changes.
fn find_range(ranges: &[(u64, u64)], at: u64) -> (bool, u64) {
    let index = ranges.partition_point(|&(_, end)| end <= at);
    match ranges.get(index) {
        Some(&(start, end)) if start <= at => (true, end),
        Some(&(start, _)) => (false, start),
        None => (false, u64::MAX),
    }
}

/// Addresses this close to each other are read together, up to this many bytes.
const NEAR_BYTES: u64 = 1024;
const MAX_AT_ONCE: usize = 64 << 10;

impl Memory for SnapshotMemory {
    /// Each read is a system call, and addresses requested together mostly lie close together.
    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<(u64, u64)>> {
        let mut pairs = vec![None; addresses.len()];
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        let mut rest = order.as_slice();
        let mut buffer = Vec::new();
        while let Some(&first) = rest.first() {
            let start = addresses[first];
            let mut last = start;
            let near = rest.iter().take_while(|&&index| {
                let at = addresses[index];
                let is_near = at - last <= NEAR_BYTES && (at - start) as usize + 16 <= MAX_AT_ONCE;
                last = if is_near { at } else { last };
                is_near
            });
            let (group, after) = rest.split_at(near.count().max(1));
            buffer.resize((last - start) as usize + 16, 0);
            let got = self.read_some(start, &mut buffer);
            for &index in group {
                let at = (addresses[index] - start) as usize;
                pairs[index] = if at + 16 <= got {
                    word_at(&buffer, at).zip(word_at(&buffer, at + 8))
                } else {
                    // The gap between two of them may be unreadable.
                    let mut pair = [0; 16];
                    let whole = self.read_some(addresses[index], &mut pair) == 16;
                    whole.then(|| word_at(&pair, 0).zip(word_at(&pair, 8))).flatten()
                };
            }
            rest = after;
        }
        pairs
    }

    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut got = 0;
        while got < buffer.len() {
            let Some(at) = address.checked_add(got as u64) else { break };
            let Some(room) = buffer.get_mut(got..) else { break };
            let (is_kept, kept_until) = find_range(&self.ranges, at);
            let (is_readable, until) = find_range(&self.readable, at);
            let count = usize::try_from(kept_until.min(until) - at).unwrap_or(usize::MAX).min(room.len());
            let Some(part) = room.get_mut(..count) else { break };
            let read = match (is_kept, is_readable) {
                (true, _) => self.kept.read_some(at, part),
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

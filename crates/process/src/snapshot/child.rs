//! The memory of a process, read from its snapshot.

use crate::memory::{Memory, PAIR_BYTES, WordPair, first_bytes, pair_at};
use crate::range::AddressRange;
use crate::target::copy::MemoryCopy;
use crate::target::live::MemFile;

/// The memory of a process seen through a snapshot, with copies, made during the stop, of memory
/// that the program excludes from its children (MADV_DONTFORK, MADV_WIPEONFORK).
///
/// The child is read through its /proc/PID/mem, never by `process_vm_readv`, which pins pages:
/// from Linux 5.19 on the kernel copies a page that two processes share before it pins it
/// (`gup_must_unshare`, now in `mm/internal.h`), so the child would end up with a second copy of
/// all of the program's memory.
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

/// An address among ranges.
struct Position {
    /// Whether one of the ranges contains it.
    is_inside: bool,
    /// The first address above it for which that differs.
    until: u64,
}

impl Position {
    /// Of `address` among `ranges`, which are in address order.
    fn of(address: u64, ranges: &[AddressRange]) -> Self {
        let index = ranges.partition_point(|range| range.end <= address);
        match ranges.get(index) {
            Some(range) if range.start <= address => Self { is_inside: true, until: range.end },
            Some(range) => Self { is_inside: false, until: range.start },
            None => Self { is_inside: false, until: u64::MAX },
        }
    }
}

/// Pairs this close to each other are read together.
const NEAR_BYTES: u64 = 1024;
/// Maximum bytes read together.
const MAX_READ_BYTES: usize = 64 << 10;

impl Memory for SnapshotMemory {
    /// Reads neighbouring pairs together: each read is a system call, and most are close together.
    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        let mut pairs = vec![None; addresses.len()];
        let mut by_address: Vec<usize> = (0..addresses.len()).collect();
        by_address.sort_unstable_by_key(|&index| addresses[index]);
        let mut unread = by_address.as_slice();
        let mut buffer = Vec::new();
        while let Some(&first) = unread.first() {
            let start = addresses[first];
            let mut last_address = start;
            let near = unread.iter().take_while(|&&index| {
                let at = addresses[index];
                let is_near =
                    at - last_address <= NEAR_BYTES && (at - start) as usize + PAIR_BYTES <= MAX_READ_BYTES;
                last_address = if is_near { at } else { last_address };
                is_near
            });
            let (group, after) = unread.split_at(near.count().max(1));
            buffer.resize((last_address - start) as usize + PAIR_BYTES, 0);
            let read_bytes = self.read_some(start, &mut buffer);
            for &index in group {
                let offset = (addresses[index] - start) as usize;
                pairs[index] = if offset + PAIR_BYTES <= read_bytes {
                    pair_at(&buffer, offset)
                } else {
                    // The gap between two of them may be unreadable.
                    self.read_pair(addresses[index])
                };
            }
            unread = after;
        }
        pairs
    }

    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut total_bytes = 0;
        while total_bytes < buffer.len() {
            let Some(at) = address.checked_add(total_bytes as u64) else { break };
            let Some(unread) = buffer.get_mut(total_bytes..) else { break };
            let copied = Position::of(at, &self.copied);
            let readable = Position::of(at, &self.readable);
            let part = first_bytes(unread, copied.until.min(readable.until) - at);
            let wanted_bytes = part.len();
            let read_bytes = match (copied.is_inside, readable.is_inside) {
                (true, _) => self.copy.read_some(at, part),
                (false, true) => self.file.read_some(at, part),
                (false, false) => 0,
            };
            total_bytes += read_bytes;
            if read_bytes < wanted_bytes {
                break;
            }
        }
        total_bytes
    }
}

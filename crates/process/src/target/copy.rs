//! A copy of a process's own memory, made while the process is stopped, so that it can run while
//! the copy is read.
//!
//! Copies what only the process can change: anonymous pages, and pages of its writable private
//! file mappings. Other private file mappings are read later from the running process, as code and
//! constants do not change. Shared memory, device memory and absent pages are left out. The
//! destination is allocated and touched before the stop, as touching takes as long as copying. The
//! copy takes as much memory as the process has, so it is made only if that is at most half of what
//! is available.

use std::sync::Mutex;

use super::budget;
use super::live::MemFile;
use crate::buffer::ReadBuffer;
use crate::memory::{Memory, first_bytes};
use crate::procfs::Process;
use crate::range::{AddressRange, containing};
use crate::work::on_threads;

/// Bytes per read.
const PIECE_BYTES: u64 = 4 << 20;
/// Allowance for growth of the process until it is stopped.
const GROWTH_BYTES: u64 = 8 << 20;
/// The same as a part of its memory: one in this many bytes.
const GROWTH_DIVISOR: u64 = 16;

/// The destination memory of a copy.
#[derive(Default)]
pub struct CopyBuffer(ReadBuffer);

impl CopyBuffer {
    /// Allocates memory for the present contents of `process`; `None` if that exceeds the budget,
    /// or their size is unknown.
    pub fn for_process(process: &Process) -> Option<Self> {
        // Only written file pages are copied, and those are anonymous too.
        let anonymous_bytes = process.status().ok()?.anonymous_bytes?;
        Self::for_bytes(
            anonymous_bytes.saturating_add(anonymous_bytes / GROWTH_DIVISOR).saturating_add(GROWTH_BYTES),
        )
    }

    /// Allocates `bytes` bytes; `None` if that exceeds the budget.
    pub fn for_bytes(bytes: u64) -> Option<Self> {
        if bytes > budget::copy_budget_bytes(0) {
            return None;
        }
        ReadBuffer::prefaulted(usize::try_from(bytes).ok()?).map(Self)
    }
}

/// A range that was copied.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    end: u64,
    /// Where its bytes are in the copy.
    offset: usize,
}

/// What a copy has at an address.
enum Lookup<'a> {
    /// The copied bytes from there to the end of their piece.
    Copied(&'a [u8]),
    /// Nothing up to this address, where the next piece begins.
    NotCopied { until: u64 },
}

/// The copy; see the module.
pub struct MemoryCopy<'a> {
    pieces: Vec<Piece>,
    bytes: ReadBuffer,
    /// Where other addresses are read from.
    live: Option<LiveRanges<'a>>,
}

/// What may be read from the running process.
#[derive(Debug)]
pub struct LiveRanges<'a> {
    /// The ranges, in address order.
    pub ranges: Vec<AddressRange>,
    /// The open /proc/PID/mem.
    pub file: &'a MemFile,
}

impl LiveRanges<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(range) = containing(&self.ranges, address) else { return 0 };
        self.file.read_some(address, first_bytes(buffer, range.end - address))
    }
}

impl<'a> MemoryCopy<'a> {
    /// Copies `runs` (in address order) of `memory` with `workers` threads. Other addresses are
    /// read on demand from `live`, or are absent. `None` if the process has outgrown `buffer`.
    pub fn take(
        memory: &dyn Memory,
        runs: impl Iterator<Item = AddressRange>,
        buffer: CopyBuffer,
        workers: usize,
        live: Option<LiveRanges<'a>>,
    ) -> Option<Self> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut total_bytes = 0usize;
        for AddressRange { mut start, end } in runs {
            while start < end {
                let piece_end = end.min(start.saturating_add(PIECE_BYTES));
                pieces.push(Piece { start, end: piece_end, offset: total_bytes });
                total_bytes = total_bytes.checked_add(usize::try_from(piece_end - start).ok()?)?;
                start = piece_end;
            }
        }
        let mut bytes = buffer.0;
        if total_bytes > bytes.len() {
            return None;
        }
        bytes.resize(total_bytes);
        let mut destinations: Vec<(&mut Piece, &mut [u8])> = Vec::with_capacity(pieces.len());
        let mut unassigned = &mut bytes[..];
        for piece in &mut pieces {
            let length = usize::try_from(piece.end - piece.start).ok()?;
            let (destination, following) = unassigned.split_at_mut_checked(length)?;
            destinations.push((piece, destination));
            unassigned = following;
        }
        let queue = Mutex::new(destinations.into_iter());
        let work = || {
            // The lock is held only to take the next item, not while reading.
            while let Some((piece, destination)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                let read_bytes = memory.read_some(piece.start, destination);
                // What could not be read is not copied.
                piece.end = piece.start + read_bytes as u64;
            }
        };
        on_threads(workers, work);
        Some(Self { pieces, bytes, live })
    }

    /// What it has at `address`.
    fn lookup(&self, address: u64) -> Lookup<'_> {
        let index = self.pieces.partition_point(|piece| piece.end <= address);
        match self.pieces.get(index) {
            Some(piece) if piece.start <= address => {
                let skip = (address - piece.start) as usize;
                let length = (piece.end - piece.start) as usize;
                let bytes = self.bytes.get(piece.offset + skip..piece.offset + length);
                Lookup::Copied(bytes.unwrap_or_default())
            }
            next => Lookup::NotCopied { until: next.map_or(u64::MAX, |piece| piece.start) },
        }
    }

    /// Number of bytes copied, without those that could not be read.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }
}

impl Memory for MemoryCopy<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut total_bytes = 0;
        while total_bytes < buffer.len() {
            let Some(at) = address.checked_add(total_bytes as u64) else { break };
            let Some(unread) = buffer.get_mut(total_bytes..) else { break };
            let read_bytes = match self.lookup(at) {
                Lookup::Copied(bytes) => {
                    let count = bytes.len().min(unread.len());
                    unread[..count].copy_from_slice(&bytes[..count]);
                    count
                }
                // A read ends with its live range, and the next range may begin there.
                Lookup::NotCopied { until } => {
                    let gap = first_bytes(unread, until - at);
                    self.live.as_ref().map_or(0, |live| live.read_some(at, gap))
                }
            };
            if read_bytes == 0 {
                break;
            }
            total_bytes += read_bytes;
        }
        total_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::target::live::ByPid;

    /// On this process: what is copied does not change, and other addresses are read in place.
    #[test]
    fn a_copy_stays_as_it_was() {
        let file = MemFile::new(File::open("/proc/self/mem").unwrap());
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut block = vec![7u8; 10 << 20];
        let start = block.as_ptr().addr() as u64;
        let (first, second) = (start + (1 << 20), start + (8 << 20));
        let runs = [AddressRange::new(start, first), AddressRange::new(second, start + (10 << 20))];
        let live = |end| Some(LiveRanges { ranges: vec![AddressRange::new(start, end)], file: &file });
        let refused = MemoryCopy::take(
            &ByPid::new(pid),
            runs.into_iter(),
            CopyBuffer(ReadBuffer::new(2 << 20)),
            3,
            live(0),
        );
        assert!(refused.is_none(), "the buffer is too small");
        let unmapped = [AddressRange::new(0x1000, 0x2000)].into_iter();
        let buffer = CopyBuffer(ReadBuffer::new(4096));
        let nothing = MemoryCopy::take(&ByPid::new(pid), unmapped, buffer, 1, None).unwrap();
        assert_eq!(nothing.bytes(), 0, "it could not be read");
        let buffer = CopyBuffer(ReadBuffer::new(4 << 20));
        let copy = MemoryCopy::take(&ByPid::new(pid), runs.into_iter(), buffer, 3, live(start + (10 << 20)))
            .unwrap();
        assert_eq!(copy.bytes(), 3 << 20);
        block.fill(9);
        let mut seen = vec![0; 10 << 20];
        assert_eq!(copy.read_some(start, &mut seen), seen.len());
        let copied = |at: u64| at < first || at >= second;
        let first_wrong = (start..).zip(&seen).find(|&(at, &byte)| byte != if copied(at) { 7 } else { 9 });
        assert_eq!(first_wrong, None);
        let mut word = [0; 8];
        assert_eq!(copy.read_some(first - 4, &mut word), 8);
        assert_eq!(word, [7, 7, 7, 7, 9, 9, 9, 9]);
        assert_eq!(copy.read_some(8, &mut word), 0, "nothing is there");
        assert_eq!(copy.read_some(u64::MAX - 3, &mut word), 0);
        let ranges = vec![AddressRange::new(start, first + 4), AddressRange::new(first + 4, second)];
        let adjacent = MemoryCopy { live: Some(LiveRanges { ranges, file: &file }), ..copy };
        assert_eq!((adjacent.read_some(first, &mut word), word), (8, [9; 8]));
    }
}

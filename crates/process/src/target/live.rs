//! The memory of a running or stopped process, read with `process_vm_readv` or `/proc/PID/mem`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use strandline_sys::memory;

use crate::map::{AddressSpace, Mapping};
use crate::memory::{Memory, PAIR_BYTES, WordPair, first_bytes, pair_at};
use crate::range::{AddressRange, containing};

/// A process's memory, addressed by process id. Fast, but meant for a stopped process: while it
/// runs, the id may come to belong to another program (exec) or process, so reads must be checked
/// later.
#[derive(Clone, Copy, Debug)]
pub struct ByPid {
    pid: i32,
}

impl ByPid {
    /// The memory of process `pid`.
    pub fn new(pid: i32) -> Self {
        Self { pid }
    }

    /// Reads pairs of words; those that `process_vm_readv` cannot read come from `fallback`.
    fn pairs(self, addresses: &[u64], fallback: &dyn Memory) -> Vec<Option<WordPair>> {
        let mut pairs = Vec::with_capacity(addresses.len());
        let mut bytes = vec![0; PAIR_BYTES * addresses.len().min(memory::MAX_RANGES)];
        while pairs.len() < addresses.len() {
            let unread = &addresses[pairs.len()..];
            // After a failure the first address is read from the fallback.
            let count = memory::read_many(self.pid, unread, PAIR_BYTES, &mut bytes).unwrap_or(0);
            pairs.extend((0..count).map(|index| pair_at(&bytes, PAIR_BYTES * index)));
            if count < unread.len().min(memory::MAX_RANGES) {
                // The address after the last successful one.
                pairs.push(addresses.get(pairs.len()).and_then(|&address| fallback.read_pair(address)));
            }
        }
        pairs
    }
}

impl Memory for ByPid {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        memory::read(self.pid, address, buffer).unwrap_or(0)
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        self.pairs(addresses, self)
    }
}

/// The memory of a stopped process, including pages that it protected from itself (such as a page
/// without access in the middle of a heap): the kernel lets a tracer read those through
/// /proc/PID/mem only (proc(5), FOLL_FORCE).
///
/// If the process shares pages with another one, as after a fork, all its private memory is read
/// that way: `process_vm_readv` pins what it reads, and from Linux 5.19 on the kernel copies a page
/// that two processes share before it pins it (`gup_must_unshare`, now in `mm/internal.h`).
/// Inspecting a child would double its memory.
///
/// Device mappings are never read through that file: it would also read device registers, and such
/// a read may have effects.
pub struct TracedMemory<'a> {
    live: ByPid,
    file: &'a MemFile,
    /// The mappings read through the file, in address order.
    by_file: Vec<AddressRange>,
    /// Whether the process may share private pages with another; then `by_file` has all its private
    /// mappings.
    is_shared: bool,
}

impl<'a> TracedMemory<'a> {
    /// The memory of process `pid` with the mappings `space` and the open /proc/PID/mem `file`;
    /// `is_shared` if it may share private pages with another process.
    pub fn new(pid: i32, space: &AddressSpace, file: &'a MemFile, is_shared: bool) -> Self {
        let is_read_by_file = |mapping: &&Mapping| {
            let is_anonymous = mapping.is_private_anonymous();
            if is_shared {
                let is_device = mapping.name.starts_with("/dev/");
                !mapping.permissions.shared && (is_anonymous || mapping.has_file() && !is_device)
            } else {
                is_anonymous && !mapping.permissions.read
            }
        };
        let by_file = space.mappings().iter().filter(is_read_by_file).map(Mapping::range).collect();
        Self { live: ByPid::new(pid), file, by_file, is_shared }
    }

    /// The first mapping read through the file that ends above `address`.
    fn next_by_file(&self, address: u64) -> Option<AddressRange> {
        let index = self.by_file.partition_point(|mapping| mapping.end <= address);
        self.by_file.get(index).copied()
    }

    /// Reads from the mapping that contains `address`, if it is read through the file.
    fn read_by_file(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(mapping) = containing(&self.by_file, address) else { return 0 };
        self.file.read_some(address, first_bytes(buffer, mapping.end - address))
    }

    /// Reads with `process_vm_readv`, up to the next mapping that must be read through the file.
    fn read_live(&self, address: u64, buffer: &mut [u8]) -> usize {
        if !self.is_shared {
            return self.live.read_some(address, buffer);
        }
        let until = self.next_by_file(address).map_or(u64::MAX, |mapping| mapping.start);
        let readable = first_bytes(buffer, until.saturating_sub(address));
        if readable.is_empty() { 0 } else { self.live.read_some(address, readable) }
    }
}

impl Memory for TracedMemory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut total_bytes = 0;
        while total_bytes < buffer.len() {
            let Some(at) = address.checked_add(total_bytes as u64) else { break };
            let Some(unread) = buffer.get_mut(total_bytes..) else { break };
            let read_bytes = match self.read_live(at, unread) {
                0 => self.read_by_file(at, unread),
                read_bytes => read_bytes,
            };
            if read_bytes == 0 {
                break;
            }
            total_bytes += read_bytes;
        }
        total_bytes
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        if !self.is_shared {
            return self.live.pairs(addresses, self);
        }
        addresses.iter().map(|&address| self.read_pair(address)).collect()
    }
}

/// A process's memory through an open /proc/PID/mem, which belongs to one program: after an exec,
/// reads return nothing. For a running process.
#[derive(Debug)]
pub struct MemFile {
    file: File,
}

impl MemFile {
    /// Takes an open /proc/PID/mem.
    pub fn new(file: File) -> Self {
        Self { file }
    }
}

impl Memory for MemFile {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut total_bytes = 0;
        while total_bytes < buffer.len() {
            match self.file.read_at(&mut buffer[total_bytes..], address.saturating_add(total_bytes as u64)) {
                Ok(0) | Err(_) => break,
                Ok(read_bytes) => total_bytes += read_bytes,
            }
        }
        total_bytes
    }
}

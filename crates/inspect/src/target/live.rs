//! The memory of a running or stopped process, through `process_vm_readv`, and `/proc/PID/mem` for what the process
//! itself may not read.

use std::fs::File;
use std::os::unix::fs::FileExt;

use strandline_sys::memory;

use crate::memory::{Memory, word_at};

/// A process's memory by its id. Fast; for a process that is stopped: while it runs, an id may
/// come to mean another program (exec) or another process, so what is read then must be checked later.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pid: i32,
}

impl Live {
    /// The memory of process `pid`.
    pub fn new(pid: i32) -> Self {
        Self { pid }
    }

    /// Reads memory that the process protected (a page without access in the middle of a heap): the kernel gives it
    /// to whoever traces the process, by this way only (proc(5), FOLL_FORCE).
    fn read_protected(&self, address: u64, buffer: &mut [u8]) -> usize {
        let file = File::open(format!("/proc/{}/mem", self.pid));
        file.map_or(0, |file| Opened::new(file).read_some(address, buffer))
    }
}

impl Memory for Live {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let got = memory::read(self.pid, address, buffer).unwrap_or(0);
        match buffer.get_mut(got..) {
            Some(rest) if !rest.is_empty() => {
                got + self.read_protected(address.saturating_add(got as u64), rest)
            }
            _ => got,
        }
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<(u64, u64)>> {
        let mut pairs = Vec::with_capacity(addresses.len());
        let mut bytes = vec![0; 16 * addresses.len().min(memory::MOST_RANGES)];
        while pairs.len() < addresses.len() {
            let rest = &addresses[pairs.len()..];
            let got = memory::read_many(self.pid, rest, 16, &mut bytes).unwrap_or(0);
            pairs.extend((0..got).map(|n| Some((word_at(&bytes, 16 * n)?, word_at(&bytes, 16 * n + 8)?))));
            if got < rest.len().min(memory::MOST_RANGES) {
                // The one that follows the last good one cannot be read in this way.
                let mut pair = [0; 16];
                let got = addresses.get(pairs.len()).map_or(0, |&address| self.read_some(address, &mut pair));
                pairs.push((got == 16).then(|| Some((word_at(&pair, 0)?, word_at(&pair, 8)?))).flatten());
            }
        }
        pairs
    }
}

/// A process's memory by an open /proc/PID/mem, which stays that of one program: after an exec, reads
/// end. For a process that runs.
#[derive(Debug)]
pub struct Opened {
    file: File,
}

impl Opened {
    /// Takes an open /proc/PID/mem.
    pub fn new(file: File) -> Self {
        Self { file }
    }
}

impl Memory for Opened {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut got = 0;
        while got < buffer.len() {
            match self.file.read_at(&mut buffer[got..], address.saturating_add(got as u64)) {
                Ok(0) | Err(_) => break,
                Ok(more) => got += more,
            }
        }
        got
    }
}

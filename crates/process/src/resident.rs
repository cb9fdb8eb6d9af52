//! A view of a target's memory in which only resident pages can be read.
//!
//! Reading an absent page would make the kernel bring it in (from swap, from a file, or as a zero
//! page): inspecting the target would make it grow.

use crate::memory::{Memory, PAIR_BYTES, WordPair, first_bytes};
use crate::pages::Residency;

/// A view of memory restricted to resident pages; see the module.
pub struct Resident<'a> {
    memory: &'a dyn Memory,
    residency: &'a Residency,
}

impl<'a> Resident<'a> {
    /// Restricts `memory` to the pages of `residency`.
    pub fn new(memory: &'a dyn Memory, residency: &'a Residency) -> Self {
        Self { memory, residency }
    }
}

impl Memory for Resident<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let end = address.saturating_add(buffer.len() as u64);
        let mut until = address;
        for run in self.residency.runs_in(address..end) {
            if run.start > until {
                break;
            }
            until = run.end;
        }
        let readable = first_bytes(buffer, until - address);
        if readable.is_empty() { 0 } else { self.memory.read_some(address, readable) }
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        let last_byte = |address: u64| address.saturating_add(PAIR_BYTES as u64 - 1);
        let is_resident = |&address: &u64| {
            self.residency.is_resident(address) && self.residency.is_resident(last_byte(address))
        };
        let resident: Vec<u64> = addresses.iter().copied().filter(is_resident).collect();
        let mut pairs = self.memory.read_pairs(&resident).into_iter();
        addresses
            .iter()
            .map(|address| if is_resident(address) { pairs.next().flatten() } else { None })
            .collect()
    }
}

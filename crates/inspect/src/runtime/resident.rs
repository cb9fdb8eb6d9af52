//! A target's memory, of which only resident pages can be read.
//!
//! Reading a page that is not there would have the kernel bring it in (from swap, from a file, or a page of zeros):
//! the target would grow by being looked at.

use crate::memory::Memory;
use crate::pages::Residency;

/// See the module.
pub struct Resident<'a, M> {
    memory: M,
    residency: &'a Residency,
}

impl<'a, M: Memory> Resident<'a, M> {
    /// `memory`, as far as it is in `residency`.
    pub fn new(memory: M, residency: &'a Residency) -> Self {
        Self { memory, residency }
    }
}

impl<M: Memory> Memory for Resident<'_, M> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let end = address.saturating_add(buffer.len() as u64);
        let mut until = address;
        for run in self.residency.runs_in(address..end) {
            if run.start > until {
                break;
            }
            until = run.end;
        }
        let length = usize::try_from(until - address).unwrap_or(0).min(buffer.len());
        match buffer.get_mut(..length) {
            Some(readable) if length > 0 => self.memory.read_some(address, readable),
            _ => 0,
        }
    }
}

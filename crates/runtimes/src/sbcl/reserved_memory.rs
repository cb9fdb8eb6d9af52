//! Memory for a copy of the target's objects, taken before the target is stopped.
//!
//! Half of the time of a copy goes into the pages that it is written to: the kernel allocates and
//! clears each page at its first touch. So this touches them while the target still runs, for the
//! size that its records then give.

use std::sync::{Arc, Mutex};

use crate::sbcl::layout::GC_PAGE_BYTES;
use strandline_process::buffer::ReadBuffer;
use strandline_process::target::budget;

/// Bytes reserved for what the target allocates until it is stopped, and for the spaces besides
/// dynamic space.
const SPARE_BYTES: u64 = 48 << 20;

/// Memory reserved for a copy.
#[derive(Clone, Default)]
pub struct ReservedMemory(Arc<Mutex<ReadBuffer>>);

impl std::fmt::Debug for ReservedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReservedMemory({} bytes)", self.bytes())
    }
}

impl ReservedMemory {
    /// Reserves what a copy of a program's objects may need, if the budget allows it; `value` reads
    /// the program's variables.
    pub fn reserve(value: &dyn Fn(&str) -> Option<u64>) -> Self {
        // If the variables cannot be read yet, only spare memory is reserved: `take` allocates what
        // is missing.
        let used_bytes = value("bytes_allocated").unwrap_or(0);
        let space_bytes = value("page_table_pages").unwrap_or(0).saturating_mul(GC_PAGE_BYTES);
        // Pages in use also have unused bytes, which are copied too.
        let wanted_bytes = used_bytes.saturating_add(used_bytes / 32).saturating_add(SPARE_BYTES);
        let wanted_bytes = wanted_bytes.checked_next_multiple_of(GC_PAGE_BYTES);
        let is_affordable =
            |wanted_bytes: &u64| used_bytes <= space_bytes && *wanted_bytes <= budget::copy_budget_bytes(0);
        let Some(wanted_bytes) = wanted_bytes.filter(is_affordable) else { return Self::default() };
        let buffer = usize::try_from(wanted_bytes).ok().and_then(ReadBuffer::prefaulted);
        Self(Arc::new(Mutex::new(buffer.unwrap_or_default())))
    }

    /// Bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.0.lock().map_or(0, |bytes| bytes.len() as u64)
    }

    /// Hands out `bytes` bytes, all zero: the reserved ones, or new ones if too few are reserved.
    /// `None` if there is too little memory.
    pub fn take(&self, bytes: usize) -> Option<ReadBuffer> {
        let mut reserved =
            self.0.lock().map(|mut reserved| std::mem::take(&mut *reserved)).unwrap_or_default();
        if reserved.len() < bytes {
            drop(reserved);
            return ReadBuffer::prefaulted(bytes);
        }
        reserved.resize(bytes);
        Some(reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_has_the_requested_size() {
        let reserved = ReservedMemory(Arc::new(Mutex::new(ReadBuffer::new(100))));
        assert_eq!(
            (reserved.bytes(), reserved.clone().take(60).map(|taken| taken.len()), reserved.bytes()),
            (100, Some(60), 0)
        );
        assert_eq!(reserved.take(200).as_deref(), Some(&[0; 200][..]));
        assert!(reserved.take(usize::MAX / 2).is_none(), "refused without a panic");
    }

    #[test]
    fn nothing_is_reserved_for_impossible_sizes() {
        for used in [u64::MAX, u64::MAX / 2] {
            assert_eq!(ReservedMemory::reserve(&|_| Some(used)).bytes(), 0, "{used:#x}");
        }
    }
}

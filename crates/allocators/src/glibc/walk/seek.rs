//! Searches the next place where a chain of chunks is consistent.

use strandline_claims::window::PeekedPair;

use super::{FENCEPOST_HEAD, MAX_FAR_READS, Walker};
use crate::glibc::layout;

/// Consecutive plausible chunks that a place must start to be accepted.
const MIN_CHAIN: usize = 12;

impl Walker<'_> {
    /// Returns the first multiple of `step`, from `from` on, at which a chain of chunks is
    /// consistent, or the top chunk. `None` if the region has no such place, or if the deadline
    /// passes; after [`MAX_FAR_READS`] only the top chunk is such a place.
    pub(super) fn seek(&mut self, from: u64, step: u64) -> Option<u64> {
        let mut at = from.checked_next_multiple_of(step)?;
        while at + layout::MIN_CHUNK_BYTES <= self.region.end {
            if at >= self.limit {
                self.has_given_up = true;
                return None;
            }
            if self.region.top.is_some_and(|top| top.address == at) {
                return Some(at);
            }
            if !self.window.pages().is_resident(at) {
                // A chunk's header makes its page resident: continue at the next resident page.
                let next = self.window.pages().runs_in(at, self.region.end).next()?.start;
                at = self.top_before(at, next).unwrap_or_else(|| next.next_multiple_of(step));
                continue;
            }
            let (_, head) = self.window.pair(at);
            if self.window.is_late() {
                return None;
            }
            if head & layout::PREV_INUSE != 0 && self.is_plausible(at, head) && self.is_chain(at, head) {
                return Some(at);
            }
            if self.far_reads >= MAX_FAR_READS {
                return self.region.top.map(|top| top.address).filter(|&top| top > at);
            }
            at += step;
        }
        None
    }

    /// Returns the top chunk if it is in `from..until`.
    fn top_before(&self, from: u64, until: u64) -> Option<u64> {
        self.region.top.map(|top| top.address).filter(|top| (from..until).contains(top))
    }

    /// Whether plausible chunks follow each other from the one at `at` on.
    fn is_chain(&mut self, at: u64, head: u64) -> bool {
        let (mut at, mut head) = (at, head);
        for _ in 0..MIN_CHAIN {
            let bytes = head & !layout::SIZE_BITS;
            let next = at + bytes;
            if self.region.top.is_some_and(|top| top.address == next) {
                return true;
            }
            let Some(PeekedPair { pair, is_far }) = self.window.peek(next) else { return false };
            let (previous_bytes, next_head) = pair;
            self.far_reads = self.far_reads.saturating_add(u32::from(is_far));
            if next_head & layout::PREV_INUSE == 0 && previous_bytes != bytes {
                return false;
            }
            if next_head & !layout::SIZE_BITS == layout::FENCEPOST_BYTES {
                return self.is_fencepost(next, next_head);
            }
            if !self.is_plausible(next, next_head) {
                return false;
            }
            (at, head) = (next, next_head);
        }
        true
    }

    /// Whether a pair of fenceposts begins at `at`, after a chunk that may be free; no other bits
    /// are ever set there. In a secondary arena the second one has size 0.
    fn is_fencepost(&mut self, at: u64, head: u64) -> bool {
        let second_head = self.window.peek(at + layout::FENCEPOST_BYTES).map(|peeked| peeked.pair.1);
        head & !layout::PREV_INUSE & !layout::NON_MAIN_ARENA == layout::FENCEPOST_BYTES
            && (head & layout::NON_MAIN_ARENA == 0 || !self.region.is_main)
            && self.region.end - at >= 2 * layout::FENCEPOST_BYTES
            && second_head.is_some_and(|head| {
                head == FENCEPOST_HEAD || !self.region.is_main && head & !layout::SIZE_BITS == 0
            })
    }

    /// Whether `head` can be the size word of a chunk at `at`.
    #[inline]
    pub(super) fn is_plausible(&self, at: u64, head: u64) -> bool {
        let bytes = head & !layout::SIZE_BITS;
        bytes >= layout::MIN_CHUNK_BYTES
            && bytes.is_multiple_of(layout::ALIGNMENT)
            && bytes < self.region.end - at
            && head & layout::IS_MMAPPED == 0
            && (head & layout::NON_MAIN_ARENA == 0 || !self.region.is_main)
    }
}

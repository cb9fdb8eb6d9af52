//! Totals of musl's memory, for either of its mallocs, and the facts derived from them.

use std::collections::BTreeMap;

use crate::parallel::impl_totals;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::{Allocator, SizeClass, figures};
use strandline_claims::refinements::Matches;

/// Totals of all claims.
#[derive(Default)]
pub struct Counts {
    /// Blocks in use.
    pub live_blocks: u64,
    /// Bytes requested for them; before mallocng, their capacity.
    pub live_bytes: u64,
    /// Bytes of free slots or chunks.
    pub free_bytes: u64,
    /// Bytes of the heads of groups or chunks.
    pub head_bytes: u64,
    /// Blocks with their own mapping.
    pub mapped_blocks: u64,
    /// Blocks by size class.
    pub classes: BTreeMap<usize, SizeClass>,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid structures, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl_totals! { Counts: live_blocks, live_bytes, free_bytes, head_bytes, mapped_blocks }

impl Counts {
    /// Converts the totals to facts of an allocator `found_by` something, with `area_bytes` of
    /// metadata besides heads; without sums if not all of it was read. musl keeps no statistics:
    /// `statistics` are the numbers of its structures, by their names.
    pub fn facts(&self, found_by: String, area_bytes: u64, statistics: &[(&str, u64)]) -> Allocator {
        let allocator =
            Allocator { name: super::ABOUT.name.to_owned(), found_by, read: true, ..Allocator::default() };
        if !self.doubts.is_empty() {
            return allocator;
        }
        Allocator {
            live_bytes: Some(self.live_bytes),
            live_blocks: Some(self.live_blocks),
            cached_bytes: Some(0),
            free_bytes: Some(self.free_bytes),
            metadata_bytes: Some(area_bytes + self.head_bytes),
            own: figures(statistics),
            size_classes: self.classes.values().cloned().collect(),
            ..allocator
        }
    }
}

//! Counts memory that would be released without certain blocks.
//!
//! A page counts if it is resident, part of it is free, and all blocks that touch it have one type,
//! have one root, or are unreachable. So does memory that a runtime releases as a whole (an arena
//! of CPython), if at least half of its resident bytes are free.

use std::collections::HashMap;

use strandline_claims::range::PAGE_BYTES;
use strandline_holders::{DominatorTree, NO_ROOT};
use strandline_process::pages::Residency;
use strandline_process::range::AddressRange;

use super::counted;
use super::runtimes::RuntimeBlocks;
use super::types::Types;

/// Overhead of an allocator for each block on a page: a header of two words.
const OVERHEAD_BYTES: u64 = 16;
/// Minimum of free bytes on a page that counts.
const MIN_FREE_BYTES: u64 = 64;
/// Maximum number of pairs of a root and a type that are counted.
pub const MAX_PAIRS: usize = 1 << 18;

/// Resident bytes of the memory that counts ("pinned" memory).
pub struct Pins {
    /// By root.
    pub bytes_by_root: Vec<u64>,
    /// By type.
    pub bytes_by_type: Vec<u64>,
    /// Kept by unreachable blocks.
    pub unreachable_bytes: u64,
    /// By root and type.
    pub bytes_by_root_and_type: HashMap<RootAndType, u64>,
    /// Of pairs of a root and a type beyond the maximum.
    pub other_pairs_bytes: u64,
}

/// A root and a type of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootAndType {
    /// The root; [`NO_ROOT`] for unreachable blocks.
    pub root: u32,
    /// The type, as [`Types::kind`].
    pub kind: u32,
}

/// Memory that is released as a whole, and the blocks in it so far.
struct Unit {
    range: AddressRange,
    /// Whether it is a page of an allocator.
    is_page: bool,
    /// Bytes of the blocks in it, with their overhead.
    used_bytes: u64,
    /// The root that all of its blocks have; `None` if they differ.
    root: Option<u32>,
    /// The type that all of its blocks have, as [`Types::kind`]; `None` if they differ.
    kind: Option<u32>,
}

impl Unit {
    /// Returns the bytes that are released once its blocks are; 0 if it does not count.
    fn pinned_bytes(&self, residency: &Residency) -> u64 {
        let resident = residency.resident_bytes_in(self.range.start..self.range.end);
        let max_used = if self.is_page { resident.saturating_sub(MIN_FREE_BYTES) } else { resident / 2 };
        if self.used_bytes <= max_used { resident } else { 0 }
    }
}

impl Pins {
    /// Counts the memory. `roots` has the root of each block. Blocks in memory of runtimes that is
    /// not released in known units are left out.
    pub fn count(
        held: &DominatorTree,
        roots: &[u32],
        types: &Types,
        runtime_blocks: &RuntimeBlocks<'_>,
        residency: &Residency,
    ) -> Self {
        let (bytes_by_root, bytes_by_type) = (vec![0; held.root_count() as usize], vec![0; types.count()]);
        let mut pins = Self {
            bytes_by_root,
            bytes_by_type,
            unreachable_bytes: 0,
            bytes_by_root_and_type: HashMap::new(),
            other_pairs_bytes: 0,
        };
        let mut unit: Option<Unit> = None;
        for (index, block) in held.blocks().iter(0).enumerate() {
            let (root, kind) = (roots.get(index).copied().unwrap_or(NO_ROOT), types.kind(index));
            let runtime_unit = unit.as_ref().filter(|unit| !unit.is_page);
            let current_range =
                runtime_unit.map(|unit| unit.range).filter(|range| range.contains(block.start));
            let mut add_to_unit = |range: AddressRange, is_page, used_bytes| match &mut unit {
                Some(unit) if unit.range == range => {
                    unit.used_bytes += used_bytes;
                    unit.root = unit.root.filter(|&unit_root| unit_root == root);
                    unit.kind = unit.kind.filter(|&unit_kind| unit_kind == kind);
                }
                _ => {
                    let next = Unit { range, is_page, used_bytes, root: Some(root), kind: Some(kind) };
                    pins.add_unit(unit.replace(next), residency);
                }
            };
            if let Some(range) = current_range.or_else(|| runtime_blocks.unit(block.start)) {
                add_to_unit(range, false, block.len());
                continue;
            }
            if runtime_blocks.contains(block.start) {
                continue;
            }
            let (first, last) = (block.start / PAGE_BYTES, block.end.saturating_sub(1) / PAGE_BYTES);
            // Pages in between contain nothing but the block.
            for number in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
                let page = AddressRange::sized(number * PAGE_BYTES, PAGE_BYTES);
                let bytes_on_page = block.end.min(page.end) - block.start.max(page.start);
                add_to_unit(page, true, bytes_on_page + OVERHEAD_BYTES);
            }
        }
        pins.add_unit(unit, residency);
        pins
    }

    /// Counts a unit all of whose blocks were added.
    fn add_unit(&mut self, unit: Option<Unit>, residency: &Residency) {
        let Some(unit) = unit else { return };
        let bytes = unit.pinned_bytes(residency);
        if bytes == 0 {
            return;
        }
        match unit.root {
            Some(NO_ROOT) => self.unreachable_bytes += bytes,
            Some(root) => add_to_sum(&mut self.bytes_by_root, root, bytes),
            None => {}
        }
        if let Some(kind) = unit.kind {
            add_to_sum(&mut self.bytes_by_type, kind, bytes);
        }
        if let Some((root, kind)) = unit.root.zip(unit.kind) {
            match counted(&mut self.bytes_by_root_and_type, RootAndType { root, kind }, MAX_PAIRS) {
                Some(sum) => *sum += bytes,
                None => self.other_pairs_bytes += bytes,
            }
        }
    }
}

/// Adds bytes to the sum with this index, if there is one.
fn add_to_sum(sums: &mut [u64], index: u32, bytes: u64) {
    if let Some(sum) = sums.get_mut(index as usize) {
        *sum += bytes;
    }
}

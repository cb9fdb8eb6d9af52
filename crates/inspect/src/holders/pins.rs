//! Counts pages that would be free without certain blocks.
//!
//! A page counts if it is resident, part of it is free, and all blocks that touch it have one type,
//! have one root, or are lost: without these blocks it would be free.

use std::collections::HashMap;

use strandline_claims::range::PAGE_BYTES;
use strandline_holders::{DominatorTree, NO_ROOT};
use strandline_process::pages::Residency;
use strandline_process::range::AddressRange;

use super::runtimes::RuntimeBlocks;
use super::types::Types;

/// Overhead of an allocator on a page for each block, and minimum of free bytes on a page that
/// counts.
const OVERHEAD_BYTES: u64 = 16;
const MIN_FREE_BYTES: u64 = 64;
/// Maximum number of pairs of a root and a type.
const MAX_PAIRS: usize = 1 << 18;

/// Resident bytes of pages that count.
pub struct Pins {
    /// By root.
    pub of_roots: Vec<u64>,
    /// By type.
    pub of_types: Vec<u64>,
    /// Kept by lost blocks.
    pub of_lost: u64,
    /// By root and type.
    pub of_root_and_type: HashMap<RootAndType, u64>,
}

/// A root and a type of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootAndType {
    /// The root; [`NO_ROOT`] for lost blocks.
    pub root: u32,
    /// The type.
    pub kind: u32,
}

/// A page, and the blocks on it so far.
struct Page {
    address: u64,
    used: u64,
    /// The root that all of its blocks have; `None` if they differ.
    root: Option<u32>,
    /// The type that all of its blocks have; `None` if they differ.
    kind: Option<u32>,
}

impl Pins {
    /// Counts the pages. `roots` has the root of each block. Blocks in runtimes' own memory are
    /// left out: that memory is not released page by page.
    pub fn count(
        held: &DominatorTree,
        roots: &[u32],
        types: &Types,
        own: &RuntimeBlocks<'_>,
        residency: &Residency,
    ) -> Self {
        let (of_roots, of_types) = (vec![0; held.root_count() as usize], vec![0; types.count()]);
        let mut pins = Self { of_roots, of_types, of_lost: 0, of_root_and_type: HashMap::new() };
        let mut page: Option<Page> = None;
        let blocks = held.blocks().iter(0).enumerate();
        for (index, AddressRange { start, end }) in blocks.filter(|(_, block)| !own.contain(block.start)) {
            let (root, kind) = (roots.get(index).copied().unwrap_or(NO_ROOT), types.kind(index));
            let (first, last) = (start / PAGE_BYTES, end.saturating_sub(1) / PAGE_BYTES);
            // Pages in between contain nothing but the block.
            for number in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
                let address = number * PAGE_BYTES;
                let used = end.min(address + PAGE_BYTES) - start.max(address) + OVERHEAD_BYTES;
                match page.as_mut().filter(|page| page.address == address) {
                    Some(page) => {
                        page.used += used;
                        page.root = page.root.filter(|&known| known == root);
                        page.kind = page.kind.filter(|&known| known == kind);
                    }
                    None => {
                        let new = Page { address, used, root: Some(root), kind: Some(kind) };
                        pins.add_page(page.replace(new), residency);
                    }
                }
            }
        }
        pins.add_page(page, residency);
        pins
    }

    fn add_page(&mut self, page: Option<Page>, residency: &Residency) {
        let Some(page) = page else { return };
        if page.used + MIN_FREE_BYTES > PAGE_BYTES || !residency.is_resident(page.address) {
            return;
        }
        match page.root {
            Some(NO_ROOT) => self.of_lost += PAGE_BYTES,
            Some(root) => add(&mut self.of_roots, root),
            None => {}
        }
        if let Some(kind) = page.kind {
            add(&mut self.of_types, kind);
        }
        let pair = page.root.zip(page.kind).map(|(root, kind)| RootAndType { root, kind });
        if let Some(pair) = pair
            && (self.of_root_and_type.len() < MAX_PAIRS || self.of_root_and_type.contains_key(&pair))
        {
            *self.of_root_and_type.entry(pair).or_default() += PAGE_BYTES;
        }
    }
}

fn add(sums: &mut [u64], index: u32) {
    if let Some(sum) = sums.get_mut(index as usize) {
        *sum += PAGE_BYTES;
    }
}

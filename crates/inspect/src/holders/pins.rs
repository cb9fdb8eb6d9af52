//! Whose blocks keep pages that are free but for them.
//!
//! A page counts where it is resident, some of it is free, and all blocks that touch it are of one type, of one root, or lost: it would
//! be wholly free without these.

use std::collections::HashMap;

use strandline_claims::range::PAGE_BYTES;
use strandline_holders::{Held, NO_ROOT};
use strandline_process::pages::Residency;

use super::runtimes::OwnBlocks;
use super::types::Types;

/// What an allocator may keep of a page beside each block, and what is no free place yet.
const OVERHEAD_BYTES: u64 = 16;
const MIN_FREE_BYTES: u64 = 64;
/// Pairs of a root and a type that are told apart.
const MAX_PAIRS: usize = 1 << 18;

/// Resident bytes of such pages.
pub struct Pins {
    /// By root.
    pub of_roots: Vec<u64>,
    /// By type.
    pub of_types: Vec<u64>,
    /// Of lost blocks.
    pub of_lost: u64,
    /// Of one root's or lost blocks of one type.
    pub of_both: HashMap<(u32, u32), u64>,
}

/// A page, as far as its blocks are known.
struct Page {
    address: u64,
    used: u64,
    /// The one root and the one type that all of its blocks have.
    top: Option<u32>,
    kind: Option<u32>,
}

impl Pins {
    /// Counts them. `tops` has the root of each block, of which there are `roots`.
    /// Runtimes' own memory is not given back by pages.
    pub fn count(
        held: &Held,
        (tops, roots): (&[u32], usize),
        (types, own): (&Types, &OwnBlocks<'_>),
        residency: &Residency,
    ) -> Self {
        let (of_roots, of_types) = (vec![0; roots], vec![0; types.count()]);
        let mut pins = Self { of_roots, of_types, of_lost: 0, of_both: HashMap::new() };
        let mut page: Option<Page> = None;
        let all = held.blocks().iter(0).enumerate();
        for (index, (start, bytes)) in all.filter(|(_, block)| !own.have(block.0)) {
            let (top, kind) = (tops.get(index).copied().unwrap_or(NO_ROOT), types.of(index));
            let end = start.saturating_add(bytes);
            let (first, last) = (start / PAGE_BYTES, end.saturating_sub(1) / PAGE_BYTES);
            // What is between is all the block's.
            for number in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
                let address = number * PAGE_BYTES;
                let used = end.min(address + PAGE_BYTES) - start.max(address) + OVERHEAD_BYTES;
                match page.as_mut().filter(|page| page.address == address) {
                    Some(page) => {
                        page.used += used;
                        page.top = page.top.filter(|&of| of == top);
                        page.kind = page.kind.filter(|&of| of == kind);
                    }
                    None => {
                        let new = Page { address, used, top: Some(top), kind: Some(kind) };
                        pins.take(page.replace(new), residency);
                    }
                }
            }
        }
        pins.take(page, residency);
        pins
    }

    fn take(&mut self, page: Option<Page>, residency: &Residency) {
        let Some(page) = page else { return };
        if page.used + MIN_FREE_BYTES > PAGE_BYTES || !residency.is_resident(page.address) {
            return;
        }
        match page.top {
            Some(NO_ROOT) => self.of_lost += PAGE_BYTES,
            Some(root) => add(&mut self.of_roots, root),
            None => {}
        }
        if let Some(kind) = page.kind {
            add(&mut self.of_types, kind);
        }
        if let (Some(top), Some(kind)) = (page.top, page.kind)
            && (self.of_both.len() < MAX_PAIRS || self.of_both.contains_key(&(top, kind)))
        {
            *self.of_both.entry((top, kind)).or_default() += PAGE_BYTES;
        }
    }
}

fn add(sums: &mut [u64], index: u32) {
    if let Some(sum) = sums.get_mut(index as usize) {
        *sum += PAGE_BYTES;
    }
}

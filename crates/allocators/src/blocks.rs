//! Claims blocks in use; claims of other readers inside a block refine it.

use strandline_claims::accumulator::Accumulator;
use strandline_claims::allocator::Context;
use strandline_claims::refinements::{Finder, Matches};

/// The refinements of one allocator's blocks: claims of other readers inside them.
pub struct Blocks<'a> {
    finder: Option<Finder<'a>>,
    /// The refinements found so far, and all blocks in use if they are kept ([`Matches::blocks`]).
    pub matched: Matches,
}

impl<'a> Blocks<'a> {
    /// Takes the refinements from `context`.
    pub fn new(context: &Context<'a>) -> Self {
        Self {
            finder: context.refinements.map(|refinements| refinements.finder()),
            matched: Matches::new(context.collects_blocks),
        }
    }

    /// Whether every block must be claimed by itself; otherwise adjacent blocks can be claimed as
    /// one.
    pub fn are_refined(&self) -> bool {
        self.finder.is_some() || self.matched.blocks.is_some()
    }

    /// Claims a block in use from the cursor to `end`.
    pub fn claim(&mut self, end: u64, accumulator: &mut Accumulator<'_>) {
        let pointer = accumulator.cursor();
        let Some(finder) = &mut self.finder else {
            self.matched.push_block(pointer, end.saturating_sub(pointer));
            accumulator.claim_live(end, 0);
            return;
        };
        let nested = finder.nested(pointer, end);
        if !nested.is_empty() {
            self.matched.nested.extend_from_slice(nested);
            accumulator.claim_nesting(end, 0, nested);
            return;
        }
        self.matched.push_block(pointer, end.saturating_sub(pointer));
        if let Some(refined) = finder.find(pointer, end - pointer) {
            self.matched.count(pointer, &refined);
            accumulator.claim_refined(end, 0, &refined);
        } else {
            accumulator.claim_live(end, 0);
        }
    }
}

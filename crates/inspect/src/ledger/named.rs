//! Counts the resident bytes of blocks with named holders.
//!
//! A block's row contains them already; here they are counted again, block by block, by the same
//! rule: resident, and not on an all-zero page.

use super::inputs::Inputs;
use super::rows::NamedHolders;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::{SlotEntry, SlotTable};
use strandline_process::range::{AddressRange, RangeSet};

/// Adds the bytes of each named block to `holders`.
pub fn add_named_blocks(inputs: &Inputs<'_>, palette: &SlotTable, holders: &mut NamedHolders) {
    if inputs.runtime_readings.iter().all(|reading| reading.named_blocks.is_empty()) {
        return;
    }
    let mut zeros: RangeSet =
        inputs.allocator_readings.iter().flat_map(|reading| &reading.zero_runs).copied().collect();
    zeros.add(inputs.zero_runs.iter().copied());
    for reading in inputs.runtime_readings {
        for named in &reading.named_blocks {
            let Some(SlotEntry { row, .. }) = palette.get(named.slot) else { continue };
            // The allocator's ranges count a block's bytes `payload_offset_bytes` lower than its
            // pointer. A block with its own mapping is in no range, and has no offset.
            let has_block = |claim: &RangeClaim| claim.start <= named.pointer && named.pointer < claim.end;
            let heap = inputs.allocator_readings.iter().find(|reading| reading.claims.iter().any(has_block));
            let offset_bytes = heap.map_or(0, |heap| heap.payload_offset_bytes);
            let start = named.pointer.saturating_sub(offset_bytes);
            let end = start.saturating_add(named.bytes);
            let resident_bytes = inputs.residency.resident_bytes_in(start..end);
            let zero_bytes: u64 = zeros.within((start, end)).map(AddressRange::len).sum();
            holders.add(row, &named.holder, resident_bytes.saturating_sub(zero_bytes));
        }
    }
}

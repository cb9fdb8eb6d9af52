//! Counts the resident bytes of blocks with named holders.
//!
//! A block's row contains them already; here they are counted again, block by block, by the same
//! rule: resident, and not on an all-zero page.

use super::inputs::Inputs;
use super::rows::NamedHolders;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::merge;

/// Adds the bytes of each named block to `holders`.
pub fn add_named_blocks(inputs: &Inputs<'_>, palette: &SlotTable, holders: &mut NamedHolders) {
    if inputs.runtimes.iter().all(|reading| reading.named_blocks.is_empty()) {
        return;
    }
    let mut zeros: Vec<(u64, u64)> = inputs
        .readings
        .iter()
        .flat_map(|reading| reading.zero_runs.iter().map(|run| (run.start, run.end)))
        .collect();
    zeros.extend_from_slice(inputs.zero_runs);
    merge(&mut zeros);
    for reading in inputs.runtimes {
        for named in &reading.named_blocks {
            let Some((id, _)) = palette.get(named.slot) else { continue };
            // The allocator's ranges count a block's payload `shift_bytes` lower than its pointer.
            let is_in = |claim: &&RangeClaim| claim.start <= named.pointer && named.pointer < claim.end;
            let of = inputs.readings.iter().find(|reading| reading.claims.iter().any(|claim| is_in(&claim)));
            let start = named.pointer.saturating_sub(of.map_or(0, |reading| reading.payload_offset_bytes));
            let end = start.saturating_add(named.bytes);
            let resident: u64 = inputs.residency.runs_in(start..end).map(|run| run.end - run.start).sum();
            let zero = within(&zeros, start, end);
            holders.add(id, &named.holder, resident.saturating_sub(zero));
        }
    }
}

/// Returns how many bytes of `start..end` are in `runs`, which are in address order and without
/// overlap.
fn within(runs: &[(u64, u64)], start: u64, end: u64) -> u64 {
    let first = runs.partition_point(|run| run.1 <= start);
    let overlap = runs[first..].iter().take_while(|run| run.0 < end);
    overlap.map(|run| run.1.min(end) - run.0.max(start)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_runs_are_counted() {
        let runs = [(0x1000, 0x2000), (0x3000, 0x5000)];
        assert_eq!(within(&runs, 0x1800, 0x3800), 0x1000);
        assert_eq!(within(&runs, 0, 0x1000), 0);
        assert_eq!(within(&runs, 0x5000, u64::MAX), 0);
    }
}

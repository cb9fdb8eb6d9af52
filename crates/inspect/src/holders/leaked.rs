//! Adds ledger rows for unreachable blocks, split off from the row of blocks in use of their
//! allocator.

use strandline_claims::rows::RowRef;
use strandline_holders::{DominatorTree, NO_ROOT};
use strandline_process::pages::Residency;
use strandline_process::range::AddressRange;

use crate::capture::FrozenState;
use crate::facts::Row;

/// Resident bytes of unreachable blocks on one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaked {
    /// The name of the row.
    pub id: &'static str,
    /// The row's default holder, for blocks without a named one.
    pub holder: &'static str,
    /// Resident bytes.
    pub bytes: u64,
}

/// Memory of an allocator whose blocks in use are on one row.
struct BlockRange {
    range: AddressRange,
    row: RowRef,
    /// Bytes from the start of a block in the address space to its pointer.
    payload_offset_bytes: u64,
}

/// Returns the resident bytes of unreachable blocks by row. `roots` has the root of each block.
/// Blocks that a runtime's reader refines are left out: they are on rows of the runtime.
pub fn resident(held: &DominatorTree, roots: &[u32], frozen: &FrozenState) -> Vec<Leaked> {
    let mut ranges: Vec<BlockRange> = Vec::new();
    for reading in &frozen.allocator_readings {
        // Without rows for its classes, no row of blocks in use can be split.
        let (Some(rows), payload_offset_bytes) = (reading.rows, reading.payload_offset_bytes) else {
            continue;
        };
        ranges.extend(reading.ranges().map(|range| BlockRange {
            range,
            row: rows.live,
            payload_offset_bytes,
        }));
        ranges.extend(reading.mapped_blocks.iter().map(|block| {
            let range = AddressRange::new(block.start, block.end);
            BlockRange { range, row: rows.mapped, payload_offset_bytes: 0 }
        }));
    }
    ranges.sort_unstable_by_key(|heap| heap.range);
    let mut finder = frozen.refinements.finder();
    let mut leaked: Vec<Leaked> = Vec::new();
    for (block, _) in held.blocks().iter(0).zip(roots).filter(|(_, root)| **root == NO_ROOT) {
        let (start, bytes) = (block.start, block.len());
        let index = ranges.partition_point(|heap| heap.range.start <= start).checked_sub(1);
        let heap = index.and_then(|index| ranges.get(index)).filter(|heap| start < heap.range.end);
        let Some(heap) = heap.filter(|_| finder.find(start, bytes).is_none()) else { continue };
        let block_start = start.saturating_sub(heap.payload_offset_bytes);
        let resident = resident_bytes(&frozen.residency, block_start, bytes);
        let (id, holder) = (heap.row.id, heap.row.holder);
        match leaked.iter_mut().find(|row| row.id == id) {
            Some(row) => row.bytes += resident,
            None => leaked.push(Leaked { id, holder, bytes: resident }),
        }
    }
    leaked
}

/// The resident anonymous bytes of a block.
fn resident_bytes(residency: &Residency, start: u64, bytes: u64) -> u64 {
    let runs = residency.runs_in(start..start.saturating_add(bytes)).filter(|run| run.is_anonymous);
    runs.map(|run| run.bytes()).sum()
}

/// Moves the bytes in `leaked` from the rows that they are on to new rows; on each row, first from
/// the default holder, then from named ones.
pub fn split_rows(rows: &mut Vec<Row>, leaked: &[Leaked]) {
    let mut leaked_rows: Vec<Row> = Vec::new();
    for Leaked { id, holder, bytes } in leaked {
        let mut remaining_bytes = *bytes;
        let (mut moved_bytes, mut template) = (0, None);
        for is_named in [false, true] {
            let same = rows.iter_mut().filter(|row| row.id == *id && (row.holder != *holder) == is_named);
            for row in same {
                let part = row.bytes.min(remaining_bytes);
                row.bytes -= part;
                remaining_bytes -= part;
                moved_bytes += part;
                template.get_or_insert_with(|| row.clone());
            }
        }
        let Some(template) = template else { continue };
        let id = format!("{}.leaked", id.split('.').next().unwrap_or_default());
        match leaked_rows.iter_mut().find(|row| row.id == id) {
            Some(row) => row.bytes += moved_bytes,
            None => {
                let holder = "blocks that no root reaches".to_owned();
                leaked_rows.push(Row { id, holder, bytes: moved_bytes, ..template });
            }
        }
    }
    rows.extend(leaked_rows);
    rows.retain(|row| row.bytes > 0);
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HolderKind, State};

    #[test]
    fn a_split_row_keeps_the_sum() {
        let row = |id: &str, holder: &str, bytes: u64| Row {
            id: id.to_owned(),
            holder: holder.to_owned(),
            bytes,
            stratum: HolderKind::Allocator,
            state: State::Live,
        };
        let of = |id, bytes| Leaked { id, holder: "malloc, in use", bytes };
        let mut rows = vec![
            row("glibc.live", "named", 100),
            row("glibc.live", "malloc, in use", 40),
            row("glibc.mmapped", "malloc, in use", 50),
            row("other", "other", 20),
        ];
        split_rows(&mut rows, &[of("glibc.live", 60), of("glibc.mmapped", 90), of("none", 5)]);
        let found: Vec<_> =
            rows.iter().map(|row| (row.id.as_str(), row.holder.as_str(), row.bytes)).collect();
        let leaked = ("glibc.leaked", "blocks that no root reaches", 110);
        assert_eq!(found, [leaked, ("glibc.live", "named", 80), ("other", "other", 20)]);
    }
}

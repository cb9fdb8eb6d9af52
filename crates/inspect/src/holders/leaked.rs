//! Adds ledger rows for unreachable blocks, split off from the row of blocks in use of their
//! allocator.

use strandline_holders::{DominatorTree, NO_ROOT};
use strandline_process::pages::Residency;

use crate::capture::Frozen;
use crate::facts::Row;

/// Resident bytes of lost blocks on one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaked {
    /// The name of the row.
    pub id: &'static str,
    /// The row's default holder, for blocks without a named one.
    pub holder: &'static str,
    /// Resident bytes.
    pub bytes: u64,
}

/// Returns the resident bytes of lost blocks by row. `tops` has the root of each block. Blocks that
/// a runtime's reader refines are left out: they are on rows of the runtime.
pub fn resident(held: &DominatorTree, tops: &[u32], frozen: &Frozen) -> Vec<Leaked> {
    let mut ranges: Vec<(u64, u64, (&str, &str), u64)> = Vec::new();
    for reading in &frozen.readings {
        let Some(rows) = reading.rows else { continue };
        ranges.extend(reading.ranges().map(|range| {
            (range.start, range.end, (rows.live.id, rows.live.holder), reading.payload_offset_bytes)
        }));
        let mapped = reading.mapped_blocks.iter();
        ranges.extend(mapped.map(|block| (block.start, block.end, (rows.mapped.id, rows.mapped.holder), 0)));
    }
    ranges.sort_unstable();
    let mut finder = frozen.refinements.finder();
    let mut leaked: Vec<Leaked> = Vec::new();
    for ((start, bytes), _) in held.blocks().iter(0).zip(tops).filter(|(_, top)| **top == NO_ROOT) {
        let index = ranges.partition_point(|range| range.0 <= start).checked_sub(1);
        let range = index.and_then(|index| ranges.get(index)).filter(|range| start < range.1);
        let Some(&(.., (id, holder), shift)) = range.filter(|_| finder.find(start, bytes).is_none()) else {
            continue;
        };
        let resident = resident_bytes(&frozen.residency, start - shift.min(start), bytes);
        match leaked.iter_mut().find(|known| known.id == id) {
            Some(known) => known.bytes += resident,
            None => leaked.push(Leaked { id, holder, bytes: resident }),
        }
    }
    leaked
}

fn resident_bytes(residency: &Residency, start: u64, bytes: u64) -> u64 {
    let end = start.saturating_add(bytes);
    let runs = residency.runs_in(start..end).filter(|run| run.anonymous);
    runs.map(|run| run.end.min(end) - run.start.max(start)).sum()
}

/// Moves the bytes in `leaked` from the rows that they are on to new rows, from default holders
/// first.
pub fn split(rows: &mut Vec<Row>, leaked: &[Leaked]) {
    let mut split: Vec<Row> = Vec::new();
    for of in leaked {
        let mut left = of.bytes;
        let (mut taken, mut like) = (0, None);
        for is_named in [false, true] {
            let same = rows.iter_mut().filter(|row| row.id == of.id && (row.holder != of.holder) == is_named);
            for row in same {
                let part = row.bytes.min(left);
                row.bytes -= part;
                left -= part;
                taken += part;
                like.get_or_insert_with(|| row.clone());
            }
        }
        let Some(like) = like else { continue };
        let id = format!("{}.leaked", of.id.split('.').next().unwrap_or_default());
        match split.iter_mut().find(|row| row.id == id) {
            Some(known) => known.bytes += taken,
            None => {
                let holder = "blocks that no root reaches".to_owned();
                split.push(Row { id, holder, bytes: taken, ..like });
            }
        }
    }
    rows.extend(split);
    rows.retain(|row| row.bytes > 0);
    rows.sort_by(|one, next| next.bytes.cmp(&one.bytes).then_with(|| one.id.cmp(&next.id)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HolderKind, State};

    #[test]
    fn a_row_is_split_and_the_sum_stays() {
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
        split(&mut rows, &[of("glibc.live", 60), of("glibc.mmapped", 90), of("none", 5)]);
        let found: Vec<_> =
            rows.iter().map(|row| (row.id.as_str(), row.holder.as_str(), row.bytes)).collect();
        let leaked = ("glibc.leaked", "blocks that no root reaches", 110);
        assert_eq!(found, [leaked, ("glibc.live", "named", 80), ("other", "other", 20)]);
    }
}

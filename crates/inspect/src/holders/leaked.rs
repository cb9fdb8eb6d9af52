//! A row of the ledger for blocks in use that nothing leads to: a part of what else is on their allocator's row of blocks in use.

use strandline_holders::{Held, NO_ROOT};
use strandline_process::pages::Residency;

use crate::explain::snapshot::Snapshot;
use crate::facts::{Explanation, Row};

/// Resident bytes of lost blocks, by the row that they are on.
pub type Leaked = Vec<(String, u64)>;

/// Adds them up, where `tops` has the root of each block. What a runtime knows more of is on rows of its own.
pub fn resident(held: &Held, tops: &[u32], snapshot: &Snapshot) -> Leaked {
    let mut ranges: Vec<(u64, u64, &str, u64)> = Vec::new();
    for reading in &snapshot.readings {
        let Some(rows) = reading.rows else { continue };
        ranges.extend(reading.ranges().map(|(from, to)| (from, to, rows.live.id, reading.shift_bytes)));
        let mapped = reading.mapped_blocks.iter();
        ranges.extend(mapped.map(|block| (block.start, block.end, rows.mapped.id, 0)));
    }
    ranges.sort_unstable();
    let mut finder = snapshot.refinements.finder();
    let mut leaked = Leaked::new();
    for ((start, bytes), _) in held.blocks().iter(0).zip(tops).filter(|(_, top)| **top == NO_ROOT) {
        let index = ranges.partition_point(|range| range.0 <= start).checked_sub(1);
        let range = index.and_then(|index| ranges.get(index)).filter(|range| start < range.1);
        let Some(&(.., row, shift)) = range.filter(|_| finder.find(start, bytes).is_none()) else { continue };
        let resident = resident_bytes(&snapshot.residency, start - shift.min(start), bytes);
        match leaked.iter_mut().find(|known| known.0 == row) {
            Some(known) => known.1 += resident,
            None => leaked.push((row.to_owned(), resident)),
        }
    }
    leaked
}

fn resident_bytes(residency: &Residency, start: u64, bytes: u64) -> u64 {
    let end = start.saturating_add(bytes);
    let runs = residency.runs_in(start..end).filter(|run| run.anonymous);
    runs.map(|run| run.end.min(end) - run.start.max(start)).sum()
}

/// Takes them from the rows that they are on.
pub fn split(explanation: &mut Explanation, leaked: &Leaked) {
    let mut split: Vec<Row> = Vec::new();
    for (id, bytes) in leaked {
        let Some(row) = explanation.rows.iter_mut().find(|row| row.id == *id) else { continue };
        let taken = row.bytes.min(*bytes);
        row.bytes -= taken;
        let id = format!("{}.leaked", id.split('.').next().unwrap_or_default());
        match split.iter_mut().find(|row| row.id == id) {
            Some(known) => known.bytes += taken,
            None => {
                let holder = format!("{}, to which nothing leads", row.holder);
                split.push(Row { id, holder, bytes: taken, ..row.clone() });
            }
        }
    }
    explanation.rows.extend(split);
    explanation.rows.retain(|row| row.bytes > 0);
    explanation.rows.sort_by(|one, next| next.bytes.cmp(&one.bytes).then_with(|| one.id.cmp(&next.id)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_split_and_the_sum_stays() {
        let row = |id: &str, bytes: u64| Row { id: id.to_owned(), bytes, ..Row::default() };
        let rows = vec![row("glibc.live", 100), row("glibc.mmapped", 50), row("other", 20)];
        let mut explanation = Explanation { rows, ..Explanation::default() };
        let leaked = vec![("glibc.live".into(), 30), ("glibc.mmapped".into(), 90), ("none".into(), 5)];
        split(&mut explanation, &leaked);
        let told: Vec<_> = explanation.rows.iter().map(|row| (row.id.as_str(), row.bytes)).collect();
        assert_eq!(told, [("glibc.leaked", 80), ("glibc.live", 70), ("other", 20)]);
    }
}

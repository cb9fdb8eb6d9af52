//! A ledger in a few numbers: its states, its largest rows, what its remedies would release.
//! Smaller rows are summed, so that states and rows each add up to the ledger's RSS.

use std::collections::BTreeMap;
use std::time::Instant;

use strandline_inspect::facts::Explanation;
use strandline_inspect::remedy::releases_now;

/// Maximum number of rows with series of their own.
const MAX_ROWS: usize = 12;
/// Maximum number of remedies with series of their own; smaller ones have none.
const MAX_REMEDIES: usize = 5;

/// Bytes with the value of their label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledBytes {
    /// A state, a row or a remedy.
    pub label: String,
    /// The bytes.
    pub bytes: u64,
}

impl LabelledBytes {
    fn new(label: &str, bytes: u64) -> Self {
        Self { label: label.to_owned(), bytes }
    }
}

/// What is exported of one ledger.
#[derive(Clone, Debug)]
pub struct Summary {
    /// When it was taken.
    pub at: Instant,
    /// RSS as the ledger counts it.
    pub rss_bytes: u64,
    /// Bytes by state, which add up to `rss_bytes`.
    pub states: Vec<LabelledBytes>,
    /// Bytes by row, largest first, with the rest as `other`; they add up to `rss_bytes` too.
    pub rows: Vec<LabelledBytes>,
    /// What remedies would release, largest first; without those that predict nothing.
    pub remedies: Vec<LabelledBytes>,
    /// Whether time ran out before everything was read.
    pub is_cut_short: bool,
}

impl Summary {
    /// Summary of `explanation`; rows below `row_share` of its RSS are summed.
    pub fn new(explanation: &Explanation, row_share: f64, at: Instant) -> Self {
        let rss_bytes = explanation.kernel.rss_bytes;
        let totals = &explanation.totals;
        let states = [
            ("live", totals.live),
            ("stranded", totals.stranded),
            ("pinned", totals.pinned),
            ("evictable", totals.evictable),
            ("unattributed", totals.unattributed),
        ]
        .map(|(state, bytes)| LabelledBytes::new(state, bytes))
        .to_vec();
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for row in &explanation.rows {
            // A row may have several holders.
            *sums.entry(&row.id).or_default() += row.bytes;
        }
        let min_row_bytes = (rss_bytes as f64 * row_share) as u64;
        sums.retain(|_, bytes| *bytes > 0);
        let mut rows = largest_first(sums);
        let shown_count = rows.iter().take(MAX_ROWS).take_while(|row| row.bytes >= min_row_bytes).count();
        let other_bytes: u64 = rows.split_off(shown_count).iter().map(|row| row.bytes).sum();
        if other_bytes > 0 {
            rows.push(LabelledBytes::new("other", other_bytes));
        }
        let mut predictions: BTreeMap<&str, u64> = BTreeMap::new();
        for remedy in explanation.remedies.iter().filter(|remedy| releases_now(remedy)) {
            if let Some(bytes) = remedy.predicted_bytes {
                // The best remedy of an id comes first.
                predictions.entry(&remedy.id).or_insert(bytes);
            }
        }
        let mut remedies = largest_first(predictions);
        remedies.truncate(MAX_REMEDIES);
        let is_cut_short = explanation.caveats.iter().any(|caveat| caveat.is_late());
        Self { at, rss_bytes, states, rows, remedies, is_cut_short }
    }
}

/// Bytes by label, in descending order.
fn largest_first(bytes_by_label: BTreeMap<&str, u64>) -> Vec<LabelledBytes> {
    let labelled = bytes_by_label.into_iter().map(|(label, bytes)| LabelledBytes::new(label, bytes));
    let mut labelled: Vec<LabelledBytes> = labelled.collect();
    labelled.sort_by_key(|labelled| std::cmp::Reverse(labelled.bytes));
    labelled
}

#[cfg(test)]
mod tests {
    use strandline_inspect::facts::{HolderKind, Row, State, Totals};

    use super::*;

    fn row(id: &str, bytes: u64) -> Row {
        Row {
            id: id.to_owned(),
            stratum: HolderKind::Allocator,
            state: State::Live,
            holder: String::new(),
            bytes,
        }
    }

    #[test]
    fn small_rows_are_summed_and_all_adds_up() {
        let mut explanation = Explanation::default();
        explanation.kernel.rss_bytes = 10_000;
        explanation.totals = Totals { live: 10_000, ..Totals::default() };
        explanation.rows =
            vec![row("a", 6_000), row("b", 3_000), row("a", 900), row("c", 99), row("d", 1), row("e", 0)];
        let summary = Summary::new(&explanation, 0.01, Instant::now());
        let rows: Vec<_> = summary.rows.iter().map(|row| (row.label.as_str(), row.bytes)).collect();
        assert_eq!(rows, [("a", 6_900), ("b", 3_000), ("other", 100)]);
        explanation.rows = (0..100).map(|n| row(&format!("r{n}"), 100)).collect();
        let summary = Summary::new(&explanation, 0.01, Instant::now());
        assert_eq!(summary.rows.len(), MAX_ROWS + 1);
        assert_eq!(summary.rows.iter().map(|row| row.bytes).sum::<u64>(), 10_000);
    }
}

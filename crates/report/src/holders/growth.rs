//! The tables of what grew since an earlier result.

use strandline_inspect::holders::growth::{Change, ChangedEntry, Comparison};

use super::LEAKED_NAME;
use super::names::{root_text, shown_type};
use crate::table::{Column, figures, words};
use crate::units::{bytes, seconds, thousands};

/// Columns of the table of roots.
pub const GROWTH_HEAD: [Column; 5] =
    [words("root"), figures("grew"), figures("blocks"), figures("now"), figures("rate")];
/// Columns of the table of types.
pub const TYPE_GROWTH_HEAD: [Column; 5] =
    [words("type"), figures("grew"), figures("instances"), figures("now"), figures("rate")];
/// A note on the growth between two results of which one is shortened.
pub const PARTIAL_GROWTH: &str =
    "one of the two results lists only its largest roots or types: those of one result alone are left out";
/// Ages of three centuries and more are not shown: a clock or a document is wrong.
const MAX_AGE_SECONDS: f64 = 1e10;

/// Rows of what grew since an earlier result.
pub struct GrowthRows {
    /// All live blocks, leaked ones, and roots.
    pub roots: Vec<Vec<String>>,
    /// Types of blocks.
    pub types: Vec<Vec<String>>,
}

/// The rows of `comparison`, with the `top` roots and types.
pub fn growth_rows(comparison: &Comparison, top: usize) -> GrowthRows {
    let hours = comparison.seconds.unwrap_or(0.0) / 3600.0;
    let rate = |grown_bytes: i64| {
        let hourly_bytes = grown_bytes as f64 / hours;
        let has_rate = hours > 0.0 && grown_bytes > 0;
        if has_rate { format!("{}/h", bytes(hourly_bytes as u64)) } else { String::new() }
    };
    let sign = |growth: i64| if growth < 0 { "-" } else { "+" };
    let row = |name: String, grew: Change, now_bytes: Option<u64>| {
        let size = format!("{}{}", sign(grew.bytes), bytes(grew.bytes.unsigned_abs()));
        let blocks = format!("{}{}", sign(grew.blocks), thousands(grew.blocks.unsigned_abs()));
        vec![name, size, blocks, now_bytes.map_or(String::new(), bytes), rate(grew.bytes)]
    };
    let mut roots = vec![row("all live blocks".to_owned(), comparison.live, None)];
    roots.extend(comparison.unreachable.map(|grew| row(LEAKED_NAME.to_owned(), grew, None)));
    let changed_root_row = |changed: &ChangedEntry| {
        // Every root of a comparison has a kind.
        let kind = changed.kind.unwrap_or_default();
        let name = root_text(kind, &changed.name, changed.module.as_deref(), changed.thread.as_deref());
        row(name, changed.grew, Some(changed.bytes))
    };
    roots.extend(comparison.roots.iter().take(top).map(changed_root_row));
    let changed_type_row =
        |changed: &ChangedEntry| row(shown_type(&changed.name), changed.grew, Some(changed.bytes));
    GrowthRows { roots, types: comparison.types.iter().take(top).map(changed_type_row).collect() }
}

/// When an earlier result was taken: `2.5 hours before`.
pub fn age_text(age_seconds: Option<f64>) -> String {
    let Some(age) = age_seconds.filter(|age| (0.0..MAX_AGE_SECONDS).contains(age)) else {
        return "of a time that is not known".to_owned();
    };
    match age {
        _ if age >= 7200.0 => format!("{:.1} hours before", age / 3600.0),
        _ if age >= 120.0 => format!("{:.1} minutes before", age / 60.0),
        _ => format!("{} before", seconds(age)),
    }
}

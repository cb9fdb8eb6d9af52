//! What can be measured of a cell: the metrics' names, and where each comes from. Measures nothing itself.

use strandline_recording::Column;

/// A study may not ask for more metrics.
pub const MAX_METRICS: usize = 10_000;
/// What is known of every run. `instructions` and `cycles` where the machine counts them.
pub const FIGURES: [&str; 8] = [
    "wall_seconds",
    "user_seconds",
    "system_seconds",
    "high_water_bytes",
    "minor_faults",
    "major_faults",
    "instructions",
    "cycles",
];
/// How a run ended: its status, or null; the signal that ended it, or null.
pub const ENDS: [&str; 2] = ["exit_status", "signal"];
/// What a mark has besides the columns of its sample.
const OF_MARKS: [&str; 2] = ["seconds", "tree_pss_bytes"];

/// What a mark has; also each `Vm…` and `Rss…` line of /proc/PID/status by its name there, in bytes.
pub fn columns() -> impl Iterator<Item = &'static str> {
    Column::ALL.into_iter().map(Column::name).chain(OF_MARKS)
}

/// What a ledger has besides its rows.
pub const TOTALS: [&str; 7] = ["live", "stranded", "pinned", "evictable", "unattributed", "rss", "pss"];

/// Where a metric comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// One of [`FIGURES`].
    Figure,
    /// One of [`ENDS`].
    End,
    /// A column of a mark.
    Mark {
        /// The mark's name.
        mark: String,
        /// Its how manieth occurrence, from 0.
        occurrence: usize,
        /// Which column.
        column: String,
    },
    /// A row or a total of a ledger.
    Row {
        /// A mark's name, `exit` or `peak`.
        at: String,
        /// Its how manieth occurrence, from 0.
        occurrence: usize,
        /// Which row.
        row: String,
    },
    /// A figure of the subject's own JSON line: the keys that lead to it.
    Json(Vec<String>),
    /// A text of that line: the keys that lead to it.
    Text(Vec<String>),
    /// Computed of others: an index into the study's derived metrics.
    Derived(usize),
}

/// What a metric is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Anything else.
    Count,
}

/// The unit that a metric's name says.
pub fn unit(name: &str, metric: Option<&Metric>) -> Unit {
    let last = name.rsplit('.').next().unwrap_or(name);
    if matches!(metric, Some(Metric::Row { .. })) || last.ends_with("_bytes") || last.starts_with("Vm") {
        Unit::Bytes
    } else if last.ends_with("seconds") {
        Unit::Seconds
    } else {
        Unit::Count
    }
}

/// The finest difference that a metric of this unit shows.
pub fn resolution(name: &str, unit: Unit) -> f64 {
    match unit {
        Unit::Bytes if name.ends_with("rss_bytes") || name == "high_water_bytes" => 4096.0,
        Unit::Bytes => 1.0,
        Unit::Seconds => 1e-6,
        Unit::Count => 0.0,
    }
}

/// `f{1..3}.rss_bytes` is `f1.rss_bytes`, `f2.rss_bytes`, `f3.rss_bytes`; `{a,b}` is `a` and `b`.
///
/// # Errors
/// One line where it is more than [`MAX_METRICS`] names.
pub fn expand(pattern: &str) -> Result<Vec<String>, String> {
    if pattern.len() > 300 {
        return Err("a metric's or mark's name is longer than 300 bytes".to_owned());
    }
    let mut waiting = vec![pattern.to_owned()];
    let mut names = Vec::new();
    while let Some(text) = waiting.pop() {
        let braces = text.find('{').and_then(|open| Some((open, open + text.get(open..)?.find('}')?)));
        let Some((open, close)) = braces else {
            names.push(text);
            continue;
        };
        let (Some(before), Some(inner), Some(after)) =
            (text.get(..open), text.get(open + 1..close), text.get(close + 1..))
        else {
            continue;
        };
        let range =
            inner.split_once("..").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        let parts: Vec<String> = match range {
            Some((low, high)) if i64::abs_diff(low, high) <= MAX_METRICS as u64 => {
                (low..=high).map(|number: i64| number.to_string()).collect()
            }
            Some(_) => return Err(format!("`{pattern}` is more than {MAX_METRICS} names")),
            None => inner.split(',').map(|part| part.trim().to_owned()).collect(),
        };
        if waiting.len() + parts.len() + names.len() > MAX_METRICS {
            return Err(format!("`{pattern}` is more than {MAX_METRICS} names"));
        }
        // The first of them is taken out first.
        waiting.extend(parts.iter().rev().map(|part| format!("{before}{part}{after}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_what_they_stand_for_in_order() {
        assert_eq!(expand("f{1..3}.rss").unwrap(), ["f1.rss", "f2.rss", "f3.rss"]);
        assert_eq!(expand("{a,b}{1..2}").unwrap(), ["a1", "a2", "b1", "b2"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        assert!(expand("{1..99999999999}").is_err());
        assert!(expand("{1..1000}{1..1000}").is_err());
    }
}

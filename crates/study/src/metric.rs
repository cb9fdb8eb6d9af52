//! Metrics of a cell: their names and sources. Measures nothing itself.

use strandline_recording::Column;

/// Maximum number of metrics of a study.
pub const MAX_METRICS: usize = 10_000;
/// Metrics of every run; `instructions` and `cycles` only if the machine counts them.
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
/// How a run ended: exit status or null, signal or null.
pub const ENDS: [&str; 2] = ["exit_status", "signal"];
/// Figures of a ledger besides its rows.
pub const TOTALS: [&str; 7] = ["live", "stranded", "pinned", "evictable", "unattributed", "rss", "pss"];
/// Maximum length of a pattern of names.
const MAX_PATTERN_BYTES: usize = 300;
/// Columns of a mark besides those of its sample.
const MARK_COLUMNS: [&str; 2] = ["seconds", "tree_pss_bytes"];

/// Lines of /proc/PID/status with sizes, which a mark has too, in bytes: they begin with these.
const STATUS_LINES: [&str; 3] = ["Vm", "Rss", "Hugetlb"];

/// Names of the columns of a mark besides its [`STATUS_LINES`].
pub fn columns() -> impl Iterator<Item = &'static str> {
    Column::ALL.into_iter().map(Column::name).chain(MARK_COLUMNS)
}

/// Whether `column` is the name of one of the [`STATUS_LINES`].
pub fn is_status_line(column: &str) -> bool {
    STATUS_LINES.iter().any(|begin| column.starts_with(begin))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// One of [`FIGURES`].
    Figure,
    /// One of [`ENDS`].
    End,
    /// A column of a mark.
    Mark { mark: MarkOccurrence, column: String },
    /// A row or a total of a ledger.
    Row {
        /// When the ledger is taken: at a mark, or at the moment named `exit` or `peak`.
        at: MarkOccurrence,
        row: String,
    },
    /// A figure in the JSON line printed by the subject: the keys of its path.
    Json(Vec<String>),
    /// A text in that line: the keys of its path.
    Text(Vec<String>),
    /// Computed from others: index into the derived metrics of the study.
    Derived(usize),
}

/// One of several marks of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkOccurrence {
    pub name: String,
    /// Its index among the marks of this name, from 0.
    pub index: usize,
}

impl MarkOccurrence {
    /// Parses a name such as `freed#2`, the second mark named `freed`; without a number the first.
    pub fn parse(text: &str) -> Self {
        let numbered = text.rsplit_once('#').and_then(|(name, number)| {
            let index = number.parse::<usize>().ok()?.checked_sub(1)?;
            Some(Self { name: name.to_owned(), index })
        });
        numbered.unwrap_or_else(|| Self { name: text.to_owned(), index: 0 })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Seconds,
    Count,
}

/// The unit of a metric: that of its source, or else the one in which its name ends.
pub fn unit(name: &str, metric: Option<&Metric>) -> Unit {
    let last_part = name.rsplit('.').next().unwrap_or(name);
    let is_in_bytes = match metric {
        // A runtime's reader also has counts; SBCL's names may begin with `bytes_`.
        Some(Metric::Row { row, .. }) if row.starts_with("runtime.") => last_part.contains("bytes"),
        Some(Metric::Row { .. }) => true,
        // A name that a study chooses may begin as a status line does.
        Some(Metric::Json(_) | Metric::Derived(_)) => last_part.ends_with("_bytes"),
        _ => last_part.ends_with("_bytes") || is_status_line(last_part),
    };
    if is_in_bytes {
        Unit::Bytes
    } else if last_part == "seconds" || last_part.ends_with("_seconds") {
        Unit::Seconds
    } else {
        Unit::Count
    }
}

/// The smallest difference that a metric of this unit can show: the kernel counts memory in pages.
pub fn resolution(name: &str, unit: Unit) -> f64 {
    const PAGE_COLUMNS: [Column; 6] =
        [Column::Virtual, Column::Data, Column::Anonymous, Column::File, Column::Shmem, Column::Swap];
    let last_part = name.rsplit('.').next().unwrap_or(name);
    let is_in_pages = name == "high_water_bytes"
        || name.ends_with("rss_bytes")
        || name.contains('.')
            && (is_status_line(last_part) || PAGE_COLUMNS.iter().any(|column| column.name() == last_part));
    match unit {
        Unit::Bytes if is_in_pages => strandline_sys::host::page_bytes() as f64,
        Unit::Bytes => 1.0,
        Unit::Seconds => 1e-6,
        Unit::Count => 0.0,
    }
}

/// Expands a pattern: `f{1..3}.rss_bytes` is `f1.rss_bytes`, `f2.rss_bytes`, `f3.rss_bytes`;
/// `{a,b}` is `a` and `b`.
///
/// # Errors
/// One line if it gives more than [`MAX_METRICS`] names, or has a range without a number.
pub fn expand(pattern: &str) -> Result<Vec<String>, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a metric's or mark's name is longer than {MAX_PATTERN_BYTES} bytes"));
    }
    let mut unexpanded = vec![pattern.to_owned()];
    let mut names = Vec::new();
    while let Some(text) = unexpanded.pop() {
        let parts = text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
        let Some((before, (inner, after))) = parts else {
            names.push(text);
            continue;
        };
        let range =
            inner.split_once("..").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        let parts: Vec<String> = match range {
            Some((low, high)) if i64::abs_diff(low, high) > MAX_METRICS as u64 => {
                return Err(format!("`{pattern}` is more than {MAX_METRICS} names"));
            }
            // An empty range gives no name: the check of the maximum would never end the expansion.
            Some((low, high)) if low > high => return Err(format!("`{pattern}` has an empty range")),
            Some((low, high)) => (low..=high).map(|number: i64| number.to_string()).collect(),
            None => inner.split(',').map(|part| part.trim().to_owned()).collect(),
        };
        if unexpanded.len() + parts.len() + names.len() > MAX_METRICS {
            return Err(format!("`{pattern}` is more than {MAX_METRICS} names"));
        }
        // Reversed, so that the first part is popped first.
        unexpanded.extend(parts.iter().rev().map(|part| format!("{before}{part}{after}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counts_in_pages_has_the_resolution_of_a_page() {
        let page = strandline_sys::host::page_bytes() as f64;
        let resolution_of = |name: &str| resolution(name, unit(name, None));
        let marked = ["rss_bytes", "anonymous_bytes", "VmData", "RssAnon", "HugetlbPages"];
        let marked = marked.map(|column| format!("built.{column}"));
        for name in marked.iter().map(String::as_str).chain(["high_water_bytes"]) {
            assert_eq!(resolution_of(name), page, "{name}");
        }
        for name in ["payload_bytes", "swap_bytes", "built.tree_pss_bytes"] {
            assert_eq!(resolution_of(name), 1.0, "{name}");
        }
        assert_eq!((resolution_of("wall_seconds"), resolution_of("minor_faults")), (1e-6, 0.0));
    }

    #[test]
    fn rows_are_in_bytes_except_the_counts_of_a_runtime() {
        for (row, expected) in [
            ("stranded", Unit::Bytes),
            ("remedy.jvm_gc", Unit::Bytes),
            ("runtime.perl.interpreters.0.retained.total.bytes", Unit::Bytes),
            ("runtime.sbcl.generations.1.bytes_allocated", Unit::Bytes),
            ("runtime.perl.interpreters.0.strings.buffers", Unit::Count),
        ] {
            let metric = Metric::Row { at: MarkOccurrence::parse("exit"), row: row.to_owned() };
            assert_eq!(unit(&format!("exit.{row}"), Some(&metric)), expected, "{row}");
        }
    }

    #[test]
    fn a_name_that_a_study_chooses_has_only_the_unit_in_which_it_ends() {
        for (key, expected) in [
            ("used_bytes", Unit::Bytes),
            ("pause_seconds", Unit::Seconds),
            ("pause_milliseconds", Unit::Count),
            ("pause_nanoseconds", Unit::Count),
            ("VmMappings", Unit::Count),
        ] {
            let metric = Metric::Json(vec!["gc".to_owned(), key.to_owned()]);
            assert_eq!(unit(&format!("gc.{key}"), Some(&metric)), expected, "{key}");
        }
        assert_eq!(unit("built.VmData", None), Unit::Bytes);
    }

    #[test]
    fn patterns_expand_to_names_in_order() {
        assert_eq!(expand("f{1..3}.rss").unwrap(), ["f1.rss", "f2.rss", "f3.rss"]);
        assert_eq!(expand("{a,b}{1..2}").unwrap(), ["a1", "a2", "b1", "b2"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        assert!(expand("{1..99999999999}").is_err());
        assert!(expand("{1..1000}{1..1000}").is_err());
        assert!(expand(&format!("{}{{1..0}}", "{a,b}".repeat(50))).is_err());
    }
}

//! `--fail-if`: a name, a comparison and a size. Parsed strictly, because a condition that silently
//! never holds is worse than none. If a figure is unknown, or too small because memory was left
//! unread, the condition is undecided, not false.

use std::cmp::Ordering;

use strandline_claims::caveat::Caveat;
use strandline_inspect::facts::{Explanation, Row, State, Totals};
use strandline_inspect::group::facts::{GroupExplanation, GroupProcess};
use strandline_inspect::group::ledgers::MIN_PROCESS_DIVISOR;
use strandline_inspect::group::rows::legend;
use strandline_inspect::ledger::rows;
use strandline_inspect::readers;
use strandline_inspect::remedy::releases_now;
use strandline_report::text::counted;

/// A condition on the result of `explain`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As the user wrote it.
    text: String,
    figure: Figure,
    comparison: Comparison,
    limit: Limit,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Figure {
    /// The bytes of all rows in a state.
    Total(State),
    Rss,
    Pss,
    /// The largest prediction of a remedy.
    Predicted,
    /// The bytes of the row with this id.
    Row(String),
    /// What is charged to a control group.
    Current,
    /// The working set of a control group.
    WorkingSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
}

/// What the figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Bytes(u64),
    /// Percentage of RSS, or of a control group's limit.
    Percent(f64),
}

/// The figure to which percentages for several processes refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PercentBase {
    Rss,
    Pss,
}

/// Processes that a condition is tested on together.
pub struct Subjects<'a> {
    pub processes: &'a [&'a Explanation],
    pub base: PercentBase,
    /// Whether processes that belong to them and have memory were not read.
    pub is_incomplete: bool,
}

/// A figure to judge.
struct Measured {
    bytes: u64,
    /// Whether memory was left unread that could add to it.
    is_lower_bound: bool,
}

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The condition does not hold.
    No,
    /// The condition holds; the sentence contains the figure.
    Yes(String),
    /// The figure is unknown; the sentence names it.
    Unknown(String),
}

impl Condition {
    /// Parses `NAME OP SIZE`; spaces are optional.
    ///
    /// # Errors
    /// Returns a sentence on what is wrong, or missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name_end = text.find(['<', '>', '=']).ok_or_else(|| {
            "no comparison in it: write NAME OP SIZE, such as 'stranded > 200MiB'".to_owned()
        })?;
        let (name, operation) = text.split_at(name_end);
        let comparisons = [
            (">=", Comparison::GreaterOrEqual),
            ("<=", Comparison::LessOrEqual),
            ("==", Comparison::Equal),
            (">", Comparison::Greater),
            ("<", Comparison::Less),
        ];
        let (comparison, size) = comparisons
            .into_iter()
            .find_map(|(sign, comparison)| Some((comparison, operation.strip_prefix(sign)?)))
            .ok_or_else(|| "a single = compares nothing: use ==, >=, <=, > or <".to_owned())?;
        let figure = parse_figure(name.trim())?;
        let limit = parse_limit(size.trim())?;
        Ok(Self { text: text.trim().to_owned(), figure, comparison, limit })
    }

    /// Whether the condition holds for one process; percentages refer to its RSS.
    pub fn test(&self, process: &Explanation) -> Outcome {
        self.test_together(&Subjects { processes: &[process], base: PercentBase::Rss, is_incomplete: false })
    }

    /// Whether the condition holds for several processes together: sizes are summed, and
    /// percentages refer to the sum of the base.
    pub fn test_together(&self, subjects: &Subjects<'_>) -> Outcome {
        let Subjects { processes, base, is_incomplete } = *subjects;
        let (base_bytes, base_name) = match base {
            PercentBase::Rss => (sum(processes, |process| Some(process.kernel.rss_bytes)), "RSS"),
            PercentBase::Pss => (sum(processes, |process| process.kernel.pss_bytes), "PSS"),
        };
        let is_cut_short = processes.iter().any(|process| self.figure.is_cut_short(&process.caveats));
        let value = sum(processes, |process| self.figure.value(process));
        let is_lower_bound = is_incomplete || is_cut_short;
        let measured = value.map(|bytes| Measured { bytes, is_lower_bound });
        self.judge(measured, base_bytes.filter(|_| !is_incomplete), base_name)
    }

    /// Whether the condition holds for a control group; percentages refer to its limit.
    pub fn test_group(&self, group: &GroupExplanation, has_ledgers: bool) -> Outcome {
        let is_lower_bound = has_ledgers && self.figure.is_cut_short(&group.caveats);
        let value = self.figure.value_of_group(group, has_ledgers);
        let measured = value.map(|bytes| Measured { bytes, is_lower_bound });
        self.judge(measured, group.cgroup.effective_limit_bytes, "limit")
    }

    /// Compares a figure with the limit; a percentage refers to `base_bytes`, called `base_name`.
    fn judge(&self, measured: Option<Measured>, base_bytes: Option<u64>, base_name: &str) -> Outcome {
        let unknown = |reason: &str| Outcome::Unknown(format!("cannot judge '{}': {reason}", self.text));
        let Some(Measured { bytes, is_lower_bound }) = measured else {
            return unknown("that figure is not known");
        };
        let ordering = match (self.limit, base_bytes) {
            (Limit::Bytes(limit), _) => bytes.cmp(&limit),
            (Limit::Percent(_), None) => return unknown(&format!("there is no known {base_name}")),
            (Limit::Percent(limit), Some(base)) => (bytes as f64 * 100.0).total_cmp(&(limit * base as f64)),
        };
        // What is unread adds to the figure. Only `live` may be too high as well: memory that a
        // runtime's reader did not reach counts as blocks in use of its allocator.
        let is_decided = match self.comparison {
            Comparison::GreaterOrEqual | Comparison::Less => ordering.is_ge(),
            Comparison::Greater | Comparison::LessOrEqual | Comparison::Equal => ordering.is_gt(),
        };
        if is_lower_bound && !is_decided {
            let least = counted(bytes, "byte");
            return unknown(&format!("the figure is at least {least}, and not all memory was read"));
        }
        if self.comparison.holds(ordering) {
            let of_base = base_bytes.map(|base| format!(" of {} {base_name}", counted(base, "byte")));
            let (value, of_base) = (counted(bytes, "byte"), of_base.unwrap_or_default());
            Outcome::Yes(format!("'{}' holds: the figure is {value}{of_base}", self.text))
        } else {
            Outcome::No
        }
    }
}

impl Comparison {
    /// Whether it holds for a figure that compares to the limit like this.
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Equal => ordering.is_eq(),
        }
    }
}

/// The bytes of all rows in a state.
fn total(totals: &Totals, state: State) -> u64 {
    match state {
        State::Live => totals.live,
        State::Stranded => totals.stranded,
        State::Pinned => totals.pinned,
        State::Evictable => totals.evictable,
        State::Unattributed => totals.unattributed,
    }
}

/// The sum of a figure; `None` if that of one process is unknown.
fn sum(processes: &[&Explanation], figure: impl Fn(&Explanation) -> Option<u64>) -> Option<u64> {
    processes.iter().try_fold(0u64, |sum, process| Some(sum.saturating_add(figure(process)?)))
}

impl Figure {
    /// Whether `caveats` report that time ran out before a reader had read everything, and the
    /// figure comes from readers.
    fn is_cut_short(&self, caveats: &[Caveat]) -> bool {
        let is_from_readers = match self {
            Self::Total(state) => matches!(state, State::Live | State::Stranded | State::Pinned),
            Self::Predicted => true,
            // Rows `….unread` are what was not read.
            Self::Row(id) => {
                !id.ends_with(".unread")
                    && readers::all().any(|reader| id.split('.').next() == Some(reader.name))
            }
            Self::Rss | Self::Pss | Self::Current | Self::WorkingSet => false,
        };
        is_from_readers && caveats.iter().any(Caveat::is_late)
    }

    /// The figure in `explanation`; `None` if unknown.
    fn value(&self, explanation: &Explanation) -> Option<u64> {
        match self {
            Self::Total(state) => Some(total(&explanation.totals, *state)),
            Self::Rss => Some(explanation.kernel.rss_bytes),
            Self::Pss => explanation.kernel.pss_bytes,
            Self::Predicted => {
                let applicable = explanation.remedies.iter().filter(|remedy| releases_now(remedy));
                let largest_prediction = applicable.filter_map(|remedy| remedy.predicted_bytes).max();
                if explanation.remedies.is_empty() { Some(0) } else { largest_prediction }
            }
            Self::Row(id) => row_bytes(explanation, id),
            Self::Current | Self::WorkingSet => None,
        }
    }

    /// The figure of a control group; `None` if unknown. Live, stranded and pinned bytes, and the
    /// rows of processes, are known only from ledgers. Processes that hold little of the charge get
    /// no ledger.
    fn value_of_group(&self, group: &GroupExplanation, has_ledgers: bool) -> Option<u64> {
        let totals = &group.totals;
        let little_bytes = group.cgroup.current_bytes / MIN_PROCESS_DIVISOR;
        let charged_bytes = |pid: i32| {
            let rows = group.rows.iter().filter(|row| row.pid == Some(pid));
            rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
        };
        let is_known =
            |process: &GroupProcess| process.ledger.is_some() || charged_bytes(process.pid) <= little_bytes;
        let has_ledgers = has_ledgers && group.processes.iter().all(is_known);
        match self {
            Self::Total(state @ (State::Evictable | State::Unattributed)) => Some(total(totals, *state)),
            Self::Total(state) => has_ledgers.then(|| total(totals, *state)),
            Self::Rss | Self::Pss => None,
            Self::Predicted => {
                let largest_prediction =
                    group.remedies.iter().filter_map(|remedy| remedy.predicted_bytes).max();
                if group.remedies.is_empty() { Some(0) } else { largest_prediction }
            }
            Self::Row(id) => {
                let is_known = has_ledgers || legend().any(|(group_row, _)| group_row == id);
                let rows = group.rows.iter().filter(|row| row.id == *id);
                is_known.then(|| rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes)))
            }
            Self::Current => Some(group.cgroup.current_bytes),
            Self::WorkingSet => group.cgroup.working_set_bytes,
        }
    }
}

/// Bytes of the row `id`. A missing row is empty, unless it belongs to an allocator or a runtime
/// that was found but not read: then the figure is unknown.
fn row_bytes(explanation: &Explanation, id: &str) -> Option<u64> {
    // With --holders, leaked blocks have a separate row.
    let leaked = id.strip_suffix(".live").map(|owner| format!("{owner}.leaked"));
    let is_counted = |row: &&Row| row.id == id || leaked.as_ref().is_some_and(|leaked| row.id == *leaked);
    let mut rows = explanation.rows.iter().filter(is_counted).peekable();
    if rows.peek().is_none() {
        let owner = id.split('.').next().unwrap_or_default();
        let is_unread = explanation.allocators.iter().any(|listed| listed.name == owner && !listed.read)
            || explanation.runtimes.iter().any(|listed| listed.name == owner && !listed.read);
        return if is_unread { None } else { Some(0) };
    }
    Some(rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes)))
}

/// Whether it is the row of leaked blocks of an allocator that has a row of live blocks.
fn is_leaked(id: &str) -> bool {
    let owner = id.strip_suffix(".leaked");
    owner.is_some_and(|owner| rows::ids().any(|row| row.strip_suffix(".live") == Some(owner)))
}

/// The ids of all rows of processes and of control groups.
fn row_ids() -> impl Iterator<Item = &'static str> {
    rows::ids().chain(legend().map(|(id, _)| id))
}

/// Parses the name of a figure.
fn parse_figure(name: &str) -> Result<Figure, String> {
    Ok(match name {
        "live" => Figure::Total(State::Live),
        "stranded" => Figure::Total(State::Stranded),
        "pinned" => Figure::Total(State::Pinned),
        "evictable" => Figure::Total(State::Evictable),
        "unattributed" => Figure::Total(State::Unattributed),
        "rss" => Figure::Rss,
        "pss" => Figure::Pss,
        "predicted" => Figure::Predicted,
        "current" => Figure::Current,
        "working_set" => Figure::WorkingSet,
        _ => match name.strip_prefix("row.") {
            // A condition on a row that does not exist would never hold.
            Some(id) if row_ids().any(|row| row == id) || is_leaked(id) => Figure::Row(id.to_owned()),
            Some(id) => {
                let ids: Vec<_> = row_ids().collect();
                return Err(format!("no row is called '{id}'; there are {}", ids.join(", ")));
            }
            None => {
                return Err(format!(
                    "'{name}' is not a figure; use live, stranded, pinned, evictable, unattributed, rss, \
                     pss, predicted, row.ID, or of a control group current or working_set"
                ));
            }
        },
    })
}

/// Parses a size in bytes: `1048576`, `512MiB`, `1.5GB`.
///
/// # Errors
/// Returns a sentence with the permitted forms.
pub fn parse_bytes(size: &str) -> Result<u64, String> {
    match parse_limit(size)? {
        Limit::Bytes(bytes) => Ok(bytes),
        Limit::Percent(_) => {
            Err(format!("'{size}' is a share, not a size; write a number and a unit, such as 200MiB"))
        }
    }
}

/// Parses a size in bytes or a percentage.
fn parse_limit(size: &str) -> Result<Limit, String> {
    let number_end = size.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(size.len());
    let (number, unit) = size.split_at(number_end);
    let value: f64 = number
        .parse()
        .map_err(|_| format!("'{size}' is not a size; write a number and a unit, such as 200MiB or 10%"))?;
    let factor: u64 = match unit.trim() {
        "%" => return Ok(Limit::Percent(value)),
        "" | "B" => 1,
        "KB" | "kB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        other => {
            return Err(format!("'{other}' is not a unit; use B, KB, KiB, MB, MiB, GB, GiB or %"));
        }
    };
    // Keep whole numbers exact, also beyond 2^53.
    if let Ok(count) = number.parse::<u64>() {
        let bytes = count.checked_mul(factor).ok_or_else(|| format!("'{size}' is larger than any memory"))?;
        return Ok(Limit::Bytes(bytes));
    }
    let bytes = value * factor as f64;
    if bytes >= u64::MAX as f64 {
        return Err(format!("'{size}' is larger than any memory"));
    }
    Ok(Limit::Bytes(bytes.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_inspect::facts::HolderKind;
    use strandline_inspect::group::facts::GroupRow;
    use strandline_report::fabricated;

    fn parsed(text: &str) -> Condition {
        Condition::parse(text).unwrap()
    }

    fn holds(text: &str, explanation: &Explanation) -> bool {
        matches!(parsed(text).test(explanation), Outcome::Yes(_))
    }

    #[test]
    fn sizes_have_units() {
        let cases = [
            ("0", 0),
            ("17B", 17),
            ("2KB", 2_000),
            ("2kB", 2_000),
            ("2 KiB", 2_048),
            ("1.5MiB", 1_572_864),
            ("1MB", 1_000_000),
            ("3GB", 3_000_000_000),
            ("2GiB", 2_147_483_648),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_limit(text), Ok(Limit::Bytes(bytes)), "{text}");
        }
        assert_eq!(parse_limit("12.5%"), Ok(Limit::Percent(12.5)));
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("stranded", "no comparison"),
            ("", "no comparison"),
            ("stranded = 5", "single ="),
            ("stranded > ", "not a size"),
            ("stranded > -5MiB", "not a size"),
            ("stranded > 5 parsecs", "not a unit"),
            ("stranded > 5MiB extra", "not a unit"),
            ("stranded > 1.2.3", "not a size"),
            ("stranded >> 5", "not a size"),
            ("strandedd > 5", "not a figure"),
            ("row.glibc > 5", "no row"),
            ("row. > 5", "no row"),
            ("> 5", "not a figure"),
            ("rss > 99999999999999GiB", "larger than any memory"),
            ("rss > 99999999999999.5GiB", "larger than any memory"),
        ];
        for (text, expected) in cases {
            let error = Condition::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn every_comparison_compares() {
        let shell = fabricated::shell();
        let rss = shell.kernel.rss_bytes;
        for (sign, at, above) in [
            (">", false, true),
            (">=", true, true),
            ("<", false, false),
            ("<=", true, false),
            ("==", true, false),
        ] {
            assert_eq!(holds(&format!("rss{sign}{rss}"), &shell), at, "{sign}");
            assert_eq!(holds(&format!("rss {sign} {}", rss - 1), &shell), above, "{sign}");
        }
    }

    #[test]
    fn figures_are_found_by_name() {
        let service = fabricated::service();
        for text in [
            "stranded > 1GiB",
            "pinned == 96MiB",
            "evictable < 23MiB",
            "unattributed == 0",
            "live >= 313MiB",
            "predicted == 1126MiB",
            "row.glibc.free.trim >= 10%",
            "row.glibc.free.trim < 70 %",
            "row.glibc.mmapped == 0",
            "pss == 100%",
        ] {
            assert!(holds(text, &service), "{text}");
        }
    }

    #[test]
    fn every_row_is_defined_for_people() {
        let definitions = include_str!("../../docs/accounting.md");
        let is_missing = |id: &&str| !definitions.contains(&format!("| `{id}` |"));
        let missing: Vec<&str> = rows::ids().filter(is_missing).collect();
        assert!(missing.is_empty(), "docs/accounting.md does not define {}", missing.join(", "));
    }

    #[test]
    fn an_unknown_figure_is_not_zero() {
        let mut java = fabricated::java();
        java.kernel.pss_bytes = None;
        assert!(matches!(parsed("pss > 1").test(&java), Outcome::Unknown(_)));
        java.allocators[0].name = "glibc".to_owned();
        assert!(matches!(parsed("row.glibc.tcache > 1").test(&java), Outcome::Unknown(_)));
        assert_eq!(parsed("predicted > 0").test(&java), Outcome::No, "no remedy, nothing predicted");
        java.remedies = fabricated::service().remedies.split_off(2);
        assert!(matches!(parsed("predicted > 0").test(&java), Outcome::Unknown(_)));
    }

    #[test]
    fn a_group_is_tested_against_its_limit() {
        let mut group = GroupExplanation::default();
        (group.cgroup.current_bytes, group.cgroup.working_set_bytes) = (900 << 20, Some(700 << 20));
        let holds = |group: &GroupExplanation, text: &str| parsed(text).test_group(group, false);
        assert!(matches!(holds(&group, "current > 850MiB"), Outcome::Yes(_)));
        assert!(matches!(holds(&group, "current > 80%"), Outcome::Unknown(_)), "it has no limit");
        group.cgroup.effective_limit_bytes = Some(1 << 30);
        assert!(matches!(holds(&group, "current > 80%"), Outcome::Yes(_)));
        assert_eq!(holds(&group, "working_set > 80%"), Outcome::No);
        assert_eq!(holds(&group, "row.group.shmem > 0"), Outcome::No);
        assert!(matches!(holds(&group, "rss > 1"), Outcome::Unknown(_)));
        group.processes.push(GroupProcess::default());
        for text in ["stranded > 1", "row.glibc.free.trim > 1"] {
            assert!(matches!(holds(&group, text), Outcome::Unknown(_)), "no ledger was taken: {text}");
        }
        assert_eq!(holds(&group, "row.group.shmem > 0"), Outcome::No);
        // A shell beside it holds nothing of the charge, and gets no ledger.
        let stranded = parsed("stranded < 1");
        assert!(matches!(stranded.test_group(&group, true), Outcome::Yes(_)));
        group.rows.push(GroupRow {
            id: "group.anon".to_owned(),
            stratum: HolderKind::Kernel,
            state: State::Unattributed,
            holder: String::new(),
            bytes: 800 << 20,
            pid: Some(group.processes[0].pid),
            file: None,
        });
        assert!(matches!(stranded.test_group(&group, true), Outcome::Unknown(_)), "it could not be read");
    }

    #[test]
    fn a_tree_is_tested_together() {
        let (service, shell) = (fabricated::service(), fabricated::shell());
        let rss = service.kernel.rss_bytes + shell.kernel.rss_bytes;
        let test = |text: &str, is_incomplete| {
            let processes = &[&service, &shell][..];
            parsed(text).test_together(&Subjects { processes, base: PercentBase::Rss, is_incomplete })
        };
        assert!(matches!(test(&format!("rss == {rss}"), false), Outcome::Yes(_)));
        // The processes that were not read can only add to the figures.
        assert!(matches!(test(&format!("rss >= {rss}"), true), Outcome::Yes(_)));
        assert_eq!(test(&format!("rss < {rss}"), true), Outcome::No);
        for text in [format!("rss > {rss}"), format!("rss == {rss}"), "stranded > 0%".to_owned()] {
            assert!(matches!(test(&text, true), Outcome::Unknown(_)), "{text}");
        }
    }

    #[test]
    fn a_figure_that_was_cut_short_is_a_lower_bound() {
        let mut service = fabricated::service();
        service.caveats.push(Caveat::new("heap_too_slow", "0x1000", None, ""));
        let test = |text: &str| parsed(text).test(&service);
        for text in ["stranded > 1000GiB", "row.glibc.free.trim < 1000GiB", "predicted > 1000GiB"] {
            assert!(matches!(test(text), Outcome::Unknown(_)), "{text}");
        }
        assert!(matches!(test("stranded > 1GiB"), Outcome::Yes(_)));
        assert_eq!(test("stranded < 1GiB"), Outcome::No);
        assert_eq!(test("rss > 1000GiB"), Outcome::No, "the kernel counts it");
    }
}

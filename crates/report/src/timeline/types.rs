//! Objects by type over time: one type in each ledger, and the types that grew most.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use strandline_claims::facts::OTHER_TYPES;
use strandline_recording::Ledger;

use super::Timeline;
use super::chart::hidden_note;
use super::choice::{ledger_name, seconds_of};
use crate::paint::Surface;
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::table_lines;
use crate::text::{clean_sentence, shorten, wrap};
use crate::units::{UNKNOWN, bytes, thousands};

/// Maximum number of ledgers in the table.
const MAX_LEDGERS: usize = 24;
/// Maximum number of types that are named as having grown most.
const MAX_LISTED_GROWTHS: usize = 3;
const MAX_NAME_COLUMNS: usize = 48;

/// Instances and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    instances: u64,
    bytes: u64,
}

/// The ledgers of the process with the most memory, in order of time.
fn ledgers(timeline: &Timeline) -> Vec<&Ledger> {
    let largest = timeline.ledgers.iter().max_by_key(|ledger| ledger.explain.kernel.rss_bytes);
    let its_ledgers =
        timeline.ledgers.iter().filter(|ledger| Some(ledger.process) == largest.map(|ledger| ledger.process));
    let mut ledgers: Vec<&Ledger> = its_ledgers.collect();
    ledgers.sort_by_key(|ledger| ledger.at_us);
    ledgers
}

/// Totals by type over a ledger's runtimes; `None` if no runtime has a census.
fn types(ledger: &Ledger) -> Option<BTreeMap<&str, Sum>> {
    let listed_types = || ledger.explain.runtimes.iter().flat_map(|runtime| &runtime.types);
    listed_types().next()?;
    let mut types: BTreeMap<&str, Sum> = BTreeMap::new();
    for facts in listed_types() {
        let sum = types.entry(&facts.name).or_default();
        sum.instances = sum.instances.saturating_add(facts.instances);
        sum.bytes = sum.bytes.saturating_add(facts.bytes);
    }
    Some(types)
}

/// A table of the objects of one type in each ledger.
pub fn follow(timeline: &Timeline, name: &str, surface: Surface) -> Vec<String> {
    const HEAD: [Column; 5] =
        [words("ledger"), figures("time"), figures("RSS"), figures("objects"), figures("their bytes")];
    let ledgers = ledgers(timeline);
    let mut lines = vec![String::new()];
    let is_known = ledgers.iter().filter_map(|ledger| types(ledger)).any(|types| types.contains_key(name));
    let title = format!("objects of the type {}", shorten(&clean_sentence(name), MAX_NAME_COLUMNS));
    if !is_known {
        lines.push(format!("{title}: in no ledger of the process with the most memory"));
        return lines;
    }
    // Thin a long list, keeping the last ledger.
    let step = ledgers.len().div_ceil(MAX_LEDGERS).max(1);
    let thinned_ledgers = ledgers.iter().rev().step_by(step).rev();
    let row = |ledger: &&Ledger| {
        let types = types(ledger);
        let sum = types.as_ref().and_then(|types| types.get(name));
        // A census does not list types with few bytes.
        let absent = if types.is_some() { "not listed" } else { UNKNOWN };
        let describe = |format: fn(&Sum) -> String| sum.map_or_else(|| absent.to_owned(), format);
        vec![
            ledger_name(ledger),
            format!("{:.3} s", seconds_of(ledger.at_us)),
            bytes(ledger.explain.kernel.rss_bytes),
            describe(|sum| thousands(sum.instances)),
            describe(|sum| bytes(sum.bytes)),
        ]
    };
    let rows: Vec<Vec<String>> = thinned_ledgers.map(row).collect();
    lines.push(title);
    lines.extend(table_lines(lay_out(&HEAD, &rows, 0, surface.columns), surface));
    lines.extend(hidden_note(ledgers.len() - rows.len(), "ledgers"));
    lines
}

/// How a type grew between two ledgers.
struct Growth<'a> {
    name: &'a str,
    /// What the first ledger lists; `None` if it does not list the type. Ledgers list the types
    /// with most bytes, so it may have existed.
    before: Option<Sum>,
    current: Sum,
}

impl<'a> Growth<'a> {
    /// The growth of a type to `current`; `None` if it has no more bytes than before.
    fn new(name: &'a str, before: Option<Sum>, current: Sum) -> Option<Self> {
        Some(Self { name, before, current }).filter(|growth| growth.bytes() > 0)
    }

    /// By how many bytes it grew; at most this, if the first ledger does not list it.
    fn bytes(&self) -> u64 {
        self.current.bytes.saturating_sub(self.before.unwrap_or_default().bytes)
    }

    /// `str by 8.51 MiB (113,000 objects)`.
    fn describe(&self) -> String {
        let name = shorten(&clean_sentence(self.name), MAX_NAME_COLUMNS);
        let growth = bytes(self.bytes());
        let current = self.current.instances;
        let Some(before) = self.before else {
            return format!(
                "{name} by up to {growth} (up to {} objects; not listed before)",
                thousands(current)
            );
        };
        match current.cmp(&before.instances) {
            Ordering::Greater => {
                format!("{name} by {growth} ({} objects)", thousands(current - before.instances))
            }
            Ordering::Equal => format!("{name} by {growth} (in as many objects)"),
            Ordering::Less => {
                format!("{name} by {growth} (in {} fewer objects)", thousands(before.instances - current))
            }
        }
    }
}

/// The types that have more bytes in the last ledger with a census than in the first. One that the
/// last ledger does not list has fewer bytes than all that it lists: it is not named, nor is the
/// sum of those.
pub fn growth(timeline: &Timeline, surface: Surface) -> Vec<String> {
    let listed: Vec<(&Ledger, BTreeMap<&str, Sum>)> =
        ledgers(timeline).into_iter().filter_map(|ledger| Some((ledger, types(ledger)?))).collect();
    let [(first_ledger, before), .., (last_ledger, after)] = listed.as_slice() else { return Vec::new() };
    let mut growths: Vec<Growth<'_>> = after
        .iter()
        .filter(|(name, _)| **name != OTHER_TYPES)
        .filter_map(|(name, current)| Growth::new(name, before.get(name).copied(), *current))
        .collect();
    growths.sort_by_key(|growth| (Reverse(growth.bytes()), growth.name));
    growths.truncate(MAX_LISTED_GROWTHS);
    if growths.is_empty() {
        return Vec::new();
    }
    let text = format!(
        "types that grew most from {:.3} s to {:.3} s: {}; --type NAME follows one",
        seconds_of(first_ledger.at_us),
        seconds_of(last_ledger.at_us),
        growths.iter().map(Growth::describe).collect::<Vec<_>>().join(", ")
    );
    let mut lines = vec![String::new()];
    lines.extend(wrap(&text, surface.columns));
    lines
}

#[cfg(test)]
mod tests {
    use strandline_claims::facts::{Runtime, TypeFacts};

    use super::*;
    use crate::timeline::fabricated;

    const PLAIN: Surface = Surface { columns: 80, has_colour: false };

    /// A recording with a growing number of `Node` objects and a type that does not grow.
    fn recording() -> Timeline {
        let mut timeline = fabricated::tree();
        for (index, ledger) in timeline.ledgers.iter_mut().enumerate() {
            let count = 1000 * (index as u64 + 1);
            let types = [("app.Node", count, count * 64), ("dict", 500, 50_000)];
            let types =
                types.map(|(name, instances, bytes)| TypeFacts { name: name.to_owned(), instances, bytes });
            ledger.explain.runtimes = vec![Runtime { types: types.to_vec(), ..Runtime::default() }];
        }
        timeline
    }

    #[test]
    fn one_type_is_followed_from_ledger_to_ledger() {
        let lines = follow(&recording(), "app.Node", PLAIN);
        assert!(lines.iter().any(|line| line.contains("1,000") && line.contains("62.5 KiB")), "{lines:?}");
        assert!(
            lines.last().is_some_and(|line| line.contains("4,000") && line.contains("250 KiB")),
            "{lines:?}"
        );
    }

    #[test]
    fn ledgers_that_are_not_shown_are_counted() {
        let mut timeline = recording();
        let last_ledger = timeline.ledgers[3].clone();
        timeline.ledgers.extend(std::iter::repeat_n(last_ledger, 2 * MAX_LEDGERS - 4));
        let lines = follow(&timeline, "app.Node", PLAIN);
        assert_eq!(lines.last().map(String::as_str), Some("ledgers not shown: 24; --format json has all"));
    }

    #[test]
    fn a_missing_type_is_reported() {
        let lines = follow(&recording(), "app.Other\u{1b}[2J", PLAIN);
        assert!(lines.iter().any(|line| line.contains("in no ledger")), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
    }

    #[test]
    fn what_grew_is_named_and_nothing_else() {
        let text = growth(&recording(), PLAIN).join(" ");
        assert!(text.contains("app.Node by 188 KiB (3,000 objects)") && !text.contains("dict"), "{text}");
        assert_eq!(growth(&fabricated::tree(), PLAIN), Vec::<String>::new());
    }

    #[test]
    fn a_type_that_was_not_listed_grew_by_an_unknown_part() {
        let mut timeline = recording();
        for ledger in &mut timeline.ledgers[..2] {
            ledger.explain.runtimes[0].types.retain(|facts| facts.name == "dict");
        }
        let text = growth(&timeline, PLAIN).join(" ");
        assert!(text.contains("app.Node by up to 250 KiB (up to 4,000 objects; not listed"), "{text}");
    }

    #[test]
    fn objects_may_grow_without_becoming_more() {
        let describe = |earlier, later| {
            let sum = |instances, bytes| Sum { instances, bytes };
            Growth::new("app.Buffer", Some(sum(earlier, 1024)), sum(later, 3072))
                .map(|growth| growth.describe())
        };
        assert_eq!(describe(5, 5).as_deref(), Some("app.Buffer by 2.00 KiB (in as many objects)"));
        assert_eq!(describe(7, 5).as_deref(), Some("app.Buffer by 2.00 KiB (in 2 fewer objects)"));
        assert!(Growth::new("app.Buffer", Some(Sum::default()), Sum::default()).is_none());
    }
}

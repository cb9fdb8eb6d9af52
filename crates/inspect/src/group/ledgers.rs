//! Ledgers of a group's processes: the rows of each take the place of its anonymous memory.
//!
//! Each process is read in turn, the largest first, and may be stopped for as long as the
//! caller allows. One that cannot be read keeps its row, with a caveat.

use std::collections::BTreeMap;
use std::time::Duration;

use strandline_claims::Caveat;
use strandline_process::error::Error;

use super::facts::{GroupExplanation, GroupProcess, GroupRemedy, GroupRow, ProcessLedger};
use super::rows::{sort, totals};
use super::verdict;
use crate::explain::{Options, explain};
use crate::facts::{Explanation, Remedy, RemedyKind, Totals};
use crate::ledger::{proportional, rows};

/// How to take ledgers.
pub struct LedgerOptions<'a> {
    /// How each is taken; how long it may stop the process is set for each.
    pub each: Options<'a>,
    /// How long a process may be stopped: `None` for not at all.
    pub stop: &'a dyn Fn(&GroupProcess) -> Option<Duration>,
    /// Called with the number of processes that were read, and of all.
    pub progress: &'a dyn Fn(usize, usize),
}

/// Processes that hold no more than 1/`MIN_PROCESS_DIVISOR` of the charge are not read.
pub const MIN_PROCESS_DIVISOR: u64 = 1000;
/// Maximum number of caveats of one ledger that are kept.
const MAX_CAVEATS: usize = 2;

/// Takes the ledgers of the processes of `explanation` and puts their rows in place.
pub fn add_ledgers(explanation: &mut GroupExplanation, options: &LedgerOptions<'_>) {
    let least = explanation.cgroup.current_bytes / MIN_PROCESS_DIVISOR;
    let held = held_by_process(&explanation.rows);
    let mut all = std::mem::take(&mut explanation.processes);
    let chosen = |one: &GroupProcess| held.get(&one.pid).is_some_and(|&bytes| bytes > least);
    let count = all.iter().filter(|one| chosen(one)).count();
    let mut remedies: BTreeMap<String, GroupRemedy> = BTreeMap::new();
    for (index, one) in all.iter_mut().filter(|one| chosen(one)).enumerate() {
        (options.progress)(index, count);
        let stop = (options.stop)(one);
        let each =
            Options { max_stop: stop.or(Some(Duration::ZERO)), never_stop: stop.is_none(), ..options.each };
        match explain(one.pid, &each) {
            Ok(found) => add(explanation, one, &found, &mut remedies),
            Err(error) => explanation.caveats.push(left_out(one, &error, held.get(&one.pid).copied())),
        }
    }
    explanation.processes = all;
    explanation.remedies.extend(remedies.into_values());
    explanation.remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.predicted_bytes));
    sort(&mut explanation.rows);
    explanation.totals = totals(&explanation.rows);
    verdict::judge(explanation);
}

/// The bytes of each process in the group's rows.
fn held_by_process(rows: &[GroupRow]) -> BTreeMap<i32, u64> {
    let mut held: BTreeMap<i32, u64> = BTreeMap::new();
    for row in rows {
        if let Some(pid) = row.pid {
            *held.entry(pid).or_default() += row.bytes;
        }
    }
    held
}

/// Puts the rows of a process in the place of its anonymous memory.
fn add(
    explanation: &mut GroupExplanation,
    one: &mut GroupProcess,
    found: &Explanation,
    remedies: &mut BTreeMap<String, GroupRemedy>,
) {
    let held: u64 = explanation.rows.iter().filter(|row| row.pid == Some(one.pid)).map(|row| row.bytes).sum();
    let Some(parts) = proportional::anonymous_rows(found, held) else {
        let (place, text) = (format!("process {}", one.pid), "its ledger has no anonymous memory");
        explanation.caveats.push(Caveat::new("no_ledger", place, Some(held), text));
        return;
    };
    explanation.rows.retain(|row| row.pid != Some(one.pid));
    explanation.rows.extend(parts.iter().map(|row| GroupRow {
        id: row.id.clone(),
        stratum: row.stratum,
        state: row.state,
        holder: format!("{} ({}): {}", one.name, one.pid, row.holder),
        bytes: row.bytes,
        pid: Some(one.pid),
        file: None,
    }));
    let totals: Totals = rows::totals(&parts);
    one.ledger = Some(ProcessLedger { totals, stopped_seconds: found.cost.stopped_seconds });
    explanation.cost.stopped_seconds += found.cost.stopped_seconds;
    explanation.cost.bytes_read += found.cost.bytes_read;
    for remedy in found.remedies.iter().filter(|remedy| remedy.kind == RemedyKind::Call) {
        add_remedy(remedies, remedy);
    }
    let least = explanation.cgroup.current_bytes / 100;
    let important = found.caveats.iter().filter(|caveat| caveat.bytes.is_some_and(|bytes| bytes > least));
    explanation.caveats.extend(
        important.take(MAX_CAVEATS).map(|caveat| Caveat {
            place: format!("process {}, {}", one.pid, caveat.place),
            ..caveat.clone()
        }),
    );
}

/// Adds what a call would release in one process. What other processes share stays.
fn add_remedy(remedies: &mut BTreeMap<String, GroupRemedy>, remedy: &Remedy) {
    let predicted = remedy.predicted_pss_bytes.or(remedy.predicted_bytes);
    if predicted == Some(0) {
        return;
    }
    let sum = remedies.entry(remedy.id.clone()).or_insert_with(|| GroupRemedy {
        id: remedy.id.clone(),
        kind: "call".to_owned(),
        predicted_bytes: Some(0),
        processes: 0,
        cost: remedy.cost.clone(),
    });
    sum.predicted_bytes = sum.predicted_bytes.zip(predicted).map(|(sum, one)| sum.saturating_add(one));
    sum.processes += 1;
}

fn left_out(one: &GroupProcess, error: &Error, bytes: Option<u64>) -> Caveat {
    let code = match error {
        Error::NoSuchProcess { .. } | Error::Ended { .. } | Error::Zombie { .. } => "process_ended",
        _ => "process_left_out",
    };
    Caveat::new(code, format!("process {}", one.pid), bytes, error.to_string())
}

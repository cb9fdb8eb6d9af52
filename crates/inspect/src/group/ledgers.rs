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
    /// How each ledger is taken, except for how long it may stop the process.
    pub inspection: Options<'a>,
    /// How long a process may be stopped: `None` for not at all.
    pub max_stop: &'a dyn Fn(&GroupProcess) -> Option<Duration>,
    /// Called with the number of processes that were read, and the number of all to be read.
    pub report_progress: &'a dyn Fn(usize, usize),
}

/// Processes that hold no more than the charge divided by this are not read.
pub const MIN_PROCESS_DIVISOR: u64 = 1000;
/// Caveats of a ledger are kept if their bytes are above the charge divided by this.
const MIN_CAVEAT_DIVISOR: u64 = 100;

/// Takes the ledgers of the larger processes of `explanation`; their rows replace those of their
/// anonymous memory. A caveat names each process that cannot be read.
pub fn add_ledgers(explanation: &mut GroupExplanation, options: &LedgerOptions<'_>) {
    let min_bytes = explanation.cgroup.current_bytes / MIN_PROCESS_DIVISOR;
    let held_bytes = held_by_process(&explanation.rows);
    let mut processes = std::mem::take(&mut explanation.processes);
    let is_read = |process: &GroupProcess| held_bytes.get(&process.pid).is_some_and(|&held| held > min_bytes);
    let count = processes.iter().filter(|process| is_read(process)).count();
    let mut remedies: BTreeMap<String, GroupRemedy> = BTreeMap::new();
    for (index, process) in processes.iter_mut().filter(|process| is_read(process)).enumerate() {
        (options.report_progress)(index, count);
        let max_stop = (options.max_stop)(process);
        let inspection = Options {
            max_stop: max_stop.or(Some(Duration::ZERO)),
            never_stops: max_stop.is_none(),
            ..options.inspection
        };
        match explain(process.pid, &inspection) {
            Ok(ledger) => add_ledger(explanation, process, &ledger, &mut remedies),
            Err(error) => {
                let held = held_bytes.get(&process.pid).copied();
                explanation.caveats.push(left_out_caveat(process, &error, held));
            }
        }
    }
    explanation.processes = processes;
    explanation.remedies.extend(remedies.into_values());
    explanation.remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.predicted_bytes));
    sort(&mut explanation.rows);
    explanation.totals = totals(&explanation.rows);
    verdict::set_verdict(explanation);
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
fn add_ledger(
    explanation: &mut GroupExplanation,
    process: &mut GroupProcess,
    ledger: &Explanation,
    remedies: &mut BTreeMap<String, GroupRemedy>,
) {
    let pid = process.pid;
    let held: u64 = explanation.rows.iter().filter(|row| row.pid == Some(pid)).map(|row| row.bytes).sum();
    let Some(process_rows) = proportional::anonymous_rows(ledger, held) else {
        let (place, text) = (format!("process {pid}"), "its ledger has no anonymous memory");
        explanation.caveats.push(Caveat::new("no_ledger", place, Some(held), text));
        return;
    };
    explanation.rows.retain(|row| row.pid != Some(pid));
    explanation.rows.extend(process_rows.iter().map(|row| GroupRow {
        id: row.id.clone(),
        stratum: row.stratum,
        state: row.state,
        holder: format!("{} ({pid}): {}", process.name, row.holder),
        bytes: row.bytes,
        pid: Some(pid),
        file: None,
    }));
    let totals: Totals = rows::totals(&process_rows);
    process.ledger = Some(ProcessLedger { totals, stopped_seconds: ledger.cost.stopped_seconds });
    explanation.cost.stopped_seconds += ledger.cost.stopped_seconds;
    explanation.cost.bytes_read += ledger.cost.bytes_read;
    for remedy in ledger.remedies.iter().filter(|remedy| remedy.kind == RemedyKind::Call) {
        add_remedy(remedies, remedy);
    }
    let min_bytes = explanation.cgroup.current_bytes / MIN_CAVEAT_DIVISOR;
    // How much a reader did not read in time may be unknown.
    let is_important = |caveat: &&Caveat| caveat.bytes.map_or(caveat.is_late(), |bytes| bytes > min_bytes);
    let important = ledger.caveats.iter().filter(is_important);
    explanation.caveats.extend(
        important
            .map(|caveat| Caveat { place: format!("process {pid}, {}", caveat.place), ..caveat.clone() }),
    );
}

/// Adds what a call would release in one process. What other processes share stays.
fn add_remedy(remedies: &mut BTreeMap<String, GroupRemedy>, remedy: &Remedy) {
    let predicted = remedy.predicted_pss_bytes.or(remedy.predicted_bytes);
    if predicted == Some(0) || remedy.is_impossible() {
        return;
    }
    let sum = remedies.entry(remedy.id.clone()).or_insert_with(|| GroupRemedy {
        id: remedy.id.clone(),
        kind: "call".to_owned(),
        predicted_bytes: Some(0),
        processes: 0,
        cost: remedy.cost.clone(),
    });
    let sum_and_predicted = sum.predicted_bytes.zip(predicted);
    sum.predicted_bytes = sum_and_predicted.map(|(sum, predicted)| sum.saturating_add(predicted));
    sum.processes += 1;
}

/// The caveat that a process was not read.
fn left_out_caveat(process: &GroupProcess, error: &Error, bytes: Option<u64>) -> Caveat {
    let code = match error {
        Error::NoSuchProcess { .. } | Error::Ended { .. } | Error::Zombie { .. } => "process_ended",
        _ => "process_left_out",
    };
    Caveat::new(code, format!("process {}", process.pid), bytes, error.to_string())
}

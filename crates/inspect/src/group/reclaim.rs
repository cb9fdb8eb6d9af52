//! Releases memory of a control group: by calls in its processes, one after the other, or by the
//! kernel (memory.reclaim).
//!
//! Reports the predicted and the released bytes, of each process and in all, and the fall of the
//! group's charge.

use std::fs::OpenOptions;
use std::io::{self, Write};

use serde::Serialize;
use strandline_claims::Caveat;
use strandline_claims::units::counted;
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::{Group, Hierarchy};

use super::advice::Advice;
use super::facts::{GroupExplanation, GroupProcess, GroupTarget};
use super::ledgers::MIN_PROCESS_DIVISOR;
use super::{BEST_CALLS, MEMORY_RECLAIM, MEMORY_RECLAIM_FILE, explain_group};
use crate::facts::{Outcome, Reclamation};
use crate::remedy::{ReclaimOptions, reclaim};

/// Maximum bytes requested from the kernel at once: the call returns when they are reclaimed.
const STEP_BYTES: u64 = 256 << 20;

/// Codes of the caveats on processes that strandline does not see.
const UNSEEN_PROCESSES: [&str; 2] = ["other_pid_namespace", "too_many_groups"];

/// What `reclaim --cgroup` reports.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupReclamation {
    /// The group.
    pub target: GroupTarget,
    /// The remedy: the requested one, [`MEMORY_RECLAIM`], or [`BEST_CALLS`].
    pub remedy: String,
    /// How it ended: `done` if at least one call was made, or the kernel reclaimed.
    pub outcome: Outcome,
    /// Why it was refused, or another remark.
    pub reason: Option<String>,
    /// Whether this was a prediction only.
    pub dry_run: bool,
    /// Bytes predicted, in all.
    pub predicted_bytes: Option<u64>,
    /// Bytes released, in all.
    pub actual_bytes: Option<u64>,
    /// The charge before.
    pub current_before_bytes: u64,
    /// The charge after.
    pub current_after_bytes: Option<u64>,
    /// The calls, process by process.
    pub processes: Vec<ProcessReclamation>,
    /// What to set, ready to paste.
    pub advice: Vec<Advice>,
    /// What was not read or not done, and why.
    pub caveats: Vec<Caveat>,
}

/// A call in one process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessReclamation {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// The remedy.
    pub remedy: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was refused, or another remark.
    pub reason: Option<String>,
    /// Bytes predicted.
    pub predicted_bytes: Option<u64>,
    /// Bytes released.
    pub actual_bytes: Option<u64>,
    /// Duration of the call.
    pub call_seconds: Option<f64>,
    /// Longest time that any thread was stopped.
    pub stopped_seconds: Option<f64>,
}

/// Applies the remedy of `options` to a group: the kernel's, or a call in each process with more
/// than the charge divided by [`MIN_PROCESS_DIVISOR`], by default the one that releases most there.
/// `progress` is called with the number of processes that are done, and of all.
///
/// # Errors
/// The group was removed, or its memory is not counted.
pub fn reclaim_group(
    hierarchy: &Hierarchy,
    group: &Group,
    options: &ReclaimOptions<'_>,
    progress: &dyn Fn(usize, usize),
) -> Result<GroupReclamation, GroupError> {
    let before = explain_group(hierarchy, group)?;
    let mut report = GroupReclamation {
        remedy: options.remedy.unwrap_or(BEST_CALLS).to_owned(),
        outcome: Outcome::NothingToGiveBack,
        dry_run: options.dry_run,
        current_before_bytes: before.cgroup.current_bytes,
        target: before.target.clone(),
        advice: before.advice.clone(),
        ..GroupReclamation::default()
    };
    if options.remedy == Some(MEMORY_RECLAIM) {
        reclaim_by_kernel(group, &before, &mut report);
    } else {
        reclaim_by_calls(&before, options, progress, &mut report);
        // No call is made in a process that strandline does not see.
        let is_of_unseen = |caveat: &Caveat| UNSEEN_PROCESSES.contains(&caveat.code.as_str());
        report.caveats.extend(before.caveats.into_iter().filter(is_of_unseen));
    }
    if !options.dry_run && report.outcome == Outcome::Done {
        report.current_after_bytes = group.number(group.version.current_file());
        if report.remedy == MEMORY_RECLAIM {
            let after = report.current_after_bytes;
            report.actual_bytes = after.map(|after| report.current_before_bytes.saturating_sub(after));
        }
    }
    Ok(report)
}

/// Makes calls in the processes, the largest first.
fn reclaim_by_calls(
    before: &GroupExplanation,
    options: &ReclaimOptions<'_>,
    progress: &dyn Fn(usize, usize),
    report: &mut GroupReclamation,
) {
    let min_bytes = before.cgroup.current_bytes / MIN_PROCESS_DIVISOR;
    let is_large = |process: &&GroupProcess| {
        process.pss_anonymous_bytes.or(process.anonymous_bytes).is_some_and(|held| held > min_bytes)
    };
    let chosen: Vec<&GroupProcess> = before.processes.iter().filter(is_large).collect();
    for (index, process) in chosen.iter().enumerate() {
        progress(index, chosen.len());
        match reclaim(process.pid, options) {
            Ok(reclamation) => report.processes.push(ProcessReclamation::new(process, reclamation)),
            Err(error) => {
                let place = format!("process {}", process.pid);
                report.caveats.push(Caveat::new("process_left_out", place, None, error.to_string()));
            }
        }
    }
    let all = &report.processes;
    let count = |outcome: Outcome| all.iter().filter(|process| process.outcome == outcome).count();
    // `None` if it is unknown for a call that was made.
    let sum = |bytes: fn(&ProcessReclamation) -> Option<u64>| {
        let is_unknown =
            all.iter().any(|process| process.outcome == Outcome::Done && bytes(process).is_none());
        let known: Vec<u64> = all.iter().filter_map(bytes).collect();
        (!is_unknown && !known.is_empty()).then(|| known.into_iter().fold(0, u64::saturating_add))
    };
    report.predicted_bytes = sum(|process| process.predicted_bytes);
    report.actual_bytes = sum(|process| process.actual_bytes);
    let refused_count = count(Outcome::Refused) + report.caveats.len();
    if count(Outcome::Done) > 0 {
        report.outcome = Outcome::Done;
    } else if refused_count > 0 && count(Outcome::NothingToGiveBack) == 0 {
        report.outcome = Outcome::Refused;
        let reason = all.iter().find_map(|process| process.reason.clone());
        let reason = reason.or_else(|| report.caveats.first().map(|caveat| caveat.text.clone()));
        let processes = match chosen.as_slice() {
            [process] => format!("process {}", process.pid),
            _ => format!("any of {}", counted(chosen.len() as u64, "process")),
        };
        report.reason = reason.map(|reason| format!("no call was made in {processes}: {reason}"));
    }
}

impl ProcessReclamation {
    fn new(process: &GroupProcess, reclamation: Reclamation) -> Self {
        Self {
            pid: process.pid,
            name: process.name.clone(),
            remedy: reclamation.remedy,
            outcome: reclamation.outcome,
            reason: reclamation.reason,
            // A refusal or an empty heap releases nothing, whatever was predicted.
            predicted_bytes: reclamation.predicted_bytes.filter(|_| reclamation.outcome == Outcome::Done),
            actual_bytes: reclamation.actual_bytes,
            call_seconds: reclamation.call_seconds,
            stopped_seconds: reclamation.stopped_seconds,
        }
    }
}

/// Requests that the kernel reclaims the clean inactive page cache.
fn reclaim_by_kernel(group: &Group, before: &GroupExplanation, report: &mut GroupReclamation) {
    let Some(remedy) = before.remedies.iter().find(|remedy| remedy.id == MEMORY_RECLAIM) else {
        report.outcome = Outcome::Refused;
        report.reason = Some(match before.cgroup.version {
            1 => "control groups of version 1 have no memory.reclaim; the kernel reclaims page cache by itself at the limit".to_owned(),
            _ => "this kernel has no memory.reclaim (Linux 5.19 and later)".to_owned(),
        });
        return;
    };
    report.predicted_bytes = remedy.predicted_bytes;
    let Some(predicted_bytes) = remedy.predicted_bytes else {
        report.outcome = Outcome::Refused;
        report.reason = Some("the kernel does not count the group's inactive page cache".to_owned());
        return;
    };
    if predicted_bytes == 0 {
        return;
    }
    report.outcome = Outcome::Done;
    if report.dry_run {
        return;
    }
    let mut remaining_bytes = predicted_bytes;
    while remaining_bytes > 0 {
        let step_bytes = remaining_bytes.min(STEP_BYTES);
        match request_reclaim(group, step_bytes) {
            Ok(swapping) => {
                if swapping == Swapping::Possible && report.caveats.is_empty() {
                    let text = "this kernel (before 6.11) may have swapped out anonymous memory as well";
                    report.caveats.push(Caveat::new("may_have_swapped", group.path.clone(), None, text));
                }
                remaining_bytes -= step_bytes;
            }
            // The kernel found less than was requested.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                let text = format!("{}/{MEMORY_RECLAIM_FILE}: {error}", before.target.folder);
                if remaining_bytes == predicted_bytes {
                    (report.outcome, report.reason) = (Outcome::Refused, Some(text));
                } else {
                    report.caveats.push(Caveat::new("not_all_reclaimed", group.path.clone(), None, text));
                }
                return;
            }
        }
    }
}

/// Whether a request allows the kernel to swap.
#[derive(PartialEq)]
enum Swapping {
    Excluded,
    Possible,
}

/// Writes a request, without swapping if the kernel knows that (Linux 6.11).
fn request_reclaim(group: &Group, bytes: u64) -> io::Result<Swapping> {
    let write = |text: String| {
        let mut file = OpenOptions::new().write(true).open(group.file(MEMORY_RECLAIM_FILE))?;
        file.write_all(text.as_bytes())
    };
    match write(format!("{bytes} swappiness=0")) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            write(bytes.to_string()).map(|()| Swapping::Possible)
        }
        other => other.map(|()| Swapping::Excluded),
    }
}

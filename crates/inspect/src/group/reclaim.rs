//! Releases memory of a control group: by calls in its processes, one after the other, or by the
//! kernel (memory.reclaim).
//!
//! Reports the predicted and the released bytes, of each process and in all, and the fall of the
//! group's charge.

use std::fs::OpenOptions;
use std::io::{self, Write};

use serde::Serialize;
use strandline_claims::Caveat;
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::{Group, Hierarchy};

use super::advice::Advice;
use super::facts::{GroupExplanation, GroupProcess, GroupTarget};
use super::ledgers::MIN_PROCESS_DIVISOR;
use super::{MEMORY_RECLAIM, MEMORY_RECLAIM_FILE, explain_group};
use crate::facts::{Outcome, Reclamation};
use crate::remedy::{ReclaimOptions, reclaim};

/// What `reclaim --cgroup` reports.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupReclamation {
    /// The group.
    pub target: GroupTarget,
    /// The remedy: the requested one, `memory_reclaim`, or `calls` for the best of each process.
    pub remedy: String,
    /// How it ended: `done` if anything was released.
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

/// Applies a remedy to a group. Without one, the call that releases most is made in each process.
///
/// # Errors
/// The group was removed, or its memory is not counted.
pub fn reclaim_group(
    hierarchy: &Hierarchy,
    group: &Group,
    each: &ReclaimOptions<'_>,
    progress: &dyn Fn(usize, usize),
) -> Result<GroupReclamation, GroupError> {
    let before = explain_group(hierarchy, group)?;
    let mut answer = GroupReclamation {
        remedy: each.remedy.unwrap_or("calls").to_owned(),
        outcome: Outcome::NothingToGiveBack,
        dry_run: each.dry_run,
        current_before_bytes: before.cgroup.current_bytes,
        target: before.target.clone(),
        advice: before.advice.clone(),
        ..GroupReclamation::default()
    };
    if each.remedy == Some(MEMORY_RECLAIM) {
        by_kernel(group, &before, &mut answer);
    } else {
        by_calls(&before, each, progress, &mut answer);
    }
    if !each.dry_run && answer.outcome == Outcome::Done {
        answer.current_after_bytes = group.number(group.version.current_file());
        if answer.remedy == MEMORY_RECLAIM {
            let after = answer.current_after_bytes;
            answer.actual_bytes = after.map(|after| answer.current_before_bytes.saturating_sub(after));
        }
    }
    Ok(answer)
}

/// Makes calls in the processes, the largest first.
fn by_calls(
    before: &GroupExplanation,
    each: &ReclaimOptions<'_>,
    progress: &dyn Fn(usize, usize),
    answer: &mut GroupReclamation,
) {
    let least = before.cgroup.current_bytes / MIN_PROCESS_DIVISOR;
    let held = |one: &GroupProcess| one.pss_anonymous_bytes.or(one.anonymous_bytes).unwrap_or(0);
    let chosen: Vec<&GroupProcess> = before.processes.iter().filter(|one| held(one) > least).collect();
    for (index, one) in chosen.iter().enumerate() {
        progress(index, chosen.len());
        match reclaim(one.pid, each) {
            Ok(given) => answer.processes.push(ProcessReclamation::new(one, given)),
            Err(error) => {
                let place = format!("process {}", one.pid);
                answer.caveats.push(Caveat::new("process_left_out", place, None, error.to_string()));
            }
        }
    }
    let all = &answer.processes;
    let count = |outcome: Outcome| all.iter().filter(|one| one.outcome == outcome).count();
    let sum = |of: fn(&ProcessReclamation) -> Option<u64>| {
        let known: Vec<u64> = all.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.into_iter().fold(0, u64::saturating_add))
    };
    answer.predicted_bytes = sum(|one| one.predicted_bytes);
    let is_unknown = |one: &ProcessReclamation| one.outcome == Outcome::Done && one.actual_bytes.is_none();
    answer.actual_bytes = if all.iter().any(is_unknown) { None } else { sum(|one| one.actual_bytes) };
    let refused = count(Outcome::Refused) + answer.caveats.len();
    if count(Outcome::Done) > 0 {
        answer.outcome = Outcome::Done;
    } else if refused > 0 && count(Outcome::NothingToGiveBack) == 0 {
        answer.outcome = Outcome::Refused;
        let first = all.iter().find_map(|one| one.reason.clone());
        let first = first.or_else(|| answer.caveats.first().map(|caveat| caveat.text.clone()));
        answer.reason = first.map(|first| format!("in none of {} processes: {first}", chosen.len()));
    }
}

impl ProcessReclamation {
    fn new(one: &GroupProcess, given: Reclamation) -> Self {
        Self {
            pid: one.pid,
            name: one.name.clone(),
            remedy: given.remedy,
            outcome: given.outcome,
            reason: given.reason,
            // A refusal or an empty heap releases nothing, whatever was predicted.
            predicted_bytes: given.predicted_bytes.filter(|_| given.outcome == Outcome::Done),
            actual_bytes: given.actual_bytes,
            call_seconds: given.call_seconds,
            stopped_seconds: given.stopped_seconds,
        }
    }
}

/// Bytes requested from the kernel at once: the call returns when they are reclaimed.
const STEP_BYTES: u64 = 256 << 20;

/// Asks the kernel to reclaim the inactive page cache that needs not be written.
fn by_kernel(group: &Group, before: &GroupExplanation, answer: &mut GroupReclamation) {
    let Some(remedy) = before.remedies.iter().find(|remedy| remedy.id == MEMORY_RECLAIM) else {
        answer.outcome = Outcome::Refused;
        answer.reason = Some(match before.cgroup.version {
            1 => "control groups of version 1 have no memory.reclaim; the kernel reclaims page cache by itself at the limit".to_owned(),
            _ => "this kernel has no memory.reclaim (Linux 5.19 and later)".to_owned(),
        });
        return;
    };
    answer.predicted_bytes = remedy.predicted_bytes;
    let wanted = remedy.predicted_bytes.unwrap_or(0);
    if wanted == 0 {
        return;
    }
    answer.outcome = Outcome::Done;
    if answer.dry_run {
        return;
    }
    let mut left = wanted;
    while left > 0 {
        let step = left.min(STEP_BYTES);
        match ask(group, step) {
            Ok(may_swap) => {
                if may_swap && answer.caveats.is_empty() {
                    let text = "this kernel (before 6.11) may have swapped out anonymous memory as well";
                    answer.caveats.push(Caveat::new("may_have_swapped", group.path.clone(), None, text));
                }
                left -= step;
            }
            // The kernel found less than was requested.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                if left == wanted {
                    answer.outcome = Outcome::Refused;
                    answer.reason = Some(format!("{}/{MEMORY_RECLAIM_FILE}: {error}", before.target.folder));
                }
                return;
            }
        }
    }
}

/// Writes a request, first without swapping (Linux 6.11); true if the kernel does not know that.
fn ask(group: &Group, bytes: u64) -> io::Result<bool> {
    let write = |text: String| {
        let mut file = OpenOptions::new().write(true).open(group.file(MEMORY_RECLAIM_FILE))?;
        file.write_all(text.as_bytes())
    };
    match write(format!("{bytes} swappiness=0")) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => write(bytes.to_string()).map(|()| true),
        other => other.map(|()| false),
    }
}

//! The screen of `reclaim --cgroup`: what was released in all, then process by process.

use strandline_inspect::facts::Outcome;
use strandline_inspect::group::reclaim::{GroupReclamation, ProcessReclamation};

use super::brief::NextCommand;
use super::group::settings;
use super::model;
use super::paint::Surface;
use super::reclamation::{released, would_release};
use super::table::{Column, figures, lay_out, words};
use super::terminal::{joined, listed, next_commands, strong, table_lines};
use super::text::{clean, counted, wrap};
use super::units::{bytes, maybe_bytes, seconds};

/// Maximum number of processes of a default screen.
const MAX_PROCESSES: usize = 20;

/// A sentence on what happened.
pub fn headline(reclamation: &GroupReclamation) -> String {
    let subject = if applies_calls(reclamation) {
        format!("calls in {}", counted(done_count(reclamation), "process"))
    } else {
        clean(&reclamation.remedy)
    };
    match reclamation.outcome {
        Outcome::Refused => {
            let subject = if applies_calls(reclamation) { "nothing was called" } else { &subject };
            let reason = reclamation.reason.as_deref().map(clean);
            format!("{subject}: {}", reason.unwrap_or_else(|| "no reason is known".to_owned()))
        }
        Outcome::NothingToGiveBack => "there is nothing to release".to_owned(),
        Outcome::Done if reclamation.dry_run => {
            would_release(&subject, maybe_bytes(reclamation.predicted_bytes))
        }
        Outcome::Done => released(&subject, reclamation.actual_bytes, reclamation.predicted_bytes),
    }
}

/// Whether the best call was applied in each process, because no remedy was named.
fn applies_calls(reclamation: &GroupReclamation) -> bool {
    reclamation.remedy == "calls"
}

/// Number of processes in which something was or would be released.
fn done_count(reclamation: &GroupReclamation) -> u64 {
    reclamation.processes.iter().filter(|process| process.outcome == Outcome::Done).count() as u64
}

const HEAD: [Column; 5] =
    [words("process"), words("remedy"), figures("predicted"), figures("actual"), words("")];

/// The screen, with a final newline.
pub fn screen(reclamation: &GroupReclamation, shows_all: bool, surface: Surface) -> String {
    let mut lines = strong(&wrap(&headline(reclamation), surface.columns), surface);
    if let Some(after) = reclamation.current_after_bytes {
        lines.push(format!("charge {} → {}", bytes(reclamation.current_before_bytes), bytes(after)));
    }
    let max_processes = if shows_all { usize::MAX } else { MAX_PROCESSES };
    let rows: Vec<Vec<String>> = reclamation.processes.iter().take(max_processes).map(cells).collect();
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(table_lines(lay_out(&HEAD, &rows, 4, surface.columns), surface));
    }
    let hidden_count = reclamation.processes.len() - rows.len();
    if hidden_count > 0 {
        lines.push(format!("{} (-v lists them)", counted(hidden_count as u64, "more process")));
    }
    lines.extend(settings(&reclamation.advice, surface));
    lines.extend(listed("caveats", &model::caveats(&reclamation.caveats), surface));
    if reclamation.dry_run && reclamation.outcome == Outcome::Done {
        let remedy = if applies_calls(reclamation) {
            String::new()
        } else {
            format!(" --remedy {}", clean(&reclamation.remedy))
        };
        let command = format!("strandline reclaim {}{remedy}", clean(&reclamation.target.arguments));
        lines.push(String::new());
        lines.extend(next_commands(&[NextCommand::new(command, "applies it")], surface));
    }
    joined(&lines)
}

/// The cells of the row of a process; the last one has its pause, or why nothing was released.
fn cells(process: &ProcessReclamation) -> Vec<String> {
    let remark = match process.outcome {
        Outcome::Done => {
            process.stopped_seconds.map_or_else(String::new, |time| format!("pause {}", seconds(time)))
        }
        Outcome::NothingToGiveBack => "nothing to release".to_owned(),
        Outcome::Refused => process.reason.as_deref().map_or_else(|| "refused".to_owned(), clean),
    };
    vec![
        format!("{} {}", process.pid, clean(&process.name)),
        clean(&process.remedy),
        process.predicted_bytes.map_or_else(String::new, bytes),
        process.actual_bytes.map_or_else(String::new, bytes),
        remark,
    ]
}

//! The screen of `reclaim --cgroup`: what was released in all, then process by process.

use strandline_inspect::facts::Outcome;
use strandline_inspect::group::reclaim::{GroupReclamation, ProcessReclamation};

use super::group::settings;
use super::model;
use super::paint::Surface;
use super::reclamation::of_predicted;
use super::table::{Column, figures, lay_out, words};
use super::terminal::{joined, listed, next, strong, table_lines};
use super::text::{clean, counted, wrap};
use super::units::{bytes, maybe_bytes, maybe_seconds};

/// Maximum number of processes of a default screen.
const MAX_PROCESSES: usize = 20;

/// A sentence on what happened.
pub fn headline(given: &GroupReclamation) -> String {
    let what = match given.remedy.as_str() {
        "calls" => format!("calls in {}", counted(done(given), "process")),
        remedy => clean(remedy),
    };
    let reason = given.reason.as_deref().map(clean);
    match given.outcome {
        Outcome::Refused => {
            let what = if given.remedy == "calls" { "nothing was called" } else { &what };
            format!("{what}: {}", reason.unwrap_or_else(|| "no reason is known".to_owned()))
        }
        Outcome::NothingToGiveBack => "there is nothing to release".to_owned(),
        Outcome::Done if given.dry_run => {
            format!(
                "{what} would release {} (predicted; nothing was touched)",
                maybe_bytes(given.predicted_bytes)
            )
        }
        Outcome::Done => match given.actual_bytes {
            Some(actual) => {
                format!("{what} released {}{}", bytes(actual), of_predicted(actual, given.predicted_bytes))
            }
            None => format!("{what} was applied; how much it released is not known"),
        },
    }
}

/// Processes in which something was or would be released.
fn done(given: &GroupReclamation) -> u64 {
    given.processes.iter().filter(|one| one.outcome == Outcome::Done).count() as u64
}

const HEAD: [Column; 5] =
    [words("process"), words("remedy"), figures("predicted"), figures("actual"), words("")];

/// The screen, with a final newline.
pub fn screen(given: &GroupReclamation, verbose: bool, surface: Surface) -> String {
    let mut lines = strong(&wrap(&headline(given), surface.columns), surface);
    if let Some(after) = given.current_after_bytes {
        lines.push(format!("charge {} → {}", bytes(given.current_before_bytes), bytes(after)));
    }
    let most = if verbose { usize::MAX } else { MAX_PROCESSES };
    let rows: Vec<Vec<String>> = given.processes.iter().take(most).map(cells).collect();
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(table_lines(lay_out(&HEAD, &rows, 4, surface.columns), surface));
    }
    if given.processes.len() > most {
        lines.push(format!("{} more processes (-v lists them)", given.processes.len() - most));
    }
    lines.extend(settings(&given.advice, surface));
    lines.extend(listed("caveats", &model::caveats(&given.caveats), surface));
    if given.dry_run && given.outcome == Outcome::Done {
        let remedy = if given.remedy == "calls" {
            String::new()
        } else {
            format!(" --remedy {}", clean(&given.remedy))
        };
        let command = format!("strandline reclaim {}{remedy}", clean(&given.target.arguments));
        lines.push(String::new());
        lines.extend(next(&[(command, "applies it".to_owned())], surface));
    }
    joined(&lines)
}

fn cells(one: &ProcessReclamation) -> Vec<String> {
    let remark = match one.outcome {
        Outcome::Done => one
            .stopped_seconds
            .map_or_else(String::new, |_| format!("pause {}", maybe_seconds(one.stopped_seconds))),
        Outcome::NothingToGiveBack => "nothing to release".to_owned(),
        Outcome::Refused => one.reason.as_deref().map_or_else(|| "refused".to_owned(), clean),
    };
    vec![
        format!("{} {}", one.pid, clean(&one.name)),
        clean(&one.remedy),
        one.predicted_bytes.map_or_else(String::new, bytes),
        one.actual_bytes.map_or_else(String::new, bytes),
        remark,
    ]
}

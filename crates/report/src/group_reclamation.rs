//! The screen of `reclaim --cgroup`: what was released in all, then process by process.

use strandline_inspect::facts::Outcome;
use strandline_inspect::group::BEST_CALLS;
use strandline_inspect::group::reclaim::{GroupReclamation, ProcessReclamation};

use super::brief::NextCommand;
use super::group::settings;
use super::model;
use super::paint::Surface;
use super::reclamation::{released, would_release};
use super::table::{Column, figures, lay_out, words};
use super::terminal::{joined, listed, next_commands, strong, table_lines};
use super::text::{clean, counted, listed_by_verbose, wrap};
use super::units::{bytes, maybe_bytes, seconds};

/// Maximum number of processes on the default screen.
const MAX_PROCESSES: usize = 20;
/// Columns of the table; the last one, for remarks, is shortened if the table is too wide.
const HEAD: [Column; 5] =
    [words("process"), words("remedy"), figures("predicted"), figures("actual"), words("")];

/// A sentence on what happened.
pub fn headline(reclamation: &GroupReclamation) -> String {
    let subject = if applies_calls(reclamation) {
        format!("calls in {}", counted(done_count(reclamation), "process"))
    } else {
        clean(&reclamation.remedy)
    };
    match reclamation.outcome {
        Outcome::Refused => {
            let reason = reclamation.reason.as_deref().map(clean);
            let reason = reason.unwrap_or_else(|| "refused, no reason is known".to_owned());
            // The reason says that no call was made.
            if applies_calls(reclamation) { reason } else { format!("{subject}: {reason}") }
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
    reclamation.remedy == BEST_CALLS
}

/// Number of processes in which something was or would be released.
fn done_count(reclamation: &GroupReclamation) -> u64 {
    reclamation.processes.iter().filter(|process| process.outcome == Outcome::Done).count() as u64
}

/// The screen, with a final newline; `shows_all` if it lists all processes.
pub fn screen(reclamation: &GroupReclamation, shows_all: bool, surface: Surface) -> String {
    let mut lines = strong(&wrap(&headline(reclamation), surface.columns), surface);
    if let Some(after) = reclamation.current_after_bytes {
        lines.push(format!("charge {} → {}", bytes(reclamation.current_before_bytes), bytes(after)));
    }
    let max_processes = if shows_all { usize::MAX } else { MAX_PROCESSES };
    let shown = reclamation.processes.iter().take(max_processes);
    let rows: Vec<Vec<String>> = shown.map(|process| cells(process, reclamation.dry_run)).collect();
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(table_lines(lay_out(&HEAD, &rows, HEAD.len() - 1, surface.columns), surface));
    }
    let hidden_count = reclamation.processes.len() - rows.len();
    if hidden_count > 0 {
        let hidden_count = hidden_count as u64;
        let remark = listed_by_verbose(hidden_count);
        lines.push(format!("{} ({remark})", counted(hidden_count, "more process")));
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
fn cells(process: &ProcessReclamation, is_dry_run: bool) -> Vec<String> {
    let reason = process.reason.as_deref().map(clean);
    let is_done = process.outcome == Outcome::Done;
    let remark = match process.outcome {
        Outcome::Done => {
            let pause = process.stopped_seconds.map(|time| format!("pause {}", seconds(time)));
            let note = reason.map(|reason| format!("note: {reason}"));
            pause.into_iter().chain(note).collect::<Vec<_>>().join(", ")
        }
        Outcome::NothingToGiveBack => reason.map_or_else(
            || "nothing to release".to_owned(),
            |reason| format!("nothing to release: {reason}"),
        ),
        Outcome::Refused => reason.unwrap_or_else(|| "refused".to_owned()),
    };
    // Only of a call that was made a missing figure is unknown.
    let figure = |size: Option<u64>, is_expected: bool| {
        if is_expected { maybe_bytes(size) } else { size.map_or_else(String::new, bytes) }
    };
    vec![
        format!("{} {}", process.pid, clean(&process.name)),
        clean(&process.remedy),
        figure(process.predicted_bytes, is_done),
        figure(process.actual_bytes, is_done && !is_dry_run),
        remark,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Surface = Surface { columns: 100, has_colour: false };

    fn process(outcome: Outcome, reason: Option<&str>) -> ProcessReclamation {
        ProcessReclamation {
            pid: 17,
            name: "served".to_owned(),
            remedy: "malloc_trim".to_owned(),
            outcome,
            reason: reason.map(str::to_owned),
            ..ProcessReclamation::default()
        }
    }

    fn reclamation(processes: Vec<ProcessReclamation>) -> GroupReclamation {
        GroupReclamation { remedy: BEST_CALLS.to_owned(), processes, ..GroupReclamation::default() }
    }

    #[test]
    fn a_refusal_is_its_reason_after_the_name_of_a_requested_remedy() {
        let mut refused = reclamation(Vec::new());
        refused.outcome = Outcome::Refused;
        refused.reason = Some("no call was made in any of 3 processes: it is traced".to_owned());
        assert_eq!(headline(&refused), "no call was made in any of 3 processes: it is traced");
        refused.remedy = "malloc_trim".to_owned();
        assert_eq!(headline(&refused), "malloc_trim: no call was made in any of 3 processes: it is traced");
    }

    #[test]
    fn a_dry_run_has_predictions_and_the_command_that_applies_it() {
        let mut predicted = process(Outcome::Done, None);
        predicted.predicted_bytes = Some(30 << 20);
        let others = [
            process(Outcome::NothingToGiveBack, Some("its heap is empty")),
            process(Outcome::Refused, Some("it is traced")),
        ];
        let mut dry = reclamation([&[predicted][..], &others].concat());
        dry.dry_run = true;
        dry.predicted_bytes = Some(30 << 20);
        dry.target.arguments = "--cgroup /web".to_owned();
        let expected = "\
calls in 1 process would release 30.0 MiB (predicted; nothing was touched)

process    remedy       predicted  actual
17 served  malloc_trim   30.0 MiB
17 served  malloc_trim                     nothing to release: its heap is empty
17 served  malloc_trim                     it is traced

next   strandline reclaim --cgroup /web  applies it
";
        assert_eq!(screen(&dry, false, PLAIN), expected);
    }

    #[test]
    fn unknown_figures_of_a_call_are_marked_and_further_processes_counted() {
        let mut done = process(Outcome::Done, Some("its owner ended"));
        done.stopped_seconds = Some(0.0053);
        let all = reclamation(vec![done; MAX_PROCESSES + 2]);
        let text = screen(&all, false, PLAIN);
        let row = "17 served  malloc_trim          ?       ?  pause 5.3 ms, note: its owner ended";
        assert_eq!(text.lines().filter(|line| *line == row).count(), MAX_PROCESSES, "{text}");
        assert!(text.ends_with("2 more processes (-v lists them)\n"), "{text}");
        let text = screen(&all, true, PLAIN);
        assert_eq!(text.lines().filter(|line| *line == row).count(), MAX_PROCESSES + 2, "{text}");
    }
}

//! `reclaim PID`: applies a remedy.

use std::time::Duration;

use strandline_claims::remedy::Effect;
use strandline_inspect::facts::{HolderKind, Outcome, Reclamation, Remedy, RemedyKind, Row, State};
use strandline_inspect::readers;
use strandline_inspect::remedy::{ReclaimOptions, reclaim};

use super::arguments::Reclaim;
use super::output::{Output, print_message};
use super::{CommandResult, Result};
use strandline_report::paint::Surface;
use strandline_report::text::{clean, clean_sentence, shorten, wrap};
use strandline_report::units::bytes;
use strandline_report::{NextCommand, reclamation, terminal};

pub const SCHEMA: &str = "strandline/reclaim/1";

/// How long the target's minor faults are counted after the call, as the cost of giving memory
/// back.
const FAULT_WATCH: Duration = Duration::from_secs(2);
/// A better remedy, or pinned memory, is mentioned above 1/`MIN_MENTIONED_DIVISOR` of RSS.
const MIN_MENTIONED_DIVISOR: u64 = 100;
/// Pinned memory below this is not mentioned.
const MIN_PINNED_BYTES: u64 = 1 << 20;

/// Applies the remedy and prints the result. A refusal exits with "could not".
pub fn run(arguments: &Reclaim, output: &mut Output) -> Result<CommandResult> {
    let options = ReclaimOptions { watch: FAULT_WATCH, ..options(arguments) };
    let pid = arguments.pid()?;
    let reclamation = reclaim(pid, &options)?;
    let is_refused = reclamation.outcome == Outcome::Refused;
    if output.is_json {
        output.document(SCHEMA, reclamation.before.as_ref(), &reclamation)?;
    } else if !is_refused {
        output.print(&screen(pid, arguments, &reclamation, output.surface))?;
    }
    if is_refused {
        let better = better_remedies(pid, &reclamation);
        let hints: String = better.iter().map(|sentence| format!("; {sentence}")).collect();
        print_message(&format!("process {pid}: {}{hints}", reclamation::headline(&reclamation)));
        return Ok(CommandResult::Failed);
    }
    Ok(CommandResult::Done)
}

/// The options that the arguments request, without counting page faults afterwards.
pub fn options(arguments: &Reclaim) -> ReclaimOptions<'_> {
    ReclaimOptions {
        remedy: arguments.remedy.as_deref(),
        dry_run: arguments.dry_run,
        wait: arguments.wait,
        allow_lost_write_risk: arguments.allow_lost_write_risk,
        max_stop: arguments.max_stop,
        quiet_for: arguments.quiet.limit,
        snapshot: arguments.snapshot.mode(),
        ..ReclaimOptions::default()
    }
}

/// The default screen, or the one with all details.
fn screen(pid: i32, arguments: &Reclaim, reclamation: &Reclamation, surface: Surface) -> String {
    let hints = hint_lines(pid, arguments, reclamation, surface);
    if !arguments.detail.verbose {
        return reclamation::reclamation(reclamation, &hints, surface);
    }
    let title = reclamation.before.as_ref().map_or_else(
        || format!("process {pid}"),
        |before| format!("process {pid} · {}", strandline_report::model::program(&before.target)),
    );
    let title = terminal::faint(&[shorten(&title, surface.columns)], surface).concat();
    format!("{title}\n\n{}", reclamation::details(reclamation, &hints, surface))
}

/// What to do next: other remedies that are better, and the command that applies a predicted one or
/// shows what pins the rest.
fn hint_lines(pid: i32, arguments: &Reclaim, reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let better = better_remedies(pid, reclamation);
    let mut lines: Vec<String> = better.iter().flat_map(|hint| wrap(hint, surface.columns)).collect();
    let command = if reclamation.dry_run && reclamation.outcome == Outcome::Done {
        // A remedy that is only predicted cannot be applied from here.
        is_applied(&reclamation.remedy).then(|| {
            let mut next = apply_command(pid, reclamation, arguments.remedy.is_some());
            next.command += if arguments.allow_lost_write_risk { " --allow-lost-write-risk" } else { "" };
            next
        })
    } else {
        pins_command(pid, reclamation)
    };
    if let Some(command) = command {
        lines.push(String::new());
        lines.extend(terminal::next_commands(&[command], surface));
    }
    lines
}

/// The command that applies a predicted remedy, and what it does. If no remedy was requested, it is
/// the command that `explain` shows.
pub fn apply_command(pid: i32, reclamation: &Reclamation, is_requested: bool) -> NextCommand {
    let mut remedies = reclamation.before.iter().flat_map(|before| &before.remedies);
    let same = remedies.find(|offered| offered.kind == RemedyKind::Call && offered.id == reclamation.remedy);
    let offered_command = same.filter(|_| !is_requested).map(|offered| clean_sentence(&offered.how));
    let command = offered_command
        .unwrap_or_else(|| format!("strandline reclaim {pid} --remedy {}", clean(&reclamation.remedy)));
    NextCommand::new(command, "applies it")
}

/// The command that shows which blocks pin memory that no remedy releases, if that is a significant
/// part. Memory of runtimes is left out, because `holders` shows pins in memory of allocators.
/// `None` if the last state is not known.
fn pins_command(pid: i32, reclamation: &Reclamation) -> Option<NextCommand> {
    let latest = match reclamation.outcome {
        Outcome::Done => reclamation.after.as_ref()?,
        Outcome::NothingToGiveBack | Outcome::Refused => reclamation.before.as_ref()?,
    };
    let is_pinned = |row: &&Row| row.state == State::Pinned && row.stratum == HolderKind::Allocator;
    let pinned = latest.rows.iter().filter(is_pinned);
    let pinned_bytes = pinned.fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let min_bytes = (latest.kernel.rss_bytes / MIN_MENTIONED_DIVISOR).max(MIN_PINNED_BYTES);
    (pinned_bytes > min_bytes).then(|| {
        NextCommand::new(format!("strandline holders {pid}"), &format!("what pins {}", bytes(pinned_bytes)))
    })
}

/// Whether `reclaim` applies this remedy; true for one that no reader lists.
fn is_applied(id: &str) -> bool {
    readers::remedy(id).is_none_or(|spec| spec.is_applied())
}

/// The remedies of the running process that are predicted to release more than the requested one,
/// or may, as sentences.
fn better_remedies(pid: i32, reclamation: &Reclamation) -> Vec<String> {
    let Some(latest) = reclamation.after.as_ref().or(reclamation.before.as_ref()) else { return Vec::new() };
    // If nothing was predicted, any remedy that releases a significant part may be better.
    let predicted = reclamation.predicted_bytes.or(reclamation.predicted_least_bytes).unwrap_or(0);
    let min_bytes = predicted.max(latest.kernel.rss_bytes / MIN_MENTIONED_DIVISOR);
    let others = latest.remedies.iter().filter(|other| other.id != reclamation.remedy);
    others.filter_map(|other| better_sentence(min_bytes, pid, other)).collect()
}

/// Says that `other` is predicted to release more than `min_bytes`, or that it may release more.
fn better_sentence(min_bytes: u64, pid: i32, other: &Remedy) -> Option<String> {
    let is_possible = match other.kind {
        RemedyKind::Call => is_applied(&other.id),
        RemedyKind::Program => true,
        RemedyKind::Setting | RemedyKind::Allocator => false,
    };
    if !is_possible {
        return None;
    }
    let (id, how) = (clean(&other.id), clean_sentence(&other.how));
    let needs = other.needs.as_ref().map_or_else(String::new, |needs| format!(" (needs {})", clean(needs)));
    let sentence = |figure: String| format!("{id} is predicted to release {figure}: {how}{needs}");
    match (other.predicted_bytes, other.predicted_least_bytes) {
        (Some(figure), _) => (figure > min_bytes).then(|| sentence(bytes(figure))),
        (None, Some(bound)) if bound > min_bytes => Some(sentence(format!("at least {}", bytes(bound)))),
        // Without a trace of objects the garbage among them is unknown.
        (None, _) => (other.kind == RemedyKind::Call && releases_objects(&other.id)).then(|| {
            format!(
                "{id} may release more (not known from this reading, see `strandline explain {pid}`): {how}"
            )
        }),
    }
}

/// Whether a remedy makes a runtime collect its objects.
fn releases_objects(id: &str) -> bool {
    readers::remedy(id).is_some_and(|spec| spec.effect == Effect::Objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_inspect::facts::Explanation;

    /// A ledger with pinned bytes, of a process that offers the command of explain.
    fn ledger(pinned: u64) -> Option<Explanation> {
        let mut ledger = Explanation::default();
        ledger.kernel.rss_bytes = 200 << 20;
        ledger.rows = [(HolderKind::Allocator, pinned), (HolderKind::Collector, 9 << 20)]
            .map(|(stratum, bytes)| Row {
                id: "row".to_owned(),
                stratum,
                state: State::Pinned,
                holder: String::new(),
                bytes,
            })
            .to_vec();
        let how = "strandline reclaim 7".to_owned();
        ledger.remedies = vec![Remedy { how, ..Remedy::call("malloc_trim", Some(9 << 20), 7, "") }];
        Some(ledger)
    }

    #[test]
    fn a_prediction_leads_to_the_command_of_explain_or_of_the_request() {
        let remedy = "malloc_trim".to_owned();
        let predicted = Reclamation { remedy, before: ledger(0), ..Reclamation::default() };
        let command = |is_requested| apply_command(7, &predicted, is_requested).command;
        assert_eq!(command(false), "strandline reclaim 7");
        assert_eq!(command(true), "strandline reclaim 7 --remedy malloc_trim");
        let other = Reclamation { remedy: "zero_pages".to_owned(), ..predicted.clone() };
        assert_eq!(apply_command(7, &other, false).command, "strandline reclaim 7 --remedy zero_pages");
    }

    #[test]
    fn pinned_memory_that_is_left_leads_to_holders() {
        let command = |outcome, before, after| {
            let done = Reclamation { outcome, before, after, ..Reclamation::default() };
            pins_command(7, &done).map(|next| format!("{}: {}", next.command, next.effect))
        };
        let expected = Some("strandline holders 7: what pins 50.0 MiB".to_owned());
        assert_eq!(command(Outcome::Done, ledger(90 << 20), ledger(50 << 20)), expected);
        assert_eq!(command(Outcome::NothingToGiveBack, ledger(50 << 20), None), expected);
        assert_eq!(command(Outcome::Done, ledger(50 << 20), ledger(1 << 20)), None, "too little");
        assert_eq!(command(Outcome::Done, ledger(50 << 20), None), None, "the process may have ended");
    }
}

//! `reclaim PID`: applies a remedy.

use std::time::Duration;

use strandline_claims::remedy::Effect;
use strandline_inspect::facts::{Outcome, Reclamation, Remedy, RemedyKind};
use strandline_inspect::readers;
use strandline_inspect::remedy::{ReclaimOptions, reclaim};

use super::arguments::Reclaim;
use super::output::{Output, print_message};
use super::{CommandResult, Result};
use strandline_report::paint::Surface;
use strandline_report::text::{clean, clean_sentence, shorten, wrap};
use strandline_report::units::bytes;
use strandline_report::{reclamation, terminal};

pub const SCHEMA: &str = "strandline/reclaim/1";

/// How long the target's minor faults are counted after the call, as the cost of giving memory
/// back.
const WATCH: Duration = Duration::from_secs(2);
/// Another remedy is mentioned only if it is predicted to release more than 1 / this of RSS.
const MIN_MENTIONED_DIVISOR: u64 = 100;

/// Applies the remedy and prints the result. A refusal exits with "could not".
pub fn run(arguments: &Reclaim, output: &mut Output) -> Result<CommandResult> {
    let options = ReclaimOptions { watch: WATCH, ..options(arguments) };
    let reclamation = reclaim(arguments.pid(), &options)?;
    let is_refused = reclamation.outcome == Outcome::Refused;
    if output.json {
        output.document(SCHEMA, reclamation.before.as_ref(), &reclamation)?;
    } else if !is_refused {
        output.print(&screen(arguments, &reclamation, output.surface))?;
    }
    if is_refused {
        let better = better_remedies(arguments.pid(), &reclamation);
        let hints: String = better.iter().map(|sentence| format!("; {sentence}")).collect();
        print_message(&format!(
            "process {}: {}{hints}",
            arguments.pid(),
            reclamation::headline(&reclamation)
        ));
        return Ok(CommandResult::Failed);
    }
    Ok(CommandResult::Done)
}

/// What the arguments say about any reclaim; faults are not counted after it.
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
fn screen(arguments: &Reclaim, reclamation: &Reclamation, surface: Surface) -> String {
    let hints = hint_lines(arguments.pid(), reclamation, surface);
    if !arguments.detail.verbose {
        return reclamation::reclamation(reclamation, &hints, surface);
    }
    let pid = arguments.pid();
    let title = reclamation.before.as_ref().map_or_else(
        || format!("process {pid}"),
        |before| format!("process {pid} · {}", strandline_report::model::program(&before.target)),
    );
    let title = terminal::faint(&[shorten(&title, surface.columns)], surface).concat();
    format!("{title}\n\n{}", reclamation::details(reclamation, &hints, surface))
}

/// What to do next: other remedies that are better, and the command that applies a predicted one.
fn hint_lines(pid: i32, reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let better = better_remedies(pid, reclamation);
    let mut lines: Vec<String> = better.iter().flat_map(|hint| wrap(hint, surface.columns)).collect();
    // A remedy that is only predicted cannot be applied from here.
    if reclamation.dry_run && reclamation.outcome == Outcome::Done && is_applied(&reclamation.remedy) {
        lines.push(String::new());
        lines.extend(terminal::next(&[apply_command(pid, reclamation)], surface));
    }
    lines
}

/// The command that applies a predicted remedy, and what it does.
pub fn apply_command(pid: i32, reclamation: &Reclamation) -> (String, String) {
    let command = format!("strandline reclaim {pid} --remedy {}", clean(&reclamation.remedy));
    (command, "applies it".to_owned())
}

/// Whether a remedy is more than advice.
fn is_applied(id: &str) -> bool {
    readers::remedy(id).is_none_or(|spec| spec.is_applied())
}

/// The remedies of the running process that are predicted to release more than the requested one,
/// or may, as sentences.
fn better_remedies(pid: i32, reclamation: &Reclamation) -> Vec<String> {
    let Some(latest) = reclamation.after.as_ref().or(reclamation.before.as_ref()) else { return Vec::new() };
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
    let sentence = |figure: String| format!("{id} is predicted to release more, {figure}: {how}");
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

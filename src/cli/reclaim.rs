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

/// Applies the remedy and prints the result. A refusal exits with "could not".
pub fn run(arguments: &Reclaim, output: &mut Output) -> Result<CommandResult> {
    let options = ReclaimOptions {
        remedy: arguments.remedy.as_deref(),
        dry_run: arguments.dry_run,
        wait: arguments.wait,
        allow_lost_write_risk: arguments.allow_lost_write_risk,
        watch: WATCH,
        max_stop: arguments.max_stop,
        quiet_for: arguments.quiet.limit,
        snapshot: arguments.snapshot.mode(),
        progress: None,
    };
    let reclamation = reclaim(arguments.pid(), &options)?;
    let refused = reclamation.outcome == Outcome::Refused;
    if output.json {
        output.document(SCHEMA, reclamation.before.as_ref(), &reclamation)?;
    } else if !refused {
        output.print(&text(arguments, &reclamation, output.surface))?;
    }
    if refused {
        let better = better(arguments.pid(), &reclamation);
        let more: String = better.iter().map(|better| format!("; {better}")).collect();
        print_message(&format!("process {}: {}{more}", arguments.pid(), reclamation::headline(&reclamation)));
        return Ok(CommandResult::Failed);
    }
    Ok(CommandResult::Done)
}

fn text(arguments: &Reclaim, given: &Reclamation, surface: Surface) -> String {
    let hints = hints(arguments.pid(), given, surface);
    if !arguments.detail.verbose {
        return reclamation::reclamation(given, &hints, surface);
    }
    let pid = arguments.pid();
    let title = given.before.as_ref().map_or_else(
        || format!("process {pid}"),
        |before| format!("process {pid} · {}", strandline_report::model::program(&before.target)),
    );
    let title = terminal::faint(&[shorten(&title, surface.columns)], surface).concat();
    format!("{title}\n\n{}", reclamation::details(given, &hints, surface))
}

/// What to do next: other remedies that are better, and the command that applies a predicted one.
fn hints(pid: i32, given: &Reclamation, surface: Surface) -> Vec<String> {
    let better = better(pid, given);
    let mut lines: Vec<String> = better.iter().flat_map(|better| wrap(better, surface.columns)).collect();
    // A remedy that is only predicted cannot be applied from here.
    if given.dry_run && given.outcome == Outcome::Done && is_applied(&given.remedy) {
        lines.push(String::new());
        lines.extend(terminal::next(&[apply(pid, given)], surface));
    }
    lines
}

/// The command that applies a predicted remedy.
pub fn apply(pid: i32, given: &Reclamation) -> (String, String) {
    let command = format!("strandline reclaim {pid} --remedy {}", clean(&given.remedy));
    (command, "applies it".to_owned())
}

/// Whether a remedy is more than advice.
fn is_applied(id: &str) -> bool {
    readers::remedy(id).is_none_or(|spec| spec.is_applied())
}

/// The remedies of the running process that are predicted to release more than the requested one,
/// or may, as sentences.
fn better(pid: i32, given: &Reclamation) -> Vec<String> {
    let Some(latest) = given.after.as_ref().or(given.before.as_ref()) else { return Vec::new() };
    let predicted = given.predicted_bytes.or(given.predicted_least_bytes).unwrap_or(0);
    let least = predicted.max(latest.kernel.rss_bytes / 100);
    let others = latest.remedies.iter().filter(|other| other.id != given.remedy);
    others.filter_map(|other| more_than(least, pid, other)).collect()
}

/// Says that `other` releases more than `least`, if it is predicted to, or that it may.
fn more_than(least: u64, pid: i32, other: &Remedy) -> Option<String> {
    let is_possible = match other.kind {
        RemedyKind::Call => is_applied(&other.id),
        RemedyKind::Program => true,
        RemedyKind::Setting | RemedyKind::Allocator => false,
    };
    if !is_possible {
        return None;
    }
    let (id, how) = (clean(&other.id), clean_sentence(&other.how));
    let more = |figure: String| format!("{id} is predicted to release more, {figure}: {how}");
    match (other.predicted_bytes, other.predicted_least_bytes) {
        (Some(figure), _) => (figure > least).then(|| more(bytes(figure))),
        (None, Some(bound)) if bound > least => Some(more(format!("at least {}", bytes(bound)))),
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

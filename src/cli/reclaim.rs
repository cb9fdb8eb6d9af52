//! `reclaim PID`: applies a remedy.

use std::time::Duration;

use strandline_inspect::facts::{Outcome, Reclamation};
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
        let more = better(&reclamation).map_or_else(String::new, |better| format!("; {better}"));
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

/// What to do next: another remedy that is better, and the command that applies a predicted one.
fn hints(pid: i32, given: &Reclamation, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(better) = better(given).filter(|_| given.dry_run || given.outcome != Outcome::Done) {
        lines.extend(wrap(&better, surface.columns));
    }
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

/// The remedy that is predicted to release more than the requested one, as a sentence.
fn better(given: &Reclamation) -> Option<String> {
    let before = given.before.as_ref()?;
    let least = given.predicted_bytes.unwrap_or(0).max(before.kernel.rss_bytes / 100);
    let others = before.remedies.iter().filter(|other| other.id != given.remedy);
    let best = others.max_by_key(|other| other.predicted_bytes)?;
    let predicted = best.predicted_bytes.filter(|&predicted| predicted > least)?;
    Some(format!(
        "{} is predicted to release more, {}: {}",
        clean(&best.id),
        bytes(predicted),
        clean_sentence(&best.how)
    ))
}

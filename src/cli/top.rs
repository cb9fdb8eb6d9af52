//! `top`: a live table of processes by memory.

use std::sync::Arc;
use std::time::Duration;

use strandline_inspect::explain::{Options, SnapshotMode, explain};
use strandline_inspect::facts::{Explanation, Outcome};
use strandline_inspect::remedy::{ReclaimOptions, reclaim};
use strandline_report::model::{Rows, View};
use strandline_report::paint::Surface;
use strandline_report::{reclamation, terminal};
use strandline_survey::Selection;
use strandline_top::{Kind, LedgerCallback, Request, RequestResult, StateSums};

use super::arguments_top::Top;
use super::output::Output;
use super::{CommandResult, Failure, Result};

pub const SCHEMA: &str = "strandline/top/1";

/// Time limit for a dry run to find a safe moment; the user is waiting.
const SAFE_MOMENT_LIMIT: Duration = Duration::from_secs(5);

/// Shows the table until the user quits, or once.
pub fn run(arguments: &Top, output: &mut Output) -> Result<CommandResult> {
    let request = arguments.chosen.selection(arguments.chosen.is_empty());
    let options = strandline_top::Options {
        selection: Selection::new(request).map_err(Failure)?,
        interval: arguments.interval,
        sort: arguments.sort.column(),
        kind: match (arguments.tree, arguments.groups) {
            (true, _) => Kind::Tree,
            (_, true) => Kind::Groups,
            _ => Kind::List,
        },
    };
    if output.is_json {
        output.document(SCHEMA, None, &strandline_top::document_once(options))?;
        return Ok(CommandResult::Done);
    }
    if arguments.once {
        let columns = u16::try_from(output.surface.columns).unwrap_or(u16::MAX);
        output.print(&strandline_top::once(options, columns))?;
        return Ok(CommandResult::Done);
    }
    // So that a ledger's memory returns to the kernel: `top` may run for days.
    strandline_sys::own_memory::map_large_arrays();
    let callback: LedgerCallback = Arc::new(|pid, request, columns| {
        let columns = usize::from(columns).clamp(Surface::MIN_COLUMNS, Surface::MAX_COLUMNS);
        let result = inspect(pid, request, Surface { columns, has_colour: false });
        strandline_sys::own_memory::trim_heap();
        result.map_err(|Failure(line)| strandline_report::text::clean(&line))
    });
    strandline_top::run(options, callback).map_err(Failure)?;
    Ok(CommandResult::Done)
}

/// The two states that the table shows.
fn sums(explanation: &Explanation) -> StateSums {
    let totals = &explanation.totals;
    StateSums { stranded_bytes: totals.stranded, pinned_bytes: totals.pinned }
}

/// Inspects a process, from a snapshot if possible, because a keystroke should not stop it for
/// long.
fn inspect(pid: i32, request: Request, surface: Surface) -> Result<RequestResult> {
    let snapshot = SnapshotMode::IfPossible;
    match request {
        Request::Ledger => {
            let explanation = explain(pid, &Options { snapshot, ..Options::default() })?;
            let text = terminal::explanation(&View::new(&explanation, Rows::default()), surface);
            Ok(RequestResult { text, sums: Some(sums(&explanation)) })
        }
        Request::DryRun => {
            let options = ReclaimOptions {
                dry_run: true,
                wait: SAFE_MOMENT_LIMIT,
                quiet_for: strandline_inspect::explain::QUIET_FOR,
                snapshot,
                ..ReclaimOptions::default()
            };
            let predicted = reclaim(pid, &options)?;
            if predicted.outcome == Outcome::Refused {
                return Err(Failure(format!("process {pid}: {}", reclamation::headline(&predicted))));
            }
            let hints = if predicted.outcome == Outcome::Done {
                let command = super::reclaim::apply_command(pid, &predicted, false);
                terminal::next_commands(&[command], surface)
            } else {
                Vec::new()
            };
            let text = reclamation::reclamation(&predicted, &hints, surface);
            Ok(RequestResult { text, sums: predicted.before.as_ref().map(sums) })
        }
    }
}

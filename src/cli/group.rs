//! `explain --cgroup`, `--container`, `--unit`, `--pod`: one control group.

use strandline_export::ledgers::first_stop;
use strandline_inspect::explain::Options;
use strandline_inspect::group::explain_group;
use strandline_inspect::group::facts::{GroupExplanation, GroupProcess};
use strandline_inspect::group::ledgers::{LedgerOptions, add_ledgers};
use strandline_process::group::find::Bounds;
use strandline_process::group::{Group, Hierarchy};
use strandline_report::group;
use strandline_survey::figures::Figures;

use super::arguments::Explain;
use super::arguments_process::{GroupChoice, GroupName};
use super::explain::test_conditions;
use super::output::Output;
use super::progress::Progress;
use super::{CommandResult, Failure, Result};

pub const SCHEMA: &str = "strandline/explain-cgroup/1";

/// Explains the group that is named.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let (hierarchy, group) = open(&arguments.group)?;
    let mut explanation = explain_group(&hierarchy, &group)?;
    if arguments.ledgers {
        take_ledgers(arguments, &mut explanation, output.is_json);
    }
    if output.is_json {
        output.document(SCHEMA, None, &explanation)?;
    } else {
        output.print(&group::screen(&explanation, arguments.detail.verbose, output.surface))?;
    }
    Ok(test_conditions(&arguments.fail_if, |condition| condition.test_group(&explanation, arguments.ledgers)))
}

/// Takes the ledgers of its processes, each within the budget.
fn take_ledgers(arguments: &Explain, explanation: &mut GroupExplanation, is_json: bool) {
    let line = Progress::new(!is_json);
    let show = |done, total| line.set_line(&format!("ledger of process {} of {total}", done + 1));
    let budget = arguments.stop_budget;
    let max_stop = |process: &GroupProcess| {
        let figures = Figures {
            // An unknown RSS might need any time.
            rss_bytes: process.rss_bytes.unwrap_or(u64::MAX),
            anonymous_bytes: process.anonymous_bytes,
            ..Figures::default()
        };
        first_stop(&figures, budget)
    };
    let inspection = Options {
        reads_runtimes: true,
        snapshot: arguments.snapshot.mode(),
        quiet_for: arguments.quiet.limit,
        ..Options::default()
    };
    add_ledgers(explanation, &LedgerOptions { inspection, max_stop: &max_stop, report_progress: &show });
}

/// Opens the group that is named, in the hierarchy of this machine.
pub fn open(choice: &GroupChoice) -> Result<(Hierarchy, Group)> {
    let hierarchy = Hierarchy::of_this_machine()?;
    let group = match choice.name() {
        Some(GroupName::Path(path)) => hierarchy.open(&path)?,
        Some(GroupName::Owner(owner)) => hierarchy.find(&owner, Bounds::default())?,
        None => return Err(Failure("no control group is named".to_owned())),
    };
    Ok((hierarchy, group))
}

#[cfg(test)]
mod tests {
    use strandline_inspect::group::rows::legend;

    #[test]
    fn every_row_is_defined_for_people() {
        let definitions = include_str!("../../docs/accounting.md");
        let rows = legend().map(|(id, state)| format!("| `{id}` | {state:?} |").to_lowercase());
        let missing: Vec<String> = rows.filter(|row| !definitions.contains(row)).collect();
        assert!(missing.is_empty(), "docs/accounting.md does not define {}", missing.join(", "));
    }
}

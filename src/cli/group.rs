//! `explain --cgroup`, `--container`, `--unit`, `--pod`: one control group.

use std::time::Duration;

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

/// Takes the ledgers of its processes.
fn take_ledgers(arguments: &Explain, explanation: &mut GroupExplanation, is_json: bool) {
    let line = Progress::new(!is_json);
    let show = |done, total| line.set_line(&format!("ledger of process {} of {total}", done + 1));
    let max_stop = |process: &GroupProcess| max_stop(arguments, process);
    let inspection = Options {
        reads_runtimes: !arguments.no_runtimes,
        snapshot: arguments.snapshot.mode(),
        quiet_for: arguments.quiet.limit,
        ..Options::default()
    };
    add_ledgers(explanation, &LedgerOptions { inspection, max_stop: &max_stop, report_progress: &show });
}

/// How long the ledger of a process may stop it: what --stop-budget and --max-stop both allow;
/// `None` for not at all.
fn max_stop(arguments: &Explain, process: &GroupProcess) -> Option<Duration> {
    let figures = Figures {
        // An unknown RSS might need any time.
        rss_bytes: process.rss_bytes.unwrap_or(u64::MAX),
        anonymous_bytes: process.anonymous_bytes,
        ..Figures::default()
    };
    let budgeted = first_stop(&figures, arguments.stop_budget)?;
    Some(arguments.max_stop.map_or(budgeted, |max_stop| max_stop.min(budgeted)))
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
    use clap::Parser;
    use strandline_inspect::group::rows::legend;

    use super::*;
    use crate::cli::arguments::{Arguments, Verb};

    #[test]
    fn the_shorter_limit_of_a_stop_counts() {
        let limit = |more: &[&str]| {
            let words = [&["strandline", "explain", "--ledgers", "--cgroup", "/a"][..], more].concat();
            let Verb::Explain(explain) = Arguments::try_parse_from(words).unwrap().verb else {
                panic!("these are arguments of explain")
            };
            max_stop(&explain, &GroupProcess { rss_bytes: Some(0), ..GroupProcess::default() })
        };
        let budgeted = limit(&[]);
        assert!(budgeted > Some(Duration::from_millis(1)));
        assert_eq!(limit(&["--max-stop", "1ms"]), Some(Duration::from_millis(1)));
        assert_eq!(limit(&["--max-stop", "60s"]), budgeted);
    }

    #[test]
    fn every_row_is_defined_for_people() {
        let definitions = include_str!("../../docs/accounting.md");
        let rows = legend().map(|(id, state)| format!("| `{id}` | {state:?} |").to_lowercase());
        let missing: Vec<String> = rows.filter(|row| !definitions.contains(row)).collect();
        assert!(missing.is_empty(), "docs/accounting.md does not define {}", missing.join(", "));
    }
}

//! `reclaim --cgroup`, `--container`, `--unit`, `--pod`: releases memory of a control group.

use strandline_inspect::facts::Outcome;
use strandline_inspect::group::reclaim::reclaim_group;
use strandline_report::group_reclamation;

use super::arguments::Reclaim;
use super::group::open;
use super::output::{Output, print_message};
use super::progress::Progress;
use super::reclaim::options;
use super::{CommandResult, Result};

pub const SCHEMA: &str = "strandline/reclaim-cgroup/1";

/// Applies the remedy to the group that is named.
pub fn run(arguments: &Reclaim, output: &mut Output) -> Result<CommandResult> {
    let (hierarchy, group) = open(&arguments.group)?;
    let progress = Progress::new(!output.is_json);
    let show = |done, total| progress.set_line(&format!("process {} of {total}", done + 1));
    // These options count no page faults, which would take seconds for each process.
    let reclamation = reclaim_group(&hierarchy, &group, &options(arguments), &show)?;
    drop(progress);
    if output.is_json {
        output.document(SCHEMA, None, &reclamation)?;
    }
    if reclamation.outcome == Outcome::Refused {
        let headline = group_reclamation::headline(&reclamation);
        print_message(&format!("control group {}: {headline}", strandline_report::text::clean(&group.path)));
        return Ok(CommandResult::Failed);
    }
    if !output.is_json {
        output.print(&group_reclamation::screen(&reclamation, arguments.detail.verbose, output.surface))?;
    }
    Ok(CommandResult::Done)
}

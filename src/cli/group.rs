//! `explain --cgroup`, `--container`, `--unit`, `--pod`: one control group.

use strandline_inspect::group::explain_group;
use strandline_process::group::find::Bounds;
use strandline_process::group::{Group, Hierarchy};
use strandline_report::group;

use super::arguments::Explain;
use super::arguments_process::{GroupChoice, GroupName};
use super::output::Output;
use super::{CommandResult, Failure, Result};

pub const SCHEMA: &str = "strandline/explain-cgroup/1";

/// Explains the group that is named.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let (hierarchy, group) = open(&arguments.group)?;
    let explanation = explain_group(&hierarchy, &group)?;
    if output.json {
        output.document(SCHEMA, None, &explanation)?;
    } else {
        output.print(&group::screen(&explanation, arguments.detail.verbose, output.surface))?;
    }
    Ok(CommandResult::Done)
}

/// Opens the group that is named, in the hierarchy of this machine.
pub fn open(choice: &GroupChoice) -> Result<(Hierarchy, Group)> {
    let hierarchy = Hierarchy::of_this_machine()?;
    let group = match choice.name() {
        Some(GroupName::Path(path)) => hierarchy.open(&path)?,
        Some(GroupName::Of(wanted)) => hierarchy.find(&wanted, Bounds::default())?,
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
        for (id, state) in legend() {
            let row = format!("| `{id}` | {state:?} |").to_lowercase();
            assert!(definitions.contains(&row), "docs/accounting.md does not define {row}");
        }
    }
}

//! Runs one study and shows its results.

use std::sync::Arc;

use super::super::arguments_lab::Study as Arguments;
use super::super::lab::{LabProgress, show};
use super::super::output::{Output, print_message};
use super::super::{CommandResult, Failure, Result, refuse};
use super::{report_no_result, result_files};
use strandline_report::text::clean;
use strandline_study::chosen::{ChosenStudy, StudyOptions};
use strandline_study::conduct::run_and_judge;
use strandline_study::confirmation::{PlannedStudy, require_confirmation};
use strandline_study::pages::studies::{Item, page};
use strandline_study::pages::study::document;
use strandline_study::{Study, find};

const SCHEMA: &str = "strandline/study/1";

/// Runs the study `name` and shows the results.
pub fn run(
    name: &str,
    arguments: &Arguments,
    options: &StudyOptions,
    output: &mut Output,
) -> Result<CommandResult> {
    let read = find::find(name).map_err(|line| vec![line]).and_then(|path| Study::read(&path));
    let study = read.map_err(|mut lines| {
        let last_line = lines.pop().unwrap_or_default();
        lines.iter().for_each(|line| print_message(line));
        Failure(last_line)
    })?;
    let folder = &study.folder;
    if let Some(others) = find::other_places(name, folder) {
        let line = format!("study {name}: the one in {} is taken, not {others}", folder.display());
        print_message(&clean(&line));
    }
    let chosen = match ChosenStudy::new(Arc::new(study), options, &arguments.axis) {
        Ok(chosen) => chosen,
        Err(line) => return refuse(&line),
    };
    let mut files = result_files(arguments, &format!("strandline-study-{}.html", chosen.matrix.study.name))?;
    let progress = LabProgress::new("study", !output.is_json);
    let confirmed = if arguments.lab.yes {
        Ok(())
    } else {
        require_confirmation(&[PlannedStudy { chosen: &chosen, options }], &progress)
    };
    let result = confirmed.and_then(|()| run_and_judge(&chosen, options, &progress));
    drop(progress);
    let run = match result {
        Ok(run) => run,
        Err(reason) => {
            files.report_unwritten();
            return report_no_result(reason);
        }
    };
    let item = Item { name: &chosen.matrix.study.name, result: Ok(run.input()) };
    let mut page = page(&item);
    files.draw_plots(item.name, &mut page);
    let document = document(&run.input()).map_err(Failure)?;
    show(SCHEMA, &run.input().nodes, &document, &page, &arguments.report_output, output)?;
    files.write(std::slice::from_ref(&item), std::slice::from_ref(&page)).map_err(Failure)?;
    let has_failed_claims = run.fails();
    run.lab.close();
    Ok(if has_failed_claims && arguments.fail_if_claims_fail {
        CommandResult::ConditionHolds
    } else {
        CommandResult::Done
    })
}

//! `study [NAME]`: lists studies, runs one or all and judges their claims; `study check`, `study
//! new`.

mod all;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::arguments_lab::{Study as Arguments, StudyAction};
use super::lab::{TerminalUser, lab_options, report_stop, show};
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_lab::executor::NoResult;
use strandline_report::text::clean;
use strandline_study::chosen::StudyOptions;
use strandline_study::result_files::{FileRequest, ResultFiles};
use strandline_study::{Matrix, Study, find, listing, skeleton};

const LIST_SCHEMA: &str = "strandline/studies/1";
const CHECK_SCHEMA: &str = "strandline/study-check/1";
const NEW_SCHEMA: &str = "strandline/study-new/1";

/// Checks, creates, runs or lists studies, as the arguments request.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let lab = lab_options(&arguments.lab);
    // Built-in studies are then read from a directory that all nodes see.
    lab.stage().map_err(Failure)?;
    let options = StudyOptions {
        is_short: arguments.short,
        repeat: arguments.repeat,
        timeout: arguments.lab.timeout,
        lab,
    };
    match &arguments.action {
        Some(StudyAction::Check { name }) => check(name, output),
        Some(StudyAction::New { name }) => create(name, output),
        None => match &arguments.name {
            Some(name) => run::run(name, arguments, &options, output),
            None if arguments.all => all::run(arguments, &options, output),
            None => {
                let listing::StudyList { document, page } = listing::list().map_err(Failure)?;
                show(LIST_SCHEMA, &[], &document, &page, &arguments.report_output, output)?;
                Ok(CommandResult::Done)
            }
        },
    }
}

/// The files that the results are to be written to; `report_name` is the report's default name.
fn result_files(arguments: &Arguments, report_name: &str) -> Result<ResultFiles> {
    let request = FileRequest {
        report: arguments.report.clone().map(|file| file.unwrap_or_else(|| PathBuf::from(report_name))),
        plots: arguments.plots.clone(),
        writes_readmes: arguments.readme,
        output: arguments.report_output.output.clone(),
        is_narrowed: !arguments.axis.is_empty() || arguments.repeat.is_some(),
        is_short: arguments.short,
    };
    ResultFiles::new(request, Arc::new(TerminalUser)).map_err(Failure)
}

/// Reports why there is no result.
fn report_no_result(reason: NoResult) -> Result<CommandResult> {
    match reason {
        NoResult::Stopped(stop) => report_stop(&stop),
        NoResult::Failed(why) | NoResult::Unconfirmed(why) => Err(Failure(why)),
    }
}

/// Reads a study's file and prints its problems, or the size of the study.
fn check(name: &str, output: &mut Output) -> Result<CommandResult> {
    let folder = find::find(name).map_err(Failure)?;
    let (result, problems) = match Study::read(&folder) {
        Ok(study) => {
            let matrix = Matrix::full(Arc::new(study));
            let cells = matrix.cell_count().map_or_else(|| "too many".to_owned(), |count| count.to_string());
            if !output.is_json {
                output.print(&clean_line(&format!(
                    "{}: nothing is wrong with it; cells: {cells}, claims: {}",
                    folder.display(),
                    matrix.study.claims.len()
                )))?;
            }
            (CommandResult::Done, Vec::new())
        }
        Err(lines) => {
            lines.iter().for_each(|line| print_message(line));
            (CommandResult::Failed, lines)
        }
    };
    if output.is_json {
        let body = serde_json::json!({ "path": folder, "problems": problems });
        output.document(CHECK_SCHEMA, None, &body)?;
    }
    Ok(result)
}

fn clean_line(line: &str) -> String {
    format!("{}\n", clean(line))
}

/// Creates a study that runs as it is, and prints its files.
fn create(name: &str, output: &mut Output) -> Result<CommandResult> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("studies").join(name) };
    let created = skeleton::make(&path).map_err(Failure)?;
    if output.is_json {
        output.document(NEW_SCHEMA, None, &serde_json::json!({ "files": created }))?;
        return Ok(CommandResult::Done);
    }
    let files: String = created.iter().map(|file| clean_line(&file.display().to_string())).collect();
    output.print(&format!("{files}run it with: strandline study {}\n", clean(name)))?;
    Ok(CommandResult::Done)
}

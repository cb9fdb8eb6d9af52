//! `study [NAME]`: lists studies, runs one or all and judges their claims; `study check`, `study
//! new`.

mod all;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::arguments_lab::{Study as Arguments, StudyAction};
use super::lab::{TerminalUser, lab_options, show, stopped};
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_report::text::clean;
use strandline_study::chosen::{NoResult, StudyOptions};
use strandline_study::file::Study;
use strandline_study::matrix::Matrix;
use strandline_study::result_files::{FileRequest, ResultFiles};
use strandline_study::{find, listing, skeleton};

/// Runs the action of the arguments.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let lab = lab_options(&arguments.lab);
    // Built-in studies are then read from a directory that all nodes see.
    lab.stage().map_err(Failure)?;
    let options = StudyOptions {
        short: arguments.short,
        repeat: arguments.repeat,
        timeout: arguments.lab.timeout,
        lab,
    };
    match &arguments.action {
        Some(StudyAction::Check { name }) => check(name, output),
        Some(StudyAction::New { name }) => new(name, output),
        None => match &arguments.name {
            Some(name) => run::run(name, arguments, &options, output),
            None if arguments.all => all::run(arguments, &options, output),
            None => {
                let (document, page) = listing::list();
                show("strandline/studies/1", &document, &page, &arguments.shown, output)?;
                Ok(CommandResult::Done)
            }
        },
    }
}

/// The requested files; `report` is the default name of the report.
fn files(arguments: &Arguments, report: &str) -> Result<ResultFiles> {
    let request = FileRequest {
        report: arguments.report.clone().map(|file| file.unwrap_or_else(|| PathBuf::from(report))),
        plots: arguments.plots.clone(),
        readme: arguments.readme,
        output: arguments.shown.output.clone(),
        is_narrowed: !arguments.axis.is_empty() || arguments.repeat.is_some(),
        is_short: arguments.short,
    };
    ResultFiles::new(request, Arc::new(TerminalUser)).map_err(Failure)
}

/// Ends strandline without a result.
fn end(why: NoResult) -> Result<CommandResult> {
    match why {
        NoResult::Stopped(why) => stopped(&why),
        NoResult::Failed(why) | NoResult::Unconfirmed(why) => Err(Failure(why)),
    }
}

fn check(name: &str, output: &mut Output) -> Result<CommandResult> {
    let folder = find::find(name).map_err(Failure)?;
    let (ending, problems) = match Study::read(&folder) {
        Ok((study, _)) => {
            let matrix = Matrix::full(Arc::new(study));
            let cells = matrix.count().map_or_else(|| "too many".to_owned(), |count| count.to_string());
            if !output.json {
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
    if output.json {
        let body = serde_json::json!({ "path": folder, "problems": problems });
        output.document("strandline/study-check/1", None, &body)?;
    }
    Ok(ending)
}

fn clean_line(line: &str) -> String {
    format!("{}\n", clean(line))
}

fn new(name: &str, output: &mut Output) -> Result<CommandResult> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("studies").join(name) };
    let made = skeleton::make(&path).map_err(Failure)?;
    if output.json {
        output.document("strandline/study-new/1", None, &serde_json::json!({ "files": made }))?;
        return Ok(CommandResult::Done);
    }
    let files: String = made.iter().map(|file| clean_line(&file.display().to_string())).collect();
    output.print(&format!("{files}run it with: strandline study {}\n", clean(name)))?;
    Ok(CommandResult::Done)
}

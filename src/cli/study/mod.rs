//! `study [NAME]`: lists studies, runs one or all and judges their claims; `study check`, `study
//! new`.

mod all;
mod ask;
mod caveats;
mod chosen;
mod files;
mod list;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::arguments_lab::{Study as Arguments, StudyAction};
use super::lab::stopped;
use super::output::{Output, print_message};
use super::slurm::stage;
use super::{CommandResult, Failure, Result};
use strandline_lab::executor::Stopped;
use strandline_report::text::clean;
use strandline_study::file::Study;
use strandline_study::matrix::Matrix;
use strandline_study::{find, skeleton};

/// Runs the action of the arguments.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    // Built-in studies are then read from a directory that all nodes see.
    stage(&arguments.lab)?;
    match &arguments.action {
        Some(StudyAction::Check { name }) => check(name, output),
        Some(StudyAction::New { name }) => new(name, output),
        None => match &arguments.name {
            Some(name) => run::run(name, arguments, output),
            None if arguments.all => all::run(arguments, output),
            None => list::run(arguments, output),
        },
    }
}

/// Why there is no result.
enum NoResult {
    /// A signal arrived, or the lab failed.
    Stopped(Stopped),
    /// It could not be run.
    Failed(Failure),
    /// It is too long to start without --yes.
    Unasked(Failure),
}

impl NoResult {
    /// The ending of strandline in this case.
    fn end(self) -> Result<CommandResult> {
        match self {
            Self::Stopped(why) => stopped(&why),
            Self::Failed(why) | Self::Unasked(why) => Err(why),
        }
    }
}

impl From<Stopped> for NoResult {
    fn from(why: Stopped) -> Self {
        Self::Stopped(why)
    }
}

/// A parsed study with its text.
type Text = (Arc<Study>, String);

fn read(name: &str) -> std::result::Result<Text, Vec<String>> {
    read_in(&find::find(name).map_err(|line| vec![line])?)
}

/// Reads the study in a directory, or in a file.
fn read_in(path: &Path) -> std::result::Result<Text, Vec<String>> {
    Study::read(path).map(|(study, text)| (Arc::new(study), text))
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
            (CommandResult::CouldNot, lines)
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

//! A study with the choices for one run, and its lab.

use std::path::{Path, PathBuf};

use super::super::Failure;
use super::super::arguments_lab::{Lab, Study as Arguments};
use super::super::lab::LabSetup;
use super::{NoResult, Text};
use strandline_lab::cell::Subject;
use strandline_study::matrix::Matrix;
use strandline_study::{cell, run};

/// A study with the choices for this run.
#[derive(Clone)]
pub struct ChosenStudy {
    pub matrix: Matrix,
    text: String,
}

impl ChosenStudy {
    /// Applies the arguments and these axis choices.
    pub fn new(
        (study, text): Text,
        arguments: &Arguments,
        axes: &[(String, Vec<String>)],
    ) -> std::result::Result<Self, String> {
        let mut matrix = Matrix::chosen(study, arguments.short, axes)?;
        if let Some(repeat) = arguments.repeat {
            matrix.repeat(repeat);
        }
        Ok(Self { matrix, text })
    }
}

/// Opens the lab of these cells; returns it with the directory for `{build}`.
pub fn open(
    chosen: &ChosenStudy,
    arguments: &Arguments,
    lab: &Lab,
) -> std::result::Result<(LabSetup, PathBuf), NoResult> {
    let (described, subjects) =
        described(chosen, arguments).map_err(|line| NoResult::Failed(Failure(line)))?;
    let bench = LabSetup::open("study", &described, &subjects, lab).map_err(NoResult::Failed)?;
    let build = bench.journal.folder().join("build");
    let made = std::fs::create_dir_all(&build).and_then(|()| build.canonicalize());
    let build = made.map_err(|error| NoResult::Failed(Failure(format!("{}: {error}", build.display()))))?;
    Ok((bench, build))
}

/// Number of runs of an earlier lab that can be reused.
pub fn found(chosen: &ChosenStudy, arguments: &Arguments, lab: &Lab) -> usize {
    let Ok((described, subjects)) = described(chosen, arguments) else { return 0 };
    LabSetup::found("study", &described, &subjects, lab)
}

/// What identifies the lab of a study: its text, and all its cells. Includes cells that cannot be
/// run at the moment, so that free memory or the existence of a file does not change the identity.
fn described(
    chosen: &ChosenStudy,
    arguments: &Arguments,
) -> std::result::Result<(impl serde::Serialize + use<>, Vec<Subject>), String> {
    let matrix = &chosen.matrix;
    // The directory's name depends on the cells, so the build directory is still a placeholder
    // here.
    let unbuilt = |key| Subject {
        directory: None,
        ..cell::subject(matrix, key, Path::new("{build}"), arguments.lab.timeout)
    };
    let subjects: Vec<Subject> = matrix.cells()?.iter().map(unbuilt).collect();
    Ok(((run::study_identity(matrix, &chosen.text), matrix.max_repeats()), subjects))
}

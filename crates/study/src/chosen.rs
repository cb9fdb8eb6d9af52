//! A study with the choices for one run, and its lab.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::cell;
use super::file::Study;
use super::matrix::Matrix;
use super::run;
use strandline_lab::cell::Subject;
use strandline_lab::executor::NoResult;
use strandline_lab::setup::{LabContent, LabOptions, LabSetup};

/// How a study is run.
#[derive(Clone)]
pub struct StudyOptions {
    /// Whether to run its short form.
    pub short: bool,
    /// Number of rounds; `None` for the study's own.
    pub repeat: Option<u32>,
    /// Time limit of a run.
    pub timeout: Option<Duration>,
    /// Its lab.
    pub lab: LabOptions,
}

/// A study with the choices for this run.
#[derive(Clone)]
pub struct ChosenStudy {
    /// Its cells.
    pub matrix: Matrix,
}

impl ChosenStudy {
    /// Applies the options and these choices of axes.
    ///
    /// # Errors
    /// One line: a choice that the study does not allow.
    pub fn new(
        study: Arc<Study>,
        options: &StudyOptions,
        axes: &[(String, Vec<String>)],
    ) -> Result<Self, String> {
        let mut matrix = Matrix::chosen(study, options.short, axes)?;
        if let Some(repeat) = options.repeat {
            matrix.repeat(repeat);
        }
        Ok(Self { matrix })
    }

    /// The same with a single cell that runs once.
    pub(super) fn one_run(&self) -> Self {
        let mut one_run = self.clone();
        for axis in &mut one_run.matrix.axes {
            axis.choices.truncate(1);
        }
        one_run.matrix.subjects.truncate(1);
        one_run.matrix.repeat(1);
        one_run
    }

    /// Opens the lab of these cells; returns it with the directory for `{build}`.
    pub(super) fn open(&self, options: &StudyOptions) -> Result<(LabSetup, PathBuf), NoResult> {
        let (description, subjects) = self.identity(options).map_err(NoResult::Failed)?;
        let content = LabContent { verb: "study", description: &description, subjects: &subjects };
        let lab = LabSetup::open(content, &options.lab).map_err(NoResult::Failed)?;
        let build = lab.journal.folder().join("build");
        let created = std::fs::create_dir_all(&build).and_then(|()| build.canonicalize());
        let build = created.map_err(|error| NoResult::Failed(format!("{}: {error}", build.display())))?;
        Ok((lab, build))
    }

    /// Number of runs of an earlier lab that can be reused.
    pub(super) fn reusable_runs(&self, options: &StudyOptions) -> usize {
        let Ok((description, subjects)) = self.identity(options) else { return 0 };
        let content = LabContent { verb: "study", description: &description, subjects: &subjects };
        options.lab.reusable_runs(content)
    }

    /// What identifies the lab of a study: its text, and all its cells. Includes cells that cannot
    /// be run at the moment, so that free memory or the existence of a file does not change the
    /// identity.
    fn identity(
        &self,
        options: &StudyOptions,
    ) -> Result<(impl serde::Serialize + use<>, Vec<Subject>), String> {
        let matrix = &self.matrix;
        // The directory's name depends on the cells: `{build}` stays a placeholder here.
        let unbuilt = |key| {
            let subject = cell::subject(matrix, key, Path::new("{build}"), options.timeout)?;
            Ok(Subject { directory: None, ..subject })
        };
        let subjects = matrix.cells()?.iter().map(unbuilt).collect::<Result<Vec<Subject>, String>>()?;
        Ok(((run::study_identity(matrix), matrix.max_repeats()), subjects))
    }
}

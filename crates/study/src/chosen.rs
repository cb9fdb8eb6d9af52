//! A study with the choices for one run, and its lab.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::cell;
use super::file::Study;
use super::matrix::{Form, Matrix};
use super::run;
use strandline_lab::cell::Subject;
use strandline_lab::executor::NoResult;
use strandline_lab::path_error::path_error;
use strandline_lab::setup::{LabContent, LabOptions, LabSetup};

/// How a study is run.
#[derive(Clone)]
pub struct StudyOptions {
    /// Whether its short form is run.
    pub is_short: bool,
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

/// The lab of a study.
pub(super) struct OpenedLab {
    pub lab: LabSetup,
    /// The folder above all build folders.
    pub build_root: PathBuf,
}

/// What identifies the lab of a study.
struct LabIdentity<Description> {
    description: Description,
    /// All its cells.
    subjects: Vec<Subject>,
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
        let form = if options.is_short { Form::Short } else { Form::Full };
        let mut matrix = Matrix::chosen(study, form, axes)?;
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

    /// Opens the lab of these cells.
    pub(super) fn open(&self, options: &StudyOptions) -> Result<OpenedLab, NoResult> {
        let LabIdentity { description, subjects } = self.identity(options).map_err(NoResult::Failed)?;
        let content = LabContent { verb: "study", description: &description, subjects: &subjects };
        let lab = LabSetup::open(content, &options.lab).map_err(NoResult::Failed)?;
        let folder = lab.journal.folder().join("build");
        let created = std::fs::create_dir_all(&folder).and_then(|()| folder.canonicalize());
        let build_root = created.map_err(|error| NoResult::Failed(path_error(&folder, &error)))?;
        Ok(OpenedLab { lab, build_root })
    }

    /// Number of runs of an earlier lab that can be reused.
    pub(super) fn reusable_runs(&self, options: &StudyOptions) -> usize {
        // `open` then fails with the reason.
        let Ok(LabIdentity { description, subjects }) = self.identity(options) else { return 0 };
        let content = LabContent { verb: "study", description: &description, subjects: &subjects };
        options.lab.reusable_runs(content)
    }

    /// The identity of the lab of these cells. It includes cells that cannot be run at the moment,
    /// so that free memory or the existence of a file does not change it.
    fn identity(&self, options: &StudyOptions) -> Result<LabIdentity<impl serde::Serialize + use<>>, String> {
        let matrix = &self.matrix;
        // The build folder's name depends on the cells: `{build}` stays a placeholder here.
        let unbuilt_subject = |key| {
            let subject = cell::subject_of_cell(matrix, key, Path::new("{build}"), options.timeout)?;
            Ok(Subject { directory: None, ..subject })
        };
        let subjects =
            matrix.cells()?.iter().map(unbuilt_subject).collect::<Result<Vec<Subject>, String>>()?;
        let description = (run::study_identity(matrix), matrix.max_repeats());
        Ok(LabIdentity { description, subjects })
    }
}

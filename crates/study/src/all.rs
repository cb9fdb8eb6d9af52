//! All studies that can be found, with the choices that apply to each.

use std::sync::Arc;

use super::chosen::{ChosenStudy, StudyOptions};
use super::file::{SUBJECT, Study};
use super::find::{self, ListedStudy};

/// A study, or the reason why it cannot be run.
pub struct StudyEntry {
    /// Its name.
    pub name: String,
    /// The study.
    pub chosen: Result<ChosenStudy, String>,
}

/// All studies with these choices of axes, each for the studies that have the axis.
///
/// # Errors
/// One line: there is no study, or none has such a choice.
pub fn entries(options: &StudyOptions, axes: &[(String, Vec<String>)]) -> Result<Vec<StudyEntry>, String> {
    let studies: Vec<(String, Result<Study, String>)> =
        find::list()?.into_iter().map(|listed| (listed.name.clone(), read(&listed))).collect();
    if studies.is_empty() {
        return Err("there is no study: `strandline study new NAME` makes one".to_owned());
    }
    let readable = || studies.iter().filter_map(|(_, study)| study.as_ref().ok());
    for (axis, choices) in axes {
        if !readable().any(|study| has_choice(study, axis, choices)) {
            return Err(format!("--axis {axis}={}: no study has that", choices.join(",")));
        }
    }
    let chosen = |study: Result<Study, String>| {
        let study = study?;
        let applicable_axes = axes.iter().filter(|(axis, choices)| has_choice(&study, axis, choices));
        let axes: Vec<(String, Vec<String>)> = applicable_axes
            .map(|(axis, choices)| (axis.clone(), applicable(&study, axis, choices)))
            .collect();
        ChosenStudy::new(Arc::new(study), options, &axes)
    };
    Ok(studies.into_iter().map(|(name, study)| StudyEntry { name, chosen: chosen(study) }).collect())
}

/// Reads a study; returns its errors in one line.
fn read(listed: &ListedStudy) -> Result<Study, String> {
    let folder = listed.unpacked_folder()?;
    Study::read(&folder).map_err(|lines| {
        let unlisted = lines.len().saturating_sub(1);
        let first_line = lines.into_iter().next().unwrap_or_default();
        if unlisted > 0 {
            format!("{first_line} (and {unlisted} more: `strandline study check {}`)", folder.display())
        } else {
            first_line
        }
    })
}

/// Whether `--axis` applies to this study: it has the axis, or one of the subjects.
fn has_choice(study: &Study, axis: &str, choices: &[String]) -> bool {
    if axis == SUBJECT { !applicable(study, axis, choices).is_empty() } else { study.axis(axis).is_some() }
}

/// The choices of `--axis` that apply to this study: of subjects, those that it has.
fn applicable(study: &Study, axis: &str, choices: &[String]) -> Vec<String> {
    let subjects = &study.subjects;
    let applies =
        |choice: &&String| axis != SUBJECT || subjects.iter().any(|subject| subject.name == **choice);
    choices.iter().filter(applies).cloned().collect()
}

//! All studies that can be found, with the choices that apply to each.

use std::path::PathBuf;
use std::sync::Arc;

use super::chosen::{ChosenStudy, StudyOptions};
use super::file::{SUBJECT, Study};
use super::find;

/// A study, or the reason why it cannot be run.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The study.
    pub chosen: Result<ChosenStudy, String>,
}

/// All studies with these choices of axes, each for the studies that have the axis.
///
/// # Errors
/// One line: there is no study, or none has such a choice.
pub fn entries(options: &StudyOptions, axes: &[(String, Vec<String>)]) -> Result<Vec<Entry>, String> {
    let studies: Vec<(String, Result<Study, String>)> =
        find::list()?.into_iter().map(|(name, folder)| (name.clone(), read(&name, folder))).collect();
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
        let known = axes.iter().filter(|(axis, choices)| has_choice(&study, axis, choices));
        let axes: Vec<(String, Vec<String>)> =
            known.map(|(axis, choices)| (axis.clone(), applicable(&study, axis, choices))).collect();
        ChosenStudy::new(Arc::new(study), options, &axes)
    };
    Ok(studies.into_iter().map(|(name, study)| Entry { name, chosen: chosen(study) }).collect())
}

/// Reads a study; returns its errors in one line.
fn read(name: &str, folder: Option<PathBuf>) -> Result<Study, String> {
    let folder = find::folder_of_listed(name, folder)?;
    Study::read(&folder).map_err(|lines| {
        let more = lines.len().saturating_sub(1);
        let first = lines.into_iter().next().unwrap_or_default();
        if more > 0 {
            format!("{first} (and {more} more: `strandline study check {}`)", folder.display())
        } else {
            first
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

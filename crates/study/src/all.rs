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
        return Err("there is no study: `strandline study new NAME` creates one".to_owned());
    }
    let readable = || studies.iter().filter_map(|(_, study)| study.as_ref().ok());
    for (axis, choices) in axes {
        if !readable().any(|study| applicable_choices(study, axis, choices).is_some()) {
            return Err(format!("--axis {axis}={}: no study has that", choices.join(",")));
        }
    }
    let chosen = |study: Result<Study, String>| {
        let study = study?;
        let applicable = |(axis, choices): &(String, Vec<String>)| {
            Some((axis.clone(), applicable_choices(&study, axis, choices)?))
        };
        let axes: Vec<(String, Vec<String>)> = axes.iter().filter_map(applicable).collect();
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

/// The choices of `--axis` that apply to this study: all if it has the axis, and the subjects that
/// it has. `None` if none applies.
fn applicable_choices(study: &Study, axis: &str, choices: &[String]) -> Option<Vec<String>> {
    if axis != SUBJECT {
        return study.axis(axis).map(|_| choices.to_vec());
    }
    let exists = |choice: &&String| study.subjects.iter().any(|subject| subject.name == **choice);
    let subjects: Vec<String> = choices.iter().filter(exists).cloned().collect();
    (!subjects.is_empty()).then_some(subjects)
}

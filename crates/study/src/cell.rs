//! Turns a cell of a study into a subject of the lab: command, environment, limits and measurement.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use strandline_lab::cell::{Measure, Subject};
use strandline_recorder::Limits;

use super::build::{Preload, all_placeholder_values, build_folder, cell_variables, own_program, preloads};
use super::file::VariableSetting;
use super::matrix::{Key, Matrix};
use super::placeholders::fill;

/// The subject of a cell; `{build}` folders are below `root`.
///
/// # Errors
/// One line: the path of a folder is not UTF-8, or the study has no such subject.
pub fn subject_of_cell(
    matrix: &Matrix,
    key: &Key,
    root: &Path,
    timeout: Option<Duration>,
) -> Result<Subject, String> {
    let study = &matrix.study;
    let declared = matrix.subjects.get(key.subject);
    let declared =
        declared.ok_or_else(|| format!("{}: there is no subject number {}", study.name, key.subject))?;
    let build = build_folder(matrix, key, root)?;
    let values = all_placeholder_values(matrix, key, &build)?;
    let names = matrix.names(key);
    let name = names.iter().map(|choice| format!("{}={}", choice.axis, choice.name));
    let name = name.collect::<Vec<_>>().join(" ");
    let mut environment = cell_variables(matrix, key, &build)?;
    let mut set = |variables: &[VariableSetting]| {
        for VariableSetting { name, value } in variables {
            environment.insert(name.clone(), value.as_ref().map(|value| fill(value, &values)));
        }
    };
    set(&study.settings.environment);
    set(&declared.environment);
    let mut limits = override_limits(study.settings.limits, declared.limits);
    for (_, choice) in matrix.choices(key) {
        set(&choice.environment);
        limits = override_limits(limits, choice.limits);
    }
    append_own_folder(&mut environment);
    prepend_preloads(&mut environment, preloads(matrix, key, &values));
    let mut subject = Subject {
        name: if name.is_empty() { "run".to_owned() } else { name },
        command: declared.command.iter().map(|word| fill(word, &values)).collect(),
        environment: environment.into_iter().collect(),
        limits,
        timeout: timeout.or(declared.timeout).or(Some(study.settings.timeout)),
        directory: Some(build),
        rounds: Some(matrix.repeats_of(key)),
        ..Subject::default()
    };
    let measure = study.measure_of(declared);
    if measure.needs_recording() {
        subject.measure = Measure::Recording {
            interval: measure.interval,
            ledgers: measure.ledger_option(),
            uses_snapshot: measure.uses_snapshots,
        };
    }
    Ok(subject)
}

/// Appends the folder in which scripts find `strandline mark` to PATH. It comes last, so that it
/// hides no program of theirs.
fn append_own_folder(environment: &mut BTreeMap<String, Option<String>>) {
    let path = environment.get("PATH").cloned().unwrap_or_else(|| std::env::var("PATH").ok());
    if let (Some(path), Some(own_folder)) = (path, own_folder())
        && !path.split(':').any(|folder| folder == own_folder)
    {
        environment.insert("PATH".to_owned(), Some(format!("{path}:{own_folder}")));
    }
}

/// Preloads `libraries` before those that the environment preloads.
fn prepend_preloads(environment: &mut BTreeMap<String, Option<String>>, libraries: Vec<Preload>) {
    // A library without a usable path keeps its name: the cell is then rejected before it is run.
    let to_text = |Preload { name, file }: Preload| {
        file.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(name)
    };
    let mut libraries: Vec<String> = libraries.into_iter().map(to_text).collect();
    if !libraries.is_empty() {
        libraries
            .extend(environment.remove("LD_PRELOAD").flatten().filter(|preloaded| !preloaded.is_empty()));
        environment.insert("LD_PRELOAD".to_owned(), Some(libraries.join(":")));
    }
}

/// The folder of strandline's executable; `None` if PATH cannot hold it (not UTF-8, or a colon).
fn own_folder() -> Option<String> {
    own_program()?.parent()?.to_str().map(str::to_owned).filter(|folder| !folder.contains(':'))
}

/// `specific` limits where set, else the `general` ones.
fn override_limits(general: Limits, specific: Limits) -> Limits {
    Limits {
        address_space_bytes: specific.address_space_bytes.or(general.address_space_bytes),
        data_bytes: specific.data_bytes.or(general.data_bytes),
        memory_bytes: specific.memory_bytes.or(general.memory_bytes),
    }
}

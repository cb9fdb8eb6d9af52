//! Turns a cell of a study into a subject of the lab: command, environment, limits and measurement.

use std::path::Path;
use std::time::Duration;

use strandline_lab::cell::{Measure, Subject};
use strandline_recorder::Limits;

use super::build::{Preload, build_folder, cell_variables, own_program, placeholder_values, preloads};
use super::file::VariableSetting;
use super::matrix::{Key, Matrix, fill};

/// The subject of a cell; `{build}` folders are below `root`.
pub fn subject(matrix: &Matrix, key: &Key, root: &Path, timeout: Option<Duration>) -> Subject {
    let study = &matrix.study;
    let build = build_folder(matrix, key, root);
    let mut values = placeholder_values(matrix, key);
    values.insert("build".to_owned(), build.to_string_lossy().into_owned());
    let names = matrix.names(key);
    let name = names.iter().map(|(axis, choice)| format!("{axis}={choice}")).collect::<Vec<_>>().join(" ");
    let mut subject = Subject {
        name: if name.is_empty() { "run".to_owned() } else { name },
        limits: study.settings.limits,
        timeout: timeout.or(Some(study.settings.timeout)),
        directory: Some(build),
        ..Subject::default()
    };
    let mut environment = cell_variables(matrix, key, root);
    let mut set = |variables: &[VariableSetting]| {
        for VariableSetting { name, value } in variables {
            environment.insert(name.clone(), value.as_ref().map(|value| fill(value, &values)));
        }
    };
    set(&study.settings.environment);
    if let Some(declared) = matrix.subjects.get(key.subject) {
        subject.command = declared.command.iter().map(|word| fill(word, &values)).collect();
        subject.timeout = timeout.or(declared.timeout).or(subject.timeout);
        subject.limits = override_limits(subject.limits, declared.limits);
        set(&declared.environment);
    }
    for (_, choice) in matrix.choices(key) {
        set(&choice.environment);
        subject.limits = override_limits(subject.limits, choice.limits);
    }
    // Makes `strandline mark` available in scripts; appended, so that it hides nothing.
    let path = environment.get("PATH").cloned().unwrap_or_else(|| std::env::var("PATH").ok());
    if let (Some(path), Some(own_folder)) = (path, own_folder())
        && !path.split(':').any(|folder| folder == own_folder)
    {
        environment.insert("PATH".to_owned(), Some(format!("{path}:{own_folder}")));
    }
    // A library that is not found keeps its name: the cell is then rejected before it is run.
    let to_text =
        |Preload { name, file }: Preload| file.map_or(name, |path| path.to_string_lossy().into_owned());
    let mut libraries: Vec<String> = preloads(matrix, key, root).into_iter().map(to_text).collect();
    if !libraries.is_empty() {
        libraries
            .extend(environment.remove("LD_PRELOAD").flatten().filter(|preloaded| !preloaded.is_empty()));
        environment.insert("LD_PRELOAD".to_owned(), Some(libraries.join(":")));
    }
    subject.environment = environment.into_iter().collect();
    let measure = matrix.subjects.get(key.subject).map(|subject| study.measure_of(subject));
    if let Some(measure) = measure.filter(|measure| measure.needs_recording()) {
        let (interval, ledgers, snapshot) = (measure.interval, measure.ledger_option(), measure.snapshot);
        subject.measure = Measure::Recording { interval, ledgers, snapshot };
    }
    subject.rounds = Some(matrix.repeats_of(key));
    subject
}

/// The folder of the executable of strandline.
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

//! Decides which cells can run, and why others cannot: checks for programs, libraries and files;
//! probes, which are commands that must succeed; and available memory. Probes run with the builds,
//! once for each combination of placeholder values; available memory is the minimum of the machine
//! and the control group of this process.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::build::{
    all_placeholder_values, axis_variable, build_folder, find_library, mentions_variable, placeholder_values,
};
use super::cell::subject_of_cell;
use super::file::{Need, NeedKind};
use super::matrix::{Key, Matrix, OmittedCell};
use super::placeholders::{fill, placeholders};
use strandline_lab::cell::Subject;
use strandline_lab::executor::{Executor, StopReason};
use strandline_lab::figures::find_in_path;
use strandline_process::procfs::Process;
use strandline_process::target::budget::available_bytes;
use strandline_report::units::bytes;

const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// When a probe runs: a probe that names `{build}` checks the built files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePhase {
    /// Before the builds.
    Before,
    /// After them.
    After,
}

/// The cells of a run, split into those that can run here and those that cannot.
#[derive(Clone, Debug, Default)]
pub struct CheckedCells {
    pub runnable: Vec<Key>,
    pub unrunnable: Vec<OmittedCell>,
}

/// Splits the cells into those that can run here and those that cannot.
///
/// # Errors
/// Those of [`Matrix::cells`].
pub fn check_cells(matrix: &Matrix) -> Result<CheckedCells, String> {
    let mut cells = CheckedCells::default();
    for key in matrix.cells()? {
        match missing_requirements(matrix, &key) {
            Some(why) => cells.unrunnable.push(OmittedCell { key, why }),
            None => cells.runnable.push(key),
        }
    }
    Ok(cells)
}

/// What is missing for a cell, and how to install it; `None` if it can run.
pub fn missing_requirements(matrix: &Matrix, key: &Key) -> Option<String> {
    let subject = matrix.subjects.get(key.subject)?;
    let values = match placeholder_values(matrix, key) {
        Ok(values) => values,
        Err(why) => return Some(why),
    };
    let program = subject.command.first().map(|word| fill(word, &values));
    // A program that is yet to be built does not exist now.
    let program = program.filter(|program| !program.contains("{build}"));
    let program = program.map(|name| Need { name, ..Need::default() });
    let builders = subject.build.iter().filter_map(|words| words.first());
    let builders = builders.filter(|word| !word.contains("{build}"));
    let builders = builders.map(|word| Need { name: word.clone(), ..Need::default() });
    let requirements = needs_of_cell(matrix, key).cloned().chain(builders).chain(program);
    let mut missing: Vec<String> = Vec::new();
    for need in requirements {
        let name = fill(&need.name, &values);
        // Checked after the build.
        if name.contains("{build}") {
            continue;
        }
        let is_here = match &need.kind {
            NeedKind::Tool => find_in_path(&name).is_some(),
            NeedKind::Library => find_library(&name, &matrix.study.folder).is_some(),
            NeedKind::File => Path::new(&name).exists(),
            NeedKind::Memory { bytes: needed_bytes } => {
                missing.extend(too_little_memory(*needed_bytes));
                continue;
            }
            // Probes run with the builds.
            NeedKind::Probe { .. } => continue,
        };
        // A requirement that is named twice is listed once.
        let text = format!("{name} is not here");
        if !is_here && !missing.iter().any(|requirement| requirement.starts_with(&text)) {
            missing.push(match need.install {
                Some(install) => format!("{text} ({install})"),
                None => text,
            });
        }
    }
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Requirements of a cell, from its subject and its choices.
pub fn needs_of_cell<'m>(matrix: &'m Matrix, key: &'m Key) -> impl Iterator<Item = &'m Need> {
    let subject = matrix.subjects.get(key.subject).into_iter().flat_map(|subject| &subject.needs);
    subject.chain(matrix.choices(key).flat_map(|(_, choice)| &choice.needs))
}

/// What the probes of these runnable cells check for, by name.
pub fn probe_names(matrix: &Matrix, cells: &[Key]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for key in cells {
        // Otherwise the cell could not run.
        let Ok(values) = placeholder_values(matrix, key) else { continue };
        for need in needs_of_cell(matrix, key).filter(|need| need.probe_command().is_some()) {
            let name = fill(&need.name, &values);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Runs the due probes of the runnable `cells`, and makes cells unrunnable whose probes fail. The
/// output of probes is stored below `root` and not shown; `say` shows what is probed.
///
/// # Errors
/// Why a probe could not be run, or a signal.
pub fn run_probes(
    matrix: &Matrix,
    cells: &mut CheckedCells,
    root: &Path,
    phase: ProbePhase,
    executor: &mut dyn Executor,
    say: &dyn Fn(&str),
) -> Result<(), StopReason> {
    // How each probe that ran failed; `None` if it succeeded.
    let mut results: BTreeMap<ProbeCommand, Option<String>> = BTreeMap::new();
    for key in std::mem::take(&mut cells.runnable) {
        let build = build_folder(matrix, &key, root)?;
        let values = all_placeholder_values(matrix, &key, &build)?;
        let cell_environment = subject_of_cell(matrix, &key, root, None)?.environment;
        let mut missing = Vec::new();
        for need in needs_of_cell(matrix, &key) {
            let due_command = need.probe_command().filter(|command| is_due(command, phase));
            let Some(command) = due_command else { continue };
            let words: Vec<String> = command.iter().map(|word| fill(word, &values)).collect();
            let environment = probe_environment(matrix, &words, phase, &cell_environment);
            let number = results.len();
            let name = fill(&need.name, &values);
            let probe = ProbeCommand { words, environment };
            let failure = match results.get(&probe) {
                Some(failure) => failure.clone(),
                None => {
                    say(&format!("searching for {name}"));
                    // Before the builds there is no build folder.
                    let directory = if phase == ProbePhase::After { &build } else { root };
                    let subject = Subject {
                        name: "probe".to_owned(),
                        command: probe.words.clone(),
                        environment: probe.environment.clone(),
                        directory: Some(directory.to_owned()),
                        timeout: Some(PROBE_TIMEOUT),
                        ..Subject::default()
                    };
                    let outcome = executor.run(&subject, &root.join(".probes").join(number.to_string()))?;
                    let failure = (!outcome.end.is_success()).then(|| outcome.describe_end());
                    results.insert(probe.clone(), failure.clone());
                    failure
                }
            };
            missing.extend(failure.map(|failure| missing_text(need, &name, &probe.words, &failure)));
        }
        missing.dedup();
        if missing.is_empty() {
            cells.runnable.push(key);
        } else {
            cells.unrunnable.push(OmittedCell { key, why: missing.join(", ") });
        }
    }
    Ok(())
}

/// Variables to set or to remove.
type Environment = Vec<(String, Option<String>)>;

/// The command of a probe with its environment; cells for which both are equal share the probe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeCommand {
    words: Vec<String>,
    environment: Environment,
}

/// The environment of a probe: that of the runs of the cell, without choices that the probe does
/// not name, and without a build folder that does not exist yet, so that equivalent cells share the
/// probe.
fn probe_environment(
    matrix: &Matrix,
    words: &[String],
    phase: ProbePhase,
    cell_environment: &Environment,
) -> Environment {
    let axes: Vec<String> = matrix.axes.iter().map(|axis| axis_variable(&axis.name)).collect();
    let is_passed = |name: &String| match name.as_str() {
        "STRANDLINE_STUDY_BUILD" => phase == ProbePhase::After,
        _ => !axes.contains(name) || mentions_variable(words.iter(), name),
    };
    cell_environment.iter().filter(|(name, _)| is_passed(name)).cloned().collect()
}

/// Whether the probe with this command runs now.
fn is_due(command: &[String], phase: ProbePhase) -> bool {
    let names_build = command.iter().any(|word| placeholders(word).contains(&"build"));
    names_build == (phase == ProbePhase::After)
}

/// Describes a need whose probe failed: how to install it, or how the probe ended.
fn missing_text(need: &Need, name: &str, words: &[String], failure: &str) -> String {
    match &need.install {
        Some(install) => format!("{name} is missing: {install}"),
        None => format!("{name} is missing: {}: {failure}", shell_words::join(words)),
    }
}

/// Why a cell that needs this much memory cannot run; `None` if it can or the available memory is
/// unknown.
pub fn too_little_memory(needed_bytes: u64) -> Option<String> {
    let this_process = Process::open(std::process::id().cast_signed()).ok()?;
    let available_bytes = available_bytes(&this_process)?;
    (available_bytes < needed_bytes).then(|| {
        format!("needs {} of available memory; {} is available", bytes(needed_bytes), bytes(available_bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_machine_has_is_not_there() {
        assert_eq!(too_little_memory(1), None);
        let why = too_little_memory(1 << 60).unwrap();
        assert!(
            why.starts_with("needs 1.00 EiB of available memory; ") && why.ends_with(" is available"),
            "{why}"
        );
    }
}

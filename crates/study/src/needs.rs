//! What can be run here, and why the rest cannot: programs, libraries and files that are looked for; probes, commands
//! that have to succeed; and memory that has to be free. Probes are run with the builds, once for each way their placeholders are filled; memory is read from the
//! kernel, where there may be a limit on this process's control group as well as the machine's own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::build::{axis_variable, find_library, folder, name_variable, values};
use super::cell::subject;
use super::file::{Need, NeedKind};
use super::matrix::{Key, Matrix, fill, placeholders};
use strandline_lab::cell::{Outcome, Subject};
use strandline_lab::executor::{Executor, Stopped};
use strandline_lab::figures::find_in_path;
use strandline_process::procfs::Process;
use strandline_process::target::budget::available_to;
use strandline_report::units::bytes;

/// A probe may take so long.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// When a probe is run: one that names `{build}` looks at what was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the builds.
    Before,
    /// After them.
    After,
}

/// The cells of a run: those that can be run, and why the others cannot.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    /// To be run.
    pub cells: Vec<Key>,
    /// Not to be run, and why.
    pub missing: Vec<(Key, String)>,
}

/// Says of each cell whether it can be run here.
///
/// # Errors
/// One line where there are too many cells.
pub fn bill(matrix: &Matrix) -> Result<Bill, String> {
    let mut bill = Bill::default();
    for key in matrix.cells()? {
        match missing(matrix, &key) {
            Some(why) => bill.missing.push((key, why)),
            None => bill.cells.push(key),
        }
    }
    Ok(bill)
}

/// Why a cell cannot be run here: what is missing, and how to get it.
pub fn missing(matrix: &Matrix, key: &Key) -> Option<String> {
    let subject = matrix.subjects.get(key.subject)?;
    let values = values(matrix, key);
    let program = subject.command.first().map(|word| fill(word, &values));
    // A program that is built first is not there yet.
    let program = program.filter(|program| !program.contains("{build}"));
    let program = program.map(|name| Need { name, ..Need::default() });
    let builders = subject.build.iter().filter_map(|words| words.first());
    let builders = builders.filter(|word| !word.contains("{build}"));
    let builders = builders.map(|word| Need { name: word.clone(), ..Need::default() });
    let needs = of_cell(matrix, key).cloned().chain(builders).chain(program);
    let mut missing: Vec<String> = Vec::new();
    for need in needs {
        let name = fill(&need.name, &values);
        // What is built first is looked for after that.
        if name.contains("{build}") {
            continue;
        }
        let is_here = match need.kind {
            NeedKind::Tool => find_in_path(&name).is_some(),
            NeedKind::Library => find_library(&name, &matrix.study.folder).is_some(),
            NeedKind::File => Path::new(&name).exists(),
            NeedKind::Memory => {
                missing.extend(too_little_memory(need.bytes));
                continue;
            }
            // Runs something: with the builds.
            NeedKind::Probe => continue,
        };
        let begin = format!("{name} is not here");
        if !is_here && !missing.iter().any(|known| known.starts_with(&begin)) {
            missing.push(need.install.map_or_else(|| begin.clone(), |how| format!("{begin} ({how})")));
        }
    }
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// What a cell needs, of its subject and of its choices.
pub fn of_cell<'m>(matrix: &'m Matrix, key: &'m Key) -> impl Iterator<Item = &'m Need> {
    let subject = matrix.subjects.get(key.subject).into_iter().flat_map(|subject| &subject.needs);
    subject.chain(matrix.choices(key).flat_map(|(_, choice)| &choice.needs))
}

/// The names of what the cells' probes look for.
pub fn probed(matrix: &Matrix, cells: &[Key]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for key in cells {
        for need in of_cell(matrix, key).filter(|need| need.kind == NeedKind::Probe) {
            let name = fill(&need.name, &values(matrix, key));
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Runs the probes of the cells of `bill` that are due, and takes those cells out whose probes fail. What probes
/// write is kept below the folder `root`, and not shown.
///
/// # Errors
/// [`Stopped`].
pub fn probe(
    matrix: &Matrix,
    bill: &mut Bill,
    (root, when): (&Path, When),
    executor: &mut dyn Executor,
    how_it_ended: &dyn Fn(&Outcome) -> String,
    say: &dyn Fn(&str),
) -> Result<(), Stopped> {
    let mut done: BTreeMap<(Vec<String>, Environment), Option<String>> = BTreeMap::new();
    let mut cells = Vec::new();
    for key in std::mem::take(&mut bill.cells) {
        let build = folder(matrix, &key, root);
        let mut values = values(matrix, &key);
        values.insert("build".to_owned(), build.to_string_lossy().into_owned());
        let own = subject(matrix, &key, root, None).environment;
        let mut missing = Vec::new();
        for need in of_cell(matrix, &key).filter(|need| is_due(need, when)) {
            let words: Vec<String> = need.command.iter().map(|word| fill(word, &values)).collect();
            let environment = told(matrix, &words, when, &own);
            let number = done.len();
            let known = (words, environment);
            if !done.contains_key(&known) {
                let name = fill(&need.name, &values);
                say(&format!("looking for {name}"));
                let subject = Subject {
                    name: "probe".to_owned(),
                    command: known.0.clone(),
                    environment: known.1.clone(),
                    // There is no other folder yet where nothing was built.
                    directory: Some(if when == When::After { build.clone() } else { root.to_owned() }),
                    timeout: Some(PROBE_TIMEOUT),
                    ..Subject::default()
                };
                let outcome = executor.run(&subject, &root.join(".probes").join(number.to_string()))?;
                let failed = (!outcome.end.is_success()).then(|| how_it_ended(&outcome));
                done.insert(known.clone(), failed);
            }
            if let Some(Some(how)) = done.get(&known) {
                missing.push(is_missing(need, &fill(&need.name, &values), &known.0, how));
            }
        }
        missing.dedup();
        if missing.is_empty() {
            cells.push(key);
        } else {
            bill.missing.push((key, missing.join(", ")));
        }
    }
    bill.cells = cells;
    Ok(())
}

type Environment = Vec<(String, Option<String>)>;

/// What a probe finds of the environment of a cell's runs: all but the choices that it does not name, and the folder
/// of a build that is not yet, so that cells share it that do not differ for it.
fn told(matrix: &Matrix, words: &[String], when: When, own: &Environment) -> Environment {
    let axes: Vec<String> = matrix.axes.iter().map(|axis| axis_variable(&axis.name)).collect();
    let is_told = |name: &String| match name.as_str() {
        "STRANDLINE_STUDY_BUILD" => when == When::After,
        _ => !axes.contains(name) || name_variable(words.iter(), name),
    };
    own.iter().filter(|(name, _)| is_told(name)).cloned().collect()
}

fn is_due(need: &Need, when: When) -> bool {
    let of_build = need.command.iter().any(|word| placeholders(word).contains(&"build"));
    need.kind == NeedKind::Probe && of_build == (when == When::After)
}

fn is_missing(need: &Need, name: &str, words: &[String], how: &str) -> String {
    match &need.install {
        Some(install) => format!("{name} is missing: {install}"),
        None => format!("{name} is missing: {}: {how}", shell_words::join(words)),
    }
}

/// Why a cell that needs so much memory is not run; nothing where there is as much, or nobody knows.
pub fn too_little_memory(wanted: u64) -> Option<String> {
    let own = Process::open(std::process::id().cast_signed()).ok()?;
    let available = available_to(&own)?;
    (available < wanted)
        .then(|| format!("needs {} of available memory; {} are", bytes(wanted), bytes(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_machine_has_is_not_there() {
        assert_eq!(too_little_memory(1), None);
        let why = too_little_memory(1 << 60).unwrap();
        assert!(why.starts_with("needs 1.00 EiB of available memory; ") && why.ends_with(" are"), "{why}");
    }
}

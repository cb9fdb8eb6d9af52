//! Runs a study through the engine: builds first, then the cells as subjects of the lab, then
//! converts the outcomes to data. Has no user interface.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::build::{build_commands, build_folder, build_variables, why_not_preloaded};
use super::cell::subject_of_cell;
use super::data::{CellData, Data};
use super::extract::{Extractor, RunMetrics};
use super::find;
use super::matrix::{Key, Matrix, OmittedCell};
use super::needs::{CheckedCells, ProbePhase, run_probes};
use strandline_inspect::readers::ALLOCATORS;
use strandline_lab::cell::{End, Outcome, Subject};
use strandline_lab::engine::{AfterRun, Judge, Results};
use strandline_lab::executor::{Executor, StopReason};
use strandline_lab::nodes::blocks;
use strandline_lab::path_error::path_error;

/// Time limit of a build command.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1_800);
/// A cell that failed this often is dropped.
const MAX_FAILURES: u32 = 2;
/// Rounds in cachegrind; few, because its counts hardly vary and it is slow.
pub const CACHEGRIND_ROUNDS: u32 = 3;

/// Failed builds: folder and reason.
pub type FailedBuilds = BTreeMap<PathBuf, String>;

#[derive(Clone, Copy, Debug)]
pub struct BuildPlace<'a> {
    /// The folder above all build folders.
    pub root: &'a Path,
    /// Whether builds of an earlier process are reused.
    pub is_resumed: bool,
}

/// Runs the probes and builds of the runnable `cells`, at `place`, and makes cells unrunnable that
/// then cannot run. `say` shows what is done.
///
/// # Errors
/// Why a probe or a build could not be started, or a signal; a failed one only makes its cells
/// unrunnable.
pub fn prepare(
    matrix: &Matrix,
    cells: &mut CheckedCells,
    place: BuildPlace<'_>,
    executor: &mut dyn Executor,
    say: &dyn Fn(&str),
) -> Result<(), StopReason> {
    run_probes(matrix, cells, place.root, ProbePhase::Before, executor, say)?;
    let failed_builds = build_all(matrix, &cells.runnable, place, executor, say)?;
    remove_failed(matrix, cells, place.root, &failed_builds)?;
    run_probes(matrix, cells, place.root, ProbePhase::After, executor, say)
}

/// Builds once for each build folder; returns failed builds.
fn build_all(
    matrix: &Matrix,
    cells: &[Key],
    BuildPlace { root, is_resumed }: BuildPlace<'_>,
    executor: &mut dyn Executor,
    say: &dyn Fn(&str),
) -> Result<FailedBuilds, StopReason> {
    find::unpack_probes()?;
    let mut failed_builds = FailedBuilds::new();
    let mut known_folders: BTreeSet<PathBuf> = BTreeSet::new();
    for key in cells {
        let folder = build_folder(matrix, key, root)?;
        if !known_folders.insert(folder.clone()) {
            continue;
        }
        let named = |error: std::io::Error| StopReason::Failed(path_error(&folder, &error));
        std::fs::create_dir_all(&folder).map_err(named)?;
        // The stamp says that the build succeeded.
        let stamp = folder.with_extension("built");
        if is_resumed && stamp.exists() {
            continue;
        }
        // An old stamp must not survive a failed rebuild.
        if let Err(error) = std::fs::remove_file(&stamp)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(named(error));
        }
        if let Some(failure) = run_build(matrix, key, &folder, executor, say)? {
            failed_builds.insert(folder, failure);
        } else {
            std::fs::write(&stamp, "").map_err(named)?;
        }
    }
    Ok(failed_builds)
}

/// Runs the build commands of a cell in its build `folder`; returns how the first one failed.
fn run_build(
    matrix: &Matrix,
    key: &Key,
    folder: &Path,
    executor: &mut dyn Executor,
    say: &dyn Fn(&str),
) -> Result<Option<String>, StopReason> {
    let commands = build_commands(matrix, key, folder)?;
    let variables = build_variables(matrix, key, folder)?;
    for (number, words) in commands.into_iter().enumerate() {
        let command = shell_words::join(&words);
        say(&format!("building: {command}"));
        let subject = Subject {
            name: "build".to_owned(),
            command: words,
            environment: variables.clone().into_iter().collect(),
            directory: Some(folder.to_owned()),
            timeout: Some(BUILD_TIMEOUT),
            ..Subject::default()
        };
        let outcome = executor.run(&subject, &folder.with_extension("output").join(number.to_string()))?;
        if !outcome.end.is_success() {
            return Ok(Some(format!("not built: {command}: {}", outcome.describe_end())));
        }
    }
    Ok(None)
}

/// Makes cells unrunnable that cannot run after the builds: their build failed, or a library would
/// not be preloaded.
fn remove_failed(
    matrix: &Matrix,
    cells: &mut CheckedCells,
    root: &Path,
    failed_builds: &FailedBuilds,
) -> Result<(), String> {
    for key in std::mem::take(&mut cells.runnable) {
        let subject = subject_of_cell(matrix, &key, root, None)?;
        let build = build_folder(matrix, &key, root)?;
        let why = failed_builds.get(&build).cloned();
        match why.or_else(|| why_not_preloaded(matrix, &key, &build, &subject)) {
            Some(why) => cells.unrunnable.push(OmittedCell { key, why }),
            None => cells.runnable.push(key),
        }
    }
    Ok(())
}

/// The failed runs of a cell.
#[derive(Clone, Debug)]
pub struct CellFailures {
    pub count: u32,
    pub last_outcome: Outcome,
}

/// Failed runs, by index of the subject in the plan.
pub type Failures = BTreeMap<usize, CellFailures>;

/// Judge of the runs of a study: drops a cell that fails repeatedly, and continues with the others.
#[derive(Default)]
pub struct StudyJudge {
    /// By index of the subject in the plan: whether failed runs count.
    pub may_fail: Vec<bool>,
    pub failures: Failures,
    pub cachegrind_failures: Failures,
    /// Why swap was not limited in a run with a memory limit; `None` if it was, or there was none.
    pub swap_problem: Option<String>,
}

impl Judge for StudyJudge {
    fn run_ended(&mut self, subject: usize, _round: Option<u32>, outcome: &Outcome) -> AfterRun {
        if self.swap_problem.is_none() {
            self.swap_problem.clone_from(&outcome.swap_problem);
        }
        if is_valid_run(outcome, self.may_fail.get(subject) == Some(&true)) {
            return AfterRun::Continue;
        }
        let count = self.failures.get(&subject).map_or(1, |failures| failures.count + 1);
        self.failures.insert(subject, CellFailures { count, last_outcome: outcome.clone() });
        let is_hopeless = matches!(outcome.end, End::NotStarted(_)) || count >= MAX_FAILURES;
        if is_hopeless { AfterRun::Drop } else { AfterRun::Continue }
    }

    fn has_enough_rounds(&mut self, _results: &Results) -> bool {
        false
    }
}

/// Whether the figures of a run count.
fn is_valid_run(outcome: &Outcome, may_fail: bool) -> bool {
    outcome.end.is_success() || may_fail && matches!(outcome.end, End::Exited(_) | End::Signalled(_))
}

/// Whether cachegrind counts the instructions of a cell, in separate runs.
pub fn uses_cachegrind(matrix: &Matrix, key: &Key) -> bool {
    matrix.subjects.get(key.subject).is_some_and(|subject| matrix.study.counts_instructions(subject))
}

/// The outcomes of a plan, and its failed runs.
#[derive(Clone, Copy)]
pub struct PlanRuns<'r> {
    pub results: &'r Results,
    pub failures: &'r Failures,
}

impl<'r> PlanRuns<'r> {
    /// The first `rounds` runs of the cell with this index.
    fn of_cell(self, index: usize, rounds: usize) -> Runs<'r> {
        let outcomes = self.results.outcomes.get(index).map_or(&[][..], Vec::as_slice);
        Runs { outcomes: outcomes.get(..rounds).unwrap_or(outcomes), failures: self.failures.get(&index) }
    }
}

/// Converts the outcomes of the runnable `cells`, in plan order, to data; `counted` are the runs in
/// cachegrind, in the same order. Failures of both are separate: those in cachegrind invalidate
/// only its counts.
pub fn collect_data(
    matrix: &Matrix,
    cells: &CheckedCells,
    timed: PlanRuns<'_>,
    counted: Option<PlanRuns<'_>>,
) -> Data {
    let mut data = Data { blocks: blocks(&timed.results.outcomes), ..Data::default() };
    for OmittedCell { key, why } in &cells.unrunnable {
        let cell = CellData { not_run: Some(why.clone()), ..CellData::default() };
        data.cells.insert(key.clone(), cell);
    }
    for (index, key) in cells.runnable.iter().enumerate() {
        let rounds = matrix.repeats_of(key) as usize;
        let counted = counted.filter(|_| uses_cachegrind(matrix, key));
        let counted = counted.map(|plan| plan.of_cell(index, rounds));
        data.cells.insert(key.clone(), cell_data(matrix, key, timed.of_cell(index, rounds), counted));
    }
    data
}

/// The runs of one cell.
#[derive(Clone, Copy)]
struct Runs<'r> {
    /// Their outcomes by round.
    outcomes: &'r [Option<Outcome>],
    /// The failed runs; `None` if none failed.
    failures: Option<&'r CellFailures>,
}

/// Data of one cell, from its timed runs, and from its counted runs if there are any.
fn cell_data(matrix: &Matrix, key: &Key, timed: Runs<'_>, counted: Option<Runs<'_>>) -> CellData {
    let outcomes = timed.outcomes;
    let Some(subject) = matrix.subjects.get(key.subject) else {
        return CellData { not_run: Some("it has no subject".to_owned()), ..CellData::default() };
    };
    let (may_fail, extractor) = (subject.may_fail, Extractor::new(&matrix.study, subject));
    let is_good = |outcome: &&Outcome| is_valid_run(outcome, may_fail);
    let mut cell = CellData { total_runs: outcomes.len(), ..CellData::default() };
    let instructions: Option<Vec<Option<f64>>> = counted.map(|counted| {
        let good = counted.outcomes.iter().map(|outcome| outcome.as_ref().filter(is_good));
        good.map(|outcome| outcome?.figures.instructions.map(|count| count as f64)).collect()
    });
    let mixes_cachegrind = matrix.subjects.iter().any(|subject| matrix.study.counts_instructions(subject));
    for (round, outcome) in outcomes.iter().enumerate() {
        let Some(outcome) = outcome.as_ref().filter(is_good) else { continue };
        cell.valid_runs += 1;
        let RunMetrics { figures: mut metrics, texts } = extractor.metrics(outcome);
        for (name, text) in texts {
            *cell.texts.entry(name).or_default().entry(text).or_default() += 1;
        }
        if mixes_cachegrind {
            // Hardware counts are not comparable with those of cachegrind.
            metrics.remove("instructions");
            metrics.remove("cycles");
            let count = instructions.as_ref().and_then(|counts| counts.get(round).copied().flatten());
            metrics.extend(count.map(|count| ("instructions".to_owned(), count)));
        }
        extractor.derive(&mut metrics);
        store_metrics(&mut cell, round, outcomes.len(), metrics);
    }
    if let Some((instructions, runs)) = instructions.zip(counted) {
        let good = instructions.iter().flatten().count();
        let why = why_invalid(runs, good).map(|why| format!("under cachegrind {why}"));
        store_counts(&mut cell, &extractor, instructions, why);
    }
    let first_good_run = outcomes.iter().flatten().find(is_good);
    let not_mapped = first_good_run.and_then(|outcome| not_mapped(matrix, key, outcome));
    let failure = || why_invalid(timed, cell.valid_runs);
    let not_run = || (cell.valid_runs == 0).then(|| "it was not run".to_owned());
    cell.not_run = not_mapped.or_else(failure).or_else(not_run);
    cell
}

/// Why the runs of a cell support no claim, given how many were good; `None` if they support one.
fn why_invalid(runs: Runs<'_>, good_runs: usize) -> Option<String> {
    let failures = runs.failures?;
    let (count, end) = (failures.count, failures.last_outcome.describe_end());
    let total_runs = runs.outcomes.iter().flatten().count().max(count as usize);
    match good_runs {
        0 => Some(format!("it failed: {end}")),
        _ if count >= MAX_FAILURES => Some(format!("it failed in {count} of {total_runs} runs: {end}")),
        _ => None,
    }
}

/// Stores the counts of cachegrind, which have their own rounds; metrics derived from them are
/// limited to these rounds. If there is a reason `why` the counts are invalid, these metrics are
/// invalid too.
fn store_counts(
    cell: &mut CellData,
    extractor: &Extractor<'_>,
    counts: Vec<Option<f64>>,
    why: Option<String>,
) {
    let derived = extractor.derived_of("instructions");
    for name in &derived {
        if let Some(samples) = cell.samples.get_mut(name) {
            samples.truncate(counts.len());
        }
    }
    if counts.iter().any(Option::is_some) {
        cell.samples.insert("instructions".to_owned(), counts);
    }
    if let Some(why) = why {
        let names = derived.into_iter().chain(["instructions".to_owned()]);
        cell.invalid.extend(names.map(|name| (name, why.clone())));
    }
}

/// Returns why a run does not count: a preloaded allocator of its cell is in none of its ledgers.
fn not_mapped(matrix: &Matrix, key: &Key, outcome: &Outcome) -> Option<String> {
    let libraries = matrix.choices(key).filter_map(|(_, choice)| choice.preload.as_deref());
    let file_names = libraries.map(|name| name.rsplit('/').next().unwrap_or(name));
    let preloaded: Vec<&str> = file_names.filter_map(allocator_of_file).collect();
    if preloaded.is_empty() {
        return None;
    }
    let mapped = Extractor::allocators(outcome)?;
    let unmapped_name = preloaded.into_iter().find(|name| !mapped.contains(*name))?;
    Some(format!("{unmapped_name} was preloaded, but is in none of its ledgers"))
}

/// Returns the name of the allocator of a library: one that is read, and is recognised by this file
/// name or has its name in it.
pub fn allocator_of_file(file: &str) -> Option<&'static str> {
    let readable = ALLOCATORS.iter().filter(|entry| entry.reader.is_some()).map(|entry| entry.about);
    let matching = readable.filter(|about| {
        about.evidence.files.iter().any(|name| name.matches(file)) || file.contains(about.name)
    });
    // Of `tcmalloc` and `google_tcmalloc` the longer one.
    matching.map(|about| about.name).max_by_key(|name| name.len())
}

fn store_metrics(cell: &mut CellData, round: usize, rounds: usize, metrics: BTreeMap<String, f64>) {
    for (name, value) in metrics {
        let samples = cell.samples.entry(name).or_insert_with(|| vec![None; rounds]);
        if let Some(sample) = samples.get_mut(round) {
            *sample = Some(value);
        }
    }
}

/// The part of the identity of a lab that comes from the study: its text and the files of its
/// folder. What cannot be read is not part of it: a run that needs it fails.
pub fn study_identity(matrix: &Matrix) -> impl serde::Serialize + use<> {
    /// Maximum number of files; changes of further ones do not make another lab.
    const MAX_FILES: usize = 10_000;
    let mut files = Vec::new();
    let mut unread_folders: Vec<PathBuf> = vec![matrix.study.folder.clone()];
    while let Some(folder) = unread_folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            // A link to a file counts as that file; a link to a folder is not followed.
            let linked_file = std::fs::metadata(entry.path()).ok().filter(std::fs::Metadata::is_file);
            let metadata = linked_file.unwrap_or(metadata);
            // Leftovers of interpreters and editors, and results, are not part of it.
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_result = folder == matrix.study.folder && ["README.md", "plots"].contains(&name.as_str());
            if name.starts_with('.') || name == "__pycache__" || name.ends_with(".pyc") || is_result {
                continue;
            }
            if files.len() >= MAX_FILES {
                break;
            }
            if metadata.is_dir() {
                unread_folders.push(entry.path());
            } else {
                let modified = metadata.modified().ok();
                let since_epoch = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                let nanoseconds = since_epoch.map(|time| time.as_nanos().to_string());
                files.push((entry.path(), metadata.len(), nanoseconds));
            }
        }
    }
    files.sort();
    (matrix.study.text.clone(), files)
}

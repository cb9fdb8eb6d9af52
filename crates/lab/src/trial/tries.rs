//! Tries candidates: collects the runs, drops failing candidates, and evaluates the figures against
//! runs without settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use strandline_inspect::environment::Environment;

use super::applies::{AppliedSetting, Facts, apply, system_library_folders};
use super::catalogue::{Candidate, Catalogue, Kind, Thp};
use super::observation::{Observation, SecondsRange, SettledSource};
use super::program::Program;
use super::rank::{Goal, Point, Status, pareto, rank};
use super::server::{describe_end, read_observation};
use crate::cell::{LabCaveat, Measure, Outcome, Subject};
use crate::engine::{AfterRun, Judge, Results};
use crate::figures::find_in_path;
use crate::nodes;
use crate::statistics::{
    BlockSample, Estimate, Pair, Ratio, Verdict, bonferroni, estimate_in_blocks, half_width, paired_ratio,
};

/// A smaller difference in resident memory counts as none: one more variable moves the stack, a
/// library adds its pages.
pub const RESOLUTION_BYTES: f64 = 65_536.0;
/// A smaller difference in wall time counts as none.
const RESOLUTION_SECONDS: f64 = 1e-3;
/// A difference below this fraction of the memory without settings also counts as none: it is not
/// worth a setting.
const NEGLIGIBLE_FRACTION: f64 = 0.01;
/// Joint confidence of all ratios of one figure, and confidence of each interval of a median.
const CONFIDENCE: f64 = 0.95;
/// Gives up after this many failed runs without settings if none succeeded.
const MAX_BASELINE_FAILURES: u32 = 3;
/// Sampling interval of batch commands.
const SAMPLING_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);
/// Name of the run without settings.
pub const BASELINE: &str = "baseline";

/// A candidate, or a pair of candidates, that is tried.
#[derive(Clone, Debug)]
pub struct TriedSetting {
    /// Its id; a pair joins two ids by `+`.
    pub id: String,
    /// Readable description.
    pub title: String,
    /// Its kind.
    pub kind: Kind,
    /// Known cost.
    pub cost: String,
    /// Sources of this information.
    pub source: Vec<String>,
    /// What it sets.
    pub applied: AppliedSetting,
}

impl TriedSetting {
    /// A single candidate.
    pub fn single(candidate: &Candidate, applied: AppliedSetting) -> Self {
        Self {
            id: candidate.id.clone(),
            title: candidate.title.clone(),
            kind: candidate.kind,
            cost: candidate.cost.clone(),
            source: candidate.source.clone(),
            applied,
        }
    }

    /// Two candidates together.
    pub fn pair(a: &Self, b: &Self, facts: &Facts) -> Self {
        Self {
            id: format!("{}+{}", a.id, b.id),
            title: format!("{}; {}", a.title, b.title),
            kind: a.kind,
            cost: format!("{}; {}", a.cost, b.cost),
            source: a.source.iter().chain(&b.source).cloned().collect(),
            applied: a.applied.combined_with(&b.applied, facts),
        }
    }

    /// The subject that runs it.
    pub fn subject(&self, base: &Subject) -> Subject {
        let mut environment = base.environment.clone();
        environment.extend(self.applied.environment());
        Subject {
            name: self.id.clone(),
            command: self.applied.command(&base.command),
            environment,
            no_huge_pages: self.applied.thp == Some(Thp::Never),
            ..base.clone()
        }
    }
}

/// How batch commands are measured.
pub fn batch_measure() -> Measure {
    Measure::Recording { interval: SAMPLING_INTERVAL, ledgers: "exit".to_owned(), uses_snapshot: false }
}

/// The facts about the command from the observation of a run without settings.
pub fn facts(command: &[String], observation: &Observation) -> Facts {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let path = environment.get("PATH").map(String::as_str);
    // A program that cannot be read stays unknown, and excludes no candidate.
    let program = observation.executable.as_ref().and_then(|path| Program::of_file(Path::new(path)).ok());
    Facts {
        command: command.to_vec(),
        started_program: Program::of_command(command, None, path).ok(),
        program,
        observation: observation.clone(),
        huge_pages: Environment::read().thp,
        folders: library_folders(environment.get("LD_LIBRARY_PATH").map(String::as_str)),
        environment,
    }
}

/// Full path of the file that the first word of `command` names; `None` if it is not found.
pub fn program_path(command: &[String]) -> Option<PathBuf> {
    std::path::absolute(find_in_path(command.first()?)?).ok()
}

/// Folders searched for libraries: those of `LD_LIBRARY_PATH`, then those of the system.
fn library_folders(library_path: Option<&str>) -> Vec<PathBuf> {
    let listed = library_path.unwrap_or_default().split(':').filter(|folder| !folder.is_empty());
    listed.map(PathBuf::from).chain(system_library_folders()).collect()
}

/// A candidate that does not apply to the command.
#[derive(Clone, Debug, Serialize)]
pub struct NotApplicable {
    /// Its id.
    pub id: String,
    /// Why it does not apply.
    pub reason: String,
}

/// Which candidates to try.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The candidates that apply to the command.
    pub tries: Vec<TriedSetting>,
    /// The requested candidates that do not.
    pub not_applicable: Vec<NotApplicable>,
}

/// Chooses from the requested candidates those that apply to the command of `facts`.
pub fn choose(catalogue: &Catalogue, facts: &Facts, is_requested: &dyn Fn(&str) -> bool) -> Choice {
    let mut choice = Choice::default();
    for candidate in catalogue.candidates.iter().filter(|candidate| is_requested(&candidate.id)) {
        let reason = match apply(candidate, catalogue, facts) {
            Ok(applied) if facts.is_already_set(&applied) => "it is set already".to_owned(),
            Ok(applied) => {
                choice.tries.push(TriedSetting::single(candidate, applied));
                continue;
            }
            Err(why) => why,
        };
        choice.not_applicable.push(NotApplicable { id: candidate.id.clone(), reason });
    }
    choice
}

/// A figure of one try.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// Median of its runs.
    pub estimate: Option<Estimate>,
    /// Ratio to the runs without settings, paired by rounds.
    pub ratio: Option<Ratio>,
}

impl Figure {
    /// The median of its runs.
    pub fn median(&self) -> Option<f64> {
        self.estimate.as_ref().map(|estimate| estimate.median)
    }

    /// How it compares with the runs without settings.
    pub fn verdict(&self) -> Verdict {
        self.ratio.map_or(Verdict::Unknown, |ratio| ratio.verdict())
    }
}

/// Evaluated runs of one try.
#[derive(Clone, Debug, Default)]
pub struct TryResult {
    /// Settled resident bytes.
    pub settled: Figure,
    /// Peak resident bytes.
    pub peak: Figure,
    /// Wall time in seconds.
    pub wall: Figure,
    /// Page faults that needed no I/O.
    pub faults: Figure,
    /// Median begin and end of the settled level, over the runs that had a level.
    pub settled_seconds: Option<SecondsRange>,
    /// Median resident bytes at the end, if memory fell at the end in most runs.
    pub ended_with_bytes: Option<u64>,
    /// Whether most runs in which memory fell had no level before.
    pub lacks_level: bool,
    /// Notes on its runs, each once.
    pub notes: Vec<String>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

impl TryResult {
    /// Settled memory and time, if both are known and it did not fail.
    fn memory_and_time(&self) -> Option<Point> {
        let point = Point { bytes: self.settled.median()?, seconds: self.wall.median()? };
        self.failure.is_none().then_some(point)
    }

    /// Whether its settled memory or its time is smaller than without settings. A try that is
    /// better in neither could be on the front only by chance.
    fn is_improvement(&self) -> bool {
        self.settled.verdict() == Verdict::Less || self.wall.verdict() == Verdict::Less
    }
}

/// Judge of the runs of a trial. Subject 0 is the run without settings, subject n is try n-1.
pub struct TrialJudge<'a> {
    /// The tries.
    pub tries: &'a [TriedSetting],
    /// Whether the command is a server.
    pub is_server: bool,
    /// Stops once no interval of a ratio of settled memory has a larger half width, relative to the
    /// ratio.
    pub max_half_width: Option<f64>,
    /// Seed of the bootstraps.
    pub seed: u64,
    /// Required source of settled memory; `None`: any, while it is not yet known.
    pub settled_at: Option<SettledSource>,
    /// The observations of each subject by round.
    pub observations: Vec<Vec<Option<Observation>>>,
    /// The first failure of each subject, if any. Rounds in which the run without settings fails do
    /// not count.
    pub failures: Vec<Option<String>>,
    /// Failed runs without settings.
    pub baseline_failures: u32,
}

impl<'a> TrialJudge<'a> {
    /// A judge of runs of `tries`.
    pub fn new(tries: &'a [TriedSetting], is_server: bool) -> Self {
        let count = tries.len() + 1;
        Self {
            tries,
            is_server,
            max_half_width: None,
            seed: 1,
            settled_at: None,
            baseline_failures: 0,
            observations: vec![Vec::new(); count],
            failures: vec![None; count],
        }
    }

    /// Evaluates all runs; the first item is the run without settings.
    pub fn evaluate_all(&self, results: &Results) -> Vec<TryResult> {
        let blocks = nodes::blocks(&results.outcomes);
        (0..self.observations.len()).map(|subject| self.evaluate(subject, &blocks)).collect()
    }

    /// Evaluates the runs of a subject; `blocks` has the block of each round. The run without
    /// settings has no failure: the rounds in which it failed are left out.
    fn evaluate(&self, subject: usize, blocks: &[u32]) -> TryResult {
        let observations = self.observations_of(subject);
        let failure = self.failures.get(subject).filter(|_| subject > 0);
        TryResult {
            settled: self.size_figure(subject, blocks, &|observation| observation.settled_bytes),
            peak: self.size_figure(subject, blocks, &|observation| observation.peak_bytes),
            wall: self.figure(subject, blocks, RESOLUTION_SECONDS, &|observation| observation.wall_seconds),
            faults: self.figure(subject, blocks, 1.0, &|observation| as_number(observation.minor_faults)),
            settled_seconds: median_level(observations),
            ended_with_bytes: median_end_bytes(observations),
            lacks_level: lacks_level(observations),
            notes: notes(observations),
            failure: failure.cloned().flatten(),
        }
    }

    fn observations_of(&self, subject: usize) -> &[Option<Observation>] {
        self.observations.get(subject).map(Vec::as_slice).unwrap_or_default()
    }

    /// A figure of a subject: the median of `value`, and its ratio to the runs without settings.
    /// Differences of at most `resolution` count as none.
    fn figure(
        &self,
        subject: usize,
        blocks: &[u32],
        resolution: f64,
        value: &dyn Fn(&Observation) -> Option<f64>,
    ) -> Figure {
        let observations = self.observations_of(subject);
        let sample = |(round, observation): (usize, &Option<Observation>)| {
            let block = blocks.get(round).copied().unwrap_or_default();
            Some(BlockSample { value: value(observation.as_ref()?)?, block })
        };
        let samples: Vec<BlockSample> = observations.iter().enumerate().filter_map(sample).collect();
        let estimate = estimate_in_blocks(&samples, CONFIDENCE, self.seed);
        if subject == 0 {
            return Figure { estimate, ratio: None };
        }
        let rounds = self.observations_of(0).iter().zip(observations);
        let pair = |(without, with): (&Option<Observation>, &Option<Observation>)| {
            Some(Pair { reference: value(without.as_ref()?)?, compared: value(with.as_ref()?)? })
        };
        let pairs: Vec<Pair> = rounds.filter_map(pair).collect();
        let confidence = bonferroni(CONFIDENCE, self.tries.len().max(1));
        Figure { estimate, ratio: paired_ratio(&pairs, resolution, confidence) }
    }

    fn size_figure(
        &self,
        subject: usize,
        blocks: &[u32],
        bytes: &dyn Fn(&Observation) -> Option<u64>,
    ) -> Figure {
        // Without any size there is no ratio, and 0 changes nothing.
        let max_bytes = self.observations_of(0).iter().flatten().filter_map(bytes).max().unwrap_or_default();
        let resolution = (max_bytes as f64 * NEGLIGIBLE_FRACTION).max(RESOLUTION_BYTES);
        self.figure(subject, blocks, resolution, &|observation| as_number(bytes(observation)))
    }

    /// Why a run counts as failed; `None` if it does not.
    fn failure(&self, subject: usize, outcome: &Outcome, observation: &Observation) -> Option<String> {
        if let Some(why) = &observation.failure {
            return Some(why.clone());
        }
        if !self.is_server && !outcome.end.is_success() {
            return Some(describe_end(outcome));
        }
        // Missing data must not improve the result of a run.
        let is_different = |expected: &SettledSource| !expected.is_comparable(observation.settled_source);
        if let Some(expected) = self.settled_at.filter(is_different) {
            return Some(format!(
                "its settled memory was measured {}, not {} as in the first run without settings",
                observation.settled_source.text(),
                expected.text()
            ));
        }
        if self.settled_at.is_some() && observation.settled_bytes.is_none() {
            return Some(
                "its settled memory is not known: no sample and no ledger was taken of it".to_owned(),
            );
        }
        let expected = self.tries.get(subject.checked_sub(1)?)?.applied.allocator.as_ref()?;
        match observation.has_allocator(expected) {
            Some(true) => None,
            Some(false) => {
                Some(format!("{expected} was not mapped in it; it had {}", observation.allocator_names()))
            }
            None => Some(format!("it is not known whether {expected} was mapped in it: no ledger was taken")),
        }
    }
}

impl Judge for TrialJudge<'_> {
    fn run_ended(&mut self, subject: usize, round: Option<u32>, outcome: &Outcome) -> AfterRun {
        let observation =
            if self.is_server { read_observation(outcome) } else { Observation::of_outcome(outcome) };
        let failure = self.failure(subject, outcome, &observation);
        if let (Some(observations), Some(round)) = (self.observations.get_mut(subject), round) {
            let round = round as usize;
            if observations.len() <= round {
                observations.resize(round + 1, None);
            }
            if let Some(stored) = observations.get_mut(round) {
                *stored = failure.is_none().then_some(observation);
            }
        }
        let Some(why) = failure else { return AfterRun::Continue };
        if let Some(first_failure) = self.failures.get_mut(subject) {
            first_failure.get_or_insert(why);
        }
        if subject > 0 {
            return AfterRun::Drop;
        }
        // A round whose run without settings failed has no pairs; the other rounds count.
        self.baseline_failures += 1;
        let has_any =
            self.observations.first().is_some_and(|observations| observations.iter().any(Option::is_some));
        if has_any || self.baseline_failures < MAX_BASELINE_FAILURES {
            AfterRun::Continue
        } else {
            AfterRun::Stop
        }
    }

    fn has_enough_rounds(&mut self, results: &Results) -> bool {
        let Some(max_half_width) = self.max_half_width else { return false };
        let tried = self.evaluate_all(results);
        let successful = tried.iter().skip(1).filter(|result| result.failure.is_none());
        successful.map(|result| half_width(result.settled.ratio)).fold(0.0, f64::max) <= max_half_width
    }
}

fn as_number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// Median resident bytes at the end, if memory fell at the end in most runs.
fn median_end_bytes(observations: &[Option<Observation>]) -> Option<u64> {
    let mut ends: Vec<u64> =
        observations.iter().flatten().filter_map(|observation| observation.ended_with_bytes).collect();
    ends.sort_unstable();
    let median = ends.get(ends.len() / 2).copied();
    median.filter(|_| ends.len() * 2 > observations.iter().flatten().count())
}

/// Median begin and end of the levels, if most runs have a level.
fn median_level(observations: &[Option<Observation>]) -> Option<SecondsRange> {
    let with_level = || {
        observations.iter().flatten().filter(|observation| observation.settled_source == SettledSource::Level)
    };
    if with_level().count() * 2 <= observations.iter().flatten().count() {
        return None;
    }
    let ranges = || with_level().filter_map(|observation| observation.settled_seconds);
    let median = |time: fn(SecondsRange) -> f64| {
        let mut times: Vec<f64> = ranges().map(time).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    Some(SecondsRange { from: median(|range| range.from)?, to: median(|range| range.to)? })
}

/// Whether most runs in which memory fell had no level before.
fn lacks_level(observations: &[Option<Observation>]) -> bool {
    let count = |source| {
        observations.iter().flatten().filter(|observation| observation.settled_source == source).count()
    };
    count(SettledSource::Top) > count(SettledSource::Level)
}

/// Notes on runs, each once.
fn notes(observations: &[Option<Observation>]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for note in observations.iter().flatten().flat_map(|observation| &observation.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes
}

/// A setting that was tried, with its result.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The setting.
    pub setting: TriedSetting,
    /// The result of its runs.
    pub result: TryResult,
}

/// Result of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The command.
    pub command: Vec<String>,
    /// Full path of the file that its first word names; `None` if it was not found.
    pub program: Option<PathBuf>,
    /// The figure to minimize.
    pub goal: Goal,
    /// Whether the command is a server.
    pub is_server: bool,
    /// Number of rounds in which the run without settings succeeded.
    pub rounds: usize,
    /// Number of failed runs without settings.
    pub baseline_failures: u32,
    /// Why the first of them failed.
    pub first_baseline_failure: Option<String>,
    /// The first observation without settings.
    pub observation: Observation,
    /// The runs without settings.
    pub baseline: TryResult,
    /// The tries, single candidates before pairs.
    pub tried: Vec<Tried>,
    /// Candidates that do not apply.
    pub not_applicable: Vec<NotApplicable>,
    /// Those of [`LabSetup::caveats`](crate::setup::LabSetup::caveats).
    pub lab_caveats: Vec<LabCaveat>,
    /// Kinds of machines that ran it, if runs were made elsewhere.
    pub nodes: Vec<nodes::NodeKind>,
}

impl Trial {
    /// The tries in the order of their [`Ranking`](super::rank::Ranking).
    pub fn ranked(&self) -> impl Iterator<Item = &Tried> {
        rank(&self.tried, self.goal).order.into_iter().filter_map(|index| self.tried.get(index))
    }

    /// The best try, if any is better than the runs without settings.
    pub fn best(&self) -> Option<&Tried> {
        self.tried.get(rank(&self.tried, self.goal).best?)
    }

    /// Status of a try.
    pub fn status(&self, tried: &Tried) -> Status {
        tried.result.status(self.goal)
    }

    /// Ids on the Pareto front of settled memory and time, sorted by memory.
    pub fn front(&self) -> Vec<String> {
        let point_of =
            |Tried { result, .. }: &Tried| result.memory_and_time().filter(|_| result.is_improvement());
        let baseline = std::iter::once(self.baseline.memory_and_time());
        let points: Vec<Option<Point>> = baseline.chain(self.tried.iter().map(point_of)).collect();
        let name = |index: usize| match index.checked_sub(1) {
            None => Some(BASELINE.to_owned()),
            Some(index) => self.tried.get(index).map(|tried| tried.setting.id.clone()),
        };
        pareto(&points).into_iter().filter_map(name).collect()
    }
}

#[cfg(test)]
#[path = "tries_tests.rs"]
mod tests;

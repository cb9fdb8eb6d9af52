//! `try -- COMMAND`: reruns a command, or a server under load, with settings that may make it keep
//! less memory.

use std::time::{Duration, Instant};

use super::arguments_lab::Try as Arguments;
use super::lab::{LabProgress, TerminalUser, UNTIL_FACTOR, lab_options, report_stop, show};
use super::output::Output;
use super::{CommandResult, Failure, Result};
use strandline_lab::cell::{Measure, Subject};
use strandline_lab::engine::{self, Plan, Progress};
use strandline_lab::executor::{NoResult, StopReason};
use strandline_lab::pages::trial::{catalogue_document, catalogue_page, document, page};
use strandline_lab::setup::{LabContent, LabOptions, LabSetup, MAX_UNCONFIRMED_RUNS};
use strandline_lab::trial::applies::Facts;
use strandline_lab::trial::catalogue::{Candidate, Catalogue};
use strandline_lab::trial::observation::{self, Observation};
use strandline_lab::trial::rank::{self, Goal};
use strandline_lab::trial::server::Service;
use strandline_lab::trial::tries::{
    self, BASELINE, Choice, Trial, TrialJudge, Tried, TriedSetting, TryResult,
};
use strandline_lab::user::{ProgressDisplay, User};
use strandline_report::text::command_line;
use strandline_report::units::seconds;

const SCHEMA: &str = "strandline/try/1";
const LIST_SCHEMA: &str = "strandline/try-list/1";
/// Without --timeout, the time limit of a run as a multiple of the first run without settings, plus
/// a constant.
const TIMEOUT_FACTOR: u32 = 10;
const TIMEOUT_BASE: Duration = Duration::from_secs(30);
/// Progress while a command runs that may never end.
const UNTIL_COMMAND_ENDS: &str = "first run, until the command ends; if it is a server: --ready port=8080";
/// Progress while a server runs.
const UNTIL_LOAD_ENDS: &str = "first run of the server, without settings";
/// Advice after an interrupted first run.
const SERVER_ADVICE: &str = "the first run waits until the command ends, and a server does not end by itself: use strandline try \
                             --ready port=8080 --load 'curl -s localhost:8080' -- ./server";

/// Runs a trial and shows which settings keep less memory, or lists the candidates.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let catalogue = arguments.catalogue.as_deref().map_or_else(Catalogue::built_in, Catalogue::with_file);
    let catalogue = catalogue.map_err(Failure)?;
    check_ids(arguments, &catalogue)?;
    if arguments.list {
        return list_candidates(arguments, &catalogue, output);
    }
    // No word is dropped: a command with words that are not UTF-8 was refused before.
    let command = arguments.command.iter().filter_map(|word| word.to_str().map(str::to_owned)).collect();
    let service = arguments.service();
    let base = Subject {
        name: BASELINE.to_owned(),
        command,
        timeout: arguments.lab.timeout,
        measure: if service.is_some() { Measure::Figures } else { tries::batch_measure() },
        ..Subject::default()
    };
    // Results of an earlier lab are reused only if it had the same description.
    let description = (&service, arguments.seed, format!("{catalogue:?}"));
    let subjects = std::slice::from_ref(&base);
    let content = LabContent { verb: "try", description: &description, subjects };
    let options = LabOptions { service: service.clone(), ..lab_options(&arguments.lab) };
    let mut lab = LabSetup::open(content, &options).map_err(Failure)?;
    let progress = LabProgress::new("try", !output.is_json);
    let running = RunningTrial { arguments, catalogue: &catalogue, base, service, progress: &progress };
    let trial = running.run(&mut lab);
    // Removes the progress line before the result is shown.
    drop(progress);
    match trial {
        Ok(mut trial) => {
            (trial.lab_caveats, trial.nodes) = (lab.caveats(), lab.nodes());
            show(SCHEMA, &trial.nodes, &document(&trial), &page(&trial), &arguments.report_output, output)?;
            lab.close();
            Ok(CommandResult::Done)
        }
        Err(NoResult::Stopped(stop)) => report_stop(&stop),
        Err(NoResult::Failed(why)) => {
            // If it were kept, the failure would be reused without any run.
            lab.abandon();
            Err(Failure(why))
        }
        // The first run is kept.
        Err(NoResult::Unconfirmed(why)) => Err(Failure(why)),
    }
}

/// Shows the requested candidates without running anything.
fn list_candidates(
    arguments: &Arguments,
    catalogue: &Catalogue,
    output: &mut Output,
) -> Result<CommandResult> {
    let requested = catalogue.candidates.iter().filter(|candidate| is_requested(arguments, &candidate.id));
    let candidates: Vec<Candidate> = requested.cloned().collect();
    let document = catalogue_document(&candidates);
    show(LIST_SCHEMA, &[], &document, &catalogue_page(&candidates), &arguments.report_output, output)?;
    Ok(CommandResult::Done)
}

/// Refuses names of candidates that do not exist.
fn check_ids(arguments: &Arguments, catalogue: &Catalogue) -> Result<()> {
    let unknown = |id: &&String| !catalogue.candidates.iter().any(|candidate| candidate.id == **id);
    match arguments.only.iter().chain(&arguments.skip).find(unknown) {
        Some(id) => Err(Failure(format!("there is no candidate {id:?}; `strandline try --list` names them"))),
        None => Ok(()),
    }
}

/// Whether --only and --skip leave the candidate `id`.
fn is_requested(arguments: &Arguments, id: &str) -> bool {
    let names = |list: &[String]| list.iter().any(|name| name == id);
    (arguments.only.is_empty() || names(&arguments.only)) && !names(&arguments.skip)
}

/// Returns how long the first run took: by its own measurement, or else by the clock.
fn first_run_time(wall_seconds: Option<f64>, elapsed: Duration) -> Duration {
    wall_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(elapsed)
}

/// Results of some rounds of a trial.
struct Rounds {
    /// The result of the command without settings.
    baseline: TryResult,
    /// The settings with the results of their runs, in their order.
    tried: Vec<Tried>,
    /// Number of rounds in which the command without settings succeeded.
    count: usize,
    /// Number of failed runs without settings.
    baseline_failures: u32,
    /// Why the first of them failed.
    first_baseline_failure: Option<String>,
}

/// A trial in progress.
struct RunningTrial<'a> {
    arguments: &'a Arguments,
    catalogue: &'a Catalogue,
    /// The command without settings.
    base: Subject,
    /// How to run the command as a server; `None` if it is not one.
    service: Option<Service>,
    progress: &'a LabProgress,
}

impl RunningTrial<'_> {
    /// Runs the command without settings, then with each candidate, then with pairs of the better
    /// ones.
    fn run(mut self, lab: &mut LabSetup) -> std::result::Result<Trial, NoResult> {
        let begin = Instant::now();
        let observation = self.first_run(lab)?;
        let elapsed = begin.elapsed();
        let run_time = first_run_time(observation.wall_seconds, elapsed);
        if self.base.timeout.is_none() {
            self.base.timeout = Some(run_time.saturating_mul(TIMEOUT_FACTOR).saturating_add(TIMEOUT_BASE));
        }
        let facts = tries::facts(&self.base.command, &observation);
        let is_requested = |id: &str| is_requested(self.arguments, id);
        let Choice { tries, not_applicable } = tries::choose(self.catalogue, &facts, &is_requested);
        // A run reused from an earlier lab took no time now, and a server takes longer than its
        // load.
        self.confirm(tries.len(), elapsed.max(run_time))?;
        let rounds = self.rounds(lab, BASELINE, tries, observation.settled_source)?;
        let mut trial = Trial {
            command: self.base.command.clone(),
            program: tries::program_path(&self.base.command),
            goal: self.arguments.goal.into(),
            is_server: self.service.is_some(),
            rounds: rounds.count,
            baseline_failures: rounds.baseline_failures,
            first_baseline_failure: rounds.first_baseline_failure,
            observation,
            baseline: rounds.baseline,
            tried: rounds.tried,
            not_applicable,
            lab_caveats: Vec::new(),
            nodes: Vec::new(),
        };
        let pairs = self.pairs(&trial.tried, &facts);
        if !pairs.is_empty() {
            // The machine may have drifted: compare pairs with runs without settings in their own
            // rounds.
            let pair_rounds =
                self.rounds(lab, "baseline of pairs", pairs, trial.observation.settled_source)?;
            trial.tried.extend(pair_rounds.tried);
            trial.baseline_failures += pair_rounds.baseline_failures;
            trial.first_baseline_failure =
                trial.first_baseline_failure.or(pair_rounds.first_baseline_failure);
        }
        Ok(trial)
    }

    /// Refuses a trial with very many runs without --yes.
    fn confirm(&self, tries: usize, run_time: Duration) -> std::result::Result<(), NoResult> {
        let runs = u64::from(self.arguments.repeat).saturating_mul(tries as u64 + 1);
        if runs <= MAX_UNCONFIRMED_RUNS || self.arguments.lab.yes {
            return Ok(());
        }
        let run_seconds = run_time.as_secs_f64();
        let (total_time, first_time) = (seconds(run_seconds * runs as f64), seconds(run_seconds));
        Err(NoResult::Unconfirmed(format!(
            "that is at least {runs} runs, at least {total_time} (the first took {first_time}); add --yes \
             to start"
        )))
    }

    /// Runs the command once without settings; the figures are not counted.
    fn first_run(&self, lab: &mut LabSetup) -> std::result::Result<Observation, NoResult> {
        let show_first_run = |_: &Progress| {
            self.progress.show_line(if self.service.is_some() { UNTIL_LOAD_ENDS } else { UNTIL_COMMAND_ENDS })
        };
        let mut judge = TrialJudge::new(&[], self.service.is_some());
        let subject = Subject { name: "first look".to_owned(), ..self.base.clone() };
        let plan = Plan { subjects: vec![subject], warm_up: 0, min_rounds: 1, max_rounds: 1, seed: 1 };
        show_first_run(&Progress::default());
        let ran = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, &mut judge, &show_first_run);
        if matches!(ran, Err(StopReason::Interrupted(_))) && self.service.is_none() {
            TerminalUser.show(SERVER_ADVICE);
        }
        ran?;
        if let Some(Some(why)) = judge.failures.into_iter().next() {
            return Err(self.baseline_failure(&format!("without any setting: {why}")));
        }
        let observation = judge.observations.into_iter().flatten().flatten().next();
        let observation = observation
            .ok_or_else(|| NoResult::Failed("nothing was measured in the first run".to_owned()))?;
        let goal: Goal = self.arguments.goal.into();
        let (figure_name, figure) = match goal {
            Goal::Peak => ("peak", observation.peak_bytes),
            Goal::Settled | Goal::TimeBounded => ("settled memory", observation.settled_bytes),
        };
        if figure.is_none() {
            let reason = match (goal, observation.processes) {
                (Goal::Peak, 2..) => {
                    "it has several processes, whose peaks were at different times; use --goal settled"
                }
                _ => "it could not be recorded; see `strandline doctor`",
            };
            return Err(NoResult::Failed(format!("the command's {figure_name} is not known: {reason}")));
        }
        Ok(observation)
    }

    /// The failure of the command itself.
    fn baseline_failure(&self, text: &str) -> NoResult {
        NoResult::Failed(format!("{}: {text}", command_line(&self.base.command)))
    }

    /// Runs `tries` together with the command without settings under the name `baseline`. Settled
    /// memory is measured as in the first run.
    fn rounds(
        &self,
        lab: &mut LabSetup,
        baseline: &str,
        tries: Vec<TriedSetting>,
        settled_at: observation::SettledSource,
    ) -> std::result::Result<Rounds, NoResult> {
        let update = |progress: &Progress| self.progress.update(progress);
        let mut judge = TrialJudge::new(&tries, self.service.is_some());
        judge.max_half_width = self.arguments.until;
        judge.seed = self.arguments.seed;
        judge.settled_at = Some(settled_at);
        let baseline = Subject { name: baseline.to_owned(), ..self.base.clone() };
        let with_settings = tries.iter().map(|setting| setting.subject(&self.base));
        let subjects = std::iter::once(baseline).chain(with_settings).collect();
        let min_rounds = self.arguments.repeat;
        let max_rounds =
            if self.arguments.until.is_some() { min_rounds.saturating_mul(UNTIL_FACTOR) } else { min_rounds };
        let plan = Plan { subjects, warm_up: 0, min_rounds, max_rounds, seed: self.arguments.seed };
        let results = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, &mut judge, &update)?;
        let count =
            judge.observations.first().map_or(0, |observations| observations.iter().flatten().count());
        let first_baseline_failure = judge.failures.first().cloned().flatten();
        if let (0, Some(why)) = (count, &first_baseline_failure) {
            let text = format!("without any setting, in every round after the first: {why}");
            return Err(self.baseline_failure(&text));
        }
        let mut results = judge.evaluate_all(&results).into_iter();
        Ok(Rounds {
            baseline: results.next().unwrap_or_default(),
            count,
            baseline_failures: judge.baseline_failures,
            first_baseline_failure,
            tried: tries
                .into_iter()
                .zip(results)
                .map(|(setting, result)| Tried { setting, result })
                .collect(),
        })
    }

    /// The best candidates that can be combined in pairs.
    fn pairs(&self, tried: &[Tried], facts: &Facts) -> Vec<TriedSetting> {
        let max_pairs = self.arguments.pairs as usize;
        rank::pairs(self.catalogue, tried, self.arguments.goal.into(), max_pairs)
            .into_iter()
            .filter_map(|[a, b]| {
                Some(TriedSetting::pair(&tried.get(a)?.setting, &tried.get(b)?.setting, facts))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_run_time_is_not_zero() {
        let elapsed = Duration::from_secs(100);
        assert_eq!(first_run_time(Some(2.5), elapsed), Duration::from_millis(2500));
        assert_eq!(first_run_time(None, elapsed), elapsed);
        assert_eq!(first_run_time(Some(f64::NAN), elapsed), elapsed);
    }
}

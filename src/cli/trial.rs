//! `try -- COMMAND`: reruns a command, or a server under load, with settings that may make it keep
//! less memory.

use std::time::{Duration, Instant};

use super::arguments_lab::Try as Arguments;
use super::lab::{LabProgress, lab_options, require_confirmation, show, stopped};
use super::output::Output;
use super::{CommandResult, Failure, Result};
use strandline_lab::cell::Subject;
use strandline_lab::engine::{self, Plan, Progress};
use strandline_lab::executor::Stopped;
use strandline_lab::pages::trial::{catalogue_document, catalogue_page, document, page};
use strandline_lab::setup::{LabContent, LabSetup};
use strandline_lab::trial::applies::{Facts, compatible};
use strandline_lab::trial::catalogue::{Candidate, Catalogue};
use strandline_lab::trial::observation::{self, Observation};
use strandline_lab::trial::rank::{self, Goal};
use strandline_lab::trial::server::Service;
use strandline_lab::trial::tries::{self, BASELINE, Trial, TrialJudge, TriedSetting, TryResult};
use strandline_lab::user::ProgressDisplay;
use strandline_report::units::seconds;

const SCHEMA: &str = "strandline/try/1";
const LIST_SCHEMA: &str = "strandline/try-list/1";
/// With --until, the maximum number of rounds as a multiple of the requested ones.
const MAX_TIMES: u32 = 10;
/// Without --timeout, the time limit of a run as a multiple of the first run without settings, plus
/// a constant.
const TIMEOUT_FACTOR: u32 = 10;
const TIMEOUT_BASE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let catalogue = arguments.catalogue.as_deref().map_or_else(Catalogue::built_in, Catalogue::with_file);
    let catalogue = catalogue.map_err(Failure)?;
    check_ids(arguments, &catalogue)?;
    if arguments.list {
        let candidates: Vec<Candidate> = catalogue
            .candidates
            .iter()
            .filter(|candidate| is_wanted(arguments, &candidate.id))
            .cloned()
            .collect();
        let document = catalogue_document(&candidates);
        show(LIST_SCHEMA, &document, &catalogue_page(&candidates), &arguments.shown, output)?;
        return Ok(CommandResult::Done);
    }
    let command: Vec<String> =
        arguments.command.iter().filter_map(|word| word.to_str().map(str::to_owned)).collect();
    let service = arguments.service();
    let base = Subject {
        name: BASELINE.to_owned(),
        command,
        timeout: arguments.lab.timeout,
        measure: if service.is_some() {
            strandline_lab::cell::Measure::Figures
        } else {
            tries::batch_measure()
        },
        ..Subject::default()
    };
    let described = (&service, arguments.seed, format!("{catalogue:?}"));
    let subjects = std::slice::from_ref(&base);
    let content = LabContent { verb: "try", description: &described, subjects };
    let lab = LabSetup::open_serving(content, &lab_options(&arguments.lab), service.as_ref());
    let mut lab = lab.map_err(Failure)?;
    let progress = LabProgress::new("try", !output.json);
    let course = Running { arguments, catalogue: &catalogue, base, service, progress: &progress };
    let trial = course.run(&mut lab);
    drop(progress);
    match trial {
        Ok(mut trial) => {
            (trial.cluster_caveats, trial.nodes) = (lab.caveats(), lab.nodes());
            show(SCHEMA, &document(&trial), &page(&trial), &arguments.shown, output)?;
            lab.close();
            Ok(CommandResult::Done)
        }
        Err(NoTrial::Stopped(why)) => stopped(&why),
        Err(NoTrial::Fails(why)) => {
            // If it were kept, the failure would be reused without any run.
            lab.abandon();
            Err(Failure(why))
        }
        Err(NoTrial::Unconfirmed(why)) => Err(Failure(why)),
    }
}

fn check_ids(arguments: &Arguments, catalogue: &Catalogue) -> Result<()> {
    let unknown = |id: &&String| !catalogue.candidates.iter().any(|candidate| candidate.id == **id);
    match arguments.only.iter().chain(&arguments.skip).find(unknown) {
        Some(id) => Err(Failure(format!("there is no candidate {id:?}; `strandline try --list` names them"))),
        None => Ok(()),
    }
}

fn is_wanted(arguments: &Arguments, id: &str) -> bool {
    let names = |list: &[String]| list.iter().any(|name| name == id);
    (arguments.only.is_empty() || names(&arguments.only)) && !names(&arguments.skip)
}

/// Why a trial has no result.
enum NoTrial {
    Stopped(Stopped),
    /// The command fails without any setting.
    Fails(String),
    /// More runs than allowed without --yes; the first run is kept.
    Unconfirmed(String),
}

impl From<Stopped> for NoTrial {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// The result of rounds.
struct Rounds {
    /// The command without settings, then each candidate.
    judged: Vec<TryResult>,
    /// Number of rounds in which the command without settings succeeded.
    rounds: usize,
    /// Number of runs that left processes behind.
    left_behind: u32,
    /// Number of failed runs without settings, and the first reason.
    baseline_failures: (u32, Option<String>),
}

/// A trial in progress.
struct Running<'a> {
    arguments: &'a Arguments,
    catalogue: &'a Catalogue,
    base: Subject,
    service: Option<Service>,
    progress: &'a LabProgress,
}

impl Running<'_> {
    fn run(mut self, lab: &mut LabSetup) -> std::result::Result<Trial, NoTrial> {
        let begin = Instant::now();
        let observation = self.first_run(lab)?;
        let wall =
            Duration::try_from_secs_f64(observation.wall_seconds.unwrap_or_default()).unwrap_or_default();
        if self.base.timeout.is_none() {
            self.base.timeout = Some(wall.saturating_mul(TIMEOUT_FACTOR).saturating_add(TIMEOUT_BASE));
        }
        let facts = tries::facts(&self.base.command, &observation);
        let wanted = |id: &str| is_wanted(self.arguments, id);
        let (tries, not_applicable) = tries::choose(self.catalogue, &facts, &wanted);
        // A run reused from an earlier lab took no time now, and a server takes longer than its
        // load.
        self.ask(lab, tries.len(), begin.elapsed().max(wall))?;
        let Rounds { mut judged, rounds, left_behind, baseline_failures } =
            self.rounds(lab, BASELINE, &tries, observation.settled_at)?;
        let baseline = if judged.is_empty() { TryResult::default() } else { judged.remove(0) };
        let mut trial = Trial {
            command: self.base.command.clone(),
            program: tries::program_path(&self.base.command),
            goal: self.arguments.goal.into(),
            serving: self.service.is_some(),
            rounds,
            baseline_failures,
            observation,
            baseline,
            tried: tries.into_iter().zip(judged).collect(),
            not_applicable,
            left_behind,
            cluster_caveats: Vec::new(),
            nodes: Vec::new(),
        };
        let pairs = self.pairs(&trial.tried, &facts);
        if !pairs.is_empty() {
            // The machine may have drifted: compare pairs with runs without settings in their own
            // rounds.
            let more = self.rounds(lab, "baseline of pairs", &pairs, trial.observation.settled_at)?;
            trial.tried.extend(pairs.into_iter().zip(more.judged.into_iter().skip(1)));
            trial.left_behind += more.left_behind;
            let (count, why) = more.baseline_failures;
            trial.baseline_failures.0 += count;
            trial.baseline_failures.1 = trial.baseline_failures.1.or(why);
        }
        Ok(trial)
    }

    /// Refuses a trial with very many runs without --yes.
    fn ask(&self, lab: &mut LabSetup, tries: usize, each: Duration) -> std::result::Result<(), NoTrial> {
        let runs = u64::from(self.arguments.repeat).saturating_mul(tries as u64 + 1);
        let each = each.as_secs_f64();
        let why = || {
            let (all, each) = (seconds(each * runs as f64), seconds(each));
            format!("that is {runs} runs, about {all} (the first took {each}); add --yes to start")
        };
        require_confirmation(lab, &[], runs, self.arguments.lab.yes).map_err(|_| NoTrial::Unconfirmed(why()))
    }

    /// Runs the command once without settings; the figures are not counted.
    fn first_run(&self, lab: &mut LabSetup) -> std::result::Result<Observation, NoTrial> {
        let tell = |_: &Progress| self.progress.show_line("the first run, without settings");
        let mut judge = TrialJudge::new(&[], self.service.is_some(), &tell);
        let subject = Subject { name: "first look".to_owned(), ..self.base.clone() };
        let plan = Plan { subjects: vec![subject], warm_up: 0, min_rounds: 1, max_rounds: 1, seed: 1 };
        tell(&Progress::default());
        engine::runs_done(&plan, &mut lab.executors, &mut lab.journal, &mut judge)?;
        if let Some(Some(why)) = judge.failures.into_iter().next() {
            return Err(NoTrial::Fails(format!("without any setting: {why}")));
        }
        let observation = judge.observations.into_iter().flatten().flatten().next();
        let observation = observation
            .ok_or_else(|| NoTrial::Fails("the first run, without settings, showed nothing".to_owned()))?;
        let goal: Goal = self.arguments.goal.into();
        let (what, figure) = match goal {
            Goal::Peak => ("peak", observation.peak_bytes),
            Goal::Settled | Goal::TimeBounded => ("settled memory", observation.settled_bytes),
        };
        if figure.is_none() {
            let why = match (goal, observation.processes) {
                (Goal::Peak, 2..) => {
                    "it has several processes, whose peaks were at different instants; use \
                                      --goal settled"
                }
                _ => "it could not be recorded; see `strandline doctor`",
            };
            return Err(NoTrial::Fails(format!("its {what} is not known: {why}")));
        }
        Ok(observation)
    }

    /// Runs `tries` together with the command without settings under the name `baseline`. Settled
    /// memory is measured as in the first run.
    fn rounds(
        &self,
        lab: &mut LabSetup,
        baseline: &str,
        tries: &[TriedSetting],
        settled_at: observation::SettledSource,
    ) -> std::result::Result<Rounds, NoTrial> {
        let tell = |progress: &Progress| self.progress.update(progress);
        let mut judge = TrialJudge::new(tries, self.service.is_some(), &tell);
        judge.until = self.arguments.until;
        judge.seed = self.arguments.seed;
        judge.settled_at = Some(settled_at);
        let first = Subject { name: baseline.to_owned(), ..self.base.clone() };
        let subjects =
            std::iter::once(first).chain(tries.iter().map(|one| one.subject(&self.base))).collect();
        let repeat = self.arguments.repeat;
        let at_most = if judge.until.is_some() { repeat.saturating_mul(MAX_TIMES) } else { repeat };
        let plan =
            Plan { subjects, warm_up: 0, min_rounds: repeat, max_rounds: at_most, seed: self.arguments.seed };
        engine::runs_done(&plan, &mut lab.executors, &mut lab.journal, &mut judge)?;
        let rounds =
            judge.observations.first().map_or(0, |observations| observations.iter().flatten().count());
        let why = judge.failures.first().cloned().flatten();
        if let (0, Some(why)) = (rounds, &why) {
            return Err(NoTrial::Fails(format!(
                "without any setting, in every round after the first: {why}"
            )));
        }
        Ok(Rounds {
            judged: judge.judge(),
            rounds,
            left_behind: judge.left_behind,
            baseline_failures: (judge.baseline_failures, why),
        })
    }

    /// The best candidates that can be combined in pairs.
    fn pairs(&self, tried: &[(TriedSetting, TryResult)], facts: &Facts) -> Vec<TriedSetting> {
        let candidate =
            |one: &TriedSetting| self.catalogue.candidates.iter().find(|candidate| candidate.id == one.id);
        let candidates: Option<Vec<&Candidate>> = tried.iter().map(|(one, _)| candidate(one)).collect();
        let candidates = candidates.unwrap_or_default();
        let measured: Vec<_> = tried.iter().map(|(_, judged)| judged.measured()).collect();
        let most = self.arguments.pairs as usize;
        rank::pairs(&candidates, &measured, self.arguments.goal.into(), most)
            .into_iter()
            .filter_map(|(first, second)| {
                let ((one, _), (other, _)) = (tried.get(first)?, tried.get(second)?);
                compatible(candidates.get(first)?, candidates.get(second)?).ok()?;
                Some(TriedSetting::pair(one, other, facts))
            })
            .collect()
    }
}

//! One `squeeze` from its first run to its findings: data for the report and for scripts.

use serde::Serialize;
use strandline_inspect::Caveat;
use strandline_report::text::counted;

use super::failure::Failure;
use super::search::{LimitRunner, Plan, Search, Tally};
use super::slowdown::{self, Level, Unlimited};
use super::{LimitKind, LimitedRun};
use crate::executor::{NoResult, StopReason};

/// How often the search resumes because the command failed above the limit found.
const MAX_RESUMES: u32 = 5;

/// Input of a squeeze.
#[derive(Clone, Debug, PartialEq)]
pub struct SqueezeOptions {
    /// The kind of limit.
    pub kind: LimitKind,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Shell command that judges a run, if any.
    pub success: Option<String>,
    /// Parameters of the search.
    pub plan: Plan,
    /// Rounds for measuring the slowdown near the limit.
    pub rounds: u32,
    /// Seed of the order of these rounds.
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    pub kind: LimitKind,
    pub command: Vec<String>,
    /// Shell command that judged a run, if any.
    pub success: Option<String>,
    /// The smallest limit under which all runs succeeded, with no failure above it; `None` if no
    /// limit qualifies.
    pub smallest_bytes: Option<u64>,
    /// The largest limit under which a run failed; `None` if none failed.
    pub largest_failing_bytes: Option<u64>,
    /// The requested resolution at the edge.
    pub resolution_bytes: Option<u64>,
    /// Number of runs that had to succeed under the smallest limit.
    pub repeat: u32,
    /// Whether the search finished within the allowed number of runs.
    pub is_complete: bool,
    /// Limits under which it sometimes fails; `None` if the edge is sharp.
    pub band: Option<Band>,
    /// A limit under which it always fails, above one under which it always succeeds.
    pub non_monotone: Option<Inversion>,
    /// How it fails under the largest failing limit.
    pub failure: Option<Failure>,
    /// The ways it fails, in descending order of limits.
    pub failures: Vec<FailureMode>,
    /// Results for each tried limit, ascending.
    pub limits: Vec<LimitResult>,
    pub unlimited: Unlimited,
    pub slowdown_near_limit: Vec<Level>,
    pub trials: Vec<LimitedRun>,
    pub caveats: Vec<Caveat>,
}

/// Limits under which a command sometimes fails and sometimes succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Band {
    /// The largest limit with no success at or below it; `None` if it succeeded under the smallest
    /// one possible.
    pub low_bytes: Option<u64>,
    /// The smallest limit with no failure at or above it; `None` if it failed under the largest one
    /// possible.
    pub high_bytes: Option<u64>,
    /// Runs under limits strictly between these two.
    pub runs: u32,
    /// Failed runs among them.
    pub failed: u32,
}

/// Two limits in the wrong order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Inversion {
    /// It always succeeded under this limit.
    pub succeeds_at_bytes: u64,
    /// It always failed under this larger limit.
    pub fails_at_bytes: u64,
}

/// Runs that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailureMode {
    /// How they failed, in words.
    pub words: String,
    /// The smallest limit under which this happened.
    pub low_bytes: u64,
    /// The largest limit under which this happened.
    pub high_bytes: u64,
    pub runs: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitResult {
    pub limit_bytes: u64,
    pub succeeded: u32,
    pub failed: u32,
}

/// Runs a squeeze. `on_run` is called after every run with the number of runs so far and the run.
///
/// # Errors
/// [`NoResult`] if a run cannot be made, or if the command fails without a limit.
pub fn squeeze(
    options: &SqueezeOptions,
    runner: &mut dyn LimitRunner,
    on_run: &mut dyn FnMut(usize, &LimitedRun),
) -> Result<Findings, NoResult> {
    let mut search = Search::new(runner, &options.plan, on_run);
    if !search.probe(None)? {
        return Err(NoResult::Failed(fails_unlimited(search.runs())));
    }
    let guess = search.runs().first().and_then(|run| run.peak_bytes);
    let mut levels = Vec::new();
    for attempt in 0..MAX_RESUMES {
        search.find_upper_edge(guess)?;
        let Some(smallest) = search.smallest_never_failing() else { break };
        let seed = options.seed.wrapping_add(u64::from(attempt));
        let slowdown = slowdown::measure(&mut search, smallest, options.rounds, seed)?;
        levels = slowdown.levels;
        if !slowdown.has_failed || search.has_used_all_runs() {
            break;
        }
    }
    // Again after the last attempt: if its check failed, the edge is above that failure.
    search.find_upper_edge(guess)?;
    search.find_lower_edge()?;
    repeat_inversion(&mut search)?;
    Ok(findings(options, &search, levels))
}

/// The error of a command whose only run, without a limit, failed.
fn fails_unlimited(runs: &[LimitedRun]) -> String {
    let failure = runs.last().and_then(|run| run.failure.as_ref());
    let (words, tail) = failure.map_or(("", ""), |failure| (&failure.words, &failure.stderr_tail));
    let message = tail.lines().last().map(|line| format!(", and wrote \"{line}\"")).unwrap_or_default();
    format!(
        "the command fails even without a limit: {words}{message}; fix that first, or define success with --success"
    )
}

/// If a failure was seen above a success, repeats both to distinguish chance from a property of the
/// program.
fn repeat_inversion(search: &mut Search<'_>) -> Result<(), StopReason> {
    let times = search.plan().repeat.max(2);
    if let (Some(success), Some(failing)) = (search.smallest_success(), search.largest_failing())
        && success < failing
    {
        search.repeat(success, times)?;
        search.repeat(failing, times)?;
    }
    Ok(())
}

/// What the runs of a finished search show.
fn findings(options: &SqueezeOptions, search: &Search<'_>, levels: Vec<Level>) -> Findings {
    let plan = &options.plan;
    let limits: Vec<_> = search
        .tallies()
        .iter()
        .map(|(&limit_bytes, &Tally { succeeded, failed })| LimitResult { limit_bytes, succeeded, failed })
        .collect();
    let smallest = search.smallest_never_failing();
    let largest_failing = search.largest_failing();
    let is_mixed = limits.iter().any(|result| result.succeeded > 0 && result.failed > 0);
    let non_monotone = inversion(&limits, plan.repeat.max(2)).filter(|_| !is_mixed);
    let is_inverted = search.smallest_success().zip(largest_failing).is_some_and(|(low, high)| low < high);
    let is_flaky = is_mixed || (is_inverted && non_monotone.is_none());
    let band = is_flaky.then(|| band(&limits, search.largest_always_failing(), smallest));
    let is_sure = smallest.is_none_or(|limit| search.tally(limit).succeeded >= plan.repeat);
    let last_failure = search
        .runs()
        .iter()
        .rev()
        .find(|run| run.limit_bytes == largest_failing && run.limit_bytes.is_some() && !run.is_success());
    let mut findings = Findings {
        kind: options.kind,
        command: options.command.clone(),
        success: options.success.clone(),
        smallest_bytes: smallest,
        largest_failing_bytes: largest_failing,
        resolution_bytes: smallest.or(largest_failing).map(|limit| plan.resolution.at(limit)),
        repeat: plan.repeat,
        is_complete: is_sure && !search.has_used_all_runs(),
        band,
        non_monotone,
        failure: last_failure.and_then(|run| run.failure.clone()),
        failures: failure_modes(search.runs()),
        limits,
        unlimited: slowdown::unlimited(search.runs(), options.seed),
        // A measurement at a limit that later turned out too small is dropped.
        slowdown_near_limit: if levels.first().map(|level| level.limit_bytes) == smallest {
            levels
        } else {
            Vec::new()
        },
        trials: search.runs().to_vec(),
        caveats: Vec::new(),
    };
    findings.caveats = caveats(&findings, plan);
    findings
}

/// The smallest limit that always succeeded and the largest above it that always failed, each with
/// at least `times` runs.
fn inversion(limits: &[LimitResult], times: u32) -> Option<Inversion> {
    let succeeds = limits.iter().find(|result| result.failed == 0 && result.succeeded >= times)?.limit_bytes;
    let fails =
        limits.iter().rev().find(|result| result.succeeded == 0 && result.failed >= times)?.limit_bytes;
    (succeeds < fails).then_some(Inversion { succeeds_at_bytes: succeeds, fails_at_bytes: fails })
}

/// The flaky limits between `low` and `high`.
fn band(limits: &[LimitResult], low: Option<u64>, high: Option<u64>) -> Band {
    let is_inside = |result: &&LimitResult| {
        low.is_none_or(|low| result.limit_bytes > low) && high.is_none_or(|high| result.limit_bytes < high)
    };
    let (mut runs, mut failed) = (0u32, 0u32);
    for result in limits.iter().filter(is_inside) {
        runs = runs.saturating_add(result.succeeded).saturating_add(result.failed);
        failed = failed.saturating_add(result.failed);
    }
    Band { low_bytes: low, high_bytes: high, runs, failed }
}

/// Groups the failed runs under limits by how they failed.
fn failure_modes(runs: &[LimitedRun]) -> Vec<FailureMode> {
    let mut modes: Vec<FailureMode> = Vec::new();
    for run in runs {
        let (Some(limit), Some(failure)) = (run.limit_bytes, &run.failure) else { continue };
        if let Some(mode) = modes.iter_mut().find(|mode| mode.words == failure.words) {
            mode.low_bytes = mode.low_bytes.min(limit);
            mode.high_bytes = mode.high_bytes.max(limit);
            mode.runs = mode.runs.saturating_add(1);
        } else {
            let words = failure.words.clone();
            modes.push(FailureMode { words, low_bytes: limit, high_bytes: limit, runs: 1 });
        }
    }
    modes.sort_by_key(|mode| std::cmp::Reverse((mode.high_bytes, mode.low_bytes)));
    modes
}

fn caveats(findings: &Findings, plan: &Plan) -> Vec<Caveat> {
    let mut caveats: Vec<Caveat> = Vec::new();
    let mut add = |code: &str, text: String| caveats.push(Caveat::new(code, "squeeze", None, text));
    if !findings.is_complete {
        let runs = counted(u64::from(plan.max_edge_runs), "run");
        let text = "before it was certain: the smallest limit may differ somewhat from the one shown";
        add("not_sure", format!("The search ended after {runs}, {text}."));
    }
    let Unlimited { runs, failed, .. } = findings.unlimited;
    if failed > 0 {
        let runs = counted(u64::from(runs), "run");
        let text = "without any limit: not every failure is one of the limit";
        add("fails_unlimited", format!("It also failed in {failed} of {runs} {text}."));
    }
    if findings.smallest_bytes.is_some() && findings.slowdown_near_limit.is_empty() {
        let text = "The slowdown near the limit was not measured: the runs there failed.";
        add("no_slowdown", text.to_owned());
    }
    let leaves_processes = |run: &&LimitedRun| run.is_success() && run.leftover_processes > 0;
    let runs_with_leftovers = findings.trials.iter().filter(leaves_processes).count();
    if runs_with_leftovers > 0 {
        let runs = counted(runs_with_leftovers as u64, "run");
        let text =
            "left processes behind, which were ended: their further need for memory is not in the limit";
        add("left_behind", format!("{runs} succeeded and {text}."));
    }
    if let Some(problem) = findings.trials.iter().find_map(|run| run.swap_problem.as_ref()) {
        let text =
            "Memory may have moved to swap at the limit, so the command may need more than the limit shown";
        add("swap_not_limited", format!("{text} ({problem})."));
    }
    add("what_counts", what_counts(findings.kind).to_owned());
    caveats
}

fn what_counts(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::AddressSpace => {
            "The limit is one on each process by itself, and counts addresses, not resident memory: mapped files, \
             reserved space and the stacks of threads too."
        }
        LimitKind::Data => {
            "The limit is one on each process by itself. Since Linux 4.7 it counts all private writable mappings, \
             resident or not; shared memory and read-only files are not in it."
        }
        LimitKind::Cgroup => {
            "The limit is one on all processes of the command together, and counts the pages of files that they were \
             the first to read, tmpfs, and the kernel's own memory for them too. The kernel drops clean pages of \
             files before it kills, which shows as time; pages of files that others had read before do not count."
        }
    }
}

//! `compare`: runs commands in pairs and gives each figure as a ratio with its interval.

use std::collections::BTreeMap;

use super::cell::{End, Figures, Measure, Outcome, Subject, SubjectRun};
use super::engine::{AfterRun, Judge, Results};
use super::nodes::blocks;
use super::statistics::{
    BlockSample, Estimate, Pair, Ratio, Verdict, bonferroni, estimate_in_blocks, half_width, outliers,
    paired_ratio,
};

/// Joint confidence of all ratio intervals in one comparison.
pub const CONFIDENCE: f64 = 0.99;
/// Confidence of each command's median.
const MEDIAN_CONFIDENCE: f64 = 0.95;
/// Maximum number of outliers listed in a sentence.
const MAX_LISTED_OUTLIERS: usize = 5;

/// A compared figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Seconds from start to end.
    Wall,
    /// CPU seconds in user mode.
    User,
    /// CPU seconds in the kernel.
    System,
    /// Bytes of the largest resident set of one process.
    HighWater,
    /// Page faults that needed no I/O.
    MinorFaults,
    /// Instructions in user mode.
    Instructions,
    /// CPU cycles in user mode.
    Cycles,
}

impl Metric {
    /// All metrics, in report order.
    pub const ALL: [Self; 7] = [
        Self::Wall,
        Self::User,
        Self::System,
        Self::HighWater,
        Self::MinorFaults,
        Self::Instructions,
        Self::Cycles,
    ];

    /// Name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall_seconds",
            Self::User => "user_seconds",
            Self::System => "system_seconds",
            Self::HighWater => "high_water_bytes",
            Self::MinorFaults => "minor_faults",
            Self::Instructions => "instructions",
            Self::Cycles => "cycles",
        }
    }

    /// The smallest difference that the kernel's counting can show, in the metric's unit.
    pub fn resolution(self) -> f64 {
        match self {
            Self::Wall | Self::User | Self::System => 1e-6,
            Self::HighWater => strandline_sys::host::page_bytes() as f64,
            Self::MinorFaults | Self::Instructions | Self::Cycles => 1.0,
        }
    }

    /// Differences up to this, in the metric's unit, are those of the kernel's accounting, and say
    /// nothing of the commands; `None` if its counter is exact.
    ///
    /// A clock tick counts as user or as system time as a whole, and their sum is divided in the
    /// proportion of the ticks (kernel/sched/cputime.c, `cputime_adjust`): each may be wrong by a
    /// tick.
    pub fn accounting_step(self) -> Option<f64> {
        match self {
            Self::User | Self::System => clock_tick_seconds(),
            Self::HighWater => Some(self.resolution()),
            Self::Wall | Self::MinorFaults | Self::Instructions | Self::Cycles => None,
        }
    }

    /// The value of this metric in a run.
    pub fn value_in(self, figures: &Figures) -> Option<f64> {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        match self {
            Self::Wall => figures.wall_seconds,
            Self::User => figures.user_seconds,
            Self::System => figures.system_seconds,
            Self::HighWater => count(figures.high_water_bytes),
            Self::MinorFaults => count(figures.minor_faults),
            Self::Instructions => count(figures.instructions),
            Self::Cycles => count(figures.cycles),
        }
    }
}

/// Length of a tick of the kernel's clock, which is the resolution of its coarse clocks
/// (clock_getres(2)); `None` if it is not known.
fn clock_tick_seconds() -> Option<f64> {
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).ok()?;
    Some(std::time::Duration::from(tick).as_secs_f64())
}

/// One command in one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandCase {
    /// Index of the command, in the order given.
    pub command: usize,
    /// Index of the case; 0 if there are no cases.
    pub case: usize,
}

/// A metric of one case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricComparison {
    /// Median of each command; `None`: unknown.
    pub estimates: Vec<Option<Estimate>>,
    /// Ratio of each command to the first; `None` for the first.
    pub ratios: Vec<Option<Ratio>>,
    /// See [`Metric::accounting_step`].
    pub accounting_step: Option<f64>,
}

impl MetricComparison {
    /// Verdict on the ratio of `command` to the first; `unknown` if the accounting step hides the
    /// difference.
    pub fn verdict(&self, command: usize) -> Verdict {
        match self.ratio_verdict(command) {
            Verdict::More | Verdict::Less if self.unresolved_step(command).is_some() => Verdict::Unknown,
            verdict => verdict,
        }
    }

    /// Verdict on the ratio of `command` to the first, without regard to the accounting step.
    fn ratio_verdict(&self, command: usize) -> Verdict {
        self.ratios.get(command).copied().flatten().map_or(Verdict::Unknown, |ratio| ratio.verdict())
    }

    /// The accounting step, if it hides the difference of `command` from the first: their ratio
    /// differs from 1 but their medians by one step at most, or neither median exceeds a step. An
    /// interval that contains 1 stands: it shows the noise of the runs, which may be far larger.
    pub fn unresolved_step(&self, command: usize) -> Option<f64> {
        let median = |command: usize| Some(self.estimates.get(command)?.as_ref()?.median);
        let (first, other, step) = (median(0)?, median(command)?, self.accounting_step?);
        let differs = matches!(self.ratio_verdict(command), Verdict::More | Verdict::Less);
        let is_unresolved = differs && (other - first).abs() <= step || first.max(other) <= step;
        is_unresolved.then_some(step)
    }
}

/// The value of a metric in one counted round.
#[derive(Clone, Copy, Debug)]
struct RoundValue {
    round: usize,
    value: f64,
}

/// Values by command, then by round.
type Table = Vec<Vec<RoundValue>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TableKey {
    case: usize,
    metric: Metric,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The commands as written.
    pub commands: Vec<String>,
    /// Names of the cases; a single empty name if there are none.
    pub cases: Vec<String>,
    /// Counted rounds.
    pub rounds: usize,
    /// Metrics of each case; unknown ones are missing.
    pub metrics: Vec<BTreeMap<Metric, MetricComparison>>,
    /// Confidence of each ratio interval.
    pub ratio_confidence: f64,
    /// Outliers, one sentence each.
    pub outliers: Vec<String>,
    /// Block of each round: rounds on machines of different kinds are in different blocks.
    pub blocks: Vec<u32>,
}

impl Comparison {
    /// Evaluates the runs; `seed` is that of the bootstraps. `places` gives the command and case of
    /// each subject; several subjects may share a place (one is timed, one counts instructions).
    pub fn evaluate(
        commands: Vec<String>,
        cases: Vec<String>,
        places: &[CommandCase],
        results: &Results,
        seed: u64,
    ) -> Self {
        let mut comparison = Self {
            rounds: results.outcomes.iter().map(Vec::len).max().unwrap_or(0),
            blocks: blocks(&results.outcomes),
            metrics: vec![BTreeMap::new(); cases.len()],
            commands,
            cases,
            ..Self::default()
        };
        let tables = tables(places, results, comparison.commands.len());
        comparison.ratio_confidence = ratio_confidence(&tables, comparison.commands.len());
        for (TableKey { case, metric }, by_command) in tables {
            comparison.report_outliers(case, metric, &by_command);
            let compared = comparison.compare(metric, &by_command, seed);
            if let Some(metrics) = comparison.metrics.get_mut(case) {
                metrics.insert(metric, compared);
            }
        }
        comparison
    }

    /// The medians and ratios of a metric in a case.
    fn compare(&self, metric: Metric, by_command: &Table, seed: u64) -> MetricComparison {
        let samples = |values: &[RoundValue]| -> Vec<BlockSample> {
            let sample = |&RoundValue { round, value }| BlockSample { value, block: self.block(round) };
            values.iter().map(sample).collect()
        };
        let estimates = by_command
            .iter()
            .map(|values| estimate_in_blocks(&samples(values), MEDIAN_CONFIDENCE, seed))
            .collect();
        MetricComparison {
            estimates,
            ratios: ratios(metric, by_command, self.ratio_confidence),
            accounting_step: metric.accounting_step(),
        }
    }

    fn block(&self, round: usize) -> u32 {
        self.blocks.get(round).copied().unwrap_or_default()
    }

    fn report_outliers(&mut self, case: usize, metric: Metric, by_command: &Table) {
        // Only outliers of wall time are reported: CPU times reflect the same load of the machine,
        // and memory and instructions hardly vary.
        if metric != Metric::Wall {
            return;
        }
        for (command, values) in by_command.iter().enumerate() {
            let outliers = self.outliers_of(values);
            if outliers.is_empty() {
                continue;
            }
            let case = self.cases.get(case).filter(|case| !case.is_empty());
            let case = case.map(|case| format!(" in case {case}")).unwrap_or_default();
            let rounds: Vec<String> = outliers
                .iter()
                .take(MAX_LISTED_OUTLIERS)
                .map(|&RoundValue { round, value }| {
                    format!("{} in round {}", strandline_report::units::seconds(value), round + 1)
                })
                .collect();
            self.outliers.push(format!(
                "{}{case}: {} of {} times are outliers ({}); they are included",
                letter(command),
                outliers.len(),
                values.len(),
                rounds.join(", ")
            ));
        }
    }

    /// The outliers among the rounds of each block: a usual time on one machine may be an outlier
    /// on another.
    fn outliers_of(&self, values: &[RoundValue]) -> Vec<RoundValue> {
        let mut blocks: BTreeMap<u32, Vec<RoundValue>> = BTreeMap::new();
        for &value in values {
            blocks.entry(self.block(value.round)).or_default().push(value);
        }
        let outliers_of_block = |block: Vec<RoundValue>| {
            let values: Vec<f64> = block.iter().map(|value| value.value).collect();
            outliers(&values).into_iter().filter_map(move |index| block.get(index).copied())
        };
        let mut outliers: Vec<RoundValue> = blocks.into_values().flat_map(outliers_of_block).collect();
        outliers.sort_by_key(|outlier| outlier.round);
        outliers
    }

    /// The largest half width of any ratio interval of `metric`, relative to the ratio; infinite if
    /// one is unknown.
    pub fn max_half_width(&self, metric: Metric) -> f64 {
        let width_of_case = |metrics: &BTreeMap<Metric, MetricComparison>| {
            metrics.get(&metric).map_or(f64::INFINITY, |compared| max_half_width_of(&compared.ratios))
        };
        self.metrics.iter().map(width_of_case).fold(0.0, f64::max)
    }
}

/// The table of each case and metric that has a value.
fn tables(places: &[CommandCase], results: &Results, command_count: usize) -> BTreeMap<TableKey, Table> {
    let mut tables = BTreeMap::new();
    for (place, outcomes) in places.iter().zip(&results.outcomes) {
        for (round, outcome) in outcomes.iter().enumerate() {
            // A run that was killed early must not count as a fast run.
            let exited = outcome.as_ref().filter(|outcome| matches!(outcome.end, End::Exited(_)));
            let Some(outcome) = exited else { continue };
            for metric in Metric::ALL {
                let Some(value) = metric.value_in(&outcome.figures) else { continue };
                let table = tables.entry(TableKey { case: place.case, metric });
                let by_command = table.or_insert_with(|| vec![Vec::new(); command_count]);
                if let Some(values) = by_command.get_mut(place.command) {
                    values.push(RoundValue { round, value });
                }
            }
        }
    }
    tables
}

/// The ratio of each command to the first, with intervals of this `confidence`; `None` for the
/// first.
fn ratios(metric: Metric, by_command: &Table, confidence: f64) -> Vec<Option<Ratio>> {
    let reference = by_command.first().map(Vec::as_slice).unwrap_or_default();
    let ratio =
        |values: &Vec<RoundValue>| paired_ratio(&pairs(reference, values), metric.resolution(), confidence);
    let others = by_command.iter().skip(1).map(ratio);
    std::iter::once(None).chain(others).collect()
}

/// The largest half width of the ratios to the first command, which has none itself.
fn max_half_width_of(ratios: &[Option<Ratio>]) -> f64 {
    ratios.iter().skip(1).map(|ratio| half_width(*ratio)).fold(0.0, f64::max)
}

/// Confidence of each ratio if all of them hold together with [`CONFIDENCE`].
fn ratio_confidence(tables: &BTreeMap<TableKey, Table>, command_count: usize) -> f64 {
    let is_complete = |table: &&Table| table.iter().all(|values| !values.is_empty());
    let complete_tables = tables.values().filter(is_complete).count();
    bonferroni(CONFIDENCE, complete_tables * command_count.saturating_sub(1))
}

/// A, B, C, …: the name of a command in documents (there in lower case).
pub fn letter(command: usize) -> String {
    ('A'..='Z').nth(command).map_or_else(|| format!("command {}", command + 1), String::from)
}

/// The pairs of values of the rounds that both have.
fn pairs(reference: &[RoundValue], compared: &[RoundValue]) -> Vec<Pair> {
    let by_round: BTreeMap<usize, f64> = reference.iter().map(|run| (run.round, run.value)).collect();
    let pair = |run: &RoundValue| Some(Pair { reference: *by_round.get(&run.round)?, compared: run.value });
    compared.iter().filter_map(pair).collect()
}

/// The subjects in `timed`, run in cachegrind to count their instructions.
pub fn cachegrind_subjects(timed: &[Subject]) -> Vec<Subject> {
    let counted = |subject: &Subject| Subject {
        // Unique: names of timed subjects begin with the letter of their command.
        name: format!("instructions: {}", subject.name),
        measure: Measure::Cachegrind,
        ..subject.clone()
    };
    timed.iter().map(counted).collect()
}

/// Judge of the runs of a comparison.
#[derive(Default)]
pub struct CompareJudge<'a> {
    /// Whether commands may fail.
    pub may_fail: bool,
    /// Stops once no interval of wall time has a larger half width, relative to the ratio.
    pub max_half_width: Option<f64>,
    /// Place of each subject.
    pub places: &'a [CommandCase],
    /// Number of commands.
    pub command_count: usize,
    /// Number of cases.
    pub case_count: usize,
    /// The first failed run, where none may fail.
    pub first_failure: Option<SubjectRun>,
    /// Failed runs by subject.
    pub failures: BTreeMap<usize, FailedRuns>,
}

/// Number of failed runs of a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedRuns {
    /// Those that exited by themselves: their figures count.
    pub counted_runs: u32,
    /// Those that a signal or their timeout ended: their figures do not count.
    pub excluded_runs: u32,
}

impl Judge for CompareJudge<'_> {
    fn run_ended(&mut self, subject: usize, _round: Option<u32>, outcome: &Outcome) -> AfterRun {
        if outcome.end.is_success() {
            return AfterRun::Continue;
        }
        let failed_runs = self.failures.entry(subject).or_default();
        match outcome.end {
            End::Exited(_) => failed_runs.counted_runs += 1,
            End::Signalled(_) | End::TimedOut | End::NotStarted(_) => failed_runs.excluded_runs += 1,
        }
        if self.may_fail && !matches!(outcome.end, End::NotStarted(_)) {
            return AfterRun::Continue;
        }
        self.first_failure.get_or_insert_with(|| SubjectRun { subject, outcome: outcome.clone() });
        AfterRun::Stop
    }

    fn has_enough_rounds(&mut self, results: &Results) -> bool {
        let Some(max_half_width) = self.max_half_width else { return false };
        let tables = tables(self.places, results, self.command_count);
        // That for all figures of the report, although only ratios of wall time are needed.
        let confidence = ratio_confidence(&tables, self.command_count);
        // Without a counted run, a case has no table, and its ratios are unknown.
        (0..self.case_count).all(|case| {
            let table = tables.get(&TableKey { case, metric: Metric::Wall });
            let half_width = table.map(|table| max_half_width_of(&ratios(Metric::Wall, table, confidence)));
            half_width.is_some_and(|half_width| half_width <= max_half_width)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(wall: f64, bytes: u64) -> Option<Outcome> {
        let figures =
            Figures { wall_seconds: Some(wall), high_water_bytes: Some(bytes), ..Figures::default() };
        Some(Outcome { end: End::Exited(0), figures, ..Outcome::not_started(String::new()) })
    }

    #[test]
    fn figures_are_paired_by_rounds() {
        let places = [CommandCase { command: 0, case: 0 }, CommandCase { command: 1, case: 0 }];
        // Rounds drift by a factor of ten; the second command takes twice as long in each.
        let walls: Vec<f64> = (0..10).map(|round| 0.1 * 1.26f64.powi(round)).collect();
        let mut results = Results::default();
        results.outcomes.push(walls.iter().map(|&wall| outcome(wall, 1 << 20)).collect());
        results.outcomes.push(walls.iter().map(|&wall| outcome(2.0 * wall, 1 << 20)).collect());
        results.outcomes[0][3] = None;
        let comparison =
            Comparison::evaluate(vec!["x".into(), "y".into()], vec![String::new()], &places, &results, 1);
        let wall = comparison.metrics[0][&Metric::Wall].clone();
        let ratio = wall.ratios[1].unwrap();
        assert!((ratio.median - 2.0).abs() < 1e-9 && ratio.low.unwrap() > 1.99, "{ratio:?}");
        assert_eq!(wall.verdict(1), Verdict::More);
        assert_eq!(comparison.metrics[0][&Metric::HighWater].verdict(1), Verdict::Same);
        assert!(
            comparison.max_half_width(Metric::Wall) < 0.01
                && comparison.max_half_width(Metric::Cycles) == f64::INFINITY
        );
        assert!(comparison.ratio_confidence > 0.99, "two ratios hold together");
    }

    #[test]
    fn a_difference_of_a_tick_is_not_resolved() {
        let tick = clock_tick_seconds().unwrap();
        let compared_runs = |first: [f64; 10], second: [f64; 10]| {
            let places = [CommandCase { command: 0, case: 0 }, CommandCase { command: 1, case: 0 }];
            let run = |seconds: f64| {
                let figures = Figures { user_seconds: Some(seconds), ..Figures::default() };
                Some(Outcome { end: End::Exited(0), figures, ..Outcome::not_started(String::new()) })
            };
            let outcomes = vec![first.map(run).to_vec(), second.map(run).to_vec()];
            let results = Results { outcomes, ..Results::default() };
            let names = vec!["x".to_owned(), "y".to_owned()];
            let comparison = Comparison::evaluate(names, vec![String::new()], &places, &results, 1);
            comparison.metrics[0][&Metric::User].clone()
        };
        let compared = |first: f64, second: f64| compared_runs([first; 10], [second; 10]);
        let small = compared(tick / 4.0, tick);
        assert_eq!((small.verdict(1), small.unresolved_step(1)), (Verdict::Unknown, Some(tick)));
        let near = compared(100.0 * tick, 100.5 * tick);
        assert_eq!((near.verdict(1), near.unresolved_step(1)), (Verdict::Unknown, Some(tick)));
        let far = compared(100.0 * tick, 103.0 * tick);
        assert_eq!((far.verdict(1), far.unresolved_step(1)), (Verdict::More, None));
        let equal = compared(100.0 * tick, 100.0 * tick);
        assert_eq!((equal.verdict(1), equal.unresolved_step(1)), (Verdict::Same, None));
        // The runs vary by far more than a tick: an interval that contains 1 shows that.
        let noise =
            [90.0, 110.0, 92.0, 108.0, 94.0, 106.0, 96.0, 104.0, 98.0, 102.0].map(|ticks| ticks * tick);
        let mut other_noise = noise;
        other_noise.rotate_left(1);
        let noisy = compared_runs(noise, other_noise.map(|seconds| seconds + tick / 5.0));
        assert_eq!((noisy.verdict(1), noisy.unresolved_step(1)), (Verdict::Same, None));
    }

    #[test]
    fn a_case_without_a_counted_run_is_not_narrow() {
        let places = [
            CommandCase { command: 0, case: 0 },
            CommandCase { command: 1, case: 0 },
            CommandCase { command: 0, case: 1 },
            CommandCase { command: 1, case: 1 },
        ];
        let steady: Vec<_> = (0..10).map(|_| outcome(1.0, 1 << 20)).collect();
        let killed = || Outcome { end: End::Signalled(9), ..outcome(1.0, 1 << 20).unwrap() };
        let all_killed: Vec<_> = (0..10).map(|_| Some(killed())).collect();
        let results = |outcomes| Results { outcomes, ..Results::default() };
        let one_case = results(vec![steady.clone(), steady.clone()]);
        let no_case = results(vec![all_killed.clone(), all_killed.clone()]);
        let half = results(vec![steady.clone(), steady, all_killed.clone(), all_killed]);
        let mut judge = CompareJudge {
            may_fail: true,
            max_half_width: Some(0.5),
            places: &places,
            command_count: 2,
            case_count: 1,
            ..CompareJudge::default()
        };
        assert!(judge.has_enough_rounds(&one_case));
        assert!(!judge.has_enough_rounds(&no_case));
        judge.case_count = 2;
        assert!(!judge.has_enough_rounds(&half));
        let commands = vec!["x".to_owned(), "y".to_owned()];
        let cases = vec!["1".to_owned(), "2".to_owned()];
        let comparison = Comparison::evaluate(commands, cases, &places, &half, 1);
        assert_eq!(comparison.max_half_width(Metric::Wall), f64::INFINITY);
    }
}

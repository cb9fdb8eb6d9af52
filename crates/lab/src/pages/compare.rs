//! Document and page of a comparison.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;

use super::median_text;
use crate::cell::LabCaveat;
use crate::compare::{Comparison, FailedRuns, Metric, MetricComparison, letter};
use crate::nodes::NodeKind;
use crate::statistics::{Estimate, Ratio, Verdict};
use strandline_report::pages::environment_facts;
use strandline_report::pages::page::{
    Cell, Column, Page, Plot, PlotKind, Point, Section, Series, Table, Tone,
};
use strandline_report::text::{clean, counted};
use strandline_report::units::{self, UNKNOWN, bytes, percent_of, seconds, thousands};

/// With fewer rounds a caveat recommends more.
const FEW_ROUNDS: usize = 5;
/// Maximum number of differences in the headline.
const MAX_HEADLINE_DIFFERENCES: usize = 4;
/// Ratios closer to 1 are shown with six decimals: instruction counts differ in digits that three
/// decimals would hide.
const SMALL_DIFFERENCE: f64 = 0.0005;
/// Larger ratios are shown as this.
const MAX_SHOWN_RATIO: f64 = 1000.0;

/// Input of the document and the page.
pub struct CompareInput<'a> {
    /// The evaluated comparison.
    pub comparison: &'a Comparison,
    /// Variables set for each command, or removed where there is no value.
    pub environments: Vec<Vec<(String, Option<String>)>>,
    /// Number of warm-up rounds.
    pub warm_up: u32,
    /// Seed of the order of runs.
    pub seed: u64,
    /// Number of concurrent runs.
    pub jobs: u32,
    /// Why the machine cannot count instructions; `None` if it can.
    pub no_counters_reason: Option<String>,
    /// Whether cachegrind counted them instead.
    pub uses_cachegrind: bool,
    /// Number of rounds counted by cachegrind.
    pub cachegrind_rounds: u32,
    /// Subjects run by a shell.
    pub shell_subjects: &'a [String],
    /// Failed runs by subject name.
    pub failures: Vec<(String, FailedRuns)>,
    /// Requested half width of the interval of wall time's ratio.
    pub max_half_width: Option<f64>,
    /// Those of [`LabSetup::caveats`](crate::setup::LabSetup::caveats).
    pub lab_caveats: Vec<LabCaveat>,
    /// Kinds of machines that ran it, if runs were made elsewhere.
    pub nodes: Vec<NodeKind>,
}

/// The document of a comparison.
#[derive(Serialize)]
pub struct Document {
    runs: usize,
    warm_up: u32,
    seed: u64,
    /// `different` if any metric differs, else `same` if any verdict is known, else `unknown`.
    verdict: &'static str,
    ratio_confidence: f64,
    commands: Vec<Value>,
    metrics: Map<String, Value>,
    cases: Vec<Value>,
    caveats: Vec<Caveat>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeKind>,
}

/// Builds the document.
pub fn document(input: &CompareInput<'_>) -> Document {
    let comparison = input.comparison;
    let commands = comparison.commands.iter().zip(&input.environments).enumerate();
    let commands = commands.map(|(number, (command, environment))| {
        let environment: BTreeMap<_, _> = environment.iter().cloned().collect();
        json!({ "key": key(number), "command": command, "environment": environment })
    });
    let cases = comparison.cases.iter().zip(&comparison.metrics);
    let cases = cases.filter(|(name, _)| !name.is_empty());
    Document {
        runs: comparison.rounds,
        warm_up: input.warm_up,
        seed: input.seed,
        verdict: verdict(comparison),
        ratio_confidence: comparison.ratio_confidence,
        commands: commands.collect(),
        metrics: comparison.metrics.first().map(metric_values).unwrap_or_default(),
        cases: cases
            .map(|(name, compared)| json!({ "name": name, "metrics": metric_values(compared) }))
            .collect(),
        caveats: caveats(input).into_iter().map(|caveat| caveat.of_verb("compare")).collect(),
        nodes: input.nodes.clone(),
    }
}

fn key(number: usize) -> String {
    letter(number).to_lowercase()
}

/// The figures of one case in the document.
fn metric_values(by_metric: &BTreeMap<Metric, MetricComparison>) -> Map<String, Value> {
    let value = |metric: Metric| match by_metric.get(&metric) {
        None => Value::Null,
        Some(compared) => {
            let mut value = Map::new();
            for (number, estimate) in compared.estimates.iter().enumerate() {
                value.insert(key(number), json!(estimate));
            }
            value.insert("ratio".to_owned(), json!(compared.ratios.get(1).copied().flatten()));
            value.insert("verdict".to_owned(), json!(compared.verdict(1)));
            let ratios = compared.ratios.iter().enumerate().skip(1);
            let ratios = ratios.map(|(number, ratio)| {
                (key(number), json!({ "ratio": ratio, "verdict": compared.verdict(number) }))
            });
            value.insert("ratios".to_owned(), Value::Object(ratios.collect()));
            Value::Object(value)
        }
    };
    Metric::ALL.into_iter().map(|metric| (metric.name().to_owned(), value(metric))).collect()
}

/// The verdict on one metric of a command in a case.
struct MetricVerdict {
    case: usize,
    metric: Metric,
    command: usize,
    verdict: Verdict,
}

impl MetricVerdict {
    fn differs(&self) -> bool {
        matches!(self.verdict, Verdict::More | Verdict::Less)
    }
}

fn verdicts(comparison: &Comparison) -> impl Iterator<Item = MetricVerdict> + '_ {
    comparison.metrics.iter().enumerate().flat_map(|(case, metrics)| {
        metrics.iter().flat_map(move |(&metric, compared)| {
            (1..compared.ratios.len()).map(move |command| {
                let verdict = compared.verdict(command);
                MetricVerdict { case, metric, command, verdict }
            })
        })
    })
}

/// The verdict on all metrics, as in [`Document::verdict`].
fn verdict(comparison: &Comparison) -> &'static str {
    if verdicts(comparison).any(|verdict| verdict.differs()) {
        return "different";
    }
    // CPU time too short to be counted does not cast doubt on the other metrics.
    let is_same = verdicts(comparison).any(|verdict| verdict.verdict == Verdict::Same);
    if is_same { "same" } else { "unknown" }
}

fn caveats(input: &CompareInput<'_>) -> Vec<LabCaveat> {
    let mut caveats = counting_caveats(input);
    caveats.extend(round_caveats(input));
    let failures = input.failures.iter();
    caveats.extend(
        failures.map(|(name, failed)| LabCaveat::new("failed_runs", failed_runs_text(name, *failed))),
    );
    caveats.extend(input.lab_caveats.iter().cloned());
    caveats.extend(input.comparison.outliers.iter().map(|text| LabCaveat::new("outliers", text.as_str())));
    caveats
}

/// Caveats on how instructions and times are counted.
fn counting_caveats(input: &CompareInput<'_>) -> Vec<LabCaveat> {
    let mut caveats = Vec::new();
    if let Some(why) = &input.no_counters_reason {
        caveats.push(if input.uses_cachegrind {
            let runs = counted(u64::from(input.cachegrind_rounds), "more run");
            let text = format!(
                "instructions are counted by valgrind's cachegrind, in {runs} of each command; cycles are not counted: {why}"
            );
            LabCaveat::new("instructions_by_cachegrind", text)
        } else {
            let text = format!(
                "instructions and cycles are not counted: {why}; --instructions counts instructions in valgrind"
            );
            LabCaveat::new("no_counters", text)
        });
    }
    let has_zeros = |metric: &Metric| {
        let compared = input.comparison.metrics.iter().filter_map(|metrics| metrics.get(metric));
        let mut estimates = compared.flat_map(|compared| compared.estimates.iter().flatten());
        estimates.any(|estimate| estimate.samples.contains(&0.0))
    };
    if [Metric::User, Metric::System].iter().any(has_zeros) {
        let text = "runs were so short that the kernel's clock tick split their processor time between user and \
                    system by chance; wall time is exact";
        caveats.push(LabCaveat::new("short_runs", text));
    }
    if !input.shell_subjects.is_empty() {
        let names = input.shell_subjects.join(", ");
        let text = format!("{names}: run by `sh -c`; every figure includes the start of that shell");
        caveats.push(LabCaveat::new("run_by_shell", text));
    }
    caveats
}

/// Caveats on the number of rounds, and on concurrent runs.
fn round_caveats(input: &CompareInput<'_>) -> Vec<LabCaveat> {
    let mut caveats = Vec::new();
    if input.jobs > 1 {
        let text = format!("{} runs at a time shared the machine: times are unreliable", input.jobs);
        caveats.push(LabCaveat::new("runs_at_once", text));
    }
    if input.comparison.rounds < FEW_ROUNDS {
        let rounds = counted(input.comparison.rounds as u64, "round");
        let text = format!("with {rounds} only large differences can be detected; --repeat 10 or more");
        caveats.push(LabCaveat::new("few_runs", text));
    }
    if let Some(max_half_width) = input.max_half_width {
        let half_width = input.comparison.max_half_width(Metric::Wall);
        if half_width > max_half_width {
            let width = if half_width.is_finite() {
                format!("still ±{}", percent_of(half_width))
            } else {
                "unknown".to_owned()
            };
            let text = format!(
                "the interval of wall time's ratio is {width} after {} (--until {})",
                counted(input.comparison.rounds as u64, "round"),
                percent_of(max_half_width)
            );
            caveats.push(LabCaveat::new("not_narrow", text));
        }
    }
    caveats
}

fn failed_runs_text(name: &str, FailedRuns { counted_runs, excluded_runs }: FailedRuns) -> String {
    let failed = counted(u64::from(counted_runs + excluded_runs), "run");
    let killed = "ended by a signal or the timeout";
    match (counted_runs, excluded_runs) {
        (_, 0) => format!("{name}: {failed} failed; the figures include all of them"),
        (0, _) => format!("{name}: {failed} failed, {killed}; the figures exclude all of them"),
        _ => format!("{name}: {failed} failed; the figures exclude the {excluded_runs} {killed}"),
    }
}

/// Builds the page.
pub fn page(input: &CompareInput<'_>) -> Page {
    let comparison = input.comparison;
    let mut sections = vec![legend_section(comparison)];
    if comparison.cases.len() > 1 || comparison.cases.iter().any(|case| !case.is_empty()) {
        sections.push(cases_section(comparison));
    }
    for (case, name) in comparison.cases.iter().enumerate() {
        sections.push(case_section(comparison, case, name));
    }
    Page {
        title: format!(
            "compare: {}",
            comparison.commands.iter().map(|text| clean(text)).collect::<Vec<_>>().join(" | ")
        ),
        headline: headline(comparison),
        sections,
        caveats: caveats(input).into_iter().map(|caveat| caveat.text).collect(),
        environment: environment_facts(&Environment::read()),
    }
}

/// The sentence with the first differences, or that there are none.
fn headline(comparison: &Comparison) -> String {
    let differences: Vec<String> = verdicts(comparison)
        .filter(MetricVerdict::differs)
        .filter_map(|MetricVerdict { case, metric, command, .. }| {
            let ratio = comparison.metrics.get(case)?.get(&metric)?.ratios.get(command).copied()??;
            let case = comparison.cases.get(case).filter(|case| !case.is_empty());
            let case = case.map(|case| format!(" in {}", clean(case))).unwrap_or_default();
            // High-water mark reads as "takes more memory".
            let figure = if metric == Metric::HighWater { "memory" } else { title(metric) };
            Some(format!("{} takes {} {figure}{case}", letter(command), change_in_words(&ratio)))
        })
        .collect();
    let joint = "99 % joint confidence";
    match (verdict(comparison), differences.as_slice()) {
        ("unknown", _) => "Unknown: too few rounds.".to_owned(),
        (_, []) => format!("Same: no figure differs ({} rounds, {joint}).", comparison.rounds),
        (_, differences) => {
            let hidden_count = differences.len().saturating_sub(MAX_HEADLINE_DIFFERENCES);
            let suffix = if hidden_count > 0 { format!("; and {hidden_count} more") } else { String::new() };
            format!(
                "{}{suffix} ({} rounds, {joint}).",
                differences.iter().take(MAX_HEADLINE_DIFFERENCES).cloned().collect::<Vec<_>>().join("; "),
                comparison.rounds
            )
        }
    }
}

/// A ratio in words, for example "12.3 % more".
fn change_in_words(ratio: &Ratio) -> String {
    if ratio.median >= 2.0 {
        return format!("{:.2} times as much", ratio.median);
    }
    let word = if ratio.median >= 1.0 { "more" } else { "less" };
    format!("{} {word}", percent_of((ratio.median - 1.0).abs()))
}

/// Name of a metric in sentences and tables.
fn title(metric: Metric) -> &'static str {
    match metric {
        Metric::Wall => "wall time",
        Metric::User => "user time",
        Metric::System => "system time",
        Metric::HighWater => "high-water mark",
        Metric::MinorFaults => "minor faults",
        Metric::Instructions => "instructions",
        Metric::Cycles => "cycles",
    }
}

/// Table of the commands by their letters.
fn legend_section(comparison: &Comparison) -> Section {
    let rows = comparison.commands.iter().enumerate();
    let rows = rows
        .map(|(number, command)| vec![Cell::plain(letter(number)), Cell::plain(clean(command))])
        .collect();
    let columns = vec![Column::new("", false), Column::new("command", false)];
    Section { tables: vec![Table { caption: String::new(), columns, rows }], ..Section::default() }
}

/// One table for each metric with cases as columns: medians, then percentages of the first command.
fn cases_section(comparison: &Comparison) -> Section {
    let mut columns = vec![Column::new("", false)];
    columns.extend(comparison.cases.iter().map(|case| Column::new(clean(case), true)));
    let compared = |case: usize, metric: Metric| comparison.metrics.get(case)?.get(&metric);
    let cases = 0..comparison.cases.len();
    let metrics =
        Metric::ALL.into_iter().filter(|&metric| cases.clone().any(|case| compared(case, metric).is_some()));
    let tables = metrics.map(|metric| {
        let mut rows = Vec::new();
        for command in 0..comparison.commands.len() {
            let mut row = vec![Cell::plain(letter(command))];
            row.extend(cases.clone().map(|case| median_cell(metric, compared(case, metric), command)));
            rows.push(row);
        }
        for command in 1..comparison.commands.len() {
            let mut row = vec![Cell::plain(ratio_title(command))];
            row.extend(cases.clone().map(|case| match compared(case, metric) {
                Some(compared) => {
                    ratio_cell(metric, compared, command, |ratio| format!("{:.0}%", ratio.median * 100.0))
                }
                None => Cell::plain(UNKNOWN),
            }));
            rows.push(row);
        }
        let caption = format!("{} (lower is better)", title(metric));
        Table { caption, columns: columns.clone(), rows }
    });
    Section { heading: "Cases".to_owned(), tables: tables.collect(), ..Section::default() }
}

/// Table of one case with metrics as rows.
fn case_section(comparison: &Comparison, case: usize, name: &str) -> Section {
    let Some(metrics) = comparison.metrics.get(case) else { return Section::default() };
    let mut columns = vec![Column::new("", false)];
    let commands = 0..comparison.commands.len();
    columns.extend(commands.clone().map(|command| Column::new(letter(command), true)));
    for command in commands.clone().skip(1) {
        columns.push(Column::new(ratio_title(command), true));
        columns.push(Column::new("interval", false));
        columns.push(Column::new("", false));
    }
    let rows = metrics.iter().map(|(&metric, compared)| {
        let mut row = vec![Cell::plain(title(metric).to_owned())];
        row.extend(commands.clone().map(|command| median_cell(metric, Some(compared), command)));
        for command in commands.clone().skip(1) {
            row.push(ratio_cell(metric, compared, command, |ratio| format_ratio(ratio.median)));
            row.push(Cell::plain(interval(compared, command)));
            row.push(verdict_cell(compared.verdict(command)));
        }
        row
    });
    let table = Table { caption: String::new(), columns, rows: rows.collect() };
    let heading = if name.is_empty() { "Figures".to_owned() } else { format!("Case {}", clean(name)) };
    let plots = [Metric::Wall, Metric::HighWater].into_iter();
    let plots = plots.filter_map(|metric| metrics.get(&metric).map(|compared| strips_plot(metric, compared)));
    Section { heading, tables: vec![table], plots: plots.collect(), ..Section::default() }
}

/// Plot of every run of a metric, side by side for each command.
fn strips_plot(metric: Metric, compared: &MetricComparison) -> Plot {
    let series = compared.estimates.iter().enumerate().filter_map(|(number, estimate)| {
        let estimate: &Estimate = estimate.as_ref()?;
        let points = estimate.samples.iter().map(|&y| Point { x: number as f64, y }).collect();
        Some(Series { name: letter(number), points, ..Series::default() })
    });
    Plot {
        title: format!("{}, every run", title(metric)),
        y_label: if metric == Metric::Wall { "seconds".to_owned() } else { String::new() },
        kind: PlotKind::Strips,
        y_is_bytes: metric == Metric::HighWater,
        series: series.collect(),
        x_names: (0..compared.estimates.len()).map(letter).collect(),
        ..Plot::default()
    }
}

/// Title of the ratio of a command to the first one.
fn ratio_title(command: usize) -> String {
    format!("{}/{}", letter(command), letter(0))
}

fn median_cell(metric: Metric, compared: Option<&MetricComparison>, command: usize) -> Cell {
    let estimate = compared.and_then(|compared| compared.estimates.get(command)?.as_ref());
    Cell::plain(median_text(estimate, |median| format_value(metric, median)))
}

/// A value of a metric with its unit.
fn format_value(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Wall | Metric::User | Metric::System => seconds(value),
        Metric::HighWater => bytes(value.round() as u64),
        Metric::MinorFaults | Metric::Instructions | Metric::Cycles => thousands(value.round() as u64),
    }
}

/// The interval of a ratio, unless the accounting step hides the difference.
fn interval(compared: &MetricComparison, command: usize) -> String {
    // The cell of the ratio has the accounting step: both must fit in 80 columns.
    if compared.unresolved_step(command).is_some() {
        return "below resolution".to_owned();
    }
    match compared.ratios.get(command).copied().flatten() {
        Some(Ratio { low: Some(low), high: Some(high), .. }) => {
            format!("{} – {}", format_ratio(low), format_ratio(high))
        }
        _ => UNKNOWN.to_owned(),
    }
}

/// A ratio, with the decimals that matter.
fn format_ratio(ratio: f64) -> String {
    if ratio >= MAX_SHOWN_RATIO {
        format!("> {MAX_SHOWN_RATIO}")
    } else if ratio != 1.0 && (ratio - 1.0).abs() < SMALL_DIFFERENCE {
        format!("{ratio:.6}")
    } else {
        units::ratio(ratio)
    }
}

/// A ratio in the form of `text`, or the accounting step if that hides the difference.
fn ratio_cell(
    metric: Metric,
    compared: &MetricComparison,
    command: usize,
    text: impl Fn(&Ratio) -> String,
) -> Cell {
    let ratio = compared.ratios.get(command).copied().flatten();
    let text = match (compared.unresolved_step(command), ratio) {
        (Some(step), _) => format!("within {}", format_value(metric, step)),
        (None, Some(ratio)) => text(&ratio),
        (None, None) => UNKNOWN.to_owned(),
    };
    Cell { text, tone: tone(compared.verdict(command)) }
}

fn verdict_cell(verdict: Verdict) -> Cell {
    let text = match verdict {
        Verdict::Same => "same",
        Verdict::More => "more",
        Verdict::Less => "less",
        Verdict::Unknown => "unknown",
    };
    Cell { text: text.to_owned(), tone: tone(verdict) }
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Same | Verdict::Unknown => Tone::Faint,
        Verdict::More => Tone::Bad,
        Verdict::Less => Tone::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::estimate;

    #[test]
    fn a_difference_below_the_resolution_has_no_ratio() {
        let compared = MetricComparison {
            estimates: [0.1, 0.102].map(|seconds| estimate(&[seconds; 10], 0.95, 1)).to_vec(),
            ratios: vec![None, Some(Ratio { median: 1.02, low: Some(1.01), high: Some(1.03) })],
            accounting_step: Some(0.004),
        };
        assert_eq!(interval(&compared, 1), "below resolution");
        let cell = ratio_cell(Metric::User, &compared, 1, |_| "a ratio".to_owned());
        assert_eq!(cell.text, format!("within {}", seconds(0.004)));
    }

    #[test]
    fn failed_runs_count_unless_they_were_cut_short() {
        let text =
            |counted_runs, excluded_runs| failed_runs_text("A", FailedRuns { counted_runs, excluded_runs });
        assert_eq!(text(2, 0), "A: 2 runs failed; the figures include all of them");
        assert_eq!(
            text(0, 1),
            "A: 1 run failed, ended by a signal or the timeout; the figures exclude all of them"
        );
        assert_eq!(
            text(1, 2),
            "A: 3 runs failed; the figures exclude the 2 ended by a signal or the timeout"
        );
    }
}

//! Document and page of a trial.

use serde::Serialize;
use serde_json::{Value, json};
use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;

use super::trial_caveats::{all_results, caveats};
use super::{figure_column, ids_by_text, median_text};
use crate::nodes::NodeKind;
use crate::statistics::Ratio;
use crate::trial::catalogue::Candidate;
use crate::trial::observation::{SecondsRange, SettledSource};
use crate::trial::paste::{Paste, paste};
use crate::trial::rank::{self, Goal, Status};
use crate::trial::tries::{self, BASELINE, Figure, NotApplicable, Trial, Tried, TriedSetting, TryResult};
use strandline_report::pages::environment_facts;
use strandline_report::pages::page::{
    Cell, Column, Fact, Page, Plot, PlotKind, Point, Section, Series, Snippet, Table, Tone,
};
use strandline_report::text::{clean, clean_sentence, command_line, counted};
use strandline_report::units::{UNKNOWN, bytes, percent_of, seconds, thousands};

/// A candidate with an undecided interval is worth more rounds if its median is below this fraction
/// of the median without settings.
const UNDECIDED_MAX_RATIO: f64 = 0.95;
/// A smaller candidate than the best is named only if it takes longer than the best by more than
/// this factor.
const NEGLIGIBLE_TIME_FACTOR: f64 = 1.02;
/// Median time ratios that are not worth a number.
const SAME_TIME: std::ops::RangeInclusive<f64> = 0.97..=1.03;
/// Maximum number of candidates whose setting and cost are listed, best first.
const MAX_LISTED_SETTINGS: usize = 12;

/// The document of a trial.
#[derive(Serialize)]
pub struct Document {
    runs: usize,
    command: Vec<String>,
    mode: &'static str,
    /// Source of the settled figures: `mark`, `exit`, `level`, `top`, `sample` or `load`.
    settled_at: SettledSource,
    goal: Goal,
    baseline: Value,
    candidates: Vec<Value>,
    /// Id of the best candidate, or null.
    best: Option<String>,
    paste: Option<Paste>,
    pareto: Vec<String>,
    pairs: Vec<String>,
    not_applicable: Vec<NotApplicable>,
    caveats: Vec<Caveat>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeKind>,
}

/// Builds the document.
pub fn document(trial: &Trial) -> Document {
    let best = trial.best();
    let mut baseline = figures(&trial.baseline);
    if let Value::Object(fields) = &mut baseline {
        fields.insert("executable".to_owned(), json!(trial.observation.executable));
        let names: Vec<_> = trial.observation.allocators.iter().map(|mapped| &mapped.name).collect();
        fields.insert("allocators".to_owned(), json!(names));
        fields.insert("runtimes".to_owned(), json!(trial.observation.runtimes));
    }
    Document {
        runs: trial.rounds,
        command: trial.command.clone(),
        mode: if trial.is_server { "server" } else { "batch" },
        settled_at: trial.observation.settled_source,
        goal: trial.goal,
        baseline,
        candidates: trial.ranked().map(|tried| candidate(tried, trial.status(tried))).collect(),
        best: best.map(|tried| tried.setting.id.clone()),
        paste: best.map(|tried| paste(&tried.setting.applied, &trial.command, trial.program.as_deref())),
        pareto: trial.front(),
        pairs: pairs(trial),
        not_applicable: trial.not_applicable.clone(),
        caveats: caveats(trial).into_iter().map(|caveat| caveat.of_verb("try")).collect(),
        nodes: trial.nodes.clone(),
    }
}

fn pairs(trial: &Trial) -> Vec<String> {
    let ids = trial.tried.iter().map(|tried| tried.setting.id.clone());
    ids.filter(|id| id.contains('+')).collect()
}

/// The figures of a try in the document.
fn figures(result: &TryResult) -> Value {
    json!({
        "peak_bytes": result.peak.estimate,
        "settled_bytes": result.settled.estimate,
        "wall_seconds": result.wall.estimate,
        "minor_faults": result.faults.estimate,
        "settled_seconds": result.settled_seconds,
        "ended_with_bytes": result.ended_with_bytes,
    })
}

/// A tried candidate in the document.
fn candidate(Tried { setting, result }: &Tried, status: Status) -> Value {
    let mut value = figures(result);
    let settled = result.settled.estimate.as_ref().map(|estimate| estimate.median.round() as u64);
    let details = json!({
        "id": setting.id,
        "title": setting.title,
        "kind": setting.kind,
        "setting": setting.applied.setting(),
        "ratios": {
            "peak_bytes": result.peak.ratio,
            "settled_bytes": result.settled.ratio,
            "wall_seconds": result.wall.ratio,
            "minor_faults": result.faults.ratio,
        },
        "status": status,
        "reason": result.failure,
        "before_end_bytes": result.ended_with_bytes.and(settled),
        "known_cost": setting.cost,
        "source": setting.source,
    });
    if let (Value::Object(value), Value::Object(details)) = (&mut value, details) {
        value.extend(details);
    }
    value
}

/// Builds the page.
pub fn page(trial: &Trial) -> Page {
    let mut sections = vec![results_section(trial)];
    sections.extend(trial.best().map(|best| paste_section(trial, &best.setting)));
    sections.extend(failed_section(trial));
    sections.extend(not_tried_section(trial));
    sections.extend(settings_section(trial));
    let mut environment = environment_facts(&Environment::read());
    let allocators = trial.observation.allocator_names();
    environment.push(Fact::new("allocator without settings", clean(&allocators)));
    let runtimes = trial.observation.runtimes.iter();
    let runtimes: Vec<String> = runtimes
        .map(|runtime| format!("{} {}", runtime.name, runtime.version.as_deref().unwrap_or(UNKNOWN)))
        .collect();
    if !runtimes.is_empty() {
        environment.push(Fact::new("runtime", clean(&runtimes.join(", "))));
    }
    Page {
        title: format!("try: {}", command_line(&trial.command)),
        headline: headline(trial),
        sections,
        caveats: caveats(trial).iter().map(|caveat| clean_sentence(&caveat.text)).collect(),
        environment,
    }
}

/// The sentences on the best candidate, or on what was found instead.
fn headline(trial: &Trial) -> String {
    let verb = if trial.goal == Goal::Peak { "peaks at" } else { "leaves" };
    let before = trial.baseline.goal_figure(trial.goal);
    let Some(best) = trial.best() else {
        let count = trial.tried.len();
        return match undecided(trial) {
            Some(Tried { setting, result }) => format!(
                "{} {verb} {} instead of {} in the median, but {} cannot separate that from chance: use more (--repeat). \
                 {count} tried.",
                setting.id,
                size(result.goal_figure(trial.goal)),
                size(before),
                counted(trial.rounds as u64, "round"),
            ),
            None => format!(
                "Nothing that was tried is better: without settings it {verb} {} ({count} tried).",
                size(before)
            ),
        };
    };
    let after = best.result.goal_figure(trial.goal);
    let saving =
        after.ratio.map(|ratio| format!(", {} less", percent_of(1.0 - ratio.median))).unwrap_or_default();
    let time = best.result.wall.ratio.map(|ratio| format!("; it takes {}", time_in_words(&ratio, trial)));
    let time = time.unwrap_or_default();
    let id = &best.setting.id;
    let sentence = format!("{id} {verb} {} instead of {}{saving}{time}.", size(after), size(before));
    match runner_up(trial, best) {
        Some(runner_up) => format!("{sentence} {runner_up}"),
        None => sentence,
    }
}

/// The undecided candidate with the smallest median, if it is worth more rounds.
fn undecided(trial: &Trial) -> Option<&Tried> {
    let median = |result: &TryResult| result.goal_figure(trial.goal).median();
    let max_median = median(&trial.baseline)? * UNDECIDED_MAX_RATIO;
    let same = trial.tried.iter().filter(|tried| trial.status(tried) == Status::Same);
    let with_median = same.filter_map(|tried| Some((median(&tried.result)?, tried)));
    let small = with_median.filter(|(median, _)| *median < max_median);
    small.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, tried)| tried)
}

/// A sentence on a candidate that is smaller than the best but takes more time, if there is one.
fn runner_up(trial: &Trial, best: &Tried) -> Option<String> {
    let smallest = trial.ranked().find(|tried| trial.status(tried) == Status::Better)?;
    let Tried { setting, result: smaller } = smallest;
    let median = |result: &TryResult| result.goal_figure(trial.goal).median();
    let saved_bytes = median(&best.result)? - median(smaller)?;
    let time_factor = smaller.wall.median()? / best.result.wall.median()?;
    // Not worth naming if barely smaller or no slower.
    let is_negligible = saved_bytes <= tries::RESOLUTION_BYTES || time_factor <= NEGLIGIBLE_TIME_FACTOR;
    if setting.id == best.setting.id || is_negligible {
        return None;
    }
    let saved = bytes(saved_bytes.round() as u64);
    Some(format!("{} leaves only {saved} less, in {time_factor:.2} times the time.", setting.id))
}

/// Describes a time ratio: "as long, as far as is known", "1.90 times as long", "12 % less
/// time". Says so where the interval contains 1.
fn time_in_words(ratio: &Ratio, trial: &Trial) -> String {
    let rounds = counted(trial.rounds as u64, "round");
    let doubt = |high: f64| {
        let may_exceed = trial.goal == Goal::TimeBounded && high > rank::MAX_TIME_RATIO;
        if may_exceed { format!(" (could be up to {high:.2} times: {rounds})") } else { String::new() }
    };
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) if low <= 1.0 && 1.0 <= high => {
            let (median, doubt_text) = (ratio.median, doubt(high));
            if SAME_TIME.contains(&median) {
                format!("as long, as far as is known{doubt_text}")
            } else {
                format!("{median:.2} times as long, though {rounds} cannot distinguish it from 1{doubt_text}")
            }
        }
        (None, _) | (_, None) => format!("{:.2} times as long, of {rounds}", ratio.median),
        (_, Some(high)) if ratio.median >= 1.0 => {
            format!("{:.2} times as long{}", ratio.median, doubt(high))
        }
        _ => format!("{} less time", percent_of(1.0 - ratio.median)),
    }
}

/// The tables of all settings.
fn results_section(trial: &Trial) -> Section {
    let front = trial.front();
    let time = if trial.is_server { "load" } else { "time" };
    let mut columns = vec![Column::new("setting", false)];
    let mut other_columns = columns.clone();
    columns.extend(["settled", "× (interval)", time, "× (interval)"].map(figure_column));
    columns.push(Column::new("", false));
    other_columns.extend(["peak", "× (interval)", "faults", "× (interval)"].map(figure_column));
    // If all figures are from the same moment, only the caption names it.
    if all_results(trial).any(|(_, result)| result.settled_seconds.is_some() || result.lacks_level) {
        other_columns.push(Column::new("settled at", true));
    }
    let diamond = |id: &str| if front.iter().any(|listed| listed == id) { " ◆" } else { "" };
    let mut rows = vec![row(BASELINE, &trial.baseline, None, diamond(BASELINE))];
    let mut other_rows = vec![other_row(BASELINE, &trial.baseline)];
    for tried in trial.ranked().filter(|tried| trial.status(tried) != Status::Failed) {
        let Tried { setting, result } = tried;
        rows.push(row(&setting.id, result, Some(trial.status(tried)), diamond(&setting.id)));
        other_rows.push(other_row(&setting.id, result));
    }
    let mut paragraphs = vec![format!(
        "{}. ×: to the runs without settings, round by round, {}; intervals of a column hold together with \
         95 %. ◆: no other leaves less memory in less time.",
        settled_in_words(trial),
        counted(trial.rounds as u64, "round")
    )];
    if trial.goal == Goal::TimeBounded {
        paragraphs.push(format!(
            "Only settings that take at most {} times as long in the median count as better; the interval shows how much \
             longer it could be.",
            rank::MAX_TIME_RATIO
        ));
    }
    let main_table = Table { caption: String::new(), columns, rows };
    let other_table =
        Table { caption: "What else changed".to_owned(), columns: other_columns, rows: other_rows };
    Section {
        heading: "What was tried".to_owned(),
        paragraphs,
        tables: vec![main_table, other_table],
        plots: vec![plot(trial)],
        ..Section::default()
    }
}

/// Describes which memory counts as settled, and when.
fn settled_in_words(trial: &Trial) -> String {
    let process = trial.observation.name().map_or("the largest process".to_owned(), |name| clean(&name));
    match trial.observation.settled_source {
        SettledSource::Load if trial.observation.processes > 1 => {
            "settled: resident memory of its processes after the load, what they share counted once"
                .to_owned()
        }
        SettledSource::Load => format!("settled: resident memory of {process} after the load"),
        SettledSource::Mark => format!("settled: resident memory of {process} at its last mark"),
        SettledSource::Sample => {
            "settled: resident memory of the largest process at its last sample".to_owned()
        }
        SettledSource::Exit | SettledSource::Level | SettledSource::Top => {
            match trial.baseline.settled_seconds {
                Some(SecondsRange { from, to }) => format!(
                    "settled: resident memory of {process} on the level it held before it began to end (from {from:.2} to \
                 {to:.2} s without settings)"
                ),
                None if trial.baseline.lacks_level => {
                    format!("settled: resident memory of {process} as it began to fall before the end")
                }
                None => format!("settled: resident memory of {process} as it ended"),
            }
        }
    }
}

/// Row of a setting in the first table: settled memory and time. `suffix` follows the status.
fn row(id: &str, result: &TryResult, status: Option<Status>, suffix: &str) -> Vec<Cell> {
    let (text, tone) = match status {
        Some(Status::Better) => ("better", Tone::Good),
        Some(Status::Worse) => ("worse", Tone::Bad),
        Some(Status::Same) => ("same", Tone::Faint),
        Some(Status::Failed) => ("failed", Tone::Bad),
        None => ("", Tone::Plain),
    };
    vec![
        Cell::plain(clean(id)),
        Cell::plain(size(&result.settled)),
        Cell { text: format_ratio(&result.settled), tone },
        Cell::plain(median_text(result.wall.estimate.as_ref(), seconds)),
        Cell::plain(format_ratio(&result.wall)),
        Cell { text: format!("{text}{suffix}").trim().to_owned(), tone },
    ]
}

/// Row of a setting in the second table: what else changed.
fn other_row(id: &str, result: &TryResult) -> Vec<Cell> {
    vec![
        Cell::plain(clean(id)),
        Cell::plain(size(&result.peak)),
        Cell::plain(format_ratio(&result.peak)),
        Cell::plain(median_text(result.faults.estimate.as_ref(), |faults| thousands(faults.round() as u64))),
        Cell::plain(format_ratio(&result.faults)),
        Cell::plain(settled_time(result)),
    ]
}

/// When the process was at its settled level.
fn settled_time(result: &TryResult) -> String {
    match (result.settled_seconds, result.lacks_level) {
        (Some(SecondsRange { from, to }), _) => format!("{from:.2}–{to:.2} s"),
        (None, true) => "no level".to_owned(),
        (None, false) => "its end".to_owned(),
    }
}

fn size(figure: &Figure) -> String {
    median_text(figure.estimate.as_ref(), |median| bytes(median.round() as u64))
}

/// A ratio and its interval, such as "0.15 (.14–.16)".
fn format_ratio(figure: &Figure) -> String {
    let Some(ratio) = figure.ratio else { return String::new() };
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => {
            format!("{} ({}–{})", format_median(ratio.median), format_bound(low), format_bound(high))
        }
        _ => format!("{} (?)", format_median(ratio.median)),
    }
}

fn format_median(value: f64) -> String {
    if is_hidden_by_two_decimals(value) { "<.01".to_owned() } else { format!("{value:.2}") }
}

fn is_hidden_by_two_decimals(value: f64) -> bool {
    value > 0.0 && value < 0.005
}

/// An interval bound in two digits: the table must fit in 80 columns.
fn format_bound(value: f64) -> String {
    match value {
        _ if is_hidden_by_two_decimals(value) => "<.01".to_owned(),
        ..0.995 => format!("{value:.2}").trim_start_matches('0').to_owned(),
        ..9.95 => format!("{value:.1}"),
        ..999.5 => format!("{value:.0}"),
        _ => "1000+".to_owned(),
    }
}

/// Plot of all settings: settled memory over time.
fn plot(trial: &Trial) -> Plot {
    let successful = all_results(trial).filter(|(_, result)| result.failure.is_none());
    let (labels, points) = successful
        .filter_map(|(id, result)| {
            let point = Point { x: result.wall.median()?, y: result.settled.median()? };
            Some((id.to_owned(), point))
        })
        .unzip();
    Plot {
        title: "Settled memory and time".to_owned(),
        x_label: "seconds".to_owned(),
        y_label: "settled memory".to_owned(),
        kind: PlotKind::Points,
        y_is_bytes: true,
        series: vec![Series { name: "settings".to_owned(), points, labels, ..Series::default() }],
        ..Plot::default()
    }
}

/// The setting in the forms that start programs.
fn paste_section(trial: &Trial, setting: &TriedSetting) -> Section {
    let Paste { shell, systemd, docker, kubernetes } =
        paste(&setting.applied, &trial.command, trial.program.as_deref());
    let snippets =
        [("Shell", shell), ("systemd", systemd), ("Dockerfile", docker), ("Kubernetes", kubernetes)];
    Section {
        heading: format!("To paste: {}", setting.id),
        paragraphs: vec![clean_sentence(&format!("{}. Known cost: {}.", setting.title, setting.cost))],
        snippets: snippets.into_iter().map(|(name, text)| Snippet::new(name, text)).collect(),
        ..Section::default()
    }
}

fn failed_section(trial: &Trial) -> Option<Section> {
    let failed = trial.tried.iter();
    let failed = failed.filter_map(|tried| Some((&*tried.setting.id, tried.result.failure.as_deref()?)));
    reasons_section("Failed", failed)
}

fn not_tried_section(trial: &Trial) -> Option<Section> {
    let reasons = trial.not_applicable.iter().map(|candidate| (&*candidate.id, &*candidate.reason));
    reasons_section("Not tried", reasons)
}

/// A section of ids, grouped by their reason; `None` if there are none.
fn reasons_section<'a>(heading: &str, reasons: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Section> {
    let paragraphs: Vec<String> = ids_by_text(reasons)
        .iter()
        .map(|(reason, ids)| format!("{}: {}.", clean(&ids.join(", ")), clean_sentence(reason)))
        .collect();
    (!paragraphs.is_empty()).then(|| Section {
        heading: heading.to_owned(),
        paragraphs,
        ..Section::default()
    })
}

/// What each better candidate sets, and its known cost.
fn settings_section(trial: &Trial) -> Option<Section> {
    let better: Vec<&Tried> = trial.ranked().filter(|tried| trial.status(tried) == Status::Better).collect();
    let (listed, unlisted) = better.split_at(better.len().min(MAX_LISTED_SETTINGS));
    let mut paragraphs: Vec<String> = listed
        .iter()
        .map(|Tried { setting: TriedSetting { id, applied, cost, .. }, .. }| {
            format!("{}: {}. Known cost: {}.", clean(id), clean(&applied.setting()), clean(cost))
        })
        .collect();
    if !unlisted.is_empty() {
        paragraphs.push(format!("{} more; --json has all.", thousands(unlisted.len() as u64)));
    }
    let heading = "What the better ones set".to_owned();
    (!paragraphs.is_empty()).then(|| Section { heading, paragraphs, ..Section::default() })
}

/// Page of the catalogue, for `--list`.
pub fn catalogue_page(candidates: &[Candidate]) -> Page {
    let paragraph = |candidate: &Candidate| {
        let mut targets: Vec<&str> =
            candidate.runtime.iter().chain(&candidate.allocator).map(String::as_str).collect();
        if targets.is_empty() {
            targets.push("any program");
        }
        let text = format!(
            "{} ({}): {}. {}; known cost: {}.",
            candidate.id,
            targets.join(", "),
            candidate.setting(),
            candidate.title,
            candidate.cost
        );
        clean(&text)
    };
    Page {
        title: "try: the candidates".to_owned(),
        headline: format!("{} candidates; --catalogue FILE adds to them.", candidates.len()),
        sections: vec![Section {
            paragraphs: candidates.iter().map(paragraph).collect(),
            ..Section::default()
        }],
        ..Page::default()
    }
}

/// Document of the catalogue.
#[derive(Serialize)]
pub struct CatalogueDocument {
    candidates: Vec<Value>,
}

/// Builds the document of the catalogue, for `--list --json`.
pub fn catalogue_document(candidates: &[Candidate]) -> CatalogueDocument {
    let item = |candidate: &Candidate| {
        json!({
            "id": candidate.id,
            "title": candidate.title,
            "kind": candidate.kind,
            "allocators": candidate.allocator,
            "runtimes": candidate.runtime,
            "setting": candidate.setting(),
            "known_cost": candidate.cost,
            "source": candidate.source,
        })
    };
    CatalogueDocument { candidates: candidates.iter().map(item).collect() }
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;

//! Checks the consistency of a study: axes, choices, metrics and placeholders exist, derived
//! metrics are not cyclic, and every claim can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strandline_inspect::ledger::rows;
use strandline_inspect::readers::RUNTIMES;
use strandline_inspect::remedy::applicable;

use super::build::axis_variable;
use super::check_metrics::{self, NamedMetrics};
use super::check_shown;
use super::claim::{self, TryOutcome};
use super::expression::{Expression, unknown_metric_text};
use super::file::{Claim, DerivedDefinition, Measurement, Need, SUBJECT, Study, Subject};
use super::matrix::Matrix;
use super::metric::{self, MAX_METRICS, Metric, TOTALS};
use super::nearest::nearest;
use super::parse::OWN_PLACEHOLDERS;
use super::placeholders::placeholders;
use super::problems::Problems;

/// Once the claims of a study have taken this many steps, the remaining ones are only parsed.
const MAX_STUDY_STEPS: u64 = 10_000_000;
/// Part of [`MAX_METRICS`] for the metrics that every run has.
const COMMON_METRICS: usize = 100;
/// Maximum number of metrics that a study names.
const MAX_NAMED_METRICS: usize = MAX_METRICS - COMMON_METRICS;

/// Whether claims are checked: trying them on random data takes time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ClaimCheck {
    Full,
    None,
}

/// Checks `study`, sets its metrics and sorts its derived metrics.
pub fn study(study: &mut Study, claim_check: ClaimCheck, problems: &mut Problems) {
    check_axes(study, problems);
    check_short_axes(study, problems);
    check_subjects(study, problems);
    check_common_placeholders(study, problems);
    check_measures(study, problems);
    check_derived(study, problems);
    check_metrics::set_metrics(study, problems);
    let matrix = Arc::new(Matrix::full(Arc::new(study.clone())));
    for exclusion in &study.exclusions {
        check_shown::check_selection(&exclusion.selection, &matrix, exclusion.offset, problems);
    }
    check_shown::check_tables_and_plots(study, &matrix, problems);
    if problems.is_empty() && claim_check == ClaimCheck::Full {
        check_claims(study, &matrix, problems);
    }
}

/// Checks the axes: their variables, the names of their choices, and their defaults.
fn check_axes(study: &Study, problems: &mut Problems) {
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for axis in &study.axes {
        let variable = axis_variable(&axis.name);
        if let Some(other_axis) = variables.get(&variable) {
            let text = format!("[axes]: `{other_axis}` and `{}` have one variable, {variable}", axis.name);
            problems.add(axis.offset, text);
        }
        variables.entry(variable).or_insert(&axis.name);
        if let Some(choice) = axis.choices.iter().find(|choice| choice.name.contains(',')) {
            let text = format!("[axes] {}: {}", axis.name, comma_problem(&choice.name));
            problems.add(axis.offset, text);
        }
        // A set, because an axis may have very many choices.
        let choice_names: BTreeSet<&str> = axis.choices.iter().map(|choice| choice.name.as_str()).collect();
        for name in axis.default.iter().filter(|name| !choice_names.contains(name.as_str())) {
            problems.add(
                axis.offset,
                format!("[axes] {}: `default` names `{name}`, which is not a value", axis.name),
            );
        }
    }
}

/// Checks the axes and choices of the short form.
fn check_short_axes(study: &Study, problems: &mut Problems) {
    for (name, choices) in study.short.iter().flat_map(|short| &short.axes) {
        let axis = study.axis(name);
        if axis.is_none() && name != SUBJECT {
            problems.add(0, format!("[short] axes: there is no axis `{name}`"));
        }
        let exists = |choice: &String| match axis {
            Some(axis) => axis.choice(choice).is_some(),
            None => name != SUBJECT || study.subjects.iter().any(|subject| subject.name == *choice),
        };
        for choice in choices.iter().filter(|choice| !exists(choice)) {
            problems.add(0, format!("[short] axes: `{name}` has no value `{choice}`"));
        }
    }
}

fn comma_problem(name: &str) -> String {
    format!("`{name}` has a comma, which separates names in --axis; give it another `name`")
}

/// Checks the names, axes and placeholders of subjects.
fn check_subjects(study: &Study, problems: &mut Problems) {
    let mut unique_names = BTreeSet::new();
    for subject in &study.subjects {
        if subject.name.contains(',') {
            problems.add(subject.offset, format!("[[subject]]: {}", comma_problem(&subject.name)));
        }
        if !unique_names.insert(subject.name.as_str()) {
            problems.add(subject.offset, format!("[[subject]]: `{}` is defined twice", subject.name));
        }
        for axis in subject.axes.iter().filter(|axis| study.axis(axis).is_none()) {
            let text = format!("[[subject]] {}: there is no axis `{axis}`", subject.name);
            problems.add(subject.offset, text);
        }
        check_subject_placeholders(subject, problems);
    }
}

/// Checks the placeholders of one subject: each is one of its axes or one that every study has.
fn check_subject_placeholders(subject: &Subject, problems: &mut Problems) {
    let variables = subject.environment.iter().filter_map(|variable| variable.value.as_ref());
    let needs =
        subject.needs.iter().flat_map(|need| need.probe_command().into_iter().flatten().chain([&need.name]));
    let words = subject.command.iter().chain(subject.build.iter().flatten()).chain(variables).chain(needs);
    let mut unknown = BTreeSet::new();
    for name in words.flat_map(|word| placeholders(word)) {
        if !OWN_PLACEHOLDERS.contains(&name) && !subject.axes.iter().any(|axis| axis == name) {
            unknown.insert(name.to_owned());
        }
    }
    for name in unknown {
        let hint = placeholder_hint(&name, subject.axes.iter().map(String::as_str));
        let text = format!(
            "[[subject]] {}: {{{name}}} is not an axis of it, nor {{dir}}, {{build}} or {{probes}}; {hint}",
            subject.name
        );
        problems.add(subject.offset, text);
    }
}

/// Suggests what to write instead of the unknown placeholder `name`.
fn placeholder_hint<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, candidates) {
        Some(near) => format!("did you mean {{{near}}}?"),
        None => format!("write {{{{{name}}}}} for the braces themselves"),
    }
}

/// Checks the placeholders in settings for all subjects and in choices.
fn check_common_placeholders(study: &Study, problems: &mut Problems) {
    let is_known = |name: &str| OWN_PLACEHOLDERS.contains(&name) || study.axis(name).is_some();
    let mut check = |title: &str, offset: usize, texts: &mut dyn Iterator<Item = &String>| {
        for name in texts.flat_map(|text| placeholders(text)).filter(|name| !is_known(name)) {
            let names = study.axes.iter().map(|axis| axis.name.as_str()).chain(OWN_PLACEHOLDERS);
            let hint = placeholder_hint(name, names);
            problems.add(
                offset,
                format!("{title}: {{{name}}} is not an axis, nor {{dir}}, {{build}} or {{probes}}; {hint}"),
            );
        }
    };
    let variables = study.settings.environment.iter().filter_map(|variable| variable.value.as_ref());
    check("[settings] environment", 0, &mut variables.into_iter());
    for axis in &study.axes {
        for choice in &axis.choices {
            let variables = choice.environment.iter().filter_map(|variable| variable.value.as_ref());
            let title = format!("[axes] {}: {}", axis.name, choice.name);
            let needs = choice.needs.iter().filter_map(Need::probe_command).flatten();
            check(&title, axis.offset, &mut variables.chain(&choice.preload).chain(needs));
        }
    }
}

/// Checks what is measured, of the study and of subjects with measurements of their own.
fn check_measures(study: &Study, problems: &mut Problems) {
    // If every subject has its own, that of the study applies to none.
    let is_used = study.subjects.iter().any(|subject| subject.measure.is_none());
    if is_used || study.subjects.is_empty() {
        check_measure(&study.measure, "[measure]", 0, problems);
    }
    for subject in &study.subjects {
        if let Some(subject_measure) = &subject.measure {
            let title = format!("[[subject]] {}: measure", subject.name);
            check_measure(subject_measure, &title, subject.offset, problems);
        }
    }
    if study.derived.len() > MAX_NAMED_METRICS {
        problems.add(0, format!("[metrics]: more than {MAX_NAMED_METRICS} metrics"));
    }
}

/// Checks columns, moments and rows; `title` is the name of the table in problems.
fn check_measure(measure: &Measurement, title: &str, offset: usize, problems: &mut Problems) {
    for column in &measure.columns {
        if !metric::columns().any(|listed| listed == column) && !metric::is_status_line(column) {
            problems.add(
                offset,
                format!(
                    "{title} columns: `{column}` is not a column; there are {}, and the Vm…, Rss… and Hugetlb… lines",
                    metric::columns().collect::<Vec<_>>().join(", ")
                ),
            );
        }
    }
    for moment in &measure.ledger_moments {
        let has_own_meaning = ["exit", "peak"].contains(&moment.as_str());
        let is_mark = measure.marks.contains(moment);
        if has_own_meaning && is_mark {
            let text = format!("{title} at: `{moment}` has its own meaning; name the mark otherwise");
            problems.add(offset, text);
        }
        if !has_own_meaning && !is_mark {
            problems.add(offset, format!("{title} at: `{moment}` is neither a mark nor exit nor peak"));
        }
    }
    for row in measure.rows.iter().filter(|row| !is_row(row)) {
        let hint = match nearest(row, rows::ids().chain(TOTALS)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}, and the ledger's rows, such as kernel.zero", TOTALS.join(", ")),
        };
        problems.add(offset, format!("{title} rows: `{row}` is not a row; {hint}"));
    }
    let count =
        measure.marks.len() * measure.columns.len() + measure.ledger_moments.len() * measure.rows.len();
    if count + measure.json.len() + measure.texts.len() > MAX_NAMED_METRICS {
        problems.add(offset, format!("{title}: more than {MAX_NAMED_METRICS} metrics"));
    }
}

/// Whether `name` is a row of the ledger, a total, a figure of a runtime that is read, or a remedy.
fn is_row(name: &str) -> bool {
    let runtime = name.strip_prefix("runtime.").and_then(|path| path.split_once('.'));
    let is_read =
        |runtime: &str| RUNTIMES.iter().any(|entry| entry.about.name == runtime && entry.reader.is_some());
    let remedy = name.strip_prefix("remedy.");
    runtime.is_some_and(|(runtime, _)| is_read(runtime))
        || remedy.is_some_and(|id| applicable().iter().any(|applicable| applicable.id == id))
        || rows::ids().any(|id| id == name)
        || TOTALS.contains(&name)
}

/// Checks derived metrics, and sorts them so that each comes after those that it reads.
fn check_derived(study: &mut Study, problems: &mut Problems) {
    let measured_metrics: BTreeMap<String, Metric> = study
        .subjects
        .iter()
        .flat_map(|subject| NamedMetrics::new(study.measure_of(subject), &[]).metrics)
        .collect();
    let names: BTreeSet<&str> = study.derived.iter().map(|derived| derived.name.as_str()).collect();
    let mut inputs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for derived in &study.derived {
        let offset = derived.expression.offset;
        let title = format!("[metrics] {}", derived.name);
        let expression = match Expression::parse(&derived.expression.value, &|_| None, &[]) {
            Ok(expression) => expression,
            Err(errors) => {
                for error in &errors {
                    problems.add_in_string(offset, error.offset, format!("{title}: {error}"));
                }
                continue;
            }
        };
        if expression.scan.has_reads {
            problems.add(offset, format!("{title}: it is computed for one run: write metric(\"METRIC\")"));
        }
        if expression.scan.metrics.is_empty() {
            problems.add(offset, format!("{title}: it reads no metric: write metric(\"METRIC\")"));
        }
        for name in &expression.scan.metrics {
            if matches!(measured_metrics.get(name), Some(Metric::Text(_))) {
                problems.add(offset, format!("{title}: `{name}` is a text; nothing can be derived from it"));
            }
            if !measured_metrics.contains_key(name) && !names.contains(name.as_str()) {
                problems.add(offset, format!("{title}: there is no metric `{name}`"));
            }
        }
        inputs.insert(derived.name.clone(), expression.scan.metrics);
    }
    study.derived = sort_by_inputs(std::mem::take(&mut study.derived), &inputs, problems);
}

/// Returns `derived` with each metric after its `inputs`; metrics of a cycle come last.
fn sort_by_inputs(
    derived: Vec<DerivedDefinition>,
    inputs: &BTreeMap<String, BTreeSet<String>>,
    problems: &mut Problems,
) -> Vec<DerivedDefinition> {
    let mut sorted: Vec<DerivedDefinition> = Vec::new();
    let mut waiting = derived;
    while !waiting.is_empty() {
        let names: BTreeSet<String> = waiting.iter().map(|derived| derived.name.clone()).collect();
        let (ready, later): (Vec<DerivedDefinition>, Vec<DerivedDefinition>) = waiting
            .into_iter()
            .partition(|derived| inputs.get(&derived.name).is_none_or(|inputs| inputs.is_disjoint(&names)));
        if ready.is_empty() {
            let names: Vec<&str> = later.iter().map(|derived| derived.name.as_str()).collect();
            let offset = later.first().map_or(0, |derived| derived.expression.offset);
            problems.add(
                offset,
                format!("[metrics]: a cycle: each of {} reads another of them", names.join(", ")),
            );
            sorted.extend(later);
            break;
        }
        sorted.extend(ready);
        waiting = later;
    }
    sorted
}

/// Checks that each claim can be evaluated and that it can fail.
fn check_claims(study: &Study, matrix: &Arc<Matrix>, problems: &mut Problems) {
    let mut steps = 0;
    let numbered_matrix = Matrix::full_with_numbers(matrix.study.clone()).map(Arc::new);
    for claim in &study.claims {
        let Some(expression) = parse_claim(claim, matrix, problems) else { continue };
        if steps > MAX_STUDY_STEPS {
            continue;
        }
        let mut outcome = claim::try_on_random_data(claim, &expression, matrix, &mut steps);
        // The choices that a user will supply may be numbers.
        if outcome != TryOutcome::CanFail
            && let Some(numbers) = &numbered_matrix
        {
            let with_numbers = claim::try_on_random_data(claim, &expression, numbers, &mut steps);
            let is_better = match with_numbers {
                TryOutcome::CanFail => true,
                TryOutcome::Wrong(_) => false,
                _ => matches!(outcome, TryOutcome::Wrong(_)),
            };
            outcome = if is_better { with_numbers } else { outcome };
        }
        let problem = match outcome {
            TryOutcome::CanFail | TryOutcome::Unknown => continue,
            TryOutcome::AlwaysHolds => {
                "it holds whatever is measured: it cannot fail, so it claims nothing".to_owned()
            }
            TryOutcome::NeverHolds if expression.is_one_comparison() => {
                "it fails whatever is measured: nothing that could be measured makes it true".to_owned()
            }
            TryOutcome::NeverHolds => continue,
            TryOutcome::Wrong(reason) => reason,
        };
        problems.add(claim.holds.offset, format!("[[claim]] {}: {problem}", claim.id));
    }
}

/// Parses a claim and checks the names in it. Returns `None`, having added the problems, if it
/// cannot be tried.
fn parse_claim(claim: &Claim, matrix: &Matrix, problems: &mut Problems) -> Option<Expression> {
    let study = &matrix.study;
    let offset = claim.holds.offset;
    let line = |text: &str| format!("[[claim]] {}: {text}", claim.id);
    let expression = match claim::parse(claim, matrix) {
        Ok(expression) => expression,
        Err(errors) => {
            for error in &errors {
                problems.add_in_string(offset, error.offset, line(&error.text));
            }
            return None;
        }
    };
    if !expression.scan.has_reads {
        let text = "it reads nothing that is measured: a claim compares figures such as median(\"high_water_bytes\")";
        problems.add(offset, line(text));
        return None;
    }
    let is_unknown = |axis: &&String| *axis != SUBJECT && study.axis(axis).is_none();
    let unknown_axes: Vec<&String> = expression.scan.axes.iter().filter(is_unknown).collect();
    if !unknown_axes.is_empty() {
        for axis in unknown_axes {
            problems.add(offset, line(&format!("there is no axis `{axis}`")));
        }
        return None;
    }
    // Names that are built during evaluation end with a dot here, and are checked then.
    let unknown = expression.scan.metrics.iter().find(|name| !study.metrics.contains_key(*name));
    if let Some(name) = unknown.filter(|name| !name.ends_with('.')) {
        problems.add(offset, line(&unknown_metric_text(name, matrix)));
        return None;
    }
    Some(expression)
}

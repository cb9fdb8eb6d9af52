//! Checks the consistency of a study: axes, choices, metrics and placeholders exist, derived
//! metrics are not cyclic, and every claim can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strandline_inspect::readers::RUNTIMES;
use strandline_inspect::remedy::applicable;

use super::build::axis_variable;
use super::claim::{self, TryOutcome};
use super::expression::{Expression, unknown_metric};
use super::file::{Derived, Measurement, Need, SUBJECT, Study};
use super::matrix::{Matrix, placeholders};
use super::metric::{self, MAX_METRICS, Metric, TOTALS};
use super::nearest::nearest;
use super::parse::{ALL_AXES, OWN_PLACEHOLDERS};
use super::problems::Problems;
use super::{check_metrics, check_shown};

/// Once the claims of a study have taken this many steps, the remaining ones are only parsed.
const MAX_STEPS: u64 = 10_000_000;

/// Checks `study` and completes it: fills in its metrics, and the axes of subjects that use all of
/// them.
///
/// Claims are checked only if `with_claims`, because evaluating them takes time.
pub fn study(study: &mut Study, with_claims: bool, problems: &mut Problems) {
    axes(study, problems);
    subjects(study, problems);
    placeholders_of_all(study, problems);
    measures(study, problems);
    derived(study, problems);
    check_metrics::metrics(study, problems);
    let matrix = Arc::new(Matrix::full(Arc::new(study.clone())));
    for exclusion in &study.exclusions {
        check_shown::selection(&exclusion.given, &matrix, exclusion.offset, problems);
    }
    check_shown::results(study, &matrix, problems);
    if problems.is_empty() && with_claims {
        claims(study, &matrix, problems);
    }
}

fn axes(study: &Study, problems: &mut Problems) {
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for axis in &study.axes {
        let variable = axis_variable(&axis.name);
        if let Some(other) = variables.get(&variable) {
            let text = format!("[axes]: `{other}` and `{}` have one variable, {variable}", axis.name);
            problems.add(axis.offset, text);
        }
        variables.entry(variable).or_insert(&axis.name);
        if let Some(choice) = axis.choices.iter().find(|choice| choice.name.contains(',')) {
            let text = format!("[axes] {}: {}", axis.name, no_comma(&choice.name));
            problems.add(axis.offset, text);
        }
        // An axis may have very many choices.
        let known: BTreeSet<&str> = axis.choices.iter().map(|choice| choice.name.as_str()).collect();
        for name in axis.default.iter().filter(|name| !known.contains(name.as_str())) {
            problems.add(
                axis.offset,
                format!("[axes] {}: `default` names `{name}`, which is not a value", axis.name),
            );
        }
    }
    for (name, choices) in study.short.iter().flat_map(|short| &short.axes) {
        let axis = study.axis(name);
        if axis.is_none() && name != SUBJECT {
            problems.add(0, format!("[short] axes: there is no axis `{name}`"));
        }
        let is_there = |choice: &String| match axis {
            Some(axis) => axis.choice(choice).is_some(),
            None => name != SUBJECT || study.subjects.iter().any(|subject| subject.name == *choice),
        };
        for choice in choices.iter().filter(|choice| !is_there(choice)) {
            problems.add(0, format!("[short] axes: `{name}` has no value `{choice}`"));
        }
    }
}

/// The problem text for a name with a comma.
fn no_comma(name: &str) -> String {
    format!("`{name}` has a comma, which separates names in --axis; give it another `name`")
}

fn subjects(study: &mut Study, problems: &mut Problems) {
    let all: Vec<String> = study.axes.iter().map(|axis| axis.name.clone()).collect();
    let mut seen = BTreeSet::new();
    for subject in &mut study.subjects {
        if subject.name.contains(',') {
            problems.add(subject.offset, format!("[[subject]]: {}", no_comma(&subject.name)));
        }
        if !seen.insert(subject.name.clone()) {
            problems.add(subject.offset, format!("[[subject]]: `{}` is defined twice", subject.name));
        }
        if subject.axes.iter().any(|axis| axis == ALL_AXES) {
            subject.axes.clone_from(&all);
        }
        let what = format!("[[subject]] {}", subject.name);
        for axis in subject.axes.iter().filter(|axis| !all.contains(axis)) {
            problems.add(subject.offset, format!("{what}: there is no axis `{axis}`"));
        }
        let variables = subject.environment.iter().filter_map(|variable| variable.value.as_ref());
        let needs = subject
            .needs
            .iter()
            .flat_map(|need| need.probe_command().into_iter().flatten().chain([&need.name]));
        let words =
            subject.command.iter().chain(subject.build.iter().flatten()).chain(variables).chain(needs);
        let mut unknown = BTreeSet::new();
        for name in words.flat_map(|word| placeholders(word)) {
            if !OWN_PLACEHOLDERS.contains(&name) && !subject.axes.iter().any(|axis| axis == name) {
                unknown.insert(name.to_owned());
            }
        }
        for name in unknown {
            let hint = match nearest(&name, subject.axes.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {{{near}}}?"),
                None => format!("write {{{{{name}}}}} for the braces themselves"),
            };
            problems.add(
                subject.offset,
                format!(
                    "{what}: {{{name}}} is not an axis of it, nor {{dir}}, {{build}} or {{probes}}; {hint}"
                ),
            );
        }
    }
}

/// Checks the placeholders in settings for all subjects and in choices.
fn placeholders_of_all(study: &Study, problems: &mut Problems) {
    let known = |name: &str| OWN_PLACEHOLDERS.contains(&name) || study.axis(name).is_some();
    let mut look = |what: &str, offset: usize, texts: &mut dyn Iterator<Item = &String>| {
        for name in texts.flat_map(|text| placeholders(text)).filter(|name| !known(name)) {
            let names = study.axes.iter().map(|axis| axis.name.as_str()).chain(OWN_PLACEHOLDERS);
            let hint = match nearest(name, names) {
                Some(near) => format!("did you mean {{{near}}}?"),
                None => format!("write {{{{{name}}}}} for the braces themselves"),
            };
            problems.add(
                offset,
                format!("{what}: {{{name}}} is not an axis, nor {{dir}}, {{build}} or {{probes}}; {hint}"),
            );
        }
    };
    let variables = study.settings.environment.iter().filter_map(|variable| variable.value.as_ref());
    look("[settings] environment", 0, &mut variables.into_iter());
    for axis in &study.axes {
        for choice in &axis.choices {
            let variables = choice.environment.iter().filter_map(|variable| variable.value.as_ref());
            let what = format!("[axes] {}: {}", axis.name, choice.name);
            let needs = choice.needs.iter().filter_map(Need::probe_command).flatten();
            look(&what, axis.offset, &mut variables.chain(&choice.preload).chain(needs));
        }
    }
}

fn measures(study: &Study, problems: &mut Problems) {
    let is_used = study.subjects.iter().any(|subject| subject.measure.is_none());
    if is_used || study.subjects.is_empty() {
        measure(&study.measure, "[measure]", 0, problems);
    }
    for subject in &study.subjects {
        if let Some(own) = &subject.measure {
            let what = format!("[[subject]] {}: measure", subject.name);
            measure(own, &what, subject.offset, problems);
        }
    }
    if study.derived.len() > MAX_METRICS - 100 {
        problems.add(0, format!("[metrics]: more than {}", MAX_METRICS - 100));
    }
}

fn measure(measure: &Measurement, what: &str, offset: usize, problems: &mut Problems) {
    for column in &measure.columns {
        let is_kernels = ["Vm", "Rss", "Hugetlb"].iter().any(|begin| column.starts_with(begin));
        if !metric::columns().any(|known| known == column) && !is_kernels {
            problems.add(
                offset,
                format!(
                    "{what} columns: `{column}` is not a column; there are {}, and the Vm… lines",
                    metric::columns().collect::<Vec<_>>().join(", ")
                ),
            );
        }
    }
    for moment in &measure.ledger_moments {
        let has_own_meaning = ["exit", "peak"].contains(&moment.as_str());
        let is_mark = measure.marks.contains(moment);
        if has_own_meaning && is_mark {
            let text = format!("{what} at: `{moment}` has its own meaning; name the mark otherwise");
            problems.add(offset, text);
        }
        if !has_own_meaning && !is_mark {
            problems.add(offset, format!("{what} at: `{moment}` is neither a mark nor exit nor peak"));
        }
    }
    for row in &measure.rows {
        let ids = strandline_inspect::ledger::rows::ids;
        let runtime = row.strip_prefix("runtime.").and_then(|row| row.split_once('.')).map(|(name, _)| name);
        let is_read =
            |name: &str| RUNTIMES.iter().any(|entry| entry.about.name == name && entry.reader.is_some());
        let of_runtime = runtime.is_some_and(is_read);
        let of_remedy =
            row.strip_prefix("remedy.").is_some_and(|id| applicable().iter().any(|one| one.0 == id));
        if !of_runtime && !of_remedy && !ids().any(|id| id == row) && !TOTALS.contains(&row.as_str()) {
            let hint = match nearest(row, ids().chain(TOTALS)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!("there are {}, and the ledger's rows, such as kernel.zero", TOTALS.join(", "))
                }
            };
            problems.add(offset, format!("{what} rows: `{row}` is not a row; {hint}"));
        }
    }
    let count =
        measure.marks.len() * measure.columns.len() + measure.ledger_moments.len() * measure.rows.len();
    if count + measure.json.len() + measure.texts.len() > MAX_METRICS - 100 {
        problems.add(offset, format!("{what}: more than {} metrics", MAX_METRICS - 100));
    }
}

/// Sorts derived metrics so that each comes after those that it reads.
fn derived(study: &mut Study, problems: &mut Problems) {
    let given: BTreeMap<String, Metric> = study
        .subjects
        .iter()
        .flat_map(|subject| check_metrics::named_metrics(study.measure_of(subject), &[]).0)
        .collect();
    let names: BTreeSet<&str> = study.derived.iter().map(|derived| derived.name.as_str()).collect();
    let mut reads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for derived in &study.derived {
        let at = derived.expression.offset;
        let what = format!("[metrics] {}", derived.name);
        let expression = match Expression::parse(&derived.expression.value, &|_| None, &[]) {
            Ok(expression) => expression,
            Err(wrong) => {
                wrong
                    .iter()
                    .for_each(|wrong| problems.add_in_string(at, wrong.at, format!("{what}: {wrong}")));
                continue;
            }
        };
        if expression.scan.reads {
            problems.add(at, format!("{what}: it is of one run: write metric(\"METRIC\")"));
        }
        if expression.scan.metrics.is_empty() {
            problems.add(at, format!("{what}: it reads no metric: write metric(\"METRIC\")"));
        }
        for name in &expression.scan.metrics {
            if matches!(given.get(name), Some(Metric::Text(_))) {
                problems.add(at, format!("{what}: `{name}` is a text; nothing can be derived from it"));
            }
            if !given.contains_key(name) && !names.contains(name.as_str()) {
                problems.add(at, format!("{what}: there is no metric `{name}`"));
            }
        }
        reads.insert(derived.name.clone(), expression.scan.metrics);
    }
    let mut ordered: Vec<Derived> = Vec::new();
    let mut waiting = std::mem::take(&mut study.derived);
    while !waiting.is_empty() {
        let is_waiting = |name: &String| waiting.iter().any(|derived| derived.name == *name);
        let (ready, later): (Vec<Derived>, Vec<Derived>) = waiting
            .iter()
            .cloned()
            .partition(|derived| !reads.get(&derived.name).is_some_and(|reads| reads.iter().any(is_waiting)));
        if ready.is_empty() {
            let names: Vec<&str> = later.iter().map(|derived| derived.name.as_str()).collect();
            let at = later.first().map_or(0, |derived| derived.expression.offset);
            problems
                .add(at, format!("[metrics]: a cycle: each of {} reads another of them", names.join(", ")));
            ordered.extend(later);
            break;
        }
        ordered.extend(ready);
        waiting = later;
    }
    study.derived = ordered;
}

fn claims(study: &Study, matrix: &Arc<Matrix>, problems: &mut Problems) {
    let mut steps = 0;
    let with_numbers = Matrix::full_with_numbers(matrix.study.clone()).map(Arc::new);
    for claim in &study.claims {
        let at = claim.holds.offset;
        let expression = match claim::parse(claim, matrix) {
            Ok(expression) => expression,
            Err(wrong) => {
                let line = |text: &str| format!("[[claim]] {}: {text}", claim.id);
                wrong.iter().for_each(|wrong| problems.add_in_string(at, wrong.at, line(&wrong.text)));
                continue;
            }
        };
        let mut add = |line: &str| problems.add(at, format!("[[claim]] {}: {line}", claim.id));
        if !expression.scan.reads {
            add(
                "it reads nothing that is measured: a claim compares figures such as median(\"high_water_bytes\")",
            );
            continue;
        }
        let unknown = |axis: &&String| *axis != SUBJECT && study.axis(axis).is_none();
        let unknown: Vec<&String> = expression.scan.axes.iter().filter(unknown).collect();
        for axis in &unknown {
            add(&format!("there is no axis `{axis}`"));
        }
        let metrics = expression.scan.metrics.iter();
        // Names that are built during evaluation are checked then.
        let wrong: Vec<&String> = metrics.filter(|name| !study.metrics.contains_key(*name)).collect();
        if let Some(name) = wrong.first()
            && unknown.is_empty()
            && !name.ends_with('.')
        {
            add(&unknown_metric(name, matrix));
            continue;
        }
        if !unknown.is_empty() {
            continue;
        }
        if steps > MAX_STEPS {
            continue;
        }
        let mut tried = claim::try_on_random_data(claim, &expression, matrix, &mut steps);
        // The choices that a user will supply may be numbers.
        if tried != TryOutcome::CanFail
            && let Some(numbers) = &with_numbers
        {
            let again = claim::try_on_random_data(claim, &expression, numbers, &mut steps);
            let is_better = again == TryOutcome::CanFail || matches!(tried, TryOutcome::Wrong(_));
            tried = if is_better && !matches!(again, TryOutcome::Wrong(_)) { again } else { tried };
        }
        match tried {
            TryOutcome::CanFail | TryOutcome::Unknown => {}
            TryOutcome::AlwaysHolds => {
                add("it holds whatever is measured: it cannot fail, so it claims nothing")
            }
            TryOutcome::NeverHolds if expression.is_one_comparison() => {
                add("it fails whatever is measured: nothing that could be measured makes it true");
            }
            TryOutcome::NeverHolds => {}
            TryOutcome::Wrong(why) => add(&why),
        }
    }
}

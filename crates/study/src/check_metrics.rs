//! Collects the metrics of the subjects of a study, and checks for duplicate names and for names
//! that are a text in one subject and a figure in another.

use std::collections::{BTreeMap, BTreeSet};

use super::expression::Expression;
use super::file::{Derived, Measurement, Study, Subject};
use super::metric::{ENDS, FIGURES, MAX_METRICS, Metric};
use super::problems::Problems;

/// Sets the metrics of each subject, and of the study as their union.
pub fn metrics(study: &mut Study, problems: &mut Problems) {
    let mut twice = BTreeSet::new();
    let mut subjects = std::mem::take(&mut study.subjects);
    for subject in &mut subjects {
        let (metrics, double) = named_metrics(study.measure_of(subject), &study.derived);
        twice.extend(double);
        subject.metrics = metrics;
        // A derived metric is dropped if the subject lacks one of its inputs.
        for derived in &study.derived {
            let scan = Expression::parse(&derived.expression.value, &|_| None, &[]).map(|known| known.scan);
            let reads = scan.map(|scan| scan.metrics).unwrap_or_default();
            if !reads.iter().all(|name| subject.metrics.contains_key(name)) {
                subject.metrics.remove(&derived.name);
            }
        }
        let new = subject.metrics.iter().map(|(name, metric)| (name.clone(), metric.clone()));
        study.metrics.extend(new);
    }
    check_one_type(&subjects, problems);
    study.subjects = subjects;
    for name in twice {
        let offset = study.derived.iter().find(|derived| derived.name == name);
        let offset = offset.map_or(0, |derived| derived.expression.offset);
        problems.add(offset, format!("there are two metrics called `{name}`"));
    }
    if study.subjects.iter().map(|subject| subject.metrics.len()).sum::<usize>() > MAX_METRICS {
        problems.add(0, format!("the subjects have more than {MAX_METRICS} metrics together"));
    }
}

/// Checks that each metric is a text in all subjects that have it, or a figure in all.
fn check_one_type(subjects: &[Subject], problems: &mut Problems) {
    let mut first: BTreeMap<&str, (&Subject, bool)> = BTreeMap::new();
    for subject in subjects {
        for (name, metric) in &subject.metrics {
            let is_text = matches!(metric, Metric::Text(_));
            let (other, was_text) = *first.entry(name).or_insert((subject, is_text));
            if is_text != was_text {
                let (text, figure) = if is_text { (subject, other) } else { (other, subject) };
                problems.add(
                    subject.offset,
                    format!(
                        "`{name}` is a text of the subject `{}` and a figure of `{}`: give one another name",
                        text.name, figure.name
                    ),
                );
            }
        }
    }
}

/// Every metric by name, and the names used by two metrics.
pub fn named_metrics(measure: &Measurement, derived: &[Derived]) -> (BTreeMap<String, Metric>, Vec<String>) {
    let mut metrics = BTreeMap::new();
    let mut twice = Vec::new();
    let mut add = |name: String, metric: Metric| {
        if metrics.len() >= MAX_METRICS {
            return;
        }
        if metrics.insert(name.clone(), metric).is_some() {
            twice.push(name);
        }
    };
    for name in FIGURES {
        add(name.to_owned(), Metric::Figure);
    }
    for name in ENDS {
        add(name.to_owned(), Metric::End);
    }
    for name in &measure.marks {
        for column in &measure.columns {
            let (mark, occurrence) = occurrence(name);
            add(format!("{name}.{column}"), Metric::Mark { mark, occurrence, column: column.clone() });
        }
    }
    for name in &measure.ledger_moments {
        for row in &measure.rows {
            let (at, occurrence) = occurrence(name);
            add(format!("{name}.{row}"), Metric::Row { at, occurrence, row: row.clone() });
        }
    }
    for name in &measure.json {
        add(name.clone(), Metric::Json(name.split('.').map(str::to_owned).collect()));
    }
    for name in &measure.texts {
        add(name.clone(), Metric::Text(name.split('.').map(str::to_owned).collect()));
    }
    for (index, derived) in derived.iter().enumerate() {
        add(derived.name.clone(), Metric::Derived(index));
    }
    (metrics, twice)
}

/// Splits off the occurrence: `freed#2` is the second mark named `freed`.
fn occurrence(name: &str) -> (String, usize) {
    match name.rsplit_once('#').and_then(|(mark, nth)| Some((mark, nth.parse::<usize>().ok()?))) {
        Some((mark, nth)) if nth > 0 => (mark.to_owned(), nth - 1),
        _ => (name.to_owned(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_metric_names_are_reported() {
        let measure = Measurement { json: vec!["wall_seconds".to_owned()], ..Measurement::default() };
        assert_eq!(named_metrics(&measure, &[]).1, ["wall_seconds"]);
    }
}

//! Collects the metrics of the subjects of a study, and checks for duplicate names and for names
//! that are a text in one subject and a figure in another.

use std::collections::BTreeMap;

use super::expression::Expression;
use super::file::{DerivedDefinition, Measurement, Study, Subject};
use super::metric::{ENDS, FIGURES, MAX_METRICS, MarkOccurrence, Metric};
use super::problems::Problems;

/// Sets the metrics of each subject, and of the study as their union.
pub fn set_metrics(study: &mut Study, problems: &mut Problems) {
    // `check` has reported the errors of an expression that cannot be parsed.
    let inputs_of = |derived: &DerivedDefinition| {
        let parsed = Expression::parse(&derived.expression.value, &|_| None, &[]);
        parsed.map(|expression| expression.scan.metrics).unwrap_or_default()
    };
    let inputs: Vec<_> = study.derived.iter().map(inputs_of).collect();
    // The offset of the first subject that has each duplicate.
    let mut duplicates = BTreeMap::new();
    let mut exceeds_limit = false;
    let mut subjects = std::mem::take(&mut study.subjects);
    for subject in &mut subjects {
        let named = NamedMetrics::new(study.measure_of(subject), &study.derived);
        for name in named.duplicates {
            duplicates.entry(name).or_insert(subject.offset);
        }
        exceeds_limit |= named.exceeds_limit;
        subject.metrics = named.metrics;
        // A derived metric is dropped if the subject lacks one of its inputs.
        for (derived, inputs) in study.derived.iter().zip(&inputs) {
            if !inputs.iter().all(|name| subject.metrics.contains_key(name)) {
                subject.metrics.remove(&derived.name);
            }
        }
        let copies = subject.metrics.iter().map(|(name, metric)| (name.clone(), metric.clone()));
        study.metrics.extend(copies);
    }
    check_types(&subjects, problems);
    study.subjects = subjects;
    for (name, subject_offset) in duplicates {
        let derived = study.derived.iter().find(|derived| derived.name == name);
        let offset = derived.map_or(subject_offset, |derived| derived.expression.offset);
        problems.add(offset, format!("there are two metrics called `{name}`"));
    }
    let total: usize = study.subjects.iter().map(|subject| subject.metrics.len()).sum();
    if exceeds_limit || total > MAX_METRICS {
        problems.add(0, format!("the subjects have more than {MAX_METRICS} metrics together"));
    }
}

/// Checks that each metric is a text in all subjects that have it, or a figure in all.
fn check_types(subjects: &[Subject], problems: &mut Problems) {
    let is_text = |subject: &Subject, name: &str| matches!(subject.metrics.get(name), Some(Metric::Text(_)));
    // The first subject that has each metric.
    let mut first_subjects: BTreeMap<&str, &Subject> = BTreeMap::new();
    for subject in subjects {
        for name in subject.metrics.keys() {
            let first_subject = *first_subjects.entry(name).or_insert(subject);
            let is_text_here = is_text(subject, name);
            if is_text_here != is_text(first_subject, name) {
                let (text, figure) =
                    if is_text_here { (subject, first_subject) } else { (first_subject, subject) };
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

/// The metrics that one measurement names.
#[derive(Default)]
pub struct NamedMetrics {
    /// At most [`MAX_METRICS`]; of two metrics with one name, the later.
    pub metrics: BTreeMap<String, Metric>,
    /// Names that more than one metric has.
    pub duplicates: Vec<String>,
    /// Whether there are more than [`MAX_METRICS`]; the last ones are then left out.
    pub exceeds_limit: bool,
}

impl NamedMetrics {
    /// Collects what `measure` names, and the `derived` metrics.
    pub fn new(measure: &Measurement, derived: &[DerivedDefinition]) -> Self {
        let mut named = Self::default();
        for name in FIGURES {
            named.add(name.to_owned(), Metric::Figure);
        }
        for name in ENDS {
            named.add(name.to_owned(), Metric::End);
        }
        for (name, column) in pairs(&measure.marks, &measure.columns) {
            let metric = Metric::Mark { mark: MarkOccurrence::parse(name), column: column.clone() };
            named.add(format!("{name}.{column}"), metric);
        }
        for (name, row) in pairs(&measure.ledger_moments, &measure.rows) {
            let metric = Metric::Row { at: MarkOccurrence::parse(name), row: row.clone() };
            named.add(format!("{name}.{row}"), metric);
        }
        let path = |name: &str| name.split('.').map(str::to_owned).collect();
        for name in &measure.json {
            named.add(name.clone(), Metric::Json(path(name)));
        }
        for name in &measure.texts {
            named.add(name.clone(), Metric::Text(path(name)));
        }
        for (index, derived) in derived.iter().enumerate() {
            named.add(derived.name.clone(), Metric::Derived(index));
        }
        named
    }

    fn add(&mut self, name: String, metric: Metric) {
        if self.metrics.len() >= MAX_METRICS && !self.metrics.contains_key(&name) {
            self.exceeds_limit = true;
        } else if self.metrics.insert(name.clone(), metric).is_some() {
            self.duplicates.push(name);
        }
    }
}

/// Each of `prefixes` with each of `suffixes`; at most one pair more than [`MAX_METRICS`], so that
/// [`NamedMetrics::add`] sets [`NamedMetrics::exceeds_limit`].
fn pairs<'a>(
    prefixes: &'a [String],
    suffixes: &'a [String],
) -> impl Iterator<Item = (&'a String, &'a String)> {
    prefixes
        .iter()
        .flat_map(move |prefix| suffixes.iter().map(move |suffix| (prefix, suffix)))
        .take(MAX_METRICS + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_metric_names_are_reported() {
        let measure = Measurement { json: vec!["wall_seconds".to_owned()], ..Measurement::default() };
        assert_eq!(NamedMetrics::new(&measure, &[]).duplicates, ["wall_seconds"]);
    }

    #[test]
    fn metrics_past_the_limit_are_reported() {
        let free = MAX_METRICS - FIGURES.len() - ENDS.len();
        let of = |count: usize| {
            let json = (0..count).map(|number| format!("figure.{number}")).collect();
            NamedMetrics::new(&Measurement { json, ..Measurement::default() }, &[])
        };
        assert!(!of(free).exceeds_limit);
        assert!(of(free + 1).exceeds_limit && of(free + 1).metrics.len() == MAX_METRICS);
    }
}

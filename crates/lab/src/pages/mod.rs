//! Pages and documents of the verbs, in the form of `strandline_report`.

use crate::statistics::Estimate;
use strandline_report::pages::page::Column;
use strandline_report::units::UNKNOWN;

pub mod compare;
pub mod squeeze;
pub mod trial;
mod trial_caveats;

/// The median of an estimate in the form of `format`, or that it is unknown.
fn median_text(estimate: Option<&Estimate>, format: impl Fn(f64) -> String) -> String {
    estimate.map_or_else(|| UNKNOWN.to_owned(), |estimate| format(estimate.median))
}

/// A column of figures.
fn figure_column(title: &str) -> Column {
    Column::new(title, true)
}

/// The ids of each text, in the order in which the texts appear.
fn ids_by_text<'a>(texts: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut grouped: Vec<(&str, Vec<&str>)> = Vec::new();
    for (id, text) in texts {
        match grouped.iter_mut().find(|(grouped_text, _)| *grouped_text == text) {
            Some((_, ids)) => ids.push(id),
            None => grouped.push((text, vec![id])),
        }
    }
    grouped
}

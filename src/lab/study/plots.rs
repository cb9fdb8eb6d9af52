//! Plots of a study: a metric over an axis, a line for each choice of another, or metrics in their own order (such as
//! the marks of one run).

use std::collections::BTreeSet;

use super::data::{Measured, estimate};
use super::file::{Axis, PlotSpec, Selection, Side};
use super::matrix::Matrix;
use super::metric::{Unit, unit};
use super::table::{choices, groups};
use crate::report::lab::page::{Plot, PlotKind, Series};
use crate::report::text::clean;

/// A plot is made for so many combinations of the axes that it does not name.
pub const MOST_PLOTS: usize = 24;
/// Points and series beyond these are left out.
const MOST_POINTS: usize = 10_000;
const MOST_SERIES: usize = 100;

/// One place on the x axis.
struct Place {
    x: f64,
    choice: Option<(String, String)>,
    metric: Option<String>,
}

/// The plots of one `[[plot]]`: one for each combination of the axes that it does not name.
pub fn plots(spec: &PlotSpec, matrix: &Matrix, measured: &dyn Measured) -> Vec<Plot> {
    let mut named: BTreeSet<&str> = spec.given.iter().map(|(axis, _)| axis.as_str()).collect();
    named.extend(spec.series.as_deref());
    if let Side::Axis(axis) = &spec.x {
        named.insert(axis);
    }
    let metrics = match &spec.x {
        Side::Metrics(names) => names,
        Side::Axis(_) => &spec.y,
    };
    let groups = groups(matrix, &named, &spec.given, metrics);
    groups.iter().take(MOST_PLOTS).filter_map(|group| plot(spec, matrix, measured, group)).collect()
}

fn plot(spec: &PlotSpec, matrix: &Matrix, measured: &dyn Measured, group: &Selection) -> Option<Plot> {
    let (places, x_names) = places(spec, matrix);
    let metrics: Vec<&String> = match &spec.x {
        Side::Metrics(names) => names.iter().take(1).collect(),
        Side::Axis(_) => spec.y.iter().collect(),
    };
    let mut series = Vec::new();
    let chosen = spec.series.as_ref().map(|axis| choices(matrix, axis)).unwrap_or_default();
    let lines: Vec<Option<&String>> =
        if spec.series.is_some() { chosen.iter().map(Some).collect() } else { vec![None] };
    for choice in lines.into_iter().take(MOST_SERIES) {
        for metric in metrics.iter().take(MOST_SERIES) {
            let mut given = spec.given.clone();
            let name = match (&spec.series, choice) {
                (Some(axis), Some(choice)) => {
                    given.push((axis.clone(), choice.clone()));
                    choice.as_str()
                }
                _ => metric.as_str(),
            };
            let line = draw(spec, matrix, measured, group, &given, &places, metric);
            if !line.points.is_empty() {
                series.push(Series { name: clean(name), ..line });
            }
        }
    }
    if series.is_empty() {
        return None;
    }
    let group_name = matrix.group_name(group);
    let title = clean(&spec.title);
    let metric = metrics.first()?;
    let y_unit = unit(metric, matrix.study.metrics.get(*metric));
    let axis = if let Side::Axis(name) = &spec.x {
        matrix.axes.iter().find(|axis| axis.name == *name)
    } else {
        None
    };
    let x_unit = axis.and_then(|axis| axis.unit.as_deref());
    Some(Plot {
        title: if group_name.is_empty() { title } else { format!("{title} ({})", clean(&group_name)) },
        x_label: axis.map_or_else(String::new, |axis| label(axis, x_unit)),
        y_label: match (y_unit, metrics.as_slice()) {
            (Unit::Seconds, _) => "seconds".to_owned(),
            (_, [one]) if !matches!(spec.x, Side::Metrics(_)) => clean(one),
            _ => String::new(),
        },
        kind: match spec.kind.as_str() {
            "points" => PlotKind::Points,
            "bars" => PlotKind::Bars,
            "strips" => PlotKind::Strips,
            _ => PlotKind::Lines,
        },
        x_is_bytes: x_unit == Some("bytes") && x_names.is_empty(),
        y_is_bytes: y_unit == Unit::Bytes,
        x_is_logarithmic: spec.x_is_logarithmic && x_names.is_empty(),
        y_is_logarithmic: spec.y_is_logarithmic,
        series,
        x_names,
    })
}

fn label(axis: &Axis, unit: Option<&str>) -> String {
    match unit {
        Some(unit) if unit != "bytes" => format!("{}, {}", clean(&axis.name), clean(unit)),
        _ => clean(&axis.name),
    }
}

/// The places on the x axis, and their names where they are no numbers.
fn places(spec: &PlotSpec, matrix: &Matrix) -> (Vec<Place>, Vec<String>) {
    match &spec.x {
        Side::Metrics(names) => {
            let places = names.iter().take(MOST_POINTS).enumerate();
            let places = places.map(|(index, name)| Place {
                x: index as f64,
                choice: None,
                metric: Some(name.clone()),
            });
            (places.collect(), without_common_end(names))
        }
        Side::Axis(name) => {
            let axis = matrix.axes.iter().find(|axis| axis.name == *name);
            let numbers: Option<Vec<f64>> =
                axis.and_then(|axis| axis.choices.iter().map(|choice| choice.number).collect());
            // Bars and strips stand beside each other, whatever their numbers are.
            let numbers = numbers.filter(|_| !matches!(spec.kind.as_str(), "bars" | "strips"));
            let choices: Vec<String> = choices(matrix, name).into_iter().take(MOST_POINTS).collect();
            let place = |(index, choice): (usize, &String)| Place {
                x: numbers.as_ref().and_then(|numbers| numbers.get(index).copied()).unwrap_or(index as f64),
                choice: Some((name.clone(), choice.clone())),
                metric: None,
            };
            let mut places: Vec<Place> = choices.iter().enumerate().map(place).collect();
            if numbers.is_some() {
                places.sort_by(|a, b| a.x.total_cmp(&b.x));
            }
            let names =
                if numbers.is_some() { Vec::new() } else { choices.iter().map(|name| clean(name)).collect() };
            (places, names)
        }
    }
}

/// `a.rss_bytes`, `b.rss_bytes` as `a`, `b`.
fn without_common_end(names: &[String]) -> Vec<String> {
    let end = |name: &String| name.split_once('.').map(|(_, end)| end.to_owned());
    let first = names.first().and_then(end);
    let common = first.filter(|first| names.iter().all(|name| end(name).as_ref() == Some(first)));
    let short = |name: &String| match &common {
        Some(_) => name.split('.').next().unwrap_or(name).to_owned(),
        None => name.clone(),
    };
    names.iter().take(MOST_POINTS).map(|name| clean(&short(name))).collect()
}

fn draw(
    spec: &PlotSpec,
    matrix: &Matrix,
    measured: &dyn Measured,
    group: &Selection,
    given: &[(String, String)],
    places: &[Place],
    metric: &str,
) -> Series {
    let mut series = Series::default();
    for place in places {
        let mut named = given.to_vec();
        named.extend(place.choice.clone());
        let metric = place.metric.as_deref().unwrap_or(metric);
        let Ok(key) = matrix.resolve(&named, group) else { continue };
        let Ok(estimate) = estimate(measured, &key, metric) else { continue };
        if spec.kind == "strips" {
            series.points.extend(estimate.samples.iter().map(|&sample| (place.x, sample)));
            continue;
        }
        series.points.push((place.x, estimate.median));
        let (low, high) = (estimate.low.unwrap_or(estimate.median), estimate.high.unwrap_or(estimate.median));
        series.intervals.push((low, high));
    }
    series
}

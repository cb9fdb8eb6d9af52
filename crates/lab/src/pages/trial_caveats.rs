//! Caveats on the figures of a trial, one sentence each: memory that fell at the end, outliers,
//! failed runs.

use super::ids_by_text;
use crate::cell::LabCaveat;
use crate::statistics;
use crate::trial::observation::SettledSource;
use crate::trial::tries::{self, BASELINE, Figure, Trial, Tried, TryResult};
use strandline_report::text::counted;
use strandline_report::units::{UNKNOWN, bytes, seconds};

/// An outlier is reported if it differs by more than this fraction of the median.
const MIN_DEVIATION_FRACTION: f64 = 0.05;
/// With fewer rounds a caveat recommends more.
const FEW_ROUNDS: usize = 5;
/// Maximum number of names listed in a sentence.
const MAX_LISTED_NAMES: usize = 6;

pub fn caveats(trial: &Trial) -> Vec<LabCaveat> {
    let mut caveats = Vec::new();
    let fallen = |lacks_level: bool| -> Vec<&str> {
        let fallen = all_results(trial).filter(|(_, result)| result.ended_with_bytes.is_some());
        fallen.filter(|(_, result)| result.lacks_level == lacks_level).map(|(id, _)| id).collect()
    };
    let (from_level, from_top) = (fallen(false), fallen(true));
    if !from_level.is_empty() {
        let text = format!(
            "{}: memory fell before the end; settled is the level before that, not what was left. Where another instant is \
             meant, send a mark there (docs/probes.md)",
            first_names(&from_level)
        );
        caveats.push(LabCaveat::new("fell_at_end", text));
    }
    if !from_top.is_empty() {
        let text = format!(
            "{}: memory fell before the end without having stood on a level: settled is what it fell from. Send a mark \
             where it is to be measured (docs/probes.md)",
            first_names(&from_top)
        );
        caveats.push(LabCaveat::new("held_no_level", text));
    }
    if trial.observation.settled_source == SettledSource::Sample {
        let text = "no ledger could be taken as its processes ended: `settled` is the last sample, and which allocator \
                    was mapped is not known";
        caveats.push(LabCaveat::new("settled_by_sample", text));
    }
    if trial.baseline_failures > 0 {
        let why = trial.first_baseline_failure.as_deref().unwrap_or(UNKNOWN);
        let runs = counted(u64::from(trial.baseline_failures), "run");
        let text = format!("without settings it failed in {runs}, left out of all figures: {why}");
        caveats.push(LabCaveat::new("baseline_failed", text));
    }
    caveats.extend(outliers(trial).into_iter().map(|text| LabCaveat::new("outliers", text)));
    if trial.rounds < FEW_ROUNDS {
        let rounds = counted(trial.rounds as u64, "round");
        let text = format!("with {rounds} only large differences can be detected; --repeat 5 or more");
        caveats.push(LabCaveat::new("few_runs", text));
    }
    caveats.extend(trial.lab_caveats.iter().cloned());
    let code = if trial.is_server { "server" } else { "not_sampled" };
    caveats.extend(notes(trial).into_iter().map(|text| LabCaveat::new(code, text)));
    caveats
}

/// The baseline and all tried candidates, with their names.
pub fn all_results(trial: &Trial) -> impl Iterator<Item = (&str, &TryResult)> {
    let tried = trial.tried.iter().map(|Tried { setting, result }| (setting.id.as_str(), result));
    std::iter::once((BASELINE, &trial.baseline)).chain(tried)
}

/// The first names, and the number of the rest.
fn first_names(names: &[&str]) -> String {
    let listed = names.get(..names.len().min(MAX_LISTED_NAMES)).unwrap_or_default().join(", ");
    match names.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// A figure whose outliers are reported.
struct OutlierFigure<'a> {
    /// Its name in sentences.
    name: &'a str,
    figure: fn(&TryResult) -> &Figure,
    /// Smaller deviations from the median are not reported.
    min_deviation: f64,
    format: &'a dyn Fn(f64) -> String,
}

/// The outliers among the runs of each setting, one sentence for each figure. Among nearly equal
/// runs there is always an outlier; differences below the threshold are skipped.
fn outliers(trial: &Trial) -> Vec<String> {
    let size = |value: f64| bytes(value.round() as u64);
    let time = if trial.is_server { "the load's time" } else { "time" };
    let settled = OutlierFigure {
        name: "settled memory",
        figure: |result| &result.settled,
        min_deviation: tries::RESOLUTION_BYTES,
        format: &size,
    };
    let wall =
        OutlierFigure { name: time, figure: |result| &result.wall, min_deviation: 0.0, format: &seconds };
    let mut texts = Vec::new();
    for OutlierFigure { name, figure, min_deviation, format } in [settled, wall] {
        let mut outlier_texts: Vec<String> = Vec::new();
        for (id, result) in all_results(trial).filter(|(_, result)| result.failure.is_none()) {
            let Some(estimate) = &figure(result).estimate else { continue };
            let min_deviation = min_deviation.max(estimate.median * MIN_DEVIATION_FRACTION);
            let indices = statistics::outliers(&estimate.samples).into_iter();
            let outliers = indices.filter_map(|index| estimate.samples.get(index).copied());
            let outliers = outliers.filter(|value| (value - estimate.median).abs() > min_deviation);
            let median = format(estimate.median);
            outlier_texts.extend(outliers.map(|value| format!("{} of {id} ({median})", format(value))));
        }
        let outlier_texts: Vec<&str> = outlier_texts.iter().map(String::as_str).collect();
        if !outlier_texts.is_empty() {
            texts.push(format!(
                "{name} of {} deviates from the others of its setting (in parentheses their median): {}; they are \
                 included",
                counted(outlier_texts.len() as u64, "run"),
                first_names(&outlier_texts)
            ));
        }
    }
    texts
}

/// Notes on runs, each with the settings that it applies to.
fn notes(trial: &Trial) -> Vec<String> {
    let notes =
        all_results(trial).flat_map(|(id, result)| result.notes.iter().map(move |note| (id, note.as_str())));
    ids_by_text(notes).into_iter().map(|(note, ids)| format!("{}: {note}", first_names(&ids))).collect()
}

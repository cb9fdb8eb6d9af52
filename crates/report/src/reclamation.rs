//! The terminal view of an applied remedy: predicted and actual, and the cost.

use strandline_inspect::facts::{Outcome, Reclamation};

use super::brief::ImportantCaveats;
use super::model;
use super::paint::Surface;
use super::terminal::{faint, joined, listed, strong};
use super::text::{clean, counted, hanging, pad_left, pad_right, wrap};
use super::units::{UNKNOWN, bytes, maybe_bytes, maybe_seconds, percent, seconds, thousands};

/// Divisor of the reclaimed bytes for the minimum difference that gets a line.
const MIN_DIFFERENCE_DIVISOR: u64 = 50;
/// Width of the name of a figure.
const NAME_COLUMNS: usize = 14;
/// Width of an exact figure: `123,456,789,012 bytes` with a margin.
const EXACT_COLUMNS: usize = 22;

/// The default view, with a final newline: what was released, the cost, and `hints`.
pub fn reclamation(reclamation: &Reclamation, hints: &[String], surface: Surface) -> String {
    // Without RSS, each caveat with a size is important.
    let rss_bytes = reclamation.rss_before_bytes.or(reclamation.rss_after_bytes).unwrap_or(0);
    let important = ImportantCaveats::of(&reclamation.caveats, rss_bytes);
    let answer: Vec<String> = std::iter::once(headline(reclamation)).chain(important.sentences).collect();
    let mut lines = strong(&wrap(&answer.join(". "), surface.columns), surface);
    let is_done = reclamation.outcome == Outcome::Done;
    if is_done {
        lines.extend(side_effects(reclamation).iter().flat_map(|text| wrap(text, surface.columns)));
        lines.extend(note(reclamation, surface));
    }
    let mut last_line = vec![rss_change(reclamation)];
    if is_done && !reclamation.dry_run {
        last_line.extend(costs(reclamation));
    }
    if important.other_count > 0 {
        last_line.push(format!("{} (-v)", counted(important.other_count as u64, "caveat")));
    }
    lines.extend(faint(&wrap(&last_line.join(" · "), surface.columns), surface));
    lines.extend_from_slice(hints);
    joined(&lines)
}

/// The view with exact figures and all caveats, with a final newline.
pub fn details(reclamation: &Reclamation, hints: &[String], surface: Surface) -> String {
    let mut lines = strong(&wrap(&headline(reclamation), surface.columns), surface);
    // Without an effect there are no figures.
    if reclamation.outcome == Outcome::Done {
        lines.push(String::new());
        lines.extend(figures(reclamation, surface));
        lines.extend(note(reclamation, surface));
    }
    lines.extend_from_slice(hints);
    lines.extend(listed("caveats", &model::caveats(&reclamation.caveats), surface));
    joined(&lines)
}

/// A remark on a remedy that was applied.
fn note(reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let reason = reclamation.reason.as_deref();
    reason.map_or_else(Vec::new, |reason| hanging("note: ", &clean(reason), surface.columns))
}

/// `RSS 375 MiB → 78.0 MiB`.
fn rss_change(reclamation: &Reclamation) -> String {
    let before = maybe_bytes(reclamation.rss_before_bytes);
    match reclamation.rss_after_bytes.filter(|_| !reclamation.dry_run) {
        Some(after) if reclamation.outcome == Outcome::Done => format!("RSS {before} → {}", bytes(after)),
        _ => format!("RSS {before}"),
    }
}

/// A sentence on what happened.
pub fn headline(reclamation: &Reclamation) -> String {
    let remedy = clean(&reclamation.remedy);
    let reason = reclamation.reason.as_deref().map(clean);
    match reclamation.outcome {
        Outcome::Refused => {
            let reason = reason.unwrap_or_else(|| "no reason is known".to_owned());
            let refused = if reclamation.dry_run { "would not be called" } else { "not called" };
            format!("{remedy} {refused}: {reason}")
        }
        Outcome::NothingToGiveBack => reason.map_or_else(
            || format!("{remedy} has nothing to release"),
            |reason| format!("{remedy} has nothing to release: {reason}"),
        ),
        Outcome::Done if reclamation.dry_run => {
            let least = reclamation.predicted_least_bytes.map(|least| format!("at least {}", bytes(least)));
            would_release(&remedy, least.unwrap_or_else(|| maybe_bytes(reclamation.predicted_bytes)))
        }
        Outcome::Done => match (reclamation.actual_bytes, reclamation.predicted_least_bytes) {
            (Some(actual), Some(least)) => {
                format!("{remedy} released {}, at least {} predicted", bytes(actual), bytes(least))
            }
            (actual, _) => released(&remedy, actual, reclamation.predicted_bytes),
        },
    }
}

/// What a dry run predicts of `subject`.
pub(crate) fn would_release(subject: &str, predicted: String) -> String {
    format!("{subject} would release {predicted} (predicted; nothing was touched)")
}

/// What `subject` released, beside its prediction.
pub(crate) fn released(subject: &str, actual: Option<u64>, predicted: Option<u64>) -> String {
    match actual {
        Some(actual) => {
            format!("{subject} released {}{}", bytes(actual), compared_to_prediction(actual, predicted))
        }
        None => format!("{subject} was applied; how much it released is not known"),
    }
}

/// The predicted bytes minus the actual ones, and their difference as a percentage of the larger;
/// `None` if one of them is unknown.
fn prediction_error(reclamation: &Reclamation) -> Option<String> {
    let (predicted, actual) = (reclamation.predicted_bytes?, reclamation.actual_bytes?);
    let sign = match predicted.cmp(&actual) {
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => return Some("0 bytes (exact)".to_owned()),
        std::cmp::Ordering::Greater => "+",
    };
    let error = predicted.abs_diff(actual);
    Some(format!(
        "{sign}{} bytes ({} of the larger)",
        thousands(error),
        percent(error, actual.max(predicted))
    ))
}

/// ` of the 297 MiB predicted (exact)`.
fn compared_to_prediction(actual: u64, predicted: Option<u64>) -> String {
    let Some(predicted) = predicted else { return ", which was not predicted".to_owned() };
    let size = bytes(predicted.abs_diff(actual));
    let difference = match actual.cmp(&predicted) {
        std::cmp::Ordering::Less => format!("{size} less"),
        std::cmp::Ordering::Equal => "exact".to_owned(),
        std::cmp::Ordering::Greater => format!("{size} more"),
    };
    format!(" of the {} predicted ({difference})", bytes(predicted))
}

/// By how much RSS fell in addition, and how much memory the machine did not regain, if
/// significant.
fn side_effects(reclamation: &Reclamation) -> Vec<String> {
    let Some(actual) = reclamation.actual_bytes.filter(|&actual| actual > 0) else { return Vec::new() };
    let is_significant = |difference: &u64| *difference > actual / MIN_DIFFERENCE_DIVISOR;
    let before_and_after = reclamation.rss_before_bytes.zip(reclamation.rss_after_bytes);
    let rss_decrease = before_and_after.map(|(before, after)| before.saturating_sub(after));
    let additional = rss_decrease.and_then(|decrease| decrease.checked_sub(actual)).filter(is_significant);
    let not_regained = reclamation.actual_pss_bytes.and_then(|pss| actual.checked_sub(pss));
    let not_regained = not_regained.filter(is_significant);
    let sentences = [
        additional.map(|size| format!("RSS fell by {} more: not the pages that were predicted", bytes(size))),
        not_regained.map(|size| {
            format!(
                "the machine regains {} less: other processes have these pages too, or PSS changed meanwhile",
                bytes(size)
            )
        }),
    ];
    sentences.into_iter().flatten().collect()
}

/// The call's time, the longest pause, and the faults after it.
fn costs(reclamation: &Reclamation) -> [String; 3] {
    let faults = match (reclamation.minor_faults_after, reclamation.minor_faults_seconds) {
        (Some(faults), Some(time)) => {
            format!("{} in the {} after it", counted(faults, "page fault"), seconds(time))
        }
        (Some(faults), None) => format!("{} after it", counted(faults, "page fault")),
        (None, _) => "page faults after it not counted".to_owned(),
    };
    let pause = match reclamation.stopped_seconds {
        Some(time) => format!("longest pause {}", seconds(time)),
        None => "its own pause not measured".to_owned(),
    };
    [format!("call {}", maybe_seconds(reclamation.call_seconds)), pause, faults]
}

/// The figures, one per line: name, exact figure, rounded figure.
fn figures(reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    let mut push_size = |name: &str, size: Option<u64>| {
        let exact = size.map_or_else(|| UNKNOWN.to_owned(), thousands);
        lines.push(format!(
            "  {}{}  {}",
            pad_right(name, NAME_COLUMNS),
            pad_left(&format!("{exact} bytes"), EXACT_COLUMNS),
            maybe_bytes(size)
        ));
    };
    push_size("predicted", reclamation.predicted_bytes);
    if !reclamation.dry_run {
        push_size("actual", reclamation.actual_bytes);
    }
    push_size("RSS before", reclamation.rss_before_bytes);
    if reclamation.dry_run {
        return lines;
    }
    push_size("RSS after", reclamation.rss_after_bytes);
    let effects = side_effects(reclamation);
    lines.extend(effects.iter().flat_map(|text| hanging("  ", text, surface.columns)));
    if let Some(error) = prediction_error(reclamation) {
        lines.push(format!("  {}{error}", pad_right("error", NAME_COLUMNS)));
    }
    let [call, pause, faults] = costs(reclamation);
    let cost = format!("{call}, {pause}, {faults}");
    lines.extend(hanging(&format!("  {}", pad_right("cost", NAME_COLUMNS)), &cost, surface.columns));
    lines
}

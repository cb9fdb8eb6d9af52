//! The terminal view of an applied remedy: predicted and actual, and the cost.

use strandline_inspect::facts::{Outcome, Reclamation};

use super::model;
use super::paint::{Paint, Surface};
use super::terminal::{joined, listed};
use super::text::{clean, grouped, hanging, pad_left, pad_right, wrap};
use super::units::{UNKNOWN, bytes, maybe_bytes, maybe_seconds, percent, seconds};

/// Divisor of the reclaimed bytes for the minimum difference that gets a line.
const MIN_DIFFERENCE_DIVISOR: u64 = 50;

/// The whole view, with a final newline.
pub fn reclamation(reclamation: &Reclamation, surface: Surface) -> String {
    let mut lines: Vec<String> = wrap(&headline(reclamation), surface.columns)
        .iter()
        .map(|line| surface.paint(Paint::Strong, line))
        .collect();
    // Without an effect there are no figures.
    if reclamation.outcome == Outcome::Done {
        lines.push(String::new());
        lines.extend(figures(reclamation, surface));
    }
    if let Some(reason) = reclamation.reason.as_deref().filter(|_| reclamation.outcome == Outcome::Done) {
        lines.extend(hanging("note: ", &clean(reason), surface.columns));
    }
    lines.extend(listed("caveats", &model::caveats(&reclamation.caveats), surface));
    joined(&lines)
}

/// A sentence on what happened.
pub fn headline(reclamation: &Reclamation) -> String {
    let remedy = clean(&reclamation.remedy);
    let reason = reclamation.reason.as_deref().map(clean);
    match reclamation.outcome {
        Outcome::Refused => {
            let reason = reason.unwrap_or_else(|| "no reason is known".to_owned());
            let refused =
                if reclamation.dry_run { "would be refused" } else { "was refused, and nothing was touched" };
            format!("{remedy} {refused}: {reason}")
        }
        Outcome::NothingToGiveBack => reason.map_or_else(
            || format!("{remedy} has nothing to give back"),
            |reason| format!("{remedy} has nothing to give back: {reason}"),
        ),
        Outcome::Done if reclamation.dry_run => {
            format!(
                "{remedy} would give back {} (predicted; nothing was touched)",
                maybe_bytes(reclamation.predicted_bytes)
            )
        }
        Outcome::Done => match reclamation.actual_bytes {
            Some(actual) => format!("{remedy} gave back {}", bytes(actual)),
            None => format!("{remedy} was applied; how much it gave back is not known"),
        },
    }
}

/// The difference between prediction and result, in bytes and as a percentage of the larger; `None`
/// if one of them is unknown.
pub fn prediction_error(reclamation: &Reclamation) -> Option<String> {
    let (predicted, actual) = (reclamation.predicted_bytes?, reclamation.actual_bytes?);
    let sign = match predicted.cmp(&actual) {
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => return Some("0 bytes (exact)".to_owned()),
        std::cmp::Ordering::Greater => "+",
    };
    let off = predicted.abs_diff(actual);
    Some(format!("{sign}{} bytes ({} of the larger)", grouped(off), percent(off, actual.max(predicted))))
}

/// By how much RSS fell in addition, and how much memory the machine did not regain, if
/// significant.
fn side_effects(reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let Some(actual) = reclamation.actual_bytes.filter(|&actual| actual > 0) else { return Vec::new() };
    let mut lines = Vec::new();
    let mut line = |name: &str, text: &str| {
        lines.extend(hanging(&format!("  {}", pad_right(name, 14)), text, surface.columns))
    };
    let fell = reclamation
        .rss_before_bytes
        .zip(reclamation.rss_after_bytes)
        .map(|(before, after)| before.saturating_sub(after));
    if let Some(besides) = fell
        .and_then(|fell| fell.checked_sub(actual))
        .filter(|&besides| besides > actual / MIN_DIFFERENCE_DIVISOR)
    {
        line("besides", &format!("RSS fell by {} more: not the pages that were predicted", bytes(besides)));
    }
    if let Some(kept) = reclamation
        .actual_pss_bytes
        .and_then(|pss| actual.checked_sub(pss))
        .filter(|&kept| kept > actual / MIN_DIFFERENCE_DIVISOR)
    {
        line(
            "machine",
            &format!("gets back {} less: other processes have these pages too (by fork)", bytes(kept)),
        );
    }
    lines
}

/// The figures, one per line: name, exact figure, rounded figure.
pub fn figures(reclamation: &Reclamation, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    let mut size = |name: &str, known: Option<u64>| {
        let exact = known.map_or_else(|| UNKNOWN.to_owned(), grouped);
        lines.push(format!(
            "  {}{}  {}",
            pad_right(name, 14),
            pad_left(&format!("{exact} bytes"), 22),
            maybe_bytes(known)
        ));
    };
    size("predicted", reclamation.predicted_bytes);
    if !reclamation.dry_run {
        size("actual", reclamation.actual_bytes);
    }
    size("RSS before", reclamation.rss_before_bytes);
    if reclamation.dry_run {
        return lines;
    }
    size("RSS after", reclamation.rss_after_bytes);
    lines.extend(side_effects(reclamation, surface));
    if let Some(error) = prediction_error(reclamation) {
        lines.push(format!("  {}{error}", pad_right("error", 14)));
    }
    let faults = match (reclamation.minor_faults_after, reclamation.minor_faults_seconds) {
        (Some(faults), Some(time)) => {
            format!("{} minor faults in the {} after it", grouped(faults), seconds(time))
        }
        (Some(faults), None) => format!("{} minor faults after it", grouped(faults)),
        (None, _) => "faults after it not counted".to_owned(),
    };
    let pause = match reclamation.stopped_seconds {
        Some(time) => format!("longest pause {}", seconds(time)),
        None => "its own pause not measured".to_owned(),
    };
    let cost = format!("call {}, {pause}, {faults}", maybe_seconds(reclamation.call_seconds));
    lines.extend(hanging(&format!("  {}", pad_right("cost", 14)), &cost, surface.columns));
    lines
}

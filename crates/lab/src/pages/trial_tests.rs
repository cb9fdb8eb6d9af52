//! Tests of the page and the document of a trial.

use super::*;
use crate::statistics::{Pair, estimate, paired_ratio};
use crate::trial::applies::{AppliedSetting, Variable};
use crate::trial::catalogue::Kind;
use crate::trial::observation::Observation;
use strandline_report::pages::terminal;
use strandline_report::paint::Surface;

fn figure(before: &[f64], after: &[f64]) -> Figure {
    let pairs: Vec<Pair> =
        before.iter().zip(after).map(|(&reference, &compared)| Pair { reference, compared }).collect();
    Figure { estimate: estimate(after, 0.95, 1), ratio: paired_ratio(&pairs, 0.0, 0.95) }
}

fn result(mebibytes: &[f64], seconds: &[f64]) -> TryResult {
    let sizes: Vec<f64> = mebibytes.iter().map(|size| size * 1_048_576.0).collect();
    let (memory, time) = ([100.0 * 1_048_576.0; 5], [1.0, 1.01, 1.02, 1.0, 0.99]);
    let settled = figure(&memory, &sizes);
    let faults = figure(&[1e6; 5], &[12_345_678.0; 5]);
    TryResult {
        peak: settled.clone(),
        settled,
        wall: figure(&time, seconds),
        faults,
        notes: vec!["was killed".to_owned()],
        ..TryResult::default()
    }
}

fn tried(id: &str) -> TriedSetting {
    let variable = Variable { name: "A".into(), value: "1".into(), added: "1".into() };
    TriedSetting {
        id: id.into(),
        title: "a title".into(),
        kind: Kind::Setting,
        cost: "a cost".into(),
        source: Vec::new(),
        applied: AppliedSetting { variables: vec![variable], ..AppliedSetting::default() },
    }
}

fn trial(tries: &[(&str, TryResult)]) -> Trial {
    Trial {
        command: vec!["thing".into()],
        program: Some("/bin/thing".into()),
        goal: Goal::Settled,
        is_server: false,
        rounds: 5,
        baseline_failures: 1,
        first_baseline_failure: Some("exit status 9".into()),
        observation: Observation { executable: Some("/usr/bin/thing".into()), ..Observation::default() },
        baseline: result(&[100.0, 100.1, 100.2, 100.0, 170.0], &[1.0, 1.01, 1.02, 1.0, 0.99]),
        tried: tries
            .iter()
            .map(|(id, result)| Tried { setting: tried(id), result: result.clone() })
            .collect(),
        not_applicable: Vec::new(),
        lab_caveats: Vec::new(),
        nodes: Vec::new(),
    }
}

#[test]
fn the_headline_claims_no_undetectable_difference() {
    let slower = result(&[50.0, 50.1, 50.2, 50.0, 49.9], &[1.7, 0.6, 2.4, 1.7, 0.9]);
    let text = headline(&trial(&[("half", slower.clone())]));
    assert!(text.contains("half leaves 50.0 MiB instead of 100 MiB"), "{text}");
    assert!(text.contains("1.70 times as long, though 5 rounds cannot distinguish it from 1"), "{text}");
    let even = result(&[50.0, 50.1, 50.2, 50.0, 49.9], &[0.9, 1.0, 1.0, 1.1, 1.0]);
    let bounded = Trial { goal: Goal::TimeBounded, ..trial(&[("half", even)]) };
    let text = headline(&bounded);
    assert!(text.contains("as long, as far as is known (could be up to 1."), "{text}");
    let few = TryResult { wall: figure(&[1.0], &[1.3]), ..slower };
    assert!(headline(&trial(&[("few", few)])).contains("1.30 times as long, of 5 rounds"));
}

/// Two rounds decide nothing, but their medians are still reported.
#[test]
fn what_few_rounds_cannot_decide_is_measured_all_the_same() {
    let half = result(&[20.0, 105.0], &[1.0, 1.0]);
    let few = Trial { rounds: 2, ..trial(&[("half", half)]) };
    assert_eq!(
        headline(&few),
        "half leaves 62.5 MiB instead of 100 MiB in the median, but 2 rounds cannot separate that from chance: use more \
         (--repeat). 1 tried."
    );
    let alike = Trial { rounds: 2, ..trial(&[("alike", result(&[99.0, 101.0], &[1.0, 1.0]))]) };
    assert!(headline(&alike).starts_with("Nothing that was tried is better"));
}

#[test]
fn a_slightly_smaller_but_slower_candidate_is_named_beside_the_best() {
    let least = result(&[14.0, 14.1, 14.0, 14.0, 14.0], &[1.7; 5]);
    let best = result(&[15.0, 15.1, 15.0, 15.0, 15.0], &[1.0, 1.01, 1.02, 1.0, 0.99]);
    let trial = trial(&[("least", least), ("best", best)]);
    let text = headline(&trial);
    assert!(text.starts_with("best leaves 15.0 MiB"), "{text}");
    assert!(text.contains("least leaves only 1.00 MiB less, in 1.70 times the time."), "{text}");
}

#[test]
fn the_tables_have_intervals_and_fit_a_terminal() {
    let half = result(&[13.6, 14.1, 15.2, 16.0, 15.9], &[1.2, 2.1, 2.5, 1.9, 2.2]);
    let other = half.clone();
    let trial = trial(&[
        ("mmap_threshold_32k+trim_threshold_128k", half),
        ("mmap_threshold_128k+trim_threshold_128k", other),
    ]);
    let text = terminal::text(&page(&trial), Surface { columns: 80, has_colour: false });
    assert!(text.contains("0.15 (.14–.16)"), "{text}");
    let tables = text.split("caveats").next().unwrap_or_default();
    assert!(tables.contains("better ◆"), "{text}");
    assert!(text.lines().all(|line| strandline_report::text::width(line) <= 80), "{text}");
    assert!(text.contains("_32k+trim_…128k ") && text.contains("…128k+trim_…128k "), "{text}");
    assert!(text.contains("resident memory of thing as it ended"), "{text}");
}

#[test]
fn doubtful_results_have_caveats() {
    let trial = trial(&[("half", result(&[50.0; 5], &[1.0; 5]))]);
    let found = caveats(&trial);
    let text = |code: &str| {
        found.iter().find(|caveat| caveat.code == code).map_or("", |caveat| caveat.text.as_str())
    };
    assert!(text("outliers").starts_with("settled memory of 1 run deviates"), "{found:?}");
    assert!(text("outliers").contains(": 170 MiB of baseline (100 MiB); they are included"), "{found:?}");
    assert!(
        text("baseline_failed").contains("1 run, left out") && text("baseline_failed").contains("status 9")
    );
    assert_eq!(text("not_sampled"), "baseline, half: was killed");
    let server = caveats(&Trial { is_server: true, ..trial });
    let note = server.iter().find(|caveat| caveat.code == "server").unwrap();
    assert_eq!(note.text, "baseline, half: was killed");
}

#[test]
fn ends_of_intervals_have_two_digits() {
    let ends: Vec<String> = [0.0, 0.149, 0.994, 0.996, 9.94, 9.96, 140.2, 1e9].map(format_bound).to_vec();
    assert_eq!(ends, [".00", ".15", ".99", "1.0", "9.9", "10", "140", "1000+"]);
}

#[test]
fn ratios_other_than_0_are_not_shown_as_0() {
    let ratio = Ratio { median: 0.003, low: Some(0.001), high: Some(0.02) };
    let figure = Figure { ratio: Some(ratio), ..Figure::default() };
    assert_eq!(format_ratio(&figure), "<.01 (<.01–.02)");
}

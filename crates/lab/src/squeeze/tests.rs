//! Tests with simulated programs whose edges are known.

use fabricated::Program;

use super::LimitKind;
use super::findings::{Findings, SqueezeOptions, squeeze};
use super::search::{LimitRunner, PAGE_BYTES, Plan, Resolution};
use super::{LimitedRun, failure::Failure};
use crate::cell::Figures;
use crate::executor::{NoResult, StopReason};
use crate::pages::squeeze as report;

/// Simulated programs.
mod fabricated {
    use super::*;

    /// Succeeds under a limit if `rule` returns true.
    pub struct Program<F: FnMut(u64) -> bool> {
        pub rule: F,
        /// Reported peak without a limit.
        pub peak_bytes: Option<u64>,
        /// The limits of all runs.
        pub limits: Vec<u64>,
    }

    impl<F: FnMut(u64) -> bool> LimitRunner for Program<F> {
        fn run(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason> {
            let is_success = limit_bytes.is_none_or(|limit| (self.rule)(limit));
            self.limits.extend(limit_bytes);
            let failure =
                (!is_success).then(|| Failure { words: "it failed".to_owned(), ..Failure::default() });
            let wall_seconds = Some(1.0);
            let figures = Figures {
                wall_seconds,
                minor_faults: Some(100),
                major_faults: Some(0),
                ..Figures::default()
            };
            Ok(LimitedRun { failure, figures, peak_bytes: self.peak_bytes, ..LimitedRun::default() })
        }
    }
}

const MIB: u64 = 1 << 20;

fn options() -> SqueezeOptions {
    SqueezeOptions {
        kind: LimitKind::AddressSpace,
        command: vec!["program".to_owned(), "an argument".to_owned()],
        success: None,
        plan: Plan {
            repeat: 3,
            resolution: Resolution::default(),
            max_edge_runs: 100,
            floor_bytes: PAGE_BYTES,
            ceiling_bytes: 1 << 47,
        },
        rounds: 1,
        seed: 1,
    }
}

fn find(
    options: &SqueezeOptions,
    peak_bytes: Option<u64>,
    rule: impl FnMut(u64) -> bool,
) -> (Findings, Vec<u64>) {
    let mut program = Program { rule, peak_bytes, limits: Vec::new() };
    let mut reported_runs = 0;
    let findings = squeeze(options, &mut program, &mut |count, _| {
        reported_runs += 1;
        assert_eq!(count, reported_runs);
    });
    let findings = findings.unwrap();
    assert_eq!(findings.trials.len(), reported_runs);
    let bound = options.plan.max_edge_runs + 1 + 5 * 5 * options.rounds.max(1);
    assert!(findings.trials.len() <= bound as usize, "{} runs", findings.trials.len());
    assert!(program.limits.iter().all(|limit| limit % PAGE_BYTES == 0), "{:?}", program.limits);
    assert!(!report::page(&findings, Vec::new()).headline.is_empty());
    serde_json::to_string(&findings).unwrap();
    (findings, program.limits)
}

#[test]
fn a_sharp_edge_is_found_to_the_resolution_in_few_runs() {
    let mut max_runs = 0;
    for edge in [40_000, MIB, 10 * MIB + 1, 123 * MIB + 777, 5_000 * MIB, 100_000 * MIB] {
        // The peak may be right, slightly off, far off, or unknown.
        for peak in [Some(edge), Some(edge - edge / 50), Some(edge * 3), Some(edge / 10), None] {
            let options = options();
            let (findings, _) = find(&options, peak, |limit| limit >= edge);
            let (smallest, failing) =
                (findings.smallest_bytes.unwrap(), findings.largest_failing_bytes.unwrap());
            assert!(failing < edge && edge <= smallest, "{edge}: {failing} {smallest}");
            assert!(smallest - failing <= options.plan.resolution.at(smallest));
            assert!(findings.is_complete && findings.band.is_none() && findings.non_monotone.is_none());
            let at = |limit| findings.limits.iter().find(|at| at.limit_bytes == limit).unwrap();
            assert!(at(smallest).succeeded >= 3 && at(failing).failed >= 3);
            assert_eq!(findings.failure.as_ref().unwrap().words, "it failed");
            max_runs = max_runs.max(findings.trials.len());
            if peak == Some(edge) {
                assert!(findings.trials.len() <= 14, "{edge}: {} runs", findings.trials.len());
            }
        }
    }
    assert!(max_runs <= 34, "{max_runs} runs");
}

#[test]
fn the_limit_is_found_to_the_page_on_request() {
    let mut options = options();
    options.plan.resolution = Resolution { fraction: 0.0, min_bytes: 1 };
    let edge = 77 * MIB + 3 * PAGE_BYTES;
    let (findings, _) = find(&options, Some(80 * MIB), |limit| limit >= edge);
    assert_eq!(
        (findings.smallest_bytes, findings.largest_failing_bytes),
        (Some(edge), Some(edge - PAGE_BYTES))
    );
}

#[test]
fn a_flaky_edge_is_a_band() {
    let mut flaky = 0;
    for seed in 0..50 {
        let mut dice = fastrand::Rng::with_seed(seed);
        // From 50 to 60 MiB the chance of success rises from 0 to 1.
        let (low, high) = (50 * MIB, 60 * MIB);
        let mut options = options();
        options.seed = seed;
        options.rounds = 3;
        let (findings, _) = find(&options, Some(58 * MIB), |limit| {
            limit >= high || (limit > low && dice.f64() < (limit - low) as f64 / (high - low) as f64)
        });
        let (smallest, failing) = (findings.smallest_bytes.unwrap(), findings.largest_failing_bytes.unwrap());
        assert!(failing < smallest, "nothing failed above what is said to be enough");
        assert!(smallest > low && smallest <= high + MIB, "{smallest}");
        let at = |limit| findings.limits.iter().find(|at| at.limit_bytes == limit).unwrap();
        assert!(at(smallest).succeeded >= 3 && at(smallest).failed == 0);
        if let Some(band) = findings.band {
            flaky += 1;
            assert!(band.low_bytes.unwrap() < band.high_bytes.unwrap());
            assert_eq!(band.high_bytes, Some(smallest));
            assert!(band.runs > band.failed || band.failed > 0);
            assert!(report::page(&findings, Vec::new()).headline.contains("flaky"));
        }
    }
    assert!(flaky >= 40, "{flaky} of 50 reported that the edge is flaky");
}

#[test]
fn a_failure_above_a_success_is_reported() {
    // Between 60 and 90 MiB the program takes a path that needs more memory.
    let (findings, _) =
        find(&options(), Some(70 * MIB), |limit| limit >= 90 * MIB || (40 * MIB..60 * MIB).contains(&limit));
    assert!(findings.smallest_bytes.unwrap() >= 90 * MIB, "{:?}", findings.smallest_bytes);
    // If only the check above the edge finds the failure, the search resumes above it.
    let island = |limit| limit >= 50 * MIB && !(54 * MIB..56 * MIB).contains(&limit);
    let (findings, _) = find(&options(), Some(50 * MIB), island);
    let smallest = findings.smallest_bytes.unwrap();
    assert!((56 * MIB..57 * MIB).contains(&smallest), "{smallest}");
    let inversion = findings.non_monotone.unwrap();
    assert!(inversion.succeeds_at_bytes < 54 * MIB && inversion.fails_at_bytes >= 54 * MIB);
    assert!(
        findings.band.is_none()
            && report::page(&findings, Vec::new()).headline.contains("More is not always better")
    );
}

#[test]
fn programs_that_always_or_never_fail_are_reported() {
    let (findings, limits) = find(&options(), Some(50 * MIB), |_| false);
    assert_eq!((findings.smallest_bytes, findings.largest_failing_bytes), (None, Some(1 << 47)));
    assert!(limits.len() < 40, "{} runs", limits.len());
    assert!(
        findings.slowdown_near_limit.is_empty()
            && report::page(&findings, Vec::new()).headline.starts_with("No limit")
    );
    let (findings, limits) = find(&options(), Some(50 * MIB), |_| true);
    assert_eq!((findings.smallest_bytes, findings.largest_failing_bytes), (Some(PAGE_BYTES), None));
    assert!(limits.len() < 20 && findings.failure.is_none() && findings.failures.is_empty());
}

#[test]
fn the_search_ends_with_random_outcomes() {
    for seed in 0..200 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let chance = dice.f64();
        let mut options = options();
        options.plan.max_edge_runs = 5 + dice.u32(..60);
        let (findings, _) = find(&options, Some(dice.u64(..1 << 48)), |_| dice.f64() < chance);
        if let (Some(smallest), Some(failing)) = (findings.smallest_bytes, findings.largest_failing_bytes) {
            assert!(smallest > failing);
        }
        assert!(findings.is_complete || findings.caveats.iter().any(|text| text.code == "not_sure"));
    }
}

#[test]
fn what_fails_without_a_limit_is_an_error_and_faults_of_the_lab_too() {
    struct Broken {
        /// Whether only runs under a limit fail, by a fault of the lab.
        is_lab_broken: bool,
    }
    impl LimitRunner for Broken {
        fn run(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason> {
            if self.is_lab_broken && limit_bytes.is_some() {
                return Err(StopReason::Failed("no space left".to_owned()));
            }
            let stderr_tail = "first\nno such option".to_owned();
            let failure =
                Failure { words: "it exited with status 2".to_owned(), stderr_tail, ..Failure::default() };
            Ok(LimitedRun { failure: (!self.is_lab_broken).then_some(failure), ..LimitedRun::default() })
        }
    }
    let stopped = squeeze(&options(), &mut Broken { is_lab_broken: false }, &mut |_, _| {}).unwrap_err();
    let NoResult::Failed(line) = stopped else { panic!("{stopped:?}") };
    assert!(line.contains("status 2, and wrote \"no such option\""), "{line}");
    let stopped = squeeze(&options(), &mut Broken { is_lab_broken: true }, &mut |_, _| {}).unwrap_err();
    assert_eq!(stopped, NoResult::Stopped(StopReason::Failed("no space left".to_owned())));
}

#[test]
fn a_limit_that_may_swap_and_processes_left_behind_are_caveats() {
    struct Swapping;
    impl LimitRunner for Swapping {
        fn run(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason> {
            let swap_problem = limit_bytes.map(|_| "no controller".to_owned());
            Ok(LimitedRun { swap_problem, leftover_processes: 1, ..LimitedRun::default() })
        }
    }
    let findings = squeeze(&options(), &mut Swapping, &mut |_, _| {}).unwrap();
    let text_of = |code| &findings.caveats.iter().find(|caveat| caveat.code == code).unwrap().text;
    assert!(text_of("swap_not_limited").contains("(no controller)"), "{:?}", findings.caveats);
    let runs = format!("{} runs succeeded and left", findings.trials.len());
    assert!(text_of("left_behind").starts_with(&runs), "{:?}", findings.caveats);
}

#[test]
fn failures_are_distinguished_by_limit() {
    let mut findings = find(&options(), Some(50 * MIB), |limit| limit >= 50 * MIB).0;
    assert_eq!(findings.failures.len(), 1);
    assert_eq!(
        findings.failures[0].runs as usize,
        findings.trials.iter().filter(|run| !run.is_success()).count()
    );
    findings.kind = LimitKind::Cgroup;
    let page = report::page(&findings, Vec::new());
    let pasted: Vec<_> = page.sections.iter().flat_map(|section| &section.snippets).collect();
    let kib = report::with_headroom(findings.smallest_bytes.unwrap()) / 1024;
    assert_eq!(kib % 1024, 0, "a round figure");
    let mib = kib / 1024;
    for part in [format!("MemoryMax={mib}M"), format!("--memory={mib}M"), format!("memory: {mib}Mi")] {
        assert!(pasted.iter().any(|snippet| snippet.text.contains(&part)), "{part} in {pasted:?}");
    }
    for table in page.sections.iter().flat_map(|section| &section.tables) {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
    }
}

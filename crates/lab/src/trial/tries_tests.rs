//! Tests of the evaluation of runs.

use super::*;
use crate::cell::{End, Figures};

fn tried(id: &str, allocator: Option<&str>) -> TriedSetting {
    let catalogue = Catalogue::built_in().unwrap();
    let applied = AppliedSetting { allocator: allocator.map(str::to_owned), ..AppliedSetting::default() };
    TriedSetting { id: id.into(), ..TriedSetting::single(&catalogue.candidates[0], applied) }
}

fn served(folder: &Path, observation: &Observation) -> Outcome {
    let path = folder.join(format!("{}.json", fastrand::u64(..)));
    std::fs::write(&path, serde_json::to_vec(observation).unwrap()).unwrap();
    let figures = Figures::default();
    Outcome { end: End::Exited(0), figures, recording: Some(path), ..Outcome::not_started(String::new()) }
}

fn observation(settled: u64, wall: f64) -> Observation {
    Observation {
        settled_bytes: Some(settled << 20),
        wall_seconds: Some(wall),
        executable: Some("/bin/x".into()),
        allocators: vec![super::super::applies::MappedAllocator {
            name: "glibc".into(),
            is_in_program: false,
        }],
        ..Observation::default()
    }
}

#[test]
fn runs_are_judged_beside_those_without_settings() {
    let folder = tempfile::tempdir().unwrap();
    let tries = [tried("half", None), tried("same", None), tried("other", Some("jemalloc"))];
    let mut judge = TrialJudge::new(&tries, true);
    for round in 0..5 {
        let noise = 0.001 * f64::from(round);
        let mut run_ended = |subject: usize, observation: &Observation| {
            judge.run_ended(subject, Some(round), &served(folder.path(), observation))
        };
        assert_eq!(run_ended(0, &observation(100, 1.0 + noise)), AfterRun::Continue);
        assert_eq!(run_ended(1, &observation(50, 2.0 + noise)), AfterRun::Continue);
        assert_eq!(run_ended(2, &observation(100, 1.0 - noise)), AfterRun::Continue);
        if round == 0 {
            assert_eq!(run_ended(3, &observation(1, 1.0)), AfterRun::Drop, "its library was not mapped");
        }
    }
    let results = judge.evaluate_all(&Results::default());
    let trial = Trial {
        command: Vec::new(),
        program: None,
        goal: Goal::Settled,
        is_server: true,
        rounds: 5,
        baseline_failures: 0,
        first_baseline_failure: None,
        observation: observation(100, 1.0),
        baseline: results[0].clone(),
        tried: tries
            .iter()
            .cloned()
            .zip(results.into_iter().skip(1))
            .map(|(setting, result)| Tried { setting, result })
            .collect(),
        not_applicable: Vec::new(),
        lab_caveats: Vec::new(),
        nodes: Vec::new(),
    };
    let statuses: Vec<Status> = trial.tried.iter().map(|tried| trial.status(tried)).collect();
    assert_eq!(statuses, [Status::Better, Status::Same, Status::Failed]);
    assert_eq!(trial.best().unwrap().setting.id, "half");
    assert!(
        trial.tried[2]
            .result
            .failure
            .as_ref()
            .unwrap()
            .contains("jemalloc was not mapped in it; it had glibc")
    );
    assert_eq!(trial.front().first().map(String::as_str), Some("half"));
    assert_eq!(trial.tried[0].result.status(Goal::TimeBounded), Status::Worse);
}

#[test]
fn a_command_that_always_fails_without_settings_ends_the_trial() {
    let mut judge = TrialJudge::new(&[], false);
    let failed = Outcome { end: End::Exited(3), ..Outcome::not_started(String::new()) };
    let answers: Vec<AfterRun> = (0..3).map(|round| judge.run_ended(0, Some(round), &failed)).collect();
    assert_eq!(answers, [AfterRun::Continue, AfterRun::Continue, AfterRun::Stop]);
    assert_eq!(judge.failures[0].as_deref(), Some("exit status 3"));
}

#[test]
fn a_round_without_its_baseline_is_left_out_and_the_others_count() {
    let folder = tempfile::tempdir().unwrap();
    let tries = [tried("half", None)];
    let mut judge = TrialJudge::new(&tries, true);
    for round in 0..6 {
        let failure = (round == 2).then(|| "out of luck".to_owned());
        let baseline = Observation { failure, ..observation(100, 1.0) };
        assert_eq!(judge.run_ended(0, Some(round), &served(folder.path(), &baseline)), AfterRun::Continue);
        let half = Observation { notes: vec!["was killed".into()], ..observation(50, 1.0) };
        assert_eq!(judge.run_ended(1, Some(round), &served(folder.path(), &half)), AfterRun::Continue);
    }
    assert_eq!((judge.baseline_failures, judge.failures[0].as_deref()), (1, Some("out of luck")));
    let results = judge.evaluate_all(&Results::default());
    assert_eq!(results[0].settled.estimate.as_ref().unwrap().samples.len(), 5);
    assert_eq!((results[0].failure.as_ref(), results[1].status(Goal::Settled)), (None, Status::Better));
    assert_eq!(results[1].notes, ["was killed"]);
}

#[test]
fn what_a_run_does_not_show_makes_it_no_better() {
    let folder = tempfile::tempdir().unwrap();
    let tries = [tried("a", None), tried("b", Some("jemalloc")), tried("c", None)];
    let mut judge = TrialJudge::new(&tries, true);
    judge.settled_at = Some(SettledSource::Exit);
    let sampled = Observation { settled_source: SettledSource::Mark, ..observation(1, 1.0) };
    assert_eq!(judge.run_ended(1, Some(0), &served(folder.path(), &sampled)), AfterRun::Drop);
    // Whatever the source of the settled figure, all processes without marks are comparable.
    let level = Observation { settled_source: SettledSource::Level, ..observation(1, 1.0) };
    assert_eq!(judge.run_ended(1, Some(1), &served(folder.path(), &level)), AfterRun::Continue);
    let unknown = Observation { allocators: Vec::new(), executable: None, ..observation(1, 1.0) };
    assert_eq!(judge.run_ended(2, Some(0), &served(folder.path(), &unknown)), AfterRun::Drop);
    let nothing = Observation { settled_bytes: None, ..observation(1, 1.0) };
    assert_eq!(judge.run_ended(3, Some(0), &served(folder.path(), &nothing)), AfterRun::Drop);
    let why: Vec<&str> = judge.failures.iter().flatten().map(String::as_str).collect();
    assert!(why[0].contains("at the last mark") && why[0].contains("as the process ended"), "{why:?}");
    assert!(why[1].contains("not known") && why[2].contains("not known"), "{why:?}");
}

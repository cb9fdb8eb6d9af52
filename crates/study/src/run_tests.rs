//! Tests of the conversion of outcomes to verdicts, without running anything.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::build::{build_folder, why_not_preloaded};
use super::claim::{JudgedClaim, Verdict, judge};
use super::data::{Data, MeasuredData};
use super::file::Study;
use super::matrix::{Form, Key, Matrix};
use super::needs::{self, CheckedCells};
use super::run::{Failures, PlanRuns};
use super::tests::GOOD;
use super::{cell, run};
use strandline_inspect::readers::ALLOCATORS;
use strandline_lab::cell::{End, Figures, Outcome, Subject};
use strandline_lab::engine::Results;

fn matrix(text: &str) -> Matrix {
    Matrix::full(Arc::new(Study::parse(Path::new("/nowhere/x/study.toml"), text).unwrap()))
}

fn outcome(end: End, instructions: u64, wall_seconds: f64) -> Outcome {
    let figures =
        Figures { instructions: Some(instructions), wall_seconds: Some(wall_seconds), ..Figures::default() };
    Outcome { end, figures, ..Outcome::not_started(String::new()) }
}

fn results(outcomes: Vec<Vec<Outcome>>) -> Results {
    Results {
        outcomes: outcomes.into_iter().map(|cell| cell.into_iter().map(Some).collect()).collect(),
        ..Results::default()
    }
}

fn without_failures(results: &Results) -> PlanRuns<'_> {
    const NO_FAILURES: &Failures = &Failures::new();
    PlanRuns { results, failures: NO_FAILURES }
}

fn claims(matrix: &Matrix, data: Data) -> Vec<JudgedClaim> {
    let measured: Arc<dyn MeasuredData> = Arc::new(data);
    let matrix = Arc::new(matrix.clone());
    matrix.study.claims.iter().map(|claim| judge(claim, &matrix, &measured)).collect()
}

fn claim(holds: &str) -> String {
    format!("[[claim]]\nid = 'c'\ntext = 'c'\nholds = '{holds}'\n")
}

const COUNTED: &str = "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\n[measure]\n\
    instructions = 'cachegrind'\n[metrics]\nthousands = 'metric(\"instructions\") / 1000'\n";

#[test]
fn derived_metrics_read_the_counts_of_claims_without_failed_runs() {
    let matrix = matrix(COUNTED);
    let runnable = needs::check_cells(&matrix).unwrap();
    let good = |count| outcome(End::Exited(0), count, 1.0);
    let timed = results(vec![vec![good(5), good(5), good(5)]]);
    let counted = results(vec![vec![good(7000), outcome(End::Exited(3), 9, 1.0), good(9000)]]);
    let data =
        run::collect_data(&matrix, &runnable, without_failures(&timed), Some(without_failures(&counted)));
    let cell = data.cells.values().next().unwrap();
    assert_eq!(cell.samples["instructions"], [Some(7000.0), None, Some(9000.0)]);
    assert_eq!(cell.samples["thousands"], [Some(7.0), None, Some(9.0)]);
}

#[test]
fn a_mostly_failing_cell_supports_no_claim_and_one_failure_is_reported() {
    let text = "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\n".to_owned()
        + &claim("median(\"wall_seconds\") < 5");
    let matrix = matrix(&text);
    let runnable = needs::check_cells(&matrix).unwrap();
    let (good, bad) = (|| outcome(End::Exited(0), 1, 1.0), || outcome(End::Exited(3), 1, 1.0));
    let judged = |runs: Vec<Outcome>, failures: u32| {
        let failures = [(0, run::CellFailures { count: failures, last_outcome: bad() })].into();
        claims(
            &matrix,
            run::collect_data(
                &matrix,
                &runnable,
                PlanRuns { results: &results(vec![runs]), failures: &failures },
                None,
            ),
        )
        .remove(0)
    };
    let dropped = judged(vec![bad(), good(), bad()], 2);
    assert_eq!(dropped.verdict, Verdict::NotRun);
    assert_eq!(dropped.reason.as_deref(), Some("it failed in 2 of 3 runs: exit status 3"));
    let once = judged(vec![good(), bad(), good()], 1);
    assert_eq!((once.verdict, once.reason.as_deref()), (Verdict::Holds, Some("from 2 of 3 runs")));
}

#[test]
fn an_interval_that_is_not_known_is_not_the_median() {
    let text = "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\n".to_owned()
        + &claim("high(\"wall_seconds\") < 5");
    let matrix = matrix(&text);
    let runnable = needs::check_cells(&matrix).unwrap();
    let runs = results(vec![vec![outcome(End::Exited(0), 1, 1.0)]]);
    let data = run::collect_data(&matrix, &runnable, without_failures(&runs), None);
    let judged = claims(&matrix, data).remove(0);
    assert_eq!(judged.verdict, Verdict::NotRun);
    assert!(judged.reason.unwrap().contains("too few repeats"));
}

#[test]
fn a_claim_that_read_nothing_does_not_hold() {
    let text = "title = 't'\n[axes]\nsize = [1, 2]\n[[subject]]\nname = 's'\ncommand = 'true {size}'\n"
        .to_owned()
        + &claim("values(\"size\").filter(s, s > 1).all(s, median(\"wall_seconds\", {\"size\": s}) < 5)");
    let study = matrix(&text).study;
    let one = Matrix::chosen(study, Form::Full, &[("size".to_owned(), vec!["1".to_owned()])]).unwrap();
    let judged = claims(&one, Data::default()).remove(0);
    assert_eq!(judged.verdict, Verdict::NotRun);
    assert_eq!(judged.reason.as_deref(), Some("it reads no cell of this run"));
}

#[test]
fn an_allocator_that_is_not_here_is_a_reason_not_to_run() {
    let study = Arc::new(Study::parse(Path::new("/nowhere/x/study.toml"), GOOD).unwrap());
    let names = ["glibc", "./no-such.so", "libno-such.so.9", "glibc"].map(str::to_owned).to_vec();
    let matrix = Matrix::chosen(study, Form::Full, &[("allocator".to_owned(), names)]).unwrap();
    let axis = &matrix.axes[1];
    assert_eq!(axis.choices.len(), 3, "each once");
    let path = std::env::current_dir().unwrap().join("no-such.so").display().to_string();
    assert_eq!(axis.choices[1].preload.as_ref(), Some(&path));
    for key in matrix.cells().unwrap().into_iter().filter(|key| key.choices[1] != Some(0)) {
        let subject = cell::subject_of_cell(&matrix, &key, Path::new("/root"), None).unwrap();
        let preload = subject.environment.iter().find(|(name, _)| name == "LD_PRELOAD").cloned();
        assert!(preload.is_some_and(|(_, value)| value.is_some_and(|value| value.contains("no-such"))));
        assert!(why_not_preloaded(&matrix, &key, Path::new("/root"), &subject).unwrap().contains("not here"));
        assert!(needs::missing_requirements(&matrix, &key).unwrap().contains("no-such"));
    }
}

#[test]
fn nothing_is_preloaded_into_what_takes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let own = scratch.path().join("own.so");
    std::fs::copy("/proc/self/exe", &own).unwrap();
    let text = format!(
        "title = 't'\n[axes]\na = ['glibc', {{ name = 'own', preload = '{}', environment = {{ LD_PRELOAD = 'other.so' }} }}]\n\
         [[subject]]\nname = 's'\ncommand = '/bin/cat'\n",
        own.display()
    );
    let matrix = matrix(&text);
    let key = &matrix.cells().unwrap()[1];
    let subject = cell::subject_of_cell(&matrix, key, scratch.path(), None).unwrap();
    let preload = subject.environment.iter().find(|(name, _)| name == "LD_PRELOAD").unwrap();
    assert_eq!(preload.1.as_ref().unwrap(), &format!("{}:other.so", own.display()));
    assert_eq!(why_not_preloaded(&matrix, key, scratch.path(), &subject), None);
    // The loader itself is linked statically.
    let loader = Subject { command: vec!["/lib64/ld-linux-x86-64.so.2".to_owned()], ..subject };
    let why = why_not_preloaded(&matrix, key, scratch.path(), &loader).unwrap();
    assert!(why.contains("linked statically"), "{why}");
}

#[test]
fn different_builds_have_separate_folders() {
    let text = "title = 't'\n[axes]\nopt = [0, 2]\nrun = [1, 2]\n[[subject]]\nname = 's'\n\
                command = '{build}/s {run}'\nbuild = 'cc -O{opt} -o {build}/s {dir}/s.c'\n";
    let matrix = matrix(text);
    let cells = matrix.cells().unwrap();
    let folders: Vec<PathBuf> =
        cells.iter().map(|key| build_folder(&matrix, key, Path::new("/r")).unwrap()).collect();
    assert_eq!(folders[0], folders[1], "the same commands");
    assert_ne!(folders[0], folders[2]);
    let subject = cell::subject_of_cell(&matrix, &cells[2], Path::new("/r"), None).unwrap();
    assert_eq!(subject.command[0], folders[2].join("s").display().to_string());
    let not_utf8 = Path::new(OsStr::from_bytes(b"/r\xff"));
    let refused = cell::subject_of_cell(&matrix, &cells[2], not_utf8, None).unwrap_err();
    assert!(refused.starts_with("/r") && refused.ends_with(": not UTF-8; give --dir another folder"));
    let missing = Key { subject: 7, ..cells[2].clone() };
    let refused = cell::subject_of_cell(&matrix, &missing, Path::new("/r"), None).unwrap_err();
    assert!(refused.ends_with(": there is no subject number 7"), "{refused}");
    let without =
        run::collect_data(&matrix, &CheckedCells::default(), without_failures(&Results::default()), None);
    assert!(without.cells.is_empty());
}

#[test]
fn choices_with_equal_numbers_are_distinguished_by_name() {
    let text = "title = 't'\n[axes]\nmode = [{ name = 'off', value = 1 }, { name = 'on', value = 1 }]\n\
                [[subject]]\nname = 's'\ncommand = 'true {mode}'\n"
        .to_owned()
        + &claim("values(\"mode\").all(m, median(\"wall_seconds\", {\"mode\": m}) < 3)");
    let both = matrix(&text);
    let runnable = needs::check_cells(&both).unwrap();
    let runs = |seconds| vec![outcome(End::Exited(0), 1, seconds)];
    let measured = results(vec![runs(1.0), runs(9.0)]);
    let data = run::collect_data(&both, &runnable, without_failures(&measured), None);
    assert_eq!(claims(&both, data)[0].verdict, Verdict::Fails);
    let by_number = text.replace("{\"mode\": m}", "{\"mode\": 1}");
    let lines = Study::parse(Path::new("x/study.toml"), &by_number).map(|_| ()).unwrap_err();
    assert!(lines[0].contains("both `off` and `on`"), "{lines:?}");
}

#[test]
fn subjects_are_compared_with_one_that_takes_fewer_axes() {
    for order in [["a", "b"], ["b", "a"]] {
        let subject = |name: &str| match name {
            "a" => "[[subject]]\nname = 'a'\ncommand = 'true {size}'\n",
            _ => "[[subject]]\nname = 'b'\naxes = []\ncommand = 'true'\n",
        };
        let text = format!("title = 't'\n[axes]\nsize = [1, 2]\n{}{}", subject(order[0]), subject(order[1]))
            + &claim("ratio(\"wall_seconds\", {\"subject\": \"a\"}, {\"subject\": \"b\"}) < 2");
        let matrix = matrix(&text);
        let runnable = needs::check_cells(&matrix).unwrap();
        let measured = results(vec![vec![outcome(End::Exited(0), 1, 1.0)]; 3]);
        let data = run::collect_data(&matrix, &runnable, without_failures(&measured), None);
        let judged = claims(&matrix, data).remove(0);
        assert_eq!((judged.verdict, judged.measured.len()), (Verdict::Holds, 2), "{:?}", judged.reason);
    }
}

#[test]
fn unknown_row_names_and_unfilled_placeholders_are_reported() {
    let rows = GOOD.replace("rows = [\"stranded\"]", "rows = [\"glibc.free.trimm\"]");
    let variables = GOOD.replace("MALLOC_CONF = \"x\"", "MALLOC_CONF = \"{siez}\"");
    for (text, expected) in [(rows, "did you mean `glibc.free.trim`?"), (variables, "did you mean {size}?")] {
        let lines = Study::parse(Path::new("x/study.toml"), &text).map(|_| ()).unwrap_err();
        assert!(lines.iter().any(|line| line.contains(expected)), "{lines:?}");
    }
}

const TWO: &str = "title = 't'\n[[subject]]\nname = 'a'\ncommand = 'a'\nneeds = []\nrepeats = 2\n\
    [subject.measure]\njson = ['x']\ntexts = ['said']\n\
    [[subject]]\nname = 'b'\ncommand = 'b'\n[measure]\njson = ['y']\n[metrics]\ndouble = '2 * metric(\"x\")'\n";

#[test]
fn a_subject_has_its_own_metrics_and_repeats() {
    let text = TWO.to_owned()
        + &claim("median(\"double\") < 5 && text(\"said\") == \"good\"")
        + "[[claim]]\nid = 'd'\ntext = 'd'\nholds = 'median(\"y\") < 5'\n";
    let matrix = matrix(&text);
    let names = |index: usize| matrix.subjects[index].metrics.clone();
    assert!(names(0).contains_key("double") && names(0).contains_key("said") && !names(0).contains_key("y"));
    assert!(names(1).contains_key("y") && !names(1).contains_key("double"));
    assert_eq!((matrix.run_count(), matrix.max_repeats()), (Some(2 + 5), 5));
    let folder = tempfile::tempdir().unwrap();
    let printed = |text: &str, name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Outcome { stdout: Some(path), ..outcome(End::Exited(0), 1, 1.0) }
    };
    let good = printed("{\"x\": 2, \"said\": \"good\", \"y\": 7}\n", "good");
    let bad = printed("{\"x\": 2, \"said\": \"bad\", \"y\": 7}\n", "bad");
    let cells: Vec<_> =
        needs::check_cells(&matrix).unwrap().unrunnable.into_iter().map(|cell| cell.key).collect();
    let runnable = CheckedCells { runnable: cells, unrunnable: Vec::new() };
    let judged = |last_outcome: &Outcome| {
        let runs = results(vec![vec![good.clone(), last_outcome.clone()], vec![good.clone(); 5]]);
        let data = run::collect_data(&matrix, &runnable, without_failures(&runs), None);
        claims(&matrix, data)
    };
    let same = judged(&good);
    assert_eq!((same[0].verdict, same[1].verdict), (Verdict::Holds, Verdict::Fails), "{same:#?}");
    let other = judged(&bad);
    assert_eq!(other[0].verdict, Verdict::NotRun);
    let reason = other[0].reason.as_deref().unwrap();
    assert_eq!(reason, "subject=a: said differs between runs: \"bad\", \"good\"");
}

#[test]
fn what_a_claim_reads_has_to_be_of_the_subject_that_it_names() {
    let wrong = |holds: &str| {
        let text = TWO.to_owned() + &claim(holds);
        Study::parse(Path::new("x/study.toml"), &text).map(|_| ()).unwrap_err().join("\n")
    };
    let line = wrong("median(\"y\", {\"subject\": \"a\"}) < 5");
    assert!(line.contains("the subject `a` has no metric `y`"), "{line}");
    assert!(wrong("median(\"said\") < 5").contains("is a text: write text(…)"));
    assert!(wrong("text(\"x\") == \"5\"").contains("is a figure: write median(…)"));
    assert!(wrong("text(\"said\") != \"\" || text(\"said\") == \"\"").contains("it cannot fail"));
}

#[test]
fn an_axis_without_choices_has_no_cells_until_the_user_gives_some() {
    let text = "title = 't'\n[axes.perl]\ndefault = []\n[[subject]]\nname = 's'\ncommand = '{perl} -e 1'\n"
        .to_owned()
        + &claim("median(\"wall_seconds\") < 5");
    let study = Arc::new(Study::parse(Path::new("x/study.toml"), &text).unwrap());
    let without = Matrix::chosen(study.clone(), Form::Full, &[]).unwrap();
    assert_eq!(without.cells().unwrap(), []);
    let judged = claims(&without, Data::default()).remove(0);
    assert_eq!(judged.reason.as_deref(), Some("nothing is chosen for perl: --axis perl=…"));
    let with = Matrix::chosen(study, Form::Full, &[("perl".to_owned(), vec!["true".to_owned()])]).unwrap();
    assert_eq!(with.cells().unwrap().len(), 1);
}

/// Data of runs of `matrix` that printed these lines, one list per cell; an empty line is a run
/// that printed nothing.
fn printed(matrix: &Matrix, cells: &[&[&str]]) -> Data {
    let folder = tempfile::tempdir().unwrap();
    let run = |(number, line): (usize, &&str)| {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, line).unwrap();
        Outcome { stdout: Some(path), ..outcome(End::Exited(0), 1, 1.0) }
    };
    let mut data = Data::default();
    for (index, lines) in cells.iter().enumerate() {
        let mut runs = vec![Vec::new(); cells.len()];
        runs[index] = lines.iter().enumerate().map(run).collect();
        let runnable = CheckedCells { runnable: matrix.cells().unwrap(), unrunnable: Vec::new() };
        let all = run::collect_data(matrix, &runnable, without_failures(&results(runs)), None);
        let key = &runnable.runnable[index];
        data.cells.insert(key.clone(), all.cells[key].clone());
    }
    data
}

#[test]
fn what_one_run_of_four_gave_is_not_what_all_gave() {
    let text =
        "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\nrepeats = 4\n[measure]\ntexts = ['msg']\n\
                json = ['x']\n"
            .to_owned()
            + &claim("text(\"msg\") == \"ok\"")
            + "[[claim]]\nid = 'x'\ntext = 'x'\nholds = 'median(\"x\") < 5'\n";
    let matrix = matrix(&text);
    let one = claims(&matrix, printed(&matrix, &[&["{\"msg\": \"ok\", \"x\": 1}", "", "", ""]]));
    assert_eq!((one[0].verdict, one[0].reason.as_deref()), (Verdict::NotRun, Some("1 of 4 runs gave msg")));
    assert_eq!((one[1].verdict, one[1].reason.as_deref()), (Verdict::Holds, Some("from 1 of 4 runs")));
    let all = claims(&matrix, printed(&matrix, &[&["{\"msg\": \"ok\", \"x\": 1}"; 4]]));
    assert!(all.iter().all(|claim| claim.verdict == Verdict::Holds && claim.reason.is_none()), "{all:#?}");
}

#[test]
fn a_ratio_blames_the_cell_that_lacks_the_figure() {
    let text = "title = 't'\n[axes]\nn = [1, 2]\n[[subject]]\nname = 's'\ncommand = 'true {n}'\n[measure]\n\
                json = ['x']\n"
        .to_owned()
        + &claim("ratio(\"x\", {\"n\": 1}, {\"n\": 2}) < 2");
    let matrix = matrix(&text);
    let reason = |cells: &[&[&str]]| claims(&matrix, printed(&matrix, cells)).remove(0).reason.unwrap();
    let given: &[&str] = &["{\"x\": 1}"];
    assert_eq!(reason(&[given, &[""]]), "n=2: no run gave x");
    assert_eq!(reason(&[&[""], given]), "n=1: no run gave x");
    assert!(reason(&[given, &["{\"x\": 0}"]]).starts_with("n=2: no ratio of x: "));
}

#[test]
fn what_fails_under_cachegrind_takes_nothing_but_its_counts() {
    let text = COUNTED.to_owned()
        + &claim("median(\"wall_seconds\") < 5")
        + "[[claim]]\nid = 'd'\ntext = 'd'\nholds = 'median(\"thousands\") < 5'\n";
    let matrix = matrix(&text);
    let runnable = needs::check_cells(&matrix).unwrap();
    let (good, bad) = (|| outcome(End::Exited(0), 7000, 1.0), || outcome(End::Exited(3), 9, 1.0));
    let judged = |counted: Vec<Outcome>, failures: u32| {
        let failures = [(0, run::CellFailures { count: failures, last_outcome: bad() })].into();
        let (timed, counted) = (results(vec![vec![good(), good(), good(), good()]]), results(vec![counted]));
        let counted = Some(PlanRuns { results: &counted, failures: &failures });
        let data = run::collect_data(&matrix, &runnable, without_failures(&timed), counted);
        claims(&matrix, data)
    };
    let mostly = judged(vec![bad(), good(), bad()], 2);
    assert_eq!((mostly[0].verdict, mostly[0].reason.as_deref()), (Verdict::Holds, None));
    assert_eq!(mostly[1].verdict, Verdict::NotRun);
    assert_eq!(mostly[1].reason.as_deref(), Some("under cachegrind it failed in 2 of 3 runs: exit status 3"));
    let once = judged(vec![good(), bad(), good()], 1);
    assert_eq!(
        (once[1].verdict, once[1].reason.as_deref().unwrap()),
        (Verdict::Fails, "the measured figures contradict it; from 2 of 3 runs")
    );
}

#[test]
fn processor_counts_are_not_mixed_with_cachegrind_counts() {
    let text = "title = 't'\n[[subject]]\nname = 'a'\ncommand = 'true'\n[subject.measure]\n\
                instructions = 'cachegrind'\n[[subject]]\nname = 'b'\ncommand = 'true'\n"
        .to_owned()
        + &claim("ratio(\"instructions\", {\"subject\": \"a\"}, {\"subject\": \"b\"}) < 5");
    let matrix = matrix(&text);
    let runnable = needs::check_cells(&matrix).unwrap();
    let runs = || results(vec![vec![outcome(End::Exited(0), 7000, 1.0)]; 2]);
    let counted = runs();
    let data =
        run::collect_data(&matrix, &runnable, without_failures(&runs()), Some(without_failures(&counted)));
    let judged = claims(&matrix, data).remove(0);
    assert_eq!(judged.reason.as_deref(), Some("subject=b: no run gave instructions"));
}

#[test]
fn libraries_of_allocators_are_those_of_the_table() {
    for (file, allocator) in [
        ("libjemalloc.so.2", Some("jemalloc")),
        ("jemalloc-5.3.0.so", Some("jemalloc")),
        ("libtcmalloc_minimal.so.4", Some("tcmalloc")),
        ("libmimalloc.so.2.0", Some("mimalloc")),
        ("own.so", None),
    ] {
        assert_eq!(run::allocator_of_file(file), allocator, "{file}");
    }
    for entry in ALLOCATORS {
        let name = entry.about.name;
        let allocator = run::allocator_of_file(&format!("lib{name}.so"));
        assert_eq!(allocator, entry.reader.map(|_| name), "{name}");
    }
}

#[test]
fn figures_that_are_not_listed_are_noted() {
    let values: Vec<String> = (0..201).map(|number| number.to_string()).collect();
    let text = format!(
        "title = 't'\n[axes]\nn = [{}]\n[[subject]]\nname = 's'\ncommand = 'true {{n}}'\n",
        values.join(", ")
    ) + &claim("values(\"n\").all(n, median(\"wall_seconds\", {\"n\": n}) < 5)");
    let matrix = matrix(&text);
    let cells = needs::check_cells(&matrix).unwrap();
    let runs = results(vec![vec![outcome(End::Exited(0), 1, 1.0)]; 201]);
    let judged = claims(&matrix, run::collect_data(&matrix, &cells, without_failures(&runs), None)).remove(0);
    assert_eq!((judged.verdict, judged.measured.len()), (Verdict::Holds, 200));
    assert_eq!(judged.reason.as_deref(), Some("it reads more figures than the 200 that are listed"));
}

#[test]
fn a_changed_file_behind_a_link_makes_another_lab() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = elsewhere.path().join("program");
    std::fs::write(&program, "1").unwrap();
    std::os::unix::fs::symlink(&program, folder.path().join("program")).unwrap();
    let file = folder.path().join("study.toml");
    let study = Study::parse(&file, "title = 't'\n[[subject]]\nname = 's'\ncommand = 'true'\n").unwrap();
    let matrix = Matrix::full(Arc::new(study));
    let identity = || serde_json::to_string(&run::study_identity(&matrix)).unwrap();
    let before = identity();
    std::fs::write(&program, "22").unwrap();
    assert_ne!(before, identity());
}

//! Tests of the checks that study files and probes undergo.

use std::path::Path;
use std::sync::Arc;

use super::claim::{Verdict, judge};
use super::data::{Data, MeasuredData};
use super::file::Study;
use super::matrix::{Form, Matrix};
use super::needs::{CheckedCells, ProbePhase, run_probes};
use strandline_lab::cell::{End, Outcome, Subject};
use strandline_lab::executor::{Executor, StopReason};

fn study(text: &str) -> Result<Arc<Study>, String> {
    let text = format!("title = 't'\n{text}");
    Study::parse(Path::new("/nowhere/x/study.toml"), &text).map(Arc::new).map_err(|lines| lines.join("\n"))
}

fn assert_refused(text: &str, expected: &str) {
    let lines = study(text).map(|_| ()).unwrap_err();
    assert!(lines.contains(expected), "{expected}: {lines}");
}

const SUBJECT: &str = "[[subject]]\nname = 's'\ncommand = 'true'\n";

#[test]
fn claims_may_use_choices_of_an_empty_axis_as_numbers_or_texts() {
    let study_with_axis = |axis: &str, holds: &str| {
        study(&format!(
            "[axes.{axis}]\ndefault = []\n{SUBJECT}[measure]\njson = ['n']\n[[claim]]\nid = 'c'\ntext = 'c'\n\
             holds = '{holds}'\n"
        ))
    };
    let numbers = study_with_axis("size", "values(\"size\").all(s, median(\"n\", {\"size\": s}) < 2 * s)");
    assert!(numbers.is_ok(), "{:?}", numbers.err());
    let texts = study_with_axis(
        "perl",
        "values(\"perl\").all(p, p.contains(\"x\") || median(\"n\", {\"perl\": p}) < 2)",
    );
    assert!(texts.is_ok(), "{:?}", texts.err());
    let list_operand =
        study_with_axis("size", "values(\"size\").all(s, median(\"n\", {\"size\": s}) < 2 * [s])");
    assert!(list_operand.err().is_some_and(|lines| lines.contains("Unsupported binary operator 'mul'")));
    let always_true =
        study_with_axis("size", "values(\"size\").all(s, median(\"n\", {\"size\": s}) * 0 < 1)");
    assert!(always_true.err().is_some_and(|lines| lines.contains("cannot fail")));
}

#[test]
fn predictions_are_rows_and_snapshots_apply_to_ledgers() {
    let rows = |rows: &str| format!("{SUBJECT}[measure]\nmarks = ['a']\n{rows}\n");
    let read = study(&rows("rows = ['remedy.jvm_gc', 'jvm.dead']\nsnapshot = true")).unwrap();
    assert!(read.measure.uses_snapshots);
    // The name of the key in older studies.
    let old_form = study(&rows("rows = ['remedy.jvm_gc', 'jvm.dead']\nphotograph = true")).unwrap();
    assert!(old_form.measure.uses_snapshots);
    assert_refused(&rows("rows = ['remedy.jvm_gone']"), "`remedy.jvm_gone` is not a row");
    assert_refused(&rows("snapshot = true"), "there are no `rows` to take");
}

#[test]
fn a_metric_has_one_type_in_all_subjects() {
    let two = "[[subject]]\nname = 'a'\ncommand = 'true'\n[subject.measure]\ntexts = ['x']\n\
               [[subject]]\nname = 'b'\ncommand = 'true'\n[measure]\njson = ['x']\n";
    assert_refused(two, "`x` is a text of the subject `a` and a figure of `b`");
    let texts = format!("{SUBJECT}[measure]\ntexts = ['x']\n");
    assert_refused(
        &format!("{texts}[metrics]\nd = '2 * metric(\"x\")'\n"),
        "`x` is a text; nothing can be derived from it",
    );
    let plot = "[axes]\nn = [1, 2]\n".to_owned() + &texts + "[[plot]]\ntitle = 'p'\nx = 'n'\ny = 'x'\n";
    assert_refused(&plot, "`x` is a text: a plot shows figures");
}

#[test]
fn ambiguous_or_unusable_names_are_refused() {
    assert_refused(
        &format!("[axes]\nsize = [1]\nSIZE = [1]\n{SUBJECT}"),
        "have one variable, STRANDLINE_AXIS_SIZE",
    );
    assert_refused(&format!("[axes]\nflags = ['-g,-O2']\n{SUBJECT}"), "`-g,-O2` has a comma");
    assert_refused("[[subject]]\nname = 'a,b'\ncommand = 'true'\n", "`a,b` has a comma");
    assert!(study(&format!("[axes]\nflags = [{{ name = 'all', value = '-g,-O2' }}]\n{SUBJECT}")).is_ok());
}

#[test]
fn a_claim_about_an_omitted_subject_has_a_reason() {
    let text = "[[subject]]\nname = 'a'\ncommand = 'true'\n[subject.measure]\njson = ['x']\n\
                [[subject]]\nname = 'b'\ncommand = 'true'\n[[claim]]\nid = 'c'\ntext = 'c'\n\
                holds = 'median(\"x\") < 5'\n";
    let only = [("subject".to_owned(), vec!["b".to_owned()])];
    let matrix = Arc::new(Matrix::chosen(study(text).unwrap(), Form::Full, &only).unwrap());
    let no_data: Arc<dyn MeasuredData> = Arc::new(Data::default());
    let judged_claim = judge(&matrix.study.claims[0], &matrix, &no_data);
    assert_eq!(judged_claim.verdict, Verdict::NotRun);
    assert_eq!(judged_claim.reason.as_deref(), Some("its subject is not part of this run"));
}

/// An executor that starts nothing and records the subjects.
#[derive(Default)]
struct RecordingExecutor {
    started: Vec<Subject>,
}

impl Executor for RecordingExecutor {
    fn run(&mut self, subject: &Subject, _: &Path) -> Result<Outcome, StopReason> {
        self.started.push(subject.clone());
        Ok(Outcome { end: End::Exited(0), ..Outcome::not_started(String::new()) })
    }

    fn no_counters_reason(&self) -> Option<String> {
        None
    }
}

#[test]
fn a_probe_runs_once_for_each_environment_of_its_cells() {
    let text = "[settings]\nenvironment = { PERL5LIB = '/own' }\n[axes]\nn = [1, 2]\n\
                mode = ['off', { name = 'on', environment = { MODE = 'on' } }]\n\
                [[subject]]\nname = 's'\ncommand = 'true'\nenvironment = { OF_SUBJECT = 'yes' }\n\
                needs = [{ probe = 'true', name = 'a module' }]\n";
    let matrix = Matrix::full(study(text).unwrap());
    let mut runnable = CheckedCells { runnable: matrix.cells().unwrap(), unrunnable: Vec::new() };
    let mut executor = RecordingExecutor::default();
    run_probes(&matrix, &mut runnable, Path::new("/r"), ProbePhase::Before, &mut executor, &|_| {}).unwrap();
    assert_eq!(runnable.runnable.len(), 4);
    let modes: Vec<Option<String>> = executor
        .started
        .iter()
        .map(|subject| {
            let value_of = |name: &str| subject.environment.iter().find(|(variable, _)| variable == name);
            assert_eq!(value_of("PERL5LIB").unwrap().1.as_deref(), Some("/own"));
            assert_eq!(value_of("OF_SUBJECT").unwrap().1.as_deref(), Some("yes"));
            value_of("MODE").and_then(|(_, value)| value.clone())
        })
        .collect();
    assert_eq!(modes, [None, Some("on".to_owned())], "one run per environment");
}

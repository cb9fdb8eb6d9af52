//! Tests of studies from their text to verdicts, without running anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use strandline_report::pages::page::Point;

use super::claim::{self, Verdict};
use super::data::{CellData, Data, MeasuredData};
use super::file::{Study, VariableSetting};
use super::matrix::{Form, Matrix};
use super::placeholders::{fill, placeholders};

pub const GOOD: &str = r#"
title = "A study"
about = "Of something."
[provenance]
who = "Somebody"
[settings]
repeats = 3
environment = { MALLOC_ARENA_MAX = 1, GONE = false }
limits = { memory = "512MiB" }
[axes]
size = [2_000, 200000]
[axes.allocator]
values = ["glibc", { name = "jemalloc", preload = "libjemalloc.so.2", install = "apt install libjemalloc2", environment = { MALLOC_CONF = "x" } }]
default = ["glibc"]
[[subject]]
name = "blocks"
command = "python3 {dir}/blocks.py {size} 'sub { 1 }' {{size}}"
needs = ["python3", { tool = "cc", install = "apt install gcc" }]
[measure]
marks = ["during", "after{1..2}"]
columns = ["rss_bytes", "VmData"]
rows = ["stranded"]
at = ["during", "exit"]
json = ["kept"]
[metrics]
half = 'metric("freed") / 2'
freed = 'metric("during.rss_bytes") - metric("after1.rss_bytes")'
[[exclude]]
where = { size = 2000, allocator = "jemalloc" }
why = "too small"
[[claim]]
id = "falls"
text = "RSS falls for large blocks"
holds = 'median("after1.rss_bytes", {"size": 200000}) < 0.5 * median("during.rss_bytes", {"size": 200000})'
published = { figure = 0.4 }
tolerance = 0.1
why = "as the author says"
[[claim]]
id = "all"
text = "each run takes time"
holds = 'values("size").all(s, ratio("kept", {"size": s}, {"size": 2000}) >= 1)'
[[table]]
title = "RSS"
rows = "size"
columns = ["during.rss_bytes", "freed"]
[[plot]]
title = "RSS"
x = "size"
y = "freed"
series = "allocator"
"#;

pub fn good() -> Arc<Study> {
    Arc::new(Study::parse(Path::new("good/study.toml"), GOOD).unwrap())
}

fn problems(text: &str) -> Vec<String> {
    Study::parse(Path::new("bad/study.toml"), text).map(|_| ()).unwrap_err()
}

/// The problems of `GOOD` after one replacement.
fn changed(from: &str, to: &str) -> Vec<String> {
    assert!(GOOD.contains(from), "{from}");
    problems(&GOOD.replace(from, to))
}

#[test]
fn a_study_is_read_completely() {
    let study = good();
    assert_eq!((study.title.as_str(), study.settings.repeats), ("A study", 3));
    assert_eq!(study.settings.environment[1], VariableSetting { name: "GONE".to_owned(), value: None });
    assert_eq!(study.settings.limits.memory_bytes, Some(512 << 20));
    assert_eq!(study.subjects[0].command[3], "sub { 1 }");
    assert_eq!(study.subjects[0].axes, ["size", "allocator"]);
    assert_eq!(study.derived.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["freed", "half"]);
    assert_eq!(study.measure.ledger_option(), "marks,exit");
    for metric in ["after2.VmData", "exit.stranded", "kept", "half", "wall_seconds"] {
        assert!(study.metrics.contains_key(metric), "{metric}");
    }
}

#[test]
fn every_mistake_is_reported_with_its_place_and_all_at_once() {
    let text = "title = 1\nunknwon = 2\n[settings]\nrepeat = 3\n[[subject]]\nname = \"a\"\ncommand = \"x {nothing}\"\n";
    let lines = problems(text);
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(
        lines[0].starts_with("bad/study.toml:1:9: study: `title`: expected a string, not a whole number")
    );
    assert!(
        lines[1].starts_with("bad/study.toml:2:1: study: there is no key `unknwon` here"),
        "{}",
        lines[1]
    );
    assert!(lines[2].starts_with("bad/study.toml:4:1: ") && lines[2].ends_with("did you mean `repeats`?"));
    let lines = problems("title = \"x\ny = 1\n[a]\n[a]\n");
    assert!(lines.len() > 1 && lines[0].starts_with("bad/study.toml:1:"), "{lines:#?}");
}

#[test]
fn unknown_names_are_reported() {
    for (from, to, wanted) in [
        ("{dir}/blocks.py {size}", "{dir}/blocks.py {seize}", "did you mean {size}?"),
        ("{dir}/blocks.py {size}", "{dir}/blocks.py {nothing}", "write {{nothing}} for the braces"),
        ("title = \"RSS\"\nrows = \"size\"", "title = \"RSS\"\nrows = \"sizes\"", "no axis `sizes`"),
        ("columns = [\"during.rss_bytes\"", "columns = [\"during.rss\"", "did you mean `during.rss_bytes`?"),
        (
            "median(\"after1.rss_bytes\"",
            "median(\"after3.rss_bytes\"",
            "[[claim]] falls: there is no metric `after3.rss_bytes`",
        ),
        ("{\"size\": 200000})'", "{\"order\": 1})'", "no axis `order`"),
        ("{\"size\": 200000})'", "{\"size\": 300})'", "no value `300` on the axis `size`"),
        ("{\"size\": 200000})'", "{\"size\": x})'", "there is no `x`"),
        ("values(\"size\").all", "values(\"sizes\").all", "no axis `sizes`"),
        ("series = \"allocator\"", "series = \"alloc\"", "no axis `alloc`"),
        ("where = { size = 2000", "where = { size = 3", "no value `3`"),
        ("id = \"all\"", "id = \"falls\"", "`falls` is defined twice"),
        ("size = [2_000, 200000]", "size = [2_000, 2000]", "`2000` is defined twice"),
        ("metric(\"freed\") / 2", "metric(\"half\") / 2", "a cycle"),
        ("metric(\"freed\") / 2", "metric(\"freeed\") / 2", "no metric `freeed`"),
        ("metric(\"freed\") / 2", "2", "reads no metric"),
        ("half =", "wall_seconds =", "two metrics called `wall_seconds`"),
        ("why = \"as the author says\"", "note = \"x\"", "`tolerance` without `why`"),
        ("columns = [\"rss_bytes\", \"VmData\"]", "columns = [\"rss\"]", "columns: `rss` is not a column"),
        ("at = [\"during\", \"exit\"]", "at = [\"now\"]", "neither a mark nor exit nor peak"),
        ("marks = [", "marks = [\"exit\", ", "`exit` has its own meaning"),
    ] {
        let lines = changed(from, to);
        assert!(lines.iter().any(|line| line.contains(wanted)), "{to}: {wanted}: {lines:#?}");
        assert!(lines.iter().all(|line| line.starts_with("bad/study.toml:")), "{lines:#?}");
    }
}

#[test]
fn a_claim_that_cannot_fail_is_refused() {
    let from = "values(\"size\").all(s, ratio(\"kept\", {\"size\": s}, {\"size\": 2000}) >= 1)";
    let one = "median(\"during.rss_bytes\", {\"size\": 2000})";
    for (holds, wanted) in [
        ("1 < 2".to_owned(), "reads nothing"),
        ("true".to_owned(), "reads nothing"),
        ("near(published.figure, 1, 0.5)".to_owned(), "reads nothing"),
        (format!("{one} >= 0"), "cannot fail"),
        (format!("{one} > 5 || true"), "cannot fail"),
        (format!("{one} == {one}"), "cannot fail"),
        (format!("{one} < 0"), "fails whatever"),
        (format!("{one} + 1"), "true or false"),
        (format!("{one} < \"text\""), "claim"),
        ("median(\"kept\") > 1 &&".to_owned(), "it ends where something is missing"),
        ("system(\"ls\") > 1".to_owned(), "no function `system`"),
        ("foo_bar(metric(\"rss_bytes\")) > 1".to_owned(), "no function `foo_bar`"),
        ("values(\"size\").map(a, values(\"size\").map(b, [1,2,3,4,5,6,7,8,9].map(c, [1,2,3,4,5,6,7,8,9].map(d, \
          [1,2,3,4,5,6,7,8,9].map(e, [1,2,3,4,5,6,7,8,9].map(f, median(\"kept\"))))))).size() > 1".to_owned(), "steps"),
    ] {
        let lines = changed(from, &holds);
        assert!(lines.iter().any(|line| line.contains(wanted)), "{holds}: {lines:#?}");
    }
    for holds in [
        format!("{one} > 5"),
        format!("near({one}, 4 * median(\"during.rss_bytes\", {{\"size\": 200000}}), 0.01)"),
        "ratio_high(\"wall_seconds\", {\"size\": 2000}, {\"size\": 200000}) < 0.7".to_owned(),
        "median(\"half\") >= 0".to_owned(),
        "values(\"size\").map(s, median(\"kept\", {\"size\": s})).exists(x, x > 2 * 800)".to_owned(),
        "[1, 2].all(n, median(\"after\" + string(int(n)) + \".rss_bytes\") < 5000)".to_owned(),
    ] {
        let text = GOOD.replace(from, &holds);
        let read = Study::parse(Path::new("good/study.toml"), &text);
        assert!(read.is_ok(), "{holds}: {:#?}", read.map(|_| ()));
    }
}

#[test]
fn hostile_expressions_end() {
    let from = "values(\"size\").all(s, ratio(\"kept\", {\"size\": s}, {\"size\": 2000}) >= 1)";
    for holds in [
        "(".repeat(3_000),
        "!".repeat(3_000) + "true",
        "-".repeat(3_000) + "1",
        "1+".repeat(1_900) + "1 > 2",
        "[".repeat(1_000) + &"]".repeat(1_000),
        "true ? ".repeat(400),
        "a".repeat(5_000),
        format!("median(\"kept\") < double(size([\"xxxxxxxxxx\"]{}[0]))", ".map(s, s + s)".repeat(40)),
        format!("median(\"kept\") < 1 || [1]{} == []", ".map(s, [s, s])".repeat(40)),
        format!(
            "median(\"kept\") < 1 || {{{}true{}: 1}}.size() > 0",
            "[1, 2].all(s, ".repeat(40),
            ")".repeat(40)
        ),
    ] {
        assert!(!changed(from, &holds).is_empty());
    }
}

#[test]
fn a_claim_about_how_runs_differ_can_fail() {
    let from = "values(\"size\").all(s, ratio(\"kept\", {\"size\": s}, {\"size\": 2000}) >= 1)";
    for holds in
        ["most(\"kept\") < 1.5 * least(\"kept\")", "high(\"wall_seconds\") - low(\"wall_seconds\") < 0.1"]
    {
        let read = Study::parse(Path::new("good/study.toml"), &GOOD.replace(from, holds));
        assert!(read.is_ok(), "{holds}: {:#?}", read.map(|_| ()));
    }
}

fn data(
    matrix: &Matrix,
    of: impl Fn(&BTreeMap<String, String>) -> BTreeMap<String, f64>,
) -> Arc<dyn MeasuredData> {
    let mut data = Data::default();
    for key in matrix.cells().unwrap() {
        let names: BTreeMap<String, String> = matrix.names_by_axis(&key);
        let samples = of(&names).into_iter().map(|(metric, value)| (metric, vec![Some(value); 3])).collect();
        data.cells.insert(key, CellData { samples, ..CellData::default() });
    }
    Arc::new(data)
}

#[test]
fn a_claim_is_judged_for_each_choice_that_it_does_not_name() {
    let study = good();
    let given = [("allocator".to_owned(), vec!["glibc".to_owned(), "/opt/other.so".to_owned()])];
    let matrix = Arc::new(Matrix::chosen(study.clone(), Form::Full, &given).unwrap());
    assert_eq!(matrix.cells().unwrap().len(), 4);
    assert_eq!(matrix.axes[1].choices[1].preload.as_deref(), Some("/opt/other.so"));
    let measured = data(&matrix, |names| {
        let after = if names["allocator"] == "glibc" { 10.0 } else { 90.0 };
        [("during.rss_bytes".to_owned(), 100.0), ("after1.rss_bytes".to_owned(), after)].into()
    });
    let judged = claim::judge(&study.claims[0], &matrix, &measured);
    assert_eq!(judged.verdict, Verdict::Fails);
    assert_eq!(judged.reason.as_deref(), Some("not for 1 of 2: allocator=/opt/other.so"));
    assert_eq!(judged.measured.len(), 4);
    assert_eq!(judged.measured[0].axes["size"], "200000");
    let judged = claim::judge(&study.claims[1], &matrix, &measured);
    assert_eq!(judged.verdict, Verdict::NotRun);
    assert!(judged.reason.unwrap().contains("no run gave kept"));
    let narrow =
        Arc::new(Matrix::chosen(study.clone(), Form::Full, &[("size".into(), vec!["2000".into()])]).unwrap());
    let judged = claim::judge(&study.claims[0], &narrow, &measured);
    assert_eq!(judged.reason.as_deref(), Some("size=200000 is not part of this run"));
    assert!(
        Matrix::chosen(study, Form::Full, &[("sise".into(), vec![])]).unwrap_err().contains("no such axis")
    );
}

#[test]
fn omitted_cells_are_not_run() {
    let matrix = Matrix::full(good());
    assert_eq!(matrix.cell_count(), Some(4));
    assert_eq!(matrix.cells().unwrap().len(), 3);
}

#[test]
fn cells_are_counted_before_they_are_made() {
    let values: Vec<String> = (0..10_000).map(|value| value.to_string()).collect();
    let axes: String = (0..8).map(|axis| format!("a{axis} = [{}]\n", values.join(","))).collect();
    let text = format!("title = \"x\"\n[[subject]]\nname = \"a\"\ncommand = \"true\"\n[axes]\n{axes}");
    let study = Arc::new(Study::parse(Path::new("x/study.toml"), &text).unwrap());
    let matrix = Matrix::full(study);
    assert_eq!(matrix.cell_count(), None);
    assert!(matrix.cells().unwrap_err().contains("too many"));
}

#[test]
fn placeholders_are_names_in_braces() {
    let text = "a {x} {{x}} sub { 1 } ${y} {} {1} {x";
    assert_eq!(placeholders(text), ["x", "y"]);
    let values = [("x".to_owned(), "{y}".to_owned())].into();
    assert_eq!(fill(text, &values), "a {y} {x} sub { 1 } ${y} {} {1} {x");
}

#[test]
fn derived_metrics_are_numbers_of_one_run() {
    let parse = |text: &str| super::expression::Expression::parse(text, &|_| None, &[]).unwrap();
    let metrics: BTreeMap<String, f64> = [("a.b".to_owned(), 6.0), ("c".to_owned(), 3.0)].into();
    assert_eq!(parse("metric(\"a.b\") / metric(\"c\") + 1").figure_of_run(&metrics), Some(3.0));
    assert_eq!(parse("max(metric(\"a.b\"), abs(-7))").figure_of_run(&metrics), Some(7.0));
    assert_eq!(parse("metric(\"c\") > 2 ? 1 : 0").figure_of_run(&metrics), Some(1.0));
    assert_eq!(parse("metric(\"d\")").figure_of_run(&metrics), None);
    assert_eq!(parse("metric(\"c\") / 0").figure_of_run(&metrics), None);
}

#[test]
fn tables_and_plots_show_what_was_measured() {
    let study = good();
    let given = [("allocator".to_owned(), vec!["glibc".to_owned(), "/o.so".to_owned()])];
    let matrix = Matrix::chosen(study.clone(), Form::Full, &given).unwrap();
    let measured = data(&matrix, |names| {
        let size: f64 = names["size"].parse().unwrap();
        [("during.rss_bytes".to_owned(), 1024.0 * size), ("freed".to_owned(), -size)].into()
    });
    let tables = super::table::tables(&study.tables[0], &matrix, &*measured);
    assert_eq!(tables.len(), 2, "one for each allocator");
    assert_eq!(tables[1].caption, "RSS (allocator=/o.so)");
    let texts: Vec<&str> = tables[0].rows[0].iter().map(|cell| cell.text.as_str()).collect();
    assert_eq!(texts, ["2000", "1.95 MiB", "−2,000"]);
    let plots = super::plots::plots(&study.plots[0], &matrix, &*measured);
    assert_eq!((plots.len(), plots[0].series.len()), (1, 2));
    assert_eq!(
        plots[0].series[0].points,
        [Point { x: 2000.0, y: -2000.0 }, Point { x: 200_000.0, y: -200_000.0 }]
    );
    let nothing = data(&matrix, |_| BTreeMap::new());
    assert!(super::plots::plots(&study.plots[0], &matrix, &*nothing).is_empty());
    assert_eq!(super::table::tables(&study.tables[0], &matrix, &*nothing)[0].rows[0][1].text, "–");
}

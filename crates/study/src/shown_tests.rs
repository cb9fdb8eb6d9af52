//! Tests of tables and plots: their content, and rejected declarations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::data::{CellData, Data};
use super::file::Study;
use super::matrix::Matrix;
use super::{plots, table};
use strandline_report::pages::page::Plot;

const MARKS: &str = "title = 't'\n[axes]\nlayout = ['classic', 'cow']\n[[subject]]\nname = 's'\ncommand = 'true'\n\
    [measure]\nmarks = ['start', 'f{1..20}']\ncolumns = ['rss_bytes', 'VmData']\nrows = ['stranded']\nat = ['f{1..20}']\n";

fn parse(shown_part: &str) -> Result<Study, Vec<String>> {
    Study::parse(Path::new("x/study.toml"), &format!("{MARKS}{shown_part}"))
}

fn matrix(shown_part: &str) -> Matrix {
    Matrix::full(Arc::new(parse(shown_part).unwrap()))
}

/// Data with each metric of each cell in each round.
fn data(matrix: &Matrix, rounds: usize, of: impl Fn(&BTreeMap<String, String>, &str, usize) -> f64) -> Data {
    let mut data = Data::default();
    for key in matrix.cells().unwrap() {
        let names: BTreeMap<String, String> = matrix.names_by_axis(&key);
        let mut cell = CellData::default();
        for metric in matrix.study.metrics.keys() {
            let samples = (0..rounds).map(|round| Some(of(&names, metric, round))).collect();
            cell.samples.insert(metric.clone(), samples);
        }
        data.cells.insert(key, cell);
    }
    data
}

/// The number of the mark in MiB; column `VmData` adds 100.
fn by_mark(_: &BTreeMap<String, String>, metric: &str, _: usize) -> f64 {
    let (mark, column) = metric.split_once('.').unwrap_or((metric, ""));
    let number: f64 = mark.trim_start_matches('f').parse().unwrap_or(0.0);
    (number + if column == "VmData" { 100.0 } else { 0.0 }) * 1_048_576.0
}

fn texts(table: &strandline_report::pages::page::Table, row: usize) -> Vec<String> {
    table.rows[row].iter().map(|cell| cell.text.clone()).collect()
}

#[test]
fn marks_are_rows_with_published_figures_beside_the_columns() {
    let matrix = matrix(
        "[[table]]\ntitle = 'T'\nrows = ['start', 'f{1..20}']\ncolumns = ['rss_bytes', 'VmData']\nunit = 'MiB'\n\
         where = { layout = 'cow' }\npublished = { f2 = { VmData = 77 }, start = { VmData = 1.5 } }\n",
    );
    let tables = table::tables(&matrix.study.tables[0], &matrix, &data(&matrix, 3, by_mark));
    assert_eq!((tables.len(), tables[0].rows.len()), (1, 21));
    let heads: Vec<&str> = tables[0].columns.iter().map(|column| column.title.as_str()).collect();
    assert_eq!(heads, ["", "rss_bytes", "VmData", "published"]);
    assert_eq!(texts(&tables[0], 0), ["start", "0", "100", "1.50"]);
    assert_eq!(texts(&tables[0], 2), ["f2", "2", "102", "77"]);
    assert_eq!(texts(&tables[0], 20), ["f20", "20", "120", "–"]);
}

fn plot_of(shown_part: &str) -> Vec<Plot> {
    let matrix = matrix(&format!("[[plot]]\ntitle = 'P'\n{shown_part}"));
    plots::plots(&matrix.study.plots[0], &matrix, &data(&matrix, 3, by_mark))
}

#[test]
fn a_line_is_drawn_for_each_column_through_the_marks() {
    let plot = plot_of("x = ['start', 'f{1..3}']\ny = ['rss_bytes', 'VmData']\n").remove(0);
    assert_eq!(plot.title, "P (layout=classic)");
    assert_eq!((plot.x_names.join(" ").as_str(), plot.x_label.as_str()), ("start f1 f2 f3", "mark"));
    let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["rss_bytes", "VmData"]);
    let places: Vec<f64> = plot.series[1].points.iter().map(|point| point.0).collect();
    assert_eq!(places, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(plot.series[1].points[3].1, 103.0 * 1_048_576.0);
    assert!(plot.y_is_bytes && plot.y_label.is_empty());
}

#[test]
fn a_line_is_drawn_for_each_choice_through_the_marks() {
    for shown in [
        "x = ['f{1..3}.rss_bytes']\nseries = 'layout'\n",
        "x = ['f{1..3}']\ny = 'rss_bytes'\nseries = 'layout'\n",
    ] {
        let plots = plot_of(shown);
        assert_eq!((plots.len(), plots[0].series.len()), (1, 2), "{shown}");
        assert_eq!((plots[0].title.as_str(), plots[0].series[1].name.as_str()), ("P", "cow"));
        assert_eq!(plots[0].x_names, ["f1", "f2", "f3"]);
        assert_eq!(plots[0].y_label, "rss_bytes");
        assert_eq!(plots[0].series[1].points[2].1, 3.0 * 1_048_576.0);
    }
}

#[test]
fn many_names_with_numbers_are_an_axis_of_numbers() {
    let plot = plot_of("x = ['f{1..20}']\ny = ['rss_bytes', 'stranded']\n").remove(0);
    assert!(plot.x_names.is_empty());
    assert_eq!(plot.x_label, "f");
    assert_eq!(plot.series[0].points[19], (20.0, 20.0 * 1_048_576.0));
    let titled = "x_title = 'depth'\ny_title = 'memory'\n";
    let plot = plot_of(&format!("x = ['f{{1..20}}']\ny = ['rss_bytes']\n{titled}")).remove(0);
    assert_eq!((plot.x_label.as_str(), plot.y_label.as_str()), ("depth", "memory"));
    let bars = plot_of("x = ['f{1..20}']\ny = ['rss_bytes']\nkind = 'bars'\n").remove(0);
    assert_eq!(bars.x_names.len(), 20, "rows have names");
}

#[test]
fn ratios_have_intervals_and_statistics() {
    let shown = |more: &str| {
        let matrix = matrix(&format!(
            "[[table]]\ntitle = 'T'\nrows = 'layout'\ncolumns = ['high_water_bytes']\nratio_to = {{ layout = 'classic' }}\n\
             unit = '%'\npublished = {{ cow = {{ high_water_bytes = 72 }} }}\n{more}"
        ));
        let data = data(&matrix, 9, |names, _, round| {
            let part = if names["layout"] == "cow" { 0.72 + 0.001 * round as f64 } else { 1.0 };
            1e9 * part
        });
        texts(&table::tables(&matrix.study.tables[0], &matrix, &data)[0], 1)
    };
    assert_eq!(shown(""), ["cow", "72.4", "72"]);
    let whole = shown("interval = true\n").remove(1);
    let (low, high) = (shown("statistic = 'low'\n").remove(1), shown("statistic = 'high'\n").remove(1));
    assert_eq!(whole, format!("72.4 ({low} – {high})"));
    assert!(low.parse::<f64>().unwrap() < 72.4 && high.parse::<f64>().unwrap() > 72.4, "{whole}");
}

#[test]
fn what_tables_and_plots_name_has_to_be_there() {
    let table = "[[table]]\ntitle = 'T'\n";
    let plot = "[[plot]]\ntitle = 'P'\n";
    for (shown, wanted) in [
        (format!("{table}rows = ['start', 'f{{1..21}}']\ncolumns = ['VmData']\n"), "`f21.VmData`"),
        (format!("{table}rows = ['start']\ncolumns = ['stranded']\n"), "no metric `start.stranded`"),
        (format!("{table}rows = ['f1']\ncolumns = ['VmData']\nmetric = 'cycles'\n"), "`metric` has no place"),
        (format!("{table}rows = ['f{{1..9999}}']\ncolumns = ['VmData', 'b']\n"), "more than 10000 metrics"),
        (format!("{plot}x = ['f1', 'f2']\ny = ['VmDat']\n"), "no metric `f1.VmDat`"),
        (format!("{plot}x = ['f1']\ny = ['VmData', 'rss_bytes']\nseries = 'layout'\n"), "not both"),
        (format!("{plot}x = ['f1']\nseries = 'layout'\n"), "no metric `f1`"),
        (
            format!(
                "{table}rows = 'layout'\ncolumns = ['cycles']\npublished = {{ clasic = {{ cycles = 1 }} }}\n"
            ),
            "x/study.toml:16:15: [[table]] published: `clasic` is not a row of it; did you mean `classic`?",
        ),
        (
            format!("{table}rows = 'layout'\ncolumns = ['cycles']\npublished = {{ cow = {{ rss = 1 }} }}\n"),
            "x/study.toml:16:23: [[table]] published: `rss` is not a column of it; it has cycles",
        ),
        (
            format!(
                "{table}rows = 'layout'\ncolumns = ['cycles']\nstatistic = 'least'\nratio_to = {{ layout = 'cow' }}\n"
            ),
            "a ratio has a median, low and high",
        ),
    ] {
        let lines = parse(&shown).map(|_| ()).unwrap_err();
        assert!(lines.iter().any(|line| line.contains(wanted)), "{shown}: {lines:#?}");
    }
}

#[test]
fn a_table_is_of_the_subjects_that_have_what_it_shows() {
    let other =
        "[[subject]]\nname = 'other'\naxes = []\ncommand = 'true'\n[subject.measure]\nmarks = ['begin']\n";
    let table = "[[table]]\ntitle = 'T'\nrows = ['start', 'f1']\ncolumns = ['VmData']\n";
    let tables = |shown: &str| {
        let matrix = matrix(&format!("{other}{shown}"));
        let tables = table::tables(&matrix.study.tables[0], &matrix, &data(&matrix, 3, by_mark));
        tables.into_iter().map(|table| table.caption).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(tables(table), "T (subject=s, layout=classic); T (subject=s, layout=cow)");
    // No subject has both metrics.
    let both = "[[table]]\ntitle = 'T'\nrows = 'layout'\ncolumns = ['start.VmData', 'begin.rss_bytes']\n";
    assert_eq!(tables(both), "T (subject=s)");
    let wrong = format!("{other}{table}where = {{ subject = 'other' }}\n");
    let lines = parse(&wrong).map(|_| ()).unwrap_err();
    assert!(lines[0].ends_with("the subject `other` has no metric `start.VmData`"), "{lines:#?}");
}

#[test]
fn a_side_has_the_requested_choices_and_subjects_with_the_metric() {
    let text = "title = 't'\n[[subject]]\nname = 'a'\ncommand = 'a'\n[subject.measure]\njson = ['x']\n\
        [[subject]]\nname = 'b'\ncommand = 'b'\n[subject.measure]\njson = ['x']\n\
        [[subject]]\nname = 'c'\ncommand = 'c'\n";
    let table =
        |given: &str| format!("{text}[[table]]\ntitle = 't'\nrows = 'subject'\ncolumns = ['x']\n{given}");
    let names = |text: &str| {
        let study = Study::parse(Path::new("x/study.toml"), text).map_err(|lines| lines.join("\n"));
        let matrix = Matrix::full(Arc::new(study?));
        let tables = super::table::tables(&matrix.study.tables[0], &matrix, &Data::default());
        Ok(tables[0].rows.iter().map(|row| row[0].text.clone()).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(names(&table("")), Ok("a b".to_owned()));
    assert_eq!(names(&table("where = { subject = ['b', 'a'] }")), Ok("b a".to_owned()));
    assert_eq!(names(&table("where = { subject = 'b' }")), Ok("b".to_owned()));
    let other: Result<String, String> = names(
        &table("where = { size = [1, 2] }")
            .replace("[[subject]]\nname = 'a'", "[axes]\nsize = [1, 2]\n[[subject]]\nname = 'a'"),
    );
    assert!(other.unwrap_err().contains("several choices on `size`"));
}

#[test]
fn omitted_results_are_reported() {
    let many: Vec<String> = (0..120).map(|value| value.to_string()).collect();
    let text = format!(
        "title = 't'\n[axes]\na = [{}]\nb = [1, 2]\n[[subject]]\nname = 's'\ncommand = 'true'\n[measure]\n\
         json = ['kept']\n[[table]]\ntitle = 'T'\nrows = 'b'\ncolumns = ['kept']\n\
         [[plot]]\ntitle = 'By b'\nx = 'b'\ny = 'kept'\n[[plot]]\ntitle = 'By a'\nx = 'a'\ny = 'kept'\n\
         [[plot]]\ntitle = 'Lines'\nx = 'b'\ny = 'kept'\nseries = 'a'\n",
        many.join(", ")
    );
    let matrix = Matrix::full(Arc::new(Study::parse(Path::new("x/study.toml"), &text).unwrap()));
    let reported: Vec<String> = matrix
        .study
        .tables
        .iter()
        .filter_map(|spec| table::left_out(spec, &matrix))
        .chain(matrix.study.plots.iter().flat_map(|spec| plots::left_out(spec, &matrix)))
        .collect();
    assert_eq!(
        reported,
        [
            "table \"T\": 50 of 120 tables are shown; narrow an axis",
            "plot \"By b\": 24 of 120 plots are shown; narrow an axis",
            "plot \"Lines\": 100 of 120 lines are drawn; narrow an axis",
        ]
    );
}

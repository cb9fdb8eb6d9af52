//! Pages with known content for the tests of the writers.

use super::page::{
    Cell, Claim, Column, Fact, Interval, Page, Plot, PlotKind, Point, Section, Series, Snippet, Table, Tone,
};

fn columns(names: &[&str], figures: &[&str]) -> Vec<Column> {
    let words = names.iter().map(|title| Column::new(*title, false));
    words.chain(figures.iter().map(|title| Column::new(*title, true))).collect()
}

fn row(cells: &[&str]) -> Vec<Cell> {
    cells.iter().map(|text| Cell::plain(*text)).collect()
}

fn toned(mut row: Vec<Cell>, index: usize, tone: Tone) -> Vec<Cell> {
    row[index].tone = tone;
    row
}

fn points(figures: impl IntoIterator<Item = (f64, f64)>) -> Vec<Point> {
    figures.into_iter().map(|(x, y)| Point { x, y }).collect()
}

fn intervals(ends: impl IntoIterator<Item = (f64, f64)>) -> Vec<Interval> {
    ends.into_iter().map(|(low, high)| Interval { low, high }).collect()
}

fn environment() -> Vec<Fact> {
    [
        ("kernel", "6.18.5"),
        ("libc", "glibc 2.36"),
        ("THP", "madvise"),
        ("processors", "2"),
        ("load before", "0.31"),
    ]
    .map(|(name, value)| Fact::new(name, value))
    .to_vec()
}

fn comparison_plot() -> Plot {
    let strips = |name: &str, base: f64| Series {
        name: name.to_owned(),
        points: points((0..20).map(|n| (f64::from(n % 2), base * (1.0 + 0.004 * f64::from(n * 7 % 11))))),
        intervals: intervals((0..20).map(|_| (base * 1.01, base * 1.03))),
        ..Series::default()
    };
    Plot {
        title: "Wall time of each run".to_owned(),
        y_label: "wall time (seconds)".to_owned(),
        kind: PlotKind::Strips,
        series: vec![strips("p0", 1.241), strips("p1", 1.220)],
        x_names: vec!["C: many short strings".to_owned(), "D: medium strings".to_owned()],
        ..Plot::default()
    }
}

/// Two builds of an interpreter and five cases.
pub fn comparison() -> Page {
    let table = Table {
        caption: "Maximum resident memory in KiB (lower is better)".to_owned(),
        columns: columns(&[""], &["A", "B", "C", "D", "E"]),
        rows: vec![
            row(&["p0", "4,272", "4,260", "83,476", "99,284", "133,648"]),
            row(&["p1", "4,364", "4,436", "60,424", "107,216", "136,320"]),
            vec![],
            toned(
                toned(row(&["p1 to p0", "102 %", "same", "72 %", "107 %", "102 %"]), 3, Tone::Good),
                4,
                Tone::Bad,
            ),
        ],
    };
    let long = Table {
        caption: String::new(),
        columns: columns(
            &["metric"],
            &[
                "perl-5.42.0 -DPERL_COPY_ON_WRITE2",
                "perl-5.42.0 -DPERL_COPY_ON_WRITE3",
                "ratio",
                "99 % interval",
            ],
        ),
        rows: vec![
            toned(row(&["wall time", "1.241 s", "1.220 s", "0.983", "0.951 to 1.012"]), 3, Tone::Faint),
            toned(
                row(&["instructions", "8,640,112,331", "6,120,442,100", "0.708", "0.708 to 0.709"]),
                3,
                Tone::Good,
            ),
        ],
    };
    Page {
        title: "compare ./p0/perl ./p1/perl".to_owned(),
        headline:
            "p1 needs 28 % less memory than p0 for many short strings (C), and 7 % more for medium ones (D)."
                .to_owned(),
        sections: vec![
            Section { tables: vec![table], ..Section::default() },
            Section {
                heading: "Case C in full".to_owned(),
                paragraphs: vec!["10 rounds of each, in an order drawn by seed 42; 1 warm-up.".to_owned()],
                tables: vec![long],
                plots: vec![comparison_plot()],
                ..Section::default()
            },
        ],
        caveats: vec![
            "cycles: this machine does not count them (perf_event_open: No such file or directory)"
                .to_owned(),
            "p0: run 7 of case E took 1.9 times as long as the median, and is in the figures".to_owned(),
        ],
        environment: environment(),
    }
}

fn trial_plots(names: &[&str]) -> Vec<Plot> {
    let front = Plot {
        title: "Time beside settled memory".to_owned(),
        x_label: "settled memory".to_owned(),
        y_label: "wall time (seconds)".to_owned(),
        kind: PlotKind::Points,
        x_is_bytes: true,
        series: vec![Series {
            name: "candidates".to_owned(),
            points: points([
                (1.61 * 1073741824.0, 12.4),
                (612e6, 12.9),
                (410e6, 13.8),
                (1.60 * 1073741824.0, 12.5),
            ]),
            intervals: intervals([(12.2, 12.6), (12.7, 13.2), (13.5, 14.0), (12.3, 12.7)]),
            labels: vec![
                "baseline".into(),
                "mmap_threshold".into(),
                "jemalloc".into(),
                "MALLOC_ARENA_MAX=1".into(),
            ],
        }],
        ..Plot::default()
    };
    let bars = Plot {
        title: "Settled memory".to_owned(),
        y_label: "settled memory".to_owned(),
        kind: PlotKind::Bars,
        y_is_bytes: true,
        x_names: names.iter().map(|name| (*name).to_owned()).collect(),
        series: vec![Series {
            name: "settled".to_owned(),
            points: points([
                (0.0, 1.61 * 1073741824.0),
                (1.0, 612e6),
                (2.0, 410e6),
                (3.0, 1.6 * 1073741824.0),
            ]),
            intervals: intervals([(1.6e9, 1.8e9), (600e6, 650e6), (405e6, 418e6), (1.6e9, 1.75e9)]),
            ..Series::default()
        }],
        ..Plot::default()
    };
    vec![bars, front]
}

/// Candidates with long names, many columns, and a setting to copy.
pub fn trial() -> Page {
    let head = columns(
        &["", "setting"],
        &[
            "settled",
            "peak",
            "wall time",
            "minor faults",
            "settled to baseline",
            "time to baseline",
            "verdict",
        ],
    );
    let names = [
        "baseline",
        "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072",
        "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:0",
        "MALLOC_ARENA_MAX=1",
    ];
    let figures = [
        ["1.61 GiB", "1.71 GiB", "12.4 s", "1,622,418", "1", "1", "", "4"],
        ["612 MiB", "1.70 GiB", "12.9 s", "1,711,006", "0.371", "1.04", "better", "2"],
        ["410 MiB", "1.52 GiB", "13.8 s", "2,904,117", "0.249", "1.11", "better", "1"],
        ["1.60 GiB", "1.71 GiB", "12.5 s", "1,622,500", "0.994", "1.01", "same", "3"],
    ];
    let rows = names.iter().zip(&figures).map(|(name, figures)| {
        let mut cells = row(&[if figures[7] == "1" { "*" } else { "" }, name]);
        cells.extend(row(&figures[..7]));
        let tone = if figures[6] == "better" { Tone::Good } else { Tone::Faint };
        toned(cells, 8, tone)
    });
    Page {
        title: "try -- ./server --port 0".to_owned(),
        headline: "jemalloc with dirty_decay_ms:0 keeps a quarter of the settled memory, for 11 % more time."
            .to_owned(),
        sections: vec![Section {
            tables: vec![Table { caption: String::new(), columns: head, rows: rows.collect() }],
            plots: trial_plots(&names),
            snippets: vec![
                Snippet::new("For a systemd unit", "[Service]\nEnvironment=MALLOC_CONF=dirty_decay_ms:0"),
                Snippet::new("For a shell", "export MALLOC_CONF=dirty_decay_ms:0"),
            ],
            ..Section::default()
        }],
        caveats: Vec::new(),
        environment: environment(),
    }
}

/// Lines over a logarithmic axis of bytes, and named positions on another axis.
pub fn study() -> Page {
    let line = |name: &str, factor: f64| Series {
        name: name.to_owned(),
        points: points((4..20).map(|power| (2f64.powi(power), factor * (1.0 + f64::from(power)).powi(2)))),
        intervals: intervals((4..20).map(|power| {
            let y = factor * (1.0 + f64::from(power)).powi(2);
            (y * 0.9, y * 1.15)
        })),
        ..Series::default()
    };
    let sizes = Plot {
        title: "Bytes held for each string".to_owned(),
        x_label: "length of the string".to_owned(),
        y_label: "held for each (bytes)".to_owned(),
        x_is_bytes: true,
        y_is_bytes: true,
        x_is_logarithmic: true,
        series: vec![line("perl 5.36", 3.0), line("perl 5.42", 2.0), line("python 3.11", 1.2)],
        ..Plot::default()
    };
    let releases = Plot {
        title: "Over releases".to_owned(),
        y_label: "instructions".to_owned(),
        kind: PlotKind::Lines,
        y_is_logarithmic: true,
        x_names: (0..48).map(|release| format!("release 2.{release}.0-with-options")).collect(),
        series: vec![Series {
            name: "instructions".to_owned(),
            points: points((0..48).map(|release| (f64::from(release), 1e6 * 1.2f64.powi(release % 17)))),
            ..Series::default()
        }],
        ..Plot::default()
    };
    Page {
        title: "study short-strings".to_owned(),
        headline: "2 of 3 claims hold.".to_owned(),
        sections: vec![Section {
            heading: "Plots".to_owned(),
            plots: vec![sizes, releases],
            ..Section::default()
        }],
        ..Page::default()
    }
}

/// Plots with more points than can be distinguished.
pub fn crowded() -> Page {
    let wave = |n: u32| {
        300.0 * (f64::from(n) / 9_000.0).sin() + f64::from(n.wrapping_mul(2_654_435_761) % 977) / 9.0
    };
    let many = points((0..100_000).map(|n| (f64::from(n), wave(n))));
    let band = Series {
        name: "100,000 points".to_owned(),
        intervals: intervals(many.iter().map(|point| (point.y - 90.0, point.y + 90.0))),
        points: many.clone(),
        ..Series::default()
    };
    let cloud = |name: &str, by: f64| Series {
        name: name.to_owned(),
        points: points(many.iter().step_by(3).map(|Point { x, y }| (y * by + 700.0, x % 1_000.0 + y * by))),
        ..Series::default()
    };
    let size = |Point { x, y }: &Point| ((x / 300.0).floor(), 100e6 + (y * 40.0).floor() * 4096.0);
    let sizes = points(many.iter().take(900).map(size));
    let strips = Series { name: "sizes".to_owned(), points: sizes, ..Series::default() };
    let factors = |name: &str, first: i32| Series {
        name: name.to_owned(),
        points: points((0..4).map(|n| (f64::from(n), 10f64.powi(first + n)))),
        ..Series::default()
    };
    let plot = |title: &str, kind, series| Plot { title: title.to_owned(), kind, series, ..Plot::default() };
    let plots = vec![
        plot("Lines with a band", PlotKind::Lines, vec![band]),
        plot("Two clouds", PlotKind::Points, vec![cloud("one", 1.0), cloud("other", -1.0)]),
        Plot {
            y_is_bytes: true,
            y_label: "high-water mark".to_owned(),
            ..plot("Strips", PlotKind::Strips, vec![strips])
        },
        Plot {
            y_is_logarithmic: true,
            x_names: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            ..plot(
                "Bars by factors",
                PlotKind::Bars,
                vec![factors("one", -1), factors("two", 0), factors("three", 1)],
            )
        },
        plot("Nothing", PlotKind::Lines, vec![Series::default()]),
    ];
    let section = Section { plots, ..Section::default() };
    Page { title: "crowded".to_owned(), sections: vec![section], ..Page::default() }
}

/// A page in which every text is an attack.
pub fn hostile() -> Page {
    let text =
        || "</title><script>alert(1)</script>`|*x*|`[a](http://x)\u{1b}[2J\u{202e}\n# \"'\u{0}".to_owned();
    let cell = || Cell { text: text(), tone: Tone::Bad };
    Page {
        title: text(),
        headline: text(),
        sections: vec![Section {
            heading: text(),
            row_kind: text(),
            paragraphs: vec![text()],
            claims: vec![Claim {
                id: text(),
                statement: text(),
                verdict: cell(),
                published: text(),
                measured: text(),
                reason: text(),
                note: text(),
                figures: vec![text()],
            }],
            tables: vec![Table {
                caption: text(),
                columns: vec![
                    Column { title: text(), has_figures: true },
                    Column { title: text(), has_figures: false },
                ],
                rows: vec![vec![cell(), cell(), cell()], vec![], vec![cell()]],
            }],
            plots: vec![Plot {
                title: text(),
                x_label: text(),
                y_label: text(),
                x_names: vec![text(), text()],
                series: vec![
                    Series {
                        name: text(),
                        labels: vec![text()],
                        points: points([(0.0, 1.0)]),
                        intervals: vec![]
                    };
                    2
                ],
                ..Plot::default()
            }],
            snippets: vec![Snippet::new(text(), text() + "````\n")],
        }],
        caveats: vec![text()],
        environment: vec![Fact::new(text(), text())],
    }
}

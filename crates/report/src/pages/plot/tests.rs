use super::*;
use crate::pages::page::{Interval, Point};

fn xml_is_balanced(text: &str) {
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{}", &text[..60]);
    for tag in ["text", "title"] {
        assert_eq!(text.matches(&format!("<{tag}")).count(), text.matches(&format!("</{tag}>")).count());
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "what is not a number is not written");
}

fn plot(kind: PlotKind, points: Vec<(f64, f64)>) -> Plot {
    let points = points.into_iter().map(|(x, y)| Point { x, y }).collect();
    let series = vec![Series { name: "one".to_owned(), points, ..Series::default() }];
    Plot { kind, series, ..Plot::default() }
}

const KINDS: [PlotKind; 4] = [PlotKind::Lines, PlotKind::Points, PlotKind::Bars, PlotKind::Strips];

#[test]
fn any_figures_can_be_drawn() {
    let many: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), f64::from(x % 977) - 300.0)).collect();
    let worst = [
        vec![],
        vec![(0.0, 0.0)],
        vec![(3.0, 7.0); 50],
        vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (f64::NEG_INFINITY, f64::NAN)],
        vec![(f64::MAX, f64::MIN), (f64::MIN, f64::MAX)],
        vec![(5e-324, 5e-324), (-5e-324, -0.0)],
        vec![(1.0, 1e15), (2.0, 1e15 + 0.125)],
        many,
    ];
    for kind in KINDS {
        for points in &worst {
            for options in 0..16 {
                let mut plot = plot(kind, points.clone());
                plot.x_is_bytes = options & 1 > 0;
                plot.y_is_bytes = options & 1 > 0;
                plot.x_is_logarithmic = options & 2 > 0;
                plot.y_is_logarithmic = options & 4 > 0;
                if options & 8 > 0 {
                    plot.x_names = vec!["n".repeat(5_000), "漢字".repeat(30), String::new()];
                    plot.series[0].intervals =
                        points.iter().map(|&(_, y)| Interval { low: y - 1.0, high: y * 2.0 }).collect();
                    plot.series[0].labels = vec!["label".to_owned(); points.len()];
                }
                let text = svg(&plot);
                xml_is_balanced(&text);
                assert!(text.len() < 4_000_000, "{kind:?} {options}: {} bytes", text.len());
            }
        }
    }
    xml_is_balanced(&svg(&Plot::default()));
}

#[test]
fn many_series_and_names_are_counted() {
    for kind in KINDS {
        let one =
            Series { name: "s".repeat(300), points: vec![Point { x: 0.0, y: 1.0 }], ..Series::default() };
        let names = (0..5_000).map(|name| format!("name {name}")).collect();
        let text = svg(&Plot { kind, series: vec![one; 5_000], x_names: names, ..Plot::default() });
        xml_is_balanced(&text);
        assert!(text.contains("not drawn: 4,976 more series"), "{kind:?}");
        assert!(text.len() < 1_000_000);
    }
}

#[test]
fn hostile_names_are_no_markup() {
    let hostile = "</title><script>alert(1)</script>\"' onload=\u{1b}[2J\u{202e}&lt;".to_owned();
    for kind in KINDS {
        let series = Series {
            name: hostile.clone(),
            points: vec![Point { x: 0.0, y: 1.0 }, Point { x: 1.0, y: 2.0 }],
            labels: vec![hostile.clone(); 2],
            ..Series::default()
        };
        let text = svg(&Plot {
            title: hostile.clone(),
            x_label: hostile.clone(),
            y_label: hostile.clone(),
            x_names: vec![hostile.clone(); 2],
            series: vec![series.clone(), series],
            kind,
            ..Plot::default()
        });
        xml_is_balanced(&text);
        assert!(!text.contains("<script") && !text.contains('\u{1b}') && !text.contains('\u{202e}'));
    }
}

#[test]
fn shapes_are_drawn_at_their_values() {
    let mut bars = plot(PlotKind::Bars, vec![(0.0, 1_048_576.0), (1.0, 2_097_152.0)]);
    bars.x_names = vec!["baseline".to_owned(), "trimmed".to_owned()];
    bars.y_is_bytes = true;
    let text = svg(&bars);
    let widths: Vec<f64> = text
        .split("<rect ")
        .skip(1)
        .map(|bar| bar.split_once(" width=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap())
        .collect();
    assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "bars are as long as what they mean: {widths:?}");
    for word in ["baseline", "trimmed", "1 MiB", "2 MiB"] {
        assert!(text.contains(&format!(">{word}</text>")), "{word}");
    }
    let dropped = svg(&Plot {
        y_is_logarithmic: true,
        ..plot(PlotKind::Lines, vec![(1.0, 1.0), (2.0, 0.0), (3.0, 9.0)])
    });
    assert!(dropped.contains("not drawn: 1 point not above 0"));
    let repeated = svg(&plot(PlotKind::Bars, vec![(0.0, 1.0), (0.0, 2.0)]));
    assert!(repeated.contains("not drawn: 1 point after the first of a bar"));
}

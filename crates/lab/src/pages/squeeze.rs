//! Page of `squeeze`: the smallest limit, how the command fails below it, its slowdown above it,
//! and snippets to paste.

use super::{figure_column, median_text};
use crate::squeeze::LimitKind;
use crate::squeeze::findings::{Band, Findings, LimitResult};
use crate::squeeze::slowdown::{Level, LimitedFigure};
use crate::statistics::Estimate;
use strandline_process::shell::shell_word;
use strandline_report::pages::page::{
    Cell, Column, Fact, Interval, Page, Plot, PlotKind, Point, Section, Series, Snippet, Table, Tone,
};
use strandline_report::text::{clean_sentence, command_line, counted};
use strandline_report::units::{UNKNOWN, bytes, seconds, thousands};

/// Suggested limits are the smallest limit times this.
const HEADROOM: f64 = 1.2;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Suggested limits are rounded up to a multiple of this, from [`LARGE_LIMIT_BYTES`] on of a MiB.
const SMALL_STEP_BYTES: u64 = 64 * KIB;
/// See [`SMALL_STEP_BYTES`].
const LARGE_LIMIT_BYTES: u64 = 16 * MIB;
/// Maximum number of listed limits, nearest to the edge.
const MAX_LIMITS: usize = 24;

/// Builds the page of `findings`; `environment` describes this machine.
pub fn page(findings: &Findings, environment: Vec<Fact>) -> Page {
    let mut sections = vec![edge_section(findings)];
    sections.extend(failures_section(findings));
    sections.extend(slowdown_section(findings));
    sections.extend(snippets_section(findings));
    Page {
        title: format!("squeeze: {}", command_line(&findings.command)),
        headline: headline(findings),
        sections,
        caveats: findings.caveats.iter().map(|caveat| caveat.text.clone()).collect(),
        environment,
    }
}

/// The limited resource, as worded in sentences.
fn resource(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::AddressSpace => "address space",
        LimitKind::Data => "data segment",
        LimitKind::Cgroup => "memory in a control group",
    }
}

/// A limit, rounded and in bytes.
fn exact(limit_bytes: u64) -> String {
    format!("{} ({} bytes)", bytes(limit_bytes), thousands(limit_bytes))
}

/// The sentences on the smallest limit and its edge.
fn headline(findings: &Findings) -> String {
    let resource = resource(findings.kind);
    let mut text = match (findings.smallest_bytes, findings.largest_failing_bytes) {
        (Some(smallest), Some(failing)) if findings.band.is_none() && failing < smallest => {
            format!("{} of {resource} is enough; under {} it fails.", exact(smallest), exact(failing))
        }
        (Some(smallest), None) => format!(
            "{} of {resource} is enough: the command succeeds even under the smallest limit that can be tried.",
            exact(smallest)
        ),
        (Some(smallest), _) => format!("{} of {resource} is enough.", exact(smallest)),
        (None, Some(failing)) => format!(
            "No limit on its {resource} was found under which it succeeds: it fails under {} as well.",
            exact(failing)
        ),
        (None, None) => "Nothing was found.".to_owned(),
    };
    if let Some(band) = &findings.band {
        text += &format!(" {}", flaky(band));
    }
    if let Some(inversion) = findings.non_monotone {
        text += &format!(
            " More is not always better: it succeeds under {} and fails under {}, each time.",
            exact(inversion.succeeds_at_bytes),
            exact(inversion.fails_at_bytes)
        );
    }
    text
}

/// The sentence on a flaky edge.
fn flaky(band: &Band) -> String {
    let low = band.low_bytes.map_or_else(|| "the smallest limit".to_owned(), bytes);
    let high = band.high_bytes.map_or_else(|| "the largest limit".to_owned(), bytes);
    format!(
        "The edge is flaky: between {low} and {high} it sometimes fails ({} of {}).",
        band.failed,
        counted(u64::from(band.runs), "run")
    )
}

fn edge_section(findings: &Findings) -> Section {
    let mut paragraphs = Vec::new();
    if let (Some(smallest), Some(resolution)) = (findings.smallest_bytes, findings.resolution_bytes)
        && let Some(tally) = findings.limits.iter().find(|result| result.limit_bytes == smallest)
    {
        paragraphs.push(format!(
            "Found to {} in {}; {} succeeded under {}.",
            bytes(resolution),
            counted(findings.trials.len() as u64, "run"),
            counted(u64::from(tally.succeeded), "run"),
            bytes(smallest)
        ));
    }
    paragraphs.extend(unlimited(findings));
    Section {
        heading: "The edge".to_owned(),
        paragraphs,
        tables: vec![limits_table(findings)],
        plots: vec![trials_plot(findings)],
        ..Section::default()
    }
}

/// The sentence on what it used without a limit.
fn unlimited(findings: &Findings) -> Option<String> {
    let unlimited = &findings.unlimited;
    let resident = unlimited.high_water_bytes.map_or_else(|| UNKNOWN.to_owned(), bytes);
    let peak = match (findings.kind, unlimited.peak_bytes?) {
        (LimitKind::Cgroup, _) => String::new(),
        (kind, peak_bytes) => format!(" {} of {} and", bytes(peak_bytes), resource(kind)),
    };
    Some(format!("Without a limit its largest process reached{peak} {resident} of RSS."))
}

/// The tried limits nearest to the edge, in descending order.
fn limits_table(findings: &Findings) -> Table {
    let mut nearest: Vec<&LimitResult> = findings.limits.iter().collect();
    // Without an edge, no limit was tried.
    if let Some(edge) = findings.smallest_bytes.or(findings.largest_failing_bytes) {
        nearest.sort_by_key(|result| result.limit_bytes.abs_diff(edge));
    }
    let unlisted = nearest.len().saturating_sub(MAX_LIMITS);
    nearest.truncate(MAX_LIMITS);
    nearest.sort_by_key(|result| std::cmp::Reverse(result.limit_bytes));
    let rows = nearest.iter().map(|result| {
        let (word, tone) = match (result.succeeded, result.failed) {
            (_, 0) => ("succeeds", Tone::Good),
            (0, _) => ("fails", Tone::Bad),
            _ => ("flaky", Tone::Bad),
        };
        vec![
            Cell::plain(bytes(result.limit_bytes)),
            Cell::plain(thousands(result.limit_bytes)),
            Cell::plain((result.succeeded + result.failed).to_string()),
            Cell::plain(result.failed.to_string()),
            Cell { text: word.to_owned(), tone },
        ]
    });
    let caption = if unlisted == 0 {
        String::new()
    } else {
        format!("the {MAX_LIMITS} limits nearest to the edge; others are left out: {unlisted}")
    };
    let mut columns = ["limit", "bytes", "runs", "failed"].map(figure_column).to_vec();
    columns.push(Column::new("", false));
    Table { caption, columns, rows: rows.collect() }
}

/// Plot of every run: limit and success.
fn trials_plot(findings: &Findings) -> Plot {
    let points = |is_success: bool| {
        let numbered = findings.trials.iter().enumerate();
        numbered
            .filter(|(_, tried)| tried.is_success() == is_success)
            .filter_map(|(number, tried)| {
                Some(Point { x: (number + 1) as f64, y: tried.limit_bytes? as f64 })
            })
            .collect()
    };
    let series = |name: &str, is_success| Series {
        name: name.to_owned(),
        points: points(is_success),
        ..Series::default()
    };
    Plot {
        title: "Every run".to_owned(),
        x_label: "run".to_owned(),
        y_label: "limit".to_owned(),
        kind: PlotKind::Points,
        y_is_bytes: true,
        y_is_logarithmic: true,
        series: vec![series("succeeded", true), series("failed", false)],
        ..Plot::default()
    }
}

fn failures_section(findings: &Findings) -> Option<Section> {
    let failing = findings.largest_failing_bytes?;
    let rows = findings.failures.iter().map(|mode| {
        let range = if mode.low_bytes == mode.high_bytes {
            bytes(mode.high_bytes)
        } else {
            format!("{} – {}", bytes(mode.low_bytes), bytes(mode.high_bytes))
        };
        vec![Cell::plain(range), Cell::plain(mode.runs.to_string()), Cell::plain(clean_sentence(&mode.words))]
    });
    let table = Table {
        caption: String::new(),
        columns: vec![figure_column("under"), figure_column("runs"), Column::new("how", false)],
        rows: rows.collect(),
    };
    let stderr_tail = findings.failure.iter().map(|failure| &failure.stderr_tail);
    let snippets = stderr_tail.filter(|tail| !tail.is_empty()).map(|tail| {
        Snippet::new(format!("what it wrote to standard error last under {}", bytes(failing)), tail.clone())
    });
    Some(Section {
        heading: "How it fails below".to_owned(),
        tables: vec![table],
        snippets: snippets.collect(),
        ..Section::default()
    })
}

fn slowdown_section(findings: &Findings) -> Option<Section> {
    let levels = &findings.slowdown_near_limit;
    let runs = levels.first()?.runs;
    let rows = levels.iter().map(|level| {
        vec![
            Cell::plain(format!("{:.1} ×", level.factor)),
            Cell::plain(bytes(level.limit_bytes)),
            time_cell(level.wall_seconds.estimate.as_ref()),
            ratio_cell(&level.wall_seconds),
            count_cell(level.minor_faults.estimate.as_ref()),
            ratio_cell(&level.minor_faults),
            count_cell(level.major_faults.estimate.as_ref()),
        ]
    });
    let unlimited = &findings.unlimited;
    let unlimited_row = vec![
        Cell::plain("none"),
        Cell::plain(""),
        time_cell(unlimited.wall_seconds.as_ref()),
        Cell::plain(""),
        count_cell(unlimited.minor_faults.as_ref()),
        Cell::plain(""),
        count_cell(unlimited.major_faults.as_ref()),
    ];
    let titles = ["smallest", "limit", "wall time", "ratio", "minor faults", "ratio", "major faults"];
    let table = Table {
        caption: String::new(),
        columns: titles.map(figure_column).to_vec(),
        rows: rows.chain([unlimited_row]).collect(),
    };
    Some(Section {
        heading: "Near the limit".to_owned(),
        paragraphs: vec![format!(
            "Medians of {} each, beside the same rounds without a limit; in brackets the interval of the ratio.",
            counted(u64::from(runs), "run")
        )],
        tables: vec![table],
        plots: vec![slowdown_plot(levels)],
        ..Section::default()
    })
}

fn slowdown_plot(levels: &[Level]) -> Plot {
    let measured_ratios = || levels.iter().filter_map(|level| Some((level, level.wall_seconds.ratio?)));
    Plot {
        title: "Wall time near the limit, to that without a limit".to_owned(),
        x_label: "limit".to_owned(),
        y_label: "ratio".to_owned(),
        kind: PlotKind::Lines,
        x_is_bytes: true,
        series: vec![Series {
            name: "wall time".to_owned(),
            points: measured_ratios()
                .map(|(level, ratio)| Point { x: level.limit_bytes as f64, y: ratio.median })
                .collect(),
            // An interval that is not finite is not drawn.
            intervals: measured_ratios()
                .map(|(_, ratio)| Interval {
                    low: ratio.low.unwrap_or(f64::NAN),
                    high: ratio.high.unwrap_or(f64::NAN),
                })
                .collect(),
            labels: Vec::new(),
        }],
        ..Plot::default()
    }
}

fn time_cell(estimate: Option<&Estimate>) -> Cell {
    Cell::plain(median_text(estimate, seconds))
}

fn count_cell(estimate: Option<&Estimate>) -> Cell {
    Cell::plain(median_text(estimate, |median| thousands(median.round() as u64)))
}

fn ratio_cell(figure: &LimitedFigure) -> Cell {
    let Some(ratio) = figure.ratio else { return Cell::plain(UNKNOWN) };
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => {
            let tone = if low > 1.0 { Tone::Bad } else { Tone::Plain };
            Cell { text: format!("{:.2} [{low:.2}, {high:.2}]", ratio.median), tone }
        }
        _ => Cell::plain(format!("{:.2}", ratio.median)),
    }
}

/// Suggested limit: the smallest limit plus headroom, rounded up.
pub fn with_headroom(smallest_bytes: u64) -> u64 {
    let limit_bytes = (smallest_bytes as f64 * HEADROOM) as u64;
    let step_bytes = if limit_bytes >= LARGE_LIMIT_BYTES { MIB } else { SMALL_STEP_BYTES };
    limit_bytes.div_ceil(step_bytes).saturating_mul(step_bytes)
}

fn snippets_section(findings: &Findings) -> Option<Section> {
    let limit = with_headroom(findings.smallest_bytes?);
    // Docker and systemd use the suffixes K and M, Kubernetes Ki and Mi.
    let size =
        if limit.is_multiple_of(MIB) { format!("{}M", limit / MIB) } else { format!("{}K", limit / KIB) };
    let kib = limit / KIB;
    let words: Vec<String> = findings.command.iter().map(|word| shell_word(word)).collect();
    let command = words.join(" ");
    let snippets = match findings.kind {
        LimitKind::AddressSpace => vec![
            Snippet::new("shell", format!("(ulimit -v {kib}; exec {command})")),
            Snippet::new("systemd unit", format!("[Service]\nLimitAS={size}")),
        ],
        LimitKind::Data => vec![
            Snippet::new("shell", format!("(ulimit -d {kib}; exec {command})")),
            Snippet::new("systemd unit", format!("[Service]\nLimitDATA={size}")),
            Snippet::new("docker", format!("docker run --ulimit data={limit} …")),
        ],
        LimitKind::Cgroup => vec![
            Snippet::new(
                "shell",
                format!("systemd-run --scope -p MemoryMax={size} -p MemorySwapMax=0 -- {command}"),
            ),
            Snippet::new("systemd unit", format!("[Service]\nMemoryMax={size}\nMemorySwapMax=0")),
            Snippet::new("docker", format!("docker run --memory={size} --memory-swap={size} …")),
            Snippet::new(
                "Kubernetes",
                format!("resources:\n  requests:\n    memory: {size}i\n  limits:\n    memory: {size}i"),
            ),
        ],
    };
    Some(Section {
        heading: "To paste".to_owned(),
        paragraphs: vec![format!(
            "{}: the smallest limit and {:.0} % of headroom. What the command needs grows with its input: squeeze it \
             with the largest it will get.",
            exact(limit),
            (HEADROOM - 1.0) * 100.0
        )],
        snippets,
        ..Section::default()
    })
}

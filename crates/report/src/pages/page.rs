//! The content of a report, independent of the output format.

use serde::Serialize;

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its heading: the command and what was compared.
    pub title: String,
    /// The result, in one or two sentences.
    pub headline: String,
    /// Its parts, in order.
    pub sections: Vec<Section>,
    /// What was not measured or is uncertain, a sentence each.
    pub caveats: Vec<String>,
    /// The machine and settings of the measurement.
    pub environment: Vec<Fact>,
}

/// A fact on the machine or on a setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Fact {
    /// A fact.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading; empty for none.
    pub heading: String,
    /// What the rows of its tables are, for anchors of rows; empty for no anchors.
    pub row_kind: String,
    /// Sentences before its tables.
    pub paragraphs: Vec<String>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Claims, which come before its tables.
    pub claims: Vec<Claim>,
    /// Its plots, for formats that have pictures.
    pub plots: Vec<Plot>,
    /// Texts to copy verbatim, after its tables.
    pub snippets: Vec<Snippet>,
}

/// A text to copy verbatim: a setting for a shell, a unit file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snippet {
    /// What it is for; empty for none.
    pub purpose: String,
    /// The text, of one or more lines.
    pub text: String,
}

impl Snippet {
    /// A snippet.
    pub fn new(purpose: impl Into<String>, text: impl Into<String>) -> Self {
        Self { purpose: purpose.into(), text: text.into() }
    }
}

/// A claim that was judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Claim {
    /// Its id.
    pub id: String,
    /// The claim in a sentence.
    pub statement: String,
    /// The verdict.
    pub verdict: Cell,
    /// All published figures; empty for none.
    pub published: String,
    /// A summary of the measurement; empty for none.
    pub measured: String,
    /// Why it does not hold, or not always; empty for none.
    pub reason: String,
    /// The author's note; empty for none.
    pub note: String,
    /// Which figures were read and their uncertainty, a sentence each.
    pub figures: Vec<String>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows; empty for none.
    pub caption: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, with as many cells as columns. An empty row is a line that separates the following
    /// rows (a sum, a ratio).
    pub rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Column {
    /// Its heading.
    pub title: String,
    /// Whether its cells are figures, which are right-aligned.
    pub has_figures: bool,
}

impl Column {
    /// A column of figures or of text.
    pub fn new(title: impl Into<String>, has_figures: bool) -> Self {
        Self { title: title.into(), has_figures }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// Its text.
    pub text: String,
    /// How it is displayed.
    pub tone: Tone,
}

impl Cell {
    /// A cell without emphasis.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// How a cell is displayed; its text conveys the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// Plain text.
    #[default]
    Plain,
    /// A good result.
    Good,
    /// A bad result.
    Bad,
    /// Less important.
    Faint,
}

/// A chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The label of the x axis, with its unit.
    pub x_label: String,
    /// The label of the y axis, with its unit.
    pub y_label: String,
    /// How the points are drawn.
    pub kind: PlotKind,
    /// Whether x values are bytes, labelled in KiB, MiB, …
    pub x_is_bytes: bool,
    /// Whether y values are bytes.
    pub y_is_bytes: bool,
    /// Whether the x axis is logarithmic.
    pub x_is_logarithmic: bool,
    /// Whether the y axis is logarithmic.
    pub y_is_logarithmic: bool,
    /// The data.
    pub series: Vec<Series>,
    /// Names for the positions 0, 1, 2, … of the x axis, if it has names instead of figures. Bars
    /// and strips are drawn as rows, each with its name to the left.
    pub x_names: Vec<String>,
    /// Address of its file, for formats that refer to pictures; empty for none.
    pub address: String,
}

/// How the points of a plot are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlotKind {
    /// Joined by lines.
    #[default]
    Lines,
    /// Not joined.
    Points,
    /// As bars from zero.
    Bars,
    /// Every sample as a point, with the median and its interval.
    Strips,
}

/// A data series of a plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The points. Those with a figure that is not finite are left out.
    pub points: Vec<Point>,
    /// A y interval per point; empty for none. For strips, whose points are samples, only the first
    /// at a position is drawn: the interval of the median.
    pub intervals: Vec<Interval>,
    /// A name for each point; empty for none.
    pub labels: Vec<String>,
}

/// A point of a plot, in the figures of its axes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The figure on the x axis, or the index of its name there.
    pub x: f64,
    /// The figure on the y axis.
    pub y: f64,
}

/// An interval on the y axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

//! A report as its parts, before any format is chosen.

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its heading: the verb and what was compared.
    pub title: String,
    /// What came of it, in one or two sentences.
    pub headline: String,
    /// Its parts, in order.
    pub sections: Vec<Section>,
    /// What was not measured or is to be doubted, a sentence each.
    pub caveats: Vec<String>,
    /// The machine and the settings it was measured on and under: name and value.
    pub environment: Vec<(String, String)>,
}

/// A part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading; empty for none.
    pub heading: String,
    /// What the rows of its tables are, where one may want to refer to a row; empty for nothing.
    pub rows_are: String,
    /// Sentences before its tables.
    pub paragraphs: Vec<String>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Claims, which stand before its tables.
    pub claims: Vec<Claim>,
    /// Its plots, for formats that have pictures.
    pub plots: Vec<Plot>,
    /// Text to copy as it is (a setting for a shell, a unit file): what it is for, and the text.
    pub snippets: Vec<(String, String)>,
}

/// A claim that was judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// What it is called.
    pub id: String,
    /// What it says, in a sentence.
    pub says: String,
    /// Whether it holds.
    pub verdict: Cell,
    /// The published figures, all of them; empty for none.
    pub published: String,
    /// What was measured, in short; empty for nothing.
    pub measured: String,
    /// Why it does not hold, or not for all; empty for nothing to say.
    pub reason: String,
    /// What its author says of it; empty for nothing.
    pub note: String,
    /// Which figures were read, and how far they may be off, a sentence each.
    pub figures: Vec<String>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows; empty for none.
    pub caption: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows: as many cells as there are columns. A row without cells is a line that sets those after it apart
    /// (a sum, a ratio).
    pub rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// Its heading.
    pub title: String,
    /// Whether its cells are figures, which end at its right edge.
    pub figures: bool,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What stands in it.
    pub text: String,
    /// How it is to be seen.
    pub tone: Tone,
}

/// How a cell is to be seen; its text says the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As text.
    #[default]
    Plain,
    /// As what was hoped for.
    Good,
    /// As what was not.
    Bad,
    /// As of less interest.
    Faint,
}

/// A picture of figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What its axes are, with their units.
    pub x_label: String,
    /// The same for the other.
    pub y_label: String,
    /// How the points are joined.
    pub kind: PlotKind,
    /// Whether values on an axis are bytes, and are to be labelled in KiB, MiB, …
    pub x_is_bytes: bool,
    /// The same for the other.
    pub y_is_bytes: bool,
    /// Where an axis counts by factors.
    pub x_is_logarithmic: bool,
    /// The same for the other.
    pub y_is_logarithmic: bool,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Names of the places 0, 1, 2, … of the x axis, where it has names instead of figures. Bars and strips are drawn
    /// in rows, a name to the left of each.
    pub x_names: Vec<String>,
    /// Where it is as a file, for formats that refer to pictures; empty for nowhere.
    pub address: String,
}

/// How the points of a plot are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlotKind {
    /// By lines.
    #[default]
    Lines,
    /// Not at all.
    Points,
    /// Bars from zero.
    Bars,
    /// Every sample as a point, with the median and its interval.
    Strips,
}

/// Points of a plot that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// What they are.
    pub name: String,
    /// The points: x, y. Values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// An interval of y for each point; empty for none. Of strips, whose points are samples, the first one at a place
    /// is drawn: the interval of its median.
    pub intervals: Vec<(f64, f64)>,
    /// A name for each point; empty for none.
    pub labels: Vec<String>,
}

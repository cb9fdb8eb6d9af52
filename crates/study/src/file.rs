//! The types of a study as its file declares it. `docs/studies.md` is the reference of the file
//! format.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::fields::Located;
use super::metric::Metric;
use strandline_recorder::Limits;
use strandline_report::pages::page::PlotKind;

/// Name of the file of a study in its folder.
pub const FILE_NAME: &str = "study.toml";
/// Pseudo axis of the subjects.
pub const SUBJECT: &str = "subject";

/// A declared experiment.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// Its name, which is that of its folder.
    pub name: String,
    /// Its folder, `{dir}`.
    pub folder: PathBuf,
    /// Its title.
    pub title: String,
    /// What question it answers, in a few sentences.
    pub about: Option<String>,
    /// Author, place and date of the finding, in file order.
    pub provenance: Vec<ProvenanceEntry>,
    /// Settings for all runs.
    pub settings: Settings,
    /// Differences of the short form.
    pub short: Option<ShortForm>,
    /// The programs to run.
    pub subjects: Vec<Subject>,
    /// The varied parameters.
    pub axes: Vec<Axis>,
    /// Excluded cells.
    pub exclusions: Vec<Exclusion>,
    /// What is measured.
    pub measure: Measurement,
    /// The metrics of all cells, by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Derived metrics, each after those that it reads.
    pub derived: Vec<DerivedDefinition>,
    /// The claims.
    pub claims: Vec<Claim>,
    /// The tables to show.
    pub tables: Vec<TableSpec>,
    /// The plots to show.
    pub plots: Vec<PlotSpec>,
    /// The text of its file.
    pub text: String,
}

/// A fact on the origin of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceEntry {
    /// Its subject, such as `author`.
    pub name: String,
    pub value: String,
}

/// A variable to set or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableSetting {
    pub name: String,
    /// Its value, with placeholders; `None` removes it.
    pub value: Option<String>,
}

/// Settings for all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of runs of each cell.
    pub repeats: u32,
    /// Number of warm-up rounds.
    pub warm_up: u32,
    /// Time limit of a run; one that takes longer is ended and counts as failed.
    pub timeout: Duration,
    /// Variables for all runs.
    pub environment: Vec<VariableSetting>,
    /// Memory limits for all runs.
    pub limits: Limits,
    /// Seed of the order of the runs.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            repeats: 5,
            warm_up: 0,
            timeout: Duration::from_secs(60),
            environment: Vec::new(),
            limits: Limits::default(),
            seed: 1,
        }
    }
}

/// Differences of the short form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShortForm {
    /// Number of runs of each cell.
    pub repeats: Option<u32>,
    /// The choices of some axes, by name.
    pub axes: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub kind: NeedKind,
    /// Its name or path, with placeholders.
    pub name: String,
    pub install: Option<String>,
}

impl Need {
    /// The command that checks for it, with placeholders; `None` if it is not a probe.
    pub fn probe_command(&self) -> Option<&[String]> {
        match &self.kind {
            NeedKind::Probe { command } => Some(command),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NeedKind {
    /// A program, looked up like the shell does.
    #[default]
    Tool,
    /// A library, looked up like the loader does.
    Library,
    File,
    /// Anything that a command checks for; the command must succeed.
    Probe {
        /// The command, with placeholders.
        command: Vec<String>,
    },
    Memory {
        bytes: u64,
    },
}

/// A program to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subject {
    pub name: String,
    /// Byte offset in the file.
    pub offset: usize,
    /// The program and its arguments, with placeholders.
    pub command: Vec<String>,
    /// Commands that build it, with placeholders; run once for each combination of placeholder
    /// values.
    pub build: Vec<Vec<String>>,
    pub needs: Vec<Need>,
    pub environment: Vec<VariableSetting>,
    pub limits: Limits,
    /// Overrides the timeout of the settings.
    pub timeout: Option<Duration>,
    /// Names of the axes that it varies over.
    pub axes: Vec<String>,
    /// Whether failed runs are measured too.
    pub may_fail: bool,
    /// Number of runs of each of its cells; overrides the settings.
    pub repeats: Option<u32>,
    /// What is measured; overrides that of the study.
    pub measure: Option<Measurement>,
    /// Its metrics by name, with the derived metrics that can be computed for it.
    pub metrics: BTreeMap<String, Metric>,
}

/// A varied parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Its name, also that of its placeholder.
    pub name: String,
    /// Byte offset in the file.
    pub offset: usize,
    /// Its possible values.
    pub choices: Vec<AxisValue>,
    /// Names of the choices used by default.
    pub default: Vec<String>,
    /// The unit of its values, for plots.
    pub unit: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AxisValue {
    pub name: String,
    pub value: String,
    /// The value, if it is a number.
    pub number: Option<f64>,
    /// A library to preload.
    pub preload: Option<String>,
    pub environment: Vec<VariableSetting>,
    /// Memory limits to set.
    pub limits: Limits,
    pub needs: Vec<Need>,
}

/// A choice on an axis, by name; on the pseudo axis [`SUBJECT`] a subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedChoice {
    pub axis: String,
    pub name: String,
}

impl NamedChoice {
    pub fn new(axis: impl Into<String>, name: impl Into<String>) -> Self {
        Self { axis: axis.into(), name: name.into() }
    }
}

/// Choices on some axes.
pub type Selection = Vec<NamedChoice>;

/// Excluded cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exclusion {
    /// Byte offset in the file.
    pub offset: usize,
    /// The excluded choices.
    pub selection: Selection,
    pub why: String,
}

/// What is measured while a cell runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Names of marks.
    pub marks: Vec<String>,
    /// Columns taken at each mark.
    pub columns: Vec<String>,
    /// Rows and totals of ledgers.
    pub rows: Vec<String>,
    /// When ledgers are taken: names of marks, `exit`, `peak`.
    pub ledger_moments: Vec<String>,
    /// Figures from the last JSON object line on standard output.
    pub json: Vec<String>,
    /// Texts from that line.
    pub texts: Vec<String>,
    /// Whether valgrind's cachegrind counts instructions, in separate runs.
    pub uses_cachegrind: bool,
    /// Sampling interval of a recording.
    pub interval: Duration,
    /// Whether ledgers are taken from snapshots where that is safe.
    pub uses_snapshots: bool,
}

impl Default for Measurement {
    fn default() -> Self {
        Self {
            marks: Vec::new(),
            columns: Vec::new(),
            rows: Vec::new(),
            ledger_moments: Vec::new(),
            json: Vec::new(),
            texts: Vec::new(),
            uses_cachegrind: false,
            interval: Duration::from_millis(10),
            uses_snapshots: false,
        }
    }
}

impl Measurement {
    pub fn needs_recording(&self) -> bool {
        !self.marks.is_empty() || !self.ledger_moments.is_empty()
    }

    /// When ledgers are taken, in the syntax of `--ledger`.
    pub fn ledger_option(&self) -> String {
        if self.rows.is_empty() {
            return "none".to_owned();
        }
        let has = |name: &str| self.ledger_moments.iter().any(|moment| moment == name);
        let mut words: Vec<&str> = ["peak", "exit"].into_iter().filter(|name| has(name)).collect();
        if self.ledger_moments.iter().any(|moment| moment != "peak" && moment != "exit") {
            words.insert(0, "marks");
        }
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }
}

/// A metric computed from others for each run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DerivedDefinition {
    pub name: String,
    pub expression: Located<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    pub id: String,
    pub text: String,
    /// The expression that must be true.
    pub holds: Located<String>,
    /// Published figures: a number, or names with numbers.
    pub published: serde_json::Value,
    /// Permitted deviation of a measured figure from a published one, as a fraction of it.
    pub tolerance: Option<f64>,
    /// Justification of the tolerance.
    pub tolerance_reason: Option<String>,
    /// Note to show next to the verdict, such as why it differs today.
    pub note: Option<String>,
}

/// A statistic of a metric in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Statistic {
    #[default]
    Median,
    /// Lower bound of the interval of the median.
    Low,
    /// Upper bound of the interval of the median.
    High,
    /// The smallest sample.
    Least,
    /// The largest sample.
    Most,
}

impl Statistic {
    pub const ALL: [Self; 5] = [Self::Median, Self::Low, Self::High, Self::Least, Self::Most];

    pub fn name(self) -> &'static str {
        match self {
            Self::Median => "median",
            Self::Low => "low",
            Self::High => "high",
            Self::Least => "least",
            Self::Most => "most",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|statistic| statistic.name() == name)
    }
}

/// One side of a table, or the x axis of a plot.
#[derive(Clone, Debug, PartialEq)]
pub enum Side {
    /// The choices of an axis.
    Axis(String),
    /// Metrics, by name.
    Metrics(Vec<String>),
}

impl Side {
    pub fn axis(&self) -> Option<&str> {
        match self {
            Self::Axis(name) => Some(name),
            Self::Metrics(_) => None,
        }
    }

    /// The metrics; empty for an axis.
    pub fn metrics(&self) -> &[String] {
        match self {
            Self::Axis(_) => &[],
            Self::Metrics(names) => names,
        }
    }
}

impl Default for Side {
    fn default() -> Self {
        Self::Metrics(Vec::new())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSpec {
    /// Byte offset in the file.
    pub offset: usize,
    pub title: String,
    pub rows: Side,
    pub columns: Side,
    /// The metric to show, if rows and columns are both axes. If both are lists, the metric of a
    /// cell is `ROW.COLUMN`.
    pub metric: Option<String>,
    pub statistic: Statistic,
    pub shows_interval: bool,
    /// Choices for the whole table.
    pub selection: Selection,
    /// If not empty, shows ratios to the cell with these choices.
    pub ratio_to: Selection,
    /// Unit of the figures; `None`: chosen by size.
    pub unit: Option<String>,
    pub published: Vec<PublishedFigure>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublishedFigure {
    pub row: Located<String>,
    pub column: Located<String>,
    /// The figure, in the unit of the table.
    pub figure: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlotSpec {
    /// Byte offset in the file.
    pub offset: usize,
    pub title: String,
    pub x: Side,
    /// The metrics to draw. If the x axis lists metrics, each drawn metric is `X.Y`, or X if this
    /// is empty.
    pub y: Vec<String>,
    /// The axis with one line per choice.
    pub series: Option<String>,
    /// Choices for the whole plot.
    pub selection: Selection,
    /// Title of the x axis; `None`: the name of the axis, or what its metrics have in common.
    pub x_title: Option<String>,
    /// Title of the y axis; `None`: the unit or the name of the metric.
    pub y_title: Option<String>,
    pub kind: PlotKind,
    pub x_is_logarithmic: bool,
    pub y_is_logarithmic: bool,
}

impl Study {
    /// What is measured for `subject`.
    pub fn measure_of<'s>(&'s self, subject: &'s Subject) -> &'s Measurement {
        subject.measure.as_ref().unwrap_or(&self.measure)
    }

    /// Whether cachegrind counts the instructions of `subject`, in separate runs.
    pub fn counts_instructions(&self, subject: &Subject) -> bool {
        self.measure_of(subject).uses_cachegrind
    }

    /// Whether a claim, a derived metric, a table or a plot reads `metric`. A metric with a longer
    /// name that contains this one also counts: a superfluous caveat does less harm than a missing
    /// one.
    pub fn mentions(&self, metric: &str) -> bool {
        let claimed = self.claims.iter().map(|claim| &claim.holds.value);
        let derived = self.derived.iter().map(|derived| &derived.expression.value);
        let tabled = self.tables.iter().flat_map(|table| {
            table.rows.metrics().iter().chain(table.columns.metrics()).chain(&table.metric)
        });
        let plotted = self.plots.iter().flat_map(|plot| plot.x.metrics().iter().chain(&plot.y));
        let mut texts = claimed.chain(derived).chain(tabled).chain(plotted);
        texts.any(|text| text.contains(metric))
    }

    /// The axis with this name.
    pub fn axis(&self, name: &str) -> Option<&Axis> {
        self.axes.iter().find(|axis| axis.name == name)
    }
}

impl Axis {
    /// The choices as numbers, if all are numbers and all are distinct; otherwise a number would
    /// not identify a choice.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        let numbers: Vec<f64> = self.choices.iter().map(|choice| choice.number).collect::<Option<_>>()?;
        let mut sorted = numbers.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        (sorted.len() == numbers.len()).then_some(numbers)
    }

    pub fn choice(&self, name: &str) -> Option<&AxisValue> {
        self.choices.iter().find(|choice| choice.name == name)
    }
}

//! A study as its file declares it, checked as far as it can be without running anything: names exist, types fit,
//! nothing is there twice. `docs/studies.md` is the reference of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::diagnostics::At;
use super::metric::Metric;
use strandline_recorder::Limits;

/// The name of a study's file in its folder.
pub const FILE_NAME: &str = "study.toml";
/// The name that subjects go by where axes are named.
pub const SUBJECT: &str = "subject";

/// A declared experiment.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// Its name: that of its folder.
    pub name: String,
    /// Its folder: `{dir}`.
    pub folder: PathBuf,
    /// Its heading.
    pub title: String,
    /// What it is about, in a few sentences.
    pub about: Option<String>,
    /// Who found it out, where, when: name and value, in the order of the file.
    pub provenance: Vec<(String, String)>,
    /// What holds for all runs.
    pub settings: Settings,
    /// How the short form differs.
    pub short: Option<Short>,
    /// What is run.
    pub subjects: Vec<Subject>,
    /// What is varied.
    pub axes: Vec<Axis>,
    /// What is left out.
    pub exclusions: Vec<Exclusion>,
    /// What is looked at.
    pub measure: Measures,
    /// Every metric that any cell has, by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Expressions over other metrics, each after those that it reads.
    pub derived: Vec<Derived>,
    /// What is claimed.
    pub claims: Vec<Claim>,
    /// The tables wanted.
    pub tables: Vec<TableSpec>,
    /// The plots wanted.
    pub plots: Vec<PlotSpec>,
}

/// What holds for all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How often each cell is run.
    pub repeats: u32,
    /// Rounds before, that do not count.
    pub warm_up: u32,
    /// A run that takes longer is ended, and counts as failed.
    pub timeout: Duration,
    /// Variables of all runs; `None` removes one.
    pub environment: Vec<(String, Option<String>)>,
    /// Limits on the memory of all runs.
    pub limits: Limits,
    /// Draws the order of the runs.
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

/// How the short form differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Short {
    /// How often each cell is run.
    pub repeats: Option<u32>,
    /// The choices of some axes, by name.
    pub axes: Vec<(String, Vec<String>)>,
}

/// Something that has to be here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// A program, a library to preload, a file, a command that succeeds, or memory.
    pub kind: NeedKind,
    /// Its name or path, with placeholders.
    pub name: String,
    /// How to get it.
    pub install: Option<String>,
    /// The command that tells whether it is here, with placeholders, of a probe.
    pub command: Vec<String>,
    /// How much of it, of memory.
    pub bytes: u64,
}

/// What kind of thing is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NeedKind {
    /// A program, found as the shell finds it.
    #[default]
    Tool,
    /// A library, found as the loader finds it.
    Library,
    /// A file.
    File,
    /// Whatever a command looks for, which has to succeed.
    Probe,
    /// Available memory.
    Memory,
}

/// A program that is run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subject {
    /// What it is called.
    pub name: String,
    /// Where it stands.
    pub offset: usize,
    /// The program and its arguments, with placeholders.
    pub command: Vec<String>,
    /// Commands that build it, with placeholders; each is run once for each way its placeholders are filled.
    pub build: Vec<Vec<String>>,
    /// What it needs.
    pub needs: Vec<Need>,
    /// Its variables, with placeholders; `None` removes one.
    pub environment: Vec<(String, Option<String>)>,
    /// Limits on its memory.
    pub limits: Limits,
    /// Instead of the one in the settings.
    pub timeout: Option<Duration>,
    /// The axes it varies over.
    pub axes: Vec<String>,
    /// Whether a run that fails is measured all the same.
    pub may_fail: bool,
    /// How often its cells are run, instead of what the settings say.
    pub repeats: Option<u32>,
    /// What is looked at, instead of what is for all.
    pub measure: Option<Measures>,
    /// Its own metrics by name; those that are derived are among them where they could be computed.
    pub metrics: BTreeMap<String, Metric>,
}

/// Something that is varied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Its name, which is a placeholder too.
    pub name: String,
    /// Where it stands.
    pub offset: usize,
    /// What it may be.
    pub choices: Vec<Choice>,
    /// The names of the choices that are taken where nobody says otherwise.
    pub default: Vec<String>,
    /// The unit of its values, for plots.
    pub unit: Option<String>,
}

/// One value of an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// What it is called.
    pub name: String,
    /// What its placeholder becomes.
    pub value: String,
    /// The value, where it is a number.
    pub number: Option<f64>,
    /// A library that it preloads.
    pub preload: Option<String>,
    /// Variables that it sets; `None` removes one.
    pub environment: Vec<(String, Option<String>)>,
    /// Limits on memory that it sets.
    pub limits: Limits,
    /// What it needs.
    pub needs: Vec<Need>,
}

/// Choices of some axes: axis and choice.
pub type Selection = Vec<(String, String)>;

/// Cells that are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exclusion {
    /// Where it stands.
    pub offset: usize,
    /// Which.
    pub given: Selection,
    /// Why.
    pub why: String,
}

/// What is looked at while a cell runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// Marks, by name.
    pub marks: Vec<String>,
    /// What is taken of each.
    pub columns: Vec<String>,
    /// Rows and totals of ledgers.
    pub rows: Vec<String>,
    /// At which marks, or `exit`, or `peak`.
    pub at: Vec<String>,
    /// Figures of the last line on standard output that is a JSON object.
    pub json: Vec<String>,
    /// Texts of that line.
    pub texts: Vec<String>,
    /// Whether instructions are counted by valgrind's cachegrind, in a run of their own.
    pub cachegrind: bool,
    /// The time between samples of a recording.
    pub interval: Duration,
    /// Whether ledgers are taken of snapshots, where that can do no harm.
    pub snapshot: bool,
}

impl Default for Measures {
    fn default() -> Self {
        Self {
            marks: Vec::new(),
            columns: Vec::new(),
            rows: Vec::new(),
            at: Vec::new(),
            json: Vec::new(),
            texts: Vec::new(),
            cachegrind: false,
            interval: Duration::from_millis(10),
            snapshot: false,
        }
    }
}

impl Measures {
    /// Whether a recording is needed.
    pub fn records(&self) -> bool {
        !self.marks.is_empty() || !self.at.is_empty()
    }

    /// When ledgers are taken, in the words of `--ledger`.
    pub fn ledgers(&self) -> String {
        if self.rows.is_empty() {
            return "none".to_owned();
        }
        let has = |name: &str| self.at.iter().any(|at| at == name);
        let mut words: Vec<&str> = ["peak", "exit"].into_iter().filter(|name| has(name)).collect();
        if self.at.iter().any(|at| at != "peak" && at != "exit") {
            words.insert(0, "marks");
        }
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }
}

/// A metric that is computed of others, run by run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Derived {
    /// Its name.
    pub name: String,
    /// The expression.
    pub expression: At<String>,
}

/// What is claimed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// What it is called.
    pub id: String,
    /// What it says.
    pub text: String,
    /// The expression that is true where it holds.
    pub holds: At<String>,
    /// The figures that were published: a number, or names and numbers.
    pub published: serde_json::Value,
    /// How far a measured figure may be from a published one, as a part of it.
    pub tolerance: Option<f64>,
    /// Why so far.
    pub why: Option<String>,
    /// What is to be said beside the verdict, such as why it differs today.
    pub note: Option<String>,
}

/// Which of the numbers that a cell has of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Statistic {
    /// The median.
    #[default]
    Median,
    /// The lower end of the median's interval.
    Low,
    /// The upper end of the median's interval.
    High,
    /// The least.
    Least,
    /// The most.
    Most,
}

impl Statistic {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("median", Self::Median),
        ("low", Self::Low),
        ("high", Self::High),
        ("least", Self::Least),
        ("most", Self::Most),
    ];
}

/// What one side of a table, or the x axis of a plot, shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Side {
    /// The choices of an axis.
    Axis(String),
    /// Metrics, by name.
    Metrics(Vec<String>),
}

impl Side {
    /// The axis that it names.
    pub fn axis(&self) -> Option<&str> {
        match self {
            Self::Axis(name) => Some(name),
            Self::Metrics(_) => None,
        }
    }

    /// The metrics that it names.
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

/// A table that is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSpec {
    /// Where it stands.
    pub offset: usize,
    /// What it shows.
    pub title: String,
    /// Its rows.
    pub rows: Side,
    /// Its columns.
    pub columns: Side,
    /// What is shown, where rows and columns are both axes; where both are lists, it is `ROW.COLUMN`.
    pub metric: Option<String>,
    /// Which number of it.
    pub statistic: Statistic,
    /// Whether the interval stands beside it.
    pub interval: bool,
    /// Choices that hold for all of it.
    pub given: Selection,
    /// Shown as ratio to the cell with these choices instead.
    pub ratio_to: Selection,
    /// The unit figures are shown in; chosen by size where none is given.
    pub unit: Option<String>,
    /// Published figures.
    pub published: Vec<PublishedFigure>,
}

/// A published figure of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublishedFigure {
    /// The row that it is of.
    pub row: At<String>,
    /// The column that it is of.
    pub column: At<String>,
    /// It, in the table's unit.
    pub figure: f64,
}

/// A plot that is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlotSpec {
    /// Where it stands.
    pub offset: usize,
    /// What it shows.
    pub title: String,
    /// Along the x axis.
    pub x: Side,
    /// The metrics that are drawn. Where the x axis is of metrics, each of them is `X.Y`, or X where this is empty.
    pub y: Vec<String>,
    /// The axis whose choices are a line each.
    pub series: Option<String>,
    /// Choices that hold for all of it.
    pub given: Selection,
    /// What is written below the x axis, instead of what its name tells.
    pub x_title: Option<String>,
    /// What is written above the y axis.
    pub y_title: Option<String>,
    /// `lines`, `points`, `bars` or `strips`.
    pub kind: String,
    /// Whether the x axis counts by factors.
    pub x_is_logarithmic: bool,
    /// Whether the y axis does.
    pub y_is_logarithmic: bool,
}

impl Study {
    /// What is looked at while `subject` runs.
    pub fn measure_of<'s>(&'s self, subject: &'s Subject) -> &'s Measures {
        subject.measure.as_ref().unwrap_or(&self.measure)
    }

    /// Whether `subject`'s instructions are counted by valgrind, in runs of their own.
    pub fn is_counted(&self, subject: &Subject) -> bool {
        self.measure_of(subject).cachegrind
    }

    /// The axis of that name.
    pub fn axis(&self, name: &str) -> Option<&Axis> {
        self.axes.iter().find(|axis| axis.name == name)
    }
}

impl Axis {
    /// The choices as numbers, where all are and each is another: else a number would not say which is meant.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        let numbers: Vec<f64> = self.choices.iter().map(|choice| choice.number).collect::<Option<_>>()?;
        let mut sorted = numbers.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        (sorted.len() == numbers.len()).then_some(numbers)
    }

    /// Its choice of that name.
    pub fn choice(&self, name: &str) -> Option<&Choice> {
        self.choices.iter().find(|choice| choice.name == name)
    }
}

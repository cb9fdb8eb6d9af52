//! Expressions over measured data, in CEL (the Common Expression Language): their functions, the
//! figures they read, and their bounds. They have access only to the figures passed to them.
//!
//! | | |
//! |---|---|
//! | `median("METRIC", { "axis": choice })` | the median in that cell |
//! | `low`, `high` | with the same arguments: the bounds of its interval |
//! | `least`, `most` | with the same arguments: the smallest and the largest sample |
//! | `ratio("METRIC", { … }, { … })` | the first cell to the second, paired by rounds |
//! | `ratio_low`, `ratio_high` | with the same arguments: the bounds of its interval |
//! | `text("METRIC", { … })` | a text of that cell, the same in all runs |
//! | `values("axis")` | the choices of this run: numbers if all are, else strings |
//! | `near(a, b, tolerance)` | whether a differs from b by at most `tolerance * b` |
//! | `abs(x)`, `min(a, b, …)`, `max(a, b, …)` | of numbers; `min` and `max` also take one list |
//! | `published`, `tolerance` | those of the claim |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cel::extractors::Arguments;
use cel::objects::Key as MapKey;
use cel::{Context, ExecutionError, IdedExpr, Program, Value};

use super::data::{MeasuredData, cell_statistic, paired, ratio_figure};
use super::file::{NamedChoice, SUBJECT, Selection, Statistic};
use super::kinds::TEXT;
use super::matrix::{CellError, Key, Matrix};
use super::metric::Metric;
use super::scan::{self, Scan};
use super::syntax::{self, ExpressionError};
use strandline_report::units::thousands;

const MAX_EXPRESSION_BYTES: usize = 4_000;
/// Maximum number of metrics listed where one is unknown.
const MAX_LISTED_METRICS: usize = 12;
/// Functions of CEL that are allowed.
const STANDARD_FUNCTIONS: [&str; 7] =
    ["size", "contains", "startsWith", "endsWith", "double", "string", "int"];
/// Maximum number of figures that an evaluation reads; with more, it is
/// [`EvaluationOutcome::Wrong`].
const MAX_READS: u64 = 20_000;
/// Maximum number of read figures that an evaluation lists; [`ReadLog::read_count`] counts all.
pub const MAX_LISTED_READS: usize = 200;
/// Stack size for recursive walks of the trees of the longest expressions; the kernel provides only
/// the pages that are used.
const STACK_BYTES: usize = 256 << 20;

#[derive(Clone, Debug)]
pub struct Expression {
    /// Its syntax tree; numbers except list indices are floating point.
    tree: IdedExpr,
    pub scan: Scan,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FigureRead {
    /// The statistic: `median`, `ratio`, …; or `text`.
    pub statistic: String,
    pub metric: String,
    pub axes: BTreeMap<String, String>,
    /// The second cell of a ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "to")]
    pub denominator: Option<BTreeMap<String, String>>,
    pub value: ReadValue,
    /// How many runs of the cell, or of each cell of a ratio, it is from, if not all of them count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "from")]
    pub counted_runs: Option<String>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum ReadValue {
    #[serde(serialize_with = "strandline_lab::statistics::serialize_number")]
    Number(f64),
    Text(String),
}

#[derive(Clone)]
pub struct EvaluationInput {
    pub matrix: Arc<Matrix>,
    pub measured: Arc<dyn MeasuredData>,
    /// Choices on axes that the expression does not name.
    pub fixed: Selection,
    pub published: serde_json::Value,
    pub tolerance: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    pub outcome: EvaluationOutcome,
    pub log: ReadLog,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EvaluationOutcome {
    /// The expression is true or false.
    Answer(bool),
    /// A figure that it reads is missing; holds the reason.
    Missing(String),
    /// It cannot be evaluated; holds the reason.
    Wrong(String),
}

/// The reads and errors of one evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadLog {
    /// Number of figures read.
    pub read_count: u64,
    /// The first [`MAX_LISTED_READS`] figures read, in order and without duplicates.
    pub reads: Vec<FigureRead>,
    /// Whether `reads` lacks further ones.
    pub has_unlisted_reads: bool,
    /// [`FigureRead::counted_runs`] of all figures read, in order and without duplicates.
    pub counted_runs: Vec<String>,
    /// Why the first missing figure is missing.
    missing: Option<String>,
    /// What is wrong in the first call that is wrong.
    error: Option<String>,
}

/// What a function of [`scan::READ_FUNCTIONS`] reads.
#[derive(Clone, Copy)]
enum Reading {
    Text,
    /// A statistic of one cell.
    Figure(Statistic),
    /// The median of a ratio of two cells, or a bound of its interval.
    Ratio(Statistic),
}

impl Reading {
    fn of_function(name: &str) -> Option<Self> {
        match name {
            TEXT => Some(Self::Text),
            "ratio" => Some(Self::Ratio(Statistic::Median)),
            "ratio_low" => Some(Self::Ratio(Statistic::Low)),
            "ratio_high" => Some(Self::Ratio(Statistic::High)),
            _ => Statistic::named(name).map(Self::Figure),
        }
    }
}

/// Runs `task` on a thread with a large stack, because parsing and dropping a tree are recursive.
///
/// # Errors
/// One line: the thread could not be started, or panicked.
fn run_on_large_stack<T: Send>(task: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, task);
        let thread = thread.map_err(|error| format!("no thread to parse the expression: {error}"))?;
        thread.join().map_err(|_| "the parser of expressions failed".to_owned())
    })
}

impl Expression {
    /// Parses `text`; `axis_size` gives the number of values of an axis, `variables` the names that
    /// it may use.
    ///
    /// # Errors
    /// What is wrong in it, with positions.
    pub fn parse(
        text: &str,
        axis_size: &(dyn Fn(&str) -> Option<usize> + Sync),
        variables: &[&str],
    ) -> Result<Self, Vec<ExpressionError>> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(vec![format!("an expression has at most {MAX_EXPRESSION_BYTES} bytes").into()]);
        }
        if let Some(comment) = syntax::find_comment(text) {
            return Err(vec![comment]);
        }
        run_on_large_stack(|| {
            let program = Program::compile(text).map_err(|errors| {
                // Further errors of the parser follow from the first.
                let first_error = errors.errors.first();
                let first_error =
                    first_error.map(|error| syntax::error_at(text, error.pos.0, error.pos.1, &error.msg));
                first_error.into_iter().collect::<Vec<_>>()
            })?;
            let mut tree = program.expression().clone();
            let scan = scan::scan(&mut tree, axis_size, variables);
            let references = program.references();
            let mut errors = scan.errors.clone();
            for name in references.functions() {
                let is_own = scan::READ_FUNCTIONS.contains(&name) || scan::OTHER_FUNCTIONS.contains(&name);
                let is_standard = STANDARD_FUNCTIONS.contains(&name);
                // Operators are functions such as `_+_` and `@in`.
                let is_operator = name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                if !is_own && !is_standard && !is_operator {
                    errors.push(format!("there is no function `{name}`"));
                }
            }
            if errors.is_empty() {
                Ok(Self { tree, scan })
            } else {
                Err(errors.into_iter().map(ExpressionError::from).collect())
            }
        })
        .map_err(|line| vec![line.into()])?
    }

    /// Whether it is a single comparison of two figures.
    pub fn is_one_comparison(&self) -> bool {
        use cel::common::ast::{Expr, operators};
        let comparisons =
            [operators::LESS, operators::LESS_EQUALS, operators::GREATER, operators::GREATER_EQUALS];
        matches!(&self.tree.expr, Expr::Call(call) if comparisons.contains(&call.func_name.as_str()))
    }

    /// Evaluates it over the measured cells of `input`.
    pub fn evaluate(&self, input: &EvaluationInput) -> Evaluation {
        let log = Arc::new(Mutex::new(ReadLog::default()));
        let result = self.context(input, &log).map(|context| context.resolve(&self.tree));
        let mut log = std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner));
        let outcome = match (log.error.take(), log.missing.take(), result) {
            (Some(error), _, _) | (None, _, Err(error)) => EvaluationOutcome::Wrong(error),
            (None, Some(missing), _) => EvaluationOutcome::Missing(missing),
            (None, None, Ok(Ok(Value::Bool(answer)))) => EvaluationOutcome::Answer(answer),
            (None, None, Ok(Ok(value))) => {
                EvaluationOutcome::Wrong(format!("it must be true or false, not {}", value.type_of()))
            }
            (None, None, Ok(Err(error))) => EvaluationOutcome::Wrong(one_line(&error.to_string())),
        };
        Evaluation { outcome, log }
    }

    /// The functions and variables of an expression over measured cells.
    fn context(
        &self,
        input: &EvaluationInput,
        log: &Arc<Mutex<ReadLog>>,
    ) -> Result<Context<'static, 'static>, String> {
        let mut context = Context::default();
        let failed = |error: &dyn std::fmt::Display| one_line(&error.to_string());
        for name in scan::READ_FUNCTIONS {
            let reading =
                Reading::of_function(name).ok_or_else(|| format!("there is no function `{name}`"))?;
            let (input, log) = (input.clone(), log.clone());
            let call = move |arguments: Arguments| read_and_log(name, reading, &arguments.0, &input, &log);
            context.add_function(name, call).map_err(|error| failed(&error))?;
        }
        let matrix = input.matrix.clone();
        let values = move |arguments: Arguments| axis_values(&matrix, &arguments.0);
        context.add_function("values", values).map_err(|error| failed(&error))?;
        add_arithmetic(&mut context)?;
        let published = cel::to_value(&input.published).map_err(|error| failed(&error))?;
        context.add_variable_from_value("published", published);
        context.add_variable_from_value("tolerance", input.tolerance.map_or(Value::Null, Value::Float));
        Ok(context)
    }

    /// Evaluates it over the metrics of one run; `None`, which is an unknown figure, if one of its
    /// metrics is unknown or the result is not a finite number.
    pub fn figure_of_run(&self, metrics: &BTreeMap<String, f64>) -> Option<f64> {
        let mut context = Context::default();
        add_arithmetic(&mut context).ok()?;
        let metrics = metrics.clone();
        let value = move |arguments: Arguments| match arguments.0.as_slice() {
            [Value::String(name)] => metrics
                .get(name.as_str())
                .map(|&number| Value::Float(number))
                .ok_or_else(|| ExecutionError::function_error("metric", "not measured")),
            _ => Err(ExecutionError::function_error("metric", "needs the name of a metric")),
        };
        context.add_function("metric", value).ok()?;
        match context.resolve(&self.tree).ok()? {
            Value::Float(number) => Some(number).filter(|number| number.is_finite()),
            Value::Int(number) => Some(number as f64),
            Value::Bool(flag) => Some(f64::from(u8::from(flag))),
            _ => None,
        }
    }
}

/// Adds the functions `near`, `abs`, `min` and `max`.
fn add_arithmetic(context: &mut Context<'static, 'static>) -> Result<(), String> {
    let failed = |error: cel::DeclarationError| one_line(&error.to_string());
    let near = |a: f64, b: f64, tolerance: f64| (a - b).abs() <= (tolerance * b).abs();
    context.add_function("near", near).map_err(failed)?;
    context.add_function("abs", f64::abs).map_err(failed)?;
    for (name, choose) in [("min", f64::min as fn(f64, f64) -> f64), ("max", f64::max)] {
        let call = move |arguments: Arguments| {
            let list: Vec<Value> = match arguments.0.as_slice() {
                [Value::List(list)] => list.to_vec(),
                several => several.to_vec(),
            };
            let numbers: Option<Vec<f64>> = list.iter().map(number_of).collect();
            let extreme = numbers.and_then(|numbers| numbers.into_iter().reduce(choose));
            extreme.map(Value::Float).ok_or_else(|| ExecutionError::function_error(name, "needs numbers"))
        };
        context.add_function(name, call).map_err(failed)?;
    }
    Ok(())
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::UInt(number) => Some(*number as f64),
        _ => None,
    }
}

/// The choices of an axis, or the names of the subjects.
fn axis_values(matrix: &Matrix, arguments: &[Value]) -> Result<Value, ExecutionError> {
    let [Value::String(name)] = arguments else {
        return Err(ExecutionError::function_error("values", "needs the name of an axis"));
    };
    let text = |text: &str| Value::String(Arc::new(text.to_owned()));
    if name.as_str() == SUBJECT {
        return Ok(Value::List(Arc::new(
            matrix.subjects.iter().map(|subject| text(&subject.name)).collect(),
        )));
    }
    let Some(axis) = matrix.axes.iter().find(|axis| axis.name == **name) else {
        return Err(ExecutionError::function_error("values", "no such axis"));
    };
    let values = match axis.numbers() {
        Some(numbers) => numbers.into_iter().map(Value::Float).collect(),
        None => axis.choices.iter().map(|choice| text(&choice.name)).collect(),
    };
    Ok(Value::List(Arc::new(values)))
}

/// Implements the function `name`, which reads figures.
fn read_and_log(
    name: &'static str,
    reading: Reading,
    arguments: &[Value],
    input: &EvaluationInput,
    log: &Mutex<ReadLog>,
) -> Result<Value, ExecutionError> {
    let failure = |text: &str| ExecutionError::function_error(name, text);
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.read_count += 1;
    let cell_read = if log.read_count > MAX_READS {
        Err(CellError::Invalid(format!("it reads more than {} figures", thousands(MAX_READS))))
    } else {
        read_cell(name, reading, arguments, input)
    };
    match cell_read {
        Ok(read) => {
            let value = match &read.value {
                ReadValue::Number(number) => Value::Float(*number),
                ReadValue::Text(text) => Value::String(Arc::new(text.clone())),
            };
            if let Some(runs) = read.counted_runs.as_ref().filter(|runs| !log.counted_runs.contains(runs)) {
                log.counted_runs.push(runs.clone());
            }
            if !log.has_unlisted_reads && !log.reads.contains(&read) {
                if log.reads.len() < MAX_LISTED_READS {
                    log.reads.push(read);
                } else {
                    log.has_unlisted_reads = true;
                }
            }
            Ok(value)
        }
        Err(CellError::Invalid(text)) => {
            let text = format!("{name}: {text}");
            let error = failure(&text);
            log.error.get_or_insert(text);
            Err(error)
        }
        Err(CellError::NotRun(text)) => {
            let error = failure(&text);
            log.missing.get_or_insert(text);
            Err(error)
        }
    }
}

/// Reads the figure or text of a cell, or the ratio of two cells, that `arguments` name.
fn read_cell(
    name: &str,
    reading: Reading,
    arguments: &[Value],
    input: &EvaluationInput,
) -> Result<FigureRead, CellError> {
    let ReadArguments { metric, first_choices, second_choices } = ReadArguments::of(reading, arguments)?;
    let matrix = &input.matrix;
    let is_text = match matrix.study.metrics.get(metric) {
        None => return Err(CellError::Invalid(unknown_metric_text(metric, matrix))),
        Some(listed) => matches!(listed, Metric::Text(_)),
    };
    if is_text != matches!(reading, Reading::Text) {
        let kind = if is_text { "a text: write text(…)" } else { "a figure: write median(…)" };
        return Err(CellError::Invalid(format!("`{metric}` is {kind}")));
    }
    let named = first_choices.map_or_else(|| Ok(Vec::new()), |choices| parse_choices(choices, matrix))?;
    let key = matrix.resolve(&named, &input.fixed)?;
    let subject = matrix.subjects.get(key.subject);
    if let Some(subject) = subject.filter(|subject| !subject.metrics.contains_key(metric)) {
        return Err(CellError::Invalid(format!("the subject `{}` has no metric `{metric}`", subject.name)));
    }
    let denominator = second_choices
        .map(|choices| matrix.resolve(&parse_choices(choices, matrix)?, &input.fixed))
        .transpose()?;
    let value = match (reading, &denominator) {
        (Reading::Text, _) => ReadValue::Text(
            input.measured.text(&key, metric).map_err(|why| missing_in_cell(&key, matrix, &why))?,
        ),
        (Reading::Figure(statistic) | Reading::Ratio(statistic), None) => {
            ReadValue::Number(read_figure(statistic, metric, &key, input)?)
        }
        (Reading::Figure(statistic) | Reading::Ratio(statistic), Some(denominator)) => {
            ReadValue::Number(read_ratio(statistic, metric, [&key, denominator], input)?)
        }
    };
    let runs = |key: &Key| {
        let runs = input.measured.partial_runs(key, metric)?;
        Some(format!("{} of {} runs", runs.measured, runs.total))
    };
    let mut counted_runs: Vec<String> =
        [Some(&key), denominator.as_ref()].into_iter().flatten().filter_map(runs).collect();
    counted_runs.dedup();
    Ok(FigureRead {
        statistic: name.to_owned(),
        metric: metric.to_owned(),
        axes: matrix.names_by_axis(&key),
        denominator: denominator.as_ref().map(|key| matrix.names_by_axis(key)),
        value,
        counted_runs: (!counted_runs.is_empty()).then(|| counted_runs.join(" and ")),
    })
}

/// The arguments of a function that reads figures.
struct ReadArguments<'v> {
    metric: &'v str,
    /// Choices of the cell, or of the first cell of a ratio.
    first_choices: Option<&'v Value>,
    /// Choices of the second cell of a ratio.
    second_choices: Option<&'v Value>,
}

impl<'v> ReadArguments<'v> {
    fn of(reading: Reading, arguments: &'v [Value]) -> Result<Self, CellError> {
        let (metric, first_choices, second_choices) = match (reading, arguments) {
            (Reading::Ratio(_), [Value::String(metric), first, second]) => {
                (metric, Some(first), Some(second))
            }
            (Reading::Ratio(_), _) => {
                let text = "needs a metric and two choices: (\"METRIC\", { … }, { … })";
                return Err(CellError::Invalid(text.to_owned()));
            }
            (_, [Value::String(metric)]) => (metric, None, None),
            (_, [Value::String(metric), choices]) => (metric, Some(choices), None),
            _ => {
                let text = "needs a metric and choices: (\"METRIC\", { \"axis\": … })";
                return Err(CellError::Invalid(text.to_owned()));
            }
        };
        Ok(Self { metric, first_choices, second_choices })
    }
}

fn read_figure(
    statistic: Statistic,
    metric: &str,
    key: &Key,
    input: &EvaluationInput,
) -> Result<f64, CellError> {
    let value = cell_statistic(&*input.measured, key, metric, statistic)
        .map_err(|why| missing_in_cell(key, &input.matrix, &why))?;
    value.ok_or_else(|| too_few_repeats(metric))
}

/// The ratio of the first cell to the second, or a bound of its interval; an error names the cell
/// with missing data.
fn read_ratio(
    statistic: Statistic,
    metric: &str,
    [numerator, denominator]: [&Key; 2],
    input: &EvaluationInput,
) -> Result<f64, CellError> {
    let samples =
        |key| input.measured.samples(key, metric).map_err(|why| missing_in_cell(key, &input.matrix, &why));
    let (numerators, denominators) = (samples(numerator)?, samples(denominator)?);
    let ratio = paired(&numerators, &denominators, metric)
        .map_err(|why| missing_in_cell(denominator, &input.matrix, &why))?;
    ratio_figure(&ratio, statistic).ok_or_else(|| too_few_repeats(metric))
}

fn too_few_repeats(metric: &str) -> CellError {
    CellError::NotRun(format!("too few repeats for an interval of {metric}"))
}

/// An error for missing data that names the cell, if there are several.
fn missing_in_cell(key: &Key, matrix: &Matrix, why: &str) -> CellError {
    let named: Vec<String> =
        matrix.names(key).iter().map(|choice| format!("{}={}", choice.axis, choice.name)).collect();
    CellError::NotRun(if named.is_empty() { why.to_owned() } else { format!("{}: {why}", named.join(", ")) })
}

/// Says that there is no such metric, with the most similar one or the first ones that exist.
pub fn unknown_metric_text(metric: &str, matrix: &Matrix) -> String {
    let names = || matrix.study.metrics.keys().map(String::as_str);
    if let Some(near) = super::nearest::nearest(metric, names()) {
        return format!("there is no metric `{metric}`; did you mean `{near}`?");
    }
    let first_names = names().take(MAX_LISTED_METRICS).collect::<Vec<_>>().join(", ");
    let ellipsis = if names().count() > MAX_LISTED_METRICS { ", …" } else { "" };
    format!("there is no metric `{metric}`; there are {first_names}{ellipsis}")
}

/// Parses choices given as `{ "axis": choice }`.
fn parse_choices(value: &Value, matrix: &Matrix) -> Result<Selection, CellError> {
    let Value::Map(map) = value else {
        return Err(CellError::Invalid("needs choices as { \"axis\": choice }".to_owned()));
    };
    let mut selection = Vec::new();
    for (key, value) in map.map.iter() {
        let MapKey::String(axis) = key else {
            return Err(CellError::Invalid("an axis is named by a string".to_owned()));
        };
        let name = match (value, number_of(value)) {
            (Value::String(name), _) => name.to_string(),
            (_, Some(number)) => {
                let axis_in_run = matrix.axes.iter().find(|listed| listed.name == **axis);
                let choices = axis_in_run.map_or(&[][..], |listed| &listed.choices).iter();
                let mut choices = choices.filter(|choice| choice.number == Some(number));
                match (choices.next(), choices.next()) {
                    (Some(choice), None) => choice.name.clone(),
                    (None, _) => number.to_string(),
                    (Some(choice), Some(other_choice)) => {
                        return Err(CellError::Invalid(format!(
                            "{number} on `{axis}` is both `{}` and `{}`: use the name of one",
                            choice.name, other_choice.name
                        )));
                    }
                }
            }
            _ => return Err(CellError::Invalid(format!("the choice on `{axis}` is a string or a number"))),
        };
        selection.push(NamedChoice::new(axis.as_str(), name));
    }
    // The map is unordered; sorting makes errors reproducible.
    selection.sort();
    Ok(selection)
}

/// Joins the lines of a parser message.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('|')).collect();
    strandline_report::text::clean_sentence(lines.join(" ").trim())
}

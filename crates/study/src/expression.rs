//! Expressions over measured data, in CEL (the Common Expression Language): their functions, the
//! figures they read, and their bounds. They have access only to the figures passed to them.
//!
//! | | |
//! |---|---|
//! | `median("METRIC", { "axis": choice })` | the median in that cell |
//! | `low`, `high`, `least`, `most` | with the same arguments: its interval, the extremes |
//! | `ratio("METRIC", { … }, { … })` | the first cell to the second, paired by rounds |
//! | `ratio_low`, `ratio_high` | with the same arguments: its interval |
//! | `text("METRIC", { … })` | a text of that cell, the same in all runs |
//! | `values("axis")` | the choices of this run: numbers if all are, else strings |
//! | `near(a, b, tolerance)` | whether a differs from b by at most `tolerance * b` |
//! | `abs`, `min`, `max` | |
//! | `published`, `tolerance` | those of the claim |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cel::extractors::Arguments;
use cel::objects::Key as MapKey;
use cel::{Context, ExecutionError, IdedExpr, Program, Value};

use super::data::{MeasuredData, cell_statistic, paired};
use super::file::{SUBJECT, Selection, Statistic};
use super::kinds::TEXT;
use super::matrix::{CellError, Key, Matrix};
use super::metric::Metric;
use super::scan::{self, Scan};
use super::syntax::{self, ExpressionError};

const MAX_EXPRESSION_BYTES: usize = 4_000;
/// Maximum number of metrics listed where one is unknown.
const MAX_LISTED_METRICS: usize = 12;
/// Functions of CEL that are allowed.
const STANDARD_FUNCTIONS: [&str; 7] =
    ["size", "contains", "startsWith", "endsWith", "double", "string", "int"];
/// Maximum number of figures that an evaluation reads.
const MAX_READS: u64 = 20_000;
/// Maximum number of read figures that an evaluation reports.
const MAX_REPORTED_READS: usize = 200;
/// Stack size for recursive walks of the trees of the longest expressions.
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
    /// Number of runs that it is from, if not all of them count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "from")]
    pub counted_runs: Option<String>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum ReadValue {
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
    /// Number of figures read.
    pub read_count: u64,
    /// The figures read, in order and without duplicates.
    pub reads: Vec<FigureRead>,
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

/// Collects the reads and errors of one evaluation.
#[derive(Default)]
struct ReadLog {
    /// The figures read, at most [`MAX_REPORTED_READS`], without duplicates.
    reads: Vec<FigureRead>,
    /// Number of figures read.
    read_count: u64,
    /// Why the first missing figure is missing.
    missing: Option<String>,
    error: Option<String>,
}

/// Runs `work` on a thread with a large stack: parsing, dropping and evaluating a tree are
/// recursive.
pub fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("a thread for expressions: {error}"))?;
        thread.join().map_err(|_| "an expression could not be understood".to_owned())
    })
}

impl Expression {
    /// Parses `text`; `axis_size` gives the number of values of an axis, `variables` the names that
    /// it may use.
    pub fn parse(
        text: &str,
        axis_size: &(dyn Fn(&str) -> Option<usize> + Sync),
        variables: &[&str],
    ) -> Result<Self, Vec<ExpressionError>> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(vec![format!("an expression has at most {MAX_EXPRESSION_BYTES} bytes").into()]);
        }
        if let Some(comment) = syntax::comment(text) {
            return Err(vec![comment]);
        }
        with_large_stack(|| {
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

    pub fn evaluate(&self, input: &EvaluationInput) -> Evaluation {
        let log = Arc::new(Mutex::new(ReadLog::default()));
        let result = self.context(input, &log).map(|context| context.resolve(&self.tree));
        let mut log = match log.lock() {
            Ok(mut log) => std::mem::take(&mut *log),
            Err(_) => ReadLog::default(),
        };
        let outcome = match (log.error.take(), log.missing.take(), result) {
            (Some(error), _, _) | (None, _, Err(error)) => EvaluationOutcome::Wrong(error),
            (None, Some(missing), _) => EvaluationOutcome::Missing(missing),
            (None, None, Ok(Ok(Value::Bool(answer)))) => EvaluationOutcome::Answer(answer),
            (None, None, Ok(Ok(value))) => {
                EvaluationOutcome::Wrong(format!("it is to be true or false, not {}", value.type_of()))
            }
            (None, None, Ok(Err(error))) => EvaluationOutcome::Wrong(one_line(&error.to_string())),
        };
        Evaluation { outcome, read_count: log.read_count, reads: log.reads }
    }

    fn context(
        &self,
        input: &EvaluationInput,
        log: &Arc<Mutex<ReadLog>>,
    ) -> Result<Context<'static, 'static>, String> {
        let mut context = Context::default();
        let failed = |error: &dyn std::fmt::Display| one_line(&error.to_string());
        for name in scan::READ_FUNCTIONS {
            let (input, log) = (input.clone(), log.clone());
            let call = move |arguments: Arguments| read(name, &arguments.0, &input, &log);
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

    /// Evaluates it over the metrics of one run; `None` if a metric is unknown, or the result is
    /// not a number.
    pub fn number(&self, metrics: &BTreeMap<String, f64>) -> Option<f64> {
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

/// Implements the functions that read figures.
fn read(
    name: &'static str,
    arguments: &[Value],
    input: &EvaluationInput,
    log: &Mutex<ReadLog>,
) -> Result<Value, ExecutionError> {
    let failure = |text: &str| ExecutionError::function_error(name, text);
    let mut log = log.lock().map_err(|_| failure("an earlier read failed"))?;
    log.read_count += 1;
    let cell_read = if log.read_count > MAX_READS {
        Err(CellError::Invalid(format!("it reads more than {MAX_READS} figures")))
    } else {
        read_cell(name, arguments, input)
    };
    match cell_read {
        Ok(read) => {
            let value = match &read.value {
                ReadValue::Number(number) => Value::Float(*number),
                ReadValue::Text(text) => Value::String(Arc::new(text.clone())),
            };
            if log.reads.len() < MAX_REPORTED_READS && !log.reads.contains(&read) {
                log.reads.push(read);
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

fn read_cell(name: &str, arguments: &[Value], input: &EvaluationInput) -> Result<FigureRead, CellError> {
    let ReadArguments { metric, first_choices, second_choices } = ReadArguments::of(name, arguments)?;
    let matrix = &input.matrix;
    let is_text = match matrix.study.metrics.get(metric) {
        None => return Err(CellError::Invalid(unknown_metric(metric, matrix))),
        Some(listed) => matches!(listed, Metric::Text(_)),
    };
    if is_text != (name == TEXT) {
        let kind = if is_text { "a text: write text(…)" } else { "a figure: write median(…)" };
        return Err(CellError::Invalid(format!("`{metric}` is {kind}")));
    }
    let named = first_choices.map_or_else(|| Ok(Vec::new()), |choices| selection(choices, matrix))?;
    let key = matrix.resolve(&named, &input.fixed)?;
    let subject = matrix.subjects.get(key.subject);
    if let Some(subject) = subject.filter(|subject| !subject.metrics.contains_key(metric)) {
        return Err(CellError::Invalid(format!("the subject `{}` has no metric `{metric}`", subject.name)));
    }
    let denominator = second_choices
        .map(|choices| matrix.resolve(&selection(choices, matrix)?, &input.fixed))
        .transpose()?;
    let value = match &denominator {
        _ if is_text => ReadValue::Text(
            input.measured.text(&key, metric).map_err(|why| missing_in_cell(&key, matrix, &why))?,
        ),
        Some(denominator) => ReadValue::Number(read_ratio(name, metric, [&key, denominator], input)?),
        None => ReadValue::Number(read_figure(name, metric, &key, input)?),
    };
    let runs = |key: &Key| {
        let runs = input.measured.partial_runs(key, metric)?;
        Some(format!("{} of {} runs", runs.measured, runs.total))
    };
    Ok(FigureRead {
        statistic: name.to_owned(),
        metric: metric.to_owned(),
        axes: matrix.names(&key).into_iter().collect(),
        denominator: denominator.as_ref().map(|key| matrix.names(key).into_iter().collect()),
        value,
        counted_runs: runs(&key).or_else(|| denominator.as_ref().and_then(runs)),
    })
}

struct ReadArguments<'v> {
    metric: &'v str,
    /// Choices of the cell, or of the first cell of a ratio.
    first_choices: Option<&'v Value>,
    /// Choices of the second cell of a ratio.
    second_choices: Option<&'v Value>,
}

impl<'v> ReadArguments<'v> {
    fn of(name: &str, arguments: &'v [Value]) -> Result<Self, CellError> {
        let is_ratio = name.starts_with("ratio");
        match arguments {
            [Value::String(metric)] if !is_ratio => {
                Ok(Self { metric, first_choices: None, second_choices: None })
            }
            [Value::String(metric), choices] if !is_ratio => {
                Ok(Self { metric, first_choices: Some(choices), second_choices: None })
            }
            [Value::String(metric), first, second] if is_ratio => {
                Ok(Self { metric, first_choices: Some(first), second_choices: Some(second) })
            }
            _ if is_ratio => {
                Err(CellError::Invalid("needs a metric and two choices: (\"METRIC\", { … }, { … })".into()))
            }
            _ => Err(CellError::Invalid("needs a metric and choices: (\"METRIC\", { \"axis\": … })".into())),
        }
    }
}

fn read_figure(name: &str, metric: &str, key: &Key, input: &EvaluationInput) -> Result<f64, CellError> {
    let named = Statistic::NAMES.iter().find(|(listed, _)| *listed == name);
    let statistic = named.map_or(Statistic::Median, |(_, statistic)| *statistic);
    let value = cell_statistic(&*input.measured, key, metric, statistic)
        .map_err(|why| missing_in_cell(key, &input.matrix, &why))?;
    value.ok_or_else(|| too_few(metric))
}

/// The ratio of the first cell to the second; an error names the cell with missing data.
fn read_ratio(
    name: &str,
    metric: &str,
    [numerator, denominator]: [&Key; 2],
    input: &EvaluationInput,
) -> Result<f64, CellError> {
    let samples =
        |key| input.measured.samples(key, metric).map_err(|why| missing_in_cell(key, &input.matrix, &why));
    let (numerators, denominators) = (samples(numerator)?, samples(denominator)?);
    let ratio = paired(&numerators, &denominators, metric)
        .map_err(|why| missing_in_cell(denominator, &input.matrix, &why))?;
    let value = match name {
        "ratio_low" => ratio.low,
        "ratio_high" => ratio.high,
        _ => Some(ratio.median),
    };
    value.ok_or_else(|| too_few(metric))
}

fn too_few(metric: &str) -> CellError {
    CellError::NotRun(format!("too few repeats for an interval of {metric}"))
}

/// An error for missing data that names the cell, if there are several.
fn missing_in_cell(key: &Key, matrix: &Matrix, why: &str) -> CellError {
    let named: Vec<String> =
        matrix.names(key).iter().map(|(axis, choice)| format!("{axis}={choice}")).collect();
    CellError::NotRun(if named.is_empty() { why.to_owned() } else { format!("{}: {why}", named.join(", ")) })
}

pub fn unknown_metric(metric: &str, matrix: &Matrix) -> String {
    let names = || matrix.study.metrics.keys().map(String::as_str);
    match super::nearest::nearest(metric, names()) {
        Some(near) => format!("there is no metric `{metric}`; did you mean `{near}`?"),
        None => {
            let first_names: Vec<&str> = names().take(MAX_LISTED_METRICS).collect();
            format!("there is no metric `{metric}`; there are {}, …", first_names.join(", "))
        }
    }
}

/// The choices given as `{ "axis": choice }`.
fn selection(value: &Value, matrix: &Matrix) -> Result<Selection, CellError> {
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
        selection.push((axis.to_string(), name));
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

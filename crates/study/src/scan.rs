//! Finds what an expression reads, and bounds its running time, from its tree without evaluating
//! it. Integer literals are converted to floating point, because CEL does not mix the two in
//! arithmetic.

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::CelDouble;

use super::kinds::TEXT;
use strandline_report::units::thousands;

/// Functions that read measured data.
pub const READ_FUNCTIONS: [&str; 9] =
    ["median", "low", "high", "least", "most", "ratio", "ratio_low", "ratio_high", TEXT];
/// Functions that do not read measured data.
pub const OTHER_FUNCTIONS: [&str; 6] = ["near", "abs", "min", "max", "values", "metric"];
/// Maximum number of steps of an expression.
const MAX_STEPS: u64 = 20_000;
/// Maximum depth of a tree.
const MAX_DEPTH: usize = 150;
/// Upper bound on the length of a list of published figures: what fits in the file of a study.
const MAX_PUBLISHED_ITEMS: usize = 1_000;

#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Axes named by literals.
    pub axes: BTreeSet<String>,
    /// Subjects named by literals.
    pub subjects: BTreeSet<String>,
    /// Metrics named by literals.
    pub metrics: BTreeSet<String>,
    /// Number literals.
    pub numbers: Vec<f64>,
    /// Text literals.
    pub texts: Vec<String>,
    /// Whether it reads measured data.
    pub has_reads: bool,
    /// Upper bound on the number of steps.
    pub steps: u64,
    /// The errors in it, one line each.
    pub errors: Vec<String>,
}

/// Scans `tree` and converts its integer literals to floating point. `axis_size` gives the number
/// of values of an axis; `variables` are the names that it may use.
pub fn scan(tree: &mut IdedExpr, axis_size: &dyn Fn(&str) -> Option<usize>, variables: &[&str]) -> Scan {
    let mut scan = Scan::default();
    let mut names: Vec<String> = variables.iter().map(|&name| name.to_owned()).collect();
    if depth(tree, 0) > MAX_DEPTH {
        scan.errors.push("it is nested too deeply".to_owned());
        return scan;
    }
    scan.errors.extend(super::kinds::errors(tree));
    scan_node(tree, &mut scan, &mut names, axis_size);
    let max_length = max_list_length(tree, axis_size).max(1);
    scan.steps = steps(tree, max_length, axis_size);
    if scan.steps > MAX_STEPS {
        scan.errors.push(format!(
            "it could take more than {} steps: shorten its lists, or nest fewer of them",
            thousands(MAX_STEPS)
        ));
    }
    scan
}

/// Records what `tree` reads; `names` are the names that it may use.
fn scan_node(
    tree: &mut IdedExpr,
    scan: &mut Scan,
    names: &mut Vec<String>,
    axis_size: &dyn Fn(&str) -> Option<usize>,
) {
    match &mut tree.expr {
        Expr::Literal(literal) => {
            if let LiteralValue::Int(number) = literal {
                *literal = LiteralValue::Double(CelDouble::from(*number.inner() as f64));
            }
            if let LiteralValue::Double(number) = literal {
                scan.numbers.push(*number.inner());
            }
            if let LiteralValue::String(text) = literal {
                scan.texts.push(text.inner().to_owned());
            }
        }
        Expr::Ident(name) => {
            if !names.iter().any(|listed| listed == name) {
                scan.errors.push(format!("there is no `{name}`; put text in quotation marks"));
            }
        }
        Expr::Call(call) => {
            scan_call(call, scan, axis_size);
            let is_index = call.func_name == operators::INDEX;
            for (position, argument) in call.args.iter_mut().enumerate() {
                // List indices must stay integers.
                let is_whole = matches!(&argument.expr, Expr::Literal(LiteralValue::Int(_)));
                if !(is_index && position == 1 && is_whole) {
                    scan_node(argument, scan, names, axis_size);
                }
            }
            if let Some(target) = &mut call.target {
                scan_node(target, scan, names, axis_size);
            }
        }
        Expr::Comprehension(inner) => {
            scan_node(&mut inner.iter_range, scan, names, axis_size);
            scan_node(&mut inner.accu_init, scan, names, axis_size);
            let outer_name_count = names.len();
            names.extend([inner.iter_var.clone(), inner.accu_var.clone()]);
            names.extend(inner.iter_var2.clone());
            scan_node(&mut inner.loop_cond, scan, names, axis_size);
            scan_node(&mut inner.loop_step, scan, names, axis_size);
            scan_node(&mut inner.result, scan, names, axis_size);
            names.truncate(outer_name_count);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(|item| scan_node(item, scan, names, axis_size)),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    scan_node(&mut entry.value, scan, names, axis_size);
                }
            }
        }
        Expr::Select(select) => scan_node(&mut select.operand, scan, names, axis_size),
        Expr::Struct(_) | Expr::Unspecified => scan.errors.push("structures are not supported".to_owned()),
    }
}

/// Records what a call names: a metric, choices, an axis.
fn scan_call(call: &CallExpr, scan: &mut Scan, axis_size: &dyn Fn(&str) -> Option<usize>) {
    let first_text = call.args.first().and_then(text_literal);
    match call.func_name.as_str() {
        name if READ_FUNCTIONS.contains(&name) => {
            scan.has_reads = true;
            scan.metrics.extend(first_text.map(str::to_owned));
            call.args.iter().skip(1).for_each(|selector| scan_choices(selector, scan));
        }
        "metric" => scan.metrics.extend(first_text.map(str::to_owned)),
        "values" => match first_text {
            Some(axis) if axis_size(axis).is_some() => {
                scan.axes.insert(axis.to_owned());
            }
            Some(axis) => scan.errors.push(format!("values: there is no axis `{axis}`")),
            None => scan.errors.push("values: needs the name of an axis, as values(\"size\")".to_owned()),
        },
        _ => {}
    }
}

/// Records the axes named by `{ "axis": choice }`.
fn scan_choices(selector: &IdedExpr, scan: &mut Scan) {
    let Expr::Map(map) = &selector.expr else {
        scan.errors.push("choices must be literals: { \"axis\": \"choice\" }".to_owned());
        return;
    };
    for entry in &map.entries {
        match &entry.expr {
            EntryExpr::MapEntry(entry) if text_literal(&entry.key).is_some() => {
                scan.axes.extend(text_literal(&entry.key).map(str::to_owned));
                if text_literal(&entry.key) == Some(super::file::SUBJECT) {
                    scan.subjects.extend(text_literal(&entry.value).map(str::to_owned));
                }
            }
            _ => scan.errors.push("an axis is named in quotation marks: { \"axis\": \"choice\" }".to_owned()),
        }
    }
}

fn text_literal(tree: &IdedExpr) -> Option<&str> {
    match &tree.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Number of values of the axis that a call `values("axis")` names. 0 if there is no such axis,
/// which [`scan_call`] reports.
fn values_count(call: &CallExpr, axis_size: &dyn Fn(&str) -> Option<usize>) -> usize {
    call.args.first().and_then(text_literal).and_then(axis_size).unwrap_or(0)
}

fn children(tree: &IdedExpr) -> Vec<&IdedExpr> {
    match &tree.expr {
        Expr::Call(call) => call.args.iter().chain(call.target.as_deref()).collect(),
        Expr::Comprehension(inner) => {
            vec![&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map
            .entries
            .iter()
            .filter_map(
                |entry| if let EntryExpr::MapEntry(entry) = &entry.expr { Some(&entry.value) } else { None },
            )
            .collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => Vec::new(),
    }
}

/// Depth of the deepest node of `tree`, whose root is `above` deep; counting stops above
/// [`MAX_DEPTH`].
fn depth(tree: &IdedExpr, above: usize) -> usize {
    if above > MAX_DEPTH {
        return above;
    }
    children(tree).into_iter().map(|child| depth(child, above + 1)).max().unwrap_or(above)
}

/// Upper bound on the length of any list that an expression can use.
fn max_list_length(tree: &IdedExpr, axis_size: &dyn Fn(&str) -> Option<usize>) -> usize {
    let own_length = match &tree.expr {
        Expr::List(list) => list.elements.len(),
        Expr::Map(map) => map.entries.len(),
        Expr::Call(call) if call.func_name == "values" => values_count(call, axis_size),
        Expr::Ident(name) if name == "published" => MAX_PUBLISHED_ITEMS,
        _ => 0,
    };
    children(tree)
        .into_iter()
        .map(|child| max_list_length(child, axis_size))
        .max()
        .unwrap_or(0)
        .max(own_length)
}

/// Upper bound on the length of the list that `tree` evaluates to; `max_length` is the bound for
/// any list.
fn length(tree: &IdedExpr, max_length: usize, axis_size: &dyn Fn(&str) -> Option<usize>) -> u64 {
    match &tree.expr {
        Expr::List(list) => list.elements.len() as u64,
        Expr::Call(call) if call.func_name == "values" => values_count(call, axis_size) as u64,
        Expr::Call(call) if call.func_name == operators::ADD => {
            call.args.iter().map(|part| length(part, max_length, axis_size)).fold(0, u64::saturating_add)
        }
        Expr::Comprehension(inner) => length(&inner.iter_range, max_length, axis_size),
        _ => max_length as u64,
    }
}

/// Upper bound on the number of steps of `tree`.
fn steps(tree: &IdedExpr, max_length: usize, axis_size: &dyn Fn(&str) -> Option<usize>) -> u64 {
    let child_steps = |child: &IdedExpr| steps(child, max_length, axis_size);
    if let Expr::Comprehension(inner) = &tree.expr {
        let steps_per_item = child_steps(&inner.loop_cond).saturating_add(child_steps(&inner.loop_step));
        let items = length(&inner.iter_range, max_length, axis_size);
        return child_steps(&inner.iter_range)
            .saturating_add(child_steps(&inner.result))
            .saturating_add(items.saturating_mul(steps_per_item))
            .saturating_add(1);
    }
    // One step for itself, such as a name lookup or a list copy.
    children(tree).into_iter().map(child_steps).fold(1, u64::saturating_add)
}

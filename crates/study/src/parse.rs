//! Converts the tables of a file to a study: settings, subjects, axes, measurements. Checks types
//! and keys; references between names are checked in `check`, once all names are known.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::{Fields, Located, Node, number, type_name};
use super::file::{
    Axis, AxisValue, DerivedDefinition, Measurement, Need, NeedKind, ProvenanceEntry, SUBJECT, Settings,
    ShortForm, Study, Subject, VariableSetting,
};
use super::parse_results;
use super::parse_words::{check_name, names, patterns, scalar};
use super::problems::Problems;
use strandline_recorder::Limits;

/// Placeholders that are not axes: the folders of the study, of its build and of the probes.
pub const OWN_PLACEHOLDERS: [&str; 3] = ["dir", "build", "probes"];
/// Maximum lengths of lists.
const MAX_SUBJECTS: usize = 1_000;
const MAX_CHOICES: usize = 100_000;
/// Bounds of settings: far beyond what a study needs, so that a typing error is reported.
const MAX_REPEATS: u32 = 100_000;
const MAX_WARM_UP: u32 = 1_000;
const MIN_TIMEOUT_SECONDS: f64 = 0.001;
const MAX_TIMEOUT_SECONDS: f64 = 7.0 * 86_400.0;
const MIN_INTERVAL_SECONDS: f64 = 0.001;
const MAX_INTERVAL_SECONDS: f64 = 60.0;

/// Parses the table of a whole file.
pub fn study(table: &DeTable<'_>, problems: &mut Problems) -> Study {
    let mut study = Study::default();
    let mut fields = Fields::new(table, 0, "study", problems);
    study.title = fields.required_text("title").value;
    study.about = fields.text("about").map(|text| text.value);
    let provenance = fields.node("provenance");
    let settings = fields.node("settings");
    let short = fields.node("short");
    let axes = fields.node("axes");
    let measure = fields.node("measure");
    let derived = fields.node("metrics");
    let subjects = fields.tables("subject");
    if subjects.is_empty() {
        fields.add_problem(0, "no [[subject]]: there is nothing to run");
    }
    let exclusions = fields.tables("exclude");
    let claims = fields.tables("claim");
    let tables = fields.tables("table");
    let plots = fields.tables("plot");
    fields.finish();

    if let Some(mut fields) = provenance.and_then(|node| Fields::of(node, "[provenance]", problems)) {
        for (key, node) in fields.entries() {
            if let Some(text) = fields.as_text(node, &key.value) {
                study.provenance.push(ProvenanceEntry { name: key.value, value: text.value });
            }
        }
    }
    if let Some(fields) = settings.and_then(|node| Fields::of(node, "[settings]", problems)) {
        study.settings = parse_settings(fields);
    }
    if let Some(fields) = short.and_then(|node| Fields::of(node, "[short]", problems)) {
        study.short = Some(parse_short(fields));
    }
    if let Some(mut fields) = axes.and_then(|node| Fields::of(node, "[axes]", problems)) {
        let named = fields.entries();
        study.axes =
            named.into_iter().filter_map(|(name, node)| parse_axis(name, node, fields.problems())).collect();
    }
    if let Some(fields) = measure.and_then(|node| Fields::of(node, "[measure]", problems)) {
        study.measure = parse_measure(fields);
    }
    if let Some(fields) = derived.and_then(|node| Fields::of(node, "[metrics]", problems)) {
        study.derived = parse_derived(fields);
    }
    if subjects.len() > MAX_SUBJECTS {
        problems.add(0, format!("more than {MAX_SUBJECTS} subjects"));
    }
    for node in subjects.into_iter().take(MAX_SUBJECTS) {
        if let Some(fields) = Fields::of(node, "[[subject]]", problems) {
            study.subjects.push(parse_subject(fields, &study.axes));
        }
    }
    parse_results::parse_exclusions(&exclusions, &mut study, problems);
    parse_results::parse_claims(&claims, &mut study, problems);
    parse_results::parse_tables(&tables, &mut study, problems);
    parse_results::parse_plots(&plots, &mut study, problems);
    study
}

/// Parses `[metrics]`.
fn parse_derived(mut fields: Fields<'_, '_>) -> Vec<DerivedDefinition> {
    let mut derived = Vec::new();
    for (name, node) in fields.entries() {
        if let Some(expression) = fields.as_text(node, &name.value) {
            check_name(&name, "a metric's name", "_.-", fields.problems());
            derived.push(DerivedDefinition { name: name.value, expression });
        }
    }
    derived
}

fn parse_settings(mut fields: Fields<'_, '_>) -> Settings {
    let mut settings = Settings::default();
    settings.repeats = fields.count("repeats", 1, MAX_REPEATS).unwrap_or(settings.repeats);
    settings.warm_up = fields.count("warm_up", 0, MAX_WARM_UP).unwrap_or(0);
    settings.timeout = parse_timeout(&mut fields).unwrap_or(settings.timeout);
    settings.environment = parse_environment(&mut fields);
    settings.limits = parse_limits(&mut fields);
    settings.seed = fields.count("seed", 0, u32::MAX).map_or(settings.seed, u64::from);
    fields.finish();
    settings
}

fn parse_short(mut fields: Fields<'_, '_>) -> ShortForm {
    let repeats = fields.count("repeats", 1, MAX_REPEATS);
    let mut axes = Vec::new();
    if let Some(node) = fields.node("axes")
        && let Some(mut inner) = Fields::of(node, "[short] axes", fields.problems())
    {
        for (name, node) in inner.entries() {
            let names = names(node, inner.problems());
            axes.push((name.value, names));
        }
    }
    fields.finish();
    ShortForm { repeats, axes }
}

/// Parses `timeout_seconds`.
fn parse_timeout(fields: &mut Fields<'_, '_>) -> Option<Duration> {
    let seconds = fields.number("timeout_seconds", MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS)?;
    Some(Duration::from_secs_f64(seconds.value))
}

/// Parses `environment = { NAME = "value", NUMBER = 1, GONE = false }`.
fn parse_environment(fields: &mut Fields<'_, '_>) -> Vec<VariableSetting> {
    let Some(node) = fields.node("environment") else { return Vec::new() };
    let title = format!("{} environment", fields.name());
    let Some(mut inner) = Fields::of(node, title, fields.problems()) else { return Vec::new() };
    let mut variables = Vec::new();
    for (name, node) in inner.entries() {
        if name.value.is_empty() || name.value.contains(['=', '\0']) {
            inner.add_problem(name.offset, format_args!("`{}` is not the name of a variable", name.value));
        }
        let value = match (node.get_ref(), scalar(node)) {
            (DeValue::Boolean(false), _) => None,
            (_, Some(value)) if !value.contains('\0') => Some(value),
            (other, _) => {
                let actual = type_name(other);
                inner.add_problem(
                    node.span().start,
                    format_args!("a variable is a string, a number, or false to remove it, not {actual}"),
                );
                continue;
            }
        };
        variables.push(VariableSetting { name: name.value, value });
    }
    variables
}

/// Parses `limits = { memory = "512MiB" }`.
fn parse_limits(fields: &mut Fields<'_, '_>) -> Limits {
    let Some(node) = fields.node("limits") else { return Limits::default() };
    let title = format!("{} limits", fields.name());
    let Some(mut inner) = Fields::of(node, title, fields.problems()) else { return Limits::default() };
    let limits = Limits {
        address_space_bytes: inner.size("address_space"),
        data_bytes: inner.size("data"),
        memory_bytes: inner.size("memory"),
    };
    inner.finish();
    limits
}

/// Parses `[[subject]]`; a subject without `axes` takes all of them.
fn parse_subject(mut fields: Fields<'_, '_>, all_axes: &[Axis]) -> Subject {
    let offset = fields.offset;
    let name = fields.required_text("name");
    let timeout = parse_timeout(&mut fields);
    let environment = parse_environment(&mut fields);
    let limits = parse_limits(&mut fields);
    let has_axes = fields.node("axes").is_some();
    let measure_title = format!("[[subject]] {}: measure", name.value);
    let subject = Subject {
        name: name.value,
        offset,
        command: parse_command(&mut fields, "command"),
        build: parse_builds(&mut fields),
        needs: parse_needs(&mut fields),
        environment,
        limits,
        timeout,
        axes: if has_axes {
            fields.texts("axes").into_iter().map(|axis| axis.value).collect()
        } else {
            all_axes.iter().map(|axis| axis.name.clone()).collect()
        },
        may_fail: fields.flag("may_fail").unwrap_or(false),
        repeats: fields.count("repeats", 1, MAX_REPEATS),
        measure: parse_own_measure(&mut fields, &measure_title),
        metrics: Default::default(),
    };
    if subject.command.is_empty() {
        fields.add_problem(offset, "`command` is missing or empty");
    }
    fields.finish();
    subject
}

/// Parses `[subject.measure]`.
fn parse_own_measure(fields: &mut Fields<'_, '_>, title: &str) -> Option<Measurement> {
    let node = fields.node("measure")?;
    Fields::of(node, title, fields.problems()).map(parse_measure)
}

/// Parses a command: one shell-quoted string, or a list of words.
fn parse_command(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<String> {
    let Some(node) = fields.node(key) else { return Vec::new() };
    match node.get_ref() {
        DeValue::Array(_) => fields.texts(key).into_iter().map(|word| word.value).collect(),
        _ => fields.as_text(node, key).map_or_else(Vec::new, |text| split_words(fields, key, &text)),
    }
}

/// Splits a shell-quoted command, the value of `key`, into words.
fn split_words(fields: &mut Fields<'_, '_>, key: &str, text: &Located<String>) -> Vec<String> {
    match shell_words::split(&text.value) {
        Ok(words) if words.iter().any(|word| word.contains('\0')) => {
            fields.add_problem(text.offset, format_args!("`{key}` contains a zero byte"));
            Vec::new()
        }
        Ok(words) => words,
        Err(_) => {
            fields.add_problem(text.offset, format_args!("`{key}`: a quotation mark is not closed"));
            Vec::new()
        }
    }
}

/// Parses `build`: one command, or a list of commands, each a shell-quoted string.
fn parse_builds(fields: &mut Fields<'_, '_>) -> Vec<Vec<String>> {
    let texts = fields.texts("build");
    let commands = texts.iter().map(|text| split_words(fields, "build", text));
    commands.filter(|words| !words.is_empty()).collect()
}

/// Parses `needs = ["perl", { tool = "gcc", install = "apt install gcc" }]`.
fn parse_needs(fields: &mut Fields<'_, '_>) -> Vec<Need> {
    let Some(node) = fields.node("needs") else { return Vec::new() };
    let title = format!("{} needs", fields.name());
    let items: Vec<&Node<'_>> = match node.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![node],
    };
    items.into_iter().filter_map(|item| parse_need(item, &title, fields.problems())).collect()
}

/// Parses one item of `needs`; `title` is the name of the list in problems.
fn parse_need(node: &Node<'_>, title: &str, problems: &mut Problems) -> Option<Need> {
    if let DeValue::String(name) = node.get_ref() {
        return Some(Need { name: name.to_string(), ..Need::default() });
    }
    let mut fields = Fields::of(node, title, problems)?;
    let named = [
        (NeedKind::Tool, fields.text("tool")),
        (NeedKind::Library, fields.text("library")),
        (NeedKind::File, fields.text("file")),
    ];
    let mut needs: Vec<Need> = named
        .into_iter()
        .filter_map(|(kind, name)| Some(Need { kind, name: name?.value, ..Need::default() }))
        .collect();
    needs.extend(parse_probe(&mut fields));
    if fields.node("memory").is_some() {
        // `size` reports an invalid size, and the study is then rejected.
        let bytes = fields.size("memory").unwrap_or_default();
        needs.push(Need { kind: NeedKind::Memory { bytes }, ..Need::default() });
    }
    let install = fields.text("install").map(|text| text.value);
    if needs.len() != 1 {
        let text = "exactly one of `tool`, `library`, `file`, `probe` and `memory` is needed";
        fields.add_problem(node.span().start, text);
    }
    fields.finish();
    needs.pop().map(|need| Need { install, ..need })
}

/// Parses `{ probe = "python3 -c 'import numpy'", name = "numpy" }`.
fn parse_probe(fields: &mut Fields<'_, '_>) -> Option<Need> {
    let offset = fields.node("probe").map(|node| node.span().start);
    let command = parse_command(fields, "probe");
    let name = fields.text("name");
    let Some(offset) = offset else {
        if let Some(name) = name {
            fields.add_problem(name.offset, "`name` is for a `probe`");
        }
        return None;
    };
    let name = name.map(|name| name.value);
    if command.is_empty() || name.as_ref().is_none_or(|name| name.trim().is_empty()) {
        fields.add_problem(offset, "`probe` is a command, and `name` is what it checks for");
    }
    Some(Need { kind: NeedKind::Probe { command }, name: name.unwrap_or_default(), install: None })
}

/// Parses an axis of `[axes]`.
fn parse_axis(name: Located<String>, node: &Node<'_>, problems: &mut Problems) -> Option<Axis> {
    check_name(&name, "an axis's name", "_", problems);
    if name.value == SUBJECT || OWN_PLACEHOLDERS.contains(&name.value.as_str()) {
        problems
            .add(name.offset, format!("[axes] `{}` has a meaning already; name it otherwise", name.value));
    }
    let title = format!("[axes] {}", name.value);
    let mut axis = Axis { name: name.value, offset: name.offset, ..Axis::default() };
    let (values, default) = match node.get_ref() {
        DeValue::Array(_) => (Some(node), None),
        _ => {
            let mut fields = Fields::of(node, title.as_str(), problems)?;
            let values = fields.node("values");
            let default = fields.node("default").map(|node| names(node, fields.problems()));
            axis.unit = fields.text("unit").map(|unit| unit.value);
            fields.finish();
            (values, default)
        }
    };
    let items = match values.map(Spanned::get_ref) {
        // The user supplies the choices at run time.
        None if default.as_ref().is_some_and(Vec::is_empty) => return Some(axis),
        Some(DeValue::Array(items)) if !items.is_empty() && items.len() <= MAX_CHOICES => items,
        Some(DeValue::Array(items)) if !items.is_empty() => {
            problems.add(axis.offset, format!("{title}: more than {MAX_CHOICES} values"));
            return Some(axis);
        }
        _ => {
            problems.add(axis.offset, format!("{title}: expected a list of at least one value"));
            return Some(axis);
        }
    };
    let mut unique_names = std::collections::BTreeSet::new();
    for item in items.iter() {
        let Some(choice) = parse_choice(item, &title, problems) else { continue };
        if !unique_names.insert(choice.name.clone()) {
            problems.add(item.span().start, format!("{title}: `{}` is defined twice", choice.name));
        }
        axis.choices.push(choice);
    }
    let all_choices = || axis.choices.iter().map(|choice| choice.name.clone()).collect();
    axis.default = default.unwrap_or_else(all_choices);
    Some(axis)
}

/// Parses a value of an axis; `title` is the name of the axis in problems.
fn parse_choice(node: &Node<'_>, title: &str, problems: &mut Problems) -> Option<AxisValue> {
    if let Some(name) = scalar(node) {
        let number = number(node.get_ref());
        return Some(AxisValue { value: name.clone(), name, number, ..AxisValue::default() });
    }
    let mut fields = Fields::of(node, title, problems)?;
    let name_node = fields.node("name");
    let value_node = fields.node("value");
    let name = name_node.or(value_node).and_then(scalar).unwrap_or_default();
    if name.is_empty() {
        fields.add_problem(node.span().start, "each value has a `name`");
    }
    let install = fields.text("install").map(|text| text.value);
    let preload = fields.text("preload").map(|text| text.value);
    let environment = parse_environment(&mut fields);
    let limits = parse_limits(&mut fields);
    let mut choice = AxisValue {
        value: value_node.and_then(scalar).unwrap_or_else(|| name.clone()),
        number: value_node.or(name_node).and_then(|node| number(node.get_ref())),
        name,
        preload,
        environment,
        limits,
        needs: parse_needs(&mut fields),
    };
    if let Some(library) = choice.preload.clone() {
        choice.needs.push(Need { kind: NeedKind::Library, name: library, install });
    } else if let Some(install) = install {
        // The value itself (a program's path or name) is what must be installed.
        choice.needs.push(Need { name: choice.value.clone(), install: Some(install), ..Need::default() });
    }
    fields.finish();
    Some(choice)
}

fn parse_measure(mut fields: Fields<'_, '_>) -> Measurement {
    let mut measure = Measurement { marks: patterns(&mut fields, "marks"), ..Measurement::default() };
    measure.columns = fields.texts("columns").into_iter().map(|column| column.value).collect();
    if measure.columns.is_empty() {
        measure.columns = vec!["rss_bytes".to_owned()];
    }
    measure.rows = patterns(&mut fields, "rows");
    let has_moments = fields.node("at").is_some();
    measure.ledger_moments = patterns(&mut fields, "at");
    if !measure.rows.is_empty() && !has_moments {
        measure.ledger_moments =
            if measure.marks.is_empty() { vec!["exit".to_owned()] } else { measure.marks.clone() };
    } else if has_moments && measure.rows.is_empty() {
        fields.add_problem(fields.offset, "`at` is when ledgers are taken, but there are no `rows` to take");
    }
    // Older studies use the key `photograph`.
    measure.uses_snapshots = fields.flag("snapshot").or_else(|| fields.flag("photograph")).unwrap_or(false);
    if measure.uses_snapshots && measure.rows.is_empty() {
        fields.add_problem(
            fields.offset,
            "`snapshot` is how ledgers are taken, but there are no `rows` to take",
        );
    }
    measure.json = patterns(&mut fields, "json");
    measure.texts = patterns(&mut fields, "texts");
    if let Some(counter) = fields.text("instructions") {
        measure.uses_cachegrind = counter.value == "cachegrind";
        if !["cachegrind", "counters"].contains(&counter.value.as_str()) {
            fields.add_problem(counter.offset, "`instructions` is \"counters\" or \"cachegrind\"");
        }
    }
    if let Some(seconds) = fields.number("interval_seconds", MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS) {
        measure.interval = Duration::from_secs_f64(seconds.value);
    }
    fields.finish();
    measure
}

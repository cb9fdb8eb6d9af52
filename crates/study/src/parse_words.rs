//! The smallest parts of a study file: names, lists of names, patterns, and scalars as text.

use toml::de::DeValue;

use super::fields::{Fields, Located, Node, number, type_name};
use super::metric::{MAX_METRICS, expand};
use super::problems::Problems;

/// Maximum length of a name.
const MAX_NAME_BYTES: usize = 100;

/// The name of a choice, or a list of names: strings or numbers.
pub fn names(node: &Node<'_>, problems: &mut Problems) -> Vec<String> {
    let items: Vec<&Node<'_>> = match node.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![node],
    };
    items
        .into_iter()
        .filter_map(|item| {
            let name = scalar(item);
            if name.is_none() {
                problems.add(
                    item.span().start,
                    format!("expected the name of a choice, not {}", type_name(item.get_ref())),
                );
            }
            name
        })
        .collect()
}

/// A string unchanged, or a number in its shortest form.
pub fn scalar(node: &Node<'_>) -> Option<String> {
    match node.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        other => number(other).map(|number| number.to_string()),
    }
}

/// Strings with `{1..3}` and `{a,b}` expanded; at most one more than [`MAX_METRICS`], which the
/// check of their number reports.
pub fn patterns(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<String> {
    let texts = fields.texts(key);
    let mut names = Vec::new();
    for text in texts {
        if names.len() > MAX_METRICS {
            break;
        }
        match expand(&text.value) {
            Ok(expanded) => names.extend(expanded),
            Err(line) => fields.add_problem(text.offset, line),
        }
    }
    names.truncate(MAX_METRICS + 1);
    names
}

/// Checks that a name begins with a letter, consists of letters, digits and `signs`, and is not too
/// long; `role` says what it names.
pub fn check_name(name: &Located<String>, role: &str, signs: &str, problems: &mut Problems) {
    let begins_with_letter = name.value.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_plain = name.value.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c));
    if begins_with_letter && is_plain && name.value.len() <= MAX_NAME_BYTES {
        return;
    }
    let shown_name = strandline_report::text::clean_sentence(&name.value);
    let signs = signs.chars().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(" ");
    problems.add(
        name.offset,
        format!(
            "`{shown_name}`: {role} begins with a letter and has letters, digits and {signs} only, \
             at most {MAX_NAME_BYTES}"
        ),
    );
}

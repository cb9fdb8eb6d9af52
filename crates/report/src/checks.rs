//! The terminal view of `doctor`: a line per satisfied check; for others also the consequence and
//! the remedy.

use serde::Serialize;

use super::paint::{Paint, Surface};
use super::terminal::{faint, joined};
use super::text::{clean_sentence, hanging, pad_right, wrap};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Available.
    Ok,
    /// Available with a limitation.
    Limited,
    /// Missing.
    Missing,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// A short, stable name for scripts.
    pub id: &'static str,
    /// The result.
    pub status: Status,
    /// Whether strandline can do without it.
    pub optional: bool,
    /// The finding.
    pub found: String,
    /// The consequence for explain and reclaim.
    pub means: String,
    /// How to fix it; `None` if nothing needs to be done.
    pub fix: Option<String>,
}

/// The whole view, with a final newline.
pub fn checks(checks: &[Check], surface: Surface) -> String {
    let wanting = |check: &&Check| check.status != Status::Ok && !check.optional;
    let short = checks.iter().filter(wanting).count();
    let headline = match short {
        0 => "everything that explain and reclaim need is here".to_owned(),
        1 => "1 check is limited or missing; its consequence is below it".to_owned(),
        n => format!("{n} checks are limited or missing; their consequences are below them"),
    };
    let mut lines = vec![surface.paint(Paint::Strong, &headline), String::new()];
    for check in checks {
        lines.extend(one(check, surface));
    }
    joined(&lines)
}

fn one(check: &Check, surface: Surface) -> Vec<String> {
    let (word, colour) = match check.status {
        Status::Ok => ("ok", 36),
        _ if check.optional => ("-", 245),
        Status::Limited => ("limited", 214),
        Status::Missing => ("missing", 166),
    };
    let word = pad_right(word, 9);
    let first = format!("{word}{}", pad_right(check.id, 17));
    let mut lines = hanging(&first, &clean_sentence(&check.found), surface.columns);
    if let Some(line) = lines.first_mut() {
        *line = line.replacen(&word, &surface.paint(Paint::Colour(colour), &word), 1);
    }
    if check.status == Status::Ok || check.optional {
        return lines;
    }
    let deeper = surface.columns.saturating_sub(11);
    let indent = |lines: Vec<String>| lines.into_iter().map(|line| format!("           {line}"));
    lines.extend(indent(faint(&wrap(&clean_sentence(&check.means), deeper), surface)));
    if let Some(fix) = &check.fix {
        lines.extend(indent(hanging("→ ", &clean_sentence(fix), deeper)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_have_a_consequence_and_a_fix() {
        let check = |id, status, optional| Check {
            id,
            status,
            optional,
            found: format!("{id} was looked for\x1b[2J"),
            means: "something cannot be read. ".repeat(5),
            fix: Some("do this".to_owned()),
        };
        let all = [
            check("kernel", Status::Ok, false),
            check("ptrace", Status::Missing, false),
            check("map_files", Status::Limited, false),
            check("gdb", Status::Missing, true),
        ];
        let text = checks(&all, Surface { columns: 80, colour: false });
        assert!(text.starts_with("2 checks are limited or missing"));
        assert!(text.lines().all(|line| crate::text::width(line) <= 80), "{text}");
        assert!(!text.contains('\x1b'));
        assert_eq!(text.matches("→ do this").count(), 2);
        let fine = checks(&all[..1], Surface { columns: 80, colour: false });
        assert!(fine.starts_with("everything that explain and reclaim need is here"));
    }
}

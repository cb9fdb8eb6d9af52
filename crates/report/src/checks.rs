//! The terminal view of `doctor`: a line per satisfied check; for others also the consequence and
//! the remedy.

use serde::Serialize;

use super::paint::{self, Paint, Surface};
use super::terminal::{faint, joined};
use super::text::{clean_sentence, hanging, pad_right, width, wrap};

/// Width of a status and the spaces after it.
const STATUS_COLUMNS: usize = 9;
/// Width of a check's id and the spaces after it.
const ID_COLUMNS: usize = 17;
/// Indent of the consequence and of the fix.
const INDENT: &str = "           ";

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
    #[serde(rename = "optional")]
    pub is_optional: bool,
    /// What it found.
    #[serde(rename = "found")]
    pub finding: String,
    /// The consequence for explain and reclaim.
    #[serde(rename = "means")]
    pub impact: String,
    /// How to fix it; `None` if nothing needs to be done.
    pub fix: Option<String>,
}

/// The whole view, with a final newline.
pub fn checks(checks: &[Check], surface: Surface) -> String {
    let is_unsatisfied = |check: &&Check| check.status != Status::Ok && !check.is_optional;
    let headline = match checks.iter().filter(is_unsatisfied).count() {
        0 => "everything that explain and reclaim need is here".to_owned(),
        1 => "1 check is limited or missing; its consequence is below it".to_owned(),
        count => format!("{count} checks are limited or missing; their consequences are below them"),
    };
    let mut lines = vec![surface.paint(Paint::Strong, &headline), String::new()];
    for check in checks {
        lines.extend(check_lines(check, surface));
    }
    joined(&lines)
}

fn check_lines(check: &Check, surface: Surface) -> Vec<String> {
    let (status, status_paint) = match check.status {
        Status::Ok => ("ok", paint::GREEN),
        _ if check.is_optional => ("-", paint::GREY),
        Status::Limited => ("limited", paint::ORANGE),
        Status::Missing => ("missing", paint::VERMILLION),
    };
    let status = pad_right(status, STATUS_COLUMNS);
    let label = format!("{status}{}", pad_right(check.id, ID_COLUMNS));
    let mut lines = hanging(&label, &clean_sentence(&check.finding), surface.columns);
    if let Some(line) = lines.first_mut() {
        *line = line.replacen(&status, &surface.paint(status_paint, &status), 1);
    }
    if check.status == Status::Ok || check.is_optional {
        return lines;
    }
    let columns = surface.columns.saturating_sub(INDENT.len());
    let indented = |lines: Vec<String>| lines.into_iter().map(|line| format!("{INDENT}{line}"));
    lines.extend(indented(faint(&wrap(&clean_sentence(&check.impact), columns), surface)));
    if let Some(fix) = &check.fix {
        lines.extend(indented(wrap_advice(&clean_sentence(fix), columns)));
    }
    lines
}

/// Wraps advice to `columns`, but never within a command, which stands between backquotes: it is
/// to be pasted.
fn wrap_advice(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec!["→".to_owned()];
    let mut is_in_command = false;
    let mut word = String::new();
    // The line feed ends the last word, also within a command without its second backquote.
    for c in text.chars().chain(['\n']) {
        is_in_command ^= c == '`';
        if c != '\n' && (c != ' ' || is_in_command) {
            word.push(c);
            continue;
        }
        let last_line = lines.last_mut().filter(|line| width(line) + 1 + width(&word) <= columns);
        match last_line {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(format!("  {word}")),
        }
        word.clear();
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
            is_optional: optional,
            finding: format!("{id} was looked for\x1b[2J"),
            impact: "something cannot be read. ".repeat(5),
            fix: Some("do this".to_owned()),
        };
        let all = [
            check("kernel", Status::Ok, false),
            check("ptrace", Status::Missing, false),
            check("map_files", Status::Limited, false),
            check("gdb", Status::Missing, true),
        ];
        let text = checks(&all, Surface { columns: 80, has_colour: false });
        assert!(text.starts_with("2 checks are limited or missing"));
        assert!(text.lines().all(|line| crate::text::width(line) <= 80), "{text}");
        assert!(!text.contains('\x1b'));
        assert_eq!(text.matches("→ do this").count(), 2);
        let satisfied = checks(&all[..1], Surface { columns: 80, has_colour: false });
        assert!(satisfied.starts_with("everything that explain and reclaim need is here"));
    }

    #[test]
    fn commands_are_not_broken() {
        let command = format!("`setcap {}+ep /usr/bin/strandline`", "cap_sys_ptrace,".repeat(7));
        let lines = wrap_advice(&format!("run as root, or {command} (for one group only)"), 69);
        let expected =
            ["→ run as root, or".to_owned(), format!("  {command}"), "  (for one group only)".to_owned()];
        assert_eq!(lines, expected);
        assert_eq!(wrap_advice("do this", 69), ["→ do this"]);
        assert_eq!(wrap_advice("run `a b` now", 9), ["→ run", "  `a b`", "  now"]);
    }
}

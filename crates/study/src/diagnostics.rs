//! Collects all problems of a study file with line and column, and reads TOML tables with detection
//! of unknown keys. Independent of the meaning of a study.

use std::fmt::Write as _;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and its position.
pub type Node<'t> = Spanned<DeValue<'t>>;

/// Further problems are counted but not listed.
const MAX_PROBLEMS: usize = 100;

/// A value and its position in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Byte offset in the file.
    pub offset: usize,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Byte offset in the file.
    pub offset: usize,
    /// Byte offset in the decoded string that begins there; `None`: its beginning.
    pub string_offset: Option<usize>,
    /// The problem and how to fix it, in one line.
    pub text: String,
}

/// The problems of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    found: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, offset: usize, text: impl Into<String>) {
        self.add_within(offset, None, text);
    }

    /// Adds a problem at the byte `within` of the decoded string at `offset`.
    pub fn add_within(&mut self, offset: usize, within: Option<usize>, text: impl Into<String>) {
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(Problem { offset, string_offset: within, text: text.into() });
        } else {
            self.more += 1;
        }
    }

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The problems in file order.
    pub fn sorted(&self) -> Vec<&Problem> {
        let mut sorted: Vec<&Problem> = self.found.iter().collect();
        sorted.sort_by_key(|problem| problem.offset);
        sorted
    }

    /// A line `PATH:LINE:COLUMN: text` for each problem of the file `path` with content `text`.
    /// Columns count characters.
    pub fn lines(&self, path: &Path, text: &str) -> Vec<String> {
        let place = |offset: usize| {
            let before = text.get(..offset).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            (line, column)
        };
        let mut lines: Vec<String> = self
            .sorted()
            .into_iter()
            .map(|problem| {
                let within = problem.string_offset.map(|within| within_string(text, problem.offset, within));
                let (line, column) = place(within.unwrap_or(problem.offset));
                format!("{}:{line}:{column}: {}", path.display(), problem.text)
            })
            .collect();
        if self.more > 0 {
            lines.push(format!("{}: {} more problems", path.display(), self.more));
        }
        lines
    }
}

/// Offset in the file of the byte `within` of the decoded string at `offset`.
fn within_string(text: &str, offset: usize, within: usize) -> usize {
    let Some(raw) = text.get(offset..) else { return offset };
    let quotes = ["\"\"\"", "'''", "\"", "'"];
    let Some(quote) = quotes.into_iter().find(|quote| raw.starts_with(quote)) else { return offset };
    let has_escapes = quote.starts_with('"');
    let mut at = quote.len();
    let rest = |at: usize| raw.get(at..).unwrap_or_default();
    if quote.len() == 3 {
        // A line end right after the opening quotes is not part of the string.
        at += ["\r\n", "\n"].into_iter().find(|end| rest(at).starts_with(end)).map_or(0, str::len);
    }
    let mut said = 0;
    while said < within {
        let Some(c) = rest(at).chars().next() else { break };
        if !(has_escapes && c == '\\') {
            (at, said) = (at + c.len_utf8(), said + c.len_utf8());
            continue;
        }
        let escape = rest(at + 1).chars().next().unwrap_or(' ');
        let digits = match escape {
            'u' => 4,
            'U' => 8,
            'x' => 2,
            _ => 0,
        };
        if escape.is_whitespace() {
            // White space after an escaped line end is not part of the string either.
            let after = rest(at + 1);
            at += 1 + after.len() - after.trim_start().len();
            if after.is_empty() {
                break;
            }
        } else if digits > 0 {
            let code = rest(at + 2).get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
            (at, said) = (at + 2 + digits, said + code.and_then(char::from_u32).map_or(1, char::len_utf8));
        } else {
            (at, said) = (at + 1 + escape.len_utf8(), said + 1);
        }
    }
    (offset + at).min(text.len())
}

/// A table that is read key by key; [`Fields::finish`] reports the keys that were not read.
pub struct Fields<'t, 'p> {
    table: &'t DeTable<'t>,
    /// Position of the table.
    pub offset: usize,
    what: String,
    known: Vec<&'static str>,
    problems: &'p mut Problems,
}

impl<'t, 'p> Fields<'t, 'p> {
    /// Reads `table`, called `what` in problems.
    pub fn new(
        table: &'t DeTable<'t>,
        offset: usize,
        what: impl Into<String>,
        problems: &'p mut Problems,
    ) -> Self {
        Self { table, offset, what: what.into(), known: Vec::new(), problems }
    }

    /// Reads `node` as a table, called `what`; adds a problem and returns `None` if it is not a
    /// table.
    pub fn of(node: &'t Node<'t>, what: impl Into<String>, problems: &'p mut Problems) -> Option<Self> {
        let what = what.into();
        match node.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, node.span().start, what, problems)),
            other => {
                problems.add(node.span().start, format!("{what}: a table is wanted, not {}", kind(other)));
                None
            }
        }
    }

    /// The collected problems.
    pub fn problems(&mut self) -> &mut Problems {
        self.problems
    }

    /// Name of the table in problems.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Adds a problem.
    pub fn problem(&mut self, offset: usize, text: impl std::fmt::Display) {
        self.problems.add(offset, format!("{}: {text}", self.what));
    }

    /// The value of `key`.
    pub fn node(&mut self, key: &'static str) -> Option<&'t Node<'t>> {
        self.known.push(key);
        self.table.get(key)
    }

    /// All keys and values in file order, for tables with arbitrary keys.
    pub fn all(&mut self) -> Vec<(Located<String>, &'t Node<'t>)> {
        let mut entries: Vec<_> = self
            .table
            .iter()
            .map(|(key, value)| {
                (Located { value: key.get_ref().to_string(), offset: key.span().start }, value)
            })
            .collect();
        entries.sort_by_key(|(key, _)| key.offset);
        entries
    }

    /// A string.
    pub fn text(&mut self, key: &'static str) -> Option<Located<String>> {
        let node = self.node(key)?;
        self.as_text(node, key)
    }

    /// A required, non-empty string.
    pub fn required_text(&mut self, key: &'static str) -> Located<String> {
        let is_there = self.node(key).is_some();
        let text = self.text(key).unwrap_or_default();
        if !is_there {
            self.problem(self.offset, format_args!("`{key}` is missing"));
        } else if text.value.trim().is_empty()
            && matches!(self.node(key).map(Spanned::get_ref), Some(DeValue::String(_)))
        {
            self.problem(text.offset, format_args!("`{key}` is empty"));
        }
        text
    }

    /// `node`, the value of `key`, as a string.
    pub fn as_text(&mut self, node: &'t Node<'t>, key: &str) -> Option<Located<String>> {
        match node.get_ref() {
            DeValue::String(text) => Some(Located { value: text.to_string(), offset: node.span().start }),
            other => {
                self.wrong(node, key, "a string", other);
                None
            }
        }
    }

    /// A string, or a list of strings.
    pub fn texts(&mut self, key: &'static str) -> Vec<Located<String>> {
        let Some(node) = self.node(key) else { return Vec::new() };
        match node.get_ref() {
            DeValue::Array(items) => items.iter().filter_map(|item| self.as_text(item, key)).collect(),
            DeValue::String(_) => self.as_text(node, key).into_iter().collect(),
            other => {
                self.wrong(node, key, "a string or a list of strings", other);
                Vec::new()
            }
        }
    }

    /// A boolean.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        let node = self.node(key)?;
        match node.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            other => {
                self.wrong(node, key, "true or false", other);
                None
            }
        }
    }

    /// A finite number between `least` and `most`.
    pub fn number(&mut self, key: &'static str, least: f64, most: f64) -> Option<Located<f64>> {
        let node = self.node(key)?;
        let Some(value) = number(node.get_ref()) else {
            self.wrong(node, key, "a number", node.get_ref());
            return None;
        };
        if !(least..=most).contains(&value) {
            self.problem(
                node.span().start,
                format_args!("`{key}` is {value}: between {least} and {most} is wanted"),
            );
            return None;
        }
        Some(Located { value, offset: node.span().start })
    }

    /// A whole number between `least` and `most`.
    pub fn count(&mut self, key: &'static str, least: u32, most: u32) -> Option<u32> {
        let found = self.number(key, f64::from(least), f64::from(most))?;
        if found.value.fract() != 0.0 {
            self.problem(found.offset, format_args!("`{key}` is a whole number"));
            return None;
        }
        Some(found.value as u32)
    }

    /// A size: bytes, or a string such as `"512MiB"`.
    pub fn size(&mut self, key: &'static str) -> Option<u64> {
        let node = self.node(key)?;
        let found = match node.get_ref() {
            DeValue::String(text) => size(text),
            DeValue::Integer(_) => number(node.get_ref()).filter(|&n| n >= 0.0).map(|n| n as u64),
            _ => None,
        };
        if found.is_none() {
            self.problem(
                node.span().start,
                format_args!("`{key}` is a size: bytes, or a string such as \"512MiB\""),
            );
        }
        found
    }

    /// The tables of a list `[[key]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<&'t Node<'t>> {
        let Some(node) = self.node(key) else { return Vec::new() };
        match node.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            other => {
                self.wrong(node, key, &format!("a list of tables, each begun by [[{key}]],"), other);
                Vec::new()
            }
        }
    }

    fn wrong(&mut self, node: &Node<'_>, key: &str, wanted: &str, found: &DeValue<'_>) {
        let found = kind(found);
        self.problem(node.span().start, format_args!("`{key}`: {wanted} is wanted, not {found}"));
    }

    /// Reports the keys that were not read.
    pub fn finish(self) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.known.contains(&name) {
                continue;
            }
            let mut text = format!("{}: there is no key `{name}` here", self.what);
            match nearest(name, self.known.iter().copied()) {
                Some(near) => drop(write!(text, "; did you mean `{near}`?")),
                None => drop(write!(text, "; it has {}", self.known.join(", "))),
            }
            self.problems.add(key.span().start, text);
        }
    }
}

/// A finite number, integer or float.
pub fn number(value: &DeValue<'_>) -> Option<f64> {
    let found = match value {
        DeValue::Integer(whole) => i64::from_str_radix(whole.as_str(), whole.radix()).ok()? as f64,
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok()?,
        _ => return None,
    };
    Some(found).filter(|found: &f64| found.is_finite())
}

/// Parses a size such as `512MiB`, `2 GB`, `4096`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (figure, unit) = text.split_at_checked(digits)?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    let bytes = figure.parse::<f64>().ok()? * factor as f64;
    (bytes < 1e18).then_some(bytes as u64)
}

/// Describes the type of a value.
pub fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The most similar of `names`, if one is similar enough to be meant by `wrong`.
pub fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let far = wrong.chars().count().max(3) / 3 + 1;
    names
        // A prefix counts as similar, however much is missing.
        .map(|name| (if name.starts_with(wrong) { 1 } else { distance(wrong, name) }, name))
        .filter(|&(distance, _)| distance <= far)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance between two words, truncated to 40 characters.
fn distance(a: &str, b: &str) -> usize {
    const MAX: usize = 40;
    let b: Vec<char> = b.chars().take(MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(MAX).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (&above, &y) in row.iter().skip(1).zip(&b) {
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        assert_eq!(size("4096"), Some(4096));
        assert_eq!(size("1.5 KiB"), Some(1536));
        assert_eq!(size("2GB"), Some(2_000_000_000));
        for wrong in ["", "MiB", "1 parsec", "-1", "1e9", "99999999999 GiB"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_nearest_name_is_offered_only_where_it_is_near() {
        let names = ["repeats", "command", "axes"];
        assert_eq!(nearest("repeat", names.into_iter()), Some("repeats"));
        assert_eq!(nearest("comand", names.into_iter()), Some("command"));
        assert_eq!(nearest("wholly-other", names.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

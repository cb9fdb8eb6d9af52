//! Reads TOML tables key by key, with positions and detection of unknown keys. Independent of the
//! meaning of a study.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::nearest;
use super::problems::Problems;

/// Sizes in bytes are below this, which is more than any machine's memory.
const MAX_SIZE_BYTES: f64 = 1e18;

/// A TOML value and its byte range in the file.
pub type Node<'t> = Spanned<DeValue<'t>>;

/// A value and its position in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Located<T> {
    pub value: T,
    /// Byte offset in the file.
    pub offset: usize,
}

/// A table that is read key by key; [`Fields::finish`] reports the keys that were not read.
pub struct Fields<'t, 'p> {
    table: &'t DeTable<'t>,
    /// Byte offset of the table in the file.
    pub offset: usize,
    /// Name of the table in problems.
    name: String,
    /// The keys that were read, also those that the table lacks.
    read_keys: Vec<&'static str>,
    problems: &'p mut Problems,
}

impl<'t, 'p> Fields<'t, 'p> {
    /// Reads `table`, called `name` in problems.
    pub fn new(
        table: &'t DeTable<'t>,
        offset: usize,
        name: impl Into<String>,
        problems: &'p mut Problems,
    ) -> Self {
        Self { table, offset, name: name.into(), read_keys: Vec::new(), problems }
    }

    /// Reads `node` as a table, called `name`; adds a problem and returns `None` if it is not a
    /// table.
    pub fn of(node: &'t Node<'t>, name: impl Into<String>, problems: &'p mut Problems) -> Option<Self> {
        let name = name.into();
        match node.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, node.span().start, name, problems)),
            other => {
                problems
                    .add(node.span().start, format!("{name}: expected a table, not {}", type_name(other)));
                None
            }
        }
    }

    pub fn problems(&mut self) -> &mut Problems {
        self.problems
    }

    /// Name of the table in problems.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn add_problem(&mut self, offset: usize, text: impl std::fmt::Display) {
        self.problems.add(offset, format!("{}: {text}", self.name));
    }

    /// The value of `key`, which counts as read.
    pub fn node(&mut self, key: &'static str) -> Option<&'t Node<'t>> {
        self.read_keys.push(key);
        self.table.get(key)
    }

    /// All keys and values in file order, for tables with arbitrary keys.
    pub fn entries(&mut self) -> Vec<(Located<String>, &'t Node<'t>)> {
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

    /// The value of `key` as a string. Like the others, adds a problem and returns nothing for a
    /// value of another type.
    pub fn text(&mut self, key: &'static str) -> Option<Located<String>> {
        let node = self.node(key)?;
        self.as_text(node, key)
    }

    /// A required string. If it is missing or empty, adds a problem and returns an empty one.
    pub fn required_text(&mut self, key: &'static str) -> Located<String> {
        let Some(node) = self.node(key) else {
            self.add_problem(self.offset, format_args!("`{key}` is missing"));
            return Located::default();
        };
        let Some(text) = self.as_text(node, key) else { return Located::default() };
        if text.value.trim().is_empty() {
            self.add_problem(text.offset, format_args!("`{key}` is empty"));
        }
        text
    }

    /// `node`, the value of `key`, as a string.
    pub fn as_text(&mut self, node: &'t Node<'t>, key: &str) -> Option<Located<String>> {
        match node.get_ref() {
            DeValue::String(text) => Some(Located { value: text.to_string(), offset: node.span().start }),
            other => {
                self.add_type_problem(node, key, "a string", other);
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
                self.add_type_problem(node, key, "a string or a list of strings", other);
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
                self.add_type_problem(node, key, "true or false", other);
                None
            }
        }
    }

    /// A finite number between `min` and `max`.
    pub fn number(&mut self, key: &'static str, min: f64, max: f64) -> Option<Located<f64>> {
        let node = self.node(key)?;
        let Some(value) = number(node.get_ref()) else {
            self.add_type_problem(node, key, "a number", node.get_ref());
            return None;
        };
        if !(min..=max).contains(&value) {
            self.add_problem(
                node.span().start,
                format_args!("`{key}` is {value}: it must be between {min} and {max}"),
            );
            return None;
        }
        Some(Located { value, offset: node.span().start })
    }

    /// A whole number between `min` and `max`.
    pub fn count(&mut self, key: &'static str, min: u32, max: u32) -> Option<u32> {
        let number = self.number(key, f64::from(min), f64::from(max))?;
        if number.value.fract() != 0.0 {
            self.add_problem(number.offset, format_args!("`{key}` is a whole number"));
            return None;
        }
        Some(number.value as u32)
    }

    /// A size: bytes, or a string such as `"512MiB"`.
    pub fn size(&mut self, key: &'static str) -> Option<u64> {
        let node = self.node(key)?;
        let bytes = match node.get_ref() {
            DeValue::String(text) => parse_size(text),
            DeValue::Integer(_) => number(node.get_ref()).filter(|&n| n >= 0.0).map(|n| n as u64),
            _ => None,
        };
        if bytes.is_none() {
            self.add_problem(
                node.span().start,
                format_args!("`{key}` is a size: bytes, or a string such as \"512MiB\""),
            );
        }
        bytes
    }

    /// The tables of a list `[[key]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<&'t Node<'t>> {
        let Some(node) = self.node(key) else { return Vec::new() };
        match node.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            other => {
                self.add_type_problem(
                    node,
                    key,
                    &format!("a list of tables, each begun by [[{key}]],"),
                    other,
                );
                Vec::new()
            }
        }
    }

    /// Adds a problem for a value of another type than `expected`.
    fn add_type_problem(&mut self, node: &Node<'_>, key: &str, expected: &str, value: &DeValue<'_>) {
        let actual = type_name(value);
        self.add_problem(node.span().start, format_args!("`{key}`: expected {expected}, not {actual}"));
    }

    /// Reports the keys that were not read.
    pub fn finish(self) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.read_keys.contains(&name) {
                continue;
            }
            let mut text = format!("{}: there is no key `{name}` here", self.name);
            text += &match nearest(name, self.read_keys.iter().copied()) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => format!("; it has {}", self.read_keys.join(", ")),
            };
            self.problems.add(key.span().start, text);
        }
    }
}

/// Returns the value as a finite number; `None` if it is not one, or an integer beyond 64 bits.
pub fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64,
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok()?,
        _ => return None,
    };
    Some(number).filter(|number: &f64| number.is_finite())
}

/// Parses a size such as `512MiB`, `2 GB`, `4096`; returns whole bytes.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (figure, unit) = text.split_at_checked(unit_start)?;
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
    (bytes < MAX_SIZE_BYTES).then_some(bytes as u64)
}

/// What a value is, with its article.
pub fn type_name(value: &DeValue<'_>) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("1.5 KiB"), Some(1536));
        assert_eq!(parse_size("2GB"), Some(2_000_000_000));
        for wrong in ["", "MiB", "1 parsec", "-1", "1e9", "99999999999 GiB"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }
}

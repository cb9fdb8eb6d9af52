//! The problems of a study file, with line and column.

use std::path::Path;

use strandline_report::text::counted;

/// Maximum number of listed problems; further ones are counted.
const MAX_PROBLEMS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Byte offset in the file.
    pub offset: usize,
    /// Byte offset in the decoded string that begins there; `None`: its beginning.
    pub string_offset: Option<usize>,
    /// The problem and how to fix it, in one line.
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// At most [`MAX_PROBLEMS`].
    listed: Vec<Problem>,
    /// Number of problems above [`MAX_PROBLEMS`].
    unlisted: u64,
}

impl Problems {
    pub fn add(&mut self, offset: usize, text: impl Into<String>) {
        self.add_in_string(offset, None, text);
    }

    /// Adds a problem at the byte `string_offset` of the decoded string at `offset`.
    pub fn add_in_string(&mut self, offset: usize, string_offset: Option<usize>, text: impl Into<String>) {
        if self.listed.len() < MAX_PROBLEMS {
            self.listed.push(Problem { offset, string_offset, text: text.into() });
        } else {
            self.unlisted += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// A line `PATH:LINE:COLUMN: text` for each problem of the file `path` with content `text`, in
    /// file order. Columns count characters.
    pub fn lines(&self, path: &Path, text: &str) -> Vec<String> {
        let path = path.display();
        let mut sorted: Vec<&Problem> = self.listed.iter().collect();
        sorted.sort_by_key(|problem| problem.offset);
        let line = |problem: &Problem| {
            let before = text.get(..problem.file_offset(text)).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            format!("{path}:{line}:{column}: {}", problem.text)
        };
        let mut lines: Vec<String> = sorted.into_iter().map(line).collect();
        if self.unlisted > 0 {
            lines.push(format!("{path}: {}", counted(self.unlisted, "more problem")));
        }
        lines
    }
}

impl Problem {
    /// Returns the byte offset in the file with content `text`, inside the string if there is one.
    fn file_offset(&self, text: &str) -> usize {
        let (Some(string_offset), Some(raw)) = (self.string_offset, text.get(self.offset..)) else {
            return self.offset;
        };
        let quotes = ["\"\"\"", "'''", "\"", "'"];
        let Some(quote) = quotes.into_iter().find(|quote| raw.starts_with(quote)) else { return self.offset };
        let mut remaining = raw.get(quote.len()..).unwrap_or_default();
        if quote.len() == 3 {
            // A line end right after the opening quotes is not part of the string.
            remaining =
                remaining.strip_prefix("\r\n").or_else(|| remaining.strip_prefix('\n')).unwrap_or(remaining);
        }
        let mut decoded_bytes = 0;
        while decoded_bytes < string_offset {
            let Some(unit) = StringUnit::at_start_of(remaining, quote.starts_with('"')) else { break };
            remaining = remaining.get(unit.file_bytes..).unwrap_or_default();
            decoded_bytes += unit.decoded_bytes;
        }
        text.len() - remaining.len()
    }
}

/// A character or an escape of a string in a file.
struct StringUnit {
    file_bytes: usize,
    decoded_bytes: usize,
}

impl StringUnit {
    /// Returns the unit at the beginning of `text`; `None` at its end.
    fn at_start_of(text: &str, has_escapes: bool) -> Option<Self> {
        let character = text.chars().next()?;
        if !has_escapes || character != '\\' {
            return Some(Self { file_bytes: character.len_utf8(), decoded_bytes: character.len_utf8() });
        }
        let after = text.get(1..)?;
        let escape = after.chars().next()?;
        let digits = match escape {
            'u' => 4,
            'U' => 8,
            'x' => 2,
            _ => 0,
        };
        if escape.is_whitespace() {
            // An escaped line end and the white space after it are not part of the string.
            let file_bytes = text.len() - after.trim_start().len();
            return Some(Self { file_bytes, decoded_bytes: 0 });
        }
        if digits == 0 {
            return Some(Self { file_bytes: 1 + escape.len_utf8(), decoded_bytes: 1 });
        }
        let code = after.get(1..1 + digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let decoded_bytes = code.and_then(char::from_u32).map_or(1, char::len_utf8);
        Some(Self { file_bytes: 2 + digits, decoded_bytes })
    }
}

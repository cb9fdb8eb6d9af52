//! Describes syntax errors of an expression in one line with their position: the CEL parser reports
//! tokens and grammar rules in several lines.

/// Maximum length of quoted source text.
const MAX_QUOTED_CHARS: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Byte offset in the expression; `None`: the whole expression.
    pub offset: Option<usize>,
    /// The error, in one line.
    pub text: String,
}

impl From<String> for ExpressionError {
    fn from(text: String) -> Self {
        Self { offset: None, text }
    }
}

impl std::fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Converts a message of the parser for a line and column (from 1) of `expression` to one line.
pub fn error_at(expression: &str, line: isize, column: isize, message: &str) -> ExpressionError {
    // Positions outside of the expression are moved to its beginning or end.
    let lines_before = usize::try_from(line - 1).unwrap_or(0);
    let line_start: usize = expression.split_inclusive('\n').take(lines_before).map(str::len).sum();
    let line_text = expression.get(line_start..).unwrap_or_default();
    let chars_before = usize::try_from(column - 1).unwrap_or(0);
    let offset_in_line =
        line_text.char_indices().nth(chars_before).map_or(line_text.len(), |(offset, _)| offset);
    let at = line_start + offset_in_line;
    ExpressionError { offset: Some(at), text: describe(message, expression.get(at..).unwrap_or_default()) }
}

/// Finds the first comment in `expression`: the parser would ignore everything after it.
pub fn find_comment(expression: &str) -> Option<ExpressionError> {
    let bytes = expression.as_bytes();
    let bytes_from = |at: usize| bytes.get(at..).unwrap_or_default();
    let mut at = 0;
    while at < bytes.len() {
        if bytes_from(at).starts_with(b"//") {
            let text = "`//` begins a comment, and hides what follows; to divide, write /".to_owned();
            return Some(ExpressionError { offset: Some(at), text });
        }
        let quote =
            [&b"\"\"\""[..], b"'''", b"\"", b"'"].into_iter().find(|quote| bytes_from(at).starts_with(quote));
        let Some(quote) = quote else {
            at += 1;
            continue;
        };
        let previous = at.checked_sub(1).and_then(|index| bytes.get(index));
        let is_raw = matches!(previous, Some(b'r' | b'R'));
        at += quote.len();
        while at < bytes.len() && !bytes_from(at).starts_with(quote) {
            at += if !is_raw && bytes_from(at).starts_with(b"\\") { 2 } else { 1 };
        }
        at += quote.len();
    }
    None
}

/// Describes an error in one line, from the parser's message and the text from its position on.
fn describe(message: &str, following: &str) -> String {
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    let is_end = following.trim().is_empty();
    let quoted_after = |prefix: &str| -> Option<String> {
        let (_, after) = message.split_once(prefix)?;
        // The quoted text may contain the same character; the text after it never does.
        let end = after.find("' expecting").or_else(|| after.find("' at '")).or_else(|| after.rfind('\''))?;
        after.get(..end).map(shortened)
    };
    if let Some(missing) = quoted_after("missing '") {
        let place =
            if is_end { " at its end".to_owned() } else { format!(" before {}", first_token(following)) };
        return format!("`{missing}` is missing{place}");
    }
    if is_end {
        return "it ends where something is missing".to_owned();
    }
    if message.starts_with("token recognition error") {
        return match following.chars().next() {
            Some(mark @ ('"' | '\'')) => format!("a text that begins with {mark} does not end"),
            _ => format!("{} has no meaning here{}", first_token(following), hint(following)),
        };
    }
    if message.starts_with("mismatched input") || message.starts_with("extraneous input") {
        return format!("{} is not allowed here{}", first_token(following), hint(following));
    }
    let line = message.lines().next().unwrap_or_default();
    let problem = line.split_once(" expecting ").map_or(line, |(before, _)| before);
    format!(
        "it cannot be read at {}: {}",
        first_token(following),
        strandline_report::text::clean_sentence(&shortened(problem))
    )
}

/// The first word or operator of `following`, in backquotes.
fn first_token(following: &str) -> String {
    let following = following.trim_start();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_sign = |c: char| "<>=!&|".contains(c);
    let first = following.chars().next().unwrap_or(' ');
    let of_kind = |c: char| if is_word(first) { is_word(c) } else { is_sign(first) && is_sign(c) };
    let length = following.find(|c: char| !of_kind(c)).unwrap_or(following.len()).max(first.len_utf8());
    format!("`{}`", shortened(following.get(..length).unwrap_or_default()))
}

/// What to write instead of an operator of another language.
fn hint(following: &str) -> &'static str {
    let word = first_token(following);
    match word.trim_matches('`') {
        "and" | "AND" | "&" => "; write &&",
        "or" | "OR" | "|" => "; write ||",
        "not" | "NOT" => "; write !",
        "=" => "; write ==",
        "=>" => "; write >=",
        "=<" => "; write <=",
        "<>" => "; write !=",
        _ => "",
    }
}

fn shortened(text: &str) -> String {
    let text: String = strandline_report::text::clean_sentence(text);
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::expression::Expression;

    #[test]
    fn comments_are_refused_and_texts_may_hold_what_begins_one() {
        for (expression, expected) in [
            ("median(\"a\") // 2 < 1", Some(12)),
            ("text(\"a\") == \"http://x\"", None),
            ("text(\"a\") == '\\'//' // x", Some(20)),
            ("text(\"a\") == r'\\' // x", Some(18)),
            ("text(\"a\") == \"\"\"a\"//\"\"\"", None),
            ("median(\"a\") / 2 < 1", None),
        ] {
            let errors = Expression::parse(expression, &|_| None, &[]).map(|_| ()).err();
            let comment = errors.filter(|errors| errors[0].text.contains("begins a comment"));
            assert_eq!(comment.and_then(|errors| errors[0].offset), expected, "{expression}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_reported_in_one_line_with_its_place() {
        for (expression, at, text) in [
            ("median(\"a\") > 1 &&", 18, "it ends where something is missing"),
            ("median(\"a\" > 1", 14, "`)` is missing at its end"),
            ("median(\"a\") => 1", 12, "`=>` has no meaning here; write >="),
            ("1 = 1", 2, "`=` has no meaning here; write =="),
            ("median(\"a) > 1", 7, "a text that begins with \" does not end"),
            ("median(\"a\")\n > 1 and true", 17, "`and` is not allowed here; write &&"),
            ("\"é\" == 1 x", 10, "`x` is not allowed here"),
            ("1 < @", 4, "`@` has no meaning here"),
            ("[1, 2", 5, "it ends where something is missing"),
        ] {
            let errors = Expression::parse(expression, &|_| None, &[]).map(|_| ()).unwrap_err();
            assert_eq!(errors.len(), 1, "{expression}: {errors:#?}");
            assert_eq!((errors[0].offset, errors[0].text.as_str()), (Some(at), text), "{expression}");
        }
    }
}

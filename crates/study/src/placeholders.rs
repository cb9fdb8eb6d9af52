//! Placeholders in commands and variables: `{name}` stands for a value, `{{name}}` for `{name}`.

use std::collections::BTreeMap;

/// Escapes `text` so that filling placeholders gives it back.
pub fn escaped(text: &str) -> String {
    let piece = |piece: Piece<'_>| match piece {
        Piece::Plain(plain) => plain.to_owned(),
        Piece::Escaped(name) | Piece::Named(name) => format!("{{{{{name}}}}}"),
    };
    pieces(text).into_iter().map(piece).collect()
}

/// The placeholders of `text`: `{name}`, but not `{{name}}`.
pub fn placeholders(text: &str) -> Vec<&str> {
    pieces(text)
        .into_iter()
        .filter_map(|piece| if let Piece::Named(name) = piece { Some(name) } else { None })
        .collect()
}

/// `text` with its placeholders filled; a placeholder without a value is left unchanged.
pub fn fill(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Plain(plain) => filled.push_str(plain),
            Piece::Escaped(name) => filled.extend(["{", name, "}"]),
            Piece::Named(name) => match values.get(name) {
                Some(value) => filled.push_str(value),
                None => filled.extend(["{", name, "}"]),
            },
        }
    }
    filled
}

/// A part of a text with placeholders.
enum Piece<'t> {
    /// Text that stands for itself.
    Plain(&'t str),
    /// The name in `{{name}}`, which stands for `{name}`.
    Escaped(&'t str),
    /// The name of a placeholder, `{name}`.
    Named(&'t str),
}

/// Splits a text. Braces around anything but a name are literal: `sub { … }` needs no escape.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut pieces = Vec::new();
    let mut remaining = text;
    while let Some(open) = remaining.find('{') {
        let (plain, after) = remaining.split_at(open);
        pieces.push(Piece::Plain(plain));
        let is_escaped = after.starts_with("{{");
        let inner = after.get(if is_escaped { 2 } else { 1 }..).unwrap_or_default();
        let close = if is_escaped { "}}" } else { "}" };
        match inner.split_once(close) {
            Some((name, following)) if is_name(name) => {
                pieces.push(if is_escaped { Piece::Escaped(name) } else { Piece::Named(name) });
                remaining = following;
            }
            _ => {
                let (brace, following) = after.split_at(1);
                pieces.push(Piece::Plain(brace));
                remaining = following;
            }
        }
    }
    pieces.push(Piece::Plain(remaining));
    pieces
}

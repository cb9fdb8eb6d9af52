//! Words of a shell's command line, quoted: targets choose names of groups and files.

/// Quotes `text` as one word for any shell. Control characters stay as they are: for a command that
/// is run, not shown.
pub fn verbatim_word(text: &str) -> String {
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes `text` as one word to show and to paste. Control and invisible characters use `$'…'`,
/// which bash, zsh, ksh and POSIX 2024 support.
pub fn shell_word(text: &str) -> String {
    if !text.chars().any(is_unsafe) {
        return verbatim_word(text);
    }
    let mut quoted = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            // Octal escapes end after three digits; \x could include the following characters.
            c if is_unsafe(c) => {
                let mut buffer = [0u8; 4];
                quoted.extend(c.encode_utf8(&mut buffer).bytes().map(|byte| format!("\\{byte:03o}")));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// Quotes an argument, or the value of a variable. Unlike in a first word, `=` needs quotes there
/// only at the start and after `:`, where zsh replaces it by the path of a command.
pub fn shell_value(text: &str) -> String {
    let is_expanded = text.starts_with('=') || text.contains(":=");
    let is_simple = !text.is_empty() && !is_expanded && text.chars().all(|c| is_plain(c) || c == '=');
    if is_simple { text.to_owned() } else { shell_word(text) }
}

/// Whether `c` needs no quotes in any word.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "@%_+:,./-".contains(c)
}

/// Whether a terminal may interpret `c`, or `c` may be invisible.
///
/// The C0 and C1 controls and DEL can start escape sequences (U+009B is CSI by itself). The others
/// are the line and paragraph separators, the marks of interlinear annotations, and characters
/// without a glyph of their own (Default_Ignorable_Code_Point in Unicode's
/// DerivedCoreProperties.txt): joiners, direction marks, fillers, variation selectors, tags. Their
/// width depends on the terminal.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c),
            0xAD | 0x34F | 0x61C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F
            | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF
            | 0xFFA0 | 0xFFF0..=0xFFFB | 0x1BCA0..=0x1BCA3 | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_quoted() {
        assert_eq!(shell_word("/usr/bin/strandline"), "/usr/bin/strandline");
        assert_eq!(shell_word("/opt/a b/it's"), r"'/opt/a b/it'\''s'");
        assert_eq!(verbatim_word("{a,b}\n"), "'{a,b}\n'");
        assert_eq!(shell_word("it's\n1"), r"$'it\'s\0121'");
        assert_eq!(shell_word("\u{200b}"), r"$'\342\200\213'");
        assert_eq!((shell_word("a=b"), shell_value("a=b:c")), ("'a=b'".to_owned(), "a=b:c".to_owned()));
        assert_eq!((shell_word(""), shell_value("")), ("''".to_owned(), "''".to_owned()));
        assert_eq!(shell_value("=ls"), "'=ls'");
    }
}

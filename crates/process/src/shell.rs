//! Words of a shell's command line, for advice to paste.

/// `text` as one word of a shell's command line. Targets choose names of groups and files.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%_+:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_quoted() {
        assert_eq!(shell_word("/usr/bin/strandline"), "/usr/bin/strandline");
        assert_eq!(shell_word("/opt/a b/it's"), r"'/opt/a b/it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}

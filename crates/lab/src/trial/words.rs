//! Shell quoting.

use strandline_report::text::is_unsafe;

/// Quotes the value of a variable for a shell: `=` and `:` need no quotes after the first `=`.
pub fn shell_value(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=+@".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_plain) { value.to_owned() } else { shell_word(value) }
}

/// Quotes a word for a shell. Control characters use `$'…'`, which bash, zsh, ksh and POSIX 2024
/// support.
pub fn shell_word(word: &str) -> String {
    if !word.chars().any(is_unsafe) {
        return shell_words::quote(word).into_owned();
    }
    let mut quoted = String::from("$'");
    for c in word.chars() {
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

//! Words in the quoting of a shell.

use strandline_report::text::is_unsafe;

/// The value of a variable in the quoting of a shell: `=` and `:` are plain behind the first `=`.
pub fn shell_value(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=+@".contains(&byte);
    if !value.is_empty() && value.bytes().all(plain) { value.to_owned() } else { shell_word(value) }
}

/// A word in the quoting of a shell. Control characters are written as `$'…'`, which bash, zsh, ksh and POSIX 2024 have.
pub fn shell_word(word: &str) -> String {
    if !word.chars().any(is_unsafe) {
        return shell_words::quote(word).into_owned();
    }
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            // Three octal digits end by themselves; \x would take what follows.
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

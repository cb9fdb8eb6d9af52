//! Text that is safe to show, and its width.
//!
//! The target chooses names of files, commands and threads. Every character that a terminal could
//! interpret, or that reorders or hides its neighbours, is written as `\u{…}` here, once, before
//! any layout. Widths are terminal columns, never bytes or characters.

use std::collections::HashMap;

/// Counts with what is counted.
pub use strandline_claims::units::counted;
pub use strandline_process::shell::is_unsafe;
use strandline_process::shell::{shell_value, shell_word};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Replaces every control, reordering and invisible character of `text` by `\n`, `\t`, `\r` or
/// `\u{…}`.
pub fn clean(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => safe.extend(c.escape_default()),
            _ if is_unsafe(c) => safe.extend(c.escape_unicode()),
            _ => safe.push(c),
        }
    }
    safe
}

/// [`clean`] for sentences, shortened to 800 columns: only long names make a sentence longer.
pub fn clean_sentence(text: &str) -> String {
    const MAX_COLUMNS: usize = 800;
    shorten(&clean(text), MAX_COLUMNS)
}

/// Quotes a command, program and arguments, for a shell; cleaned, and shortened to 800 columns.
pub fn command_line(words: &[String]) -> String {
    let Some((program, arguments)) = words.split_first() else { return String::new() };
    // With `=`, the first word would be an assignment.
    let words = std::iter::once(shell_word(program)).chain(arguments.iter().map(|word| shell_value(word)));
    clean_sentence(&words.collect::<Vec<_>>().join(" "))
}

/// As [`command_line`], for arguments alone.
pub fn argument_line(arguments: &[String]) -> String {
    clean_sentence(&arguments.iter().map(|word| shell_value(word)).collect::<Vec<_>>().join(" "))
}

/// The command of a process for display. A process that renamed itself has a single word with
/// spaces (`nginx: worker process`), which is not quoted.
pub fn own_command(words: &[String]) -> String {
    match words {
        [title] if title.contains(' ') => clean_sentence(title),
        words => command_line(words),
    }
}

/// The name of a process of the file `executable`: the file name in the first word of its command,
/// or the title if it wrote one there. A title with options is a command line again (Chromium's
/// children): then the kind of process is appended. Without a name there, that of the file; `None`
/// if neither has a name.
pub fn own_name(words: &[String], executable: Option<&str>) -> Option<String> {
    let Some(first_word) = words.first() else { return executable.and_then(file_name) };
    // A path may contain spaces.
    if executable == Some(first_word.as_str()) {
        return file_name(first_word);
    }
    let title = first_word.trim();
    let (path, arguments) =
        title.split_once(' ').map_or((title, None), |(path, arguments)| (path, Some(arguments)));
    // A process may have overwritten its title with nothing.
    let Some(name) = path.rsplit('/').find(|part| !part.is_empty()) else {
        return executable.and_then(file_name);
    };
    let addition = arguments.map(str::trim).and_then(|arguments| {
        if !arguments.starts_with('-') {
            return Some(arguments);
        }
        arguments.split(' ').find_map(|word| word.strip_prefix("--type="))
    });
    let full_name = addition.map_or_else(|| name.to_owned(), |addition| format!("{name} {addition}"));
    Some(clean_sentence(&full_name))
}

/// The last component of a path.
fn file_name(path: &str) -> Option<String> {
    path.rsplit('/').find(|part| !part.is_empty()).map(clean_sentence)
}

/// Width of `text` in terminal columns.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Shortens `text` to at most `max_columns` with `…` in its middle, as both ends of a path matter.
/// Words are left out whole, unless one word takes more than half of an end.
pub fn shorten(text: &str, max_columns: usize) -> String {
    if width(text) <= max_columns {
        return text.to_owned();
    }
    // The `…` takes one column.
    let Some(kept_columns) = max_columns.checked_sub(1) else { return String::new() };
    let backwards: String = text.chars().rev().collect();
    let tail: String = backwards[..fitting_bytes(&backwards, kept_columns / 2)].chars().rev().collect();
    let head = &text[..fitting_bytes(text, kept_columns.saturating_sub(width(&tail)))];
    // Parts of `text` may have been shortened before.
    format!("{}…{}", head.trim_end_matches('…'), tail.trim_start_matches('…'))
}

/// Shortens each of `texts` to at most `max_columns`. Different ones that would look the same get a
/// number each: `lib…cache #2`.
pub fn shorten_apart(texts: &[String], max_columns: usize) -> Vec<String> {
    let mut by_look: HashMap<String, Vec<&str>> = HashMap::new();
    for text in texts {
        let same = by_look.entry(shorten(text, max_columns)).or_default();
        if !same.contains(&text.as_str()) {
            same.push(text);
        }
    }
    let shorten_one = |text: &String| {
        let short = shorten(text, max_columns);
        let same = by_look.get(&short).filter(|same| same.len() > 1);
        let Some(index) = same.and_then(|same| same.iter().position(|other| other == text)) else {
            return short;
        };
        let number = format!(" #{}", index + 1);
        shorten(text, max_columns.saturating_sub(width(&number))) + &number
    };
    texts.iter().map(shorten_one).collect()
}

/// The length in bytes of the longest start of `text` that fits into `columns` and ends with a
/// word; if its last word takes more than half of it, the word is cut.
fn fitting_bytes(text: &str, columns: usize) -> usize {
    let mut used_columns = 0;
    let first_beyond = text.char_indices().find(|(_, c)| {
        // As in `width`, a control character takes one.
        used_columns += c.width().unwrap_or(1);
        used_columns > columns
    });
    let Some((end, mut following)) = first_beyond else { return text.len() };
    for (index, c) in text[..end].char_indices().rev() {
        let word_end = index + c.len_utf8();
        if word_end * 2 < end {
            break;
        }
        if !(c.is_alphanumeric() && following.is_alphanumeric()) {
            return word_end;
        }
        following = c;
    }
    end
}

/// Wraps `text` to `columns` in at most `max_lines`; ` …` marks what is left out.
pub fn wrap_at_most(text: &str, columns: usize, max_lines: usize) -> Vec<String> {
    const MARK: &str = " …";
    let mut lines = wrap(text, columns);
    if lines.len() > max_lines {
        lines.truncate(max_lines);
        if let Some(last_line) = lines.last_mut() {
            let is_too_wide = width(last_line) + width(MARK) > columns;
            // A line of a single word gives way to the mark.
            let kept_bytes = if is_too_wide { last_line.rfind(' ').unwrap_or(0) } else { last_line.len() };
            last_line.truncate(kept_bytes);
            last_line.push_str(MARK);
        }
    }
    lines
}

/// Pads `text` with spaces on the right to `columns`, or shortens it to them.
pub fn pad_right(text: &str, columns: usize) -> String {
    let text = shorten(text, columns);
    let gap = columns.saturating_sub(width(&text));
    text + &" ".repeat(gap)
}

/// Pads `text` with spaces on the left to `columns`, or shortens it to them.
pub fn pad_left(text: &str, columns: usize) -> String {
    let text = shorten(text, columns);
    " ".repeat(columns.saturating_sub(width(&text))) + &text
}

/// Breaks `text` into lines of at most `columns`, at spaces; words wider than a line are broken
/// between their parts, as paths have them, or else anywhere.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    // The widest character takes three columns (U+17D8).
    let columns = columns.max(3);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        let mut remaining = word;
        while width(remaining) > columns {
            let (head, tail) = remaining.split_at(fitting_bytes(remaining, columns));
            lines.push(head.to_owned());
            remaining = tail;
        }
        line.push_str(remaining);
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Wraps `text` to `columns`, with `label` before the first line and an indent of the same width
/// before the others.
pub fn hanging(label: &str, text: &str, columns: usize) -> Vec<String> {
    let indent = width(label);
    wrap(text, columns.saturating_sub(indent))
        .into_iter()
        .enumerate()
        .map(|(index, line)| if index == 0 { format!("{label}{line}") } else { " ".repeat(indent) + &line })
        .collect()
}

/// Says that --verbose lists `count` left-out lines.
pub fn listed_by_verbose(count: u64) -> &'static str {
    if count == 1 { "-v lists it" } else { "-v lists them" }
}

/// The longest start of `text` of at most `max_bytes` that ends between two characters.
pub fn start_of(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    // 0 is always a boundary.
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_texts_look_different_when_shortened() {
        let texts =
            ["g_first_index_of_sessions", "g_first_table_of_sessions", "g", "g_first_index_of_sessions"];
        let shown = shorten_apart(&texts.map(str::to_owned), 20);
        assert_eq!(shorten(texts[0], 20), shorten(texts[1], 20));
        assert_ne!(shown[0], shown[1]);
        assert!(shown[0].ends_with(" #1") && shown[1].ends_with(" #2"), "{shown:?}");
        assert_eq!((shown[2].as_str(), &shown[3]), ("g", &shown[0]));
        assert!(shown.iter().all(|text| width(text) <= 20), "{shown:?}");
    }

    #[test]
    fn no_character_that_a_terminal_interprets_remains() {
        let hostile = "a\x1b[31mb\u{9b}2Jc\r\nd\u{202e}e\u{7f}f\u{200b}\u{2028}\0";
        let safe = clean(hostile);
        assert!(safe.chars().all(|c| !is_unsafe(c)), "{safe:?}");
        assert!(safe.starts_with("a\\u{1b}[31mb\\u{9b}2Jc\\r\\nd\\u{202e}e"));
        let invisible = "\u{34f}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180f}\u{3164}\u{fe0f}\u{ffa0}\u{1d173}\u{1d17a}";
        assert!(clean(invisible).is_ascii(), "{invisible:?}");
        assert_eq!(clean("/usr/bin/grün 漢字"), "/usr/bin/grün 漢字");
    }

    #[test]
    fn text_is_cut_in_its_middle_to_columns() {
        assert_eq!(shorten("/usr/lib/libc.so", 16), "/usr/lib/libc.so");
        assert_eq!(shorten("/usr/lib/libc.so", 9), "/usr/….so");
        assert_eq!(shorten("urllib.parse._private_networks", 20), "urllib.…_networks");
        assert_eq!(shorten("thread stacks below the stack pointer", 27), "thread stacks…stack pointer");
        assert_eq!(width(&shorten("漢字漢字漢字", 7)), 7);
        assert!(width(&shorten("漢字漢字漢字", 6)) <= 6);
        assert_eq!(shorten("abc", 1), "…");
        assert_eq!(shorten("abc", 0), "");
    }

    #[test]
    fn wide_and_control_characters_are_counted() {
        assert_eq!(wrap("\u{17d8}\u{17d8}", 2), ["\u{17d8}", "\u{17d8}"]);
        assert!(width(&shorten(&"\n".repeat(100), 10)) <= 10);
    }

    #[test]
    fn no_word_of_a_sentence_is_cut() {
        let text = "free pages malloc_trim releases, of 12 arenas in /usr/lib/libc.so and elsewhere";
        let split = |text: &str| -> Vec<String> {
            text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
        };
        let words = split(text);
        for columns in 24..=width(text) {
            let lines = [vec![shorten(text, columns)], wrap_at_most(text, columns, 2), wrap(text, columns)];
            for line in lines.iter().flatten() {
                assert!(width(line) <= columns, "{columns}: {line}");
                assert!(split(line).iter().all(|word| words.contains(word)), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn padding_reaches_the_column_exactly() {
        assert_eq!(pad_right("漢", 4), "漢  ");
        assert_eq!(pad_left("漢", 4), "  漢");
        assert_eq!(width(&pad_right(&"x".repeat(99), 10)), 10);
    }

    #[test]
    fn lines_break_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("/usr/lib/libc.so", 9), ["/usr/lib/", "libc.so"]);
        assert_eq!(wrap_at_most("one two three four", 9, 1), ["one two …"]);
        assert_eq!(wrap_at_most("one two three four", 8, 1), ["one …"]);
        assert_eq!(wrap_at_most("one two", 8, 1), ["one two"]);
        assert_eq!(wrap("", 10), [""]);
        assert!(wrap("a 漢字漢字漢字 b", 5).iter().all(|line| width(line) <= 5));
        assert_eq!(hanging("- ", "one two", 5), ["- one", "  two"]);
    }

    #[test]
    fn commands_can_be_pasted_and_processes_keep_their_names() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(command_line(&words(&["redis", "--save", "", "a b"])), "redis --save '' 'a b'");
        assert_eq!(command_line(&words(&["A=1", "--b=2"])), "'A=1' --b=2");
        assert_eq!(argument_line(&words(&["--b=2", "{a,b}"])), "--b=2 '{a,b}'");
        assert_eq!(own_command(&words(&["nginx: worker process"])), "nginx: worker process");
        assert_eq!(own_command(&words(&["sh", "-c", "exit 1"])), "sh -c 'exit 1'");
        let name = |list: &[&str]| own_name(&words(list), None);
        let path = "/opt/My App/bin/foo bar";
        assert_eq!(own_name(&words(&[path]), Some(path)).unwrap(), "foo bar");
        for empty in [&[][..], &[""], &["", "x"], &["/"]] {
            assert_eq!(own_name(&words(empty), Some("/usr/bin/perl")).unwrap(), "perl");
        }
        assert_eq!(name(&["/usr/bin/redis-server 127.0.0.1:6379"]).unwrap(), "redis-server 127.0.0.1:6379");
        assert_eq!(
            name(&["nginx: master process /usr/sbin/nginx"]).unwrap(),
            "nginx: master process /usr/sbin/nginx"
        );
        assert_eq!(name(&["/usr/bin/python3", "x.py"]).unwrap(), "python3");
        assert_eq!(name(&["/lib/chromium --a=1 --type=renderer --b"]).unwrap(), "chromium renderer");
        assert_eq!(name(&["/lib/electron --no-sandbox"]).unwrap(), "electron");
        assert_eq!(name(&["\u{1b}[2J"]).unwrap(), "\\u{1b}[2J");
        assert_eq!((name(&[]), name(&[""]), name(&["/"])), (None, None, None));
    }

    #[test]
    fn a_start_ends_between_two_characters() {
        assert_eq!([0, 1, 2, 3, 9].map(|bytes| start_of("éa", bytes)), ["", "", "é", "éa", "éa"]);
    }
}

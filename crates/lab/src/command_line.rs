//! Commands given as one string: `perl -e '…'`, `MALLOC_ARENA_MAX=1 ./server`, `a | b`.

use super::cell::Subject;
use strandline_process::shell::verbatim_word;

/// A parsed command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables assigned before the command; each has a value.
    pub environment: Vec<(String, Option<String>)>,
    /// Whether a shell runs it, because it uses shell syntax.
    pub runs_in_shell: bool,
}

impl CommandLine {
    /// Parses a command. A command with pipes, redirections, variables or patterns is passed to `sh
    /// -c`; the start of the shell is then part of every figure.
    ///
    /// # Errors
    /// One line: an unterminated quote, or nothing to run.
    pub fn parse(text: &str) -> Result<Self, String> {
        if needs_shell(text) {
            let words = ["sh", "-c", text].map(str::to_owned).to_vec();
            return Ok(Self { words, environment: Vec::new(), runs_in_shell: true });
        }
        let mut words = shell_words::split(text).map_err(|_| format!("{text}: a quote does not end"))?;
        let variables = words.iter().take_while(|word| assignment(word).is_some()).count();
        let environment = words.drain(..variables).filter_map(|word| assignment(&word)).collect();
        if words.is_empty() {
            return Err(format!("{text:?} is not a command: give a program and its arguments in one word"));
        }
        Ok(Self { words, environment, runs_in_shell: false })
    }

    /// This command with the words of `case` appended, or inserted where `case` contains `{}`.
    ///
    /// # Errors
    /// One line: a quote in `case` does not end.
    pub fn with_case(&self, case: &str) -> Result<Self, String> {
        if self.runs_in_shell || needs_shell(case) {
            let command = match self.words.as_slice() {
                // `sh -c TEXT`.
                [_, _, text] if self.runs_in_shell => text.clone(),
                words => self.shell_text(words),
            };
            let text =
                if case.contains("{}") { case.replace("{}", &command) } else { format!("{command} {case}") };
            let words = ["sh", "-c", &text].map(str::to_owned).to_vec();
            return Ok(Self { words, environment: Vec::new(), runs_in_shell: true });
        }
        let case_words = shell_words::split(case).map_err(|_| format!("{case}: a quote does not end"))?;
        let mut words = Vec::new();
        if !case.contains("{}") {
            words.extend(self.words.iter().cloned());
        }
        for word in case_words {
            match word.as_str() {
                "{}" => words.extend(self.words.iter().cloned()),
                _ => words.push(word.replace("{}", &joined(&self.words))),
            }
        }
        Ok(Self { words, environment: self.environment.clone(), runs_in_shell: false })
    }

    /// The variables and `words` in shell syntax.
    fn shell_text(&self, words: &[String]) -> String {
        let assigned = self
            .environment
            .iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", verbatim_word(value.as_deref()?))));
        assigned.chain([joined(words)]).collect::<Vec<_>>().join(" ")
    }

    /// A subject of this name that runs this command.
    pub fn subject(&self, name: &str) -> Subject {
        Subject {
            name: name.to_owned(),
            command: self.words.clone(),
            environment: self.environment.clone(),
            ..Subject::default()
        }
    }
}

/// Words in shell syntax.
fn joined(words: &[String]) -> String {
    words.iter().map(|word| verbatim_word(word)).collect::<Vec<_>>().join(" ")
}

/// Parses `NAME=value NAME=value`.
///
/// # Errors
/// One line that names the word that is not an assignment.
pub fn assignments(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
    let words = shell_words::split(text).map_err(|_| format!("{text}: a quote does not end"))?;
    let variables = words.iter().map(|word| {
        assignment(word).ok_or_else(|| format!("{word:?} is not NAME=value; quote values with spaces"))
    });
    variables.collect()
}

fn assignment(word: &str) -> Option<(String, Option<String>)> {
    let (name, value) = word.split_once('=')?;
    is_variable_name(name).then(|| (name.to_owned(), Some(value.to_owned())))
}

/// Whether a shell accepts `name` as that of a variable (POSIX.1-2024, XBD 3.216).
pub(crate) fn is_variable_name(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether the text contains shell syntax outside of quotes (POSIX.1-2024, XCU 2.2).
fn needs_shell(text: &str) -> bool {
    let (mut in_single_quotes, mut in_double_quotes) = (false, false);
    let mut previous = ' ';
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\'' if !in_double_quotes => in_single_quotes = !in_single_quotes,
            _ if in_single_quotes => {}
            '\\' => drop(characters.next()),
            '"' => in_double_quotes = !in_double_quotes,
            '$' | '`' => return true,
            _ if in_double_quotes => {}
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '*' | '?' | '[' | '\n' => return true,
            '~' | '#' | '!' if previous.is_whitespace() => return true,
            _ => {}
        }
        previous = c;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        CommandLine::parse(text).unwrap().words
    }

    #[test]
    fn plain_commands_run_without_a_shell() {
        assert_eq!(words("perl -e 'print \"$x; y\"' a\\ b"), ["perl", "-e", "print \"$x; y\"", "a b"]);
        let with = CommandLine::parse("A=1 B='x y' ./server --n=3").unwrap();
        assert_eq!(with.words, ["./server", "--n=3"]);
        assert_eq!(with.environment[1], ("B".to_owned(), Some("x y".to_owned())));
        assert!(CommandLine::parse("A=1").is_err() && CommandLine::parse("'x").is_err());
    }

    #[test]
    fn shell_syntax_is_run_by_a_shell() {
        for text in ["a | b", "a > f", "echo $HOME", "echo \"$HOME\"", "ls *.c", "a; b", "cd ~ "] {
            assert_eq!(words(text), ["sh", "-c", text], "{text}");
        }
        for text in ["echo '*'", "echo \\$HOME", "echo \"a;b\"", "a~b"] {
            assert_ne!(words(text)[0], "sh", "{text}");
        }
    }

    #[test]
    fn a_case_is_appended_to_the_command_or_wraps_it() {
        let perl = CommandLine::parse("X=1 perl -w").unwrap();
        assert_eq!(perl.with_case("-e '1 + 1'").unwrap().words, ["perl", "-w", "-e", "1 + 1"]);
        assert_eq!(perl.with_case("nice {} a.pl").unwrap().words, ["nice", "perl", "-w", "a.pl"]);
        let shell = perl.with_case("{} a.pl | wc").unwrap();
        assert_eq!(shell.words, ["sh", "-c", "X=1 perl -w a.pl | wc"]);
        assert_eq!(perl.with_case("a.pl").unwrap().environment, perl.environment);
    }

    #[test]
    fn assignments_are_checked() {
        assert_eq!(assignments("A=1 B=").unwrap().len(), 2);
        assert!(assignments("A=1 b c").unwrap_err().contains("\"b\""));
        assert!(assignments("1A=1").is_err());
    }
}

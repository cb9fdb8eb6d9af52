//! Output: reports and documents go to standard output, everything else, in single lines, to
//! standard error.

use std::io::{IsTerminal, Write};

use strandline_inspect::environment::Environment;
use strandline_inspect::facts::Explanation;

use super::Failure;
use super::arguments::{Common, When};
use strandline_report::json;
use strandline_report::paint::Surface;
use strandline_report::text::clean;

/// Standard output with its format.
#[derive(Debug)]
pub struct Output {
    /// Whether a JSON document was requested.
    pub is_json: bool,
    /// Available width, and whether colour is allowed.
    pub surface: Surface,
}

impl Output {
    /// The output that the flags, the environment and the terminal determine.
    pub fn new(common: Common) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        // An empty NO_COLOR does not count (no-color.org).
        let is_colour_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let has_colour = match common.color {
            When::Always => true,
            When::Never => false,
            When::Auto => is_terminal && !is_colour_refused,
        };
        let columns = is_terminal
            .then(terminal_size::terminal_size)
            .flatten()
            .map_or(Surface::MIN_COLUMNS, |(width, _)| usize::from(width.0));
        let columns = columns.clamp(Surface::MIN_COLUMNS, Surface::MAX_COLUMNS);
        Self { is_json: common.json, surface: Surface { columns, has_colour } }
    }

    /// Prints `text` on standard output. A reader that closes the pipe early (`| head`) is no
    /// error.
    pub fn print(&mut self, text: &str) -> super::Result<()> {
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure(format!("standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints `body` as the only document of this run; `target` is the inspected process, if there
    /// is one.
    pub fn document<T: serde::Serialize>(
        &mut self,
        schema: &str,
        target: Option<&Explanation>,
        body: &T,
    ) -> super::Result<()> {
        let text = json::document(schema, &Environment::read(), target, body)?;
        self.print(&text)
    }
}

/// Prints `line` on standard error as a single line, whatever names it contains.
pub fn print_message(line: &str) {
    // If standard error is closed, the message is lost.
    drop(std::io::stderr().write_all(message_text(line).as_bytes()));
}

/// The text that [`print_message`] prints.
pub fn message_text(line: &str) -> String {
    format!("strandline: {}\n", clean(line))
}

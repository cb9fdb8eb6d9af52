//! Flags of several subcommands on how a process is read.

use std::time::Duration;

use clap::{Args, ValueEnum};
use strandline_inspect::explain::SnapshotMode;
use strandline_recorder::plan;
use strandline_report::model::Rows;

/// When a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SnapshotChoice {
    /// Stop the process while it is read
    Never,
    /// From 8 MiB, where it is harmless and reading takes longer: docs/supported.md lists the readers
    Auto,
    /// Where it is harmless; otherwise stop the process, with a caveat
    Try,
    /// Refuse where it could be harmful
    Always,
}

impl SnapshotChoice {
    /// The corresponding mode of the library.
    pub fn mode(self) -> SnapshotMode {
        match self {
            Self::Never => SnapshotMode::Never,
            Self::Auto => SnapshotMode::IfShorter,
            Self::Try => SnapshotMode::IfPossible,
            Self::Always => SnapshotMode::Always,
        }
    }
}

/// How long to wait until a process can be read without a stop.
#[derive(Args, Clone, Copy, Debug)]
pub struct QuietFor {
    /// Wait this long for all threads to sleep, so that the process is read without a stop; then stop it. 0 stops it at once
    #[arg(long = "quiet-for", value_name = "TIME", default_value = "250ms", value_parser = duration_or_zero)]
    pub limit: Duration,
}

/// How much of what was found is shown.
#[derive(Args, Clone, Copy, Debug)]
pub struct Detail {
    /// Show all details: every row and figure, every caveat
    #[arg(short, long)]
    pub verbose: bool,
}

/// Parses which rows are shown.
pub fn rows(text: &str) -> Result<Rows, String> {
    if text == "all" {
        return Ok(Rows::All);
    }
    text.parse().map(Rows::Largest).map_err(|_| "use `all` or a number of rows".to_owned())
}

/// Parses a time like [`plan::duration`], or 0.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = text.strip_prefix(number).unwrap_or_default();
    let is_zero = number.parse::<f64>() == Ok(0.0) && plan::duration(&format!("1{unit}")).is_ok();
    if is_zero { Ok(Duration::ZERO) } else { plan::duration(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_librarys() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            quiet: QuietFor,
        }
        let limit = |words: &[&str]| Some(<Command as clap::Parser>::try_parse_from(words).ok()?.quiet.limit);
        assert_eq!(limit(&["x"]), Some(strandline_inspect::explain::QUIET_FOR));
        assert_eq!(limit(&["x", "--quiet-for", "0"]), Some(Duration::ZERO));
        assert_eq!(limit(&["x", "--quiet-for=0s"]), Some(Duration::ZERO));
        assert_eq!(limit(&["x", "--quiet-for", "2s"]), Some(Duration::from_secs(2)));
        assert_eq!(limit(&["x", "--quiet-for", "soon"]), None);
    }

    #[test]
    fn rows_are_all_or_a_number() {
        assert_eq!(rows("all"), Ok(Rows::All));
        assert_eq!(rows("7"), Ok(Rows::Largest(7)));
        assert!(rows("-7").is_err());
    }
}

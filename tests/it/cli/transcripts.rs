//! Documents agree with output: each excerpt is in the kept transcript, and new runs of programs
//! that take seconds still print its words.

#![cfg(test)]

use std::path::Path;
use std::process::Command;

use crate::support::{Outcome, here, skipped};

/// Transcripts of programs that need only a compiler, perl or python3, and take seconds.
const CHEAP: [&str; 3] = ["high-rss", "perl-lexicals", "cpython-arenas"];

/// Runs `scripts/transcripts`, which names what it could not run.
fn transcripts(name: &str, arguments: &[&str]) -> Outcome {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/transcripts");
    let mut command = Command::new("python3");
    command.arg(script).args(arguments).env("STRANDLINE", env!("CARGO_BIN_EXE_strandline"));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            skipped(name, &format!("python3: {error}"));
            return Ok(());
        }
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(reason) = line.strip_prefix("skipped: ") {
            skipped(name, reason);
        }
    }
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into())
}

#[test]
fn every_excerpt_of_the_documents_is_in_its_transcript() -> Outcome {
    transcripts(here!(), &["--check"])
}

#[test]
fn new_runs_print_what_the_documents_show() -> Outcome {
    let arguments: Vec<&str> = ["--compare"].into_iter().chain(CHEAP).collect();
    transcripts(here!(), &arguments)
}

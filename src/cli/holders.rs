//! `holders PID`: which roots retain the live blocks.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use strandline_inspect::explain::Options;
use strandline_inspect::holders::facts::Holders as Found;
use strandline_inspect::holders::{growth, holders};
use strandline_process::procfs::Process;
use strandline_report::paint::Surface;

use super::arguments::Holders;
use super::output::Output;
use super::progress::Progress;
use super::{CommandResult, Failure, Result};

const SCHEMA: &str = "strandline/holders/1";

/// Size limit of a document.
const MAX_BYTES: u64 = 64 << 20;
/// The schema of `explain --holders`.
const EXPLAIN_SCHEMA: &str = "strandline/explain/1";

/// The schema field of a document.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// The part of an `explain --holders` document that is read.
#[derive(Deserialize)]
struct Explained {
    holders: Option<Found>,
}

/// Whether a file is a JSON document rather than a recording.
pub fn is_document(path: &Path) -> bool {
    let mut first = [0];
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
}

/// Reads the output of `holders --json` or `explain --holders --json`.
pub fn read(path: &Path) -> Result<Found> {
    let failure = |why: String| Failure(format!("{}: {why}", path.display()));
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failure(error.to_string()))?;
    let got = file.take(MAX_BYTES + 1).read_to_end(&mut text);
    if got.map_err(|error| failure(error.to_string()))? as u64 > MAX_BYTES {
        return Err(failure(format!("more than {} MiB", MAX_BYTES >> 20)));
    }
    let hint = "not what `strandline holders --json PID` wrote";
    let wrong = |error: serde_json::Error| failure(format!("{hint}: {error}"));
    let schema: Schema = serde_json::from_slice(&text).map_err(wrong)?;
    let found = match schema.schema.as_str() {
        SCHEMA => Some(serde_json::from_slice(&text).map_err(wrong)?),
        EXPLAIN_SCHEMA => serde_json::from_slice::<Explained>(&text).map_err(wrong)?.holders,
        _ => None,
    };
    found.ok_or_else(|| failure(hint.to_owned()))
}

/// Fails unless an earlier result belongs to this running process.
fn check_same_process(before: &Found, pid: i32, start_ticks: Option<u64>) -> Result<()> {
    if (before.pid, before.start_ticks) == (pid, start_ticks) {
        return Ok(());
    }
    Err(Failure(format!(
        "the look to compare with is not of this process: it is of process {}{}",
        before.pid,
        if before.pid == pid { ", as it was before it started anew" } else { "" }
    )))
}

/// The default screen, or the one with all details.
pub fn screen(verbose: bool) -> fn(&Found, Option<usize>, Surface) -> String {
    if verbose { strandline_report::holders::details } else { strandline_report::holders::holders }
}

/// Inspects one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<CommandResult> {
    let before = arguments.since.as_deref().map(read).transpose()?;
    if let Some(before) = &before {
        // Check before the process is stopped.
        let process = Process::open(arguments.pid)?;
        check_same_process(before, arguments.pid, Some(process.stat()?.start_ticks))?;
    }
    // Large arrays of each step are then returned before those of the next step are allocated.
    strandline_sys::host::map_large_arrays();
    let tell = Progress::new(!output.json);
    let mut found = holders(
        arguments.pid,
        &Options {
            progress: Some(&|what, done, total| tell.set_bytes(what, done, total)),
            runtimes: !arguments.no_runtimes,
            find_zero_pages: false,
            snapshot: arguments.snapshot.mode(),
            ..Options::default()
        },
    )?;
    drop(tell);
    if let Some(before) = &before {
        check_same_process(before, found.pid, found.start_ticks)?;
        found.since = Some(growth::between(before, &found));
    }
    if output.json {
        output.document(SCHEMA, None, &found)?;
    } else {
        let screen = screen(arguments.detail.verbose);
        output.print(&screen(&found, arguments.top, output.surface))?;
    }
    Ok(CommandResult::Done)
}

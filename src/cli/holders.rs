//! `holders PID`: who holds what is live.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use strandline_inspect::explain::Options;
use strandline_inspect::holders::facts::Holders as Found;
use strandline_inspect::holders::{growth, holders};
use strandline_process::procfs::Process;

use super::arguments::Holders;
use super::output::Output;
use super::progress::Progress;
use super::{Ending, Failure, Result};

/// The schema of the document.
const SCHEMA: &str = "strandline/holders/1";

/// The largest document that is read.
const MAX_BYTES: u64 = 64 << 20;
/// That of `explain --holders`.
const EXPLAIN_SCHEMA: &str = "strandline/explain/1";

/// What a document is.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// That of `explain --holders`.
#[derive(Deserialize)]
struct Explained {
    holders: Option<Found>,
}

/// Whether a file is a document and no recording.
pub fn is_document(path: &Path) -> bool {
    let mut first = [0];
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
}

/// Reads what --json wrote, or `explain --holders --json`.
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

/// Whether an earlier look is of a process that runs now.
fn is_of(before: &Found, pid: i32, start_ticks: Option<u64>) -> Result<()> {
    if (before.pid, before.start_ticks) == (pid, start_ticks) {
        return Ok(());
    }
    Err(Failure(format!(
        "the look to compare with is not of this process: it is of process {}{}",
        before.pid,
        if before.pid == pid { ", as it was before it started anew" } else { "" }
    )))
}

/// Looks at one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<Ending> {
    let before = arguments.since.as_deref().map(read).transpose()?;
    if let Some(before) = &before {
        // Nobody is to stand still for nothing.
        let process = Process::open(arguments.pid)?;
        is_of(before, arguments.pid, Some(process.stat()?.start_ticks))?;
    }
    // Arrays of each step are freed before the next one's are made.
    strandline_sys::host::map_large_arrays();
    let tell = Progress::new(!output.json);
    let mut found = holders(
        arguments.pid,
        &Options {
            progress: Some(&|what, done, total| tell.tell(what, done, total)),
            runtimes: !arguments.no_runtimes,
            find_zero_pages: false,
            snapshot: arguments.snapshot.wanted(),
            ..Options::default()
        },
    )?;
    drop(tell);
    if let Some(before) = &before {
        is_of(before, found.pid, found.start_ticks)?;
        found.since = Some(growth::between(before, &found));
    }
    if output.json {
        output.document(SCHEMA, None, &found)?;
    } else {
        output.print(&strandline_report::holders::holders(&found, arguments.top, output.surface))?;
    }
    Ok(Ending::Done)
}

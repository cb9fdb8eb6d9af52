//! `holders PID`: who holds what is live.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use strandline_inspect::explain::Options;
use strandline_inspect::holders::facts::Holders as Found;
use strandline_inspect::holders::{growth, holders};

use super::arguments::Holders;
use super::output::Output;
use super::progress::Progress;
use super::{Ending, Failure, Result};

/// The schema of the document.
const SCHEMA: &str = "strandline/holders/1";

/// The largest document that is read.
const MOST_BYTES: u64 = 256 << 20;

/// A look, as a document.
#[derive(Deserialize)]
struct Document {
    schema: String,
    #[serde(flatten)]
    found: Found,
}

/// Whether a file is a document and no recording.
pub fn is_document(path: &Path) -> bool {
    let mut first = [0];
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
}

/// Reads what --json wrote.
pub fn read(path: &Path) -> Result<Found> {
    let failure = |why: String| Failure(format!("{}: {why}", path.display()));
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failure(error.to_string()))?;
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(|error| failure(error.to_string()))?;
    let hint = "not what `strandline holders --json PID` wrote";
    let document: Document =
        serde_json::from_slice(&text).map_err(|error| failure(format!("{hint}: {error}")))?;
    if document.schema == SCHEMA { Ok(document.found) } else { Err(failure(hint.to_owned())) }
}

/// Looks at one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<Ending> {
    let before = arguments.since.as_deref().map(read).transpose()?;
    let tell = Progress::new(!output.json);
    let mut found = holders(
        arguments.pid,
        &Options {
            progress: Some(&|what, done, total| tell.tell(what, done, total)),
            runtimes: !arguments.no_runtimes,
            find_zero_pages: false,
            photograph: arguments.photograph.wanted(),
            ..Options::default()
        },
    )?;
    drop(tell);
    if let Some(before) = &before {
        if (before.pid, before.start_ticks) != (found.pid, found.start_ticks) {
            return Err(Failure(format!(
                "the look to compare with is not of this process: it is of process {}{}",
                before.pid,
                if before.pid == found.pid { ", as it was before it started anew" } else { "" }
            )));
        }
        found.since = Some(growth::between(before, &found));
    }
    if output.json {
        output.document(SCHEMA, None, &found)?;
    } else {
        output.print(&strandline_report::holders::holders(&found, arguments.top, output.surface))?;
    }
    Ok(Ending::Done)
}

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

/// An earlier look, as a document.
#[derive(Deserialize)]
struct Earlier {
    schema: String,
    #[serde(flatten)]
    found: Found,
}

/// Reads what --json wrote.
fn earlier(path: &Path) -> Result<Found> {
    let failure = |why: String| Failure(format!("{}: {why}", path.display()));
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failure(error.to_string()))?;
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(|error| failure(error.to_string()))?;
    let hint = "not what `strandline holders --json PID` wrote";
    let earlier: Earlier =
        serde_json::from_slice(&text).map_err(|error| failure(format!("{hint}: {error}")))?;
    if earlier.schema == SCHEMA { Ok(earlier.found) } else { Err(failure(hint.to_owned())) }
}

/// Looks at one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<Ending> {
    let before = arguments.since.as_deref().map(earlier).transpose()?;
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

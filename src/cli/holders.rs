//! `holders PID`: who holds what is live.

use strandline_inspect::explain::Options;
use strandline_inspect::holders::holders;

use super::arguments::Holders;
use super::output::Output;
use super::progress::Progress;
use super::{Ending, Result};

/// The schema of the document.
const SCHEMA: &str = "strandline/holders/1";

/// Looks at one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<Ending> {
    let tell = Progress::new(!output.json);
    let found = holders(
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
    if output.json {
        output.document(SCHEMA, None, &found)?;
    } else {
        output.print(&strandline_report::holders::holders(&found, arguments.top, output.surface))?;
    }
    Ok(Ending::Done)
}

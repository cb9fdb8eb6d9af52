//! `holders PID`: which roots retain the live blocks.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use strandline_inspect::explain::{Options, SnapshotMode};
use strandline_inspect::holders::facts::Holders as Findings;
use strandline_inspect::holders::growth;
use strandline_inspect::inspection::inspect;
use strandline_process::procfs::Process;
use strandline_report::paint::Surface;

use super::arguments::Holders;
use super::arguments_reading::SnapshotChoice;
use super::output::Output;
use super::progress::Progress;
use super::{CommandResult, Failure, Result};

const SCHEMA: &str = "strandline/holders/1";

/// Maximum size of a document that is read.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// The schema field of a document.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// The part of an `explain --holders --json` document that is read.
#[derive(Deserialize)]
struct ExplainDocument {
    holders: Option<Findings>,
}

/// Whether a file begins as JSON documents do, and recordings do not; false for an unreadable file.
pub fn is_document(path: &Path) -> bool {
    let mut first_byte = [0];
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let is_read = is_file && File::open(path).and_then(|mut file| file.read_exact(&mut first_byte)).is_ok();
    is_read && first_byte == *b"{"
}

/// Reads the output of `holders --json` or `explain --holders --json`.
///
/// # Errors
/// The file cannot be read, is larger than 64 MiB, or is another document.
pub fn read(path: &Path) -> Result<Findings> {
    let failure = |why: String| Failure(format!("{}: {why}", path.display()));
    let unreadable = |error: std::io::Error| failure(error.to_string());
    let mut text = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let read_bytes = file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if read_bytes as u64 > MAX_DOCUMENT_BYTES {
        return Err(failure(format!("more than {} MiB", MAX_DOCUMENT_BYTES >> 20)));
    }
    let hint = "not what `strandline holders --json PID` wrote";
    let malformed = |error: serde_json::Error| failure(format!("{hint}: {error}"));
    let schema: Schema = serde_json::from_slice(&text).map_err(malformed)?;
    let findings = match schema.schema.as_str() {
        SCHEMA => Some(serde_json::from_slice(&text).map_err(malformed)?),
        super::explain::SCHEMA => {
            serde_json::from_slice::<ExplainDocument>(&text).map_err(malformed)?.holders
        }
        _ => None,
    };
    findings.ok_or_else(|| failure(hint.to_owned()))
}

/// Checks that earlier findings are of this running process.
///
/// # Errors
/// They are of another process, or of an earlier process with the same id.
fn check_same_process(before: &Findings, pid: i32, start_ticks: Option<u64>) -> Result<()> {
    if (before.pid, before.start_ticks) == (pid, start_ticks) {
        return Ok(());
    }
    Err(Failure(if before.pid == pid {
        format!("the findings to compare with are of an earlier process with the id {pid}")
    } else {
        format!("the findings to compare with are not of this process but of process {}", before.pid)
    }))
}

/// Returns the writer of the default screen, or of the one with all details.
pub fn screen(verbose: bool) -> fn(&Findings, Option<usize>, Surface) -> String {
    if verbose { strandline_report::holders::details } else { strandline_report::holders::holders }
}

/// Returns when to take a snapshot: always if the stop is limited, because blocks that only unread
/// ones reference would count as leaked.
pub fn snapshot_mode(choice: SnapshotChoice, max_stop: Option<Duration>) -> SnapshotMode {
    if max_stop.is_some() { SnapshotMode::Always } else { choice.mode() }
}

/// Prints what retains the live blocks of one process.
pub fn run(arguments: &Holders, output: &mut Output) -> Result<CommandResult> {
    let before = arguments.since.as_deref().map(read).transpose()?;
    if let Some(before) = &before {
        // Checked before the process is stopped, because the stop would be useless.
        let process = Process::open(arguments.pid)?;
        check_same_process(before, arguments.pid, Some(process.stat()?.start_ticks))?;
    }
    // Then each step returns its large arrays to the kernel before the next step allocates others.
    strandline_sys::own_memory::map_large_arrays();
    let progress = Progress::new(!output.is_json);
    let inspection = inspect(
        arguments.pid,
        &Options {
            keeps_blocks: true,
            progress: Some(&|step, done, total| progress.set_bytes(step, done, total)),
            reads_runtimes: !arguments.no_runtimes,
            finds_zero_pages: false,
            max_stop: arguments.max_stop,
            snapshot: snapshot_mode(arguments.snapshot, arguments.max_stop),
            ..Options::default()
        },
    )?;
    drop(progress);
    let mut explanation = inspection.explanation;
    let mut findings = inspection.holders.unwrap_or_default();
    findings.caveats.append(&mut explanation.caveats);
    if let Some(before) = &before {
        check_same_process(before, findings.pid, findings.start_ticks)?;
        findings.since = Some(growth::between(before, &findings));
    }
    if output.is_json {
        output.document(SCHEMA, Some(&explanation), &findings)?;
    } else {
        let write_screen = screen(arguments.detail.verbose);
        output.print(&write_screen(&findings, arguments.top, output.surface))?;
    }
    Ok(CommandResult::Done)
}

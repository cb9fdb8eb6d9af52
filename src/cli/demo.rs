//! `demo`: explain, reclaim and explain again, on a process that strandline starts itself.
//!
//! The process is a child that runs the same executable. Tracing one's own child needs no privilege
//! under any common setting. The child exits when its input closes, even if strandline is killed;
//! if it does not exit, it is killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use strandline_inspect::facts::{Explanation, Outcome, Reclamation};
use strandline_inspect::remedy::{ReclaimOptions, reclaim};

use super::arguments::Demo;
use super::explain::explain_process;
use super::output::Output;
use super::{CommandResult, Failure, Result};
use strandline_report::model::{Rows, View};
use strandline_report::paint::Paint;
use strandline_report::text::{clean, counted, wrap};
use strandline_report::units::{bytes, seconds, thousands};
use strandline_report::{reclamation, terminal};

pub const SCHEMA: &str = "strandline/demo/1";

/// Size of the buffer of zeros.
const ZERO_MEBIBYTES: u32 = 64;
/// Time limit for finding a safe moment to reclaim.
const SAFE_MOMENT_LIMIT: Duration = Duration::from_secs(5);
/// How long the process's faults are counted after the call.
const FAULT_WATCH: Duration = Duration::from_millis(500);
/// Time limit for the process to check its memory and exit, on a busy machine too.
const EXIT_LIMIT: Duration = Duration::from_secs(60);
/// Time between two checks whether the process has exited.
const EXIT_POLL: Duration = Duration::from_millis(5);
/// Number of rows shown of a ledger.
const ROWS_SHOWN: usize = 6;
/// `ready`, two numbers and a line end are shorter.
const MAX_READY_LINE_BYTES: u64 = 100;

/// The document of `demo --json`.
#[derive(Serialize)]
struct DemoResult {
    /// Number of pieces that the process allocated.
    pieces: u64,
    /// Number of pieces that it kept.
    survivors: u64,
    before: Explanation,
    reclaim: Reclamation,
    after: Explanation,
    /// Whether the process found its memory unchanged at the end.
    memory_unchanged: bool,
    elapsed_seconds: f64,
}

/// Runs the demonstration, step by step.
pub fn run(arguments: &Demo, output: &mut Output) -> Result<CommandResult> {
    let started_at = Instant::now();
    let mut subject = Subject::start(arguments.mebibytes)?;
    let pid = subject.pid();
    let columns = output.surface.columns;
    let introduction = paragraph(&introduction(&subject, arguments.mebibytes), columns);
    show(output, &[title(output, 1, "A process"), introduction])?;

    let before = explain_process(pid, !output.is_json)?;
    let ledger_title = title(output, 2, "Where its memory is: strandline explain PID");
    show(output, &[ledger_title, ledger(output, &before), paragraph(HOW_TO_READ, columns)])?;

    let options = ReclaimOptions {
        remedy: Some("malloc_trim"),
        wait: SAFE_MOMENT_LIMIT,
        watch: FAULT_WATCH,
        quiet_for: strandline_inspect::explain::QUIET_FOR,
        ..ReclaimOptions::default()
    };
    let reclamation = reclaim(pid, &options)?;
    let reclaim_title = title(output, 3, "Giving it back: strandline reclaim PID --remedy malloc_trim");
    show(output, &[reclaim_title, reclamation_text(output, &reclamation)])?;

    let after = explain_process(pid, !output.is_json)?;
    let ledger_title = title(output, 4, "What is left: strandline explain PID");
    show(output, &[ledger_title, ledger(output, &after), paragraph(&remaining_memory(&after), columns)])?;

    let memory_unchanged = subject.end()?;
    let elapsed_seconds = started_at.elapsed().as_secs_f64();
    let farewell = paragraph(&farewell(memory_unchanged, elapsed_seconds), columns);
    show(output, &[title(output, 5, "No harm done"), farewell])?;
    let is_refused = reclamation.outcome == Outcome::Refused;
    if output.is_json {
        let result = DemoResult {
            pieces: subject.pieces,
            survivors: subject.survivors,
            before,
            reclaim: reclamation,
            after,
            memory_unchanged,
            elapsed_seconds,
        };
        output.document(SCHEMA, Some(&result.before), &result)?;
    }
    Ok(if is_refused || !memory_unchanged { CommandResult::Failed } else { CommandResult::Done })
}

/// Prints the texts of a step; nothing in JSON mode.
fn show(output: &mut Output, texts: &[String]) -> Result<()> {
    if output.is_json { Ok(()) } else { output.print(&texts.concat()) }
}

/// The title of a step.
fn title(output: &Output, number: u32, text: &str) -> String {
    output.surface.paint(Paint::Strong, &format!("{number}. {text}")) + "\n"
}

/// A paragraph and an empty line; nothing if it is empty.
fn paragraph(text: &str, columns: usize) -> String {
    if text.is_empty() { String::new() } else { wrap(text, columns).join("\n") + "\n\n" }
}

fn introduction(subject: &Subject, mebibytes: u32) -> String {
    format!(
        "strandline started process {}. Through malloc it filled {mebibytes} MiB in {}, freed all \
         but {} of them, and keeps a buffer of {ZERO_MEBIBYTES} MiB that holds only zeros. It knows nothing \
         of strandline.",
        subject.pid(),
        counted(subject.pieces, "piece"),
        thousands(subject.survivors),
    )
}

const HOW_TO_READ: &str = "\
    Each resident byte counts for one row, and the rows add up to the kernel's RSS exactly. Stranded \
    bytes are unused and can be released; pinned bytes are free, but a live neighbour keeps their page.";

/// The large rows of a ledger.
fn ledger(output: &Output, explanation: &Explanation) -> String {
    let view = View::new(explanation, Rows::Largest(ROWS_SHOWN));
    terminal::joined(&terminal::summary(&view, output.surface)) + "\n"
}

/// What the remedy released.
fn reclamation_text(output: &Output, reclamation: &Reclamation) -> String {
    let mut text = reclamation::reclamation(reclamation, &[], output.surface) + "\n";
    if reclamation.outcome == Outcome::Done {
        let meaning = "The prediction was computed from outside, before the call; what was released was counted in the page \
                       tables after it. The call ran on one of the process's own threads, which then resumed \
                       where it was.";
        text += &paragraph(meaning, output.surface.columns);
    }
    text
}

/// Describes the memory that remains according to the second ledger; empty if there is nothing to
/// say.
fn remaining_memory(after: &Explanation) -> String {
    let row_bytes = |id: &str| after.rows.iter().find(|row| row.id == id).map(|row| row.bytes);
    let mut sentences = Vec::new();
    if let Some(zero) = row_bytes("kernel.zero").filter(|&zero| zero > 0) {
        sentences.push(format!(
            "{} are pages of zeros, which no malloc_trim reaches: the program wrote them and holds them. \
             They are for the remedy zero_pages, or for a program that allocates zeroed memory untouched.",
            bytes(zero)
        ));
    }
    if let Some(pinned) = row_bytes("glibc.free.pinned").filter(|&pinned| pinned > 0) {
        sentences.push(format!(
            "{} stay pinned around the survivors: only moving or freeing those would give them back.",
            bytes(pinned)
        ));
    }
    sentences.join(" ")
}

fn farewell(memory_unchanged: bool, elapsed_seconds: f64) -> String {
    let checked = if memory_unchanged {
        "The process then checked every byte it keeps, found it unchanged, and ended by itself."
    } else {
        "The process found its memory CHANGED, or did not end. Please report this."
    };
    format!("{checked} All in {}. Now your own: {} explain PID", seconds(elapsed_seconds), own_command())
}

/// How the user started strandline.
fn own_command() -> String {
    std::env::args_os().next().map_or_else(|| "strandline".to_owned(), |name| clean(&name.to_string_lossy()))
}

/// The child process; dropping this kills it.
struct Subject {
    child: Child,
    pieces: u64,
    survivors: u64,
}

impl Subject {
    /// Starts the process and waits until its heap of `mebibytes` MiB is filled and freed.
    fn start(mebibytes: u32) -> Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args(["demo-child", "--heap-mebibytes", &mebibytes.to_string()])
            .args(["--zero-mebibytes", &ZERO_MEBIBYTES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure(format!("/proc/self/exe: cannot start the demo's process: {error}")))?;
        // Owned from here on, so that it is killed on every return path.
        let mut subject = Self { child, pieces: 0, survivors: 0 };
        let mut line = String::new();
        if let Some(stdout) = subject.child.stdout.take() {
            BufReader::new(stdout.take(MAX_READY_LINE_BYTES)).read_line(&mut line)?;
        }
        let mut words = line.split_whitespace();
        let is_ready = words.next() == Some("ready");
        let mut number = || words.next()?.parse().ok();
        match (is_ready, number(), number()) {
            (true, Some(pieces), Some(survivors)) => {
                (subject.pieces, subject.survivors) = (pieces, survivors);
                Ok(subject)
            }
            _ => Err(Failure(format!(
                "process {}: the demo's process ended before it was ready; is there memory for {mebibytes} \
                 MiB? try --mebibytes 50",
                subject.pid()
            ))),
        }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Closes its input and waits for it to exit; returns whether it found its memory unchanged,
    /// and false if it does not exit within [`EXIT_LIMIT`].
    fn end(&mut self) -> Result<bool> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + EXIT_LIMIT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(EXIT_POLL);
        }
        Ok(false)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Both fail if it was already reaped, which is fine.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

//! Running the program under test.

use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::waiting::until;
use super::{Outcome, Result, invariants};

/// How a run ended, and its output.
#[derive(Debug)]
pub struct Run {
    /// Exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Parses its output as one JSON document.
    pub fn document(&self) -> Result<Value> {
        let document = serde_json::from_str(&self.stdout);
        document.map_err(|error| format!("no JSON document: {error}: {}", self.summary()).into())
    }

    /// Fails unless it ended with `status` and one line of complaint that contains each of `words`.
    pub fn complains(&self, status: i32, words: &[&str]) -> Outcome {
        let is_one_line = self.stderr.lines().count() == 1 && self.stderr.starts_with("strandline: ");
        if self.status != Some(status) || !is_one_line {
            return Err(format!("expected status {status} and one line: {}", self.summary()).into());
        }
        match words.iter().find(|word| !self.stderr.contains(**word)) {
            None => Ok(()),
            Some(word) => Err(format!("{:?} does not contain {word:?}", self.stderr).into()),
        }
    }

    /// The run in one line, for messages.
    pub fn summary(&self) -> String {
        format!("status {:?}, stderr {:?}", self.status, self.stderr.trim_end())
    }
}

/// A command that runs strandline.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
    // Tests that need colour set it themselves.
    command.args(arguments).env_remove("NO_COLOR");
    command
}

/// Runs strandline to its end.
pub fn run(arguments: &[&str]) -> Result<Run> {
    run_command(command(arguments))
}

/// Runs strandline to its end with environment variables.
pub fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Run> {
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    run_command(command)
}

/// Runs any command to its end, reading both outputs as they arrive.
pub fn run_command(mut command: Command) -> Result<Run> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take().ok_or("no pipe")?, child.stderr.take().ok_or("no pipe")?);
    let readers = [drain(stdout), drain(stderr)];
    let status = until(&format!("the end of {command:?}"), || Ok(child.try_wait()?)).inspect_err(|_| {
        // The command hangs, or could not be waited for.
        let _ = child.kill();
        let _ = child.wait();
    })?;
    let [stdout, stderr] = readers.map(|reader| reader.join().unwrap_or_default());
    Ok(Run { status: status.code(), stdout: String::from_utf8(stdout)?, stderr: String::from_utf8(stderr)? })
}

fn drain(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes read before an error are still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs `explain --json` until the document has all parts, checks its invariants, and returns it.
pub fn explain(pid: i32) -> Result<Value> {
    let document = complete(|| json(&["explain", "--json", &pid.to_string()]))?;
    invariants::check(&document)?;
    Ok(document)
}

/// Calls `make` until its document has all parts: on a busy machine strandline may lack the time for some
/// parts, which a caveat reports.
pub fn complete(mut make: impl FnMut() -> Result<Value>) -> Result<Value> {
    until(
        "a document with all parts",
        || Ok(Some(make()?).filter(|document| late_caveat(document).is_none())),
    )
}

/// A caveat about time.
fn late_caveat(document: &Value) -> Option<&Value> {
    let is_late = |caveat: &&Value| {
        let words = caveat["text"].as_str().unwrap_or_default().split(|c: char| !c.is_alphanumeric());
        words.into_iter().any(|word| word == "time")
    };
    document["caveats"].as_array()?.iter().find(is_late)
}

/// Runs strandline, which must exit with 0, and returns the JSON document that it printed.
pub fn json(arguments: &[&str]) -> Result<Value> {
    let run = run(arguments)?;
    if run.status != Some(0) {
        return Err(format!("strandline {arguments:?}: {}", run.summary()).into());
    }
    run.document()
}

/// Bytes on row `id`; 0 if there is no such row.
pub fn row(document: &Value, id: &str) -> u64 {
    let rows = document["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().filter(|row| row["id"] == id).filter_map(|row| row["bytes"].as_u64()).sum()
}

/// The glibc allocators of a document.
pub fn glibcs(document: &Value) -> Vec<&Value> {
    let allocators = document["allocators"].as_array().map(Vec::as_slice).unwrap_or_default();
    allocators.iter().filter(|allocator| allocator["name"] == "glibc").collect()
}

/// Predicted bytes of remedy `id`.
pub fn predicted(document: &Value, id: &str) -> Option<u64> {
    let remedies = document["remedies"].as_array()?;
    remedies.iter().find(|remedy| remedy["id"] == id)?["predicted_bytes"].as_u64()
}

/// The codes of a document's caveats.
pub fn caveats(document: &Value) -> Vec<String> {
    let caveats = document["caveats"].as_array().map(Vec::as_slice).unwrap_or_default();
    caveats.iter().filter_map(|caveat| Some(caveat["code"].as_str()?.to_owned())).collect()
}

/// Rows of pages that the kernel may drop at any time: clean pages of files, and pages freed with
/// MADV_FREE.
const DROPPABLE_ROWS: [&str; 3] = ["kernel.file", "program.text", "kernel.lazyfree"];

/// The rows of a document that stay the same between two reads of a resting process.
pub fn kept_rows(document: &Value) -> Vec<&Value> {
    let rows = document["rows"].as_array().into_iter().flatten();
    rows.filter(|row| row["id"].as_str().is_some_and(|id| !DROPPABLE_ROWS.contains(&id))).collect()
}

/// The part of the RSS that a resting process keeps: anonymous and shared memory.
pub fn kept_bytes(document: &Value) -> Option<u64> {
    let bytes = |field: &str| document["kernel"][field].as_u64();
    (bytes("anonymous_bytes")? + bytes("shmem_bytes")?).checked_sub(bytes("lazyfree_bytes")?)
}

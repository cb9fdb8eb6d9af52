//! The page of `report --format html` in a real browser: it shows the same as `--format json`,
//! whatever the names in it are, and requests nothing.
//!
//! `tests/browser/drive.py` drives the browser; without a browser the tests are skipped by name.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::browser::browser;
use crate::support::recording::has;
use crate::support::{Folder, Outcome, Result, here, strandline};

/// Allocates, frees, and sends a mark with a given name at each step. It continues when the
/// recording has grown twice: the recorder took the samples of the second growth during the step.
const PROGRAM: &str = r#"
import os, socket, subprocess, time
own = socket.socket(fileno=os.dup(int(os.environ["STRANDLINE_MARK_FD"])))
def size():
    return os.stat(os.environ["RECORDING"]).st_size
def be_sampled():
    for _ in range(2):
        known = size()
        while size() <= known:
            time.sleep(0.01)
def mark(name):
    own.sendall(name.encode() + b"\n")
    own.recv(1)
    be_sampled()
names = os.environ["MARKS"].split("\x1f")
mark(names[0])
items = [bytes(800 + n % 400) for n in range(40_000)]
mark(names[1])
index = [str(n) * 16 for n in range(150_000)]
mark(names[2])
buffer = bytearray(48 << 20)
for at in range(0, len(buffer), 4096):
    buffer[at] = 0
mark(names[3])
kept, items = items[::200], None
mark(names[4])
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
be_sampled()
child.communicate()
"#;
const MARKS: [&str; 5] = ["start", "loaded", "indexed", "buffered", "freed most items"];
/// A mark name that an attacker would choose.
const HOSTILE_NAME: &str = "</script><img src=x onerror=alert(1)><svg onload=alert(2)>\u{202e}漢字\"'&";

/// Records the program in `folder` under `name`.
fn record(folder: &Path, name: &str, marks: [&str; 5]) -> Result<PathBuf> {
    std::fs::write(folder.join("tide.py"), PROGRAM)?;
    let file = folder.join(name);
    let mut command = strandline::command(&["run", "-o"]);
    command.arg(&file).args(["--ledger", "marks,exit", "--", "python3", "tide.py"]);
    command.current_dir(folder).env("MARKS", marks.join("\x1f")).env("RECORDING", &file);
    let run = strandline::run_command(command)?;
    if run.status == Some(0) { Ok(file) } else { Err(run.summary().into()) }
}

/// Writes the report of `files` in `format` next to them.
fn report(files: &[&Path], format: &str) -> Result<PathBuf> {
    let out = files.first().ok_or("no recording")?.with_extension(format);
    let mut command = strandline::command(&["report", "--format", format, "-o"]);
    command.arg(&out).args(files);
    let run = strandline::run_command(command)?;
    if run.status == Some(0) { Ok(out) } else { Err(run.summary().into()) }
}

/// Drives `browser`; `more` is the document to compare with.
fn drive(browser: &Path, page: &Path, more: &[&Path]) -> Outcome {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/drive.py");
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).arg(browser).arg(page).args(more);
    let run = strandline::run_command(command)?;
    if run.status == Some(0) { Ok(()) } else { Err(format!("{}\n{}", run.stdout, run.stderr).into()) }
}

#[test]
fn the_page_shows_the_figures_of_the_document() -> Outcome {
    let Some(browser) = browser(here!()) else { return Ok(()) };
    let folder = Folder::new("report-html")?;
    let file = record(&folder.0, "tide.strandline", MARKS)?;
    let (page, document) = (report(&[&file], "html")?, report(&[&file], "json")?);
    drive(&browser, &page, &[&document])
}

#[test]
fn hostile_names_in_a_page_are_shown_as_text() -> Outcome {
    let Some(browser) = browser(here!()) else { return Ok(()) };
    let folder = Folder::new("report-names")?;
    let hostile = record(&folder.0, "hostile<script>alert(3)<!--.strandline", [HOSTILE_NAME; 5])?;
    let other = record(&folder.0, "other.strandline", MARKS)?;
    // Two recordings on one page.
    let page = report(&[&hostile, &other], "html")?;
    drive(&browser, &page, &[])
}

#[test]
fn a_page_map_shows_all_its_cells_or_says_how_many_it_leaves_out() -> Outcome {
    if !has(here!(), "node") {
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("node");
    command.arg(root.join("tests/browser/page_map.js")).arg(root.join("crates/report/src/timeline/assets"));
    let run = strandline::run_command(command)?;
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    Ok(())
}

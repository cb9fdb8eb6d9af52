//! Shared by all tests: subjects, runs of strandline, and the invariants of every document. Nothing
//! here asserts: functions return errors that describe the failure.

pub mod browser;
pub mod exporter;
pub mod gos;
pub mod group_rows;
pub mod groups;
pub mod invariants;
pub mod jdks;
pub mod jvm;
pub mod jvm_collectors;
pub mod jvm_histogram;
pub mod lab;
pub mod libc;
pub mod libraries;
pub mod mallinfo;
pub mod memory_group;
pub mod nodes;
pub mod perl;
pub mod perls;
pub mod polars;
pub mod pythons;
pub mod recording;
pub mod sbcl;
pub mod slurm;
pub mod strandline;
pub mod studied;
pub mod subject;
pub mod terminal;
pub mod waiting;

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

pub use libc::Libc;
pub use subject::Subject;

/// Result of a test.
pub type Outcome = std::result::Result<(), Box<dyn Error>>;

/// Result with a value.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether the long tests are enabled (`make test-full` sets STRANDLINE_FULL=1).
pub fn full() -> bool {
    std::env::var_os("STRANDLINE_FULL").is_some_and(|value| value == "1")
}

/// `short` repetitions in `make test`, `long` ones in `make test-full`.
pub fn repetitions(short: u64, long: u64) -> u64 {
    if full() { long } else { short }
}

/// Every `step`th of the cases in `make test`, all in `make test-full`.
pub fn some_of<T>(cases: impl IntoIterator<Item = T>, step: usize) -> Vec<T> {
    cases.into_iter().step_by(if full() { 1 } else { step }).collect()
}

/// Whether a test of a study runs that takes long even in the short form: in `make test-full`.
pub fn runs_long_studies(test: &str) -> bool {
    if !full() {
        skipped(test, "it takes long: make test-full runs it");
    }
    full()
}

/// The path of the function that uses it, such as `allocators::trim::random_programs`: a test's
/// name for its messages.
macro_rules! here {
    () => {{
        fn here() {}
        $crate::support::path_of(&here)
    }};
}
pub(crate) use here;

/// The path of the function around `inner`, without the crate and closures.
pub fn path_of<T>(_inner: &T) -> &'static str {
    let path = std::any::type_name::<T>().trim_end_matches("::here").trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, path)| path)
}

#[test]
fn a_test_knows_its_name() {
    assert_eq!(here!(), "support::a_test_knows_its_name");
    let within = || here!();
    assert_eq!(within(), "support::a_test_knows_its_name");
}

/// Reports that a test, or a part of one, was not run.
pub fn skipped(name: &str, reason: &str) {
    eprintln!("skipped: {name}: {reason}");
}

/// Fails if `text` contains control characters, which a terminal may obey, other than line ends.
pub fn check_no_control_characters(text: &str) -> Outcome {
    let bad: Vec<char> = text.chars().filter(|&c| c.is_control() && c != '\n').collect();
    if bad.is_empty() { Ok(()) } else { Err(format!("{bad:?} in {text:?}").into()) }
}

/// A folder of one test, removed on drop.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder for the test `name`.
    pub fn new(name: &str) -> Result<Self> {
        // Tests run in parallel in one process.
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("strandline-{name}-{}-{turn}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A remainder stays in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies the program `from`, to be started. A separate process writes it: a child forked by
/// another test at this moment would otherwise hold the file open for writing, and the kernel would
/// refuse to start it (ETXTBSY).
pub fn copy_program(from: impl AsRef<std::path::Path>, to: impl AsRef<std::path::Path>) -> Outcome {
    let status = std::process::Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status()?;
    if status.success() { Ok(()) } else { Err(format!("cp to {}: {status}", to.as_ref().display()).into()) }
}

/// Writes a script to be started, in a separate process like [`copy_program`].
pub fn write_script(path: impl AsRef<std::path::Path>, text: &str) -> Outcome {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#, "sh", text]).arg(path.as_ref());
    let status = shell.status()?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", path.as_ref().display()).into()) }
}

/// Runs `check` for each item and collects the failures, so that one run shows all of them. No item
/// at all is a failure; if a machine may have none, use [`for_any`].
pub fn for_each<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Outcome {
    let done = check_all(items, check)?;
    if done > 0 { Ok(()) } else { Err("nothing was checked".into()) }
}

/// Like [`for_each`], but a machine may have no items; the function that lists them reports this
/// with [`skipped`].
pub fn for_any<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Outcome {
    check_all(items, check).map(|_| ())
}

/// Returns the number of checked items, if none failed.
fn check_all<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Result<usize> {
    let (mut done, mut failures) = (0, Vec::new());
    for item in items {
        done += 1;
        if let Err(error) = check(&item) {
            failures.push(format!("{item:?}: {error}"));
        }
    }
    if failures.is_empty() {
        return Ok(done);
    }
    Err(format!("{} of {done} failed:\n{}", failures.len(), failures.join("\n")).into())
}

//! What the tests share: subjects to look at, strandline to look with, and the invariants that
//! every document must keep. Nothing here asserts: it returns errors that say what went wrong.

pub mod exporter;
pub mod gos;
pub mod invariants;
pub mod jdks;
pub mod jvm;
pub mod jvm_histogram;
pub mod lab;
pub mod libc;
pub mod libraries;
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

/// What a test returns.
pub type Outcome = std::result::Result<(), Box<dyn Error>>;

/// The same with a value.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether the long tests were asked for (`make test-full` sets STRANDLINE_FULL=1).
pub fn full() -> bool {
    std::env::var_os("STRANDLINE_FULL").is_some_and(|value| value == "1")
}

/// `short` repetitions in `make test`, `long` ones in `make test-full`.
pub fn repetitions(short: u64, long: u64) -> u64 {
    if full() { long } else { short }
}

/// The path of the function that uses it, `allocators::trim::random_programs`: a test's own name, for what it says.
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

/// Says that a test, or a part of one, was not run.
pub fn skipped(name: &str, reason: &str) {
    eprintln!("skipped: {name}: {reason}");
}

/// Fails where a terminal would obey anything in `text`, line ends left out.
pub fn harmless(text: &str) -> Outcome {
    let bad: Vec<char> = text.chars().filter(|&c| c.is_control() && c != '\n').collect();
    if bad.is_empty() { Ok(()) } else { Err(format!("{bad:?} in {text:?}").into()) }
}

/// A folder of a test's own, removed when it is dropped.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder for the test `name`.
    pub fn new(name: &str) -> Result<Self> {
        // Tests run side by side in one process.
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("strandline-{name}-{}-{turn}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies the program `from` to be started. Another process writes it: a child that some other test forks at this moment would
/// hold a file of ours open for writing, and the kernel would not start it (ETXTBSY).
pub fn copy_program(from: impl AsRef<std::path::Path>, to: impl AsRef<std::path::Path>) -> Outcome {
    let status = std::process::Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status()?;
    if status.success() { Ok(()) } else { Err(format!("cp to {}: {status}", to.as_ref().display()).into()) }
}

/// Writes a script to be started; by another process, as [`copy_program`] does.
pub fn write_script(path: impl AsRef<std::path::Path>, text: &str) -> Outcome {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#, "sh", text]).arg(path.as_ref());
    let status = shell.status()?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", path.as_ref().display()).into()) }
}

/// Runs `check` for each item and gathers the failures, so that one run shows all of them. No item at all is a failure: where
/// there may be none on a machine, use [`for_any`].
pub fn for_each<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Outcome {
    let done = check_all(items, check)?;
    if done > 0 { Ok(()) } else { Err("nothing was checked".into()) }
}

/// The same where a machine may have none of the items, which whoever lists them says by [`skipped`].
pub fn for_any<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Outcome {
    check_all(items, check).map(|_| ())
}

/// How many items were checked, if none failed.
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

//! What the tests share: subjects to look at, strandline to look with, and the invariants that
//! every document must keep. Nothing here asserts: it returns errors that say what went wrong.

pub mod gos;
pub mod invariants;
pub mod jdks;
pub mod libc;
pub mod perls;
pub mod pythons;
pub mod strandline;
pub mod subject;

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

/// Runs `check` for each item and gathers the failures, so that one run shows all of them.
pub fn for_each<T: std::fmt::Debug>(
    items: impl IntoIterator<Item = T>,
    check: impl Fn(&T) -> Outcome,
) -> Outcome {
    let (mut done, mut failures) = (0, Vec::new());
    for item in items {
        done += 1;
        if let Err(error) = check(&item) {
            failures.push(format!("{item:?}: {error}"));
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("{} of {done} failed:\n{}", failures.len(), failures.join("\n")).into())
}

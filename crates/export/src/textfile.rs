//! Writes the page to a file for node_exporter's textfile collector. The file is replaced in one
//! step, so that no reader sees half of it, and removed at the end, so that no reader sees old
//! figures.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Log;

/// The file that collectors read.
const FILE_NAME: &str = "strandline.prom";
/// The file while it is written. Collectors only read files that end in `.prom`.
const PARTIAL_FILE_NAME: &str = ".strandline.prom.partial";

/// Writes the file repeatedly.
pub struct Writer {
    folder: PathBuf,
    interval: Duration,
    /// When to write next.
    due_at: Instant,
    log: Log,
    /// The failure of the last attempt: the same one is reported once.
    last_failure: Option<String>,
}

impl Writer {
    /// Writes into `folder` every `interval`, beginning now.
    pub fn new(folder: PathBuf, interval: Duration, log: Log) -> Self {
        Self { folder, interval, due_at: Instant::now(), log, last_failure: None }
    }

    /// Whether it is time to write.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due_at
    }

    /// Time until the next page.
    pub fn time_until_due(&self) -> Duration {
        self.due_at.saturating_duration_since(Instant::now())
    }

    /// Replaces the file by one with this page; logs a failure.
    pub fn write(&mut self, page: &str) {
        self.due_at = Instant::now() + self.interval;
        let failure = replace(&self.folder, page).err();
        if let Some(line) = failure.as_ref().filter(|line| self.last_failure.as_ref() != Some(*line)) {
            (self.log)(line);
        }
        self.last_failure = failure;
    }
}

/// Checks that the folder can be written to.
///
/// # Errors
/// One line, if it cannot.
pub fn prepare(folder: &Path) -> Result<(), String> {
    create_partial(folder).map(drop)?;
    // The first page is written soon, and removes it otherwise.
    let _ = fs::remove_file(folder.join(PARTIAL_FILE_NAME));
    Ok(())
}

/// Removes the file at the end.
pub fn remove(folder: &Path) {
    // It may have been removed already.
    let _ = fs::remove_file(folder.join(FILE_NAME));
}

/// A failure in one line.
fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}; give --textfile a folder that can be written to", path.display())
}

/// Makes a new file. Removes an old one first, or a link that was put there.
fn create_partial(folder: &Path) -> Result<fs::File, String> {
    let path = folder.join(PARTIAL_FILE_NAME);
    let _ = fs::remove_file(&path);
    let file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
    file.map_err(|error| failed(&path, &error))
}

/// Replaces the file by one with this page.
fn replace(folder: &Path, page: &str) -> Result<(), String> {
    let (partial, path) = (folder.join(PARTIAL_FILE_NAME), folder.join(FILE_NAME));
    let written = create_partial(folder)?.write_all(page.as_bytes());
    let replaced = written.and_then(|()| fs::rename(&partial, &path));
    replaced.map_err(|error| {
        let _ = fs::remove_file(&partial);
        failed(&path, &error)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_page_is_replaced_and_a_failure_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log: Log = {
            let lines = Arc::clone(&lines);
            Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()))
        };
        prepare(folder.path()).unwrap();
        let mut writer = Writer::new(folder.path().to_owned(), Duration::from_secs(3600), log);
        assert!(writer.is_due());
        std::os::unix::fs::symlink("/dev/full", folder.path().join(PARTIAL_FILE_NAME)).unwrap();
        for page in ["first\n", "second\n"] {
            writer.write(page);
            assert_eq!(fs::read_to_string(folder.path().join(FILE_NAME)).unwrap(), page);
        }
        assert!(!writer.is_due());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing partial is left");
        remove(folder.path());
        let removed_folder = folder.path().to_owned();
        drop(folder);
        assert!(prepare(&removed_folder).is_err());
        writer.write("third\n");
        writer.write("fourth\n");
        assert_eq!(lines.lock().unwrap().len(), 1);
    }
}

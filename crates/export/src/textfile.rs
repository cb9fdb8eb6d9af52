//! The page as a file that a collector of files reads (node_exporter's textfile collector). It is replaced in one step, so
//! that nobody reads half of it, and removed at the end, so that nobody reads what is no more.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Tell;

const NAME: &str = "strandline.prom";
/// Collectors read what ends in `.prom`.
const PARTIAL_NAME: &str = ".strandline.prom.partial";

/// Writes it again and again.
pub struct Writer {
    folder: PathBuf,
    interval: Duration,
    due: Instant,
    tell: Tell,
    /// What went wrong last, which is told once.
    told: Option<String>,
}

impl Writer {
    /// Into `folder`, every `interval`, from now on.
    pub fn new(folder: PathBuf, interval: Duration, tell: Tell) -> Self {
        Self { folder, interval, due: Instant::now(), tell, told: None }
    }

    /// Whether it is time.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// How long until it is time.
    pub fn wait(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Writes a page.
    pub fn write(&mut self, page: &str) {
        self.due = Instant::now() + self.interval;
        let error = replace(&self.folder, page).err();
        if let Some(line) = error.as_ref().filter(|line| self.told.as_ref() != Some(*line)) {
            (self.tell)(line);
        }
        self.told = error;
    }
}

/// Looks whether the folder can be written to.
///
/// # Errors
/// One line.
pub fn prepare(folder: &Path) -> Result<(), String> {
    create(folder).map(drop)?;
    // The first page comes soon.
    let _ = fs::remove_file(folder.join(PARTIAL_NAME));
    Ok(())
}

/// Removes the page.
pub fn remove(folder: &Path) {
    // Somebody may have removed it already.
    let _ = fs::remove_file(folder.join(NAME));
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}; give --textfile a folder that can be written to", path.display())
}

/// A new file: one that was there, or was put there to lead elsewhere, goes first.
fn create(folder: &Path) -> Result<fs::File, String> {
    let path = folder.join(PARTIAL_NAME);
    let _ = fs::remove_file(&path);
    let file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
    file.map_err(|error| failed(&path, &error))
}

fn replace(folder: &Path, page: &str) -> Result<(), String> {
    let (partial, path) = (folder.join(PARTIAL_NAME), folder.join(NAME));
    let written = create(folder)?.write_all(page.as_bytes());
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
    fn a_page_is_replaced_and_trouble_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let tell: Tell = {
            let told = Arc::clone(&told);
            Arc::new(move |line: &str| told.lock().unwrap().push(line.to_owned()))
        };
        prepare(folder.path()).unwrap();
        let mut writer = Writer::new(folder.path().to_owned(), Duration::from_secs(60), tell);
        assert!(writer.is_due());
        std::os::unix::fs::symlink("/dev/full", folder.path().join(PARTIAL_NAME)).unwrap();
        for page in ["first\n", "second\n"] {
            writer.write(page);
            assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap(), page);
        }
        assert!(!writer.is_due());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing partial is left");
        remove(folder.path());
        let gone = folder.path().to_owned();
        drop(folder);
        assert!(prepare(&gone).is_err());
        writer.write("third\n");
        writer.write("fourth\n");
        assert_eq!(told.lock().unwrap().len(), 1);
    }
}

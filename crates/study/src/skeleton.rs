//! Creates a new study: a commented file and a program that run without changes.

use std::path::{Path, PathBuf};

use super::file::FILE_NAME;
use strandline_lab::path_error::path_error;

const STUDY: &str = include_str!("skeleton/study.toml");
const PROGRAM: &str = include_str!("skeleton/subject.py");

/// Creates the folder `path` with a study in it; returns the created files.
///
/// # Errors
/// One line: the folder's name is not valid, or the folder already exists or cannot be created.
pub fn make(path: &Path) -> Result<Vec<PathBuf>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !is_name || name.starts_with(['.', '-']) {
        return Err(format!("{name:?} is not a name for a study: use letters, digits, - and _"));
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| path_error(parent, &error))?;
    }
    std::fs::create_dir(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            path_error(path, &"already exists; give another name, or run `strandline study check` on it")
        }
        _ => path_error(path, &error),
    })?;
    let mut created_files = Vec::new();
    for (name, text) in [(FILE_NAME, STUDY), ("subject.py", PROGRAM)] {
        let file = path.join(name);
        std::fs::write(&file, text).map_err(|error| path_error(&file, &error))?;
        created_files.push(file);
    }
    Ok(created_files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_study_is_right_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("studies/mine");
        assert_eq!(make(&path).unwrap().len(), 2);
        let study = super::super::file::Study::read(&path).unwrap();
        assert_eq!(study.name, "mine");
        assert!(make(&path).unwrap_err().contains("already exists"));
        assert!(make(Path::new("../..")).is_err() && make(Path::new("a b")).is_err());
    }
}

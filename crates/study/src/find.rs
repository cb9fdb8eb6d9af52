//! Locates studies: a path, a name below `./studies/` or `$STRANDLINE_STUDIES`, or a study embedded
//! in strandline.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::file::FILE_NAME;
use strandline_lab::path_error::path_error;
use strandline_lab::{executable, journal};

/// Files of the embedded studies and probes.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/studies.rs"));
}

/// Permissions of an unpacked file, and of one that is executable.
const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;
/// The permissions of a file among the bits of its mode.
const PERMISSION_BITS: u32 = 0o777;

/// Folders in which a name is looked up, in order of precedence.
fn search_folders() -> Vec<PathBuf> {
    let variable = std::env::var_os("STRANDLINE_STUDIES").unwrap_or_default();
    let user_folders = std::env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    [PathBuf::from("studies")].into_iter().chain(user_folders).collect()
}

/// The folder of the study `name`, which is a name or a path.
///
/// # Errors
/// One line with the places searched, or a similar name.
pub fn find(name: &str) -> Result<PathBuf, String> {
    let path = Path::new(name);
    // A plain word is a name; a folder of that name that is not a study does not count.
    if name.contains('/')
        || path.join(FILE_NAME).is_file()
        || path.extension().is_some_and(|end| end == "toml")
    {
        return if path.exists() {
            Ok(path.to_owned())
        } else {
            Err(format!(
                "{name}: no such file or folder; `strandline study new {name}` creates a study there"
            ))
        };
    }
    let mut folders = search_folders().into_iter().map(|folder| folder.join(name));
    if let Some(folder) = folders.find(|folder| folder.join(FILE_NAME).is_file()) {
        return Ok(folder);
    }
    if embedded_names().iter().any(|embedded_name| embedded_name == name) {
        return unpack(name);
    }
    let hint = match list() {
        Err(unreadable) => unreadable,
        Ok(studies) => match super::nearest::nearest(name, studies.iter().map(|study| study.name.as_str())) {
            Some(near) => format!("did you mean {near}?"),
            None => "`strandline study` lists them".to_owned(),
        },
    };
    Err(format!("there is no study {name} in ./studies, in $STRANDLINE_STUDIES or with strandline; {hint}"))
}

/// Other places with a study of this name besides `chosen`, in words; `None` if there is no other.
pub fn other_places(name: &str, chosen: &Path) -> Option<String> {
    if name.contains('/') {
        return None;
    }
    let folders = search_folders().into_iter().map(|folder| folder.join(name));
    // `name` may be found by a relative path while `chosen` is absolute.
    let other_folders =
        folders.filter(|path| path.join(FILE_NAME).is_file() && canonical(path) != canonical(chosen));
    let mut places: Vec<String> = other_folders.map(|path| path.display().to_string()).collect();
    if !is_embedded(chosen) && embedded_names().iter().any(|embedded_name| embedded_name == name) {
        places.push("the one that came with strandline".to_owned());
    }
    (!places.is_empty()).then(|| places.join(", "))
}

/// Whether the folder is that of an embedded study.
pub fn is_embedded(folder: &Path) -> bool {
    canonical(folder).starts_with(canonical(&studies_folder()))
}

/// The canonical path of a folder; `path` itself if it does not exist.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A study that can be run by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedStudy {
    /// Its name.
    pub name: String,
    /// Its folder; `None` if it is embedded.
    pub folder: Option<PathBuf>,
}

impl ListedStudy {
    /// Its folder: exactly that one, not another with the same name.
    ///
    /// # Errors
    /// One line: an embedded study cannot be unpacked.
    pub fn unpacked_folder(&self) -> Result<PathBuf, String> {
        self.folder.clone().map_or_else(|| unpack(&self.name), Ok)
    }
}

/// All studies that can be run by name.
///
/// # Errors
/// One line if a folder with studies cannot be read.
pub fn list() -> Result<Vec<ListedStudy>, String> {
    let mut studies: Vec<ListedStudy> = Vec::new();
    for folder in search_folders() {
        let folders = subfolders(&folder).map_err(|error| path_error(&folder, &error))?;
        for path in folders.into_iter().filter(|path| path.join(FILE_NAME).is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !studies.iter().any(|study| study.name == name) {
                studies.push(ListedStudy { name, folder: Some(path) });
            }
        }
    }
    for name in embedded_names() {
        if !studies.iter().any(|study| study.name == name) {
            studies.push(ListedStudy { name, folder: None });
        }
    }
    studies.sort();
    Ok(studies)
}

/// The entries of a folder of studies; none if there is no such folder.
fn subfolders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

fn embedded_names() -> Vec<String> {
    let files = embedded::STUDIES.iter().filter_map(|file| file.path.strip_suffix(FILE_NAME));
    files.map(|folder| folder.trim_end_matches('/').to_owned()).filter(|name| !name.contains('/')).collect()
}

fn studies_folder() -> PathBuf {
    unpack_folder("studies")
}

/// Folder for unpacked embedded files: in the user's cache, or in the folder staged for other
/// machines.
fn unpack_folder(name: &str) -> PathBuf {
    let versions = executable::staged_folder()
        .map_or_else(|| journal::cache().with_file_name(name), |folder| folder.join(name));
    versions.join(env!("CARGO_PKG_VERSION"))
}

/// Unpacks the files of an embedded study, so that its programs can read them.
fn unpack(name: &str) -> Result<PathBuf, String> {
    let prefix = format!("{name}/");
    write_files(&studies_folder(), embedded::STUDIES.iter().filter(|file| file.path.starts_with(&prefix)))?;
    Ok(studies_folder().join(name))
}

/// The folder of the probes that studies use, filled by [`unpack_probes`].
pub fn probes() -> PathBuf {
    unpack_folder("probes")
}

/// Unpacks the embedded probes to [`probes`].
///
/// # Errors
/// One line: a file cannot be written.
pub fn unpack_probes() -> Result<(), String> {
    write_files(&probes(), embedded::PROBES.iter())
}

struct EmbeddedFile {
    /// Its path below `studies/` or `probes/`.
    path: &'static str,
    content: &'static [u8],
    is_executable: bool,
}

/// Writes files below `base`, each atomically, because another strandline may do the same.
fn write_files(base: &Path, files: impl Iterator<Item = &'static EmbeddedFile>) -> Result<(), String> {
    for file in files {
        let path = base.join(file.path);
        let folder = path.parent().unwrap_or(base);
        std::fs::create_dir_all(folder).map_err(|error| path_error(folder, &error))?;
        let mode = if file.is_executable { EXECUTABLE_MODE } else { FILE_MODE };
        let has_mode = |metadata: std::fs::Metadata| metadata.permissions().mode() & PERMISSION_BITS == mode;
        // Unchanged files are not rewritten: a resumed lab identifies its files by their times.
        if std::fs::metadata(&path).is_ok_and(has_mode)
            && std::fs::read(&path).is_ok_and(|existing| existing == file.content)
        {
            continue;
        }
        let mut temporary =
            tempfile::NamedTempFile::new_in(folder).map_err(|error| path_error(folder, &error))?;
        let written = temporary
            .write_all(file.content)
            .and_then(|()| temporary.as_file().set_permissions(Permissions::from_mode(mode)));
        written.map_err(|error| path_error(&path, &error))?;
        temporary.persist(&path).map_err(|error| path_error(&path, &error.error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_that_came_with_strandline_is_right() {
        let names = embedded_names();
        assert!(names.contains(&"freed-or-not".to_owned()), "{names:?}");
        for file in embedded::STUDIES.iter().filter(|file| file.path.ends_with(FILE_NAME)) {
            let text = std::str::from_utf8(file.content).unwrap();
            let study = super::super::file::Study::parse(Path::new(file.path), text);
            assert!(study.is_ok(), "{:#?}", study.map(|_| ()));
        }
    }

    #[test]
    fn a_folder_of_studies_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..1_100 {
            std::fs::create_dir(folder.path().join(number.to_string())).unwrap();
        }
        assert_eq!(subfolders(folder.path()).unwrap().len(), 1_100);
        assert_eq!(subfolders(&folder.path().join("none")).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn unpacked_files_have_their_modes() {
        const FILES: [EmbeddedFile; 2] = [
            EmbeddedFile { path: "a/run.sh", content: b"#!/bin/sh\n", is_executable: true },
            EmbeddedFile { path: "a/data", content: b"1\n", is_executable: false },
        ];
        let folder = tempfile::tempdir().unwrap();
        let mode =
            |file: &str| std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode() & 0o777;
        for _ in 0..2 {
            write_files(folder.path(), FILES.iter()).unwrap();
            assert_eq!((mode("a/run.sh"), mode("a/data")), (0o755, 0o644));
            // As left by an earlier strandline without the mode.
            std::fs::set_permissions(folder.path().join("a/run.sh"), Permissions::from_mode(0o600)).unwrap();
        }
    }

    #[test]
    fn a_missing_study_is_reported_with_the_places_searched() {
        assert!(find("./no/such").unwrap_err().contains("study new"));
        assert_eq!(other_places("no-such", Path::new("studies/no-such")), None);
        let places = other_places("freed-or-not", Path::new("/elsewhere/freed-or-not")).unwrap();
        assert!(places.contains("came with strandline"), "{places}");
        assert!(find("freed-or-no").unwrap_err().contains("did you mean freed-or-not?"));
    }
}

//! Reads and checks the file of a study and returns a [`Study`].

use std::io::Read;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::check::{self, ClaimCheck};
use super::file::{FILE_NAME, Study};
use super::parse;
use super::problems::Problems;

/// Maximum size of a study file.
const MAX_STUDY_BYTES: u64 = 1 << 20;

impl Study {
    /// Reads the study in the folder `path`, or in the file `path`.
    ///
    /// # Errors
    /// Why it cannot be read, or all its problems, in one line each.
    pub fn read(path: &Path) -> Result<Self, Vec<String>> {
        Self::read_and_check(path, ClaimCheck::Full)
    }

    /// Reads a study without checking its claims, which takes time.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_without_claims(path: &Path) -> Result<Self, Vec<String>> {
        Self::read_and_check(path, ClaimCheck::None)
    }

    fn read_and_check(path: &Path, claim_check: ClaimCheck) -> Result<Self, Vec<String>> {
        let file = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let text = read_text(&file).map_err(|line| vec![line])?;
        Self::parse_and_check(&file, &text, claim_check)
    }

    /// Parses and checks the `text` of the file `path`.
    ///
    /// # Errors
    /// All problems, one line each: `PATH:LINE:COLUMN: text`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Vec<String>> {
        Self::parse_and_check(path, text, ClaimCheck::Full)
    }

    fn parse_and_check(path: &Path, text: &str, claim_check: ClaimCheck) -> Result<Self, Vec<String>> {
        let mut problems = Problems::default();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            problems.add(error.span().map_or(0, |span| span.start), error.message().replace('\n', " "));
        }
        let mut study = Self::default();
        if problems.is_empty() {
            study = parse::study(table.get_ref(), &mut problems);
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            study.folder = absolute(folder.unwrap_or(Path::new(".")));
            study.text = text.to_owned();
            study.name = study.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        if problems.is_empty() {
            check::study(&mut study, claim_check, &mut problems);
        }
        if problems.is_empty() { Ok(study) } else { Err(problems.lines(path, text)) }
    }
}

/// The canonical path; if it is unknown, `path` below the current directory; else `path` itself.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// The text of a study file.
fn read_text(path: &Path) -> Result<String, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let metadata = path.metadata().map_err(|error| named(&error))?;
    if !metadata.is_file() {
        return Err(named(&"not a file; a study is a folder with study.toml, see `strandline study new`"));
    }
    let file = std::fs::File::open(path).map_err(|error| named(&error))?;
    let mut bytes = Vec::new();
    file.take(MAX_STUDY_BYTES + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?;
    if bytes.len() as u64 > MAX_STUDY_BYTES {
        return Err(named(&"larger than 1 MiB: not a study's file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        format!("{}:{line}: not UTF-8 text", path.display())
    })
}

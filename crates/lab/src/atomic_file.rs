//! Files that readers see as a whole or not at all.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::path_error::AtPath;

/// Name prefix of a file while it is being written.
pub const TEMPORARY_PREFIX: &str = ".new-";

/// Writes `content` to a temporary file beside `path`, and renames it to `path`: after a crash of
/// the machine the file has all of its new content, or is as it was before.
pub fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).at(path)?;
    let mut temporary = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(folder).at(path)?;
    // Synced first: otherwise another machine may see the name before the content.
    temporary.write_all(content).and_then(|()| temporary.as_file().sync_all()).at(path)?;
    temporary.persist(path).map_err(|error| error.error).at(path)?;
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).at(path)
}

/// Writes a file of JSON atomically.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(value).at(path)?;
    write(path, &text)
}

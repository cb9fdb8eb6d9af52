//! The one form of an error about a file or folder.

use std::fmt::Display;
use std::path::Path;

/// `PATH: REASON`.
pub fn path_error(path: &Path, error: &dyn Display) -> String {
    format!("{}: {error}", path.display())
}

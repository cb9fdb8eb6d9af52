//! The one form of an error about a file or folder.

use std::fmt::Display;
use std::path::Path;

/// `PATH: REASON`.
pub fn path_error(path: &Path, error: &dyn Display) -> String {
    format!("{}: {error}", path.display())
}

/// Adds a path to the error of a result.
pub trait AtPath<T> {
    /// The same result, with an error in the form of [`path_error`].
    fn at(self, path: &Path) -> Result<T, String>;
}

impl<T, E: Display> AtPath<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, String> {
        self.map_err(|error| path_error(path, &error))
    }
}

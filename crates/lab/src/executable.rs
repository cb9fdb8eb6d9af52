//! The executable of strandline: path for starting itself, and staging for other machines.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::atomic_file;

/// Folder with the staged files.
static STAGED: OnceLock<PathBuf> = OnceLock::new();

/// The running executable, valid even if its file was replaced or removed.
pub fn executable_path() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Copies the executable once below `folder`, which all machines of a lab must see. Later staged
/// files go there too.
pub fn stage(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
    let folder = folder.canonicalize().map_err(|error| named(folder, &error))?;
    let path = program_in(&folder);
    let executable =
        std::fs::read(executable_path()).map_err(|error| format!("strandline itself: {error}"))?;
    if !std::fs::read(&path).is_ok_and(|staged_content| staged_content == executable) {
        atomic_file::write(&path, &executable)?;
    }
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).map_err(|error| named(&path, &error))?;
    // All labs of one process use the same folder.
    STAGED.get_or_init(|| folder);
    Ok(())
}

/// Folder with the staged files, if staged.
pub fn staged() -> Option<&'static Path> {
    STAGED.get().map(PathBuf::as_path)
}

/// The executable for other machines, if staged.
pub fn staged_program() -> Option<PathBuf> {
    staged().map(program_in)
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join("bin").join("strandline")
}

//! The executable of strandline: path for starting itself, and staging for other machines.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::atomic_file;
use super::path_error::{AtPath, path_error};

/// Folder with the staged files.
static STAGED_IN: OnceLock<PathBuf> = OnceLock::new();

/// The running executable, valid even if its file was replaced or removed.
pub fn executable_path() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Copies the executable once below `folder`, which all machines of a lab must see. Later staged
/// files go there too.
///
/// # Errors
/// One line with the path, if a file cannot be read or written, or another folder is in use.
pub fn stage(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder).at(folder)?;
    let folder = folder.canonicalize().at(folder)?;
    let path = program_in(&folder);
    let own_path = executable_path();
    let executable = std::fs::read(&own_path).at(&own_path)?;
    if !std::fs::read(&path).is_ok_and(|staged_content| staged_content == executable) {
        atomic_file::write(&path, &executable)?;
    }
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).at(&path)?;
    if *STAGED_IN.get_or_init(|| folder.clone()) != folder {
        return Err(path_error(&folder, &"strandline is already staged in another folder"));
    }
    Ok(())
}

/// Folder with the staged files, if staged.
pub fn staged_folder() -> Option<&'static Path> {
    STAGED_IN.get().map(PathBuf::as_path)
}

/// The executable for other machines, if staged.
pub fn staged_program() -> Option<PathBuf> {
    staged_folder().map(program_in)
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join("bin").join("strandline")
}

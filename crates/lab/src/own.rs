//! This program itself, which starts itself again for the commands of a lab, and where it is put for other machines.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::slurm::put_text;

/// Where what other machines need was put.
static STAGED: OnceLock<PathBuf> = OnceLock::new();

/// The program that runs, also where its file has been replaced or removed since.
pub fn own_program() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Puts this program below `folder`, which all machines of a lab see, once; what comes with it is put there from now
/// on, too.
///
/// # Errors
/// One line.
pub fn stage(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
    let folder = folder.canonicalize().map_err(|error| named(folder, &error))?;
    let path = program_in(&folder);
    let own = std::fs::read(own_program()).map_err(|error| format!("strandline itself: {error}"))?;
    if !std::fs::read(&path).is_ok_and(|there| there == own) {
        put_text(&path, &own)?;
    }
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).map_err(|error| named(&path, &error))?;
    // A process has one lab, or several in one folder.
    STAGED.get_or_init(|| folder);
    Ok(())
}

/// Where what other machines need was put, if it was.
pub fn staged() -> Option<&'static Path> {
    STAGED.get().map(PathBuf::as_path)
}

/// The program that other machines run, if it was put anywhere.
pub fn staged_program() -> Option<PathBuf> {
    staged().map(program_in)
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join("bin").join("strandline")
}

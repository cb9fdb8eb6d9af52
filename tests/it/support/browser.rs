//! The browser in which pages are tested (`tests/browser`).

use std::path::PathBuf;
use std::process::Command;

use super::skipped;

/// Returns the path of a Chromium; `None`, reported for `test`, without it or without python3,
/// which drives it.
pub fn browser(test: &str) -> Option<PathBuf> {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        skipped(test, "python3 is not installed");
        return None;
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    let found = files.find(|file| file.is_file());
    if found.is_none() {
        skipped(test, "no Chromium: scripts/deps --full installs it");
    }
    found
}

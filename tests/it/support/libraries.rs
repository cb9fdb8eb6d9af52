//! Libraries and compilers of allocators other than glibc's, as far as they are installed here.

use std::path::PathBuf;
use std::process::Command;

use super::skipped;

/// Where Debian puts libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A library whose name starts as `name` does: Debian's carry a version behind.
pub fn library(name: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(LIBRARIES).ok()?;
    let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
    paths.find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
}

/// The system's musl, and what is built with the malloc that was in it before (STRANDLINE_MUSLS: a folder of NAME/bin/musl-gcc); and
/// by what each is told.
pub fn musls(test: &str) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    match Command::new("musl-gcc").arg("--version").output() {
        Ok(_) => found.push((PathBuf::from("musl-gcc"), "state of mallocng")),
        Err(_) => skipped(test, "no musl-gcc (apt-get install musl-tools)"),
    }
    match std::env::var_os("STRANDLINE_MUSLS") {
        Some(folder) => {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let built = entries.map(|entry| entry.path().join("bin/musl-gcc")).filter(|built| built.exists());
            found.extend(built.map(|built| (built, "lists of free chunks")));
        }
        None => skipped(test, "the malloc of 1.1: STRANDLINE_MUSLS names no folder of them (make test-full)"),
    }
    found
}

/// Builds of Google's tcmalloc (STRANDLINE_GOOGLE_TCMALLOCS: a folder of NAME.so, with NAME.a to be linked in).
pub fn google_tcmallocs(test: &str) -> Vec<PathBuf> {
    let Some(folder) = std::env::var_os("STRANDLINE_GOOGLE_TCMALLOCS") else {
        skipped(test, "STRANDLINE_GOOGLE_TCMALLOCS names no folder of them (make test-full)");
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let libraries = entries.map(|entry| entry.path());
    libraries.filter(|path| path.extension().is_some_and(|extension| extension == "so")).collect()
}

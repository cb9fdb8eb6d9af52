//! Installed libraries and compilers of allocators other than glibc's.

use std::path::PathBuf;
use std::process::Command;

use super::skipped;

/// Debian's folder of libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A library whose name starts with `name`: Debian's names end in a version.
pub fn library(name: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(LIBRARIES).ok()?;
    let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
    paths.find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
}

/// A library of an allocator that is read.
#[derive(Clone, Debug)]
pub struct Library {
    /// The allocator's name.
    pub name: &'static str,
    pub path: PathBuf,
    /// The allocator's remedy.
    pub remedy: &'static str,
    /// Whether it is installed on the system.
    pub is_systems: bool,
}

/// Allocators that are read: name, library and remedy.
const ALLOCATORS: [(&str, &str, &str); 3] = [
    ("jemalloc", "libjemalloc.so.2", "jemalloc_purge"),
    ("tcmalloc", "libtcmalloc_minimal.so.4", "tcmalloc_release"),
    ("mimalloc", "libmimalloc.so.2", "mimalloc_collect"),
];

/// The installed libraries, and separately built releases (STRANDLINE_ALLOCATORS: a folder of
/// NAME-RELEASE.so).
pub fn libraries(test: &str) -> Vec<Library> {
    let folder = std::env::var_os("STRANDLINE_ALLOCATORS");
    if folder.is_none() {
        skipped(test, "other releases: STRANDLINE_ALLOCATORS does not name a folder of NAME-RELEASE.so");
    }
    let entries = folder.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let built: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let mut found = Vec::new();
    for (name, file, remedy) in ALLOCATORS {
        match library(file) {
            Some(path) => found.push(Library { name, path, remedy, is_systems: true }),
            None => skipped(test, &format!("no {file} (apt-get install it)")),
        }
        let prefix = format!("{name}-");
        let is_release = |path: &&PathBuf| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix))
        };
        let releases = built.iter().filter(is_release).cloned();
        found.extend(releases.map(|path| Library { name, path, remedy, is_systems: false }));
    }
    found
}

/// Compilers for the system's musl and for builds with musl's former malloc (STRANDLINE_MUSLS: a
/// folder of NAME/bin/musl-gcc), each with the structure by which its malloc is recognised.
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

/// Builds of Google's tcmalloc (STRANDLINE_GOOGLE_TCMALLOCS: a folder of NAME.so, with NAME.a for
/// static linking).
pub fn google_tcmallocs(test: &str) -> Vec<PathBuf> {
    let Some(folder) = std::env::var_os("STRANDLINE_GOOGLE_TCMALLOCS") else {
        skipped(test, "STRANDLINE_GOOGLE_TCMALLOCS names no folder of them (make test-full)");
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let libraries = entries.map(|entry| entry.path());
    libraries.filter(|path| path.extension().is_some_and(|extension| extension == "so")).collect()
}

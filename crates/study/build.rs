//! Embeds the files of `studies/` and `probes/`, so that an installed strandline contains them. In
//! the workspace both are links to its folders; a package of this crate has the files themselves.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Maximum size of an embedded file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A file to embed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SourceFile {
    path: PathBuf,
    is_executable: bool,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut text = list_source("STUDIES", &folder("studies"));
    text.push_str(&list_source("PROBES", &folder("probes")));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("studies.rs");
    if let Err(error) = fs::write(&out, text) {
        println!("cargo::error={}: {error}", out.display());
    }
}

/// The folder `name` of this crate, without links, and its changes watched.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join(name);
    let path = fs::canonicalize(&path).unwrap_or(path);
    println!("cargo::rerun-if-changed={}", path.display());
    path
}

/// Source of a list `name` of the files below `root`. A file that cannot be included is a build
/// error, because an installed study would otherwise fail.
fn list_source(name: &str, root: &Path) -> String {
    let mut files = Vec::new();
    collect_files(root, 0, &mut files);
    files.sort();
    let mut text = format!("pub(super) const {name}: &[super::EmbeddedFile] = &[\n");
    for SourceFile { path, is_executable } in files {
        let full_path = path.display().to_string();
        let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "super::EmbeddedFile {{ path: {path:?}, content: include_bytes!({full_path:?}), is_executable: {is_executable} }},"
        );
    }
    text.push_str("];\n");
    text
}

/// Adds the files below `folder`, which is `depth` folders below the root, to `files`.
fn collect_files(folder: &Path, depth: usize, files: &mut Vec<SourceFile>) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return refuse(folder, &error.to_string()),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return refuse(folder, &error.to_string()),
        };
        let path = entry.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            refuse(&path, "its name is not UTF-8");
            continue;
        };
        if is_tool_leftover(name) || is_result(name, depth) {
            continue;
        }
        match entry.metadata() {
            _ if name.starts_with('.') => {
                refuse(&path, "hidden files are not embedded: rename or remove it");
            }
            Ok(metadata) if metadata.is_dir() => collect_files(&path, depth + 1, files),
            Ok(metadata) if metadata.is_file() && metadata.len() <= MAX_FILE_BYTES => {
                let is_executable = metadata.permissions().mode() & 0o111 != 0;
                files.push(SourceFile { path, is_executable });
            }
            Ok(metadata) if metadata.is_file() => {
                let bytes = metadata.len();
                refuse(&path, &format!("it has {bytes} bytes; a file may have {MAX_FILE_BYTES}"));
            }
            Ok(_) => refuse(&path, "it is neither a file nor a folder"),
            Err(error) => refuse(&path, &error.to_string()),
        }
    }
}

/// Whether a file is a leftover of an interpreter or editor.
fn is_tool_leftover(name: &str) -> bool {
    name == "__pycache__"
        || [".pyc", ".swp", ".swo", "~"].iter().any(|end| name.ends_with(end))
        || [".DS_Store", ".gitignore"].contains(&name)
}

/// Whether a file is only for readers of the source tree or written by `make studies`: the overall
/// results, and the README and plots of a study.
fn is_result(name: &str, depth: usize) -> bool {
    (depth == 0 && name == "RESULTS.md") || (depth == 1 && ["README.md", "plots"].contains(&name))
}

/// Makes the build fail because of a file.
fn refuse(path: &Path, why: &str) {
    println!("cargo::error={}: {why}", path.display());
}

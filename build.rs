//! Lists the files of `studies/` and `probes/`, so that an installed strandline has them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What is larger is not a subject's source.
const MOST_BYTES: u64 = 1 << 20;

fn main() {
    println!("cargo::rerun-if-changed=studies");
    println!("cargo::rerun-if-changed=probes");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut text = listed("STUDIES", &root.join("studies"));
    text.push_str(&listed("PROBES", &root.join("probes")));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("studies.rs");
    if let Err(error) = fs::write(&out, text) {
        println!("cargo::error={}: {error}", out.display());
    }
}

/// The files below `root` as a list called `name`.
fn listed(name: &str, root: &Path) -> String {
    let mut files = Vec::new();
    collect(root, &mut files);
    files.sort();
    let mut text =
        format!("/// Path below the folder, and content.\npub const {name}: &[(&str, &[u8])] = &[\n");
    for file in files {
        let path = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        // Writing into a string does not fail.
        let _ = writeln!(text, "    ({path:?}, include_bytes!({:?})),", file.display().to_string());
    }
    text.push_str("];\n");
    text
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_hidden = entry.file_name().to_string_lossy().starts_with(['.', '_']);
        match entry.metadata() {
            Ok(data) if data.is_dir() && !is_hidden => collect(&path, files),
            Ok(data) if data.is_file() && !is_hidden && data.len() <= MOST_BYTES => files.push(path),
            _ => {}
        }
    }
}

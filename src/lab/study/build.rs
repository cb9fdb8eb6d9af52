//! What a cell needs before it can run: tools, libraries and files that have to be here, and subjects that are built
//! once for each way their placeholders are filled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::{Need, NeedKind};
use super::matrix::{Key, Matrix, fill};
use crate::lab::figures::find_in_path;

/// Where the loader looks for a library that has no path; `ldconfig` knows of more, but these are usual.
const LIBRARY_FOLDERS: [&str; 8] = [
    "/usr/local/lib",
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// What the placeholders of a cell stand for, but `{build}`.
pub fn values(matrix: &Matrix, key: &Key) -> BTreeMap<String, String> {
    let choices = matrix.choices(key).map(|(axis, choice)| (axis.name.clone(), choice.value.clone()));
    let folder = matrix.study.folder.to_string_lossy().into_owned();
    choices.chain([("dir".to_owned(), folder)]).collect()
}

/// Why a cell cannot be run here: what is missing, and how to get it.
pub fn missing(matrix: &Matrix, key: &Key) -> Option<String> {
    let subject = matrix.subjects.get(key.subject)?;
    let values = values(matrix, key);
    let program = subject.command.first().map(|word| fill(word, &values));
    // A program that is built first is not there yet.
    let program = program.filter(|program| !program.contains("{build}"));
    let program = program.map(|name| Need { kind: NeedKind::Tool, name, install: None });
    let of_choices = matrix.choices(key).flat_map(|(_, choice)| &choice.needs);
    let builders = subject.build.iter().filter_map(|words| words.first());
    let builders = builders.filter(|word| !word.contains("{build}")).map(|word| Need {
        kind: NeedKind::Tool,
        name: word.clone(),
        install: None,
    });
    let needs = subject.needs.iter().chain(of_choices).cloned().chain(builders).chain(program);
    let mut missing: Vec<String> = Vec::new();
    for need in needs {
        let name = fill(&need.name, &values);
        let is_here = match need.kind {
            NeedKind::Tool => find_in_path(&name).is_some(),
            NeedKind::Library => find_library(&name).is_some(),
            NeedKind::File => Path::new(&name).exists(),
        };
        let begin = format!("{name} is not here");
        if !is_here && !missing.iter().any(|known| known.starts_with(&begin)) {
            missing.push(need.install.map_or_else(|| begin.clone(), |how| format!("{begin} ({how})")));
        }
    }
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// The file of a library: a path as it is, a name as the loader finds it.
pub fn find_library(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let own: Vec<PathBuf> = std::env::split_paths(&own).filter(|path| path.is_absolute()).collect();
    let folders = own.into_iter().chain(LIBRARY_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The commands that build a cell's subject, with their placeholders filled; `build` is the private folder.
pub fn commands(matrix: &Matrix, key: &Key, build: &Path) -> Vec<Vec<String>> {
    let mut values = values(matrix, key);
    values.insert("build".to_owned(), build.to_string_lossy().into_owned());
    let Some(subject) = matrix.subjects.get(key.subject) else { return Vec::new() };
    let filled = |words: &Vec<String>| words.iter().map(|word| fill(word, &values)).collect();
    subject.build.iter().map(filled).collect()
}
